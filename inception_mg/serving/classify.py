"""The classes that an exported model sees in image files.

Every file is read as scripts/build_image_data.py reads it (type by content, CMYK, transparency, EXIF orientation, ...)
and then as evaluation does, so a file gets the probabilities that it would get as a record.
"""

import concurrent.futures
import glob
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import BuildConfig, ClassifyConfig
from inception_mg.data.class_folders import find_below
from inception_mg.data.dataset_info import LABELS_FILE
from inception_mg.data.images import convert_files
from inception_mg.data.progress import printable
from inception_mg.errors import FlagError, UserError
from inception_mg.files import exists, is_file, read_text
from inception_mg.reasons import reason_of

v1 = tf.compat.v1


class Guess(NamedTuple):
    """A class and its probability."""

    name: str
    probability: float


class Classified(NamedTuple):
    """What became of one file: its best classes, the most probable first, or () and the reason."""

    path: str
    best: tuple[Guess, ...]
    error: str = ''
    kind: str = ''  # Of a file that could not be read, for counting.

    def line(self) -> str:
        """For the screen."""
        best = ', '.join(f'{name} {share:.4f}' for name, share in self.best)
        return f'{printable(self.path)}: {self.error or best}'

    def as_json(self) -> str:
        """One JSON object on one line, in ASCII: what a screen makes of a letter that it cannot show is no JSON."""
        rest = {'error': self.error} if self.error else {'classes': [guess._asdict() for guess in self.best]}
        return json.dumps({'file': self.path, **rest})


class Found(NamedTuple):
    """Files to classify, and arguments that stand for none, each with its reason."""

    paths: list[str]
    missing: list[Classified]


def find_files(arguments: Sequence[str]) -> Found:
    """Files as they are, all files below folders, and what matches patterns such as 'photos/**/*.jpg', each once."""
    paths, missing = [], []
    for argument in arguments:
        if os.path.isdir(argument):
            found = find_below(argument).files
        elif os.path.lexists(argument):
            found = [argument]
        else:
            found = sorted(path for path in glob.glob(argument, recursive=True) if not os.path.isdir(path))
        paths += found
        if not found:
            why = 'no file in it' if os.path.isdir(argument) else (
                'matches no file' if glob.has_magic(argument) else 'no such file or folder')
            missing.append(Classified(argument, (), why, 'not there'))
    return Found(list(dict.fromkeys(paths)), missing)


def classify(export_dir: str, paths: Sequence[str], config: ClassifyConfig) -> Iterator[Classified]:
    """Yields the outcome of each file in the order of `paths`; a file that cannot be read is an outcome too.

    Memory holds two batches of files: one is read while the model has the other. Raises UserError if export_dir is not
    what scripts/export.py writes.
    """
    with Classifier(export_dir) as classifier:
        outcomes = zip(paths, convert_files(paths, BuildConfig.jpeg_quality, config.num_threads), strict=True)
        batches = iter(lambda: list(itertools.islice(outcomes, config.batch_size)), [])
        for batch in _one_ahead(batches):
            good = [converted.jpeg.data for _, converted in batch if converted.jpeg]
            guesses = iter(classifier.best(good, config.top_k) if good else [])
            for path, converted in batch:
                yield Classified(path, next(guesses)) if converted.jpeg else Classified(
                    path, (), converted.reason, converted.kind)


def _one_ahead(items: Iterator) -> Iterator:
    """Yields the items while a thread is getting the next one."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


class Classifier:
    """An exported SavedModel in a session of its own; a context manager.

    The model is run as it is: it is a program, so take it from nobody whom you would not let run one.
    """

    def __init__(self, export_dir: str):
        self._labels = _read_labels(export_dir)
        with tf.Graph().as_default() as graph:
            self._session = v1.Session(graph=graph, config=v1.ConfigProto(
                gpu_options=v1.GPUOptions(allow_growth=True), allow_soft_placement=True))
            try:
                loaded = v1.saved_model.load(self._session, [v1.saved_model.SERVING], export_dir)
                signature = loaded.signature_def[v1.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
                self._image_bytes = signature.inputs['image_bytes'].name
                self._probabilities = signature.outputs['probabilities'].name
                outputs = graph.get_tensor_by_name(self._probabilities).shape[-1]
            except (tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError) as error:
                raise UserError(f'cannot load the model in {export_dir}: {reason_of(error)}') from error
        if outputs not in (None, len(self._labels)):
            raise UserError(f'{os.path.join(export_dir, "assets", LABELS_FILE)} names {len(self._labels)} outputs, the '
                            f'model has {outputs}: export it anew with scripts/export.py')

    def __enter__(self) -> 'Classifier':
        return self

    def __exit__(self, *error) -> None:
        self._session.close()

    def best(self, encoded: Sequence[bytes], top_k: int) -> list[tuple[Guess, ...]]:
        """The most probable classes of each encoded image, at most `top_k`."""
        probabilities_v = self._session.run(self._probabilities, {self._image_bytes: list(encoded)})
        return [tuple(Guess(self._labels[label], float(row[label])) for label in (-row).argsort(kind='stable')[:top_k])
                for row in probabilities_v]


def _read_labels(export_dir: str) -> list[str]:
    if not is_file(os.path.join(export_dir, 'saved_model.pb')):
        what = 'is not there' if not exists(export_dir) else 'holds no saved_model.pb'
        raise FlagError(f'{export_dir} {what}: the first argument is a folder that scripts/export.py wrote with '
                        '--format=saved_model')
    path = os.path.join(export_dir, 'assets', LABELS_FILE)
    try:
        return read_text(path).split('\n')[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'cannot read {path}: {error}') from None
