"""Files inside a tar, read where they lie: an index of offsets, so that nothing is unpacked.

The members of a plain tar, and of tars inside it, lie uncompressed at known places: one pass over the headers finds
them, and then any of them is read by itself, in any order. A compressed tar has no such places; its files are copied
one behind the other into one plain file, in one pass. Standard library only.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from inception_mg.data.kinds import HEAD, UNKNOWN, kind_of
from inception_mg.errors import UserError

_OPEN = {'GZIP': gzip.open, 'BZIP2': bz2.open, 'XZ': lzma.open}
_PIECE = 2**20  # Bytes copied at a time.


class Member(NamedTuple):
    """A file inside a file: `size` bytes from `offset` on of the file `holder`.

    path: what messages call it: the archive, a slash, and its name in there. `str(member)` is that too.
    """

    holder: str
    offset: int
    size: int
    path: str

    def __str__(self) -> str:
        return self.path


def read_member(member: Member) -> bytes:
    """Returns the bytes; raises EOFError if the archive ends before theirs do, OSError as reading does."""
    with open(member.holder, 'rb') as file:
        file.seek(member.offset)
        data = file.read(member.size)
    if len(data) < member.size:
        raise EOFError('the archive ends within it')
    return data


def is_compressed(path: str) -> bool:
    """Whether an archive has to be copied to be read in any order; raises UserError for what cannot be a tar."""
    return _kind(path) in _OPEN


def _kind(path: str) -> str:
    try:
        with open(path, 'rb') as file:
            kind = kind_of(file.read(HEAD))
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from None
    if kind not in (*_OPEN, 'TAR', UNKNOWN):  # The oldest tars begin with a file's name and zeros.
        raise UserError(f'{path} is no tar but {kind}: name a folder, a .tar or a .tgz')
    return kind


def members_of(path: str, spool: str = '') -> Iterator[Member]:
    """Yields the regular files of a tar in its order.

    spool: a file to be made, which takes the content of a compressed tar; as large as all files in it together.
    Raises UserError for a tar that is damaged or cut off, and where the spool cannot be written.
    """
    if is_compressed(path):
        yield from _copied(path, spool)
        return
    with _reading(path), open(path, 'rb') as file:
        for entry in _entries(file):
            if not entry.issparse():
                yield Member(path, entry.offset_data, entry.size, f'{path}/{_name(entry)}')


def members_of_inner_tars(path: str) -> Iterator[tuple[str, Member]]:
    """Yields (name of the inner tar without .tar, file in it) for all tars inside a plain tar, in its order.

    Raises UserError as members_of does.
    """
    if is_compressed(path):
        raise UserError(f'{path} is compressed, so its files cannot be read where they lie: unpack that (gunzip) once')
    with _reading(path), open(path, 'rb') as outer, open(path, 'rb') as again:
        for entry in _entries(outer):
            if not entry.name.endswith('.tar'):
                continue
            name = os.path.basename(entry.name).removesuffix('.tar')
            for file in _entries(_Part(again, entry.offset_data, entry.size)):
                if not file.issparse():
                    yield name, Member(path, entry.offset_data + file.offset_data, file.size,
                                       f'{path}/{_name(entry)}/{_name(file)}')


def contents_of(path: str, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name, bytes) of each file of a tar, compressed or not, whose name fits a regular expression.

    One pass, one file in memory at a time. Raises UserError as members_of does.
    """
    fits = re.compile(pattern)
    kind = _kind(path)
    if kind not in _OPEN:
        for member in members_of(path):
            if fits.search(member.path):
                with _reading(path):
                    data = read_member(member)
                yield member.path.removeprefix(f'{path}/'), data
        return
    with _reading(path), _streamed(path, kind) as archive:
        for entry in archive:
            if entry.isreg() and fits.search(entry.name):
                yield _name(entry), archive.extractfile(entry).read()


class _Part(io.RawIOBase):
    """A stretch of an open file, as a file."""

    def __init__(self, file: io.BufferedReader, offset: int, size: int):
        self._file, self._offset, self._size, self._position = file, offset, size, 0

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self._position = position + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        self._file.seek(self._offset + self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data


def _entries(file) -> Iterator[tarfile.TarInfo]:
    """Yields the regular files of a plain tar; tarfile.ReadError if it does not end as a tar does.

    tarfile alone takes a header that is cut or damaged for the end.
    """
    with tarfile.open(fileobj=file, mode='r:') as archive:
        while entry := archive.next():
            archive.members.clear()  # Else it keeps all.
            if entry.isreg():
                yield entry
        file.seek(archive.offset)
        end = file.read(tarfile.BLOCKSIZE)
        if len(end) < tarfile.BLOCKSIZE or any(end):
            raise tarfile.ReadError(f'no end mark at byte {archive.offset}')


@contextlib.contextmanager
def _streamed(path: str, kind: str) -> Iterator[tarfile.TarFile]:
    with _OPEN[kind](path, 'rb') as file:
        with tarfile.open(fileobj=file, mode='r|') as archive:
            yield archive
        while file.read(_PIECE):  # To its end, where its checksum is: tarfile alone takes a cut for the end.
            pass


def _copied(path: str, spool: str) -> Iterator[Member]:
    offset = 0
    with _reading(path), _streamed(path, _kind(path)) as archive, _writing(spool) as write:
        for entry in archive:
            if not entry.isreg() or entry.issparse():
                continue
            content = archive.extractfile(entry)
            while piece := content.read(_PIECE):
                write(piece)
            yield Member(spool, offset, entry.size, f'{path}/{_name(entry)}')
            offset += entry.size


@contextlib.contextmanager
def _writing(path: str):
    """Gives a function that adds bytes to a new file; UserError where it cannot."""
    def write(piece: bytes) -> None:
        try:
            file.write(piece)
        except OSError as error:
            raise UserError(f'cannot write {path}: {error.strerror}') from None

    with open(path, 'xb', buffering=0) as raw, io.BufferedWriter(raw, _PIECE) as file:
        yield write


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f'{path} is damaged or cut off ({" ".join(str(error).split()) or type(error).__name__}): copy '
                        'or download it again') from None
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror or error}') from None


def _name(entry: tarfile.TarInfo) -> str:
    return entry.name.removeprefix('./')
