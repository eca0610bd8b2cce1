"""Gradients clipped by their global norm, where they are applied."""

from collections.abc import Sequence

import tensorflow as tf

v1 = tf.compat.v1


class ClippedOptimizer:
    """An optimizer whose gradients are scaled down together where their global norm is above `norm` (Pascanu et al.,
    "On the difficulty of training recurrent neural networks", arXiv:1211.5063).

    Of synchronous replicas it is the averaged gradient that is clipped, by the chief; of asynchronous ones each
    worker's own. Squares are added beside the variables: each device of variables sends 4 bytes to that of
    global_step, and gets 4 back. A gradient that is not finite stays so.
    """

    def __init__(self, optimizer: v1.train.Optimizer, norm: float):
        self._optimizer, self._norm = optimizer, norm

    def apply_gradients(self, grads_and_vars: Sequence[tuple[tf.Tensor, tf.Variable]], global_step: tf.Variable
                        ) -> tf.Operation:
        """Returns the operation: clip, update, global_step + 1."""
        pairs, squares = list(grads_and_vars), {}
        with tf.name_scope('clip'):
            for gradient, variable in pairs:
                with tf.device(variable.device):
                    squares.setdefault(variable.device, []).append(tf.nn.l2_loss(gradient))
            totals = []
            for device, halves in squares.items():
                with tf.device(device):
                    totals.append(tf.add_n(halves))
            with tf.device(global_step.device):
                scale = self._norm / tf.maximum(tf.sqrt(2 * tf.add_n(totals)), self._norm)
            clipped = []
            for device in squares:
                with tf.device(device):
                    here = tf.identity(scale)
                    clipped += [(gradient * here, variable) for gradient, variable in pairs
                                if variable.device == device]
        return self._optimizer.apply_gradients(clipped, global_step=global_step)
