"""What one copy of a model returns."""

from typing import NamedTuple

import tensorflow as tf


class Statistic(NamedTuple):
    """A moving statistic, such as those of batch normalisation, and the value that this batch would add to it.

    variable <- decay * variable + (1 - decay) * value; float32, of any shape.
    """

    variable: tf.Variable
    value: tf.Tensor
    decay: float


class TowerLoss(NamedTuple):
    """What one tower returns.

    total: float32 scalar, what the gradients are taken of. parts: its named summands and other figures to be shown,
    float32 scalars (precision_at_1 comes into the status lines). statistics: the moving statistics of this tower's
    examples.
    """

    total: tf.Tensor
    parts: dict[str, tf.Tensor] = {}
    statistics: list[Statistic] = []
