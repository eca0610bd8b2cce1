"""ILSVRC2012 to shards whose records are equal to those of the 2016 program, in every field.

The images of a class are spread over all shards: the files are sorted, shuffled with the 2016 seed and cut into shards,
whatever they come from, so tars, folders and Kaggle's tree give the same records. (The 2016 program shuffled in the
order in which a file system listed them.) Memory: 380 bytes per image, 0.5 GB, and as much for TensorFlow and boxes.
"""

import functools
import itertools
import os
from collections import Counter

import tensorflow as tf

from inception_mg.config import ImagenetConfig
from inception_mg.data import unfinished
from inception_mg.data.dataset_builder import (
    SubsetReport,
    check_number,
    check_output,
    merged_info,
    put_in_place,
    refuse_or_note,
)
from inception_mg.data.dataset_info import DATASET_FILE, existing_shards, read_dataset_info
from inception_mg.data.example import build_example
from inception_mg.data.imagenet_source import ImageNet, find_imagenet, stem
from inception_mg.data.images import Converted, convert_files, count_kinds
from inception_mg.data.progress import note
from inception_mg.data.sources import Source
from inception_mg.errors import UserError

v1 = tf.compat.v1

_QUALITY = 100  # Of the 23 images that are no RGB JPEG, as in 2016.


class _Recoder:
    """Makes an RGB JPEG of a PNG or a CMYK JPEG by the operations of 2016: of equal pixels, to the byte."""

    def __init__(self):
        with tf.Graph().as_default():
            self._data = v1.placeholder(tf.string, [])
            images = {'PNG': tf.io.decode_png(self._data, channels=3), 'CMYK': tf.io.decode_jpeg(self._data)}
            self._jpegs = {kind: tf.io.encode_jpeg(image, format='rgb', quality=_QUALITY)
                           for kind, image in images.items()}
            self._session = v1.Session(config=v1.ConfigProto(device_count={'GPU': 0}))

    def __call__(self, kind: str, data: bytes) -> bytes:
        return self._session.run(self._jpegs[kind], {self._data: data})


def build_imagenet(build: ImagenetConfig) -> list[SubsetReport]:
    """Writes the shards, labels.txt and dataset.json; a second run after one that was ended goes on from its shards.

    Raises UserError, with nothing put in place, for files that are missing or do not fit together, for shards that are
    there already, and in 'fail' mode for the first unreadable image.
    """
    output = build.output_directory
    shards = {'train': build.train_shards, 'validation': build.validation_shards}
    if not os.path.isdir(os.path.join(output, unfinished.FOLDER)):  # Before minutes of looking.
        for subset in (build.only_subset,) if build.only_subset else shards:
            if there := existing_shards(output, subset):
                raise UserError(f'{output} already holds {there[0]}: name another --output_directory, or move the '
                                f'{subset} shards away')
    found = find_imagenet(build)
    for subset, files in found.files.items():
        check_number(subset, found.origins[subset], len(files), shards[subset])
    classes = class_names(found.synsets, found.words)
    known = read_dataset_info(output) if os.path.exists(os.path.join(output, DATASET_FILE)) else None
    with unfinished.open_folder(output, _plan(found, shards)) as folder:
        check_output(output, found.files, classes, known)
        convert = functools.partial(convert_files, quality=_QUALITY, processes=build.num_threads, as_2016=True)
        recode, reports = _Recoder(), []
        for subset, files in found.files.items():
            rows = unfinished.write_shards(folder, subset, files, shards[subset], convert,
                                           functools.partial(_record, found, recode, build.on_bad_image))
            reports.append(_report(subset, rows))
            if not reports[-1].images:
                raise UserError(f'of {len(files)} files for {subset} none is a readable image ({reports[-1].kinds})')
        put_in_place(folder, output, merged_info(known, classes, reports), [
            row for report in reports for row in existing_shards(folder, report.subset)])
        unfinished.close_folder(folder)
    return reports


def class_names(synsets: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words of each class, with the synset where two classes have the same: two are called crane."""
    counts = Counter(words)
    return tuple(f'{text} ({synset})' if counts[text] > 1 else text for synset, text in
                 zip(synsets, words, strict=True))


def _plan(found: ImageNet, shards: dict[str, int]) -> str:
    return unfinished.fingerprint(itertools.chain(
        found.synsets, found.words, (f'{subset} {shards[subset]}' for subset in found.files),
        (f'{stem(file)} {label} {found.boxes.of(stem(file))}' for files in found.files.values()
         for file, label in files)))


def _record(found: ImageNet, recode: _Recoder, on_bad_image: str, source: Source, outcome: Converted
            ) -> bytes | None:
    file, label = source
    if outcome.jpeg is None:
        refuse_or_note(str(file), outcome.reason, on_bad_image)
        return None
    jpeg = outcome.jpeg
    if outcome.kind:
        jpeg = jpeg._replace(data=recode(outcome.kind, jpeg.data))
    return build_example(*jpeg, label=label, text=found.words[label - 1], filename=str(file),
                         synset=found.synsets[label - 1], boxes=found.boxes.of(stem(file)))


def _report(subset: str, rows: list[unfinished.Row]) -> SubsetReport:
    skipped = [(path, reason) for row in rows for path, reason, _ in row.skipped]
    for path, reason in skipped[:5]:
        note(f'skipped in all: {path}: {reason}')
    return SubsetReport(
        subset, sum(row.images for row in rows), len({label for row in rows for label in row.labels}), len(rows),
        sum(row.bytes for row in rows), tuple(skipped), count_kinds(kind for row in rows for *_, kind in row.skipped))
