"""What the networks share above their layers: what they return, and how their blocks are dealt to devices."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf


class Outputs(NamedTuple):
    """logits, aux_logits: float32 [batch, outputs]. end_points: every named activation."""

    logits: tf.Tensor
    aux_logits: tf.Tensor | None
    end_points: dict[str, tf.Tensor]


def stage_devices(block_cost: Mapping[str, int], stages: Sequence[str]) -> dict[str, str]:
    """Deals the blocks, in order, to the stages so that each has about the same work.

    block_cost: block -> multiply-adds, in any unit; stages: names of devices. Returns block -> device.
    """
    total, before, devices = sum(block_cost.values()), 0, {}
    for name, cost in block_cost.items():
        middle = (before + cost / 2) / total
        devices[name] = stages[min(int(middle * len(stages)), len(stages) - 1)]
        before += cost
    return devices


def flatten(net: tf.Tensor) -> tf.Tensor:
    """[batch, 1, 1, features] -> [batch, features]."""
    return tf.squeeze(net, [1, 2])
