"""The order of the files: each imports only from floors below its own, and absl stays in scripts/."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
STANDARD_ONLY = {'inception_mg/config.py', 'inception_mg/placement.py', 'inception_mg/errors.py',
                 'inception_mg/checks.py', 'inception_mg/files.py', 'inception_mg/model_card.py',
                 'inception_mg/run_state.py',
                 'inception_mg/data/dataset_info.py'}
GONE = ('v1.layers.', 'v1.keras', 'v1.estimator', 'tf.contrib', 'tf_slim', 'tf.keras', 'import keras')
MEASURES_KERAS = 'benchmark_peers.py'  # Runs what others offer beside ours, so it alone may import it.


def floor_of(module: str) -> int:
    """Floor of a module by its dotted name; 0 for modules that are not of this project."""
    first = module.split('.')[0]
    if first in ('scripts', 'tests', 'common', 'conftest'):
        return 5
    if first == 'dist':
        return 4
    if first != 'inception_mg':
        return 0
    parts = module.split('.')
    if len(parts) == 1:
        return 1
    floors = {'files': 1, 'model_card': 2, 'run_state': 2,
              'config': 1, 'placement': 1, 'errors': 1, 'checks': 1, 'data': 2, 'model': 2, 'report': 2, 'training': 3}
    return floors.get(parts[1], 4)


def imports_of(path: pathlib.Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f'{node.module}.{alias.name}' for alias in node.names}
    return found


def name_of(path: pathlib.Path) -> str:
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


FILES = sorted([*ROOT.glob('inception_mg/**/*.py'), *ROOT.glob('dist/**/*.py')])


def wrong_arrows(name: str, imports: set[str]) -> list[str]:
    """The imports that point upwards, or across where that is not allowed."""
    wrong = [target for target in imports if floor_of(target) > floor_of(name)]
    if name.startswith('inception_mg'):
        wrong += [target for target in imports if target.split('.')[0] == 'dist']
    for one, other in (('inception_mg.data', 'inception_mg.model'), ('inception_mg.model', 'inception_mg.data')):
        if f'{name}.'.startswith(f'{one}.'):  # Not inception_mg.model_card, which is no part of the model.
            wrong += [target for target in imports if target.startswith((other, 'inception_mg.placement'))]
    if not name.startswith('scripts'):
        wrong += [target for target in imports if target.split('.')[0] == 'absl']
    return wrong


@pytest.mark.parametrize('path', FILES, ids=name_of)
def test_imports_point_downwards(path):
    wrong = wrong_arrows(name_of(path), imports_of(path))
    assert not wrong, f'{name_of(path)} must not import {wrong}'


@pytest.mark.parametrize('name', sorted(STANDARD_ONLY))
def test_the_ground_floor_imports_the_standard_library_only(name):
    import sys
    first = {target.split('.')[0] for target in imports_of(ROOT / name)}
    assert first <= set(sys.stdlib_module_names) | {'inception_mg'}


def test_the_guard_sees_a_wrong_arrow():
    assert wrong_arrows('inception_mg.data.records', {'inception_mg.training.train'})
    assert wrong_arrows('inception_mg.model.layers', {'inception_mg.data'})
    assert wrong_arrows('inception_mg.evaluate', {'dist.cluster'})
    assert wrong_arrows('inception_mg.training.train', {'absl.flags'})
    assert not wrong_arrows('dist.worker', {'inception_mg.training.train', 'tensorflow'})


def test_nothing_uses_parts_that_tensorflow_has_dropped():
    for path in [*FILES, *ROOT.glob('scripts/*.py')]:
        text = path.read_text()
        for gone in (*GONE, 'import_meta_graph'):
            if (path.name, gone) != (MEASURES_KERAS, 'import keras'):
                assert gone not in text, f'{path}: {gone}'


def test_the_packages_are_listed_and_dist_is_not_ignored():
    listed = (ROOT / 'pyproject.toml').read_text()
    for package in sorted({path.parent for path in FILES}):
        assert f'"{name_of(package / "__init__.py")}"' in listed
    for line in (ROOT / '.gitignore').read_text().splitlines():
        assert line.strip('/') not in ('dist', 'scripts'), line
