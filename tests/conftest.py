"""Shared by all tests: quiet TensorFlow, the repository on the path, and a tiny world of images."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
for path in (ROOT, ROOT / 'scripts'):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from PIL import Image  # noqa: E402

from inception_mg import tf_environment  # noqa: E402
from inception_mg.config import BuildConfig  # noqa: E402

os.environ.update(tf_environment.DEFAULTS | os.environ)  # Before any test imports TensorFlow.

COLOURS = {'blue': (40, 60, 200), 'green': (50, 190, 60), 'red': (210, 50, 40)}


def make_images(folder: pathlib.Path, per_class: int, colours: dict, seed: int) -> None:
    """Writes `per_class` noisy 80 x 80 images of one colour per class."""
    random = np.random.RandomState(seed)
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = np.array(colour) + random.randint(-30, 30, (80, 80, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(folder / name / f'{name}_{seed}_{number}.jpg')


def make_records(folder: pathlib.Path, colours: dict, train: int = 8, validation: int = 3) -> str:
    """Makes images and records of them, in 2 training shards and 1 validation shard; returns the folder."""
    from inception_mg.data.dataset_builder import build_dataset
    make_images(folder / 'images' / 'train', train, colours, seed=1)
    make_images(folder / 'images' / 'validation', validation, colours, seed=2)
    records = folder / 'records'
    records.mkdir()
    build_dataset(BuildConfig(train_directory=str(folder / 'images' / 'train'),
                              validation_directory=str(folder / 'images' / 'validation'),
                              output_directory=str(records), train_shards=2, validation_shards=1, num_threads=1))
    return str(records)


@pytest.fixture(scope='session')
def three_classes(tmp_path_factory) -> str:
    """Records of 24 training and 9 validation images of 3 classes."""
    return make_records(tmp_path_factory.mktemp('three_classes'), COLOURS)


@pytest.fixture(scope='session')
def two_classes(tmp_path_factory) -> str:
    """Records of 2 classes only."""
    return make_records(tmp_path_factory.mktemp('two_classes'), {n: COLOURS[n] for n in ('blue', 'red')})


@pytest.fixture(scope='session')
def small_model(three_classes, tmp_path_factory) -> str:
    """A train_dir as after a training on three_classes: model.json and model.ckpt-6. Nobody writes in it."""
    from trained_model import write_model
    folder = str(tmp_path_factory.mktemp('small_model'))
    write_model(three_classes, folder)
    return folder


@pytest.fixture(scope='session')
def small_export(small_model, tmp_path_factory) -> str:
    """The SavedModel of small_model. Nobody writes in it."""
    from inception_mg.config import DataConfig, ExportConfig, ModelConfig
    from inception_mg.serving.export import export
    folder = str(tmp_path_factory.mktemp('small_export') / 'model')
    return export(DataConfig(), ModelConfig(), ExportConfig(checkpoint_dir=small_model, export_dir=folder),
                  lambda line: None, chosen=())


def pytest_sessionfinish(session) -> None:
    """Under pytest-xdist: gives what this process recorded to the one that prints the table."""
    import cluster_harness
    if hasattr(session.config, 'workeroutput'):
        session.config.workeroutput['deaths'] = [list(row) for row in cluster_harness.TABLE]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """The other end of it; a process that crashed has nothing to give."""
    import cluster_harness
    cluster_harness.TABLE.extend(tuple(row) for row in getattr(node, 'workeroutput', {}).get('deaths', ()))


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints the table of deaths that cluster tests recorded, if any ran."""
    import cluster_harness
    for line in cluster_harness.table_lines():
        terminalreporter.write_line(line)
