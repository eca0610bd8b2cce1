"""Shards to batches: which reader reads which records, in which order, and what damage does.

One tf.data pipeline per reader (a process, or a host of an in-graph cluster):

    shards of this reader -> records -> shuffle -> repeat -> decode and distort in parallel -> batch

Records stay encoded until after the shuffle, so its buffer holds thousands of them. Within an epoch every
record is read exactly once by exactly one reader.

Damage: by default the run stops, and `explain_input_error` finds the culprit afterwards, so that a sound
data set pays nothing for it. With skip_damaged_records each shard is read once at the start: a damaged one
then ends before its first damaged record. An image that cannot be decoded is skipped when it comes up, and
named on stderr.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import DataConfig
from inception_mg.data import distortions
from inception_mg.data.example import parse_example
from inception_mg.errors import UserError
from inception_mg.fast.operations import PLAIN, Operations

MAX_SKIPPED_IN_A_ROW = 1000  # So that a set without one readable image ends instead of spinning.
_READ_AHEAD = 4  # Batches made ahead of the step.
_WHOLE_SHARD = -1
_READER_STRIDE = 2**40  # Images of one reader before its seeds run into the next reader's.

# Turns (number of the record in the stream, serialized record) into (image, label, filename).
Prepare = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


class Damage(NamedTuple):
    """A shard that cannot be read to its end."""

    path: str
    good_records: int  # Readable ones before the damage.
    reason: str


def training_dataset(paths: Sequence[str], num_records: int, *, data: DataConfig, batch_size: int = 0,
                     first_shard: int = 0, num_shards: int = 1, operations: Operations = PLAIN) -> tf.data.Dataset:
    """Returns batches of distorted images for ever: this reader's part, shuffled anew each epoch.

    Reader `first_shard` of `num_shards` reads the files first_shard, first_shard + num_shards, ...; with
    fewer files than readers every num_shards-th record instead. `num_records` counts those of all paths,
    0 = unknown; `batch_size` 0 = data.batch_size. Elements: images float32 [batch_size, image_size,
    image_size, 3] in [-1, 1] and labels int32 [batch_size]; batches run on from one epoch into the next.
    The same data_seed (not 0) gives the same stream, whatever the number of threads; a run that is
    resumed starts the stream from its beginning.

    Raises UserError if this reader's part holds no record.
    """
    _check_part(paths, num_records, first_shard, num_shards)
    seed = data.data_seed or int.from_bytes(os.urandom(4), 'little') // 2 + 1
    records = _shuffled_records(paths, num_records, data, seed, first_shard, num_shards)
    images = _prepare_all(records.repeat(), _training_function(data, seed, first_shard, operations),
                          data.num_preprocess_threads, data.skip_damaged_records)
    batches = images.map(_without_filename).batch(batch_size or data.batch_size, drop_remainder=True)
    return _with_order(batches.prefetch(_READ_AHEAD), fixed=bool(data.data_seed))


def evaluation_dataset(paths: Sequence[str], *, image_size: int, batch_size: int,
                       num_preprocess_threads: int, num_examples: int = 0,
                       skip_damaged_records: bool = False) -> tf.data.Dataset:
    """Returns every image of the shards exactly once, in the order of the files; then ends.

    Elements: images float32 [n, image_size, image_size, 3] in [-1, 1], labels int32 [n] and filenames
    string [n]; n is batch_size but for the last batch. `num_examples` above 0 keeps the first so many.
    Raises UserError without any record.
    """
    _check_part(paths, 0, 0, 1)

    def prepare(_, serialized: tf.Tensor):
        record = parse_example(serialized)
        image = distortions.preprocess_for_evaluation(record.encoded, image_size)
        return image, record.label, record.filename

    records = _read(_files(paths, skip_damaged_records), num_readers=1)
    images = _prepare_all(records, prepare, num_preprocess_threads, skip_damaged_records)
    images = images.take(num_examples if num_examples > 0 else -1)
    return _with_order(images.batch(batch_size).prefetch(_READ_AHEAD), fixed=True)


def count_damage(paths: Sequence[str]) -> list[Damage]:
    """Returns the shards that cannot be read to their end, by reading all of each once.

    Finds cut and corrupted records by their lengths and checksums; images are not decoded.
    """
    with tf.Graph().as_default(), _cpu_session() as session:
        path = tf.compat.v1.placeholder(tf.string, [])
        records = tf.data.TFRecordDataset(path)
        whole, readable = _count(records), _count(records.ignore_errors())

        def check(name: str) -> Damage | None:
            try:
                session.run(whole, {path: name})
            except tf.errors.DataLossError as error:
                return Damage(name, int(session.run(readable, {path: name})), _loss(error))
            except tf.errors.OpError as error:
                # ignore_errors would retry a file that does not open for ever.
                raise UserError(f'{name}: cannot be read ({type(error).__name__})') from None
            return None

        return [damage for damage in map(check, paths) if damage]


def explain_input_error(error: Exception, paths: Sequence[str]) -> UserError | None:
    """Returns one line that names the shard and record to blame for an error of session.run.

    `error` is a tf.errors.OpError or the UnicodeDecodeError that session.run raises instead when a
    message quotes the bytes of a record. `paths` are the shards that were read; all of them may be read
    (and their images decoded) once more. Returns None if the input was not to blame.
    """
    if not _may_be_input(error):
        return None
    if isinstance(error, tf.errors.OutOfRangeError):
        return UserError(f'{_name(paths)}: not one readable record')
    try:
        damaged = count_damage(paths)
    except UserError as unreadable:
        return unreadable
    if damaged:
        first = damaged[0]
        return UserError(f'{first.path}: record {first.good_records} is damaged ({first.reason}): build the '
                         'shard again, or go on without the rest of it with --skip_damaged_records')
    for path in paths:
        if found := _undecodable(path):
            return UserError(f'{path}: record {found[0]} {found[1]}: build the shard again, or go on '
                             'without the image with --skip_damaged_records')
    if 'damaged images in a row' in str(error):
        return UserError(f'{_name(paths)}: {MAX_SKIPPED_IN_A_ROW} damaged images in a row')
    return None


def _may_be_input(error: Exception) -> bool:
    if isinstance(error, tf.errors.OpError):
        return 'IteratorGetNext' in f'{error.message} {error.op}'
    return isinstance(error, UnicodeDecodeError)


def _check_part(paths: Sequence[str], num_records: int, first_shard: int, num_shards: int) -> None:
    """Raises UserError where a reader would wait for ever for the first record of its part."""
    if not paths:
        raise UserError('no shards to read: check --data_dir')
    if len(paths) < num_shards and 0 < num_records < num_shards:
        raise UserError(f'{_name(paths)}: {num_records} records are not enough for {num_shards} readers')
    mine = _part(paths, first_shard, num_shards)
    if all(os.path.isfile(path) and not os.path.getsize(path) for path in mine):
        raise UserError(f'{_name(mine)}: no record for reader {first_shard} of {num_shards}: '
                        'build the data set with fewer or fuller shards')


def _part(paths: Sequence[str], first_shard: int, num_shards: int) -> Sequence[str]:
    """Returns the files that a reader opens: its own, or all if there are not enough to go round."""
    return paths if len(paths) < num_shards else paths[first_shard::num_shards]


def _shuffled_records(paths: Sequence[str], num_records: int, data: DataConfig, seed: int,
                      first_shard: int, num_shards: int) -> tf.data.Dataset:
    mine = _part(paths, first_shard, num_shards)
    files = _files(mine, data.skip_damaged_records)
    if len(paths) < num_shards:
        # All readers must number the records alike, so the order of the files stays as it is.
        records = _read(files, data.num_readers).shard(num_shards, first_shard)
    else:
        records = _read(files.shuffle(len(mine), seed=seed), data.num_readers)
    buffer = 1024 * data.input_queue_memory_factor
    return records.shuffle(min(buffer, num_records or buffer), seed=seed)


def _files(paths: Sequence[str], skip_damaged_records: bool) -> tf.data.Dataset:
    """Returns (path, number of records to read); reports the damaged shards, if they are to be skipped."""
    damaged = count_damage(paths) if skip_damaged_records else []
    if damaged:
        print(f'input: {len(damaged)} damaged shard{"s" if len(damaged) > 1 else ""}:', '; '.join(
            f'{path}, skipped from record {good} on ({reason})' for path, good, reason in damaged),
            file=sys.stderr, flush=True)
    limits = {path: good for path, good, _ in damaged}
    return tf.data.Dataset.from_tensor_slices(
        (list(paths), tf.constant([limits.get(path, _WHOLE_SHARD) for path in paths], tf.int64)))


def _read(files: tf.data.Dataset, num_readers: int) -> tf.data.Dataset:
    """Returns (serialized record, path, number of the record in its shard) of all files, in a fixed order."""
    def read(path: tf.Tensor, limit: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path).take(limit)
        return tf.data.Dataset.zip((records, tf.data.Dataset.from_tensors(path).repeat(),
                                    tf.data.Dataset.range(tf.int64.max)))

    return files.interleave(_plain(read), cycle_length=num_readers, num_parallel_calls=num_readers,
                            deterministic=True)


def _training_function(data: DataConfig, seed: int, first_shard: int, operations: Operations) -> Prepare:
    def prepare(index: tf.Tensor, serialized: tf.Tensor):
        record = parse_example(serialized)
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
                 skip_damaged_records: bool) -> tf.data.Dataset:
    """Returns (image, label, filename) of each record; of each that is not damaged, if told to skip."""
    records = records.enumerate()
    if not skip_damaged_records:
        return records.map(_plain(lambda index, record: prepare(index, record[0])),
                           num_parallel_calls=num_threads)

    def attempt(index: tf.Tensor, record: tuple):
        serialized, path, number = record
        return *_attempt(prepare, index, serialized), path, number

    tried = records.map(_plain(attempt), num_parallel_calls=num_threads)
    reported = tried.scan((tf.constant(0), tf.constant(0)), _plain(_report))
    return reported.filter(_plain(lambda prepared, good: good)).map(_plain(lambda prepared, good: prepared))


def _attempt(prepare: Prepare, index: tf.Tensor, serialized: tf.Tensor) -> tuple:
    """Returns (prepared, True), or (zeros, False) where preparing raises.

    A graph cannot catch an exception, but a data set can drop the element that raised it.
    """
    record = tf.data.Dataset.from_tensors((index, serialized))
    good = record.map(_plain(lambda *args: (prepare(*args), True))).ignore_errors()
    blanks = [tf.zeros(spec.shape, spec.dtype) if spec.dtype != tf.string else tf.constant('')
              for spec in good.element_spec[0]]
    bad = tf.data.Dataset.from_tensors((tuple(blanks), False))
    return good.concatenate(bad).take(1).get_single_element()


def _report(counts: tuple, tried: tuple) -> tuple:
    """Counts the skipped records, in all and in a row, and prints a line for each."""
    skipped, in_a_row = counts
    prepared, good, path, number = tried
    skipped += tf.cast(tf.logical_not(good), tf.int32)
    in_a_row = tf.where(good, 0, in_a_row + 1)
    text = tf.strings.join([
        'input: skipped record ', tf.as_string(number), ' of ', path, ': its image cannot be decoded (',
        tf.as_string(skipped), ' skipped so far)'])
    line = tf.cond(good, tf.no_op, lambda: tf.group(tf.print(text, output_stream=sys.stderr)))
    stuck = tf.debugging.Assert(in_a_row < MAX_SKIPPED_IN_A_ROW, ['damaged images in a row', path])
    with tf.control_dependencies([line, stuck]):
        return (skipped, tf.identity(in_a_row)), (prepared, good)


def _undecodable(path: str) -> tuple[int, str] | None:
    """Returns the number of the first record of a shard without a readable image, and what it is."""
    def prepare(_, serialized: tf.Tensor):
        record = parse_example(serialized)
        window = distortions.sample_crop(tf.image.extract_jpeg_shape(record.encoded), record.bbox, [0, 0])
        # An eighth of the size: all bytes are read, few pixels are made.
        image = tf.io.decode_jpeg(record.encoded, channels=3, ratio=8)
        return tf.reduce_max(image), tf.reduce_max(window), record.filename

    with tf.Graph().as_default(), _cpu_session() as session:
        checked = tf.data.TFRecordDataset(path).enumerate().map(
            _plain(lambda number, record: (_attempt(prepare, number, record)[1], number, record)),
            num_parallel_calls=tf.data.AUTOTUNE)
        bad = checked.filter(_plain(lambda good, number, record: tf.logical_not(good)))
        first = tf.compat.v1.data.make_one_shot_iterator(bad).get_next()
        try:
            _, number_v, record_v = session.run(first)
        except tf.errors.OutOfRangeError:
            return None
    return int(number_v), _describe(record_v)


def _describe(serialized: bytes) -> str:
    try:
        fields = tf.train.Example.FromString(serialized).features.feature
        filename = fields['image/filename'].bytes_list.value[0].decode(errors='replace')
    except Exception:  # Whatever protobuf's implementations raise for bytes that are no message.
        return 'is no tf.train.Example with an image/filename'
    return f'(image {filename}) holds no readable JPEG, or boxes outside it'


def _count(dataset: tf.data.Dataset) -> tf.Tensor:
    return dataset.reduce(tf.constant(0, tf.int64), _plain(lambda count, _: count + 1))


def _loss(error: tf.errors.DataLossError) -> str:
    found = re.search(r'(\w+ record) at (\d+)', error.message)
    return f'{found[1]} at byte {found[2]}' if found else 'data loss'


def _name(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f'{paths[0]} and {len(paths) - 1} more shards'


def _cpu_session() -> tf.compat.v1.Session:
    """A session of its own that leaves the GPUs, and how their memory is shared, to the training."""
    return tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={'GPU': 0}))


def _without_filename(image: tf.Tensor, label: tf.Tensor, _) -> tuple[tf.Tensor, tf.Tensor]:
    return image, label


def _with_order(dataset: tf.data.Dataset, fixed: bool) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = fixed  # Free: an image that takes long holds up no other.
    return dataset.with_options(options)


# The functions of the pipeline are graph code already; AutoGraph would only rewrite them.
_plain = tf.autograph.experimental.do_not_convert
