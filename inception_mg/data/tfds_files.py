"""Records that TensorFlow Datasets (tfds) wrote, and the files by which it reads ours. Standard library only.

tfds writes NAME-SPLIT.tfrecord-00000-of-00008, of which features.json names the fields, LABEL.labels.txt the classes
in the order of their labels, from 0, and dataset_info.json the splits and the number of records in each shard.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inception_mg.data.class_folders import read_class_names
from inception_mg.data.dataset_info import DatasetInfo, RecordKeys
from inception_mg.errors import UserError
from inception_mg.files import exists, is_folder, names_in, read_text, size_of, write_text

FEATURES_FILE, INFO_FILE = 'features.json', 'dataset_info.json'
VALIDATION_SPLITS = ('validation', 'val', 'valid', 'test')  # The first of them that is there serves as ours.
_SHARD = re.compile(r'((?:.+-)?([^-/]+)\.tfrecord)-\d{5}-of-\d{5}')
_LIMIT = 2**26  # Bytes of such a file.
_FILE_NAMES = ('file_name', 'filename', 'image/filename', 'image/file_name')  # What data sets call that of an image.
_PLACE = 'tensorflow_datasets.core.features.'
_CLASS = 'pythonClassName'


class Others(NamedTuple):
    """stems: our subset -> what its files begin with. lengths: subset -> records in each shard, where that is said.
    unread: splits that are neither training nor validation. classes: their names, () where nothing names them."""

    stems: dict[str, str]
    lengths: dict[str, list[int]]
    unread: list[str]
    keys: RecordKeys
    classes: tuple[str, ...]


def find_others(folder: str) -> Others | None:
    """What a folder holds of tfds; None where nothing in it is. UserError for what is there but cannot be read here."""
    try:
        names = names_in(folder)
    except OSError:
        return None
    found = {match[2]: match[1] for match in map(_SHARD.fullmatch, names) if match}
    if not found:
        return _refuse(folder, names)
    described = _read(os.path.join(folder, INFO_FILE))
    keys, count = _keys(folder)
    validation = next((split for split in VALIDATION_SPLITS if split in found), '')
    splits = {'train': 'train' if 'train' in found else '', 'validation': validation}
    splits = {subset: split for subset, split in splits.items() if split}
    if not splits:
        raise UserError(f'{folder} holds none of the splits train, {", ".join(VALIDATION_SPLITS)}, only '
                        f'{", ".join(sorted(found))}: give one of these names to its files')
    return Others({subset: found[split] for subset, split in splits.items()},
                  {subset: _lengths(described, split) for subset, split in splits.items()},
                  sorted(set(found) - set(splits.values())), keys, _classes(folder, keys.label, count))


def _refuse(folder: str, names: Sequence[str]) -> None:
    """Of a folder without a shard of tfds: UserError where it is one of its folders all the same."""
    versions = sorted(name for name in names if re.fullmatch(r'\d+\.\d+\.\d+', name))
    if versions and is_folder(os.path.join(folder, versions[-1])):
        raise UserError(f'{folder} holds versions of a tfds data set: name one, such as '
                        f'{os.path.join(folder, versions[-1])}')
    kind = str(_read(os.path.join(folder, INFO_FILE)).get('fileFormat', 'tfrecord'))
    if kind != 'tfrecord' and exists(os.path.join(folder, FEATURES_FILE)):
        raise UserError(f'{folder} holds files of the format {kind}, which TensorFlow does not read: write it with '
                        "tfds.load(..., builder_kwargs={'file_format': 'tfrecord'})")


def _read(path: str) -> dict:
    """The object in a file; {} where it is not there."""
    try:
        found = json.loads(read_text(path, _LIMIT)) if exists(path) else {}
        if not isinstance(found, dict):
            raise ValueError('it holds no JSON object')
        return found
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from None
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path} is damaged ({error}): write the data set again with tfds') from None


def _keys(folder: str) -> tuple[RecordKeys, int]:
    """The names of the fields, and the number of classes; 0 where nothing says it."""
    path = os.path.join(folder, FEATURES_FILE)
    features = _flat(_read(path))
    if not features:
        return RecordKeys('image', 'label', '', '', 0), 0
    image = _only(path, 'Image', 'image', [name for name, one in features.items() if _is(one, 'Image')])
    label = _only(path, 'ClassLabel', 'label', [name for name, one in features.items() if _is(one, 'ClassLabel')])
    kind = str(_within(features[image], 'image').get('dtype', 'uint8'))
    if kind != 'uint8':
        raise UserError(f'{path}: the image {image!r} has pixels of {kind}, and only uint8 is read here')
    texts = [name for name in _FILE_NAMES if _is(features.get(name, {}), 'Text')]
    count = str(_within(features[label], 'classLabel').get('numClasses', 0))
    return RecordKeys(image, label, '', texts[0] if texts else '', 0), int(count) if count.isdecimal() else 0


def _flat(feature: Mapping, name: str = '') -> dict[str, Mapping]:
    """Name in the record -> description, of all fields that are not lists of others."""
    inner = _within(_within(feature, 'featuresDict'), 'features')
    if not inner:
        return {name: feature} if name else {}
    found = {}
    for key, one in inner.items():
        found.update(_flat(one if isinstance(one, dict) else {}, f'{name}/{key}' if name else key))
    return found


def _within(fields: Mapping, name: str) -> Mapping:
    inner = fields.get(name)
    return inner if isinstance(inner, dict) else {}


def _is(feature: Mapping, kind: str) -> bool:
    return str(feature.get(_CLASS, '')).rpartition('.')[2] == kind


def _only(path: str, kind: str, usual: str, names: Sequence[str]) -> str:
    if usual in names or len(names) == 1:
        return usual if usual in names else names[0]
    there = f' ({", ".join(names[:5])})' if names else ''
    raise UserError(f'{path} has {len(names)} fields of kind {kind}{there}: records of one image and one class are '
                    'read here')


def _lengths(described: Mapping, split: str) -> list[int]:
    splits = described.get('splits')
    for one in splits if isinstance(splits, list) else ():
        if isinstance(one, dict) and one.get('name') == split and isinstance(one.get('shardLengths'), list):
            return [int(length) for length in one['shardLengths'] if str(length).isdecimal()]
    return []


def _classes(folder: str, label: str, count: int) -> tuple[str, ...]:
    # Fields within others are joined by '-', and a '/' in a name becomes a dot.
    for name in dict.fromkeys((label.replace('/', '-'), label.replace('/', '.'))):
        path = os.path.join(folder, f'{name}.labels.txt')
        if exists(path):
            return tuple(read_class_names(path))
    return tuple(f'class {number}' for number in range(count))


def write_for_tfds(folder: str, info: DatasetInfo, lengths: Mapping[str, Sequence[int]]) -> None:
    """Writes the files by which tfds.builder_from_directory reads our shards in a folder.

    lengths: subset -> records in each shard. Label 0 is named 'background', as there. UserError where that cannot be.
    """
    keys = info.records
    image = {'dtype': 'uint8', 'encodingFormat': 'jpeg', 'shape': {'dimensions': ['-1', '-1', '3']}}
    features = {
        keys.encoded: {_CLASS: f'{_PLACE}image_feature.Image', 'image': image},
        keys.label: {_CLASS: f'{_PLACE}class_label_feature.ClassLabel',
                     'classLabel': {'numClasses': str(info.num_outputs)}},
        keys.filename: {_CLASS: f'{_PLACE}text_feature.Text', 'text': {}},
        keys.text: {_CLASS: f'{_PLACE}text_feature.Text', 'text': {}}}
    splits = [{'name': subset, 'filepathTemplate': '{SPLIT}-{SHARD_X_OF_Y}', 'numBytes': str(sum(
        size_of(os.path.join(folder, f'{subset}-{shard:05d}-of-{len(counts):05d}')) for shard in range(len(counts)))),
        'shardLengths': [str(count) for count in counts]} for subset, counts in lengths.items()]
    described = {'name': 'records', 'version': '1.0.0', 'fileFormat': 'tfrecord', 'splits': splits,
                 'supervisedKeys': {'tuple': {'items': [{'featureKey': keys.encoded}, {'featureKey': keys.label}]}}}
    for name, fields in ((FEATURES_FILE, {_CLASS: f'{_PLACE}features_dict.FeaturesDict',
                                          'featuresDict': {'features': features}}), (INFO_FILE, described)):
        write_text(os.path.join(folder, name), json.dumps(fields, indent=1) + '\n')
    names = [info.class_name(label) for label in range(info.num_outputs)]
    write_text(os.path.join(folder, keys.label.replace('/', '.') + '.labels.txt'), '\n'.join(names) + '\n')
