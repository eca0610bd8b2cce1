"""Shards of a long build, one after another, so that a run which was ended goes on where it was.

Finished shards wait in a hidden folder of the output folder until all are there. A shard has its name only when all
of it is on the disk, and counts only when shards.jsonl has its line: the size must agree. The folder belongs to one
build: plan.json says of which files, and one process at a time works in it.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.data.dataset_info import shard_name
from inception_mg.data.images import Converted
from inception_mg.data.progress import note, progress
from inception_mg.data.sources import Source
from inception_mg.errors import UserError
from inception_mg.files import append_line, write_text

FOLDER = '.unfinished'
_PLAN, _ROWS, _LOCK, _PART = 'plan.json', 'shards.jsonl', 'lock', '.part'


class Row(NamedTuple):
    """What became of a shard: images in it, bytes of it, its labels, and (path, reason, kind) of each skipped file."""

    name: str
    images: int
    bytes: int
    labels: list[int]
    skipped: list[list[str]]


def fingerprint(parts: Iterable[str]) -> str:
    """Returns a short text that differs where the parts do."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode(errors='surrogateescape') + b'\0')
    return digest.hexdigest()


@contextlib.contextmanager
def open_folder(output: str, plan: str) -> Iterator[str]:
    """Gives the folder for the shards of this build, new or with those of the run before; removed by `close_folder`.

    plan: the fingerprint of all that decides what is in the shards. Raises UserError if another process works in it,
    or if it was begun with another plan.
    """
    folder = os.path.join(output, FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f'cannot write to --output_directory={output}: {error.strerror}') from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f'{folder} is in use: another process builds these records') from None
        path = os.path.join(folder, _PLAN)
        if not os.path.exists(path):
            write_text(path, json.dumps({'plan': plan}) + '\n')
        elif _json(path).get('plan') != plan:
            raise UserError(f'{folder} holds shards of a build with other files, labels, boxes or numbers of shards: '
                            'repeat that command to end it, or delete the folder to begin anew')
        for row in finished(folder, output).values():
            placed = os.path.join(output, row.name)
            if os.path.exists(placed):  # A run was ended while it put them in place.
                os.replace(placed, os.path.join(folder, row.name))
        yield folder
    finally:
        os.close(lock)


def close_folder(folder: str) -> None:
    """Removes the folder, after its shards were put in place."""
    shutil.rmtree(folder, ignore_errors=True)


def finished(folder: str, output: str = '') -> dict[str, Row]:
    """Returns {name: row} of the shards that are whole, in the folder or put in place in `output`."""
    rows = {}
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _ROWS), encoding='utf-8') as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError):  # A line that was cut: its shard is written again.
                row = Row(**json.loads(line))
                if any(_size(os.path.join(where, row.name)) == row.bytes for where in filter(None, (folder, output))):
                    rows[row.name] = row
    return rows


def write_shards(folder: str, subset: str, sources: Sequence[Source], shards: int,
                 convert: Callable[[list], Iterator[Converted]],
                 to_record: Callable[[Source, Converted], bytes | None]) -> list[Row]:
    """Cuts the sources into shards and writes those that are not finished yet; returns the rows of all.

    convert: gives the outcome of each file of a list, in order. to_record: gives the record of a converted file, None
    for one that is skipped. Raises UserError where a shard cannot be written; those before it stay.
    """
    done = finished(folder)
    bounds = [len(sources) * shard // shards for shard in range(shards + 1)]
    parts = {shard_name(subset, shard, shards): sources[first:last]
             for shard, (first, last) in enumerate(itertools.pairwise(bounds))}
    missing = {name: part for name, part in parts.items() if name not in done}
    if len(missing) < shards:
        note(f'{subset}: going on: {shards - len(missing)} of {shards} shards are there')
    files = [file for part in missing.values() for file, _ in part]
    with contextlib.closing(convert(files)) as converted:  # Ends the processes at once when this fails.
        outcomes = progress(converted, len(files), subset, 'images')
        for name, part in missing.items():
            done[name] = _write_shard(folder, name, part, outcomes, to_record)
            append_line(os.path.join(folder, _ROWS), json.dumps(done[name]._asdict()))
    return [done[name] for name in parts]


def _write_shard(folder: str, name: str, part: Sequence[Source], outcomes: Iterator[Converted],
                 to_record: Callable[[Source, Converted], bytes | None]) -> Row:
    path = os.path.join(folder, name)
    labels, skipped, size, images = set(), [], 0, 0
    try:
        with tf.io.TFRecordWriter(path + _PART) as writer:
            for source, outcome in zip(part, itertools.islice(outcomes, len(part)), strict=True):
                record = to_record(source, outcome)
                if record is None:
                    skipped.append([str(source[0]), outcome.reason, outcome.kind])
                    continue
                writer.write(record)
                size += len(record) + 16  # Its length and two checksums.
                images += 1
                labels.add(source[1])
        with open(path + _PART, 'rb') as file:
            os.fsync(file.fileno())  # Else a power cut may leave a name and no content.
        if (there := os.path.getsize(path + _PART)) != size:
            raise UserError(f'{path} has {there} bytes instead of {size}: is the disk full?')
        os.replace(path + _PART, path)
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f'cannot write {path}: {" ".join(str(error).split())}') from None
    return Row(name, images, size, sorted(labels), skipped)


def _json(path: str) -> dict:
    try:
        with open(path, encoding='utf-8') as file:
            fields = json.load(file)
        return fields if isinstance(fields, dict) else {}
    except (OSError, ValueError):
        return {}


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1
