"""One training step, told once for every way of running: read, towers, average, apply."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import OptimizerConfig
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.placement import Placement
from inception_mg.training import optimizers, towers

v1 = tf.compat.v1


class TrainStep(NamedTuple):
    """What a step offers to the loop that runs it.

    train_op: one update. loss and parts: means over the towers of this graph, float32 scalars, before
    the update (and the loss scale, where there is one). learning_rate: of this step. global_step:
    updates so far, int64. images: the first tower's, for summaries. start_input: starts the readers, and under
    placement.prefetch fetches the first weights; runs once per session. gradients: the averaged
    (gradient, variable) pairs, float32.
    """

    train_op: tf.Operation
    loss: tf.Tensor
    parts: dict[str, tf.Tensor]
    learning_rate: tf.Tensor
    global_step: tf.Variable
    images: tf.Tensor
    start_input: tf.Operation
    gradients: list[tuple[tf.Tensor, tf.Variable]]


def build_train_step(placement: Placement, dataset_for: towers.DatasetFor, batch_size: int,
                     loss_for: towers.LossFor, config: OptimizerConfig, num_examples: int, *,
                     images_per_update: int = 0, scale_loss: bool = False, frozen: Sequence[str] = (),
                     wrap_optimizer: Callable = lambda optimizer: optimizer,
                     make_optimizer: Callable = optimizers.build_optimizer,
                     operations: Operations = PLAIN) -> TrainStep:
    """Builds the step of this process on the devices of `placement`.

    batch_size: images of all towers of this graph. num_examples: images of one epoch.
    images_per_update: images that enter one update if more than this graph's, 0 = batch_size.
    scale_loss: for float16. frozen: beginnings of the names of variables that are not trained; nothing is computed
    backward for them. wrap_optimizer: the seam for synchronous replicas; it gets and returns an
    object with apply_gradients(gradients_and_variables, global_step). operations: the faster forms to take; what
    loss_for builds chooses its own. Raises ValueError when the batch cannot be split evenly.
    """
    if batch_size % len(placement.towers):
        raise ValueError(f'a batch of {batch_size} cannot be split over {len(placement.towers)} towers')
    host = placement.towers[0].host
    variables = towers.Variables(placement.variables, frozen, placement.wire_dtype, placement.prefetch, operations)
    with variables.on(host):
        global_step = v1.train.create_global_step()
        loss_scale = optimizers.LossScale() if scale_loss else None

    # 1. Every host reads its part of the data.
    batches, starts = towers.read_batches(placement, dataset_for, batch_size)
    # 2. Every tower computes its loss and its gradients.
    results = towers.build_towers(placement, variables, batches, loss_for,
                                  loss_scale.value if loss_scale else None)
    # 3. The gradients are averaged.
    gradients = towers.average_gradients(variables, results, placement.wire_dtype, operations)
    # 4. They are applied beside the variables. The statistics are those of the last tower alone, as in
    #    the 2016 release: one update per step, and the towers do not race for it.
    statistics = results[-1].loss.statistics
    before = [towers.build_statistics_update(statistics, operations)]
    if loss_scale:
        gradients, adapt = loss_scale.build_unscale(gradients)
        before.append(adapt)
    learning_rate = optimizers.build_learning_rate(
        config, global_step, images_per_update or batch_size, num_examples)
    # Statistics are averages already; the 2016 release averages them once more, and so do we. Frozen variables have
    # an average too, which moves towards them: evaluation takes the averages of all.
    averaged = [*variables.trainable, *(s.variable for s in statistics), *variables.frozen]
    optimizer = wrap_optimizer(optimizers.AveragedOptimizer(
        make_optimizer(config, learning_rate, operations), config.moving_average_decay, averaged, operations))
    with tf.control_dependencies([*before, learning_rate]):
        train_op = optimizer.apply_gradients(gradients, global_step)
    fills, refills = variables.build_fetches()
    if refills:
        train_op = tf.group(train_op, *refills)

    with tf.device(host), tf.name_scope('report'):
        loss = tf.reduce_mean([result.loss.total for result in results])
        parts = {name: tf.reduce_mean([result.loss.parts[name] for result in results])
                 for name in results[0].loss.parts}
    if loss_scale:
        parts['loss_scale'] = loss_scale.value
    return TrainStep(train_op, loss, parts, learning_rate, global_step, batches[0].images,
                     tf.group(*starts, *fills), gradients)
