"""--help of every program, and every program in a Python that the project was not installed into."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAMS = sorted(path.name for path in (ROOT / 'scripts').glob('[!_]*.py') if path.name != 'common.py')
GROUPS = {  # A flag that each group must show, and what else is asked of its text.
    'train.py': {'data': 'data_dir', 'model': 'width', 'optimizer': 'rmsprop_decay', 'device': 'num_gpus',
                 'run': 'train_dir'},
    'train_distributed.py': {'cluster': 'ps_hosts', 'data': 'batch_size', 'eval': 'run_once'},
    'train_in_graph.py': {'cluster': 'worker_hosts', 'in graph': 'split_over_hosts'},
    'benchmark.py': {'benchmark': 'peer', 'data': 'image_size'}, 'benchmark_contender.py': {
        'this program alone': 'contender'}, 'benchmark_peers.py': {'this program alone': 'contender'},
    'build_flowers_data.py': {'build': 'validation_split', 'this program alone': 'source'},
    'build_imagenet_data.py': {'imagenet': 'bounding_box_file'},
    'build_image_data.py': {'build': 'train_directory'}, 'classify.py': {'classify': 'top_k'},
    'doctor.py': {'cluster': 'ps_hosts', 'run': 'train_dir'},
    'convert_checkpoint.py': {'convert': 'input'}, 'evaluate.py': {'data': 'data_dir', 'eval': 'checkpoint_dir'},
    'experiments.py': {'experiments': 'only'}, 'export.py': {'export': 'format', 'model': 'width'},
    'laboratory.py': {'this program alone': 'log_directory'},
    'launch_local.py': {'launch': 'kill'}, 'make_demo_data.py': {'this program alone': 'output_directory'},
    'plot_training.py': {'this program alone': 'eval_dir'}, 'report.py': {'report': 'way'},
    'plan.py': {'plan': 'published', 'this program alone': 'async', 'model': 'width'}}


def groups_of(text: str) -> dict[str, list[str]]:
    """Heading -> names of the flags below it."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch('([a-z ]+):', line):
            names = found.setdefault(heading[1], [])
        elif flag := re.match(r'  --(\w+)=', line):
            names.append(flag[1])
    return found


@pytest.mark.parametrize('program', PROGRAMS)
def test_help_shows_the_flags_of_the_program_by_group(program):
    command = [sys.executable, '-X', 'importtime', str(ROOT / 'scripts' / program), '--help']
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert 'python scripts/' in done.stdout.split(':\n  --')[0]
    groups = groups_of(done.stdout)
    for heading, flag in GROUPS[program].items():
        assert flag in groups.get(heading, []), f'{flag} is not below {heading}: {groups}'
    names = [name for found in groups.values() for name in found]
    assert len(names) == len(set(names)) and 'helpfull' not in names and 'verbosity' not in names
    assert '--helpfull' in done.stdout.splitlines()[-1]
    assert not re.search(r'\| +(tensorflow|matplotlib)$', done.stderr, re.MULTILINE)  # It answers at once.


def test_help_says_defaults_choices_and_those_of_the_program():
    done = subprocess.run([sys.executable, str(ROOT / 'scripts' / 'train_distributed.py'), '-h'], capture_output=True,
                          text=True, timeout=20)
    assert '--initial_learning_rate=0.045\n' in done.stdout and '--distort=true\n' in done.stdout
    assert '--sync=false\n' in done.stdout and '(float32 | bfloat16)\n' in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


@pytest.mark.parametrize('program', PROGRAMS)
def test_a_python_without_the_packages_gets_one_line(program, tmp_path):
    """-S -I: a Python that sees the standard library alone."""
    command = [sys.executable, '-I', '-S', '-c', (
        f'import runpy, sys; sys.path.insert(0, {str(ROOT / "scripts")!r}); sys.argv = [{program!r}]; '
        f'runpy.run_path({str(ROOT / "scripts" / program)!r}, run_name="__main__")')]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert 'has no module absl, numpy, tensorflow' in done.stderr and '.venv/bin/' in done.stderr
