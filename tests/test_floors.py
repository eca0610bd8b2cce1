"""The order of the files: each imports only from floors below its own, and absl stays in scripts/."""

import ast
import pathlib
import re
import sys

import pytest
from conftest import ROOT

GONE = ('v1.layers.', 'v1.keras', 'v1.estimator', 'tf.contrib', 'tf_slim', 'tf.keras', 'import keras')
USE_KERAS = ('peers.py', 'keras_model.py')  # What others offer, beside ours; a model for them. They may import it.
OF_THE_PROGRAMS = ('scripts', 'tests', 'common', 'conftest')
LISTED = re.search('```floors\n(.*?)```', (ROOT / 'docs' / 'architecture.md').read_text(), re.DOTALL)[1]
FLOORS = {folder.rstrip('/').replace('/', '.'): int(floor)
          for floor, folder in re.findall(r'^(\d) +(\S+/) ', LISTED, re.MULTILINE)}
TALK_TO_NOBODY = (  # These read files, and are read where TensorFlow would cost seconds.
    'inception_mg/run_dir/model_card.py', 'inception_mg/run_dir/run_state.py', 'inception_mg/run_dir/alone.py',
    'inception_mg/run_dir/beat.py', 'inception_mg/run_dir/written.py', 'inception_mg/data/dataset_info.py')


def floor_of(module: str) -> int:
    """Floor of a module by its dotted name, that of the deepest folder listed; 0 for modules that are not of this
    project."""
    if module.split('.')[0] in OF_THE_PROGRAMS:
        return FLOORS['scripts']
    parts = module.split('.')
    folders = ['.'.join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((FLOORS[folder] for folder in folders if folder in FLOORS), 0)


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


BY_TENSORFLOW = 'inception_mg/remote.py'  # Imports it within its functions: for paths with a scheme only.
GROUND = sorted({f'inception_mg/{path.name}' for path in ROOT.glob('inception_mg/*.py')} - {BY_TENSORFLOW})
FILES = sorted([*ROOT.glob('inception_mg/**/*.py'), *ROOT.glob('dist/**/*.py')])


def wrong_arrows(name: str, imports: set[str]) -> list[str]:
    """The imports that point upwards, or across where that is not allowed."""
    wrong = [target for target in imports if floor_of(target) > floor_of(name)]
    if name.startswith('inception_mg'):
        wrong += [target for target in imports if target.split('.')[0] == 'dist']
    for one, other in (('inception_mg.data', 'inception_mg.model'), ('inception_mg.model', 'inception_mg.data')):
        if name.startswith(f'{one}.'):
            wrong += [target for target in imports if target.startswith((other, 'inception_mg.placement'))]
    if not name.startswith('scripts'):
        wrong += [target for target in imports if target.split('.')[0] == 'absl']
    return wrong


@pytest.mark.parametrize('path', FILES, ids=name_of)
def test_imports_point_downwards(path):
    wrong = wrong_arrows(name_of(path), imports_of(path))
    assert not wrong, f'{name_of(path)} must not import {wrong}'


@pytest.mark.parametrize('name', [*GROUND, *TALK_TO_NOBODY])
def test_the_ground_floor_imports_the_standard_library_only(name):
    first = {target.split('.')[0] for target in imports_of(ROOT / name)}
    assert first <= set(sys.stdlib_module_names) | {'inception_mg'}


def test_remote_paths_cost_others_no_import_of_tensorflow():
    tree = ast.parse((ROOT / BY_TENSORFLOW).read_text())
    first = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert 'tensorflow' not in first and imports_of(ROOT / BY_TENSORFLOW) >= {'tensorflow'}


def test_the_guard_sees_a_wrong_arrow():
    assert wrong_arrows('inception_mg.data.example', {'inception_mg.training.train'})
    assert wrong_arrows('inception_mg.model.layers', {'inception_mg.data'})
    assert wrong_arrows('inception_mg.evaluation.evaluate', {'dist.hosts'})
    assert wrong_arrows('inception_mg.training.train', {'absl.flags'})
    assert not wrong_arrows('dist.worker', {'inception_mg.training.train', 'tensorflow'})


def test_every_folder_has_a_floor():
    folders = {name_of(path.parent / '__init__.py') for path in FILES}
    assert folders == set(FLOORS) - {'scripts', 'tests'}


def test_the_files_that_a_floor_names_are_those_that_are_there():
    for folder in {path.parent for path in FILES}:
        listed = LISTED.partition(f' {folder.relative_to(ROOT)}/ ')[2]
        listed = re.split(r'^\d ', listed, maxsplit=1, flags=re.MULTILINE)[0]
        if folder.name != 'experiments':  # Each claim is a file.
            missing = {path.stem for path in folder.glob('*.py')} - {'__init__'} - set(re.findall(r'\w+', listed))
            assert not missing, f'docs/architecture.md does not name {sorted(missing)} of {folder.name}/'


def test_nothing_uses_parts_that_tensorflow_has_dropped():
    for path in [*FILES, *ROOT.glob('scripts/*.py')]:
        text = path.read_text()
        for gone in (*GONE, 'import_meta_graph'):
            if path.name not in USE_KERAS or gone != 'import keras':
                assert gone not in text, f'{path}: {gone}'


def test_the_packages_are_listed_and_dist_is_not_ignored():
    listed = (ROOT / 'pyproject.toml').read_text()
    for package in sorted({path.parent for path in FILES}):
        assert f'"{name_of(package / "__init__.py")}"' in listed
    for line in (ROOT / '.gitignore').read_text().splitlines():
        assert line.strip('/') not in ('dist', 'scripts'), line
