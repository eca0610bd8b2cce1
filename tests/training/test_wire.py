"""What crosses between machines: in the dtype of the wire, small tensors in one piece, fetched a step ahead if asked.
Servers of this process, no processes.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import toy_model
from forms import FAST, in_both_forms

from dist.launch.local import free_ports
from inception_mg.config import OptimizerConfig
from inception_mg.fast import transfers
from inception_mg.fast.operations import PLAIN
from inception_mg.placement import CPU, Tower, between_graph, bytes_of, machine_of
from inception_mg.training import step_records, wire
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
BATCH = 8
PS, WORKER = [f'/job:ps/task:{k}{CPU}' for k in range(2)], f'/job:worker/task:0{CPU}'
PLACEMENT = between_graph(2, 0, [Tower(CPU, CPU)])


@pytest.fixture(scope='module')
def target() -> str:
    """2 ps and a worker; returns the worker's target."""
    ports = free_ports(3)
    spec = {'ps': [f'127.0.0.1:{port}' for port in ports[:2]], 'worker': [f'127.0.0.1:{ports[2]}']}
    servers = [tf.distribute.Server(spec, job, task) for job in spec for task in range(len(spec[job]))]
    yield servers[2].target


def session(target: str) -> v1.Session:
    config = v1.ConfigProto(allow_soft_placement=False)
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # As in training on CPUs.
    return v1.Session(target, config=config)


def train(target: str, placement, steps: int, make_optimizer=toy_model.make_optimizer, operations=FAST,
          frozen=()):
    """Returns the losses of some steps, and the records of one more."""
    with tf.Graph().as_default():
        step = build_train_step(placement, Task(toy_model.dataset_for(BATCH), toy_model.toy_loss, BATCH, BATCH,
                                                OptimizerConfig(moving_average_decay=0.9), make_optimizer,
                                                operations=operations, frozen=frozen))
        with session(target) as sess:
            sess.run(v1.global_variables_initializer())
            sess.run(step.start_input)
            losses_v = [sess.run([step.loss, step.train_op])[0] for _ in range(steps)]
            metadata = v1.RunMetadata()
            sess.run(step.train_op, options=step_records.trace_options(), run_metadata=metadata)
    return losses_v, metadata, step


def moved(metadata, source: str, goal: str) -> tuple[int, int]:
    """Tensors with content and bytes that went from the machines of one job to those of another."""
    sizes = [move.bytes for move in step_records.transfers(metadata)
             if machine_of(move.source).startswith(source) and machine_of(move.target).startswith(goal)]
    return len([size for size in sizes if size > 8]), sum(size for size in sizes if size > 8)  # Scalars left out.


def test_gradients_and_statistics_go_in_one_piece_to_each_ps(target):
    losses_v, metadata, _ = train(target, PLACEMENT, 5)
    np.testing.assert_allclose(losses_v, toy_model.numpy_run(BATCH, 5)[0], rtol=1e-5)
    count, size = moved(metadata, '/job:worker', '/job:ps')
    assert size == toy_model.WEIGHT_BYTES + toy_model.STATISTIC_BYTES
    assert count <= 3  # Gradients to either ps, and the statistic to one of them.


def test_small_weights_come_in_one_piece_from_each_ps(target):
    _, metadata, step = train(target, PLACEMENT, 0)
    count, size = moved(metadata, '/job:ps', '/job:worker')
    assert size == toy_model.WEIGHT_BYTES
    assert count == 2 < len(step.gradients)


def test_the_plain_form_sends_the_same_bytes_one_by_one(target):
    losses_v, metadata, step = train(target, PLACEMENT, 5, operations=PLAIN)
    np.testing.assert_allclose(losses_v, toy_model.numpy_run(BATCH, 5)[0], rtol=1e-5)
    weights = len(step.gradients)
    # (The bias has 4 bytes, too few for `moved` to count.)
    assert moved(metadata, '/job:ps', '/job:worker') == (weights - 1, toy_model.WEIGHT_BYTES - 4)
    assert moved(metadata, '/job:worker', '/job:ps') == (
        weights, toy_model.WEIGHT_BYTES - 4 + toy_model.STATISTIC_BYTES)


@in_both_forms
def test_bfloat16_halves_the_bytes_of_weights_and_gradients(target, operations):
    _, plain, _ = train(target, PLACEMENT, 0, operations=operations)
    losses_v, half, step = train(target, dataclasses.replace(PLACEMENT, wire_dtype='bfloat16'), 30,
                                 operations=operations)
    assert moved(half, '/job:ps', '/job:worker')[1] == moved(plain, '/job:ps', '/job:worker')[1] / 2
    assert moved(half, '/job:worker', '/job:ps')[1] == (
        moved(plain, '/job:worker', '/job:ps')[1] + toy_model.STATISTIC_BYTES) / 2
    losses = toy_model.numpy_run(BATCH, 30)[0]
    np.testing.assert_allclose(losses_v, losses, rtol=0.05)
    assert abs(losses_v[0] - losses[0]) > 1e-7, 'nothing was rounded'
    assert {v.dtype for v in step.loss.graph.get_collection('variables')} == {tf.float32, tf.int64}


def test_prefetched_weights_cost_the_same_bytes_and_nothing_waits_for_them(target):
    # (The toy's momentum does not bear gradients that are a step old.)
    losses_v, metadata, step = train(target, dataclasses.replace(PLACEMENT, prefetch=True), 60,
                                     lambda *args: v1.train.GradientDescentOptimizer(0.05))
    assert losses_v[0] == pytest.approx(toy_model.numpy_run(BATCH, 1)[0][0], rel=1e-5)
    assert losses_v[-1] < losses_v[0] / 2, 'it does not learn'
    _, plain, _ = train(target, PLACEMENT, 0)
    for way in (('/job:ps', '/job:worker'), ('/job:worker', '/job:ps')):
        assert moved(metadata, *way)[1] == pytest.approx(moved(plain, *way)[1], abs=8)
    towers = [op for op in step.loss.graph.get_operations() if op.name.startswith('tower_0/')]
    waited_for = ancestors(towers)
    assert not [op.name for op in waited_for if '/job:ps' in op.device]
    assert [op for op in ancestors([step.train_op]) if op.type == 'ReadVariableOp' and '/job:ps' in op.device]


@in_both_forms
@pytest.mark.parametrize('prefetch', [False, True])
def test_frozen_weights_come_once_per_session(target, operations, prefetch):
    placement = dataclasses.replace(PLACEMENT, prefetch=prefetch)
    (first, *_), metadata, step = train(target, placement, 1, operations=operations, frozen=('left/', 'top/'))
    assert first == pytest.approx(toy_model.numpy_run(BATCH, 1)[0][0], rel=1e-5), 'they did not come'
    trained = sum(bytes_of(variable) for _, variable in step.gradients)
    assert 0 < trained < toy_model.WEIGHT_BYTES / 2
    assert moved(metadata, '/job:ps', '/job:worker')[1] == trained
    assert moved(metadata, '/job:worker', '/job:ps')[1] == trained + toy_model.STATISTIC_BYTES


def ancestors(operations) -> set:
    """All operations that these depend on, themselves included."""
    found, left = set(), list(operations)
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [value.op for value in op.inputs] + list(op.control_inputs)
    return found


def test_large_tensors_go_alone_and_those_of_this_machine_stay(target):
    with tf.Graph().as_default():
        with tf.device(WORKER):
            values = [tf.fill([count], float(count)) for count in (3, transfers.SMALL // 4 + 1, 5, 2)]
        carried = wire.carry(values, [WORKER] * 4, [PS[0], PS[0], PS[0], WORKER], operations=FAST)
        assert carried[3] is values[3]
        assert [value.device for value in carried] == [PS[0]] * 3 + [WORKER]
        assert carried[0].op.inputs[0].op is carried[2].op.inputs[0].op, 'small ones were not joined'
        assert transfers.SMALL // 4 + 1 not in [n for op in (carried[0].op.inputs[0].op,) for n in op.inputs[0].shape]
        with session(target) as sess:
            for value_v, value in zip(sess.run(carried), (3, transfers.SMALL // 4 + 1, 5, 2), strict=True):
                assert value_v.shape == (value,) and (value_v == value).all()
