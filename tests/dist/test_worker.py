"""A worker's graph, without any process: what sits where, and what the refusals say."""

import dataclasses
import functools
import os
import re
import types

import pytest
import tensorflow as tf
import toy_model
from forms import FAST

from dist import in_graph
from dist import worker as workers
from dist.hosts import Cluster
from dist.job import describe_graph
from dist.peers import ClusterLost, Peers
from inception_mg.training.image_task import image_task
from inception_mg.config import (
    ClusterConfig,
    DataConfig,
    DeviceConfig,
    InGraphConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from inception_mg.errors import EXIT_FAILED, EXIT_RETRY, FlagError, UserError
from inception_mg.fast.operations import PLAIN
from inception_mg.run_dir import run_state
from inception_mg.run_dir.alone import alone_in
from inception_mg.training import train
from inception_mg.training.devices import local_machine
from inception_mg.training.hooks import CheckpointHook
from inception_mg.training.task import Task

v1 = tf.compat.v1
CLUSTER = Cluster(('127.0.0.1:1', '127.0.0.1:2'), ('127.0.0.1:3', '127.0.0.1:4', '127.0.0.1:5'), 'worker', 0)
PS = [f'/job:ps/task:{k}/device:CPU:0' for k in range(2)]
WORKER = '/job:worker/task:0/device:CPU:'


def make_worker(data_dir: str, index: int, devices: DeviceConfig, train_dir: str = '', **data_options
                ) -> workers._Worker:
    """Worker `index` of a synchronous job, as run_worker makes it."""
    cluster = dataclasses.replace(CLUSTER, index=index)
    data = DataConfig(data_dir=data_dir, batch_size=4, image_size=75, **data_options)
    run, model, optimizer = RunConfig(train_dir=train_dir, max_steps=9), ModelConfig(width=0.05), OptimizerConfig()
    config = ClusterConfig(sync=True, num_replicas_to_aggregate=2)
    task, aggregated = image_task(data, model, optimizer), workers.aggregated_replicas(cluster, config)
    job = workers.describe_job(cluster, task, run, config, aggregated)
    machine = workers.cluster_machine(cluster, local_machine(devices), config)
    return workers._Worker(cluster, Peers(cluster, job), machine, task, run, config, aggregated, print)


@pytest.fixture(scope='module')
def chief(three_classes, tmp_path_factory):
    """The graph of a synchronous chief with two towers: its _Worker, graph, step, hooks and first screen."""
    task = make_worker(three_classes, 0, DeviceConfig(num_gpus=2), str(tmp_path_factory.mktemp('chief')))
    with tf.Graph().as_default() as graph:
        step, sync = task.build()
        start = train.Start.find(task.run)
        _, hooks = task.chief('grpc://127.0.0.1:3', step, sync, start)
        return task, graph, step, hooks, task.start_lines(step, start)


@pytest.fixture(scope='module')
def split_worker(three_classes):
    """Worker 2 of the same job, which splits its one tower over two devices: its _Worker and graph."""
    task = make_worker(three_classes, 2, DeviceConfig(split_model='branches'))
    with tf.Graph().as_default() as graph:
        task.build()
    return task, graph


def test_variables_are_on_the_ps_and_balanced(chief):
    loads = dict.fromkeys(PS, 0)
    with chief[1].as_default():
        for variable in v1.global_variables():
            loads[variable.device] += variable.shape.num_elements() * variable.dtype.size
    assert max(loads.values()) <= 1.2 * sum(loads.values()) / len(PS)


def test_every_operation_is_on_the_ps_or_on_this_worker(chief):
    devices = {operation.device for operation in chief[1].get_operations()} - {''}
    assert devices == {*PS, WORKER + '0', WORKER + '1'}
    work = [operation for operation in chief[1].get_operations() if operation.type in ('Conv2D', 'MatMul')]
    assert {operation.device for operation in work} == {WORKER + '0', WORKER + '1'}


def test_the_chief_reads_writes_and_summarises_on_its_own_cpu(chief):
    for kind in ('SaveV2', 'RestoreV2', 'ImageSummary', 'IteratorV2'):
        found = [operation for operation in chief[1].get_operations() if operation.type == kind]
        assert found and {operation.device for operation in found} == {WORKER + '0'}, kind
    assert len([1 for operation in chief[1].get_operations() if operation.type == 'SaveV2']) == 1  # Unsharded.


def test_the_epoch_is_counted_in_images_of_all_aggregated_workers(chief):
    text = '\n'.join(chief[4])
    assert '8 images per update; here 4 = 2 towers x 2; 3.0 steps per epoch' in text
    assert 'cluster    chief of 2 ps and 3 workers, synchronous, 2 of 3 gradients per update; reads part 1 of 3' in text


def test_the_start_says_what_a_step_moves_and_how_many_the_wire_carries(chief):
    weights = sum(variable.shape.num_elements() for _, variable in chief[2].gradients) * 4
    text = '\n'.join(chief[4])
    assert f'a step of each worker pulls {weights / 1e6:.1f} MB of weights and pushes as much' in text
    fullest = max(sum(v.shape.num_elements() * 4 for _, v in chief[2].gradients if v.device == ps) for ps in PS)
    assert f'at most {1.25e9 / fullest:.0f} steps/s, {4 * 1.25e9 / fullest:.0f} images/s' in text
    with chief[1].as_default():
        loads = [sum(v.shape.num_elements() * v.dtype.size for v in v1.global_variables() if v.device == ps)
                 for ps in PS]
    trained = [sum(v.shape.num_elements() * 4 for _, v in chief[2].gradients if v.device == ps) for ps in PS]
    assert ', '.join(f'ps {k} holds {loads[k] / 1e6:.1f} MB, and under --sync 3 x {trained[k] / 1e6:.1f} MB of gradients'
                     for k in range(2)) in text


def test_every_worker_makes_the_same_variables_on_the_same_devices(chief, split_worker):
    graphs = []
    for graph in (chief[1], split_worker[1]):
        with graph.as_default():
            graphs.append(describe_graph(v1.global_variables()))
            assert not [op for op in graph.get_operations() if op.type in ('VariableV2', 'Variable', 'Assign')]
    assert graphs[0] == graphs[1] and len(graphs[0]) > 900
    assert not [name for name in graphs[0] if name.startswith('sync')]


def test_a_worker_may_split_its_towers(split_worker):
    worker = '/job:worker/task:2/device:CPU:'
    assert split_worker[0].machine.placement.towers[0].branches == (worker + '0', worker + '1')
    convolutions = [op.device for op in split_worker[1].get_operations() if op.type == 'Conv2D']
    assert min(convolutions.count(worker + '0'), convolutions.count(worker + '1')) > 20
    assert {op.device for op in split_worker[1].get_operations()} - {''} == {*PS, worker + '0', worker + '1'}


def test_the_job_is_all_that_a_graph_and_a_schedule_follow_from(three_classes, two_classes, tmp_path):
    def job(data_dir=three_classes, index=0, devices=None, **options):
        return make_worker(data_dir, index, devices or DeviceConfig(), str(tmp_path), **options).peers.job

    chief, other = job(), job(index=1, devices=DeviceConfig(num_gpus=2), num_readers=9)
    assert chief.id == str(tmp_path) and other.id == '' and chief.settings == other.settings
    assert chief.settings['--sync'] == 'synchronous, 2 of 3 gradients per update'
    assert chief.settings['--width'] == '0.05' and chief.settings['--initial_learning_rate'] == '0.1'
    data = job(two_classes).settings['the training set in --data_dir']
    assert data.startswith('16 images of 2 classes') and data != chief.settings['the training set in --data_dir']


def test_workers_read_every_image_once_and_no_two_the_same(three_classes, monkeypatch):
    parts, makers = [], []
    monkeypatch.setattr(workers, 'build_train_step', lambda placement, task, reader, readers, **options:
                        makers.append(lambda: task.dataset_for(reader, readers, 4)))
    for index in range(3):
        make_worker(three_classes, index, DeviceConfig(), distort=False, data_seed=1).build()
        with tf.Graph().as_default(), v1.Session() as session:
            images, _ = v1.data.make_one_shot_iterator(makers[-1]()).get_next()
            parts.append([image.tobytes() for _ in range(2) for image in session.run(images)])
    assert [len(set(part)) for part in parts] == [8, 8, 8]  # An epoch of each is two batches.
    assert len(set().union(*parts)) == 24


def test_gradients_per_update():
    def count(**config) -> int:
        return workers.aggregated_replicas(CLUSTER, ClusterConfig(**config))

    assert (count(), count(sync=True), count(sync=True, num_replicas_to_aggregate=2)) == (1, 3, 2)
    with pytest.raises(FlagError, match='=4, but the cluster has 3 workers'):
        count(sync=True, num_replicas_to_aggregate=4)


def test_a_lost_cluster_asks_for_a_restart_and_other_errors_do_not():
    with pytest.raises(ClusterLost, match='chief lost the rest of the cluster: gone') as lost:
        with workers.explaining_loss(CLUSTER):
            raise tf.errors.UnavailableError(None, None, 'gone\nmore')
    assert lost.value.exit_code == 138
    with pytest.raises(tf.errors.DataLossError), workers.explaining_loss(CLUSTER):
        raise tf.errors.DataLossError(None, None, 'damaged')


def test_another_worker_says_its_own_pace_and_that_nobody_saves():
    lines, silence = [], [0.0]
    with tf.Graph().as_default():
        step = v1.get_variable('global_step', [], tf.int64, v1.constant_initializer(5), use_resource=True)
        made = types.SimpleNamespace(loss=tf.constant(1.5), global_step=step)
        hook = workers.FollowerHook('worker 1', made, 3, 4, lambda: silence[0], lines.append)
        with v1.train.MonitoredSession(v1.train.ChiefSessionCreator(), [hook]) as session:
            for silence[0] in (0.0, 0.0, 0.0, 0.0, 9.0, 30.0, 0.0):
                session.run(step)
    pace = r'worker 1: %d steps of its own  loss   1.5000  +\d+.\d images/s  the job is at step 5'
    expected = [pace % 3, 'worker 1: the chief is silent: nobody saves until it is back', 'worker 1: the chief is back',
                pace % 6]
    assert len(lines) == 4 and all(re.fullmatch(*pair) for pair in zip(expected, lines, strict=True)), lines


def test_what_a_dead_chief_had_not_saved_is_saved_by_the_next(tmp_path):
    """The variables on the ps outlive it: that they are at the last step does not mean that a file is."""
    with tf.Graph().as_default():
        step = v1.get_variable('global_step', [], tf.int64, v1.constant_initializer(5), use_resource=True)
        hook = CheckpointHook(v1.train.Saver([step]), [step], step, str(tmp_path), 1e6, lambda line: None)
        with v1.Session() as session:
            session.run(step.initializer)
            times = []
            for _ in range(2):  # The second life finds the checkpoint of the first, and leaves it alone.
                hook.after_create_session(session, None)  # At once: who knows how long it lives.
                times.append((tmp_path / 'model.ckpt-5.index').stat().st_mtime_ns)
            assert times[0] == times[1]


@pytest.mark.parametrize('way, code', [
    ('one_machine', EXIT_FAILED), ('between_graph', EXIT_RETRY), ('in_graph', EXIT_RETRY)])
def test_a_second_training_in_one_train_dir_is_refused_before_it_wrote_anything(way, code, tmp_path, monkeypatch):
    monkeypatch.setattr(run_state, 'alone_in', functools.partial(alone_in, patience=0))
    task = Task(toy_model.dataset_for(8), toy_model.toy_loss, 8, 8)
    run, devices, config = RunConfig(train_dir=str(tmp_path), max_steps=1), DeviceConfig(), ClusterConfig()
    with alone_in(str(tmp_path)):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(UserError, match=f'process {os.getpid()} on .* trains in {tmp_path}') as error:
            if way == 'one_machine':
                train.train_here(task, devices, run)
            elif way == 'between_graph':
                workers.run_worker(CLUSTER, task, devices, run, config)
            else:
                in_graph.run_client(CLUSTER, task, devices, run, InGraphConfig(), config)
        assert error.value.exit_code == code and '\n' not in str(error.value)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
