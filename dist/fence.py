"""Which process has the index of a worker, and how the ps leave out the updates of any other.

A chief that is cut off from the ps, and whose manager has started another one elsewhere, does not know of it; when the
cable heals both would update the same variables. An index belongs to the process that the hub reaches at its entry in
the host lists (reach.py): there can be one. It writes a number of its own, its life, into the fence of every ps, and
each update is built with a gate on each ps: an operation that fails where the fence says another life. The older
process learns so that it has been replaced.
"""

import os
import secrets
import socket
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from dist.board import FENCE, NOT_YOURS, Cell

v1 = tf.compat.v1


class Claim(NamedTuple):
    """One process. life: a number that no other has."""

    life: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f'process {self.pid} on {self.host}'


def own_claim() -> Claim:
    """That of this process."""
    return Claim(secrets.randbelow(2 ** 62) + 1, socket.gethostname(), os.getpid())


class Fence:
    """The gates of one worker's graph. workers: how many there are. worker, life: whose updates pass."""

    def __init__(self, workers: int, worker: int, life: int):
        self._workers, self._worker, self._life = workers, worker, life

    def build_gate(self, device: str) -> tf.Operation:
        """On the device of a ps: fails with InvalidArgumentError unless its fence says this life."""
        with tf.device(None), v1.device(device), tf.name_scope('gate'):
            held = Cell(FENCE, tf.int64, [self._workers], device).read_at(self._worker)
            return tf.debugging.Assert(tf.equal(held, self._life), [NOT_YOURS])

    def build_passed(self, tensor: tf.Tensor, device: str) -> tf.Tensor:
        """The tensor after it has come to the device and then passed the gate there."""
        with tf.device(None), v1.device(device):
            came = tf.identity(tensor)
            with tf.control_dependencies(tf.nest.flatten(came, expand_composites=True)):
                gate = self.build_gate(device)
            with tf.control_dependencies([gate]):
                return tf.identity(came)

    def wrap(self, optimizer) -> 'Fenced':
        """The optimizer with a gate before the updates on each device."""
        return Fenced(optimizer, self)


class Fenced:
    """An optimizer whose updates all pass a gate, where they are made and when their gradient has arrived."""

    def __init__(self, optimizer, fence: Fence):
        self._optimizer, self._fence = optimizer, fence

    def apply_gradients(self, grads_and_vars: Sequence[tuple[tf.Tensor, tf.Variable]], global_step: tf.Variable
                        ) -> tf.Operation:
        """As the wrapped optimizer's; no byte more goes over the wire."""
        passed = [(self._fence.build_passed(gradient, variable.device), variable)
                  for gradient, variable in grads_and_vars if gradient is not None]
        return self._optimizer.apply_gradients(passed, global_step)
