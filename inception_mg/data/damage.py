"""What is wrong with shards, and where: found after something failed, so that a sound data set pays nothing for it."""

import functools
import os
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.data import distortions
from inception_mg.data.example import parse_example
from inception_mg.data.kinds import HEAD, UNKNOWN, kind_of
from inception_mg.errors import UserError

NO_RECORD = 'not one readable record'
IN_A_ROW = 'damaged images in a row'
WRONG_LABEL = 'wrong label in '  # Then the whole message.
SKIPPING = '--skip_damaged_records'


class Damage(NamedTuple):
    """A shard that cannot be read to its end."""

    path: str
    good_records: int  # Readable ones before the damage.
    reason: str


def count_damage(paths: Sequence[str]) -> list[Damage]:
    """Returns the shards that cannot be read to their end, by reading all of each once.

    Finds cut and corrupted records by their lengths and checksums; images are not decoded. UserError for a file that
    cannot be read at all.
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


def check_kinds(paths: Sequence[str]) -> None:
    """Raises UserError for the first file that by its first bytes is no shard but something else, such as GZIP."""
    for path in paths:
        if what := _foreign(path):
            unpack = ': unpack it (gunzip)' if what == 'GZIP' else ': build the shard again'
            raise UserError(f'{path} is no shard of records but {what}{unpack}')


def name_of(paths: Sequence[str]) -> str:
    """Returns shards for a message: the first three and the number of the others."""
    more = f' and {len(paths) - 3} more shards' if len(paths) > 3 else ''
    return ', '.join(paths[:3]) + more


def explain_input_error(error: Exception, paths: Sequence[str]) -> UserError | None:
    """Returns one line that names the shard and record to blame for an error of session.run.

    `error` is a tf.errors.OpError or the UnicodeDecodeError that session.run raises instead when a
    message quotes the bytes of a record. `paths` are the shards that were read; all of them may be read
    (and their images decoded) once more. Returns None if the input was not to blame.
    """
    if not _may_be_input(error):
        return None
    said = getattr(error, 'message', '') or str(error)
    if found := re.search(rf'{WRONG_LABEL}(.*?{SKIPPING})', said):
        # The operation writes what is not ASCII as \ooo.
        text = re.sub(rb'\\([0-7]{3})', lambda m: bytes([int(m[1], 8) & 255]), found[1].encode(errors='replace'))
        return UserError(text.decode(errors='replace').replace(r'\'', "'"))
    try:
        damaged = count_damage(paths)
        if isinstance(error, tf.errors.OutOfRangeError) or NO_RECORD in said:
            first = f' ({damaged[0].reason})' if damaged else ''
            return UserError(f'{name_of(paths)}: {NO_RECORD}{first}: build the shards again')
    except UserError as unreadable:
        return unreadable
    if damaged and IN_A_ROW not in said:
        first = damaged[0]
        return UserError(f'{first.path}: record {first.good_records} is damaged ({first.reason}): build the '
                         f'shard again, or go on without the rest of it with {SKIPPING}')
    for path in paths:
        if found := _undecodable(path):
            return UserError(f'{path}: record {found[0]} {found[1]}: build the shard again, or go on '
                             f'without the image with {SKIPPING}')
    return UserError(f'{name_of(paths)}: {IN_A_ROW}') if IN_A_ROW in said else None


def _may_be_input(error: Exception) -> bool:
    if isinstance(error, tf.errors.OpError):
        said = f'{error.message} {error.op}'  # A message that quotes a record ends at its first zero byte.
        return 'IteratorGetNext' in said or 'iterator: Iterator::' in said
    return isinstance(error, UnicodeDecodeError)


def _foreign(path: str) -> str:
    """Returns what a file is that is surely no TFRecord file; '' else, also if it cannot be read."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            return 'a folder' if os.path.isdir(path) else 'no regular file'
        with open(path, 'rb') as file:
            head = file.read(HEAD)
    except (OSError, ValueError):
        return ''
    kind = kind_of(head)
    if kind == 'GZIP':  # Could be the length of a record as well, but not both for long.
        try:
            zlib.decompressobj(31).decompress(head)
        except zlib.error:
            return ''
        return kind
    if head[4:8] == bytes(4) or kind in (UNKNOWN, 'empty', 'zeros'):
        return ''  # A record's length is below 4 GB.
    return kind


def _undecodable(path: str) -> tuple[int, str] | None:
    """Returns the number of the first record of a shard without a readable image, and what it is."""
    def prepare(serialized: tf.Tensor):
        record = parse_example(serialized)
        window = distortions.sample_crop(tf.image.extract_jpeg_shape(record.encoded), record.bbox, [0, 0])
        # An eighth of the size: all bytes are read, few pixels are made.
        image = tf.io.decode_jpeg(record.encoded, channels=3, ratio=8)
        return tf.reduce_max(image), tf.reduce_max(window), record.filename

    with tf.Graph().as_default(), _cpu_session() as session:
        checked = tf.data.TFRecordDataset(path).enumerate().map(
            plain(lambda number, record: (first_that_works((record,), prepare)[1], number, record)),
            num_parallel_calls=tf.data.AUTOTUNE)
        bad = checked.filter(plain(lambda way, number, record: way > 0))
        first = tf.compat.v1.data.make_one_shot_iterator(bad).get_next()
        try:
            _, number_v, record_v = session.run(first)
        except tf.errors.OpError:  # The end, or damage of the shard itself behind the last good record.
            return None
    return int(number_v), describe_record(record_v)


def first_that_works(element: tuple, prepare: Callable, *excuses: Callable) -> tuple:
    """Returns (what `prepare` makes of the element, 0). Where it raises: (zeros, the number of the first excuse,
    counted from 1, that does not raise, or one more than there are).

    A graph cannot catch an exception, but a data set can drop the element that raised it.
    """
    source = tf.data.Dataset.from_tensors(element)
    result = source.map(plain(lambda *args: (prepare(*args), 0))).ignore_errors()
    blanks = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype) if spec.dtype != tf.string else tf.constant(''),
        result.element_spec[0])

    def excused(number: int, excuse: Callable, *args):
        with tf.control_dependencies([excuse(*args)]):
            return blanks, tf.constant(number)

    for number, excuse in enumerate(excuses, start=1):
        tried = source.map(plain(functools.partial(excused, number, excuse))).ignore_errors()
        result = result.concatenate(tried)
    result = result.concatenate(tf.data.Dataset.from_tensors((blanks, 1 + len(excuses))))
    return result.take(1).get_single_element()


def describe_record(serialized: bytes) -> str:
    """Returns what is wrong with a record that cannot be prepared, for a message."""
    try:
        fields = tf.train.Example.FromString(serialized).features.feature
        filename = fields['image/filename'].bytes_list.value[0].decode(errors='replace')
    except Exception:  # noqa: BLE001 (Whatever protobuf's implementations raise for bytes that are no message.)
        return 'is no tf.train.Example with an image/filename'
    encoded = b''.join(fields['image/encoded'].bytes_list.value)
    kind = kind_of(encoded)
    if kind == 'JPEG':
        return f'(image {filename}) holds no readable JPEG'
    return f'(image {filename}) holds no JPEG: it is {kind}'


def _count(dataset: tf.data.Dataset) -> tf.Tensor:
    return dataset.reduce(tf.constant(0, tf.int64), plain(lambda count, _: count + 1))


def _loss(error: tf.errors.DataLossError) -> str:
    found = re.search(r'(\w+ record) at (\d+)', error.message)
    return f'{found[1]} at byte {found[2]}' if found else 'data loss'


def _cpu_session() -> tf.compat.v1.Session:
    """A session of its own that leaves the GPUs, and how their memory is shared, to the training."""
    return tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={'GPU': 0}))


# The functions of the pipeline are graph code already; AutoGraph would only rewrite them.
plain = tf.autograph.experimental.do_not_convert
