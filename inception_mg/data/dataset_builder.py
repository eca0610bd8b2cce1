"""Folders of images, one per class, to shards of records.

Labels are 1..N in the order of the classes; 0 is the background. Images are shuffled with the 2016 seed,
converted by several processes and dealt to the shards in turn, so that shards differ by one image at
most, and the bytes written depend on nothing but the files and the settings. Shards are written in a
hidden folder and renamed when all are whole, dataset.json last; nothing that is there is overwritten.
"""

import contextlib
import dataclasses
import os
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow as tf

from inception_mg.config import BuildConfig
from inception_mg.data.class_folders import ClassFolders, find_classes, quoted, read_class_names
from inception_mg.data.dataset_info import (
    BACKGROUND,
    DATASET_FILE,
    LABELS_FILE,
    DatasetInfo,
    existing_shards,
    read_dataset_info,
    shard_name,
    write_dataset_info,
)
from inception_mg.data.example import build_example
from inception_mg.data.images import convert_files, count_kinds
from inception_mg.data.progress import note, printable, progress
from inception_mg.errors import UserError

_SHUFFLE_SEED = 12345  # As in the 2016 release.
_FRAMING = 16  # Bytes around each record in a TFRecord file: its length and two checksums.
_SCRATCH_PREFIX = '.building-'


@dataclasses.dataclass(frozen=True)
class SubsetReport:
    """What was written of one subset; `skipped` holds (path, reason) of each unreadable file, `kinds` how many there
    are of which kind."""

    subset: str
    images: int
    classes: int  # with at least one image
    shards: int
    bytes: int
    skipped: tuple[tuple[str, str], ...]
    kinds: str


def build_dataset(build: BuildConfig) -> list[SubsetReport]:
    """Writes the shards of the subsets whose folders are given, labels.txt and dataset.json.

    Raises UserError, with nothing put in place, for folders and classes that do not fit together, for
    shards that are there already, and in 'fail' mode for the first unreadable file.
    """
    output = build.output_directory
    directories = _directories(build)
    known = read_dataset_info(output) if os.path.exists(os.path.join(output, DATASET_FILE)) else None
    listed = _classes_of_file(build.labels_file) if build.labels_file else ()
    found = {subset: find_classes(directory, listed) for subset, directory in directories.items()}
    if build.labels_file:
        listed = _without_background(build.labels_file, listed, next(iter(found.values())))
    classes = listed or _classes_of_folders(found, known, build)
    _check_output(output, directories, classes, known)
    sources = {}
    for subset, directory in directories.items():
        _say_left_out(subset, found[subset])
        folders = _matching_folders(subset, directories, found, classes, build.labels_file)
        sources[subset] = _labelled_files(subset, folders, classes)
        _check_number(subset, directory, len(sources[subset]), _num_shards(build, subset))
    with _scratch_folder(output) as scratch:
        reports = [_write_subset(scratch, subset, sources[subset], classes, build) for subset in directories]
        _put_in_place(scratch, output, _merged(known, classes, reports))
    return reports


def _directories(build: BuildConfig) -> dict[str, str]:
    """Returns {subset: directory} of those given, after checking that none lies inside another."""
    both = {'train': build.train_directory, 'validation': build.validation_directory}
    given = {subset: directory for subset, directory in both.items() if directory}
    for subset, directory in given.items():
        if not os.path.isdir(directory):
            raise UserError(f'--{subset}_directory={directory}: there is no such folder')
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


def _classes_of_file(path: str) -> tuple[str, ...]:
    names = read_class_names(path)
    if not names:
        raise UserError(f'--labels_file={path} names no class')
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f'--labels_file={path} names {quoted(twice)} more than once: keep one line each')
    return tuple(names)


def _without_background(path: str, names: tuple[str, ...], first: ClassFolders) -> tuple[str, ...]:
    if names[0] != BACKGROUND or BACKGROUND in first.classes:
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
    only_folders = all(not any(os.path.dirname(path) == os.path.dirname(below.folders[0]) for path in below.files)
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


def _check_output(output: str, subsets: Iterable[str], classes: tuple[str, ...],
                  known: DatasetInfo | None) -> None:
    """Raises UserError if the output folder holds shards of a subset to be written, or other classes."""
    for subset in subsets:
        if there := existing_shards(output, subset):
            raise UserError(f'{output} already holds {there[0]}: name another --output_directory, or move '
                            f'the {subset} shards away')
    labels_path = os.path.join(output, LABELS_FILE)
    listed = {DATASET_FILE: known.classes} if known else {}
    if os.path.exists(labels_path):
        listed[LABELS_FILE] = tuple(read_class_names(labels_path))
    for file, others in listed.items():
        if others != classes:
            raise UserError(f'{os.path.join(output, file)} lists other classes '
                            f'({_difference(others, classes)}): name another --output_directory, or move '
                            'that file away')
    for name in sorted(os.listdir(output)) if os.path.isdir(output) else ():
        if name.startswith(_SCRATCH_PREFIX):
            note(f'note: {os.path.join(output, name)} is of another run: if that was interrupted, delete it')


def _difference(there: Sequence[str], here: Sequence[str]) -> str:
    for label, (old, new) in enumerate(zip(there, here, strict=False), start=1):
        if old != new:
            return f'label {label} is {old!r} there and {new!r} here'
    return f'{len(there)} there and {len(here)} here'


def _matching_folders(subset: str, directories: Mapping[str, str], found: Mapping[str, ClassFolders],
                      classes: tuple[str, ...], labels_file: str) -> dict[str, list[str]]:
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


def _labelled_files(subset: str, folders: dict[str, list[str]], classes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Returns (path, label) of every file of the classes, shuffled."""
    files = [folders.get(name, []) for name in classes]
    if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
        note(f'warning: {subset}: no image of {quoted(empty)}; every class keeps its label')
    sources = [(path, label) for label, found in enumerate(files, start=1) for path in found]
    random.Random(_SHUFFLE_SEED).shuffle(sources)
    return sources


def _check_number(subset: str, directory: str, files: int, shards: int) -> None:
    if not files:
        raise UserError(f'--{subset}_directory={directory} holds no file in any folder of a class')
    if shards > files:
        raise UserError(f'--{subset}_shards={shards} is more than the {files} files of {directory}')


def _num_shards(build: BuildConfig, subset: str) -> int:
    return {'train': build.train_shards, 'validation': build.validation_shards}[subset]


@contextlib.contextmanager
def _scratch_folder(output: str) -> Iterator[str]:
    """A hidden folder inside the output folder, removed with what is left in it, whatever happens."""
    try:
        os.makedirs(output, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=output)
    except OSError as error:
        raise UserError(f'cannot write to --output_directory={output}: {error.strerror}') from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_subset(scratch: str, subset: str, sources: list[tuple[str, int]], classes: tuple[str, ...],
                  build: BuildConfig) -> SubsetReport:
    """Converts the images of one subset and writes its shards into the scratch folder."""
    shards = _num_shards(build, subset)
    paths = [os.path.join(scratch, shard_name(subset, shard, shards)) for shard in range(shards)]
    _allow_open_files(subset, shards)
    sizes, labels, skipped, kinds = [0] * shards, [], [], []
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in paths]
            outcomes = stack.enter_context(contextlib.closing(_outcomes(subset, sources, build)))
            for path, label, outcome in outcomes:
                if outcome.jpeg is None:
                    _refuse_or_note(path, outcome.reason, build.on_bad_image)
                    skipped.append((path, outcome.reason))
                    kinds.append(outcome.kind)
                    continue
                record = build_example(*outcome.jpeg, label=label, text=classes[label - 1], filename=path)
                shard = len(labels) % shards  # Dealt in turn, so that bad files leave no shard short.
                writers[shard].write(record)
                sizes[shard] += len(record) + _FRAMING
                labels.append(label)
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f'cannot write to {build.output_directory}: {" ".join(str(error).split())}') from None
    if len(labels) < shards:
        raise UserError(f'of {len(sources)} files for {subset} only {len(labels)} are readable images ('
                        f'{count_kinds(kinds)} skipped), fewer than --{subset}_shards={shards}: nothing was written')
    _check_sizes(paths, sizes)
    return SubsetReport(subset, len(labels), len(set(labels)), shards, sum(sizes), tuple(skipped), count_kinds(kinds))


def _outcomes(subset: str, sources: list[tuple[str, int]], build: BuildConfig) -> Iterator[tuple]:
    """Yields (path, label, Converted) of every source, in order."""
    converted = convert_files([path for path, _ in sources], build.jpeg_quality, build.num_threads)
    with contextlib.closing(converted):  # Ends the processes at once when the loop outside fails.
        shown = progress(converted, len(sources), subset, 'images')
        for (path, label), outcome in zip(sources, shown, strict=True):
            yield path, label, outcome


def _refuse_or_note(path: str, reason: str, on_bad_image: str) -> None:
    if on_bad_image == 'fail':
        raise UserError(f'{printable(path)}: {reason} (with --on_bad_image=fail nothing was written)')
    note(f'skipped {path}: {reason}')


def _allow_open_files(subset: str, shards: int) -> None:
    """Asks the system to allow all shards of a subset to be open at once."""
    try:
        import resource  # Unix only; elsewhere the limit is in the thousands.
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = shards + 256  # Beside the shards: libraries, images, pipes to the processes.
    if resource.RLIM_INFINITY != hard < needed:
        raise UserError(f'--{subset}_shards={shards} needs {needed} open files, but the system allows {hard} '
                        '(ulimit -Hn): use fewer shards')
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_sizes(paths: list[str], sizes: list[int]) -> None:
    """The report is true only if every byte reached the disk."""
    for path, size in zip(paths, sizes, strict=True):
        if os.path.getsize(path) != size:
            raise UserError(f'{path} has {os.path.getsize(path)} bytes instead of {size}: is the disk full?')


def _merged(known: DatasetInfo | None, classes: tuple[str, ...], reports: list[SubsetReport]) -> DatasetInfo:
    counts = {report.subset: report.images for report in reports}
    shards = {report.subset: report.shards for report in reports}
    if known:
        counts, shards = known.counts | counts, known.shards | shards
    return DatasetInfo(classes, counts, shards)


def _put_in_place(scratch: str, output: str, info: DatasetInfo) -> None:
    """Renames the finished files into the output folder, dataset.json last: all of them or none."""
    placed = []
    try:
        if not os.path.exists(os.path.join(output, LABELS_FILE)):
            with open(os.path.join(scratch, LABELS_FILE), 'w', encoding='utf-8', newline='\n') as file:
                # Line k is the class of label k; the background, label 0, has no line.
                file.writelines(f'{name}\n' for name in info.classes)
        for name in sorted(os.listdir(scratch), key=lambda name: (name == LABELS_FILE, name)):
            target = os.path.join(output, name)
            if os.path.lexists(target):
                raise UserError(f'{target} appeared during this run: name another --output_directory')
            os.rename(os.path.join(scratch, name), target)
            placed.append(target)
        write_dataset_info(output, info)
    except BaseException as error:
        for target in placed:
            os.remove(target)
        if isinstance(error, OSError):
            raise UserError(f'cannot write to {output}: {error.strerror}') from None
        raise
