"""Which files become records of which subset, under which label: from folders or archives of classes, or from a list.

Labels are 1..N in the order of the classes, which are the folders' names, sorted, or those of a labels file. The files
of a subset are shuffled with the 2016 seed.
"""

import hashlib
import os
import random
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inception_mg.config import BuildConfig
from inception_mg.data.archives import Member, is_compressed, members_of
from inception_mg.data.class_folders import ClassFolders, classes_of_members, find_classes, quoted, read_class_names
from inception_mg.data.dataset_info import BACKGROUND, SUBSETS, DatasetInfo
from inception_mg.data.image_list import Listed, read_image_list
from inception_mg.data.progress import note
from inception_mg.errors import UserError

_SHUFFLE_SEED = 12345  # As in the 2016 release.

Source = tuple[str | Member, int]


class Sources(NamedTuple):
    """files: {subset: (file, label) of each image, shuffled}. origins: {subset: the flag and path they come from}."""

    classes: tuple[str, ...]
    files: dict[str, list[Source]]
    origins: dict[str, str]


def needs_copy(build: BuildConfig) -> bool:
    """Whether find_sources needs a folder, for the content of a compressed archive."""
    return any(os.path.isfile(path) and is_compressed(path) for path in _given(build).values())


def find_sources(build: BuildConfig, known: DatasetInfo | None, copies: str) -> Sources:
    """Returns the files and their labels.

    known: of the records that are there already; copies: a folder for what needs_copy tells of. Raises UserError for
    folders, classes and lists that do not fit together.
    """
    listed = _classes_of_file(build.labels_file) if build.labels_file else ()
    return _of_list(build, known, listed) if build.image_list else _of_folders(build, known, listed, copies)


def in_validation(name: str, share: float) -> bool:
    """Whether an image is one of the `share` that are kept for validation, by a hash of its name, such as
    daisy/1.jpg: whatever other images there are."""
    digest = hashlib.sha256(unicodedata.normalize('NFC', name).encode(errors='surrogateescape')).digest()
    return int.from_bytes(digest[:8], 'big') < share * 2**64


def shuffled(sources: Sequence[Source]) -> list[Source]:
    """Returns them in the order of the records: the same each time."""
    sources = list(sources)
    random.Random(_SHUFFLE_SEED).shuffle(sources)
    return sources


def _of_folders(build: BuildConfig, known: DatasetInfo | None, listed: tuple[str, ...], copies: str) -> Sources:
    directories = _directories(build)
    found = {subset: _look_into(directory, listed, os.path.join(copies, subset))
             for subset, directory in directories.items()}
    if listed:
        listed = _without_background(build.labels_file, listed, next(iter(found.values())).classes)
    classes = listed or _classes_of_folders(found, known, build)
    files, origins = {}, {}
    for subset in directories:
        _say_left_out(subset, found[subset])
        folders = _matching_folders(subset, directories, found, classes, build.labels_file)
        files |= _split(folders, found[subset].root, build.validation_split) if build.validation_split else {
            subset: folders}
    for subset in files:
        flag = subset if subset in directories else 'train'
        origins[subset] = f'--{flag}_directory={directories[flag]}' + (
            f' with --validation_split={build.validation_split}' if build.validation_split else '')
    return Sources(classes, {subset: _labelled(subset, below, classes) for subset, below in files.items()}, origins)


def _of_list(build: BuildConfig, known: DatasetInfo | None, listed: tuple[str, ...]) -> Sources:
    flag = f'--image_list={build.image_list}'
    rows = read_image_list(build.image_list)
    names = {row.label for row in rows}
    if listed:
        listed = _without_background(build.labels_file, listed, names)
        if missing := [name for name in listed if name not in names]:
            note(f'warning: {flag} has no image of {quoted(missing)}; every class keeps its label')
        if extra := sorted(names - set(listed)):
            note(f'note: --labels_file does not name these labels of the list, they are ignored: {quoted(extra)}')
    rows = [_in_subset(row, build) for row in rows if not listed or row.label in listed]
    subsets = [subset for subset in SUBSETS if any(row.subset == subset for row in rows)]
    if build.validation_split and len(subsets) < len(SUBSETS):
        raise UserError(f'{flag} with --validation_split={build.validation_split} gives no image of '
                        f'{(set(SUBSETS) - set(subsets)).pop()}: list more, or name another share')
    classes = listed or (known.classes if known and 'train' not in subsets else tuple(sorted(names)))
    if extra := sorted(names - set(classes)) if not listed else ():
        raise UserError(f'{flag} has the label {quoted(extra)}, which is none of the {len(classes)} classes of the '
                        'records that are there')
    if len(classes) == 1 and not build.allow_one_class:
        raise UserError(f'{flag} has one label only, {classes[0]!r} (--allow_one_class if it is meant)')
    files = {}
    for subset in subsets:
        below = {name: [] for name in classes}
        for row in sorted(row for row in rows if row.subset == subset):
            below[row.label].append(row.path)
        files[subset] = _labelled(subset, below, classes)
    return Sources(classes, files, dict.fromkeys(subsets, flag))


def _in_subset(row: Listed, build: BuildConfig) -> Listed:
    if row.subset and build.validation_split:
        raise UserError(f'--image_list={build.image_list} has a column of splits: leave --validation_split out')
    return row if row.subset else row._replace(
        subset='validation' if in_validation(row.name, build.validation_split) else 'train')


def _given(build: BuildConfig) -> dict[str, str]:
    both = {'train': build.train_directory, 'validation': build.validation_directory}
    return {subset: directory for subset, directory in both.items() if directory}


def _directories(build: BuildConfig) -> dict[str, str]:
    """Returns {subset: directory or archive} of those given, after checking that none lies inside another."""
    given = _given(build)
    for subset, directory in given.items():
        if not os.path.isdir(directory) and not os.path.isfile(directory):
            raise UserError(f'--{subset}_directory={directory}: there is no such folder or archive')
        for other in (*given.values(), build.output_directory):
            if _is_inside(other, directory):
                raise UserError(f'{other} lies inside --{subset}_directory={directory} and would be read as '
                                'a class: use folders beside each other')
    if len(given) == 2 and os.path.samefile(*given.values()):
        note('warning: --train_directory and --validation_directory are the same folder: precision on '
             'images that were trained on says nothing about new ones')
    return given


def _is_inside(inner: str, outer: str) -> bool:
    inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    return inner != outer and inner.startswith(os.path.join(outer, ''))


def _look_into(directory: str, wanted: Sequence[str], spool: str) -> ClassFolders:
    if os.path.isdir(directory):
        return find_classes(directory, wanted)
    note(f'note: {directory}: looking what is in it')
    return classes_of_members(directory, members_of(directory, spool), wanted)


def _classes_of_file(path: str) -> tuple[str, ...]:
    names = read_class_names(path)
    if not names:
        raise UserError(f'--labels_file={path} names no class')
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f'--labels_file={path} names {quoted(twice)} more than once: keep one line each')
    return tuple(names)


def _without_background(path: str, names: tuple[str, ...], found) -> tuple[str, ...]:
    if names[0] != BACKGROUND or BACKGROUND in found:
        return names
    note(f'note: {path} starts with {BACKGROUND!r}: that is label 0, which needs no line')
    if len(names) == 1:
        raise UserError(f'--labels_file={path} names no class')
    return names[1:]


def _classes_of_folders(found: Mapping[str, ClassFolders], known: DatasetInfo | None, build: BuildConfig
                        ) -> tuple[str, ...]:
    """Returns the classes: of the records already there, or of the first directory, after a look at its layout."""
    first, folders = next(iter(found.items()))
    if known and first != 'train':
        return known.classes
    flag = f'--{first}_directory={getattr(build, f"{first}_directory")}'
    classes = {name: below for name, below in folders.classes.items() if below.files}
    if not folders.classes:
        raise UserError(f'{flag} holds no folder: put the images of each class into a folder with the name of '
                        'the class')
    if not classes:
        raise UserError(f'{flag} holds no file in any folder of a class')
    if empty := [name for name in folders.classes if name not in classes]:
        note(f'warning: {first}: empty folders are no classes: {quoted(empty)} (a --labels_file keeps them)')
    inner = [path for below in classes.values() for path in below.folders]
    inside = f'holds only folders ({quoted(dict.fromkeys(map(os.path.basename, inner)))})'
    only_folders = all(not any(os.path.dirname(str(path)) == os.path.dirname(below.folders[0]) for path in below.files)
                       if below.folders else False for below in classes.values())
    if len(classes) == 1 and not build.allow_one_class:
        hint = (f', which {inside}: is --{first}_directory one folder too high?' if only_folders else
                ': is each class in a folder of its own?')
        raise UserError(f'{flag} has one class only, {next(iter(classes))!r}{hint} (--allow_one_class if it is meant)')
    if len(classes) > 1 and only_folders and not build.allow_nested_folders:
        raise UserError(f'{flag}: each of {quoted(classes)} {inside}, no file: if those are the classes name one '
                        'folder further down, if not give --allow_nested_folders')
    return tuple(classes)


def _say_left_out(subset: str, folders: ClassFolders) -> None:
    if folders.left_out:
        note(f'note: {subset}: left out, as hidden or made by a system: {quoted(folders.left_out)}')
    if folders.loose:
        note(f'note: {subset}: files beside the class folders are ignored: {folders.loose}')


def _matching_folders(subset: str, directories: Mapping[str, str], found: Mapping[str, ClassFolders],
                      classes: tuple[str, ...], labels_file: str) -> dict[str, list[str | Member]]:
    """Returns {class: its files} of one subset.

    The first directory must have a folder for every line of the labels file, and may have more. Another
    directory may lack classes, and of folders with files may have only those that the first has.
    """
    first, directory, folders = next(iter(found)), directories[subset], found[subset].classes
    missing = [name for name in classes if name not in folders]
    if labels_file and subset == first and missing:
        raise UserError(f'--labels_file={labels_file} names {quoted(missing)}, but {directory} has no such '
                        'folder')
    extra = [name for name, below in folders.items() if below.files and name not in set(classes)]
    if extra and not (labels_file and set(extra) <= set(found[first].classes)):
        raise UserError(f'--{subset}_directory={directory} has a folder {quoted(extra)}, which is none of '
                        f'the {len(classes)} classes: rename or remove it')
    if extra:
        note(f'note: {subset}: --labels_file does not name these folders, they are ignored: {quoted(extra)}')
    return {name: folders[name].files for name in classes if name in folders}


def _split(folders: Mapping[str, list], root: str, share: float) -> dict[str, dict[str, list]]:
    """Returns {subset: {class: its files}}."""
    both = {subset: {name: [] for name in folders} for subset in SUBSETS}
    for name, files in folders.items():
        for file in files:
            subset = SUBSETS[in_validation(str(file)[len(root):], share)]
            both[subset][name].append(file)
    return both


def _labelled(subset: str, folders: Mapping[str, list], classes: tuple[str, ...]) -> list[Source]:
    """Returns (file, label) of every file of the classes, shuffled."""
    files = [folders.get(name, []) for name in classes]
    if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
        note(f'warning: {subset}: no image of {quoted(empty)}; every class keeps its label')
    return shuffled([(path, label) for label, found in enumerate(files, start=1) for path in found])
