"""The moving averages that follow an optimizer (which, says recipe.py)."""

from collections.abc import Iterable, Sequence

import tensorflow as tf

from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.training.partition import get_beside
from inception_mg.weights.checkpoints import AVERAGE

v1 = tf.compat.v1
GradientsAndVariables = Iterable[tuple[tf.Tensor, tf.Variable]]


class AveragedOptimizer:
    """An optimizer whose updates are followed by the moving averages of the variables.

    The 2016 program ran the averages beside the update, so that they saw old or new weights by
    chance; here they run after it. It wraps the optimizer so that whoever applies an update, this
    process or a synchronous cluster's chief, moves the averages exactly once per update.
    """

    def __init__(self, optimizer: v1.train.Optimizer, decay: float, averaged: Sequence[tf.Variable],
                 operations: Operations = PLAIN):
        self._optimizer, self._decay, self._averaged, self._operations = optimizer, decay, list(averaged), operations

    def apply_gradients(self, gradients: GradientsAndVariables, global_step: tf.Variable) -> tf.Operation:
        """Returns the operation: update, global_step + 1, averages.

        The averages' decay starts at (1 + step) / (10 + step) and rises to the configured one, as in
        inception_train.py. Their names are those of 2016: NAME/ExponentialMovingAverage.
        """
        update = self._optimizer.apply_gradients(gradients, global_step=global_step)
        with tf.control_dependencies([update]):
            return build_averages_update(self._decay, self._averaged, global_step, self._operations)


def build_averages_update(decay: float, averaged: Sequence[tf.Variable], global_step: tf.Variable,
                          operations: Operations = PLAIN) -> tf.Operation:
    """Makes an average beside each variable and returns the operation that moves all of them.

    The names and the arithmetic of tf.train.ExponentialMovingAverage with num_updates=global_step. That
    class asks with a conditional for each of the 388 whether its variable is initialised, which takes as
    long to build as both towers of the network; starting from the same initial value needs none.
    """
    with tf.name_scope('averages') as scope, tf.device(global_step.device):
        updates = tf.cast(global_step.read_value(), tf.float32)
        rest = 1 - tf.minimum(decay, (1 + updates) / (10 + updates))
    averages = (operations.build_averages or build_averages)(averaged, AVERAGE)
    return build_moves([(average, variable, rest) for average, variable in zip(averages, averaged, strict=True)],
                       scope, operations)


def build_averages(averaged: Sequence[tf.Variable], suffix: str) -> list[tf.Variable]:
    """A variable beside each, that begins with its initial value; suffix: what their names end in."""
    made = []
    for variable in averaged:
        with tf.device(variable.device), tf.control_dependencies(None):
            made.append(get_beside(variable, suffix))
    return made


def build_moves(moves: Sequence[tuple[tf.Variable, tf.Variable | tf.Tensor, tf.Tensor | float]], scope: str,
                operations: Operations = PLAIN) -> tf.Operation:
    """The operation that moves float32 variables towards goals, each by a share of the way between them: variable <-
    variable - share (variable - goal), beside the variable and after what is waited for here.

    moves: (variable, goal, share). scope: the name scope of the operations, as tf.name_scope gives it.
    """
    if operations.build_moves:
        return operations.build_moves(moves, scope)
    moved = []
    for variable, goal, share in moves:
        with tf.device(variable.device), tf.name_scope(scope):
            goal = goal.read_value() if isinstance(goal, tf.Variable) else goal
            moved.append(variable.assign_sub(share * (variable.read_value() - goal), read_value=False))
    return tf.group(*moved)
