"""scripts/build_image_data.py from its command line: what it prints, and its exit codes."""

import os
import signal
import subprocess
import sys
import time

from conftest import ROOT
from PIL import Image

from inception_mg.data import dataset_info

_SCRIPT = [sys.executable, str(ROOT / 'scripts/build_image_data.py')]


def _photos(directory, number=6):
    for name in ('dog', 'cat'):
        (directory / name).mkdir(parents=True)
        for image in range(number):
            Image.new('RGB', (8, 8), (image, 0, 0)).save(directory / name / f'{image}.jpg')
    return directory


def _run(*flags):
    return subprocess.run([*_SCRIPT, *flags], capture_output=True, text=True, timeout=120)


def test_a_command_line_of_2016(tmp_path):
    train, validation = _photos(tmp_path / 'train'), _photos(tmp_path / 'validation', 2)
    (validation / 'dog/bad.jpg').write_bytes(b'')
    (tmp_path / 'labels').write_text('dog\ncat\n')
    done = _run(f'--train_directory={train}', f'--validation_directory={validation}/', '--train_shards=4',
                f'--output_directory={tmp_path}/out/', f'--labels_file={tmp_path}/labels',
                '--validation_shards=2', '--num_threads=3')
    assert done.returncode == 3, done.stderr
    assert 'train: 12 images of 2 classes in 4 shards' in done.stdout
    assert 'validation: 4 images of 2 classes in 2 shards' in done.stdout and '1 files skipped' in done.stdout
    assert f'skipped {validation}/dog/bad.jpg: the file is empty' in done.stderr
    info = dataset_info.read_dataset_info(str(tmp_path / 'out'))
    assert info == dataset_info.DatasetInfo(
        ('dog', 'cat'), {'train': 12, 'validation': 4}, {'train': 4, 'validation': 2})

    (tmp_path / 'out/dataset.json').unlink()
    described = _run(f'--output_directory={tmp_path}/out', '--describe')
    assert described.returncode == 0, described.stderr
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')) == info


def test_wrong_flags_are_refused_at_once(tmp_path):
    done = _run(f'--output_directory={tmp_path}/out', f'--train_directory={tmp_path}', '--train_shards=0')
    assert done.returncode == 2
    assert '--train_shards=0' in done.stderr and len(done.stderr.splitlines()) == 1


def test_terminated_run_leaves_nothing_behind(tmp_path):
    train = tmp_path / 'train'
    (train / 'dog').mkdir(parents=True)
    Image.new('RGB', (1500, 1500)).save(train / 'dog/0.png')
    for image in range(1, 3000):  # Enough to be caught at work.
        os.link(train / 'dog/0.png', train / f'dog/{image}.png')
    process = subprocess.Popen([*_SCRIPT, f'--train_directory={train}', f'--output_directory={tmp_path}/out',
                                '--allow_one_class'],
                               stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob('out/.building-*/train-*')) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert os.listdir(tmp_path / 'out') == []
