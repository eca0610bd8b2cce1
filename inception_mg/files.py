"""Files, on this machine or behind a scheme such as gs:// (see remote.py). Standard library only.

What is written is there whole or not at all. Where it fails a function raises OSError, if it does not say otherwise;
the questions whether something is there raise nothing, but UserError where a remote file system does not answer.
"""

import contextlib
import os
import shutil
import tempfile

from inception_mg import remote
from inception_mg.errors import UserError
from inception_mg.paths import scheme_of


def write_text(path: str, text: str) -> None:
    """Writes `text` as UTF-8, so that a reader sees the old file or the new one; UserError where it cannot."""
    write_bytes(path, text.encode())


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file, so that a reader sees the old one or the new one; UserError where it cannot."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f'.{name}.{os.getpid()}')
    try:
        if scheme_of(path):
            return remote.write(path, data)
        with open(temporary, 'wb') as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if not scheme_of(path):
            with contextlib.suppress(OSError):  # Of a full disk: half a file helps nobody.
                os.remove(temporary)
        raise UserError(f'cannot write {path}: {error.strerror}') from None


def append_line(path: str, line: str) -> None:
    """Adds a line to a file in UTF-8; UserError where it cannot, and then the file is as it was.

    What is left of an earlier line that was cut stays a line of its own, and takes nothing of this one.
    """
    try:
        if scheme_of(path):
            return remote.append(path, line.encode() + b'\n')
        with open(path, 'ab+', buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            if before:
                file.seek(before - 1)
            data = (b'\n' if before and file.read(1) != b'\n' else b'') + line.encode() + b'\n'
            try:
                if (written := file.write(data)) != len(data):
                    file.write(data[written:])  # The rest; or this says why it cannot.
            except OSError:
                file.truncate(before)
                raise
    except OSError as error:
        raise UserError(f'cannot write {path}: {error.strerror}') from None


def read_bytes(path: str, limit: int = -1) -> bytes:
    """The content of a file; its first `limit` bytes, if that is not negative."""
    if scheme_of(path):
        return remote.read(path, limit)
    with open(path, 'rb') as file:
        return file.read(limit)


def read_text(path: str, limit: int = -1) -> str:
    """As read_bytes, of UTF-8; UnicodeDecodeError, a ValueError, where it is none."""
    return read_bytes(path, limit).decode()


def names_in(folder: str) -> list[str]:
    """Of what is in a folder, in any order."""
    return remote.names(folder) if scheme_of(folder) else os.listdir(folder)


def exists(path: str) -> bool:
    """Whether something of this name is there."""
    return remote.exists(path) if scheme_of(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether it is a folder."""
    return remote.is_folder(path) if scheme_of(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    """Whether it is a regular file."""
    return exists(path) and not is_folder(path) if scheme_of(path) else os.path.isfile(path)


def size_of(path: str) -> int:
    """In bytes."""
    return remote.size(path) if scheme_of(path) else os.path.getsize(path)


def make_folder(path: str) -> None:
    """Makes a folder, and those above it, where they are not there."""
    if scheme_of(path):
        remote.make_folder(path)
    else:
        os.makedirs(path, exist_ok=True)


def check_writable(folder: str) -> None:
    """Makes a folder, if need be, and a file in it that it deletes again: os.access says nothing of file systems."""
    make_folder(folder)
    if scheme_of(folder):
        remote.write(f'{folder}/.writable', b'')
        remote.remove(f'{folder}/.writable')
    else:
        with tempfile.TemporaryFile(dir=folder):
            pass


def remove(path: str) -> None:
    """Deletes a file."""
    (remote.remove if scheme_of(path) else os.remove)(path)


def remove_tree(path: str) -> None:
    """Deletes a folder with what is in it, as far as that goes; raises nothing."""
    if scheme_of(path):
        with contextlib.suppress(OSError):
            remote.remove_tree(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def replace(path: str, target: str) -> None:
    """Gives a file another name, in place of what has it."""
    (remote.rename if scheme_of(path) else os.replace)(path, target)


def link_or_copy(path: str, target: str) -> None:
    """Gives a file a second name, or copies it where there are no links. `target` must not be there."""
    if scheme_of(path) or scheme_of(target):
        return remote.copy(path, target)
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # Another file system, or one without links.
        shutil.copyfile(path, target)


def whole(path: str) -> str:
    """The path from the root, by which it is known in any folder."""
    return path if scheme_of(path) else os.path.abspath(path)
