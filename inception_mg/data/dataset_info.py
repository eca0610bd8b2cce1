"""What a folder of records holds: its classes, images and shards. Standard library only.

dataset.json is the one place where the number of classes and of images is written down: training,
evaluation and export read it, so that nobody edits a count in the code.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence

from inception_mg.data.parts import dealt_in_turn
from inception_mg.errors import FlagError, UserError
from inception_mg.files import exists, is_file, is_folder, names_in, read_text, write_text
from inception_mg.paths import made_up_classes

SUBSETS = ('train', 'validation')
DATASET_FILE = 'dataset.json'
LABELS_FILE = 'labels.txt'
BACKGROUND = 'background'
FORMAT, FORMAT_OF_OTHERS = 1, 2  # Of records as ours, and as others'. Files without a number are of 1.

_MAX_BYTES = 2**27
_DESCRIBE = 'scripts/build_image_data.py --describe --output_directory='


@dataclasses.dataclass(frozen=True)
class RecordKeys:
    """What the fields of a record are called; '' where it has none of the kind.

    first_label: the number that the record has for the first class, which is label 1 here.
    """

    encoded: str = 'image/encoded'
    label: str = 'image/class/label'
    text: str = 'image/class/text'
    filename: str = 'image/filename'
    first_label: int = 1


OURS = RecordKeys()


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """Names of the classes, and per subset ('train', 'validation') the numbers of images and shards.

    classes[k - 1] is the name of label k: label 0 is the background, which no image has. records: how others' records
    are to be read. stems: subset -> how the names of its files begin, where not with its own. shard_records: of each
    shard of a subset, where images were not dealt to the shards in turn.
    """

    classes: tuple[str, ...]
    counts: dict[str, int]
    shards: dict[str, int]
    records: RecordKeys = OURS
    stems: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shard_records: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def stem(self, subset: str) -> str:
        """What the names of a subset's shards begin with, for shard_paths."""
        return self.stems.get(subset, subset)

    @property
    def num_outputs(self) -> int:
        """Outputs of the classifier: one per class and one for the background, label 0."""
        return len(self.classes) + 1

    def class_name(self, label: int) -> str:
        """Returns the name of a label, 'background' for 0; raises IndexError outside 0..classes."""
        if not 0 <= label < self.num_outputs:
            raise IndexError(f'label {label} is not in 0..{len(self.classes)}')
        return self.classes[label - 1] if label else BACKGROUND

    def num_images(self, subset: str) -> int:
        """Returns the images of a subset; raises UserError if dataset.json does not know it."""
        if subset not in self.counts:
            raise UserError(f'{DATASET_FILE} lists no {subset} images, only: {_some(self.counts)}')
        return self.counts[subset]

    def records_of(self, subset: str, shards: int) -> Sequence[int]:
        """Returns the records of each shard of a subset, of which there are so many."""
        records = self.shard_records.get(subset, ())
        return records if len(records) == shards else dealt_in_turn(self.num_images(subset), shards)


def read_dataset_info(data_dir: str) -> DatasetInfo:
    """Reads data_dir/dataset.json, or says what made-up images (synthetic:1000) are of.

    Raises UserError if it is missing (says what is there and what to run) or is not what
    write_dataset_info wrote.
    """
    if number := made_up_classes(data_dir):
        return DatasetInfo(tuple(f'class {label}' for label in range(1, number + 1)), {'train': 1000 * number}, {})
    path = os.path.join(data_dir, DATASET_FILE)
    remedy = f'write it anew with {_DESCRIBE}{data_dir}'
    try:
        if exists(path) and not is_file(path):  # Opening a named pipe would wait for ever.
            raise UserError(f'{path} is no regular file: move it away and {remedy}')
        return _understand(read_text(path, _MAX_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f'{path} is missing ({_contents(data_dir)}): write records there with '
            f'scripts/build_image_data.py, or for records that are there run {_DESCRIBE}{data_dir}') from None
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise UserError(f'{path} is damaged ({reason}): {remedy}') from None


def _understand(text: str) -> DatasetInfo:
    """Turns the content of dataset.json into what it says; ValueError, or RecursionError, where that cannot be."""
    if not text.strip() or len(text) > _MAX_BYTES:
        raise ValueError('it is empty' if not text.strip() else 'it is too long')
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError('it holds no JSON object')
    if fields.get('format', FORMAT) not in (FORMAT, FORMAT_OF_OTHERS):
        raise ValueError(f'it has format {fields["format"]!r:.20}, this version reads {FORMAT} and {FORMAT_OF_OTHERS}')
    classes = fields.get('classes')
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) and name for name in classes):
        raise ValueError('its "classes" is no list of names')
    '\n'.join(classes).encode()  # A ValueError for half a character, which nothing could print.
    counts, shards = _numbers(fields, 'counts'), _numbers(fields, 'shards')
    return DatasetInfo(tuple(classes), counts, shards, _keys(fields.get('records', {})),
                       _stems(fields.get('stems', {})), _of_shards(fields.get('shard_records', {}), counts, shards))


def _of_shards(found: Mapping, counts: Mapping[str, int], shards: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    if not isinstance(found, dict) or not all(
            isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
            and (len(numbers), sum(numbers)) == (shards.get(subset), counts.get(subset))
            for subset, numbers in found.items()):
        raise ValueError('its "shard_records" are not those of each shard of a subset')
    return {subset: tuple(numbers) for subset, numbers in found.items()}


def _keys(found: Mapping) -> RecordKeys:
    if not isinstance(found, dict):
        raise ValueError('its "records" is no object')
    keys = RecordKeys(**{field.name: found.get(field.name, field.default) for field in dataclasses.fields(RecordKeys)})
    if any(type(getattr(keys, field.name)) is not field.type for field in dataclasses.fields(RecordKeys)):
        raise ValueError('its "records" has a name that is no text, or a first_label that is no whole number')
    if not keys.encoded or not keys.label or abs(keys.first_label) > 2**30:
        raise ValueError('its "records" names no field for the image or the label, or a first_label beyond 2**30')
    return keys


def _stems(found: Mapping) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(stem, str) and stem and '/' not in stem
                                              for stem in found.values()):
        raise ValueError('its "stems" is no list of beginnings of file names, one for each subset')
    return found


def _numbers(fields: Mapping, name: str) -> dict[str, int]:
    numbers = fields.get(name)
    if not isinstance(numbers, dict) or not all(type(number) is int and number >= 0 for number in numbers.values()):
        raise ValueError(f'its "{name}" is no list of numbers, one for each subset')
    return numbers


def write_dataset_info(data_dir: str, info: DatasetInfo) -> None:
    """Writes data_dir/dataset.json under a temporary name, then renames it: readers see old or new."""
    fields = {'format': FORMAT_OF_OTHERS, **dataclasses.asdict(info)}
    if (info.records, info.stems) == (OURS, {}):  # As older versions read it.
        fields = {**fields, 'format': FORMAT}
        del fields['records'], fields['stems']
    write_text(os.path.join(data_dir, DATASET_FILE), json.dumps(fields, indent=1, ensure_ascii=False) + '\n')


def shard_name(subset: str, shard: int, shards: int) -> str:
    """Returns a shard's file name, such as train-00000-of-00002."""
    return f'{subset}-{shard:05d}-of-{shards:05d}'


def existing_shards(data_dir: str, subset: str) -> list[str]:
    """Returns the sorted file names in a folder that look like shards of the subset, whole set or not. subset: or the
    stem of its files, as DatasetInfo.stem gives it."""
    try:
        names = names_in(data_dir)
    except OSError:
        return []
    return sorted(filter(re.compile(rf'{re.escape(subset)}-\d{{5}}-of-\d{{5}}').fullmatch, names))


def shard_paths(data_dir: str, subset: str) -> list[str]:
    """Returns the paths of all shards of a subset, named by it or by the stem of its files, sorted.

    Raises UserError if none is there, if one of the set is missing, or if shards of two sets are mixed; FlagError for
    made-up images, which are in no file.
    """
    if made_up_classes(data_dir):
        raise FlagError(f'--data_dir={data_dir} is images made up while training: here name a folder with {subset} '
                        'shards')
    names = existing_shards(data_dir, subset)
    pattern = os.path.join(data_dir, f'{subset}-?????-of-?????')
    if not names:
        raise UserError(f'no file matches {pattern} ({_contents(data_dir)}): name the folder that '
                        'scripts/build_image_data.py wrote')
    counts = sorted({int(name[-5:]) for name in names})
    if len(counts) > 1:
        raise UserError(f'{pattern}: shards of different sets are mixed (of {_some(counts)}): keep one set')
    whole = [shard_name(subset, shard, counts[0]) for shard in range(counts[0])]
    if missing := sorted(set(whole) - set(names)):
        raise UserError(f'{pattern}: {len(missing)} of {counts[0]} shards missing: {_some(missing)}')
    if extra := sorted(set(names) - set(whole)):
        raise UserError(f'{pattern}: shards beyond the last: {_some(extra)}')
    return [os.path.join(data_dir, name) for name in names]


def _contents(folder: str) -> str:
    if not folder:
        return 'no folder was named'
    try:
        if not is_folder(folder):
            return f'{folder} is {"not a folder" if exists(folder) else "not there"}'
        names = sorted(names_in(folder))
    except OSError as error:
        return f'cannot look into {folder}: {error.strerror}'
    return f'{folder} holds {_some(names)}' if names else f'{folder} is empty'


def _some(items) -> str:
    items = [str(item) for item in items]
    more = f' and {len(items) - 5} more' if len(items) > 5 else ''
    return ', '.join(items[:5]) + more if items else 'none'
