"""ResNet-50: its size, its shapes, its strides, Keras's logits, and a tower of it split over devices."""

import os
import subprocess
import sys

import golden
import numpy as np
import pytest
import tensorflow as tf

from inception_mg import checks, config
from inception_mg.config import DataConfig, ModelConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.model.blocks import stage_devices
from inception_mg.model.layers import Layers
from inception_mg.model.losses import classification_loss
from inception_mg.model.networks import network
from inception_mg.model.resnet import BLOCK_COST, resnet_v1_50, scopes_below
from inception_mg.placement import one_device, split_model
from inception_mg.training import step_records
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
D = [f'/device:CPU:{number}' for number in range(5)]
NARROW = ModelConfig(model='resnet_v1_50', width=0.1)
KERAS_CLASSES = 7
# Runs Keras 3 in a process of its own: makes all values up, and saves them with the logits of two images.
KERAS = f'''
import sys
import numpy as np
from keras.applications import ResNet50
random = np.random.RandomState(3)
model = ResNet50(weights=None, input_shape=(64, 64, 3), classes={KERAS_CLASSES}, classifier_activation=None)
saved = {{}}
for layer in model.layers:
    for weight in layer.weights:
        if weight.path.endswith('kernel'):
            value = random.standard_normal(weight.shape) * (2 / np.prod(weight.shape[:-1])) ** 0.5
        elif weight.path.endswith(('gamma', 'variance')):
            value = random.uniform(0.5, 1.5, weight.shape)
        else:
            value = 0.2 * random.standard_normal(weight.shape)
        weight.assign(value)
        saved[weight.path] = np.asarray(weight.value)
images = random.uniform(-1, 1, (2, 64, 64, 3)).astype(np.float32)
np.savez(sys.argv[1], images=images, logits=np.asarray(model(images, training=False)), **saved)
'''


@pytest.fixture(scope='module')
def full():
    """The network for images of 224 pixels and 1000 outputs, in training: its end points, layers and variables."""
    with tf.Graph().as_default():
        layers = Layers(True)
        points = resnet_v1_50(tf.zeros([2, 224, 224, 3]), 1000, layers).end_points
        return points, layers, v1.global_variables(), v1.trainable_variables(), v1.get_default_graph()


def test_the_published_number_of_parameters(full):
    assert sum(v.shape.num_elements() for v in full[3]) == 25_557_032
    gammas = [v for v in full[3] if v.op.name.endswith('BatchNorm/gamma')]
    assert len(gammas) == 53 and len(full[3]) == 3 * 53 + 2
    assert len(full[1].statistics) == 2 * 53 == len(full[2]) - len(full[3])
    assert len(full[1].l2_losses) == 54  # Kernels and the last layer: no beta, no gamma.


def test_end_points(full):
    shapes = {name: tuple(point.shape[1:]) for name, point in full[0].items()}
    grids = {1: (56, 56, 256), 2: (28, 28, 512), 3: (14, 14, 1024), 4: (7, 7, 2048)}
    assert shapes == {
        'conv1': (112, 112, 64), 'pool1': (56, 56, 64), 'logits': (1000,), 'predictions': (1000,),
        **{f'block{block}/unit_{unit}': grids[block] for block, units in enumerate((3, 4, 6, 3), 1)
           for unit in range(1, units + 1)}}


def test_the_grid_halves_in_the_3x3_convolutions_and_the_cost_is_counted(full):
    """Stride 2 is v1.5's; the multiply-adds of every block follow from the shapes in the graph."""
    halving, cost = set(), dict.fromkeys(BLOCK_COST, 0)
    for op in full[4].get_operations():
        if op.type not in ('Conv2D', 'MatMul'):
            continue
        block = next(name for name in BLOCK_COST if op.name.startswith(f'{name}/'))
        kernel, output = op.inputs[1].shape, op.outputs[0].shape
        cost[block] += (kernel.num_elements() * output[1:-1].num_elements() if len(output) == 4
                        else kernel.num_elements())
        if op.type == 'Conv2D' and op.get_attr('strides')[1] == 2:
            halving.add('/'.join(op.name.split('/')[:-1]))
    assert halving == {'conv1'} | {f'block{k}/unit_1/{conv}' for k in (2, 3, 4) for conv in ('shortcut', 'conv2')}
    assert {name: round(count / 1e6) for name, count in cost.items()} == BLOCK_COST


def test_initial_values():
    """He's variance for the kernels; every gamma is 1 but those before an addition."""
    with tf.Graph().as_default(), v1.Session() as session:
        resnet_v1_50(tf.zeros([2, 32, 32, 3]), 9, Layers(True, width=0.25))
        variables = v1.trainable_variables()
        session.run(v1.global_variables_initializer())
        values = dict(zip([v.op.name for v in variables], session.run(variables), strict=True))
    for name, value in values.items():
        if name.endswith('gamma'):
            assert (value == (0 if '/conv3/' in name else 1)).all(), name
        elif 'logits' not in name and value.ndim == 4 and value.size > 4000:
            np.testing.assert_allclose(value.std(), (2 / np.prod(value.shape[:-1])) ** 0.5, rtol=0.06, err_msg=name)


def keras_name(name: str) -> str:
    """The name in Keras's ResNet50 of our variable: conv2_block1_0_conv is the shortcut of block1/unit_1."""
    leaves = {'weights': 'kernel', 'biases': 'bias', 'gamma': 'gamma', 'beta': 'beta', 'moving_mean': 'moving_mean',
              'moving_variance': 'moving_variance'}
    scope, leaf = name.rsplit('/', 1)
    kind = 'bn' if scope.endswith('/BatchNorm') else 'conv'
    parts = scope.removesuffix('/BatchNorm').split('/')
    if parts[0] == 'logits':
        return f'predictions/{leaves[leaf]}'
    if parts == ['conv1']:
        return f'conv1_{kind}/{leaves[leaf]}'
    block, unit, conv = int(parts[0][-1]), parts[1].removeprefix('unit_'), parts[2].removeprefix('conv')
    return f'conv{block + 1}_block{unit}_{conv.replace("shortcut", "0")}_{kind}/{leaves[leaf]}'


def test_keras_has_the_same_logits(tmp_path):
    """With its weights and its strides, those of 2015; its convolutions' biases are taken off the moving means."""
    file = str(tmp_path / 'keras.npz')
    environment = os.environ | {'TF_USE_LEGACY_KERAS': '0', 'CUDA_VISIBLE_DEVICES': '', 'KERAS_BACKEND': 'tensorflow'}
    subprocess.run([sys.executable, '-c', KERAS, file], env=environment, check=True)
    with np.load(file) as saved, tf.Graph().as_default():
        there = dict(saved)
        logits = resnet_v1_50(tf.constant(there['images']), KERAS_CLASSES, Layers(False), first_strides=True).logits
        feeds, assigns = {}, []
        for variable in v1.global_variables():
            name = keras_name(variable.op.name)
            value = there[name]
            if name.endswith('moving_mean'):
                value = value - there[name.replace('_bn/moving_mean', '_conv/bias')]
            holder = v1.placeholder(tf.float32, variable.shape)
            feeds[holder] = value
            assigns.append(variable.assign(holder, read_value=False))
        with v1.Session() as session:
            session.run(assigns, feeds)
            found = session.run(logits)
    np.testing.assert_allclose(found, there['logits'], rtol=0, atol=1e-4 * np.abs(there['logits']).max())


def batch(count: int = 4, size: int = 40):
    random = np.random.RandomState(5)
    return (random.uniform(-1, 1, (count, size, size, 3)).astype(np.float32),
            random.randint(1, 6, count).astype(np.int32))


def run(placement):
    """Loss, gradients by name, and where what ran, of one step with fixed statistics and weights."""
    images, labels = batch()
    with tf.Graph().as_default():
        step = build_train_step(placement, Task(
            lambda part, parts, size: tf.data.Dataset.from_tensors((images, labels)).repeat(),
            lambda part, tower: classification_loss(*part, 6, NARROW, tower.branches, tower.stages, is_training=False),
            100, len(labels)))
        variables = [v for _, v in step.gradients]
        session_config = v1.ConfigProto(device_count={'CPU': len(D)}, allow_soft_placement=False)
        with v1.Session(config=session_config) as session:
            session.run(v1.global_variables_initializer())
            session.run(step.start_input)
            holders = [v1.placeholder(tf.float32, v.shape) for v in variables]
            session.run([v.assign(holder, read_value=False) for v, holder in zip(variables, holders, strict=True)],
                        {holder: golden.value_for(v.op.name, v.shape) + v.op.name.endswith('gamma')
                         for v, holder in zip(variables, holders, strict=True)})
            metadata = v1.RunMetadata()
            loss_v, gradients_v, _ = session.run(
                [step.loss, [g for g, _ in step.gradients], step.train_op],
                options=step_records.trace_options(), run_metadata=metadata)
    gradients = {v.op.name: g for v, g in zip(variables, gradients_v, strict=True)}
    return loss_v, gradients, step_records.devices_of_ops(metadata)


@pytest.fixture(scope='module')
def reference():
    return run(one_device())


@pytest.mark.parametrize('by, expected', [
    ('branches', {'/shortcut/': D[2], '/unit_1/conv1/': D[1], '/unit_2/conv3/': D[1]}),
    ('stages', {'/block1/': D[1], '/block2/': D[1], '/block3/unit_5/': D[2], '/block4/': D[2], '/logits/': D[2]})])
def test_a_split_tower_has_the_numbers_of_a_whole_one_on_its_devices(by, expected, reference):
    loss_v, gradients, where = run(split_model([D[1:3]], by))
    np.testing.assert_allclose(loss_v, reference[0], rtol=1e-5)
    for name, wanted in reference[1].items():
        assert wanted.any(), name
        np.testing.assert_allclose(gradients[name], wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max(), err_msg=name)
    for scope, device in expected.items():
        found = {d for name, d in where.items() if scope in f'/{name}' and ('Conv2D' in name or 'MatMul' in name)}
        assert found == {device}, (scope, found)


def test_stages_have_about_equal_work():
    for count in (2, 3, 4):
        dealt = stage_devices(BLOCK_COST, [str(number) for number in range(count)])
        assert list(dealt.values()) == sorted(dealt.values())
        work = [sum(BLOCK_COST[block] for block, stage in dealt.items() if stage == str(number))
                for number in range(count)]
        assert max(work) <= 1.2 * sum(work) / count


def test_statistics_and_narrow_types():
    with tf.Graph().as_default() as graph:
        images, labels = batch()
        model = ModelConfig(model='resnet_v1_50', width=0.1, compute_dtype='bfloat16', batch_norm_decay=0.9)
        loss = classification_loss(tf.constant(images), tf.constant(labels), 6, model)
        assert set(loss.parts) == {'cross_entropy', 'weight_decay', 'precision_at_1'}
        assert {op.outputs[0].dtype for op in graph.get_operations() if op.type == 'Conv2D'} == {tf.bfloat16}
        assert {v.dtype.base_dtype for v in v1.global_variables()} == {tf.float32} == {loss.total.dtype}
        gradients = v1.gradients(loss.total, v1.trainable_variables())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            values_v = session.run([loss.total, *gradients, *(s.value for s in loss.statistics)])
    assert {s.decay for s in loss.statistics} == {0.9}
    assert all(np.isfinite(value).all() for value in values_v)


@pytest.mark.parametrize('relu', [False, True])
def test_batch_normalisation_with_gamma_by_hand(relu):
    """The biased variance normalises and is the statistic; gamma has a gradient."""
    random = np.random.RandomState(2)
    images, kernel = random.randn(2, 3, 3, 4), random.randn(4, 8)
    product = images @ kernel
    mean, variance = product.mean(axis=(0, 1, 2)), product.var(axis=(0, 1, 2))
    normal = (product - mean) / np.sqrt(variance + 0.001)
    expected = np.maximum(2.5 * normal, 0) if relu else 2.5 * normal
    slope = np.where(expected > 0, normal, 0) if relu else normal
    with tf.Graph().as_default(), v1.Session() as session:
        layers = Layers(True)
        net = layers.conv(tf.constant(images, tf.float32), 8, [1, 1], gamma=2.5, relu=relu, scope='c')
        weights, _, gamma = v1.trainable_variables()
        weighted = tf.reduce_sum(net * tf.constant(product, tf.float32))
        session.run(v1.global_variables_initializer())
        session.run(weights.assign(kernel[None, None]))
        net_v, mean_v, variance_v, gradient_v = session.run(
            [net, *(s.value for s in layers.statistics), v1.gradients(weighted, gamma)[0]])
    for found, wanted in ((net_v, expected), (mean_v, mean), (variance_v, variance),
                          (gradient_v, (slope * product).sum(axis=(0, 1, 2)))):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_what_is_frozen_has_no_gradient_and_no_statistics():
    with tf.Graph().as_default():
        images, labels = batch()
        model = ModelConfig(model='resnet_v1_50', width=0.1, freeze_below='block4/unit_3')
        loss = classification_loss(tf.constant(images), tf.constant(labels), 6, model)
    assert {s.variable.op.name.rpartition('/')[0] for s in loss.statistics} == {
        f'block4/unit_3/conv{number}/BatchNorm' for number in (1, 2, 3)}
    assert scopes_below('') == () and scopes_below('block1/unit_2') == ('conv1/', 'block1/unit_1/')


@pytest.mark.parametrize('name', config.MODELS)
def test_a_network_is_one_value(name):
    found = network(name)
    assert found.name == name and found.default_image_size >= found.minimum_image_size
    assert set(found.freeze_points) < set(found.block_cost)
    assert found.scopes_below('') == () and len(found.scopes_below('logits')) >= len(found.freeze_points)
    model, size = ModelConfig(model=name, width=0.05), found.minimum_image_size
    with tf.Graph().as_default():
        for outputs in (5, 8):
            with v1.variable_scope(str(outputs)):
                made = found.build(tf.zeros([1, size, size, 3]), outputs, Layers(True, width=0.05), model)
        shapes = {v.op.name: v.shape for v in v1.global_variables()}
        assert made.logits.shape == [1, 8] and (made.aux_logits is None) == (not found.aux_head)
        alone = found.build(tf.zeros([1, size, size, 3]), 5, Layers(False, width=0.05), model, aux_head=False)
        assert alone.aux_logits is None
        with pytest.raises(UserError, match=f'{size - 1} .* {size}'):
            found.build(tf.zeros([1, size - 1, size - 1, 3]), 5, Layers(False, width=0.05), model)
    other = {name[2:] for name, shape in shapes.items() if name[0] == '5' and shapes[f'8{name[1:]}'] != shape}
    assert other and other == {name[2:] for name in shapes if name[2:].startswith(found.heads)}
    trained_only = {name[2:] for name in shapes if found.aux_head and name[2:].startswith(found.aux_head)}
    assert bool(trained_only) == bool(found.aux_head)


def test_wrong_names_and_sizes_are_refused():
    with pytest.raises(FlagError, match='--model=vgg must be one of inception_v3, resnet_v1_50'):
        network('vgg')
    with pytest.raises(FlagError, match='--model=vgg'):
        checks.check_model(ModelConfig(model='vgg'))
    with pytest.raises(FlagError, match='--freeze_below=mixed_8x8x2048a must be one of block1/unit_1'):
        checks.check_model(ModelConfig(model='resnet_v1_50', freeze_below='mixed_8x8x2048a'))
    checks.check_data(DataConfig(image_size=32), 'resnet_v1_50')
    with pytest.raises(FlagError, match='--image_size=31 must be at least 32'):
        checks.check_data(DataConfig(image_size=31), 'resnet_v1_50')
    with pytest.raises(FlagError, match='--image_size=74 must be at least 75'):
        checks.check_data(DataConfig(image_size=74))
