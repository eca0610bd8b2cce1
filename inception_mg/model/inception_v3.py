"""Inception v3 as the 2016 release has it: names, shapes and arithmetic.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", arXiv:1512.00567, in the
form of slim/inception_model.py of the 2016 release. Comments give the output shape for 299 x 299 and
width 1. The network can be split over devices in two ways that combine: `stages` puts consecutive
blocks on different devices, `branches` the branches of each block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import MINIMUM_IMAGE_SIZE
from inception_mg.errors import UserError
from inception_mg.model.blocks import Outputs, flatten, stage_devices
from inception_mg.model.layers import ConvVariables, Layers, avg_pool, max_pool

v1 = tf.compat.v1

# Multiply-adds of each block for one 299 x 299 image at width 1, in millions, counted from the
# shapes below: where to cut the network into stages of equal work.
BLOCK_COST = {
    'stem': 1341, 'mixed_35x35x256a': 312, 'mixed_35x35x288a': 339, 'mixed_35x35x288b': 348,
    'mixed_17x17x768a': 402, 'mixed_17x17x768b': 374, 'mixed_17x17x768c': 488,
    'mixed_17x17x768d': 488, 'mixed_17x17x768e': 618, 'aux_logits': 6, 'mixed_17x17x1280a': 291,
    'mixed_8x8x2048a': 322, 'mixed_8x8x2048b': 388, 'logits': 2,
}

_STEM_SCOPES = ('conv0', 'conv1', 'conv2', 'conv3', 'conv4')


def inception_v3(images: tf.Tensor, num_outputs: int, layers: Layers, dropout_keep_prob: float = 0.8,
                 branches: Sequence[str] = ('',), stages: Sequence[str] = ('',), aux_head: bool = True) -> Outputs:
    """Builds one copy of the network.

    images: float32 [batch, size, size, 3] in [-1, 1], size at least 75.
    num_outputs: the classes and the background.
    branches, stages: device names, '' for the enclosing device.
    aux_head: without it aux_logits is None; only training needs it.
    Raises UserError for images smaller than the network can reduce.
    """
    size, minimum = min(images.shape[1], images.shape[2]), MINIMUM_IMAGE_SIZE['inception_v3']
    if size < minimum:
        raise UserError(f'image size {size} is below the minimum of Inception v3, {minimum}')
    on_stage = stage_devices(BLOCK_COST, stages)
    points: dict[str, tf.Tensor] = {}
    block = _Blocks(layers, tuple(branches), on_stage, points)

    with tf.device(on_stage['stem']):
        net = _stem(tf.cast(images, layers.compute_dtype), layers, points)  # 35 x 35 x 192
    net = block.grid35('mixed_35x35x256a', net, pool_channels=32)           # 35 x 35 x 256
    net = block.grid35('mixed_35x35x288a', net, pool_channels=64)           # 35 x 35 x 288
    net = block.grid35('mixed_35x35x288b', net, pool_channels=64)           # 35 x 35 x 288
    net = block.to_grid17('mixed_17x17x768a', net)                          # 17 x 17 x 768
    net = block.grid17('mixed_17x17x768b', net, channels=128)               # 17 x 17 x 768
    net = block.grid17('mixed_17x17x768c', net, channels=160)               # 17 x 17 x 768
    net = block.grid17('mixed_17x17x768d', net, channels=160)               # 17 x 17 x 768
    net = block.grid17('mixed_17x17x768e', net, channels=192)               # 17 x 17 x 768
    if aux_head:
        with tf.device(on_stage['aux_logits']):
            points['aux_logits'] = _aux_head(net, num_outputs, layers)      # outputs
    net = block.to_grid8('mixed_17x17x1280a', net)                          # 8 x 8 x 1280
    net = block.grid8('mixed_8x8x2048a', net)                               # 8 x 8 x 2048
    net = block.grid8('mixed_8x8x2048b', net)                               # 8 x 8 x 2048
    with tf.device(on_stage['logits']):
        net = avg_pool(net, net.shape[1:3], padding='VALID')                # 1 x 1 x 2048
        net = flatten(layers.dropout(net, dropout_keep_prob))              # 2048
        with v1.variable_scope('logits'):
            points['logits'] = layers.fully_connected(net, num_outputs, scope='logits')
        points['predictions'] = tf.nn.softmax(points['logits'])
    return Outputs(points['logits'], points.get('aux_logits'), points)


def scopes_below(block: str) -> tuple[str, ...]:
    """Variable scopes of the blocks before `block`, a name of BLOCK_COST; () for ''.

    The auxiliary head is not among them: it is a head, whatever comes after it in the order.
    """
    names = [name for name in BLOCK_COST if name != 'aux_logits']
    below = names[:names.index(block)] if block else []
    return tuple(f'{scope}/' for name in below for scope in (_STEM_SCOPES if name == 'stem' else (name,)))


def _stem(net: tf.Tensor, layers: Layers, points: dict[str, tf.Tensor]) -> tf.Tensor:
    """The plain convolutions before the first Inception block."""
    for name, channels, kernel, stride, padding in (
            ('conv0', 32, 3, 2, 'VALID'),    # 149 x 149 x 32
            ('conv1', 32, 3, 1, 'VALID'),    # 147 x 147 x 32
            ('conv2', 64, 3, 1, 'SAME'),     # 147 x 147 x 64
            ('pool1', 0, 3, 2, 'VALID'),     # 73 x 73 x 64
            ('conv3', 80, 1, 1, 'VALID'),    # 73 x 73 x 80
            ('conv4', 192, 3, 1, 'VALID'),   # 71 x 71 x 192
            ('pool2', 0, 3, 2, 'VALID')):    # 35 x 35 x 192
        if channels:
            net = layers.conv(net, channels, [kernel, kernel], stride, padding, scope=name)
        else:
            net = max_pool(net, kernel, stride, padding)
        points[name] = net
    return net


def _aux_head(net: tf.Tensor, num_outputs: int, layers: Layers) -> tf.Tensor:
    """The auxiliary classifier on the last 17 x 17 grid.

    The release pools 5 x 5, which takes images of at least 107 pixels; below, the window shrinks to
    the grid.
    """
    with v1.variable_scope('aux_logits'):
        net = avg_pool(net, min(5, *net.shape[1:3]), stride=3, padding='VALID')     # 5 x 5 x 768
        net = layers.conv(net, 128, [1, 1], scope='proj')                           # 5 x 5 x 128
        net = layers.conv(net, 768, net.shape[1:3], padding='VALID', stddev=0.01)   # 1 x 1 x 768
        return layers.fully_connected(flatten(net), num_outputs, stddev=0.001)


class _Branch(NamedTuple):
    """Convolutions (channels, height, width), named Conv, Conv_1, ...

    pool: averages beside the first of them, which is 1 x 1. reduce: the last one halves the grid. fan: it ends in a
    1x3 and a 3x1 convolution side by side, of `fan` channels each.
    """

    convs: Sequence[tuple[int, int, int]]
    pool: bool = False
    reduce: bool = False
    fan: int = 0

    def has_head(self) -> bool:
        """Whether it begins with a 1 x 1 convolution."""
        return bool(self.convs) and self.convs[0][1:] == (1, 1)

    def names(self) -> list[str]:
        """The scopes of its convolutions."""
        return [f'Conv_{number}' if number else 'Conv' for number in range(len(self.convs) + 2 * bool(self.fan))]


_MAX_POOL = _Branch(())


class _Blocks:
    """The five kinds of Inception block, each a list of branches that are concatenated."""

    def __init__(self, layers: Layers, branches: tuple[str, ...], on_stage: dict[str, str],
                 points: dict[str, tf.Tensor]):
        self._layers, self._branches, self._on_stage, self._points = layers, branches, on_stage, points

    def grid35(self, name: str, net: tf.Tensor, pool_channels: int) -> tf.Tensor:
        return self._concat(name, net, {
            'branch1x1': _Branch([(64, 1, 1)]),
            'branch5x5': _Branch([(48, 1, 1), (64, 5, 5)]),
            'branch3x3dbl': _Branch([(64, 1, 1), (96, 3, 3), (96, 3, 3)]),
            'branch_pool': _Branch([(pool_channels, 1, 1)], pool=True)})

    def to_grid17(self, name: str, net: tf.Tensor) -> tf.Tensor:
        return self._concat(name, net, {
            'branch3x3': _Branch([(384, 3, 3)], reduce=True),
            'branch3x3dbl': _Branch([(64, 1, 1), (96, 3, 3), (96, 3, 3)], reduce=True),
            'branch_pool': _MAX_POOL})

    def grid17(self, name: str, net: tf.Tensor, channels: int) -> tf.Tensor:
        c = channels
        return self._concat(name, net, {
            'branch1x1': _Branch([(192, 1, 1)]),
            'branch7x7': _Branch([(c, 1, 1), (c, 1, 7), (192, 7, 1)]),
            'branch7x7dbl': _Branch([(c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7)]),
            'branch_pool': _Branch([(192, 1, 1)], pool=True)})

    def to_grid8(self, name: str, net: tf.Tensor) -> tf.Tensor:
        return self._concat(name, net, {
            'branch3x3': _Branch([(192, 1, 1), (320, 3, 3)], reduce=True),
            'branch7x7x3': _Branch([(192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3)], reduce=True),
            'branch_pool': _MAX_POOL})

    def grid8(self, name: str, net: tf.Tensor) -> tf.Tensor:
        return self._concat(name, net, {
            'branch1x1': _Branch([(320, 1, 1)]),
            'branch3x3': _Branch([(384, 1, 1)], fan=384),
            'branch3x3dbl': _Branch([(448, 1, 1), (384, 3, 3)], fan=384),
            'branch_pool': _Branch([(192, 1, 1)], pool=True)})

    def _concat(self, name: str, net: tf.Tensor, branches: dict[str, _Branch]) -> tf.Tensor:
        """Runs each branch on its device and joins their channels on the block's own."""
        devices = {scope: self._branches[number % len(self._branches)] for number, scope in enumerate(branches)}
        with v1.variable_scope(name), tf.device(self._on_stage[name]):
            made = {}
            for scope, branch in branches.items():
                with v1.variable_scope(scope, auxiliary_name_scope=False), tf.device(devices[scope]):
                    made[scope] = self._variables(branch, net.shape[-1])
            kernels = {scope: made[scope][0].kernel for scope, branch in branches.items() if branch.has_head()}
            heads = self._heads(net, kernels, devices)
            outputs = []
            for scope, branch in branches.items():
                with v1.variable_scope(scope), tf.device(devices[scope]):
                    outputs.append(self._run(branch, made[scope], net, heads.get(scope)))
            self._points[name] = tf.concat(outputs, axis=3)
        return self._points[name]

    def _variables(self, branch: _Branch, channels: int) -> list[ConvVariables]:
        """The variables of a branch, in the release's order."""
        shapes = []
        for outputs, height, width in branch.convs:
            shapes.append([height, width, channels, self._layers.depth(outputs)])
            channels = shapes[-1][-1]
        if branch.fan:
            shapes += [[*kernel, channels, self._layers.depth(branch.fan)] for kernel in ((1, 3), (3, 1))]
        made = []
        for name, shape in zip(branch.names(), shapes, strict=True):
            with v1.variable_scope(name, auxiliary_name_scope=False):
                made.append(self._layers.conv_variables(shape))
        return made

    def _heads(self, net: tf.Tensor, kernels: dict[str, tf.Tensor], devices: dict[str, str]) -> dict[str, tf.Tensor]:
        """The products of those branches that begin with a 1 x 1 convolution.

        On one device they are a single product, several times as wide: `net` is read once, and its gradient is no sum
        of four.
        """
        if len(set(devices.values())) > 1 or len(kernels) < 2 or not self._layers.joint_products:
            products = {}
            for scope, kernel in kernels.items():
                with tf.device(devices[scope]), tf.name_scope(scope):
                    products[scope] = self._layers.product(net, kernel)
            return products
        with tf.name_scope('heads'), tf.device(devices[next(iter(kernels))]):
            product = self._layers.product(net, tf.concat(list(kernels.values()), axis=3))
            parts = tf.split(product, [kernel.shape[3] for kernel in kernels.values()], axis=3)
        return dict(zip(kernels, parts, strict=True))

    def _run(self, branch: _Branch, made: Sequence[ConvVariables], net: tf.Tensor, head: tf.Tensor | None) -> tf.Tensor:
        """A branch on `net`; head: the product of its first convolution, if that is 1 x 1."""
        if not branch.convs:
            return max_pool(net)
        names, last = branch.names(), len(branch.convs) - 1
        for number, conv in enumerate(made[:last + 1]):
            halve = branch.reduce and number == last
            with v1.variable_scope(names[number]):
                if number or head is None:
                    net = self._layers.product(net, conv.kernel, 2 if halve else 1, 'VALID' if halve else 'SAME')
                else:
                    # The release averages before this convolution. One is linear over pixels and the other over
                    # channels, so they may change places, and afterwards there are fewer channels to average.
                    net = avg_pool(head) if branch.pool else head
                net = self._layers.activate(net, conv)
        if branch.fan:
            ends = []
            for name, conv in zip(names[last + 1:], made[last + 1:], strict=True):
                with v1.variable_scope(name):
                    ends.append(self._layers.activate(self._layers.product(net, conv.kernel), conv))
            net = tf.concat(ends, axis=3)
        return net
