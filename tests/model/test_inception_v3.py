"""What the golden figures don't reach: sizes, widths, types, splits, and towers of the real network."""

import golden
import numpy as np
import pytest
import tensorflow as tf
from forms import FAST

from inception_mg.config import ModelConfig
from inception_mg.errors import UserError
from inception_mg.model.blocks import stage_devices
from inception_mg.model.inception_v3 import BLOCK_COST, inception_v3
from inception_mg.model.layers import Layers
from inception_mg.model.losses import classification_loss, smoothed_cross_entropy
from inception_mg.placement import multi_gpu, one_device, split_model
from inception_mg.training import step_records
from inception_mg.training.ps_strategy import LargestFirst
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
D = [f'/device:CPU:{number}' for number in range(5)]
NARROW = ModelConfig(width=0.1, dropout_keep_prob=1.0, label_smoothing=0.1)


def outputs_for(size: int, width: float = 0.1, dtype=tf.float32, batch: int = 2):
    return inception_v3(tf.zeros([batch, size, size, 3]), 6, Layers(True, dtype, width))


@pytest.mark.parametrize('size', [75, 76, 106, 107, 128, 150, 299, 331])
def test_any_size_from_the_minimum_trains(size):
    with tf.Graph().as_default():
        outputs = outputs_for(size)
        assert outputs.logits.shape == outputs.aux_logits.shape == [2, 6]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert np.isfinite(session.run(outputs.logits)).all()


def test_below_the_minimum_is_refused_with_it():
    with tf.Graph().as_default(), pytest.raises(UserError, match='74 .* 75'):
        outputs_for(74)


@pytest.mark.parametrize('width', [0.05, 0.25, 0.5, 2.0])
def test_width_scales_channels_in_multiples_of_eight(width):
    with tf.Graph().as_default():
        points = outputs_for(75, width).end_points
    assert points['conv4'].shape[-1] == max(8, 8 * round(192 * width / 8))
    assert points['mixed_8x8x2048b'].shape[-1] % 8 == 0


def coloured_images() -> np.ndarray:
    """Eight images, each noise around a colour of its own: batch norm needs something to tell apart."""
    random = np.random.RandomState(5)
    return (random.uniform(-0.7, 0.7, (8, 1, 1, 3)) + random.uniform(-0.3, 0.3, (8, 107, 107, 3))).astype(np.float32)


@pytest.mark.parametrize('name', ['bfloat16', 'float16'])
def test_narrow_types_compute_and_keep_variables_and_losses_wide(name):
    dtype = tf.as_dtype(name)
    with tf.Graph().as_default():
        model = ModelConfig(width=0.25, compute_dtype=name, dropout_keep_prob=1.0)
        loss = classification_loss(tf.constant(coloured_images()), tf.range(8) % 6, 6, model)
        graph = v1.get_default_graph()
        convs = [op for op in graph.get_operations() if op.type == 'Conv2D']
        assert {op.outputs[0].dtype for op in convs} == {dtype}
        assert {v.dtype.base_dtype for v in v1.global_variables()} == {tf.float32}
        assert loss.total.dtype == tf.float32 and {s.value.dtype for s in loss.statistics} == {tf.float32}
        gradients = v1.gradients(loss.total, v1.trainable_variables())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            values_v = session.run([loss.total, *gradients])
    assert all(np.isfinite(value).all() for value in values_v)


def test_smoothed_cross_entropy_by_hand():
    logits = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], np.float32)
    labels = [1, 0]
    expected = 0.0
    for row, label in zip(logits.astype(np.float64), labels, strict=True):
        log_softmax = row - np.log(np.exp(row).sum())
        target = np.full(3, 0.1 / 3)
        target[label] += 0.9
        expected -= (target * log_softmax).sum() / 2
    with tf.Graph().as_default(), v1.Session() as session:
        found = session.run(smoothed_cross_entropy(tf.constant(logits), tf.constant(labels), 0.1))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def batch(count: int = 8):
    random = np.random.RandomState(5)
    return (random.uniform(-1, 1, (count, 75, 75, 3)).astype(np.float32),
            random.randint(1, 6, count).astype(np.int32))


def build(placement, is_training: bool):
    images, labels = batch()

    def loss_for(batch, tower):
        return classification_loss(*batch, 6, NARROW, tower.branches, tower.stages, is_training, FAST)

    return build_train_step(placement, Task(lambda part, parts, size: tf.data.Dataset.from_tensors(
        (images, labels)).repeat(), loss_for, 100, len(labels), operations=FAST))


def load_weights(session, variables):
    """Gives every weight a value that depends on its name alone."""
    values = {v1.placeholder(tf.float32, v.shape): (v, golden.value_for(v.op.name, v.shape))
              for v in variables if v.op.name.endswith('/weights')}
    session.run([v.assign(holder, read_value=False) for holder, (v, _) in values.items()],
                {holder: value for holder, (_, value) in values.items()})


def run(placement, is_training: bool):
    """Loss, gradients by name and moving statistics after one step, from fixed weights."""
    with tf.Graph().as_default():
        step = build(placement, is_training)
        variables = v1.global_variables()
        config = v1.ConfigProto(device_count={'CPU': len(D)}, allow_soft_placement=False)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(step.start_input)
            load_weights(session, variables)
            loss_v, gradients_v, _ = session.run([step.loss, [g for g, _ in step.gradients], step.train_op])
            after_v = dict(zip([v.op.name for v in variables], session.run(variables), strict=True))
    return loss_v, {v.op.name: g for (_, v), g in zip(step.gradients, gradients_v, strict=True)}, after_v


@pytest.fixture(scope='module')
def reference():
    return run(one_device(), is_training=False)


@pytest.mark.parametrize('placement', [multi_gpu(D[1:5]), split_model([D[1:4]], 'stages'),
                                       split_model([D[1:3], D[3:5]], 'branches')])
def test_every_way_has_the_loss_and_gradients_of_one_device(placement, reference):
    """Weight decay included, once: with fixed statistics the batch may be cut anywhere."""
    loss_v, gradients_v, after_v = run(placement, is_training=False)
    np.testing.assert_allclose(loss_v, reference[0], rtol=1e-5)
    for name, expected in reference[1].items():
        np.testing.assert_allclose(gradients_v[name], expected, rtol=1e-3, err_msg=name,
                                   atol=1e-5 * max(1, np.abs(expected).max()))
    assert set(after_v) == set(reference[2])


def test_statistics_move_once_per_step_and_by_the_last_tower():
    after_v = run(multi_gpu(D[1:3]), is_training=True)[2]
    moved = [name for name in after_v if 'moving_' in name and not name.endswith('Average')]
    assert len(moved) == 192
    last_v = run_last_half()
    for name in moved:
        start = 1.0 if name.endswith('variance') else 0.0
        assert not np.array_equal(after_v[name], np.full_like(after_v[name], start)), name
        np.testing.assert_allclose(after_v[name], 0.9997 * start + 0.0003 * last_v[name], rtol=1e-3, atol=1e-6)


def run_last_half() -> dict[str, np.ndarray]:
    """The batch statistics of the second half of the batch, computed without any tower code."""
    images, labels = batch()
    with tf.Graph().as_default():
        loss = classification_loss(tf.constant(images[4:]), tf.constant(labels[4:]), 6, NARROW)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            load_weights(session, v1.global_variables())
            return session.run({s.variable.op.name: s.value for s in loss.statistics})


@pytest.mark.parametrize('by', ['branches', 'stages'])
def test_devices_of_a_split_network(by):
    placement = split_model([D[1:3]], by)
    with tf.Graph().as_default():
        step = build(placement, is_training=True)
        config = v1.ConfigProto(device_count={'CPU': len(D)}, allow_soft_placement=False)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(step.start_input)
            metadata = v1.RunMetadata()
            session.run(step.train_op, options=step_records.trace_options(), run_metadata=metadata)
    where = step_records.devices_of_ops(metadata)
    convs = {name: device for name, device in where.items() if 'Conv2D' in name or 'conv2d' in name.lower()}
    assert len(convs) > 2 * 96
    expected = {'branches': {'/branch1x1/': D[1], '/branch5x5/': D[2], '/branch7x7/': D[2], '/branch_pool/': D[2],
                             '/branch7x7dbl/': D[1]},
                'stages': {'/conv4/': D[1], '/mixed_35x35x256a/': D[1], '/mixed_17x17x768e/': D[2],
                           '/mixed_8x8x2048b/': D[2]}}[by]
    for scope, device in expected.items():
        found = {d for name, d in convs.items() if scope in name and '35x35' in name + '35x35'}
        if scope == '/branch_pool/':  # Third branch of the reduction blocks, fourth of the others.
            continue
        assert found == {device}, (scope, found)
    moves = step_records.bytes_between(step_records.transfers(metadata))
    weights = 4 * sum(v.shape.num_elements() for _, v in step.gradients)
    images = batch()[0].nbytes
    down = moves[D[0], D[1]] + moves[D[0], D[2]]
    up = moves[D[1], D[0]] + moves[D[2], D[0]]
    statistics = 4 * sum(v.shape.num_elements() for v in v1_variables(step) if 'moving_' in v.op.name)
    assert weights + images <= down <= weights + images + 1000
    assert weights + statistics <= up <= weights + statistics + 1000


def v1_variables(step):
    graph = step.loss.graph
    return [v for v in graph.get_collection('variables') if not v.op.name.endswith('Average')]


def test_stages_have_about_equal_work():
    for count in (2, 3, 4):
        names = [str(number) for number in range(count)]
        dealt = stage_devices(BLOCK_COST, names)
        assert list(dealt.values()) == sorted(dealt.values())
        work = [sum(BLOCK_COST[block] for block, stage in dealt.items() if stage == name) for name in names]
        assert max(work) <= 1.4 * sum(work) / count


@pytest.mark.parametrize('ps', [2, 3, 4])
def test_bytes_are_balanced_over_devices(ps):
    balance = LargestFirst(ps)
    with tf.Graph().as_default(), v1.variable_scope('', use_resource=True):
        inception_v3(tf.zeros([2, 299, 299, 3]), 1001, Layers(False))
        for v in v1.global_variables():
            balance(v.handle.op)
    assert max(balance.loads) <= 1.2 * sum(balance.loads) / ps


@pytest.mark.parametrize('branches, convolutions', [(('',), 68), (tuple(D[1:3]), 96)])
def test_the_branches_of_a_block_begin_with_one_product_on_one_device(branches, convolutions):
    with tf.Graph().as_default() as graph:
        inception_v3(tf.zeros([2, 107, 107, 3]), 6, Layers(True, width=0.1), branches=branches)
        assert [op.type for op in graph.get_operations()].count('Conv2D') == convolutions
