"""ILSVRC2012 as people have it: where in a folder its images, labels, names and boxes are."""

import collections
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from inception_mg.config import ImagenetConfig
from inception_mg.data import imagenet_labels
from inception_mg.data.archives import Member, members_of, members_of_inner_tars
from inception_mg.data.class_folders import quoted
from inception_mg.data.imagenet_boxes import Boxes, read_boxes
from inception_mg.data.imagenet_labels import SYNSET, Devkit
from inception_mg.data.progress import note, progress
from inception_mg.data.sources import Source, shuffled
from inception_mg.errors import UserError

COUNTS = {'train': 1281167, 'validation': 50000}
_IMAGES = {
    'train': ('ILSVRC2012_img_train.tar', 'train', 'ILSVRC2012_img_train', 'ILSVRC/Data/CLS-LOC/train',
              'Data/CLS-LOC/train'),
    'validation': ('ILSVRC2012_img_val.tar', 'val', 'validation', 'ILSVRC2012_img_val', 'ILSVRC/Data/CLS-LOC/val',
                   'Data/CLS-LOC/val')}
_BOXES = (  # One of each row.
    ('imagenet_2012_bounding_boxes.csv',),
    ('ILSVRC/Annotations/CLS-LOC', 'Annotations/CLS-LOC', 'Annotations', 'bounding_boxes'),
    ('ILSVRC2012_bbox_train_v2.tar.gz', 'ILSVRC2012_bbox_train_v2.tar', 'ILSVRC2012_bbox_train_v2'),
    ('ILSVRC2012_bbox_val_v3.tgz', 'ILSVRC2012_bbox_val_v3.tar', 'ILSVRC2012_bbox_val_v3'))


class ImageNet(NamedTuple):
    """synsets: of labels 1, 2, ...; words: of each. files: {subset: (file, label), shuffled}; origins: {subset: their
    path}."""

    synsets: tuple[str, ...]
    words: tuple[str, ...]
    files: dict[str, list[Source]]
    origins: dict[str, str]
    boxes: Boxes


def find_imagenet(build: ImagenetConfig) -> ImageNet:
    """Looks through the folder; nothing is unpacked.

    Raises UserError for images, labels or names that are missing or do not fit together, and for damaged tars.
    """
    if build.source and not os.path.isdir(build.source):
        raise UserError(f'--source={build.source}: there is no such folder')
    subsets = (build.only_subset,) if build.only_subset else tuple(COUNTS)
    origins = {subset: _origin(build, subset) for subset in subsets}
    folders = {subset: _in_folders(subset, path) for subset, path in origins.items()}
    labelled = not folders.get('validation', {}).get('')
    devkit = _devkit(build, needs_labels=not labelled)
    names = _names(build, devkit)
    if not labelled:
        folders['validation'] = _label(build, origins['validation'], folders['validation'], devkit)
    synsets = _synsets(build, devkit, names, folders)
    files = {subset: _numbered(build, subset, origins[subset], found, synsets) for subset, found in folders.items()}
    if lacking := [synset for synset in synsets if synset not in names]:
        note(f'warning: no file says what {quoted(lacking)} mean: their records have the synset as text')
    boxes = read_boxes(_box_paths(build), _synset_of(folders.get('validation', {}), synsets), synsets)
    return ImageNet(synsets, tuple(names.get(synset, synset) for synset in synsets), files, origins, boxes)


def stem(file: str | Member) -> str:
    """Returns an image's name without folders and without its end."""
    return os.path.splitext(os.path.basename(str(file)))[0]


def _origin(build: ImagenetConfig, subset: str) -> str:
    if given := getattr(build, f'{subset}_directory'):
        if not os.path.exists(given):
            raise UserError(f'--{subset}_directory={given}: there is no such folder or archive')
        return given
    there = [os.path.join(build.source, name) for name in _IMAGES[subset]]
    there = [path for path in there if os.path.exists(path)] if build.source else []
    if not there:
        raise UserError(f'--source={build.source} holds no {subset} images (none of {", ".join(_IMAGES[subset])}): '
                        f'name the folder above them, --{subset}_directory, or --only_subset for the other part alone')
    if len(there) > 1:
        note(f'note: {subset} images are in {there[0]} and in {there[1]}: the first is taken')
    return there[0]


def _in_folders(subset: str, path: str) -> dict[str, list[str | Member]]:
    """Returns {synset: its images}; those that lie in no folder or tar of a synset under ''."""
    found, others = collections.defaultdict(list), []
    note(f'{subset}: looking through {path}')
    for folder, file in _walk(path, subset):
        name = os.path.basename(str(file))
        if not name.lower().endswith(('.jpeg', '.jpg')) or name.startswith('.'):
            others.append(name)
        elif not folder or SYNSET.fullmatch(folder):
            found[folder].append(file)
        else:
            others.append(f'{folder}/{name}')
    if others:
        note(f'note: {path}: {len(others)} files that are no images of a synset are ignored, such as {others[0]}')
    if subset == 'train' and (loose := found.pop('', None)):
        note(f'note: {path}: {len(loose)} images in no folder of a synset are ignored')
    if not found:
        raise UserError(f'{path} holds no image' + (' in a folder or tar of a synset (n01440764 and so on)' if
                                                    subset == 'train' else ''))
    for files in found.values():
        files.sort(key=lambda file: os.path.basename(str(file)))
    return found


def _walk(path: str, subset: str) -> Iterator[tuple[str, str | Member]]:
    """Yields (folder or inner tar, image): of a tar of tars, a tar, a folder of tars, folders or images."""
    if os.path.isfile(path):
        if subset == 'train':
            yield from progress(members_of_inner_tars(path), COUNTS[subset], 'index', 'images')
        else:
            for member in progress(members_of(path), COUNTS[subset], 'index', 'images'):
                yield _folder_of(member), member
        return
    for entry in progress(_sorted_entries(path), None, subset, 'folders'):
        if entry.is_dir():
            for file in _sorted_entries(entry.path):
                yield entry.name, file.path
        elif entry.name.endswith('.tar'):
            for member in members_of(entry.path):
                yield entry.name.removesuffix('.tar'), member
        else:
            yield '', entry.path


def _folder_of(member: Member) -> str:
    folder = os.path.basename(os.path.dirname(member.path))
    return folder if SYNSET.fullmatch(folder) else ''  # Some pack the folder val around the images.


def _sorted_entries(folder: str) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f'cannot look into {folder}: {error.strerror}') from None


def _devkit(build: ImagenetConfig, needs_labels: bool) -> Devkit | None:
    """Reads the devkit if something is needed that no other file says."""
    given = build.validation_labels
    places = (given, os.path.dirname(os.path.dirname(given)), build.source)
    path = next(filter(None, map(imagenet_labels.find_devkit, places)), '')
    labels = _labels_file(build)
    if path and needs_labels and (not labels or _holds_ids(labels)):
        return imagenet_labels.read_devkit(path)
    if path and not _names_file(build):
        try:
            return imagenet_labels.read_devkit(path)
        except UserError as error:
            note(f'warning: {error}')
    return None


def _label(build: ImagenetConfig, origin: str, folders: dict, devkit: Devkit | None) -> dict[str, list]:
    """Returns {synset: images} of validation images that lie in no folders of synsets."""
    path = _labels_file(build) or (devkit.path if devkit else '')
    if not path:
        raise UserError(f'no file says the labels of the images in {origin}: put ILSVRC2012_devkit_t12.tar.gz, '
                        f'{imagenet_labels.KAGGLE_LABELS} or {imagenet_labels.LABELS_2016} into --source, or name one '
                        'by --validation_labels')
    if any(folders[name] for name in folders if name):
        raise UserError(f'{origin} holds images both in folders of synsets and beside them: move one part away')
    images = {stem(file): file for file in folders['']}
    labels = imagenet_labels.label_validation(path, tuple(images), devkit)
    note(f'validation: labels by {path}')
    found = collections.defaultdict(list)
    for name, file in images.items():
        found[labels[name]].append(file)
    return found


def _labels_file(build: ImagenetConfig) -> str:
    if path := build.validation_labels:
        if not os.path.exists(path):
            raise UserError(f'--validation_labels={path}: there is no such file')
        return '' if imagenet_labels.find_devkit(path) else path
    return _first(build, (imagenet_labels.LABELS_2016, imagenet_labels.KAGGLE_LABELS))


def _holds_ids(path: str) -> bool:
    try:
        with open(path, encoding='utf-8') as file:
            return file.readline().strip().isdigit()
    except (OSError, UnicodeDecodeError):
        return False  # The one who reads it says what is wrong.


def _names_file(build: ImagenetConfig) -> str:
    return build.imagenet_metadata_file or _first(build, (imagenet_labels.NAMES_2016, imagenet_labels.KAGGLE_NAMES))


def _names(build: ImagenetConfig, devkit: Devkit | None) -> dict[str, str]:
    path = _names_file(build)
    return (devkit.names if devkit else {}) | (imagenet_labels.read_names(path) if path else {})


def _synsets(build: ImagenetConfig, devkit: Devkit | None, names: dict[str, str], folders: dict) -> tuple[str, ...]:
    """Returns the synset of labels 1, 2, ...: by a file, or all that some file or folder tells of, sorted."""
    if build.labels_file:
        return tuple(imagenet_labels.read_synsets(build.labels_file))
    if listed := _first(build, (imagenet_labels.SYNSETS_2016,)):
        return tuple(imagenet_labels.read_synsets(listed))
    if devkit:
        return tuple(sorted(devkit.ids.values()))
    if path := _first(build, (imagenet_labels.KAGGLE_NAMES,)):
        return tuple(sorted(imagenet_labels.read_names(path)))
    if 'train' not in folders and len(folders['validation']) < 1000:
        note('warning: the labels are numbered by the classes of the validation images alone')
    return tuple(sorted(folders.get('train') or folders['validation']))


def _numbered(build: ImagenetConfig, subset: str, origin: str, folders: dict, synsets: tuple[str, ...]) -> list[Source]:
    """Returns (file, label), shuffled."""
    if extra := sorted(set(folders) - set(synsets)):
        if not build.labels_file:
            raise UserError(f'{origin} has images of {quoted(extra)}, which is none of the {len(synsets)} synsets')
        note(f'note: {subset}: --labels_file does not name these synsets, their images are left out: {quoted(extra)}')
    if empty := [synset for synset in synsets if synset not in folders]:
        note(f'warning: {subset}: no image of {quoted(empty)}; every class keeps its label')
    files = [(file, label) for label, synset in enumerate(synsets, start=1) for file in folders.get(synset, ())]
    if len(files) != COUNTS[subset]:
        note(f'note: {subset}: {len(files)} images, where ILSVRC2012 has {COUNTS[subset]}')
    if len(synsets) != 1000 and subset == 'train':
        note(f'note: {len(synsets)} classes, where ILSVRC2012 has 1000')
    return shuffled(files)


def _box_paths(build: ImagenetConfig) -> list[str]:
    if path := build.bounding_box_file:
        if not os.path.exists(path):
            raise UserError(f'--bounding_box_file={path}: there is no such file or folder')
        return [path]
    csv = _first(build, _BOXES[0])
    paths = [csv] if csv else [path for row in _BOXES[1:] if (path := _first(build, row))]
    if not paths:
        note('note: no bounding boxes are there (imagenet_2012_bounding_boxes.csv, Annotations, '
             'ILSVRC2012_bbox_train_v2.tar.gz): records have none')
    return paths


def _synset_of(validation: dict[str, list], synsets: Iterable[str]):
    """Returns a function from an image's name to its synset: train images have it in their names."""
    known = frozenset(synsets)
    of_validation = {stem(file): synset for synset, files in validation.items() for file in files}

    def synset_of(name: str) -> str:
        synset = of_validation.get(name) or name.partition('_')[0]
        return synset if synset in known else ''

    return synset_of


def _first(build: ImagenetConfig, names: Iterable[str]) -> str:
    """The path of the first that lies in --source; '' if none does."""
    there = (os.path.join(build.source, name) for name in names) if build.source else ()
    return next((path for path in there if os.path.exists(path)), '')
