"""ResNet-50 v1.5, the form whose speed and precision are published.

He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385, with the change called v1.5: a
bottleneck that halves the grid does so in its 3 x 3 convolution, not in its first 1 x 1, which would read a quarter
of the pixels. Initial values are those of Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677, section
5.1. Comments give the output shape for 224 x 224 and width 1. Names of blocks are those of TF-slim. The network can be
split over devices in two ways that combine: `stages` puts consecutive blocks on different devices, `branches` the
shortcut of a block and what it goes around.
"""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from inception_mg.config import MINIMUM_IMAGE_SIZE
from inception_mg.errors import UserError
from inception_mg.model.blocks import Outputs, flatten, stage_devices
from inception_mg.model.layers import Layers, max_pool

v1 = tf.compat.v1

_UNITS = (3, 4, 6, 3)  # Bottlenecks of block1 to block4; those of a block have the same channels.
_EPSILON = 1.001e-5    # Of batch normalisation: the least that cuDNN takes, and so TensorFlow.

# Multiply-adds of each block for one 224 x 224 image at width 1, in millions, counted from the
# shapes below: where to cut the network into stages of equal work.
BLOCK_COST = {'conv1': 118} | {
    f'block{block}/unit_{unit}': 218 if unit > 1 else 231 if block == 1 else 373
    for block, units in enumerate(_UNITS, 1) for unit in range(1, units + 1)} | {'logits': 2}


def resnet_v1_50(images: tf.Tensor, num_outputs: int, layers: Layers, branches: Sequence[str] = ('',),
                 stages: Sequence[str] = ('',), first_strides: bool = False) -> Outputs:
    """Builds one copy of the network; there is no auxiliary head and no dropout.

    images: float32 [batch, size, size, 3] in [-1, 1], size at least 32.
    num_outputs: the classes and the background.
    branches, stages: device names, '' for the enclosing device.
    first_strides: halve the grid in the first 1 x 1 convolution, as v1 of 2015 and Keras do.
    Raises UserError for images smaller than the network can halve five times.
    """
    size, minimum = min(images.shape[1], images.shape[2]), MINIMUM_IMAGE_SIZE['resnet_v1_50']
    if size < minimum:
        raise UserError(f'image size {size} is below the minimum of ResNet-50, {minimum}')
    layers = dataclasses.replace(layers, batch_norm_epsilon=_EPSILON)  # It goes on collecting in the same lists.
    on_stage = stage_devices(BLOCK_COST, stages)
    points: dict[str, tf.Tensor] = {}

    with tf.device(on_stage['conv1']):
        net = tf.cast(images, layers.compute_dtype)
        points['conv1'] = _conv(layers, net, 64, 7, stride=2, scope='conv1')          # 112 x 112 x 64
        net = points['pool1'] = max_pool(_pad(points['conv1'], 1))                    # 56 x 56 x 64
    for block, units in enumerate(_UNITS, 1):   # 56 x 56 x 256, 28 x 28 x 512, 14 x 14 x 1024, 7 x 7 x 2048
        for unit in range(1, units + 1):
            name = f'block{block}/unit_{unit}'
            with v1.variable_scope(name), tf.device(on_stage[name]):
                stride = 2 if block > 1 and unit == 1 else 1
                net = points[name] = _bottleneck(layers, net, 32 << block, stride, unit == 1, branches, first_strides)
    with tf.device(on_stage['logits']), v1.variable_scope('logits'):
        net = flatten(tf.nn.avg_pool2d(net, net.shape[1:3], 1, 'VALID'))              # 2048
        points['logits'] = layers.fully_connected(net, num_outputs, stddev=0.01, scope='logits')
        points['predictions'] = tf.nn.softmax(points['logits'])
    return Outputs(points['logits'], None, points)


def scopes_below(block: str) -> tuple[str, ...]:
    """Variable scopes of the blocks before `block`, a name of BLOCK_COST; () for ''."""
    names = list(BLOCK_COST)
    return tuple(f'{name}/' for name in names[:names.index(block)]) if block else ()


def _bottleneck(layers: Layers, net: tf.Tensor, channels: int, stride: int, projects: bool, branches: Sequence[str],
                first_strides: bool) -> tf.Tensor:
    """ReLU of a shortcut plus convolutions of 1 x 1, 3 x 3 and 1 x 1, the last to 4 x `channels`.

    projects: the shortcut is a 1 x 1 convolution; otherwise it is `net`. The residual path is on the first device of
    `branches`, the shortcut on the second, the sum on the block's own.
    """
    shortcut = net
    if projects:
        with tf.device(branches[1 % len(branches)]):
            shortcut = _conv(layers, net, 4 * channels, 1, stride, relu=False, scope='shortcut')
    with tf.device(branches[0]):
        strides = (stride, 1) if first_strides else (1, stride)
        residual = _conv(layers, net, channels, 1, strides[0], scope='conv1')
        residual = _conv(layers, residual, channels, 3, strides[1], scope='conv2')
        # With gamma 0 a block begins as its shortcut, which eases the start of training.
        residual = _conv(layers, residual, 4 * channels, 1, gamma=0.0, relu=False, scope='conv3')
    return tf.nn.relu(shortcut + residual)


def _conv(layers: Layers, net: tf.Tensor, channels: int, size: int, stride: int = 1, gamma: float = 1.0,
          relu: bool = True, scope: str = 'Conv') -> tf.Tensor:
    """A convolution with batch normalisation that pads as many zeros before as after.

    SAME does so for stride 1 only; with stride 2 it would put the grid half a pixel beside that of published weights.
    """
    # He et al., arXiv:1502.01852: the variance 2/inputs; two standard deviations hold 0.8796 of it after truncation.
    stddev = math.sqrt(2 / (size * size * int(net.shape[-1]))) / 0.87962566
    if stride > 1:
        net = _pad(net, size // 2)
    return layers.conv(net, channels, [size, size], stride, 'VALID' if stride > 1 else 'SAME', stddev, scope,
                       gamma=gamma, relu=relu)


def _pad(net: tf.Tensor, pixels: int) -> tf.Tensor:
    """Zeros on all four sides."""
    around = [pixels, pixels]
    return tf.pad(net, [[0, 0], around, around, [0, 0]]) if pixels else net
