"""Gradients of convolutions by matrix products, against TensorFlow's own operation."""

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.fast.convolution import conv2d, kernel_gradient

v1 = tf.compat.v1


@pytest.mark.parametrize('kernel, padding', [((1, 1), 'SAME'), ((3, 3), 'SAME'), ((1, 7), 'SAME'), ((7, 1), 'SAME'),
                                             ((2, 4), 'SAME'), ((3, 3), 'VALID'), ((6, 5), 'VALID')])
@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-5), ('bfloat16', 1e-2)])
def test_the_kernels_gradient(kernel, padding, dtype, tolerance):
    random = np.random.default_rng(3)
    shape = [*kernel, 5, 6]
    with tf.Graph().as_default(), v1.Session() as session:
        images = tf.cast(random.normal(size=[3, 6, 7, 5]), dtype)
        upstream = tf.cast(random.normal(size=tf.nn.conv2d(images, tf.zeros(shape, dtype), 1, padding).shape), dtype)
        # From the same values, but summed in float32: in bfloat16 the stock operation is the less exact one.
        stock = v1.nn.conv2d_backprop_filter(tf.cast(images, tf.float32), shape, tf.cast(upstream, tf.float32),
                                             [1, 1, 1, 1], padding)
        ours = kernel_gradient(images, tf.TensorShape(shape), upstream, padding)
        ours_v, stock_v = session.run([tf.cast(ours, tf.float32), stock])
    np.testing.assert_allclose(ours_v, stock_v, rtol=0, atol=tolerance * np.abs(stock_v).max())


def gradients_of(kernel: list[int], stride: int, size: int, device: str) -> tuple[set[str], list[np.ndarray]]:
    """Types of the operations behind the gradients of images and kernel, and their values."""
    random = np.random.default_rng(5)
    with tf.Graph().as_default() as graph, v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
        with tf.device(device):
            images = tf.constant(random.normal(size=[2, size, size, kernel[2]]), tf.float32)
            weights = tf.constant(random.normal(size=kernel), tf.float32)
            result = conv2d(images, weights, stride, 'SAME')
            found = tf.gradients(tf.reduce_sum(result * tf.sin(result)), [images, weights])
        return {op.type for op in graph.get_operations()}, session.run(found)


@pytest.mark.parametrize('kernel, stride, size, products', [
    ([1, 1, 8, 8], 1, 12, True), ([3, 3, 256, 256], 1, 8, True), ([3, 3, 8, 8], 1, 8, False),
    ([3, 3, 256, 256], 1, 9, False), ([1, 1, 8, 8], 2, 12, False)])
def test_products_serve_on_a_cpu_where_they_are_faster(kernel, stride, size, products):
    types, found = gradients_of(kernel, stride, size, '/device:CPU:0')
    assert ('MatMul' in types, 'Conv2DBackpropFilter' in types) == (products, not products)
    stock_types, stock = gradients_of(kernel, stride, size, '')  # No device is named: it may be a GPU.
    assert 'Conv2DBackpropFilter' in stock_types and 'MatMul' not in stock_types
    for ours_v, stock_v in zip(found, stock, strict=True):
        np.testing.assert_allclose(ours_v, stock_v, rtol=0, atol=1e-4 * np.abs(stock_v).max())
