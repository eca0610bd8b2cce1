"""The checkpoints in a train_dir that are this job's, over all its lives. Standard library only.

checkpoints.json lists them in the order in which they were written, each with a digest of its index; an index holds the
checksums of all values. A life that goes on from one of them goes on with the list, so that all lives together keep no
more than one may. Whatever else is in the folder is another job's, and is never touched: also what has the name, but
not the digest, of one that is listed. Before a save the list says which is begun, so that what a kill within it leaves
behind is known to be this job's too.

Not the Saver's own list, which holds what one process has written: given the earlier ones it would know them by name
alone, and it takes names as patterns where it deletes.
"""

import contextlib
import hashlib
import json
import os
import re
from typing import NamedTuple

from inception_mg.files import exists, names_in, read_bytes, remove, write_text

LIST_FILE = 'checkpoints.json'
HALF = 'half'
_NAME = re.compile(r'model\.ckpt-\d{1,18}')


class Begun(NamedTuple):
    """A checkpoint that is being written, and the digest of what had its name before: HALF, or '' for nothing."""

    name: str
    before: str


class Written:
    """The list of one job. most: how many of its checkpoints are kept; 0 for all.

    For each save: `begin`, the save, `end`, and when TensorFlow's state file says the same, `prune`.
    """

    def __init__(self, folder: str, most: int, listed: dict[str, str] | None = None, begun: Begun | None = None):
        self._folder, self._most, self._listed, self._begun = folder, most, dict(listed or {}), begun

    @classmethod
    def of_job(cls, folder: str, most: int, newest: str | None) -> 'Written':
        """The list that a training which begins at `newest`, a path prefix or None, goes on with: an empty one where
        another job wrote that, or a program that knows no list. Writes nothing."""
        listed, begun = _read(os.path.join(folder, LIST_FILE))
        job = cls(folder, most, listed, begun)
        name = os.path.basename(newest) if newest else ''
        ours = not newest or job._is_listed(name) or job._is_begun_and_whole(name)
        return job if ours else cls(folder, most)

    def begin(self, name: str) -> None:
        """Says that a checkpoint is about to be written, and settles what a kill has left of the last one. UserError
        where the list cannot be written."""
        if self._begun:
            self._settle()
        self._begun = Begun(name, self._digest(name) or (HALF if self._values(name) else ''))
        self._write()

    def end(self, name: str) -> list[str]:
        """Says that it has been written; returns the names of those to keep, oldest first."""
        self._add(name)
        return self._kept()

    def prune(self) -> None:
        """Deletes those that are too many, and writes the list. UserError where it cannot be written."""
        kept = self._kept()
        for name in [name for name in self._listed if name not in kept]:
            if self._is_listed(name):
                self._remove(name)
            if not self._is_listed(name):
                del self._listed[name]
        self._write()

    def _kept(self) -> list[str]:
        return list(self._listed)[-self._most:]

    def _add(self, name: str) -> None:
        self._listed.pop(name, None)
        self._listed[name], self._begun = self._digest(name), None

    def _is_listed(self, name: str) -> bool:
        """Whether the checkpoint of this name is there, and is the one that the list means."""
        return self._listed.get(name) == self._digest(name) != ''

    def _is_begun_and_whole(self, name: str) -> bool:
        """The index is the last file to get its name."""
        begun = self._begun
        return begun is not None and begun.name == name and self._digest(name) not in ('', begun.before)

    def _settle(self) -> None:
        name, before = self._begun
        if self._is_begun_and_whole(name):
            self._add(name)
        elif not before:
            self._remove(name)
        for file in self._files():
            if re.fullmatch(re.escape(name) + r'\.(?:index|data-\d{5}-of-\d{5})\.tempstate\d+', file):
                self._delete(file)

    def _remove(self, name: str) -> None:
        """The index last: until it is gone another try knows what the rest belongs to."""
        if all([self._delete(file) for file in self._values(name)]):
            self._delete(f'{name}.index')

    def _values(self, name: str) -> list[str]:
        return [file for file in self._files() if re.fullmatch(re.escape(name) + r'\.data-\d{5}-of-\d{5}', file)]

    def _delete(self, file: str) -> bool:
        path = os.path.join(self._folder, file)
        with contextlib.suppress(OSError):
            remove(path)
        return not (os.path.islink(path) or exists(path))

    def _files(self) -> list[str]:
        try:
            return names_in(self._folder)
        except OSError:
            return []

    def _digest(self, name: str) -> str:
        """Of the checkpoint's index; '' where it has none. Nothing that is not a checkpoint of this name has it."""
        try:
            return hashlib.sha256(read_bytes(os.path.join(self._folder, f'{name}.index'))).hexdigest()
        except OSError:
            return ''

    def _write(self) -> None:
        text = json.dumps({'checkpoints': self._listed, 'begun': self._begun}, indent=1)
        write_text(os.path.join(self._folder, LIST_FILE), text + '\n')


def _read(path: str) -> tuple[dict[str, str], Begun | None]:
    """({}, None) where the file is missing or damaged: then nothing is known to be this job's."""
    try:
        found = json.loads(read_bytes(path))
        listed, begun = found['checkpoints'], Begun(*found['begun']) if found['begun'] else None
        pairs = [*listed.items(), *([begun] if begun else [])]
        if all(_NAME.fullmatch(name) and type(digest) is str for name, digest in pairs):
            return listed, begun
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return {}, None
