"""How much a graph computes, from the shapes in it, and which of its convolutions are the heaviest."""

import collections
import math
from typing import NamedTuple

import tensorflow as tf

_CONVOLUTIONS = ('Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter')
_MATRIX_PRODUCTS = ('MatMul', '_FusedMatMul')


class Conv(NamedTuple):
    """A convolution: shapes of its images [n, h, w, in], kernel [kh, kw, in, out] and result [n, h, w, out],
    in the order of NHWC."""

    images: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    stride: int
    padding: str

    @property
    def flops(self) -> int:
        """Multiplications and additions of the convolution; each of its two gradients has as many."""
        return _conv_flops(self.result, self.kernel)


def count_flops(graph: tf.Graph) -> int:
    """Floating-point operations of all convolutions and matrix products of a graph whose shapes are known.

    A multiplication and an addition count two. Everything else in Inception v3 is a per mille of that. Raises
    ValueError, naming the operation, where a shape is unknown.
    """
    return sum(_flops(op) for op in graph.get_operations())


def heaviest_convolutions(graph: tf.Graph, count: int) -> list[Conv]:
    """The `count` kinds of forward convolution that the graph spends most operations on, heaviest first."""
    totals: dict[Conv, int] = collections.Counter()
    for op in graph.get_operations():
        if op.type == 'Conv2D':
            conv = Conv(_shape(op.inputs[0], op), _shape(op.inputs[1], op), _shape(op.outputs[0], op),
                        op.get_attr('strides')[1], op.get_attr('padding').decode())
            totals[conv] += conv.flops
    return sorted(totals, key=lambda conv: -totals[conv])[:count]


def _flops(op: tf.Operation) -> int:
    if op.type in _CONVOLUTIONS:
        # The gradients multiply the same numbers: the result's positions times the kernel.
        kernel = {'Conv2D': op.inputs[1], 'Conv2DBackpropInput': op.inputs[1],
                  'Conv2DBackpropFilter': op.outputs[0]}[op.type]
        result = op.outputs[0] if op.type == 'Conv2D' else op.inputs[2]
        return _conv_flops(_shape(result, op), _shape(kernel, op))
    if op.type in _MATRIX_PRODUCTS:
        inner = _shape(op.inputs[0], op)[0 if op.get_attr('transpose_a') else 1]
        return 2 * math.prod(_shape(op.outputs[0], op)) * inner
    return 0


def _conv_flops(result: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    return 2 * math.prod(result[:-1]) * math.prod(kernel)


def _shape(tensor: tf.Tensor, op: tf.Operation) -> tuple[int, ...]:
    if not tensor.shape.is_fully_defined():
        raise ValueError(f'{op.type} {op.name}: the shape {tensor.shape} is not known')
    return tuple(tensor.shape)
