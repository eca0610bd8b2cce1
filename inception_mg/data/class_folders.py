"""Classes as people keep them: a folder of images each, perhaps in an archive, and perhaps a file with their names."""

import os
import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import NamedTuple

from inception_mg.data.archives import Member
from inception_mg.errors import UserError
from inception_mg.files import exists, is_file, read_text

# What systems, servers and programs put beside people's files. Left out, and said; what is junk is not worth a word.
_OF_SYSTEMS = re.compile(
    r'lost\+found|found\.\d{3}|lost\.dir|__macosx|__pycache__|@(eadir|tmp|recycle|recently-snapshot|sharebin|snapshot)'
    r'|#(recycle|snapshot)|~snapshot|recycler|recycled|system volume information|config\.msi|msocache|_gsdata_'
    r'|\$(recycle\.bin|winreagent|sysreset|extend|windows\.~\w+)|network trash folder|temporary items'
    r'|thevolumesettingsfolder|thefindbycontentfolder|ipynb_checkpoints|icon\r', re.IGNORECASE)
_JUNK = re.compile(r'thumbs\.db|ehthumbs\.db|desktop\.ini|\._.*|\.(ds_store|directory|localized|gitkeep|gitignore)',
                   re.IGNORECASE)
_LABELS_LIMIT = 2**26  # Bytes of a labels file.


class Found(NamedTuple):
    """What lies below one folder. files: sorted, links followed. folders: paths of those directly in it.
    left_out: paths that systems made, or hidden ones."""

    files: list[str | Member]
    folders: list[str]
    left_out: list[str]


class ClassFolders(NamedTuple):
    """What lies in a folder of class folders. classes: {name: what is below its folder}, sorted by name.
    left_out: as in Found. loose: the number of files that lie beside the folders. root: what the paths of all files
    begin with, before the folder of their class."""

    classes: dict[str, Found]
    left_out: list[str]
    loose: int
    root: str


def read_class_names(path: str) -> list[str]:
    """Returns the names in a labels file, one a line.

    A byte-order mark, blanks around a name and empty lines don't count. Raises UserError if the file can't be
    read as UTF-8 text.
    """
    try:
        if exists(path) and not is_file(path):
            raise UserError(f'cannot read the labels file {path}: it is no regular file')
        text = read_text(path, _LABELS_LIMIT + 1).removeprefix('\ufeff')
        text = text.replace('\r\n', '\n').replace('\r', '\n')
    except OSError as error:
        raise UserError(f'cannot read the labels file {path}: {error.strerror}') from None
    except UnicodeDecodeError:
        raise UserError(f'the labels file {path} is not UTF-8 text: save it as UTF-8') from None
    if len(text) > _LABELS_LIMIT or '\0' in text:
        raise UserError(f'the labels file {path} is not a text of one name per line: save it as UTF-8')
    return [name for name in map(_class_name, text.split('\n')) if name]


def find_classes(directory: str, wanted: Collection[str] = ()) -> ClassFolders:
    """Returns what lies in a directory of class folders.

    wanted: names that are classes although a system might have made the folder. Raises UserError for names that a
    labels file can't hold and for names that look the same.
    """
    folders, found, loose = {}, {}, 0
    entries, left_out = _entries(directory, wanted)
    for entry in entries:
        if not _is_folder(entry):
            loose += 1
            continue
        name = _new_class(directory, entry.name, folders)
        folders[name] = entry.path
    for name, path in sorted(folders.items()):
        found[name] = find_below(path)
        left_out += found[name].left_out
    return ClassFolders(found, left_out, loose, os.path.join(directory, ''))


def classes_of_members(archive: str, members: Iterable[Member], wanted: Collection[str] = ()) -> ClassFolders:
    """As find_classes, for the files in an archive; folders that all of its files lie in are no classes."""
    split, left_out = [], {}
    for member in members:
        parts = tuple(member.path.removeprefix(f'{archive}/').split('/'))
        odd = next((count for count, part in enumerate(parts, 1) if _class_name(part) not in wanted and (
            part.startswith('.') or _OF_SYSTEMS.fullmatch(part) or _JUNK.fullmatch(part))), 0)
        if not odd:
            split.append((parts, member))
        elif not _JUNK.fullmatch(parts[odd - 1]):
            left_out['/'.join((archive, *parts[:odd]))] = None
    depth = len(os.path.commonprefix([parts[:-1] for parts, _ in split]))
    classes, raw, loose = {}, {}, 0
    for parts, member in sorted(split):
        if len(parts) == depth + 1:
            loose += 1
            continue
        folder = parts[depth]
        if folder not in raw:
            raw[folder] = _new_class(archive, folder, classes)
            classes[raw[folder]] = Found([], [], [])
        below = classes[raw[folder]]
        below.files.append(member)
        inner = '/'.join((archive, *parts[:depth + 2]))
        if len(parts) > depth + 2 and inner not in below.folders[-1:]:
            below.folders.append(inner)
    root = '/'.join((archive, *(split[0][0][:depth] if split else ()), ''))
    return ClassFolders(dict(sorted(classes.items())), list(left_out), loose, root)


def find_below(folder: str) -> Found:
    """Returns what lies below a folder, each folder once, however many links lead to it.

    A folder below that cannot be looked into counts as a file, which cannot be read either. Raises UserError for
    the first one.
    """
    entries, left_out = _entries(folder)
    folders = [entry.path for entry in entries if _is_folder(entry)]
    files, seen, waiting = [], {_identity(os.stat(folder))}, entries[::-1]
    while waiting:
        entry = waiting.pop()
        if not _is_folder(entry):
            files.append(entry.path)
        elif (identity := _identity(entry.stat())) not in seen:
            seen.add(identity)
            try:
                inner, hidden = _entries(entry.path)
            except UserError:
                files.append(entry.path)
                continue
            waiting += inner[::-1]
            left_out += hidden
    return Found(files, folders, left_out)


def quoted(names: Iterable[str]) -> str:
    """Returns names for a message: quoted, the first ten of them."""
    names = list(names)
    more = f' and {len(names) - 10} more' if len(names) > 10 else ''
    return ', '.join(map(repr, names[:10])) + more


def _new_class(where: str, folder: str, others: Collection[str]) -> str:
    """Returns the name of the class in a folder; UserError for one that cannot be, or is there already."""
    name = _class_name(folder)
    if not name or any(unicodedata.category(c) in ('Cc', 'Cs', 'Zl', 'Zp') for c in name):
        raise UserError(f'{where}: the folder name {folder!r} cannot be a class name: rename it')
    if name in others:
        raise UserError(f'{where}: two folders are called {name!r}, with other blanks or another encoding of accents: '
                        'rename one')
    return name


def _class_name(text: str) -> str:
    # macOS takes accents apart in folder names; editors don't in files.
    return unicodedata.normalize('NFC', text).strip()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link to itself.
        return False


def _entries(folder: str, wanted: Collection[str] = ()) -> tuple[list[os.DirEntry], list[str]]:
    """Returns what is to be looked at in a folder, sorted, and the paths of what is left out."""
    visible, left_out = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if _class_name(entry.name) in wanted:
                    visible.append(entry)
                elif entry.name.startswith('.') or _OF_SYSTEMS.fullmatch(entry.name):
                    left_out += [entry.path] if not _JUNK.fullmatch(entry.name) else []
                elif not _JUNK.fullmatch(entry.name):
                    visible.append(entry)
    except OSError as error:
        raise UserError(f'cannot look into {folder}: {error.strerror}') from None
    return visible, left_out
