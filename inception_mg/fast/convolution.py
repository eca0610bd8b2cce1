"""The convolution of a training step, with the gradient of its kernel computed the faster way."""

import tensorflow as tf

from inception_mg.fast.batch_norm import on_cpu

v1 = tf.compat.v1

_SMALL_GRID = 64           # Pixels: 8 x 8.
_LARGE_KERNEL = 256 * 256  # Weights per pixel of the kernel.
_GRADIENT = 'Conv2DWithKernelGradientByProducts'


def conv2d(images: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str) -> tf.Tensor:
    """tf.nn.conv2d of [batch, height, width, in] with a kernel [height, width, in, out] of the same dtype.

    On CPUs the gradient of a 1 x 1 kernel, and of a kernel with many channels on a small grid, comes from matrix
    products: oneDNN's own operation takes 2 to 6 times as long for them in bfloat16 with AMX, 1.1 to 2 in float32.
    """
    height, width, channels, outputs = kernel.shape
    small_grid = images.shape[1] * images.shape[2] <= _SMALL_GRID and channels * outputs >= _LARGE_KERNEL
    if stride != 1 or not (height == width == 1 or small_grid):
        return tf.nn.conv2d(images, kernel, stride, padding)
    with v1.get_default_graph().gradient_override_map({'Conv2D': _GRADIENT}):
        return tf.nn.conv2d(images, kernel, 1, padding)


@tf.RegisterGradient(_GRADIENT)
def _gradients(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    images, kernel = op.inputs
    padding, strides = op.get_attr('padding').decode(), op.get_attr('strides')
    sizes = images.shape if images.shape.is_fully_defined() else tf.shape(images)
    of_images = v1.nn.conv2d_backprop_input(sizes, kernel, upstream, strides, padding)
    if on_cpu(op.outputs[0]):
        return of_images, kernel_gradient(images, kernel.shape, upstream, padding)
    return of_images, v1.nn.conv2d_backprop_filter(images, kernel.shape, upstream, strides, padding)


def kernel_gradient(images: tf.Tensor, shape: tf.TensorShape, upstream: tf.Tensor, padding: str) -> tf.Tensor:
    """Gradient of a kernel of `shape` with stride 1: for each of its pixels the product of what that pixel has seen
    of the images, [batch x pixels, in], with the gradient of the result, [batch x pixels, out]."""
    height, width, channels, outputs = shape
    rows, columns = upstream.shape[1:3]
    upstream = tf.reshape(upstream, [-1, outputs])

    def product(seen: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.reshape(seen, [-1, channels]), upstream, transpose_a=True)

    if height == width == 1:
        return tf.reshape(product(images), shape)
    if padding == 'SAME':
        images = tf.pad(images, [[0, 0], _around(height), _around(width), [0, 0]])
    return tf.reshape(tf.stack([product(tf.slice(images, [0, y, x, 0], [-1, rows, columns, channels]))
                                for y in range(height) for x in range(width)]), shape)


def _around(size: int) -> list[int]:
    """Zeros before and after, as SAME has them for a kernel of that size with stride 1."""
    return [(size - 1) // 2, size // 2]


def try_override() -> None:
    """Raises if a single convolution cannot have a gradient of its own."""
    images, kernel = tf.zeros([1, 2, 2, 1]), tf.zeros([1, 1, 1, 1])
    if tf.gradients(conv2d(images, kernel, 1, 'SAME'), kernel)[0].op.type != 'Reshape':
        raise ValueError('the gradient is that of all convolutions')
