"""A model of one's own: the program of docs/your_model.md on towers and as a cluster with a killed worker; what is refused."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT

import inception_mg as mg
from dist.launch import fit, local
from dist.launch.fit import parse
from inception_mg.config import DeviceConfig, RunConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.fast.choice import fast_operations
from inception_mg.placement import multi_gpu, one_device
from inception_mg.training.train import train_here
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
PROGRAM = ROOT / 'docs' / 'digits.py'


def run(*flags: str, code: int = 0, seconds: float = 240.0) -> str:
    """Runs the program; returns all that it wrote."""
    done = subprocess.run([sys.executable, str(PROGRAM), *flags], capture_output=True, text=True, timeout=seconds)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_page_shows_the_program_that_is_tested():
    page = (ROOT / 'docs' / 'your_model.md').read_text()
    assert PROGRAM.read_text().split('"""\n', 1)[1].strip() in page


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> pathlib.Path:
    """The train_dir of the program on two towers."""
    pytest.importorskip('sklearn')
    folder = tmp_path_factory.mktemp('digits') / 'run'
    text = run(f'--train_dir={folder}', '--num_gpus=2', '--max_steps=150')
    assert 'tower 1 on /device:CPU:1' in text and 'step 150/150' in text
    return folder


def test_on_two_towers_it_learns_resumes_evaluates_and_exports(trained, tmp_path):
    text = run(f'--train_dir={trained}', '--max_steps=160')
    assert 'resumes from model.ckpt-150 at step 150' in text and 'step 160/160' in text
    found = re.search(r'precision@1 = (0\.\d+) \((\d+) of 300\)', run(f'--train_dir={trained}', '--evaluate'))
    assert float(found[1]) > 0.9
    run(f'--train_dir={trained}', f'--export_dir={tmp_path / "model"}')
    from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ['serve'], str(tmp_path / 'model')).signature_def['serving_default']
        fed, fetched = signature.inputs['images'].name, signature.outputs['classes'].name
        classes_v = session.run(fetched, {fed: (images[:300] / 8 - 1).reshape(-1, 8, 8, 1)})
    assert (classes_v[:, 0].astype(int) == labels[:300]).sum() == int(found[2])


@pytest.mark.cluster
def test_a_cluster_of_the_same_program_survives_a_killed_worker(tmp_path):
    pytest.importorskip('sklearn')
    text = run('--launch', f'--train_dir={tmp_path / "run"}', '--num_ps=1', '--num_workers=2', '--sync',
               '--max_steps=300', '--kill=worker:1@step=100')
    assert 'drill: killing worker 1' in text and 'worker 1 was killed by SIGKILL: restart 1' in text
    assert re.search(r'worker 1 begins at step [1-9]', text), text
    assert 'used [300, 300], dropped as too late [0, 0]' in text and 'ps 0 ends: the job is done' in text
    assert (tmp_path / 'run' / 'model.ckpt-300.index').exists()


def examples(part: int, parts: int, batch_size: int) -> tf.data.Dataset:
    """Two numbers and the class of their sum."""
    values = np.random.RandomState(part).uniform(-1, 1, [64, 2]).astype(np.float32)
    batch = {'left': values[:, :1], 'right': values[:, 1:], 'label': (values.sum(1) > 0).astype(np.int32)}
    return tf.data.Dataset.from_tensor_slices(batch).repeat().batch(batch_size, drop_remainder=True)


def loss_of(batch, tower, variable=v1.get_variable, initializer=v1.ones_initializer(), **options) -> tf.Tensor:
    weights = variable('weights', shape=[2, 2], dtype=tf.float32, initializer=initializer, **options)
    logits = tf.matmul(tf.concat([batch['left'], batch['right']], 1), weights)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch['label'], logits))


def test_batches_may_be_dictionaries_and_a_loss_may_be_a_tensor():
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={'CPU': 2})) as session:
        settings = mg.OptimizerConfig(initial_learning_rate=0.3)
        step = build_train_step(multi_gpu(['/device:CPU:0', '/device:CPU:1']),
                                mg.Task(examples, loss_of, 64, 32, settings))
        assert [part.shape.as_list() for part in step.batch.values()] == [[16, 1], [16, 1], [16]]
        session.run(v1.global_variables_initializer())
        session.run(step.start_input)
        losses_v = [session.run([step.loss, step.train_op])[0] for _ in range(40)]
    assert losses_v[-1] < 0.7 * losses_v[0]


def with_plain_variable(batch, tower) -> tf.Tensor:
    extra = v1.Variable(1.0, name='plain', use_resource=True)
    return loss_of(batch, tower) * extra


def with_keras(batch, tower) -> tf.Tensor:
    class Dense(tf.Module):
        """As a Keras layer makes its variables."""

        def __init__(self):
            super().__init__('dense')
            self.kernel = tf.Variable(tf.ones([1, 1]), name='dense/kernel')

    return loss_of(batch, tower) + tf.reduce_sum(tf.matmul(batch['left'], Dense().kernel))


@pytest.mark.parametrize(('loss', 'message'), [
    (with_plain_variable, 'plain would be left out of the training'),
    (with_keras, 'dense/kernel would be left out of the training'),
    (lambda batch, tower: tf.reduce_sum(batch['left']), 'a model without variables would be left out'),
    (lambda batch, tower: loss_of(batch, tower, regularizer=tf.nn.l2_loss), 'weights has a regularizer'),
    (lambda batch, tower: loss_of(batch, tower, constraint=tf.abs), 'weights has a constraint'),
    (lambda batch, tower: loss_of(batch, tower) * batch['left'][:, 0], r'the loss is float32 of shape \(32,\)'),
    (lambda batch, tower: tf.cast(loss_of(batch, tower), tf.float16), 'the loss is float16'),
    (lambda batch, tower: loss_of(batch, tower) + tf.cast(v1.get_variable('wide', [], tf.float64), tf.float32),
     'wide is float64')])
def test_what_would_be_left_out_of_the_training_is_refused_by_name(loss, message):
    with tf.Graph().as_default(), pytest.raises(UserError, match=message):
        build_train_step(one_device(), mg.Task(examples, loss, 64, 32))


def test_the_command_line():
    task = mg.Task(examples, loss_of, 64, 32, mg.OptimizerConfig(initial_learning_rate=0.5))
    flags = parse(['--sync', '--num_gpus=2', '--nolaunch', '--max_steps', '7', '--evaluate=false'], task, 'here', 9)
    assert flags.sync and not flags.launch and not flags.evaluate and flags.num_gpus == 2
    assert flags.max_steps == 7 and flags.train_dir == 'here' and flags.initial_learning_rate == 0.5
    assert parse([], task, '', 9).max_steps == 9
    for wrong in (['--bogus'], ['--num_gpus=two'], ['--sync=perhaps'], ['--wire_dtype=int8'], ['word']):
        with pytest.raises(FlagError, match='--help lists the flags'):
            parse(wrong, task, '', 0)


def test_the_public_face_has_these_names_and_no_others():
    assert all(getattr(mg, name) is not None for name in mg.__all__) and dir(mg) == mg.__all__
    with pytest.raises(AttributeError, match='public names are'):
        mg.Optimiser  # noqa: B018


def test_another_optimizer_trains_and_resumes(tmp_path):
    """Adam has slots and counters of its own; a checkpoint of RMSProp lacks them, and they begin anew."""
    lines: list[str] = []
    for make in ({}, {'make_optimizer': lambda config, rate: v1.train.AdamOptimizer(rate)}):
        task = mg.Task(examples, loss_of, 64, 32, mg.OptimizerConfig(initial_learning_rate=0.01), **make)
        for _ in range(2):
            steps = int(lines[-1].rpartition('-')[2]) + 3 if lines else 3
            train_here(task, DeviceConfig(), RunConfig(train_dir=str(tmp_path), max_steps=steps), lines.append)
    assert 'slots of the optimizer that it lacks begin anew' in '\n'.join(lines)
    assert lines[-1].endswith('model.ckpt-12')
    assert tf.train.load_checkpoint(str(tmp_path / 'model.ckpt-12')).has_tensor('weights/Adam_1')


@pytest.mark.parametrize('flags, words', [
    (['--launch', '--evaluate'], '--launch and --evaluate'), (['--evaluate', '--export_dir=x'], '--evaluate and --exp'),
    (['--kill=worker:1@step=9'], 'needs --launch'), (['--batch_size=-1'], '--batch_size=-1 must be at least 1'),
    (['--train_dir=', '--evaluate'], '--train_dir is empty')])
def test_flags_that_do_not_go_together_are_refused(flags, words):
    task = mg.Task(examples, loss_of, 64, 32)
    with pytest.raises(FlagError, match=words):
        fit.check(parse(flags, task, 'here', 9), task)


def test_flags_mean_what_they_mean_to_the_programs():
    task = mg.Task(examples, loss_of, 64, 32)
    assert parse(['--train_dir=~/run/'], task, '', 9).train_dir == str(pathlib.Path.home() / 'run')
    with pytest.raises(FlagError, match='as a pattern'):
        parse(['--train_dir=run*'], task, '', 9)
    with pytest.raises(FlagError, match='initial_learning_rate=nan'):
        fit.part(parse(['--initial_learning_rate=nan'], task, 'here', 9), mg.OptimizerConfig)


@pytest.mark.parametrize('launch', ['--launch', '--launch=True', '--launch=1'])
def test_tasks_of_a_launched_cluster_launch_none(launch, monkeypatch, tmp_path):
    started: dict = {}

    class Cluster:
        def __init__(self, commands, *args, **options):
            started.update(commands)

        def run(self):
            return 0

    monkeypatch.setattr(local, 'LocalCluster', Cluster)
    task = mg.Task(examples, loss_of, 64, 32)
    mg.fit(task, argv=['mine.py', launch, f'--train_dir={tmp_path}', '--kill=worker:1@step=9', '--task_id=7'])
    assert list(started) == ['ps 0', 'worker 0', 'worker 1']
    for number, name in enumerate(('worker 0', 'worker 1')):
        flags = parse(started[name][2:], task, '', 9)
        assert (flags.launch, flags.kill, flags.job_name, flags.task_id) == (False, '', 'worker', number)
        fit.check(flags, task)


def train(task: mg.Task, folder: pathlib.Path, steps: int = 8) -> None:
    train_here(task, DeviceConfig(), RunConfig(train_dir=str(folder), max_steps=steps), lambda line: None)


def test_examples_that_end_do_not_end_the_training_in_silence(tmp_path):
    with pytest.raises(UserError, match='the examples have ended before the last step'):
        train(mg.Task(lambda *part: examples(*part).take(3), loss_of, 64, 32), tmp_path)


def test_labels_that_are_none_and_validation_without_end_are_refused(tmp_path):
    values = np.ones([8, 2], np.float32), np.full([8], 2, np.int32)
    endless = lambda *part: tf.data.Dataset.from_tensor_slices(values).repeat().batch(part[-1])
    task = mg.classifier(lambda inputs, layers: layers.fully_connected(inputs, 2),
                         endless, num_examples=8, outputs='ab', batch_size=4, validation=endless)
    with pytest.raises(UserError, match='a label is outside of 0 to 1'):
        train(task, tmp_path)
    from inception_mg.evaluation.evaluate import count_examples
    with pytest.raises(UserError, match='have no end'):
        count_examples(lambda: task.inference.validation(4))


def test_a_task_that_says_nothing_takes_the_fast_operations_and_any_initializer(tmp_path):
    task = fit.with_operations(mg.Task(examples, lambda *of: loss_of(*of, initializer=tf.zeros_initializer), 64, 32))
    assert task.operations == fast_operations()[0]
    train(task, tmp_path)
    assert tf.train.load_checkpoint(str(tmp_path / 'model.ckpt-8')).has_tensor('weights/ExponentialMovingAverage')
