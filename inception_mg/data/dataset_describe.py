"""Writes dataset.json for records that were made elsewhere, such as by the programs of 2016."""

import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from inception_mg.data.class_folders import read_class_names
from inception_mg.data.dataset_info import (
    LABELS_FILE,
    SUBSETS,
    DatasetInfo,
    existing_shards,
    shard_paths,
    write_dataset_info,
)
from inception_mg.data.progress import note, progress
from inception_mg.errors import UserError
from inception_mg.reasons import reason_of

_RECORDS_AT_ONCE = 64


def describe_dataset(output_directory: str) -> DatasetInfo:
    """Counts the records of the folder's shards, writes dataset.json for them and returns it.

    There are as many classes as the largest label; labels.txt names them if it is there, else the records
    do. Raises UserError for missing or damaged shards and for records without a label.
    """
    paths = {subset: shard_paths(output_directory, subset) for subset in SUBSETS
             if existing_shards(output_directory, subset)}
    if not paths:
        shard_paths(output_directory, SUBSETS[0])  # Raises, and says what is in the folder.
    counts, texts = dict.fromkeys(paths, 0), {}
    shards = [(subset, path) for subset, found in paths.items() for path in found]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scan = _build_scan()
        for subset, path in progress(shards, len(shards), 'describe', 'shards'):
            for labels_v, texts_v in _scan_shard(session, scan, path):
                counts[subset] += len(labels_v)
                for label, text in zip(labels_v.tolist(), texts_v.tolist(), strict=True):
                    texts.setdefault(label, text.decode(errors='replace'))
    info = DatasetInfo(_class_names(output_directory, texts), counts,
                       {subset: len(found) for subset, found in paths.items()})
    write_dataset_info(output_directory, info)
    return info


def _build_scan() -> tuple:
    """Returns a placeholder for a shard's path, the op that opens it, and the next (labels, texts)."""
    path = tf.compat.v1.placeholder(tf.string, [])
    features = {'image/class/label': tf.io.FixedLenFeature([], tf.int64, default_value=-1),
                'image/class/text': tf.io.FixedLenFeature([], tf.string, default_value='')}
    records = tf.data.TFRecordDataset(path).batch(_RECORDS_AT_ONCE)
    records = records.map(lambda serialized: tf.io.parse_example(serialized, features)).prefetch(2)
    iterator = tf.compat.v1.data.make_initializable_iterator(records)
    fields = iterator.get_next()
    return path, iterator.initializer, (fields['image/class/label'], fields['image/class/text'])


def _scan_shard(session: tf.compat.v1.Session, scan: tuple,
                path: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    path_t, initializer, batch = scan
    session.run(initializer, {path_t: path})
    done = 0
    while True:
        try:
            labels_v, texts_v = session.run(batch)
        except tf.errors.OutOfRangeError:
            return
        except tf.errors.OpError as error:
            raise UserError(f'{path} is damaged between records {done} and {done + _RECORDS_AT_ONCE}: '
                            f'{reason_of(error)}') from None
        if labels_v.min() < 0:
            record = done + int(labels_v.argmin())
            raise UserError(f'{path}: record {record} has no image/class/label of 0 or more')
        done += len(labels_v)
        yield labels_v, texts_v


def _class_names(output_directory: str, texts: dict[int, str]) -> tuple[str, ...]:
    """Returns the name of label 1, 2, ...: from labels.txt, else from `texts`, {label: text of a record}."""
    if not texts:
        raise UserError(f'{output_directory}: the shards hold no record')
    if 0 in texts:
        note('warning: some records have label 0, which is the background here: classes start at 1')
    path = os.path.join(output_directory, LABELS_FILE)
    if not os.path.exists(path):
        return tuple(texts.get(label) or f'class {label}' for label in range(1, max(texts) + 1))
    names = read_class_names(path)
    if len(names) < max(texts):
        raise UserError(f'{path} names {len(names)} classes, but a record has label {max(texts)}: line k '
                        'must be the name of label k (or remove it, and the names in the records are used)')
    for label, text in sorted(texts.items()):
        if label and text and text != names[label - 1]:
            note(f'warning: {path} calls label {label} {names[label - 1]!r}, a record calls it {text!r}')
            break
    return tuple(names)
