"""Folding: the logits of the network with variables, from a graph of convolution, bias and ReLU."""

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.config import ModelConfig
from inception_mg.errors import UserError
from inception_mg.model.layers import Layers
from inception_mg.model.networks import network
from inception_mg.weights.folding import CheckpointValues, FoldedLayers

v1 = tf.compat.v1
SIZE = {'inception_v3': 75, 'resnet_v1_50': 64}


def both(name: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Logits of the plain and of the folded network with the same random values; the operations that the runtime made
    of the folded one."""
    images_v = np.random.RandomState(1).uniform(-1, 1, (3, SIZE[name], SIZE[name], 3)).astype(np.float32)
    chance, values_v = np.random.RandomState(2), {}
    with tf.Graph().as_default(), v1.Session() as session:
        layers = Layers(False, width=0.05)
        plain = network(name).build(tf.constant(images_v), 4, layers, ModelConfig(), aux_head=False).logits
        for variable in v1.global_variables():
            scale = 1 / np.sqrt(np.prod(variable.shape[:-1])) if len(variable.shape) > 1 else 0.3
            value = chance.standard_normal(variable.shape.as_list()).astype(np.float32) * scale
            values_v[variable.op.name] = value + 1 if variable.op.name.endswith('gamma') else (
                np.square(value) + 0.1 if 'variance' in variable.op.name else value)
        fed = [v1.placeholder(tf.float32, value.shape) for value in values_v.values()]
        session.run([v.assign(f) for v, f in zip(v1.global_variables(), fed, strict=True)],
                    dict(zip(fed, values_v.values(), strict=True)))
        plain_v = session.run(plain)
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.float32, images_v.shape)
        layers = FoldedLayers(False, width=0.05, values=lambda name, shape: values_v[name].reshape(shape))
        folded = network(name).build(images, 4, layers, ModelConfig(), aux_head=False).logits
        assert not v1.global_variables()
        records = v1.RunMetadata()
        folded_v = session.run(folded, {images: images_v}, v1.RunOptions(output_partition_graphs=True), records)
        made = [node.op for graph in records.partition_graphs for node in graph.node]
    return plain_v, folded_v, made


@pytest.mark.parametrize('name', ['inception_v3', 'resnet_v1_50'])
def test_the_same_logits_and_no_normalisation_left(name):
    plain_v, folded_v, made = both(name)
    spread = np.ptp(plain_v, axis=0).max()
    assert spread > 1e-3 and np.abs(folded_v - plain_v).max() < 1e-5 * max(1, np.abs(plain_v).max())
    assert not [op for op in made if 'BatchNorm' in op]
    if tf.test.is_built_with_cuda() and tf.config.list_physical_devices('GPU'):
        return
    # The runtime's own operation for all three, but where an average comes between them.
    fused = [op for op in made if op in ('_FusedConv2D', '_MklNativeFusedConv2D')]
    assert len(fused) >= (94 - 9 if name == 'inception_v3' else 49), sorted(set(made))


def test_what_does_not_fit_is_named(small_model):
    values = CheckpointValues(f'{small_model}/model.ckpt-6', True, 'the remedy')
    raw = CheckpointValues(f'{small_model}/model.ckpt-6', False, 'the remedy')
    np.testing.assert_array_equal(values('conv0/weights', [3, 3, 3, 8]), 2 * raw('conv0/weights', [3, 3, 3, 8]))
    with pytest.raises(UserError, match=r'has conv0/weights/Exp.* with .* this model with \[3, 3, 3, 32\]: the re'):
        values('conv0/weights', [3, 3, 3, 32])
    with pytest.raises(UserError, match='lacks conv7/weights/Exp.*: the remedy'):
        values('conv7/weights', [1])
