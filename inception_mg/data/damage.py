"""What is wrong with shards, and where: found after something failed, so that a sound data set pays nothing for it."""

import concurrent.futures
import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.data import distortions
from inception_mg.data.dataset_info import OURS, RecordKeys
from inception_mg.data.example import parse_example
from inception_mg.data.kinds import HEAD, UNKNOWN, compression_of, kind_of
from inception_mg.errors import UserError
from inception_mg.files import exists, is_file, is_folder, read_bytes
from inception_mg.paths import scheme_of

NO_RECORD = 'not one readable record'
IN_A_ROW = 'damaged images in a row'
WRONG_LABEL = 'wrong label in '  # Then the whole message.
DECODED = ('JPEG', 'PNG', 'GIF', 'BMP', 'WebP')  # What TensorFlow makes pixels of.
_AT_ONCE = 16  # Requests to a remote file system.
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
        path, compression = (tf.compat.v1.placeholder(tf.string, []) for _ in range(2))
        records = tf.data.TFRecordDataset(path, compression)
        whole, readable = _count(records), _count(records.ignore_errors())

        def check(name: str) -> Damage | None:
            feeds = {path: name, compression: compression_of_shard(name)}
            try:
                session.run(whole, feeds)
            except tf.errors.DataLossError as error:
                return Damage(name, int(session.run(readable, feeds)), _loss(error))
            except tf.errors.OpError as error:
                # ignore_errors would retry a file that does not open for ever.
                raise UserError(f'{name}: cannot be read ({type(error).__name__})') from None
            return None

        return [damage for damage in map(check, paths) if damage]


def check_kinds(paths: Sequence[str]) -> list[str]:
    """Returns how each shard is compressed: '', 'GZIP' or 'ZLIB', by its first bytes.

    Raises UserError for the first file that by them is no shard but something else, such as a ZIP.
    """
    if not any(map(scheme_of, paths)):
        return [_compression(path) for path in paths]
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_compression, paths))


def compression_of_shard(path: str) -> str:
    """The same of one shard; '' where it cannot be told."""
    try:
        return _compression(path)
    except UserError:
        return ''


def name_of(paths: Sequence[str]) -> str:
    """Returns shards for a message: the first three and the number of the others."""
    more = f' and {len(paths) - 3} more shards' if len(paths) > 3 else ''
    return ', '.join(paths[:3]) + more


def explain_input_error(error: Exception, paths: Sequence[str], keys: RecordKeys = OURS) -> UserError | None:
    """Returns one line that names the shard and record to blame for an error of session.run.

    `error` is a tf.errors.OpError or the UnicodeDecodeError that session.run raises instead when a
    message quotes the bytes of a record. `paths` are the shards that were read; all of them may be read
    (and their images decoded) once more. `keys` names their fields. Returns None if the input was not to blame.
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
        if found := _undecodable(path, keys):
            return UserError(f'{path}: record {found[0]} {found[1]}: build the shard again, or go on '
                             f'without the image with {SKIPPING}')
    return UserError(f'{name_of(paths)}: {IN_A_ROW}') if IN_A_ROW in said else None


def _may_be_input(error: Exception) -> bool:
    if isinstance(error, tf.errors.OpError):
        said = f'{error.message} {error.op}'  # A message that quotes a record ends at its first zero byte.
        return 'IteratorGetNext' in said or 'iterator: Iterator::' in said
    return isinstance(error, UnicodeDecodeError)


def _compression(path: str) -> str:
    """'', also of a file that cannot be read; UserError for what is surely no TFRecord file."""
    try:
        if not scheme_of(path) and exists(path) and not is_file(path):  # Each look costs a request there.
            what = 'a folder' if is_folder(path) else 'no regular file'
            raise UserError(f'{path} is no shard of records but {what}: build the shard again')
        head = read_bytes(path, HEAD)
    except (OSError, ValueError):
        return ''
    kind, compression = kind_of(head), compression_of(head)
    if compression or head[4:8] == bytes(4) or kind in (UNKNOWN, 'empty', 'zeros'):
        return compression  # A record's length is below 4 GB.
    within = ' of something else' if kind == 'GZIP' else ''
    raise UserError(f'{path} is no shard of records but {kind}{within}: build the shard again')


def _undecodable(path: str, keys: RecordKeys) -> tuple[int, str] | None:
    """Returns the number of the first record of a shard without a readable image, and what it is."""
    def prepare(serialized: tf.Tensor):
        record = parse_example(serialized, keys)
        # An eighth of the size: all bytes are read, few pixels are made.
        image = distortions.decode_image(record.encoded, ratio=8)
        window = distortions.sample_crop(tf.shape(image), record.bbox, [0, 0])
        return tf.reduce_max(image), tf.reduce_max(window), record.filename

    with tf.Graph().as_default(), _cpu_session() as session:
        checked = tf.data.TFRecordDataset(path, compression_of_shard(path)).enumerate().map(
            plain(lambda number, record: (first_that_works((record,), prepare)[1], number, record)),
            num_parallel_calls=tf.data.AUTOTUNE)
        bad = checked.filter(plain(lambda way, number, record: way > 0))
        first = tf.compat.v1.data.make_one_shot_iterator(bad).get_next()
        try:
            _, number_v, record_v = session.run(first)
        except tf.errors.OpError:  # The end, or damage of the shard itself behind the last good record.
            return None
    return int(number_v), describe_record(record_v, keys)


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


def describe_record(serialized: bytes, keys: RecordKeys = OURS) -> str:
    """Returns what is wrong with a record that cannot be prepared, for a message."""
    try:
        fields = tf.train.Example.FromString(serialized).features.feature
        name = b''.join(fields[keys.filename].bytes_list.value).decode(errors='replace') if keys.filename else ''
        if not name and keys.encoded not in fields:
            return f'has no {keys.encoded}'
    except Exception:  # noqa: BLE001 (Whatever protobuf's implementations raise for bytes that are no message.)
        return 'is no tf.train.Example'
    kind, image = kind_of(b''.join(fields[keys.encoded].bytes_list.value)), f'(image {name}) ' if name else ''
    if kind in DECODED:
        return f'{image}holds no readable {kind}'
    return f'{image}holds no {", ".join(DECODED[:-1])} or {DECODED[-1]}: it is {kind}'


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
