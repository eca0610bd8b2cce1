"""Shards to batches: which reader reads which records, in which order, and what damage does.

One tf.data pipeline per reader (a process, or a host of an in-graph cluster):

    for every epoch: pieces of shards of this reader -> records -> shuffle
    -> decode and distort in parallel -> batch

Records stay encoded until after the shuffle, so its buffer holds thousands of them. Within an epoch every
record is read exactly once by exactly one reader, and all readers have equally many (`parts`).

Damage: by default the run stops, and `damage.explain_input_error` finds the culprit afterwards, so that a sound
data set pays nothing for it. With skip_damaged_records each shard is read once at the start: a damaged one
then ends before its first damaged record. An image that cannot be decoded, or whose label is none, is skipped when
it comes up, and named on stderr. Without one readable record a reader fails, whatever is skipped: it does not end,
because a session takes an end for the end of training.
"""

import os
import sys
from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.config import DataConfig
from inception_mg.data import distortions
from inception_mg.data.damage import (
    IN_A_ROW,
    NO_RECORD,
    SKIPPING,
    WRONG_LABEL,
    check_kinds,
    count_damage,
    first_that_works,
    name_of,
    plain,
)
from inception_mg.data.dataset_info import OURS, RecordKeys
from inception_mg.data.example import parse_example
from inception_mg.data.parts import TO_THE_END, Piece, dealt_in_turn, part_size, pieces
from inception_mg.errors import UserError
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.files import is_file, size_of

MAX_SKIPPED_IN_A_ROW = 1000  # So that a set without one readable image ends instead of spinning.
_READ_AHEAD = 4  # Batches made ahead of the step.
_READER_STRIDE = 2**40  # Images of one reader before its seeds run into the next reader's.

# Turns (number of the record in the stream, serialized record) into (image, label, filename).
Prepare = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


def training_dataset(paths: Sequence[str], num_records: int, *, data: DataConfig, batch_size: int = 0,
                     first_shard: int = 0, num_shards: int = 1, num_classes: int = 0, counts: Sequence[int] = (),
                     batches_done: tf.Tensor | int = 0, keys: RecordKeys = OURS, operations: Operations = PLAIN
                     ) -> tf.data.Dataset:
    """Returns batches of distorted images for ever: this reader's part, shuffled anew each epoch.

    Reader `first_shard` of `num_shards` reads its pieces of the shards (parts.pieces), which depend on nothing
    else. `num_records` counts those of all paths, 0 = unknown, for which whole shards are dealt; `counts` those of
    each, () = dealt in turn. `batch_size` 0 = data.batch_size; `num_classes` above 0 refuses records whose label is
    not in 0..num_classes; `keys` names the fields of a record. Elements: images float32 [batch_size, image_size,
    image_size, 3] in [-1, 1] and labels int32 [batch_size]; batches run on from one epoch into the next.

    The same data_seed (not 0) and num_readers give the same stream, whatever the number of threads. batches_done, an
    int64 scalar that is read when the stream starts: where in it to start, so that a resumed run, or a session that
    begins again, goes on in the order where it was. It reads on to there without decoding. Without a data_seed such a
    stream begins with a new order instead.

    Raises UserError if this reader's part holds no record.
    """
    num_records = num_records or len(paths)
    mine = _my_pieces(paths, counts or dealt_in_turn(num_records, max(1, len(paths))), first_shard, num_shards)
    size = part_size(sum(counts) or num_records, first_shard, num_shards)
    seed = data.data_seed or int.from_bytes(os.urandom(4), 'little') // 2 + 1
    batch_size = batch_size or data.batch_size
    done = tf.cast(batches_done, tf.int64) * batch_size
    records = _shuffled_epochs(mine, size, data, seed, done).enumerate(done)
    images = _prepare_all(records, _training_function(data, seed, first_shard, keys, operations),
                          data.num_preprocess_threads, data.skip_damaged_records, num_classes, keys)
    batches = images.map(_without_filename).batch(batch_size, drop_remainder=True)
    return _with_order(_never_empty(batches).prefetch(_READ_AHEAD), fixed=bool(data.data_seed))


def evaluation_dataset(paths: Sequence[str], *, image_size: int, batch_size: int,
                       num_preprocess_threads: int, num_examples: int = 0, skip_damaged_records: bool = False,
                       num_classes: int = 0, num_records: int = 0, keys: RecordKeys = OURS) -> tf.data.Dataset:
    """Returns every image of the shards exactly once, in the order of the files; then ends.

    Elements: images float32 [n, image_size, image_size, 3] in [-1, 1], labels int32 [n] and filenames
    string [n]; n is batch_size but for the last batch. `num_examples` above 0 keeps the first so many; `num_classes`
    and `keys` as in training_dataset. `num_records` above 0: a line on stderr says if it ends with fewer. Raises
    UserError without any record.
    """
    mine = _my_pieces(paths, [1] * len(paths), 0, 1)

    def prepare(_, serialized: tf.Tensor):
        record = parse_example(serialized, keys)
        image = distortions.preprocess_for_evaluation(record.encoded, image_size)
        return image, record.label, record.filename

    records = _read(_files(mine, skip_damaged_records), num_readers=1).enumerate()
    images = _prepare_all(records, prepare, num_preprocess_threads, skip_damaged_records, num_classes, keys)
    images = images.take(num_examples if num_examples > 0 else -1)
    expected = min(num_records, num_examples) if num_examples > 0 else num_records
    return _with_order(_never_empty(images.batch(batch_size), expected).prefetch(_READ_AHEAD), fixed=True)


def _my_pieces(paths: Sequence[str], counts: Sequence[int], part: int, parts: int) -> list[Piece]:
    """Raises UserError where a reader would wait for ever for the first record of its part."""
    if not paths:
        raise UserError('no shards to read: check --data_dir')
    if sum(counts) < parts:
        raise UserError(f'{name_of(paths)}: {sum(counts)} records are not enough for {parts} readers')
    mine = pieces(paths, counts, part, parts)
    if all(is_file(piece.path) and not size_of(piece.path) for piece in mine):
        raise UserError(f'{name_of([piece.path for piece in mine])}: no record for reader {part} of {parts}: '
                        'build the data set with fewer or fuller shards')
    return mine


def _shuffled_epochs(mine: Sequence[Piece], size: int, data: DataConfig, seed: int, done: tf.Tensor
                     ) -> tf.data.Dataset:
    """Epoch after epoch of `size` records, each in an order of its own that follows from the seed and its number; begun
    after `done` records, or without a data_seed with an order that no session had before."""
    files = _files(mine, data.skip_damaged_records)
    first, skipped = (done // size, done % size) if data.data_seed else (done, tf.constant(0, tf.int64))
    buffer = min(1024 * data.input_queue_memory_factor, size)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        order = seed + number
        records = _read(files.shuffle(len(mine), order, reshuffle_each_iteration=False), data.num_readers)
        records = records.shuffle(buffer, order, reshuffle_each_iteration=False)
        return records.skip(tf.where(tf.equal(number, first), skipped, 0))

    # Without one record there is no epoch, so that this ends instead of looking for ever.
    return _read(files, 1).take(1).flat_map(plain(lambda *_: tf.data.Dataset.range(first, tf.int64.max).flat_map(
        plain(epoch))))


def _files(mine: Sequence[Piece], skip_damaged_records: bool) -> tf.data.Dataset:
    """Returns (path, compression, first record, end of the records to read); reports the damaged shards, if they are to
    be skipped."""
    paths = [piece.path for piece in mine]
    compressions = check_kinds(paths)
    damaged = count_damage(paths) if skip_damaged_records else []
    if damaged:
        print(f'input: {len(damaged)} damaged shard{"s" if len(damaged) > 1 else ""}:', '; '.join(
            f'{path}, skipped from record {good} on ({reason})' for path, good, reason in damaged),
            file=sys.stderr, flush=True)
    sound = {path: good for path, good, _ in damaged}
    if skip_damaged_records and not any(sound.get(path, size_of(path)) for path in paths):
        raise UserError(f'{name_of(paths)}: {NO_RECORD}: build the shards again')
    ends = [min(tf.int64.max if count == TO_THE_END else first + count, sound.get(path, tf.int64.max))
            for path, first, count in mine]
    return tf.data.Dataset.from_tensor_slices((
        paths, compressions, tf.constant([piece.first for piece in mine], tf.int64), tf.constant(ends, tf.int64)))


def _read(files: tf.data.Dataset, num_readers: int) -> tf.data.Dataset:
    """Returns (serialized record, path, number of the record in its shard) of all files, in a fixed order."""
    def read(path: tf.Tensor, compression: tf.Tensor, first: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path, compression).take(end).skip(first)
        return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(path).repeat(),
                                    tf.data.Dataset.range(first, tf.int64.max)))

    return files.interleave(plain(read), cycle_length=num_readers, num_parallel_calls=num_readers,
                            deterministic=True)


def _training_function(data: DataConfig, seed: int, first_shard: int, keys: RecordKeys, operations: Operations
                       ) -> Prepare:
    def prepare(index: tf.Tensor, serialized: tf.Tensor):
        record = parse_example(serialized, keys)
        if not data.distort:
            image = distortions.preprocess_for_evaluation(record.encoded, data.image_size)
            return image, record.label, record.filename
        pair = tf.stack([tf.constant(seed, tf.int64), first_shard * _READER_STRIDE + index])
        # Drawn, not counted: towers that take every n-th image must not see one resize method only.
        variant = tf.random.stateless_uniform([], pair, 0, distortions.NUM_VARIANTS, tf.int32)
        image = distortions.distort_for_training(record.encoded, record.bbox, data.image_size, variant, pair,
                                                 operations)
        return image, record.label, record.filename

    return prepare


def _prepare_all(records: tf.data.Dataset, prepare: Prepare, num_threads: int,
                 skip_damaged_records: bool, num_classes: int, keys: RecordKeys) -> tf.data.Dataset:
    """Returns (image, label, filename) of each (number, record); of each that is not damaged, if told to skip."""
    def prepare_checked(index: tf.Tensor, record: tuple):
        image, label, filename = prepare(index, record[0])
        with tf.control_dependencies([_check_label(label, record, num_classes, keys)]):
            return image, tf.identity(label), filename

    def has_wrong_label(index: tf.Tensor, record: tuple) -> tf.Operation:
        label = parse_example(record[0], keys).label
        return tf.debugging.Assert(~_is_label(label, num_classes), ['its label is right'])

    if not skip_damaged_records:
        return records.map(plain(prepare_checked), num_parallel_calls=num_threads)

    def attempt(index: tf.Tensor, record: tuple):
        return *first_that_works((index, record), prepare_checked, has_wrong_label), *record[1:]

    tried = records.map(plain(attempt), num_parallel_calls=num_threads)
    reported = tried.scan((tf.constant(0), tf.constant(0)), plain(_report))
    return reported.filter(plain(lambda prepared, good: good)).map(plain(lambda prepared, good: prepared))


def _is_label(label: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Whether it is one of dataset.json's, or the background's; always where num_classes is not known (0)."""
    return (label >= 0) & (label <= num_classes) if num_classes else tf.constant(True)


def _check_label(label: tf.Tensor, record: tuple, num_classes: int, keys: RecordKeys) -> tf.Operation:
    _, path, number = record
    first = keys.first_label
    text = tf.strings.join([
        WRONG_LABEL, path, ': record ', tf.as_string(number), ' has label ', tf.as_string(
            tf.where(label < 0, label, label + (first - 1))), ', but '
        f'dataset.json beside it names {first} to {num_classes + first - 1}: write that anew with '
        f'scripts/build_image_data.py --describe, or go on without the image with {SKIPPING}'])
    return tf.debugging.Assert(_is_label(label, num_classes), [text])


def _never_empty(batches: tf.data.Dataset, expected: int = 0) -> tf.data.Dataset:
    """The batches, (images, labels, ...), which fail instead of ending before the first one; says on stderr if they end
    before `expected` images."""
    def nothing(_):
        return tuple(tf.zeros([side or 0 for side in spec.shape], spec.dtype) if spec.dtype != tf.string
                     else tf.fill([side or 0 for side in spec.shape], '') for spec in batches.element_spec), True

    def look(seen: tf.Tensor, batch: tuple, is_end: tf.Tensor):
        text = tf.strings.join(['input: only ', tf.as_string(seen), f' of {expected} images that dataset.json counts'])
        line = tf.cond(is_end & (seen < expected), lambda: tf.group(tf.print(text, output_stream=sys.stderr)), tf.no_op)
        with tf.control_dependencies([tf.debugging.Assert(~is_end | (seen > 0), [NO_RECORD]), line]):
            return seen + tf.shape(batch[1])[0], (batch, is_end)

    end = tf.data.Dataset.range(1).map(plain(nothing))
    marked = batches.map(plain(lambda *batch: (batch, False))).concatenate(end)
    looked = marked.scan(tf.constant(0), plain(lambda seen, element: look(seen, *element)))
    return looked.filter(plain(lambda batch, is_end: ~is_end)).map(plain(lambda batch, is_end: batch))


def _report(counts: tuple, tried: tuple) -> tuple:
    """Counts the skipped records, in all and in a row, and prints a line for each."""
    skipped, in_a_row = counts
    prepared, way, path, number = tried
    good, wrong_label = tf.equal(way, 0), tf.equal(way, 1)
    skipped += tf.cast(tf.logical_not(good), tf.int32)
    in_a_row = tf.where(good, 0, in_a_row + 1)
    text = tf.strings.join([
        'input: skipped record ', tf.as_string(number), ' of ', path, ': its ',
        tf.where(wrong_label, 'label is not one of dataset.json', 'image cannot be decoded'),
        ' (', tf.as_string(skipped), ' skipped so far)'])
    line = tf.cond(good, tf.no_op, lambda: tf.group(tf.print(text, output_stream=sys.stderr)))
    stuck = tf.debugging.Assert(in_a_row < MAX_SKIPPED_IN_A_ROW, [IN_A_ROW, path])
    with tf.control_dependencies([line, stuck]):
        return (skipped, tf.identity(in_a_row)), (prepared, good)


def _without_filename(image: tf.Tensor, label: tf.Tensor, _) -> tuple[tf.Tensor, tf.Tensor]:
    return image, label


def _with_order(dataset: tf.data.Dataset, fixed: bool) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = fixed  # Free: an image that takes long holds up no other.
    return dataset.with_options(options)
