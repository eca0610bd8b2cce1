"""A whole job on a file system that only TensorFlow's own file layer knows: ram://, which is of one process.

Nothing of Python's may touch its paths: that would make a folder `ram:` here, and leave the job's files in it.
"""

import json
import os
import sys
import threading

import pytest
import tensorflow as tf
import toy_model
from conftest import ROOT
from tfds_shapes import LEVELS
from trained_model import train

from inception_mg import files, remote
from inception_mg.config import (
    DataConfig,
    DeviceConfig,
    EvalConfig,
    ExportConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from inception_mg.data.dataset_describe import describe_dataset
from inception_mg.data.dataset_info import read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import training_dataset
from inception_mg.errors import FlagError, UserError
from inception_mg.evaluation.evaluate import evaluate
from inception_mg.evaluation.watch import BestCheckpoint
from inception_mg.run_dir import beat, run_state
from inception_mg.serving.classify import Classifier
from inception_mg.serving.export import export
from inception_mg.training.task import Task
from inception_mg.training.train import train_here
from inception_mg.weights import checkpoints

# What opens, makes or changes something. TensorFlow itself looks for files of Python's by a pattern, after a save.
TOUCHES = ('open', 'os.mkdir', 'os.rename', 'os.link', 'os.symlink', 'os.remove', 'os.rmdir', 'os.listdir',
           'os.truncate', 'shutil.rmtree', 'shutil.copyfile', 'shutil.move', 'tempfile.mkdtemp', 'tempfile.mkstemp')
touched: list[str] = []
watched = threading.local()


def _hear(event: str, arguments: tuple) -> None:
    if getattr(watched, 'on', False) and event in TOUCHES:
        touched.extend(f'{event} {one}' for one in arguments if str(one).startswith(('ram:', os.path.abspath('ram:'))))


sys.addaudithook(_hear)  # Cannot be taken away again: it hears while a test of this file wants it to.


@pytest.fixture(autouse=True)
def nothing_is_made_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touched.clear()
    watched.on = True
    yield
    watched.on = False
    assert not touched and not os.path.exists('ram:')


@pytest.fixture(scope='module')
def records() -> str:
    """What tfds wrote, in memory: others' records, PNG of one channel, labels from 0."""
    for path in (ROOT / 'tests' / 'data' / 'tfds_shapes').iterdir():
        remote.write(f'ram://records/{path.name}', path.read_bytes())
    describe_dataset('ram://records')
    return 'ram://records'


def _names(folder: str, start: str) -> list[str]:
    return sorted(name for name in files.names_in(folder) if name.startswith(start))


def test_a_training_is_resumed_and_keeps_its_newest_checkpoints(monkeypatch):
    monkeypatch.setattr(beat, 'PERIOD', 0.1)
    folder, said = 'ram://bucket/toy', []
    task = Task(toy_model.dataset_for(8), toy_model.toy_loss, 8, 8, OptimizerConfig(moving_average_decay=0.9))
    for steps in (2, 4, 6):
        run = RunConfig(train_dir=folder, max_steps=steps, max_checkpoints_to_keep=2, log_every_steps=1)
        train_here(task, DeviceConfig(), run, said.append)
    assert any('resumes from model.ckpt-4 at step 4' in line for line in said)
    assert _names(folder, 'model.ckpt-') == [f'model.ckpt-{step}.{part}' for step in (4, 6)
                                             for part in ('data-00000-of-00001', 'index')]
    assert tf.train.latest_checkpoint(folder) == f'{folder}/model.ckpt-6'  # As other programs look for it.
    assert run_state.is_over(folder) and not _names(folder, beat.BEAT_FILE)
    assert _names(folder, 'events.out')
    run_state.request_stop(folder, 'a test')
    with pytest.raises(UserError, match=f'{folder}/STOP asks training to end \\(a test\\)'):
        train_here(task, DeviceConfig(), run, said.append)


def test_train_evaluate_export_classify(records, tmp_path):
    folder, said = 'ram://bucket/run', []
    train(records, folder, max_steps=1, say=said.append)
    assert json.loads(files.read_text(f'{folder}/model.json'))['data_dir'] == records
    config = EvalConfig(checkpoint_dir=folder, run_once=True, report_dir='ram://bucket/report')
    scores = evaluate(DataConfig(batch_size=4), ModelConfig(), config, said.append, chosen=())
    assert scores.images == 6 and {'results.jsonl'} <= set(files.names_in(f'{folder}/eval'))
    assert len(files.read_text(f'{folder}/eval/results.jsonl').splitlines()) == 1
    rows = [row.split(',')[:2] for row in files.read_text('ram://bucket/report/per_class.csv').splitlines()]
    assert [row for row in rows if row[0] in LEVELS] == [[name, '2'] for name in LEVELS]
    out = ExportConfig(checkpoint_dir=folder, export_dir='ram://bucket/model')
    model = export(DataConfig(), ModelConfig(), out, said.append, chosen=())
    with pytest.raises(UserError, match='is not empty'):
        export(DataConfig(), ModelConfig(), out, said.append, chosen=())
    with Classifier(model) as classifier:
        (guess,), = classifier.best([tf.io.encode_png(tf.zeros([90, 90, 3], tf.uint8)).numpy()], 1)
    assert guess.name in ('background', *LEVELS)
    assert files.read_text(f'{model}/assets/labels.txt').split() == ['background', *LEVELS]


def test_the_best_checkpoint_is_kept(records):
    folder = 'ram://bucket/best'
    for step in (1, 2):
        tf.raw_ops.SaveV2(prefix=f'ram://bucket/r/model.ckpt-{step}', tensor_names=['global_step'],
                          shape_and_slices=[''], tensors=[tf.constant(step, tf.int64)])
    best = BestCheckpoint(folder)
    for step, precision, kept in ((1, 0.5, True), (2, 0.4, False)):
        result = {'checkpoint': '', 'step': step, 'subset': 'validation', 'images': 9, 'images_declared': 9,
                  'precision@1': precision, 'averages': True}
        held = best.hold(f'ram://bucket/r/model.ckpt-{step}')
        assert best.keep_if_better(held, result, 'ram://bucket/r', {}) is kept
    assert checkpoints.newest_checkpoint(folder) == f'{folder}/model.ckpt-1'
    assert '.held' not in files.names_in(folder)


def test_records_are_read_where_they_are(records):
    info = read_dataset_info(records)
    assert info.counts == {'train': 12, 'validation': 6}
    data = DataConfig(image_size=75, skip_damaged_records=True, data_seed=1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = training_dataset(shard_paths(records, info.stem('train')), 12, data=data, batch_size=12,
                                   num_classes=3, keys=info.records)
        _, labels_v = session.run(tf.compat.v1.data.make_one_shot_iterator(dataset).get_next())
    assert sorted(labels_v) == [1] * 4 + [2] * 4 + [3] * 4
    with pytest.raises(UserError, match='ram://nothing/dataset.json is missing .ram://nothing is not there'):
        read_dataset_info('ram://nothing')


def test_a_second_training_is_kept_out_while_the_first_beats():
    said, folder = [], 'ram://bucket/held'
    with beat.held(folder, 1, said.append, 0.1):
        with pytest.raises(UserError, match=rf'process {os.getpid()} on .* trains in {folder}'), \
                beat.held(folder, 1, said.append, 0.1):
            raise AssertionError
    assert 'knows no locks' in said[0]
    assert not files.exists(f'{folder}/{beat.BEAT_FILE}')
    files.write_text(f'{folder}/{beat.BEAT_FILE}', '{"token": "of a killed one", "beat": 7}\n')
    with beat.held(folder, 1, said.append, 0.1):
        files.write_text(f'{folder}/{beat.BEAT_FILE}', '{"token": "of another", "pid": 7}\n')
        for _ in range(100):
            if any('has begun to train' in line for line in said):
                break
            threading.Event().wait(0.05)
    assert any('process 7 on' in line and 'has begun to train' in line for line in said)
    assert 'of another' in files.read_text(f'{folder}/{beat.BEAT_FILE}')


def test_files_behave_as_those_of_this_machine(tmp_path):
    """Each function on a disk and in memory: the same answers, and errors of the same kind."""
    for folder in (str(tmp_path / 'a'), 'ram://files/a'):
        files.make_folder(folder)
        files.make_folder(folder)
        path = f'{folder}/x'
        files.write_text(path, 'one\n')
        files.write_text(path, 'two\n')
        files.append_line(path, 'three')
        assert files.read_text(path) == 'two\nthree\n' and files.read_bytes(path, 2) == b'tw'
        assert files.size_of(path) == 10 and files.names_in(folder) == ['x']
        assert files.is_file(path) and files.exists(folder) and files.is_folder(folder) and not files.is_file(folder)
        files.link_or_copy(path, f'{folder}/y')
        files.replace(f'{folder}/y', f'{folder}/z')
        assert sorted(files.names_in(folder)) == ['x', 'z'] and files.whole(path) == path
        files.check_writable(folder)
        files.remove(path)
        assert not files.exists(path)
        for fails in (files.read_bytes, files.size_of, files.remove, files.names_in):
            with pytest.raises(FileNotFoundError):
                fails(path)
        with pytest.raises(FileNotFoundError):
            files.link_or_copy(path, f'{folder}/q')
        files.remove_tree(folder)
        files.remove_tree(folder)
        assert not files.exists(folder)


def test_a_scheme_that_tensorflow_does_not_know_is_refused_by_the_flag():
    remote.check_scheme('--data_dir', 'ram://records')
    with pytest.raises(FlagError, match='--train_dir=foo://b/run: this TensorFlow does not know foo://, only .*gs://'):
        remote.check_scheme('--train_dir', 'foo://b/run')


def test_tensorflow_io_is_asked_for_what_tensorflow_does_not_know(tmp_path, monkeypatch):
    """Any module of that name: it cannot be had here, and only C++ could register a scheme."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'tensorflow_io.py').write_text('raise NotImplementedError("libtensorflow_io.so is of another version")')
    with pytest.raises(FlagError, match='foo:// needs tensorflow-io, which cannot be loaded: libtensorflow_io.so'):
        remote.check_scheme('--train_dir', 'foo://b/run')
    remote.check_scheme('--train_dir', 'ram://b/run')


def test_models_may_be_copied_between_file_systems(tmp_path):
    files.write_text(f'{tmp_path}/x', 'here')
    files.link_or_copy(f'{tmp_path}/x', 'ram://files/there')
    files.link_or_copy('ram://files/there', f'{tmp_path}/y')
    assert (tmp_path / 'y').read_text() == 'here'
