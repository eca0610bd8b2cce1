"""The loss scale of float16, which decides with each update whether it is made at all."""

from collections.abc import Sequence

import tensorflow as tf

from inception_mg.training.optimizers import AveragedOptimizer, GradientsAndVariables

v1 = tf.compat.v1


class LossScale:
    """Keeps float16 gradients in range: scales the loss up, the gradients down.

    The scale doubles after `growth_steps` updates in a row that were finite. An update with a gradient that is not
    finite is left out and halves it (Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740); at scale 1 it
    is made, because then it is the training that diverges. The two float32 variables are made where the variable scope
    says. `value`: the scale in this step, a float32 scalar.
    """

    def __init__(self, initial: float = 2.0 ** 15, growth_steps: int = 1000):
        self._growth_steps = growth_steps
        self.scale = v1.get_variable('loss_scale', [], tf.float32, v1.constant_initializer(initial),
                                     trainable=False)
        self._good_steps = v1.get_variable('loss_scale_good_steps', [], tf.float32,
                                           v1.zeros_initializer(), trainable=False)
        with tf.device(self.scale.device), tf.control_dependencies(None):
            self.value = self.scale.read_value()

    def build_unscale(self, gradients: GradientsAndVariables) -> list[tuple[tf.Tensor, tf.Variable]]:
        """The gradients of the unscaled loss, each beside its variable; what is not finite stays so."""
        unscaled = []
        for gradient, variable in gradients:
            with tf.device(variable.device):
                unscaled.append((gradient / self.value, variable))
        return unscaled

    def wrap(self, optimizer: AveragedOptimizer) -> 'ScaledOptimizer':
        """The optimizer that asks the scale about every update, whoever makes it: a worker, or a synchronous chief."""
        return ScaledOptimizer(optimizer, self)

    def build_adapt(self, finite: tf.Tensor) -> tuple[tf.Tensor, tf.Operation]:
        """finite: a bool, whether all gradients are. Returns whether the update is to be made, and what adapts the
        scale after it."""
        with tf.device(self.scale.device):
            scale, good = self.scale.read_value(), self._good_steps.read_value() + 1
            grown = good >= self._growth_steps
            new = tf.where(finite, tf.where(grown, scale * 2, scale), tf.maximum(scale / 2, 1.0))
            good = tf.where(tf.logical_or(grown, tf.logical_not(finite)), 0.0, good)
            return tf.logical_or(finite, scale <= 1), tf.group(self.scale.assign(new), self._good_steps.assign(good))


class ScaledOptimizer:
    """Makes an update, and whatever follows it, or leaves all of it out; see LossScale."""

    def __init__(self, optimizer: AveragedOptimizer, loss_scale: LossScale):
        self._optimizer, self._loss_scale = optimizer, loss_scale

    def apply_gradients(self, gradients: Sequence[tuple[tf.Tensor, tf.Variable]], global_step: tf.Variable
                        ) -> tf.Operation:
        """Returns the operation: the optimizer's if the gradients are finite, and the scale after it."""
        gradients, finite = list(gradients), []
        for gradient, variable in gradients:
            with tf.device(variable.device):
                finite.append(tf.reduce_all(tf.math.is_finite(gradient)))
        with tf.device(self._loss_scale.scale.device):
            made, adapt = self._loss_scale.build_adapt(tf.reduce_all(finite))
        # Not tf.cond: an optimizer makes its slots where it is asked for its update. What hangs on the side of a
        # Switch that is not taken does not run, be it by data or by control.
        gated = []
        for gradient, variable in gradients:
            with tf.device(variable.device):
                gated.append((tf.raw_ops.Switch(data=gradient, pred=made).output_true, variable))
        applied = self._optimizer.apply_gradients(gated, global_step)
        with tf.device(self._loss_scale.scale.device):
            left_out, _ = tf.raw_ops.Switch(data=made, pred=made)
            with tf.control_dependencies([applied]):
                was_made = tf.identity(made)
            either = tf.raw_ops.Merge(inputs=[left_out, was_made])
            with tf.control_dependencies([either.output]):
                return tf.group(adapt)
