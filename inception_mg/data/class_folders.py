"""Classes as people keep them: a folder of images each, and perhaps a file with their names."""

import os
import unicodedata
from collections.abc import Iterable

from inception_mg.errors import UserError

_NOT_IMAGES = ('thumbs.db', 'desktop.ini', '__macosx')  # Left behind by Windows and macOS.


def read_class_names(path: str) -> list[str]:
    """Returns the names in a labels file, one a line.

    A byte-order mark, blanks around a name and empty lines don't count. Raises UserError if the file can't be
    read as UTF-8.
    """
    try:
        with open(path, encoding='utf-8-sig') as file:
            lines = file.read().split('\n')  # Line ends of every system are '\n' by now.
    except OSError as error:
        raise UserError(f'cannot read the labels file {path}: {error.strerror}') from None
    except UnicodeDecodeError:
        raise UserError(f'the labels file {path} is not UTF-8 text: save it as UTF-8') from None
    return [name for name in map(_class_name, lines) if name]


def class_folders(directory: str) -> dict[str, str]:
    """Returns {class name: path} of the folders in a directory, sorted by name; hidden ones are left out.

    Raises UserError for names that a labels file can't hold and for names that look the same.
    """
    folders = {}
    for entry in _entries(directory):
        if not entry.is_dir():
            continue
        name = _class_name(entry.name)
        if len(name.splitlines()) != 1 or name != name.encode('utf-8', 'replace').decode():
            raise UserError(f'{directory}: the folder name {entry.name!r} cannot be a class name: rename it')
        if name in folders:
            raise UserError(f'{directory}: two folders are called {name!r}, with other blanks or another '
                            'encoding of accents: rename one')
        folders[name] = entry.path
    return dict(sorted(folders.items()))


def files_below(folder: str, above: frozenset = frozenset()) -> list[str]:
    """Returns the paths of all files below a folder, sorted; links are followed, hidden names left out."""
    above = above | {_identity(os.stat(folder))}
    files = []
    for entry in _entries(folder):
        if not entry.is_dir():
            files.append(entry.path)
        elif _identity(entry.stat()) not in above:  # A link to a folder above would never end.
            files += files_below(entry.path, above)
    return files


def loose_files(directory: str) -> int:
    """Returns the number of files that lie in the directory itself, beside its folders."""
    return sum(not entry.is_dir() for entry in _entries(directory))


def quoted(names: Iterable[str]) -> str:
    """Returns names for a message: quoted, the first ten of them."""
    names = list(names)
    more = f' and {len(names) - 10} more' if len(names) > 10 else ''
    return ', '.join(map(repr, names[:10])) + more


def _class_name(text: str) -> str:
    # macOS takes accents apart in folder names; editors don't in files.
    return unicodedata.normalize('NFC', text).strip()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _entries(folder: str) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries
                       if not entry.name.startswith('.') and entry.name.lower() not in _NOT_IMAGES]
    except OSError as error:
        raise UserError(f'cannot look into {folder}: {error.strerror}') from None
    return sorted(visible, key=lambda entry: entry.name)
