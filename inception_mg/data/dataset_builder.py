"""Images of classes to shards of records.

Labels are 1..N in the order of the classes; 0 is the background. Images are shuffled (sources),
converted by several processes and dealt to the shards in turn, so that shards differ by one image at
most, and the bytes written depend on nothing but the files and the settings. Shards are written in a
hidden folder and renamed when all are whole, dataset.json last; nothing that is there is overwritten.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from inception_mg.config import BuildConfig
from inception_mg.data.class_folders import read_class_names
from inception_mg.data.dataset_info import (
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
from inception_mg.data.sources import Source, find_sources, needs_copy
from inception_mg.errors import UserError

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
    """Writes the shards of the subsets that are given, labels.txt and dataset.json.

    Raises UserError, with nothing put in place, for folders and classes that do not fit together, for
    shards that are there already, and in 'fail' mode for the first unreadable file.
    """
    output = build.output_directory
    known = read_dataset_info(output) if os.path.exists(os.path.join(output, DATASET_FILE)) else None
    with contextlib.ExitStack() as stack:
        copies = stack.enter_context(_scratch_folder(output)) if needs_copy(build) else ''
        classes, files, origins = find_sources(build, known, copies)
        check_output(output, files, classes, known, copies)
        for subset, sources in files.items():
            check_number(subset, origins[subset], len(sources), _num_shards(build, subset))
        scratch = stack.enter_context(_scratch_folder(output))
        reports = [_write_subset(scratch, subset, sources, classes, build) for subset, sources in files.items()]
        put_in_place(scratch, output, merged_info(known, classes, reports), sorted(os.listdir(scratch)))
    return reports


def check_output(output: str, subsets: Iterable[str], classes: tuple[str, ...], known: DatasetInfo | None,
                 own: str = '') -> None:
    """Raises UserError if the output folder holds shards of a subset to be written, or other classes.

    own: a scratch folder in it that is not of another run.
    """
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
        if name.startswith(_SCRATCH_PREFIX) and name != os.path.basename(own):
            note(f'note: {os.path.join(output, name)} is of another run: if that was interrupted, delete it')


def _difference(there: Sequence[str], here: Sequence[str]) -> str:
    for label, (old, new) in enumerate(zip(there, here, strict=False), start=1):
        if old != new:
            return f'label {label} is {old!r} there and {new!r} here'
    return f'{len(there)} there and {len(here)} here'


def check_number(subset: str, origin: str, files: int, shards: int) -> None:
    """Raises UserError if a subset has no file, or fewer than shards."""
    if not files:
        raise UserError(f'{origin} holds no file for {subset} in any folder of a class')
    if shards > files:
        raise UserError(f'--{subset}_shards={shards} is more than the {files} files of {origin}')


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


def _write_subset(scratch: str, subset: str, sources: list[Source], classes: tuple[str, ...],
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
            for file, label, outcome in outcomes:
                path = str(file)
                if outcome.jpeg is None:
                    refuse_or_note(path, outcome.reason, build.on_bad_image)
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


def _outcomes(subset: str, sources: list[Source], build: BuildConfig) -> Iterator[tuple]:
    """Yields (file, label, Converted) of every source, in order."""
    converted = convert_files([path for path, _ in sources], build.jpeg_quality, build.num_threads)
    with contextlib.closing(converted):  # Ends the processes at once when the loop outside fails.
        shown = progress(converted, len(sources), subset, 'images')
        for (file, label), outcome in zip(sources, shown, strict=True):
            yield file, label, outcome


def refuse_or_note(path: str, reason: str, on_bad_image: str) -> None:
    """Says that a file is skipped; in 'fail' mode raises UserError."""
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


def merged_info(known: DatasetInfo | None, classes: tuple[str, ...], reports: list[SubsetReport]) -> DatasetInfo:
    """Returns what dataset.json is to say: of the records already there and the new ones."""
    counts = {report.subset: report.images for report in reports}
    shards = {report.subset: report.shards for report in reports}
    if known:
        counts, shards = known.counts | counts, known.shards | shards
    return DatasetInfo(classes, counts, shards)


def put_in_place(scratch: str, output: str, info: DatasetInfo, shards: Sequence[str]) -> None:
    """Renames the finished shards into the output folder, with labels.txt, dataset.json last: all of them or none."""
    placed = []
    try:
        if not os.path.exists(os.path.join(output, LABELS_FILE)):
            with open(os.path.join(scratch, LABELS_FILE), 'w', encoding='utf-8', newline='\n') as file:
                # Line k is the class of label k; the background, label 0, has no line.
                file.writelines(f'{name}\n' for name in info.classes)
        labels = [LABELS_FILE] if os.path.exists(os.path.join(scratch, LABELS_FILE)) else []
        for name in (*shards, *labels):
            target = os.path.join(output, name)
            if os.path.lexists(target):
                raise UserError(f'{target} appeared during this run: name another --output_directory')
            os.rename(os.path.join(scratch, name), target)
            placed.append(target)
        write_dataset_info(output, info)
    except BaseException as error:
        for target in placed:
            os.replace(target, os.path.join(scratch, os.path.basename(target)))
        if isinstance(error, OSError):
            raise UserError(f'cannot write to {output}: {error.strerror}') from None
        raise
