"""The joint operation of batch normalisation and ReLU, against the two."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from forms import FAST

from inception_mg.fast.batch_norm import batch_norm_relu

v1 = tf.compat.v1
JOINT = '_FusedBatchNormEx'


def run(device: str, dtype: str = 'float32', channels: int = 8) -> tuple[set[str], list[np.ndarray]]:
    """Types of all operations; results and the gradients of the input and of beta."""
    random = np.random.default_rng(7)
    with tf.Graph().as_default() as graph, v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
        with tf.device(device):
            net = tf.cast(random.normal(0.3, 2.0, size=[4, 5, 6, channels]), dtype)
            beta = tf.constant(random.normal(size=channels), tf.float32)
            results = batch_norm_relu(net, tf.ones([channels]), beta, 0.001)
            wanted = [*results, *tf.gradients(tf.reduce_sum(results[0] * tf.sin(results[0])), [net, beta])]
        values = session.run([tf.cast(value, tf.float32) for value in wanted])
        return {op.type for op in graph.get_operations()}, values


@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-5), ('bfloat16', 1e-2)])
def test_one_operation_gives_what_the_two_give(dtype, tolerance):
    if not FAST.batch_norm_relu:
        pytest.skip('TensorFlow runs without oneDNN here')
    types, joint = run('/device:CPU:0', dtype)
    assert JOINT in types and 'Relu' not in types
    types, two = run('', dtype)  # No device is named: it may be a GPU.
    assert JOINT not in types and 'Relu' in types
    for joint_v, two_v in zip(joint, two, strict=True):
        np.testing.assert_allclose(joint_v, two_v, rtol=tolerance, atol=tolerance * np.abs(two_v).max())


def test_against_the_formula():
    _, (active, mean, variance, of_net, of_beta) = run('/device:CPU:0')
    random = np.random.default_rng(7)
    net, beta = random.normal(0.3, 2.0, size=[4, 5, 6, 8]), random.normal(size=8)
    centred = net - net.mean((0, 1, 2))
    normal = centred / np.sqrt(net.var((0, 1, 2)) + 0.001)
    np.testing.assert_allclose(active, np.maximum(normal + beta, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, net.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, net.var((0, 1, 2), ddof=1), rtol=1e-4)
    upstream = np.where(active > 0, np.sin(active) + active * np.cos(active), 0)
    np.testing.assert_allclose(of_beta, upstream.sum((0, 1, 2)), rtol=1e-3, atol=1e-3)
    assert abs(of_net.mean()) < 1e-5  # The mean of a channel does not matter.


@pytest.mark.parametrize('channels, dtype', [(6, 'float32'), (8, 'float16')])
def test_the_two_serve_where_the_one_cannot(channels, dtype):
    types, values = run('/device:CPU:0', dtype, channels)
    assert JOINT not in types and all(np.isfinite(value).all() for value in values)


def test_a_tensorflow_without_it_is_recognised():
    code = 'from inception_mg.fast import choice; choice.operations_for(False, print)'
    said = subprocess.run([sys.executable, '-c', code], env=os.environ | {'TF_ENABLE_ONEDNN_OPTS': '0'}, check=True,
                          capture_output=True, text=True, timeout=120).stdout
    assert said.endswith('has no joint batch norm and ReLU: the plain form serves\n') and said.count('\n') == 1
