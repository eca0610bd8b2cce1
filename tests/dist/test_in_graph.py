"""Way 4, one graph over a cluster of in-process servers: the losses of slow numpy, every operation on its machine, and
bytes per machine as predicted. Soft placement is off.
"""

import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.training.task import Task
import toy_model
from forms import FAST

from dist.hosts import Cluster
from dist.in_graph import naming_the_reader, place, worker_devices
from dist.launch.local import free_ports
from dist.board import Board
from dist.ps import serve
from inception_mg import checks
from inception_mg.training import step_records
from inception_mg.config import DeviceConfig, InGraphConfig, OptimizerConfig, RunConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.placement import Placement, in_graph, one_device
from inception_mg.training.start import build_saver
from inception_mg.training.towers import read_batches
from inception_mg.training.train_step import TrainStep, build_train_step

v1 = tf.compat.v1
BATCH, STEPS = 8, 5
D = ['/device:CPU:0', '/device:CPU:1']
PS = [f'/job:ps/task:{task}/device:CPU:0' for task in range(2)]
W = [[f'/job:worker/task:{task}{device}' for device in D] for task in range(2)]
CLUSTER = Cluster(('a:1', 'b:1'), ('c:1', 'd:1'), 'worker', 0)
PLACEMENTS = {
    '2 workers': in_graph(2, [D[:1], D[:1]]),
    '2 workers x 2 devices': in_graph(2, [D, D]),
    'no ps': in_graph(0, [D, D]),
    'stages on each worker': in_graph(2, [D, D], 'stages'),
    'stages over hosts': in_graph(2, [D[1:], D[1:]], 'stages', over_hosts=True),
    'branches over hosts': in_graph(2, [D[1:], D[1:]], 'branches', over_hosts=True),
    '2 towers of 2 stages over hosts': in_graph(2, [D, D], 'stages', over_hosts=True),
}
every_placement = pytest.mark.parametrize('name', PLACEMENTS)


@pytest.fixture(scope='module')
def target() -> str:
    """2 ps and 2 workers with 2 CPU devices each, as servers of this process; returns worker 0's target."""
    ports = free_ports(4)
    spec = {'ps': [f'127.0.0.1:{port}' for port in ports[:2]], 'worker': [f'127.0.0.1:{port}' for port in ports[2:]]}
    servers = [tf.distribute.Server(spec, job, task, config=v1.ConfigProto(device_count={'CPU': 2}))
               for job in spec for task in range(2)]
    yield servers[2].target


def parts(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
    """The examples in consecutive parts, so that the last tower has the last ones, as in numpy_run."""
    inputs, targets = (np.split(values, readers)[first] for values in toy_model.data(BATCH))
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat().batch(batch_size, drop_remainder=True)


def build(placement: Placement) -> TrainStep:
    return build_train_step(placement, Task(parts, toy_model.toy_loss, BATCH, BATCH,
                                            OptimizerConfig(moving_average_decay=0.9), toy_model.make_optimizer,
                                            operations=FAST))


def started(target: str, step: TrainStep) -> v1.Session:
    config = v1.ConfigProto(allow_soft_placement=False)
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # As in training on CPUs.
    session = v1.Session(target, config=config)
    session.run(v1.global_variables_initializer())
    session.run(step.start_input)
    return session


@pytest.fixture(scope='module')
def traced(target):
    """Returns the function that gives a placement's step and the records of one run, which it keeps."""
    kept = {}

    def trace(name: str) -> tuple[TrainStep, v1.RunMetadata]:
        if name not in kept:
            with tf.Graph().as_default():
                step = build(PLACEMENTS[name])
                with started(target, step) as session:
                    metadata = v1.RunMetadata()
                    session.run(step.train_op, options=step_records.trace_options(), run_metadata=metadata)
            kept[name] = step, metadata
        return kept[name]
    return trace


@every_placement
def test_same_losses_as_numpy_at_every_step(target, name):
    placement = PLACEMENTS[name]
    losses, values = toy_model.numpy_run(BATCH, STEPS, len(placement.towers))
    with tf.Graph().as_default():
        step = build(placement)
        with started(target, step) as session:
            losses_v = [session.run([step.loss, step.train_op])[0] for _ in range(STEPS)]
            values_v = {v.op.name: session.run(v) for v in v1.global_variables()}
    np.testing.assert_allclose(losses_v, losses, rtol=1e-5)
    for name, value in values.items():
        np.testing.assert_allclose(values_v[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_checkpoint_of_two_ps_goes_on_with_one_with_none_and_on_one_machine(target, tmp_path):
    losses, _ = toy_model.numpy_run(BATCH, 6)
    run = RunConfig(train_dir=str(tmp_path))
    with tf.Graph().as_default():
        step = build(PLACEMENTS['2 workers'])
        saver = build_saver(run)
        with started(target, step) as session:
            for _ in range(3):
                session.run(step.train_op)
            path = saver.save(session, str(tmp_path / 'model.ckpt'), global_step=3, write_meta_graph=False)
    for placement in (PLACEMENTS['no ps'], in_graph(1, [D[:1], D[:1]]), one_device(D[0])):
        with tf.Graph().as_default():
            step = build(placement)
            saver = build_saver(run)
            with started(target if len(placement.hosts) > 1 else '', step) as session:
                saver.restore(session, path)
                losses_v = [session.run([step.loss, step.train_op])[0] for _ in range(3)]
        np.testing.assert_allclose(losses_v, losses[3:], rtol=1e-6)


@every_placement
def test_every_operation_on_its_device(traced, name):
    placement = PLACEMENTS[name]
    step, metadata = traced(name)
    where = step_records.devices_of_ops(metadata)
    toy_model.check_tower_devices(placement, where)
    # Each host reads its own input, and applies nothing; each variable, slot and average is beside its weight.
    for number, host in enumerate(placement.hosts):
        assert {d for op, d in where.items() if op.startswith(f'input_{number}/')} == {host}
    handles = [op for op in step.loss.graph.get_operations() if op.type == 'VarHandleOp']
    assert {op.device for op in handles} == set(placement.variables)
    updates = {d for op, d in where.items() if 'ResourceApply' in op or op.startswith('averages/')}
    assert updates <= set(placement.variables)


@pytest.mark.parametrize('name', ['2 workers', '2 workers x 2 devices', 'stages on each worker', 'stages over hosts',
                                  'branches over hosts', '2 towers of 2 stages over hosts'])
def test_each_machine_pulls_each_weight_once_and_pushes_one_gradient(traced, name):
    _, metadata = traced(name)
    between: dict[tuple[str, str], int] = {}
    for (source, goal), size in step_records.bytes_between(step_records.transfers(metadata)).items():
        key = source.partition('/device:')[0][5:], goal.partition('/device:')[0][5:]
        between[key] = between.get(key, 0) + size
    ps_tasks, workers = ('ps/task:0', 'ps/task:1'), ('worker/task:0', 'worker/task:1')
    pulled = {worker: sum(between.get((ps, worker), 0) for ps in ps_tasks) for worker in workers}
    pushed = {worker: sum(between.get((worker, ps), 0) for ps in ps_tasks) for worker in workers}
    if 'over hosts' in name:  # All machines of a tower together: each has its own weights.
        assert sum(pulled.values()) == toy_model.WEIGHT_BYTES and min(pulled.values()) > 0
        assert sum(pushed.values()) == toy_model.WEIGHT_BYTES + toy_model.STATISTIC_BYTES
    else:
        assert set(pulled.values()) == {toy_model.WEIGHT_BYTES}
        assert pushed == {'worker/task:0': toy_model.WEIGHT_BYTES,
                          'worker/task:1': toy_model.WEIGHT_BYTES + toy_model.STATISTIC_BYTES}
        crossing = sum(between.get(pair, 0) for pair in (workers, workers[::-1]))
        assert crossing <= 64, 'workers exchanged more than scalars'


def test_the_client_can_run_the_data_set_of_another_worker_only_there(target):
    """Not only the iterator: the operations that make the data set and own its functions."""
    with tf.Graph().as_default() as graph:
        build(PLACEMENTS['2 workers'])
        for kind in ('IteratorV2', 'IteratorGetNext', 'MakeIterator', 'BatchDatasetV2', 'TensorSliceDataset'):
            devices = [op.device for op in graph.get_operations() if op.type == kind]
            assert devices == [W[0][0], W[1][0]], kind


def test_devices_of_the_workers():
    found = [f'/job:{job}/replica:0/task:{task}/device:{kind}:{number}' for job, task, kind, number in (
        ('ps', 0, 'CPU', 0), ('ps', 1, 'CPU', 0), ('worker', 0, 'CPU', 0), ('worker', 0, 'GPU', 0),
        ('worker', 0, 'GPU', 1), ('worker', 1, 'CPU', 0), ('worker', 1, 'CPU', 1))]
    gpus = ['/device:GPU:0', '/device:GPU:1']
    assert worker_devices(CLUSTER, found, 2) == [gpus, D]
    placement = place(CLUSTER, found, 2, DeviceConfig(split_model='stages', split_devices=2), InGraphConfig())
    assert placement == in_graph(2, [gpus, D], 'stages')
    with pytest.raises(UserError, match='worker 0 at c:1 offers 2 GPU devices, but each worker needs 3'):
        worker_devices(CLUSTER, found, 3)
    with pytest.raises(UserError, match='worker 1 at d:1 offers 1 CPU device, but each worker needs 2'):
        worker_devices(CLUSTER, found[:-1], 2)


def test_a_signal_to_all_tasks_leaves_the_client_time_to_save(target):
    """Who serves ends after its client has left; at once if no client is at work."""
    address = target.removeprefix('grpc://')
    cluster = Cluster((), ('127.0.0.1:1', address), 'worker', 1, needs_ps=False)
    serving, claim = Board('worker 1', address, 1, 1, target), '[1]'
    ended, asked = [], threading.Event()
    thread = threading.Thread(target=lambda: ended.append(serve(
        cluster, types.SimpleNamespace(target=target), 60.0, asked.is_set, lambda line: None, one_client=True)))
    thread.start()
    time.sleep(1)
    serving.take(0, claim)
    for beat in range(8):
        time.sleep(0.5)
        serving.beat(0, claim)
        if beat == 4:
            asked.set()
        assert not ended
    thread.join(15)
    assert ended == [143]
    serving.close()
    assert serve(cluster, types.SimpleNamespace(target=target), 60.0, lambda: True, lambda line: None, True) == 143


def test_placements():
    over = in_graph(1, [D, D], 'branches', over_hosts=True)
    assert [tower.branches for tower in over.towers] == [(W[0][0], W[1][0]), (W[0][1], W[1][1])]
    assert over.hosts == (W[0][0],)
    assert [tower.stages for tower in in_graph(1, [[*D, '/device:CPU:2', '/device:CPU:3']], 'stages', 2).towers] == [
        tuple(W[0]), ('/job:worker/task:0/device:CPU:2', '/job:worker/task:0/device:CPU:3')]
    assert in_graph(0, [D]).variables == (W[0][0],)


def test_a_worker_without_its_shards_is_named(target):
    def absent_on_the_last(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
        path = '/data/absent' if first else __file__
        return tf.data.Dataset.from_tensors(path).interleave(tf.data.TextLineDataset, num_parallel_calls=1).map(
            lambda line: (tf.strings.length([line]), [0]))

    with tf.Graph().as_default():
        batches, starts = read_batches(in_graph(2, [D[:1], D[:1]]), absent_on_the_last, 2)
        with tf.device(PS[0]), v1.Session(target) as session:
            total = tf.add_n([batch[0] for batch in batches])
            session.run(starts)
            absent = r'^worker 1 at d:1 cannot read .*: /data/absent.*must have the same \(/data\)'
            with pytest.raises(UserError, match=absent):
                with naming_the_reader(CLUSTER, '/data'):
                    session.run(total)
    with pytest.raises(tf.errors.NotFoundError), naming_the_reader(CLUSTER, '/data'):
        raise tf.errors.NotFoundError(None, None, 'something else')


@pytest.mark.parametrize('options, devices, hosts, words', [
    (InGraphConfig(split_over_hosts=True), DeviceConfig(), (1, 2), 'needs --split_model'),
    (InGraphConfig(split_over_hosts=True), DeviceConfig(split_model='stages'), (1, 1), 'needs at least 2'),
    (InGraphConfig(), DeviceConfig(), (0, 1), 'use train.py')])
def test_refusals(options, devices, hosts, words):
    with pytest.raises(FlagError, match=words):
        checks.check_in_graph(options, devices, *hosts)
