"""Small files that others may read while they are written: whole or not at all. Standard library only."""

import contextlib
import os

from inception_mg.errors import UserError


def write_text(path: str, text: str) -> None:
    """Writes `text` as UTF-8, so that a reader sees the old file or the new one; UserError where it cannot."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f'.{name}.{os.getpid()}')
    try:
        with open(temporary, 'w', encoding='utf-8', newline='\n') as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # Of a full disk: half a file helps nobody.
            os.remove(temporary)
        raise UserError(f'cannot write {path}: {error.strerror}') from None


def append_line(path: str, line: str) -> None:
    """Adds a line to a file in UTF-8; UserError where it cannot, and then the file is as it was.

    What is left of an earlier line that was cut stays a line of its own, and takes nothing of this one.
    """
    try:
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
