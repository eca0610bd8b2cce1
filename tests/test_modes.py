"""Ways 1 to 3 of running: the same losses as slow numpy, every operation on its device, and bytes
between devices as predicted. Soft placement is off, so a wrong device fails.
"""

import numpy as np
import pytest
import tensorflow as tf
import toy_model
from forms import in_both_forms

from inception_mg.config import OptimizerConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.placement import Placement, multi_gpu, one_device, split_model
from inception_mg.training import step_records
from inception_mg.training.task import Task
from inception_mg.training.train_step import TrainStep, build_train_step

v1 = tf.compat.v1
BATCH, STEPS = 8, 6
D = [f'/device:CPU:{number}' for number in range(5)]
PLACEMENTS = {
    'one device': one_device(D[1], D[0]),
    'one device, the host itself': one_device(),
    '1 tower': multi_gpu(D[1:2]),
    '2 towers': multi_gpu(D[1:3]),
    '2 towers, one on the host': multi_gpu(D[0:2]),
    '4 towers': multi_gpu(D[1:5]),
    'branches': split_model([D[1:3]], 'branches'),
    'stages': split_model([D[1:3]], 'stages'),
    '2 towers of 2 branches': split_model([D[1:3], D[3:5]], 'branches'),
    '2 towers of 2 stages': split_model([D[1:3], D[3:5]], 'stages'),
}
every_placement = pytest.mark.parametrize('name', PLACEMENTS)


def build(placement: Placement, operations: Operations = PLAIN) -> TrainStep:
    return build_train_step(placement, Task(toy_model.dataset_for(BATCH), toy_model.toy_loss, BATCH, BATCH,
                                            OptimizerConfig(moving_average_decay=0.9), toy_model.make_optimizer,
                                            operations=operations))


def session() -> v1.Session:
    return v1.Session(config=v1.ConfigProto(device_count={'CPU': len(D)}, allow_soft_placement=False))


def start(sess: v1.Session, step: TrainStep) -> None:
    sess.run(v1.global_variables_initializer())
    sess.run(step.start_input)


def traced_step(placement: Placement, operations: Operations) -> tuple[TrainStep, v1.RunMetadata]:
    with tf.Graph().as_default():
        step = build(placement, operations)
        with session() as sess:
            start(sess, step)
            metadata = v1.RunMetadata()
            sess.run(step.train_op, options=step_records.trace_options(), run_metadata=metadata)
    return step, metadata


@in_both_forms
@every_placement
def test_same_losses_as_numpy_at_every_step(name, operations):
    placement = PLACEMENTS[name]
    losses, values = toy_model.numpy_run(BATCH, STEPS, len(placement.towers))
    with tf.Graph().as_default():
        step = build(placement, operations)
        with session() as sess:
            start(sess, step)
            losses_v = [sess.run([step.loss, step.train_op])[0] for _ in range(STEPS)]
            values_v = {v.op.name: sess.run(v) for v in v1.global_variables()}
    np.testing.assert_allclose(losses_v, losses, rtol=1e-5)
    for name, value in values.items():
        np.testing.assert_allclose(values_v[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert values_v['global_step'] == STEPS


@in_both_forms
@every_placement
def test_one_set_of_variables_whatever_the_towers(name, operations):
    def names(placement, operations=PLAIN):
        with tf.Graph().as_default():
            build(placement, operations)
            return [v.name for v in v1.global_variables()]
    assert names(PLACEMENTS[name], operations) == names(one_device())
    assert not [n for n in names(PLACEMENTS[name]) if n.startswith('tower_')]


@in_both_forms
@every_placement
def test_variables_slots_and_averages_on_the_variable_device(name, operations):
    placement = PLACEMENTS[name]
    with tf.Graph().as_default() as graph:
        build(placement, operations)
        handles = [op for op in graph.get_operations() if op.type == 'VarHandleOp']
        # 4 weights and the statistic, their 5 averages, 4 momenta, global_step.
        assert len(handles) == 5 + 5 + 4 + 1
        assert {op.device for op in handles} == set(placement.variables)


@in_both_forms
@every_placement
def test_every_operation_on_its_device(name, operations):
    placement = PLACEMENTS[name]
    _, metadata = traced_step(placement, operations)
    where = step_records.devices_of_ops(metadata)
    toy_model.check_tower_devices(placement, where)
    for number, tower in enumerate(placement.towers):
        ops = {op: d for op, d in where.items() if op.startswith(f'tower_{number}/')}
        assert set(ops.values()) <= {tower.device, *tower.branches, *tower.stages}
    others = {op: d for op, d in where.items() if not op.startswith('tower_')}
    elsewhere = {op: d for op, d in others.items() if d not in placement.variables}
    assert not elsewhere


@in_both_forms
@pytest.mark.parametrize('name', ['one device', '1 tower', '2 towers', '4 towers'])
def test_bytes_per_step_as_predicted(name, operations):
    placement = PLACEMENTS[name]
    _, metadata = traced_step(placement, operations)
    towers = len(placement.towers)
    images = 4 * BATCH // towers * (toy_model.INPUTS + 1)  # Inputs and targets, float32.
    expected = {}
    for tower in placement.towers:
        expected[D[0], tower.device] = toy_model.WEIGHT_BYTES + images
        expected[tower.device, D[0]] = toy_model.WEIGHT_BYTES
    expected[placement.towers[-1].device, D[0]] += toy_model.STATISTIC_BYTES
    assert step_records.bytes_between(step_records.transfers(metadata)) == expected


@in_both_forms
@pytest.mark.parametrize('name', ['branches', 'stages', '2 towers of 2 branches', '2 towers of 2 stages'])
def test_bytes_of_a_split_model(name, operations):
    """Weights cross once to the one device that uses them, and only activations cross inside."""
    placement = PLACEMENTS[name]
    _, metadata = traced_step(placement, operations)
    moved = step_records.bytes_between(step_records.transfers(metadata))
    share = BATCH // len(placement.towers)
    scalar = 4
    for number, tower in enumerate(placement.towers):
        first, second = (tower.branches if len(tower.branches) > 1 else tower.stages)
        to_devices = moved[D[0], first] + moved[D[0], second]
        images = 4 * share * toy_model.INPUTS * len([d for d in tower.branches])  # Each branch reads them.
        targets = 4 * share
        assert to_devices == toy_model.WEIGHT_BYTES + images + targets
        statistics = toy_model.STATISTIC_BYTES if number == len(placement.towers) - 1 else 0
        assert moved[first, D[0]] + moved[second, D[0]] == toy_model.WEIGHT_BYTES + statistics
        # Between its two devices: the hidden values once, their gradient once, no weight.
        hidden = 4 * share * toy_model.HIDDEN * (1 if len(tower.branches) > 1 else 2)
        assert hidden <= moved[first, second] <= hidden + 3 * scalar
        assert hidden <= moved[second, first] <= hidden + 3 * scalar
    inside = {(a, b) for a, b in moved if D[0] not in (a, b)}
    pairs = [tower.branches if len(tower.branches) > 1 else tower.stages for tower in placement.towers]
    assert inside == {pair for a, b in pairs for pair in ((a, b), (b, a))}


def test_a_batch_that_does_not_split_is_refused():
    with tf.Graph().as_default(), pytest.raises(FlagError, match='batch_size=8 .* 3 towers'):
        build(multi_gpu(D[1:4]))


def test_a_variable_without_gradient_is_named():
    def loss(batch, tower):
        v1.get_variable('forgotten', [2], tf.float32)
        return toy_model.toy_loss(batch, tower)
    with tf.Graph().as_default(), pytest.raises(UserError, match='forgotten'):
        build_train_step(one_device(), Task(toy_model.dataset_for(BATCH), loss, BATCH, BATCH))
