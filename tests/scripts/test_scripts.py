"""The programs as a user runs them: refusals in one line, signals, exit codes."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import make_demo_data
import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from PIL import Image

SMALL = ['--width=0.05', '--image_size=75', '--batch_size=4', '--batch_norm_decay=0.9']


def run(script: str, *flags: str, seconds: float = 60) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(ROOT / 'scripts' / script), *flags], timeout=seconds,
                          capture_output=True, text=True)


@pytest.mark.parametrize('script, flags, code, words', [
    ('train.py', ['--train_dir=/tmp/x', '--data_dir=/nope', '--batch_size=0'], 2, '--batch_size=0'),
    ('train.py', ['--train_dir=/tmp/x', '--data_dir=/nope', '--image_size=74'], 2, '--image_size=74 must be'),
    ('train.py', ['--data_dir=/nope'], 2, '--train_dir is empty'),
    ('train.py', ['--batchsize=3'], 2, 'batchsize'),
    ('train.py', ['--batch_size=many'], 2, 'many'),
    ('train.py', ['--compute_dtype=float8'], 2, 'float8'),
    ('train.py', ['--split_model=rows'], 2, 'rows'),
    ('train.py', ['--train_dir=/tmp/x', '--width=-1'], 2, '--width=-1'),
    ('train.py', ['--train_dir=/tmp/x', '--initial_learning_rate=-1'], 2, '--initial_learning_rate=-1'),
    ('train.py', ['--train_dir=/tmp/x', '--fine_tune'], 2, '--pretrained_model_checkpoint_path'),
    ('train.py', ['data_dir=/nope'], 2, "'data_dir=/nope'"),
    ('evaluate.py', ['--data_dir=/nope'], 2, '--checkpoint_dir is empty'),
    ('evaluate.py', ['--data_dir=/nope', '--checkpoint_dir=/nope', '--num_examples=-1'], 2, '--num_examples=-1'),
    ('make_demo_data.py', [], 2, '--output_directory is empty'),
    ('plot_training.py', [], 2, '--train_dir'),
    ('report.py', [], 2, 'either --all or --way'),
    ('report.py', ['--way=split_model', '--devices=1'], 2, '--devices=1'),
    ('experiments.py', [], 2, '--output_directory is empty'),
    ('experiments.py', ['--output_directory=/tmp/x', '--only=sleep'], 2, "'sleep' must be one of towers_equal"),
])
def test_wrong_flags_get_one_line_that_names_them(script, flags, code, words):
    done = run(script, *flags, seconds=20)
    assert done.returncode == code and words in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and 'Traceback' not in done.stderr


def test_no_such_data_in_one_line(tmp_path):
    done = run('train.py', '--data_dir=/nope', f'--train_dir={tmp_path}')
    assert done.returncode == 1 and '/nope/dataset.json is missing' in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def end_by(signals: list[int], command: list[str], log_path: pathlib.Path) -> str:
    """Starts a training and sends it signals, each after three more status lines; the last one ends it. Its log."""
    with open(log_path, 'w+') as log:
        task = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # Not as of this.
        try:
            deadline, seen = time.monotonic() + 240, 0
            for number in signals:
                while log_path.read_text().count('\nstep') < seen + 3:
                    assert task.poll() is None and time.monotonic() < deadline, log_path.read_text()
                    time.sleep(0.1)
                seen = log_path.read_text().count('\nstep')
                task.send_signal(number)
            assert task.wait(timeout=30) == 143
        finally:
            task.kill()
            task.wait()
    return log_path.read_text()


def test_a_signal_saves_and_the_next_run_goes_on(three_classes, tmp_path):
    """SIGTERM, and SIGHUP from a terminal that is closed; but under nohup that one is not heard."""
    command = [sys.executable, str(ROOT / 'scripts' / 'train.py'), f'--data_dir={three_classes}', *SMALL,
               f'--train_dir={tmp_path}', '--log_every_steps=1', '--max_steps=100000']
    text = end_by([signal.SIGHUP, signal.SIGTERM], ['nohup', *command], tmp_path / 'log')
    last = [line for line in text.splitlines() if line.startswith('step')][-1].split('/')[0].split()[-1]
    newest = tf.train.latest_checkpoint(str(tmp_path))
    saved = tf.train.load_checkpoint(newest).get_tensor('global_step')
    assert saved >= int(last) and newest.endswith(f'model.ckpt-{saved}')
    assert 'SIGTERM: saving after this step' in text and 'Traceback' not in text and 'oneDNN' not in text
    assert 'SIGHUP' not in text
    text = end_by([signal.SIGHUP], command, tmp_path / 'log')
    assert f'resumes from model.ckpt-{saved} at step {saved}' in text and 'SIGHUP: saving after this step' in text
    later = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path))).get_tensor('global_step')
    assert later >= saved + 3
    saved = later
    done = run('evaluate.py', f'--data_dir={three_classes}', f'--checkpoint_dir={tmp_path}', '--run_once', *SMALL[:2])
    assert done.returncode == 0 and f'step {saved}: precision@1' in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1].startswith('{"checkpoint"')


def test_demo_tiles_never_share_a_pixel():
    """Every pixel of a photograph that is its own position goes to one subset only."""
    side = make_demo_data.TILES * make_demo_data.SIDE
    rows, columns = np.mgrid[0:side, 0:side]
    tile = (rows // make_demo_data.SIDE) * make_demo_data.TILES + columns // make_demo_data.SIDE
    photograph = Image.fromarray(np.stack([tile, tile, tile], axis=2).astype(np.uint8))
    seen: dict[str, set] = {'train': set(), 'validation': set()}
    for subset, _, crop in make_demo_data.crops_of(photograph, 'seed'):
        values = set(np.asarray(crop).ravel().tolist())
        assert len(values) == 1  # No crop leaves its tile.
        seen[subset] |= values
    assert not seen['train'] & seen['validation']
    assert len(seen['train'] | seen['validation']) == make_demo_data.TILES ** 2
    assert len(seen['validation']) >= make_demo_data.TILES


def test_demo_data_does_not_touch_a_full_folder(tmp_path):
    (tmp_path / 'mine.txt').write_text('mine')
    done = run('make_demo_data.py', f'--output_directory={tmp_path}')
    assert done.returncode == 1 and 'is not empty' in done.stderr
    assert os.listdir(tmp_path) == ['mine.txt']
