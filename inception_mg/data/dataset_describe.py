"""Writes dataset.json for records that were made elsewhere, such as by the programs of 2016 or by tfds."""

import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from inception_mg.data.class_folders import read_class_names
from inception_mg.data.damage import check_kinds, compression_of_shard, count_damage, describe_record
from inception_mg.data.dataset_info import (
    LABELS_FILE,
    OURS,
    SUBSETS,
    DatasetInfo,
    RecordKeys,
    existing_shards,
    shard_paths,
    write_dataset_info,
)
from inception_mg.data.example import box_faults
from inception_mg.data.parts import dealt_in_turn
from inception_mg.data.progress import note, progress
from inception_mg.data.tfds_files import INFO_FILE, Others, find_others, write_for_tfds
from inception_mg.errors import UserError
from inception_mg.files import exists

_RECORDS_AT_ONCE = 64
_MAX_LABEL = 1_000_000  # A larger one is damage: a name is made for each label up to it.


def describe_dataset(output_directory: str) -> DatasetInfo:
    """Counts the records of the folder's shards, writes dataset.json for them and returns it.

    There are as many classes as the largest label; labels.txt names them if it is there, else the records
    do. Beside shards as ours it also writes the files by which tfds reads them. A folder that tfds wrote keeps its
    names: dataset.json says where classes, images and labels are. Raises UserError for missing or damaged shards and
    for records without a label.
    """
    paths = {subset: shard_paths(output_directory, subset) for subset in SUBSETS
             if existing_shards(output_directory, subset)}
    others = None if paths else find_others(output_directory)
    if others:
        paths = {subset: shard_paths(output_directory, stem) for subset, stem in others.stems.items()}
    if not paths:
        shard_paths(output_directory, SUBSETS[0])  # Raises, and says what is in the folder.
    keys = others.keys if others else OURS
    lengths, texts = {subset: [] for subset in paths}, {}
    shards = [(subset, path) for subset, found in paths.items() for path in found]
    check_kinds([path for _, path in shards])
    odd = _OddBoxes()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scan = _build_scan(keys)
        for subset, path in progress(shards, len(shards), 'describe', 'shards'):
            lengths[subset].append(0)
            for labels_v, texts_v, odd_v in _scan_shard(session, scan, path, keys):
                odd.see(path, lengths[subset][-1], odd_v)
                lengths[subset][-1] += len(labels_v)
                for label, text in zip(labels_v.tolist(), texts_v.tolist(), strict=True):
                    texts.setdefault(label, ' '.join(text.decode(errors='replace').split()))
    odd.say()
    counts = {subset: sum(found) for subset, found in lengths.items()}
    numbers = {subset: len(found) for subset, found in paths.items()}
    uneven = {subset: tuple(found) for subset, found in lengths.items()
              if found != dealt_in_turn(counts[subset], len(found))}
    if others:
        info = DatasetInfo(_names_of_others(output_directory, others, texts), counts, numbers, keys, others.stems,
                           uneven)
        _compare(output_directory, others, lengths)
    else:
        info = DatasetInfo(_class_names(output_directory, texts), counts, numbers, shard_records=uneven)
        if not any(check_kinds([path for _, path in shards])):  # tfds knows no compressed shards.
            write_for_tfds(output_directory, info, lengths)
    write_dataset_info(output_directory, info)
    return info


def _names_of_others(folder: str, others: Others, labels: Collection[int]) -> tuple[str, ...]:
    """The names of classes that are counted from 0, by what tfds says, or by the labels that there are."""
    if not labels:
        raise UserError(f'{folder}: the shards hold no record')
    if others.classes and max(labels) > len(others.classes):
        raise UserError(f'{folder} names {len(others.classes)} classes, labels 0 to {len(others.classes) - 1}, but a '
                        f'record has {others.keys.label} {max(labels) - 1}: write the data set again with tfds')
    return others.classes or tuple(f'class {label - 1}' for label in range(1, max(labels) + 1))


def _compare(folder: str, others: Others, lengths: Mapping[str, Sequence[int]]) -> None:
    """Says what of the splits is read as what, and where there are more or fewer records than tfds counted."""
    for subset, stem in others.stems.items():
        said = others.lengths[subset]
        if said and said != list(lengths[subset]):
            note(f'warning: {stem} holds {sum(lengths[subset])} records, {os.path.join(folder, INFO_FILE)} says '
                 f'{sum(said)}')
        note(f'note: {subset} images are those of {stem}')
    if others.unread:
        note(f'note: the splits {", ".join(others.unread)} are not read')


class _OddBoxes:
    """Counts the records whose boxes are mended in reading, to say so once."""

    def __init__(self):
        self._count, self._first = 0, ''

    def see(self, path: str, start: int, odd_v: np.ndarray) -> None:
        if odd_v.any():
            self._first = self._first or f'record {start + int(odd_v.argmax())} of {path}'
            self._count += int(odd_v.sum())

    def say(self) -> None:
        if self._count:
            note(f'warning: {self._count} records, the first {self._first}, have boxes that are reversed, empty, '
                 'outside of the image or incomplete: those are turned, cut off or left out in training')


def _build_scan(keys: RecordKeys) -> tuple:
    """Returns placeholders for a shard's path and compression, the op that opens it, and the next (labels, texts, odd
    boxes)."""
    path, compression = (tf.compat.v1.placeholder(tf.string, []) for _ in range(2))
    features = {keys.label: tf.io.FixedLenFeature([], tf.int64, default_value=-1),
                keys.text: tf.io.FixedLenFeature([], tf.string, default_value='')}
    records = tf.data.TFRecordDataset(path, compression).batch(_RECORDS_AT_ONCE)
    records = records.map(lambda serialized: (tf.io.parse_example(serialized, features), box_faults(serialized)))
    records = records.prefetch(2)
    iterator = tf.compat.v1.data.make_initializable_iterator(records)
    fields, odd = iterator.get_next()
    return (path, compression), iterator.initializer, (fields[keys.label], fields[keys.text], odd)


def _scan_shard(session: tf.compat.v1.Session, scan: tuple, path: str, keys: RecordKeys
                ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields labels as they are here, from 1 for the first class, names and whether boxes are odd."""
    (path_t, compression_t), initializer, batch = scan
    session.run(initializer, {path_t: path, compression_t: compression_of_shard(path)})
    done = 0
    while True:
        try:
            labels_v, texts_v, odd_v = session.run(batch)
        except tf.errors.OutOfRangeError:
            return
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            raise _explain(path, done, error, keys) from None
        wrong_v = (labels_v < 0) | (labels_v > _MAX_LABEL)
        if wrong_v.any():
            raise UserError(f'{path}: record {done + int(wrong_v.argmax())} has no {keys.label} of 0 to '
                            f'{_MAX_LABEL}: build the shard again')
        yield labels_v + 1 - keys.first_label, texts_v, odd_v
        done += len(labels_v)


def _explain(path: str, done: int, error: Exception, keys: RecordKeys) -> UserError:
    """Names the record; error: of reading those from `done` on."""
    if damaged := count_damage([path]):
        return UserError(f'{path}: record {damaged[0].good_records} is damaged ({damaged[0].reason}): build the shard '
                         'again')
    options = tf.io.TFRecordOptions(compression_of_shard(path))
    records = tf.compat.v1.io.tf_record_iterator(path, options)
    for number, serialized in enumerate(itertools.islice(records, done, done + _RECORDS_AT_ONCE), done):
        try:
            feature = tf.train.Example.FromString(serialized).features.feature
            labels, texts = feature[keys.label], feature[keys.text]
            if len(labels.int64_list.value) == 1 and len(texts.bytes_list.value) <= 1:
                continue
        except Exception:  # noqa: BLE001 (Whatever protobuf's implementations raise for bytes that are no message.)
            return UserError(f'{path}: record {number} {describe_record(serialized, keys)}: build the shard again')
        return UserError(f'{path}: record {number} has no single number as its label, or no single name: '
                         'build the shard again')
    return UserError(f'{path}: one of the records {done} to {done + _RECORDS_AT_ONCE - 1} cannot be read: build the '
                     'shard again')


def _class_names(output_directory: str, texts: dict[int, str]) -> tuple[str, ...]:
    """Returns the name of label 1, 2, ...: from labels.txt, else from `texts`, {label: text of a record}."""
    if not texts:
        raise UserError(f'{output_directory}: the shards hold no record')
    if 0 in texts:
        note('warning: some records have label 0, which is the background here: classes start at 1')
    path = os.path.join(output_directory, LABELS_FILE)
    if not exists(path):
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
