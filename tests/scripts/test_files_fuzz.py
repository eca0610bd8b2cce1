"""Damaged files of a training, at the doors that read them: a result or one line; never a traceback or a lost file.

In the suite these are the functions that read. FUZZ_CASES=100 makes that many cases of whole programs besides:
evaluate.py, export.py and train.py on a folder whose checkpoint, state file, model.json or training.json is damaged.
The seed is fixed, so a case can be run again.
"""

import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
from cluster_harness import fork_server
from conftest import ROOT
from mutated import mutated
from trained_model import train, write_checkpoint

from inception_mg import tf_environment
from inception_mg.errors import UserError
from inception_mg.run_dir import model_card, run_state
from inception_mg.weights.checkpoints import (
    fault_of,
    newest_checkpoint,
    numbered_checkpoints,
    open_checkpoint,
    read_value,
    step_of,
)

CASES = int(os.environ.get('FUZZ_CASES', 0))
SEED = int(os.environ.get('FUZZ_SEED', 1))
SECONDS = 150.0  # A program takes about ten on two cores; what takes this long hangs.
PROGRAMS = ('evaluate', 'export', 'train')


def _one_line(error: UserError) -> bool:
    return bool(str(error)) and '\n' not in str(error)


def test_a_damaged_checkpoint_is_read_or_named(tmp_path):
    dice = random.Random(SEED)
    write_checkpoint(str(tmp_path), {'x': tf.range(100, dtype=tf.float32).numpy()}, 2)
    path = write_checkpoint(str(tmp_path), {'x': tf.range(300, dtype=tf.float32).numpy()}, 4)
    whole = {file: file.read_bytes() for file in tmp_path.iterdir()}
    of_newest = [file for file in whole if file.name.startswith('model.ckpt-4') or file.name == 'checkpoint']
    for case in range(CASES or 300):
        damaged = dice.choice(of_newest)
        damaged.write_bytes(mutated(whole[damaged], dice))
        lines: list[str] = []
        newest = newest_checkpoint(str(tmp_path), lines.append)
        assert newest in numbered_checkpoints(str(tmp_path)) and not fault_of(newest), (case, damaged)
        assert lines or newest == path, (case, damaged)  # Never an older one without a word.
        try:
            reader = open_checkpoint(newest)
            assert step_of(newest) in (2, 4), (case, damaged)
            values = read_value(reader, newest, 'x')
            assert values.tolist() == list(range(len(values))), (case, damaged)  # Checksums let nothing else pass.
        except UserError as error:
            assert _one_line(error) and newest in str(error), (case, damaged)
        damaged.write_bytes(whole[damaged])
    assert sorted(tmp_path.iterdir()) == sorted(whole)


def test_a_damaged_model_json_or_training_json_is_read_or_named(tmp_path):
    dice = random.Random(SEED)
    model_card.write_card(str(tmp_path), model_card.ModelCard(0.05, 75, ('ant', 'Käfer'), 'float32', '/records'))
    run_state.write_state(str(tmp_path), run_state.OVER)
    whole = {name: (tmp_path / name).read_bytes() for name in (model_card.CARD_FILE, run_state.STATE_FILE)}
    odd = [b'', b'\0' * 9, b'[' * 100000, b'{"a":' * 50000, b'\xff\xfe{', b'null', b'[]', b'9' * 5000, b'{"state": []}']
    for name, content in whole.items():
        for text in odd + [mutated(content, dice) for _ in range(CASES or 300)]:
            (tmp_path / name).write_bytes(text)
            assert run_state.is_over(str(tmp_path)) in (True, False)
            try:
                card = model_card.read_card(str(tmp_path))
            except UserError as error:
                assert _one_line(error) and str(tmp_path / name) in str(error), text
            else:
                assert isinstance(card, model_card.ModelCard)
        (tmp_path / name).write_bytes(content)


@pytest.fixture(scope='module')
def of_a_training(three_classes, tmp_path_factory) -> pathlib.Path:
    """A train_dir with two checkpoints of a narrow network, model.json and training.json."""
    folder = tmp_path_factory.mktemp('of_a_training')
    for step in (1, 2):
        train(three_classes, str(folder), step)
    return folder


@pytest.mark.skipif(not CASES, reason='FUZZ_CASES=100 runs whole programs')
@pytest.mark.parametrize('program', PROGRAMS)
def test_programs_with_damaged_files_say_so_in_one_line(program, of_a_training, three_classes, tmp_path):
    dice, codes, card = random.Random(f'{program} {SEED}'), [], None
    for case in range(CASES // len(PROGRAMS)):
        folder = tmp_path / str(case)
        run_dir = folder / 'run'
        shutil.copytree(of_a_training, run_dir)
        damaged = []
        for file in dice.sample(sorted(path for path in run_dir.iterdir() if 'tfevents' not in path.name),
                                dice.choice([1, 1, 2])):
            damaged.append(file.name)
            file.write_bytes(mutated(file.read_bytes(), dice))
        before = {path: path.read_bytes() for path in run_dir.rglob('*') if path.is_file()}
        with contextlib.suppress(UserError):
            card = model_card.read_card(str(run_dir))
        codes.append(_run(program, folder, three_classes, f'case {case}: {damaged}'))
        for path, content in before.items():
            if program == 'train' and (path.name == 'training.json' or codes[-1] == 0 and path.name == 'checkpoint'):
                continue  # Training says that it runs, and which checkpoint is the newest now.
            if program == 'train' and codes[-1] == 0 and path.name == model_card.CARD_FILE and path.exists():
                # What the weights depend on; the type and the folder of records are those of this training.
                assert _of_the_weights(model_card.read_card(str(run_dir))) == _of_the_weights(card), f'case {case}'
                continue
            assert path.exists() and path.read_bytes() == content, f'case {case}: {damaged}: {path.name} was changed'
        shutil.rmtree(folder)
    print(f'{program}: {len(codes)} cases, exit codes ' + ', '.join(
        f'{code}: {codes.count(code)}' for code in sorted(set(codes))))


def _of_the_weights(card: model_card.ModelCard) -> tuple:
    return card.model, card.width, card.image_size, card.classes


def _run(program: str, folder: pathlib.Path, data_dir: str, said: str) -> int:
    """Runs a program on folder/run, checks what it says, and returns its exit code."""
    own = {'evaluate': ['--checkpoint_dir', '--run_once'], 'train': ['--train_dir', '--max_steps=3'],
           'export': ['--checkpoint_dir', f'--export_dir={folder / "export"}']}[program]
    flags = [f'{own[0]}={folder / "run"}', *own[1:], f'--data_dir={data_dir}']
    if program == 'train':
        flags += ['--batch_size=4', '--width=0.05', '--image_size=75', '--batch_norm_decay=0.5']
    process = fork_server().start([sys.executable, str(ROOT / 'scripts' / f'{program}.py'), *flags], folder / 'log',
                                  tf_environment.DEFAULTS | os.environ)
    try:
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(9)
        raise AssertionError(f'{said}: it hangs\n{(folder / "log").read_text()}') from None
    text = (folder / 'log').read_text()
    assert 'Traceback' not in text and code in (0, 1, 2), f'{said}: exit {code}\n{text}'
    errors = [line for line in text.splitlines() if line.startswith(f'{program}.py: ')]
    assert len(errors) == (code != 0), f'{said}: exit {code}\n{text}'
    if program == 'train' and code == 0:
        assert 'starts new' not in text, f'{said}\n{text}'
    return code
