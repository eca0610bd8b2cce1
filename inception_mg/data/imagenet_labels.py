"""The classes of ImageNet and the labels of its validation images, from any of the files that say them.

A class is a synset of WordNet, such as n01440764; its label is its place, from 1, among the sorted synsets. The ids in
the devkit's ground truth (ILSVRC2012_ID) are in another order, which meta.mat alone tells.
"""

import io
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inception_mg.data.archives import contents_of
from inception_mg.data.class_folders import quoted, read_class_names
from inception_mg.data.progress import note
from inception_mg.errors import UserError

SYNSET = re.compile(r'n\d{8}')
KAGGLE_LABELS, KAGGLE_NAMES = 'LOC_val_solution.csv', 'LOC_synset_mapping.txt'
LABELS_2016, NAMES_2016 = 'imagenet_2012_validation_synset_labels.txt', 'imagenet_metadata.txt'
SYNSETS_2016 = 'imagenet_lsvrc_2015_synsets.txt'
_TRUTH, _META = 'data/ILSVRC2012_validation_ground_truth.txt', 'data/meta.mat'
_ARCHIVES = ('.tar.gz', '.tgz', '.tar')
_DEVKITS = ('.', 'ILSVRC2012_devkit_t12', 'devkit', *(f'ILSVRC2012_devkit_t12{end}' for end in _ARCHIVES))
_NUMBER = re.compile(r'ILSVRC2012_val_(\d{8})')


class Devkit(NamedTuple):
    """ids: {ILSVRC2012_ID: synset} of the classes. names: {synset: words}. truth: the ground truth file's lines."""

    path: str
    ids: dict[int, str]
    names: dict[str, str]
    truth: list[str]


def find_devkit(path: str) -> str:
    """Returns the devkit that a path is, or that lies in it: an archive, or a folder with data/meta.mat; '' if none."""
    if os.path.isfile(path):
        return path if path.endswith(_ARCHIVES) else ''
    found = (os.path.normpath(os.path.join(path, name)) for name in _DEVKITS) if path else ()
    return next((kit for kit in found if os.path.isfile(kit) or os.path.isfile(os.path.join(kit, _META))), '')


def read_devkit(path: str) -> Devkit:
    """Reads meta.mat and the ground truth; raises UserError for what is missing, damaged, or without scipy."""
    if os.path.isfile(path):
        found = {os.path.basename(name): data for name, data in contents_of(path, rf'{_META}$|{_TRUTH}$')}
    else:
        found = {os.path.basename(name): _read(os.path.join(path, name)) for name in (_META, _TRUTH)
                 if os.path.exists(os.path.join(path, name))}
    for name in (_META, _TRUTH):
        if os.path.basename(name) not in found:
            raise UserError(f'{path} holds no {name}: unpack or download the devkit again')
    ids, names = _read_meta(f'{path}/{_META}', found[os.path.basename(_META)])
    return Devkit(path, ids, names, found[os.path.basename(_TRUTH)].decode(errors='replace').split())


def _read(path: str) -> bytes:
    try:
        with open(path, 'rb') as file:
            return file.read()
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from None


def _read_meta(path: str, data: bytes) -> tuple[dict[int, str], dict[str, str]]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError(f'{path} is a file of MATLAB, and scipy, which reads it, is not installed: pip install scipy, '
                        f'or put {LABELS_2016} or {KAGGLE_LABELS} beside the images') from None
    try:
        rows = loadmat(io.BytesIO(data), squeeze_me=True)['synsets']
        # The first thousand are the classes; the others are groups of them.
        classes = [(int(row['ILSVRC2012_ID']), str(row['WNID']), str(row['words'])) for row in rows
                   if int(row['num_children']) == 0]
    except Exception as error:  # noqa: BLE001 (scipy raises nearly every type on bad bytes.)
        raise UserError(f'{path} is damaged ({" ".join(str(error).split())}): unpack or download it again') from None
    return {number: synset for number, synset, _ in classes}, {synset: words for _, synset, words in classes}


def read_names(path: str) -> dict[str, str]:
    """Returns {synset: words} of a file of lines 'n01440764<tab or blank>tench, Tinca tinca'."""
    names = {}
    for number, line in enumerate(read_class_names(path), start=1):
        synset, _, words = line.replace('\t', ' ', 1).partition(' ')
        if not SYNSET.fullmatch(synset) or not words.strip():
            raise UserError(f'{path}, line {number}: {line[:60]!r} is no synset and its words')
        names[synset] = words.strip()
    return names


def read_synsets(path: str) -> list[str]:
    """Returns the synsets in a file of one a line; raises UserError for other lines and for one twice."""
    synsets = read_class_names(path)
    if not synsets:
        raise UserError(f'{path} names no synset')
    if wrong := [name for name in synsets if not SYNSET.fullmatch(name)]:
        raise UserError(f'{path}: {quoted(wrong)} is no synset such as n01440764')
    if twice := [name for name in dict.fromkeys(synsets) if synsets.count(name) > 1]:
        raise UserError(f'{path} names {quoted(twice)} more than once')
    return synsets


def label_validation(path: str, names: Sequence[str], devkit: Devkit | None) -> dict[str, str]:
    """Returns {file name without its end: synset} of validation images.

    path: Kaggle's table, a file with a synset per line, or one with an ILSVRC2012_ID per line, for which the devkit is
    needed; lines are those of images 1, 2, ... Raises UserError, with the line, for labels that are missing or wrong.
    """
    lines = devkit.truth if devkit and path == devkit.path else read_class_names(path)
    if lines and lines[0].lower().startswith('imageid,'):
        return _of_kaggle(path, lines, names)
    if lines and lines[0].isdigit():
        if devkit is None:
            raise UserError(f'{path} holds ILSVRC2012_IDs, whose order only the meta.mat of the devkit tells: put '
                            'ILSVRC2012_devkit_t12.tar.gz beside the images')
        synsets = [_of_id(path, number, line, devkit.ids) for number, line in enumerate(lines, start=1)]
    else:
        if wrong := next((number for number, line in enumerate(lines, start=1) if not SYNSET.fullmatch(line)), None):
            raise UserError(f'{path}, line {wrong}: {lines[wrong - 1][:60]!r} is no synset such as n01440764')
        synsets = lines
    labels = {}
    for name in names:
        number = _NUMBER.fullmatch(name)
        if not number:
            raise UserError(f'the validation image {name} is not called ILSVRC2012_val_00000001 and so on: '
                            f'{path} does not tell its label')
        if not 1 <= int(number[1]) <= len(synsets):
            raise UserError(f'{path} has {len(synsets)} lines, but there is an image {name}: is it cut off?')
        labels[name] = synsets[int(number[1]) - 1]
    if len(synsets) != len(names):
        note(f'note: {path} has {len(synsets)} labels for {len(names)} validation images')
    return labels


def _of_id(path: str, number: int, line: str, ids: Mapping[int, str]) -> str:
    synset = ids.get(int(line)) if line.isdigit() else None
    if synset is None:
        raise UserError(f'{path}, line {number} of the ground truth: {line[:20]} is none of the ILSVRC2012_IDs '
                        f'{min(ids)} to {max(ids)}')
    return synset


def _of_kaggle(path: str, lines: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    labels = {}
    for number, line in enumerate(lines[1:], start=2):
        name, _, boxes = line.partition(',')
        synset = boxes.split(' ', 1)[0]
        if not SYNSET.fullmatch(synset):
            raise UserError(f'{path}, line {number}: {line[:60]!r} is no image, comma, synset')
        labels[name] = synset
    if missing := [name for name in names if name not in labels]:
        raise UserError(f'{path} has no line for {len(missing)} of {len(names)} validation images, such as '
                        f'{missing[0]}: is it cut off?')
    return {name: labels[name] for name in names}
