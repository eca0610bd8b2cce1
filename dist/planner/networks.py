"""The variables of networks as numbers: bytes and multiply-adds of each, in the order in which a program makes them.

Of Inception v3 as this project has it (tests hold it against the graph), and of the networks of published tables, as
tf_cnn_benchmarks of 2017 builds them. No TensorFlow: these are shapes.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from inception_mg.dealing import BYTES

CLASSES = 1001


class Variable(NamedTuple):
    """bytes: of its value. macs: multiply-adds for one example, forward; only kernels have some. trained: whether it
    crosses the wire (the others, moving statistics, only take room on a ps). shape: of its value; () where only its
    bytes are known."""

    name: str
    bytes: int
    macs: int = 0
    trained: bool = True
    shape: tuple[int, ...] = ()


Network = tuple[Variable, ...]


def trained(network: Sequence[Variable]) -> list[Variable]:
    """Those that go down and whose gradients come up, in order."""
    return [variable for variable in network if variable.trained]


def total(network: Sequence[Variable]) -> int:
    """Bytes of weights that a worker pulls in a step, and as many of gradients that it pushes."""
    return sum(variable.bytes for variable in trained(network))


def of_classes(variables: Sequence[Variable], outputs: int) -> Network:
    """The same network with so many outputs, where it had CLASSES of them.

    Its last layers are those whose numbers of values CLASSES divides: 7 x 11 x 13 divides no other layer's.
    """
    return tuple(one._replace(bytes=one.bytes // CLASSES * outputs, macs=one.macs // CLASSES * outputs)
                 if one.bytes % (BYTES * CLASSES) == 0 else one for one in variables)


@functools.cache
def network(name: str) -> Network:
    """The network of that name, of NETWORKS."""
    return tuple(NETWORKS[name]())


class _Layers:
    """Walks through a network and notes its variables. side, channels: of what the next layer sees. normalised: what
    batch normalisation adds to a convolution; () where that has biases."""

    def __init__(self, side: int, normalised: Sequence[str]):
        self.side, self.channels, self.made, self._normalised = side, 3, [], normalised

    def conv(self, outputs: int, height: int, width: int, stride: int = 1, padding: str = 'SAME', name: str = ''
             ) -> None:
        self.side = reduced(self.side, height, stride, padding)
        name = name or f'conv{len(self.made)}'
        kernel = (height, width, self.channels, outputs)
        self._add(f'{name}/weights', kernel, math.prod(kernel) * self.side ** 2)
        for part in self._normalised or ('biases',):
            self._add(f'{name}/{part}', (outputs,), 0, part not in STATISTICS)
        self.channels = outputs

    def dense(self, outputs: int, name: str = '') -> None:
        name = name or f'dense{len(self.made)}'
        self._add(f'{name}/weights', (self.channels, outputs), self.channels * outputs)
        self._add(f'{name}/biases', (outputs,))
        self.channels, self.side = outputs, 1

    def pool(self, size: int = 3, stride: int = 2, padding: str = 'VALID') -> None:
        self.side = reduced(self.side, size, stride, padding)

    def flatten(self) -> None:
        self.channels, self.side = self.channels * self.side ** 2, 1

    def block(self, name: str, branches: Sequence[Sequence[tuple]]) -> None:
        """Branches side by side, joined. A convolution is (channels, height, width), a fourth number is its stride
        (without padding); 'reduce' as a branch passes the input on, pooled. A list within a branch fans out."""
        side, channels, ends, after = self.side, self.channels, 0, self.side
        for number, branch in enumerate(branches):
            self.side, self.channels, fan = side, channels, 0
            for place, one in enumerate(branch):
                if one == 'reduce':
                    self.pool()
                elif isinstance(one, list):
                    before = self.channels
                    for part, conv in enumerate(one):
                        self.channels = before
                        self.conv(*conv, name=f'{name}/branch{number}/fan{part}')
                        fan += conv[0]
                else:
                    padding = 'VALID' if len(one) > 3 else 'SAME'
                    self.conv(*one, padding=padding, name=f'{name}/branch{number}/conv{place}')
            ends += fan or self.channels
            after = self.side
        self.side, self.channels = after, ends

    def _add(self, name: str, shape: tuple[int, ...], macs: int = 0, is_trained: bool = True) -> None:
        self.made.append(Variable(name, BYTES * math.prod(shape), macs, is_trained, shape))


STATISTICS = ('moving_mean', 'moving_variance')
BETA = ('beta', *STATISTICS)
BETA_GAMMA = ('beta', 'gamma', *STATISTICS)


def reduced(side: int, size: int, stride: int, padding: str) -> int:
    """Pixels of a side after a window of `size` has gone over it."""
    return -(-side // stride) if padding == 'SAME' else -(-(side - size + 1) // stride)


def inception_v3(aux_head: bool = True, side: int = 299) -> list[Variable]:
    """With the auxiliary head that of 2016 and ours, 196 trained variables; without, that of 2017, 190."""
    net = _Layers(side, BETA)
    for outputs, size, stride, padding in ((32, 3, 2, 'VALID'), (32, 3, 1, 'VALID'), (64, 3, 1, 'SAME')):
        net.conv(outputs, size, size, stride, padding)
    net.pool()
    net.conv(80, 1, 1, padding='VALID')
    net.conv(192, 3, 3, padding='VALID')
    net.pool()
    for number, pooled in enumerate((32, 64, 64)):
        net.block(f'35_{number}', [[(64, 1, 1)], [(48, 1, 1), (64, 5, 5)], [(64, 1, 1), (96, 3, 3), (96, 3, 3)],
                                   [(pooled, 1, 1)]])
    net.block('17_a', [[(384, 3, 3, 2)], [(64, 1, 1), (96, 3, 3), (96, 3, 3, 2)], ['reduce']])
    for number, c in enumerate((128, 160, 160, 192)):
        net.block(f'17_{number}', [
            [(192, 1, 1)], [(c, 1, 1), (c, 1, 7), (192, 7, 1)],
            [(c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7)], [(192, 1, 1)]])
    if aux_head:
        before = net.side, net.channels
        net.pool(5, 3)
        net.conv(128, 1, 1, name='aux/proj')
        net.conv(768, net.side, net.side, padding='VALID', name='aux/conv')
        net.dense(CLASSES, 'aux/logits')
        net.side, net.channels = before
    net.block('8_a', [[(192, 1, 1), (320, 3, 3, 2)], [(192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3, 2)],
                      ['reduce']])
    for number in range(2):
        net.block(f'8_{number}', [
            [(320, 1, 1)], [(384, 1, 1), [(384, 1, 3), (384, 3, 1)]],
            [(448, 1, 1), (384, 3, 3), [(384, 1, 3), (384, 3, 1)]], [(192, 1, 1)]])
    net.dense(CLASSES, 'logits')
    return net.made


def resnet(units: Sequence[int]) -> list[Variable]:
    """ResNet version 1 of 50 layers (3, 4, 6, 3) or 152 (3, 8, 36, 3) for 224 x 224."""
    net = _Layers(224, BETA_GAMMA)
    net.conv(64, 7, 7, 2)
    net.pool(padding='SAME')
    for stage, count in enumerate(units):
        for unit in range(count):
            inputs, side, narrow = net.channels, net.side, 64 << stage
            stride = 2 if stage and not unit else 1
            if not unit:
                net.conv(4 * narrow, 1, 1, stride)
                net.channels, net.side = inputs, side
            net.conv(narrow, 1, 1, stride)
            net.conv(narrow, 3, 3)
            net.conv(4 * narrow, 1, 1)
    net.dense(CLASSES)
    return net.made


def vgg16() -> list[Variable]:
    """Configuration D for 224 x 224."""
    net = _Layers(224, ())
    for count, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            net.conv(channels, 3, 3)
        net.pool(2)
    net.flatten()
    for outputs in (4096, 4096, CLASSES):
        net.dense(outputs)
    return net.made


def alexnet() -> list[Variable]:
    """The one-tower form, for 227 x 227."""
    net = _Layers(227, ())
    net.conv(64, 11, 11, 4, 'VALID')
    net.pool()
    net.conv(192, 5, 5)
    net.pool()
    for channels in (384, 384, 256):
        net.conv(channels, 3, 3)
    net.pool()
    net.flatten()
    for outputs in (4096, 4096, CLASSES):
        net.dense(outputs)
    return net.made


NETWORKS = {
    'inception_v3': inception_v3, 'inception_v3_2017': functools.partial(inception_v3, aux_head=False),
    'resnet_50': functools.partial(resnet, (3, 4, 6, 3)), 'resnet_152': functools.partial(resnet, (3, 8, 36, 3)),
    'vgg_16': vgg16, 'alexnet': alexnet}
