"""A list of images as people keep it: a CSV file with a path and a label per line, and perhaps a split. Standard
library only."""

import csv
import io
import os
import stat
import unicodedata
from typing import NamedTuple

from inception_mg.errors import UserError

_COLUMNS = {  # What tables call them.
    'path': ('path', 'file', 'filename', 'file_name', 'filepath', 'file_path', 'image', 'image_path', 'img'),
    'label': ('label', 'class', 'class_name', 'category', 'target'),
    'split': ('split', 'subset', 'set')}
_SPLITS = {'train': 'train', 'training': 'train', 'validation': 'validation', 'val': 'validation',
           'valid': 'validation'}
_MAX_BYTES = 2**30


class Listed(NamedTuple):
    """One line. name: the path as it is written, without './'. subset: '' where the list says none."""

    path: str
    name: str
    label: str
    subset: str


def read_image_list(path: str) -> list[Listed]:
    """Returns the lines of a list; paths in it are relative to its own folder.

    The first line may name the columns (then in any order, and others are ignored); without it they are path, label
    and perhaps split. Columns are separated by commas, or by semicolons or tabs if the first line has no comma.
    Raises UserError, with the line's number, for what is no such list, a file that is not there, one that is listed
    twice, an unknown split.
    """
    rows = list(_rows(path))
    if not rows:
        raise UserError(f'--image_list={path} is empty: a line is path,label or path,label,split')
    columns = _columns(path, rows[0][1])
    header = any(cell.lower() in _COLUMNS['path'] for cell in rows[0][1])
    rows = rows[header:]
    if not rows:
        raise UserError(f'--image_list={path} has a header and no image')
    folder, seen, listed = os.path.dirname(path), {}, []
    for line, cells in rows:
        where = f'--image_list={path}, line {line}'
        if len(cells) <= max(columns.values()):
            raise UserError(f'{where}: {len(cells)} columns, where {max(columns.values()) + 1} are needed: a line is '
                            'path,label or path,label,split')
        if not header and len(cells) != len(columns):
            raise UserError(f'{where}: {len(cells)} columns instead of {len(columns)}: quote what holds a comma')
        name, label = os.path.normpath(cells[columns['path']]), unicodedata.normalize('NFC', cells[columns['label']])
        if not cells[columns['path']] or not label:
            raise UserError(f'{where}: the {"label" if cells[columns["path"]] else "path"} is empty')
        if any(unicodedata.category(c) in ('Cc', 'Cs', 'Zl', 'Zp') for c in label):
            raise UserError(f'{where}: {label!r} cannot be a class name')
        listed.append(Listed(_existing(where, os.path.join(folder, name)), name, label,
                             _subset(where, cells[columns['split']]) if 'split' in columns else ''))
        if name in seen:
            raise UserError(f'{where}: {name} is listed in line {seen[name]} too: keep one')
        seen[name] = line
    return listed


def _rows(path: str):
    """Yields (line number, cells without blanks around them) of each line that is not empty."""
    try:
        with open(path, encoding='utf-8-sig', newline='') as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f'cannot read --image_list={path}: {error.strerror}') from None
    except UnicodeDecodeError:
        raise UserError(f'--image_list={path} is not UTF-8 text: save it as UTF-8') from None
    if len(text) > _MAX_BYTES or '\0' in text:
        raise UserError(f'--image_list={path} is no text of one image per line')
    first = text.lstrip().split('\n', 1)[0]
    delimiter = next((sign for sign in ',;\t' if sign in first), ',')
    reader = csv.reader(io.StringIO(text, newline=''), delimiter=delimiter)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise UserError(f'--image_list={path}, line {reader.line_num}: {error}') from None


def _columns(path: str, first: list[str]) -> dict[str, int]:
    """Returns {'path', 'label', perhaps 'split': number of the column}."""
    names = [cell.lower() for cell in first]
    if not any(name in _COLUMNS['path'] for name in names):  # No header.
        if len(first) not in (2, 3):
            raise UserError(f'--image_list={path}, line 1: {len(first)} columns and none is called path: a line is '
                            'path,label or path,label,split')
        return dict(zip(_COLUMNS, range(len(first)), strict=False))
    found = {column: next((number for number, name in enumerate(names) if name in known), None)
             for column, known in _COLUMNS.items()}
    if found['label'] is None:
        raise UserError(f'--image_list={path}, line 1: no column is called label, only {", ".join(first)}')
    return {column: number for column, number in found.items() if number is not None}


def _subset(where: str, split: str) -> str:
    if split.lower() not in _SPLITS:
        raise UserError(f'{where}: the split {split!r} is unknown: write train or validation')
    return _SPLITS[split.lower()]


def _existing(where: str, path: str) -> str:
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return path
        raise UserError(f'{where}: {path} is no file')
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'{where}: {path}: {reason}') from None
