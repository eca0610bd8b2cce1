"""One training step, told once for every way of running: read, towers, average, apply."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from inception_mg.errors import FlagError
from inception_mg.fast.operations import PLAIN
from inception_mg.placement import Placement
from inception_mg.training import optimizers, towers
from inception_mg.training.loss_scale import LossScale
from inception_mg.training.ps_strategy import LargestFirst
from inception_mg.training.recipe import build_learning_rate, build_optimizer
from inception_mg.training.task import Task

v1 = tf.compat.v1


class TrainStep(NamedTuple):
    """What a step offers to the loop that runs it.

    train_op: one update. loss and parts: means over the towers of this graph, float32 scalars, before
    the update (and the loss scale, where there is one). learning_rate: of this step. global_step:
    updates so far, int64. batch: the first tower's, for summaries. start_input: starts the readers, and under
    placement.prefetch fetches the first weights; runs once per session. gradients: the averaged
    (gradient, variable) pairs, float32.
    """

    train_op: tf.Operation
    loss: tf.Tensor
    parts: dict[str, tf.Tensor]
    learning_rate: tf.Tensor
    global_step: tf.Variable
    batch: towers.Batch
    start_input: tf.Operation
    gradients: list[tuple[tf.Tensor, tf.Variable]]


def build_train_step(placement: Placement, task: Task, *, reader: int = 0, readers: int = 1, aggregated: int = 1,
                     wrap_optimizer: Callable = lambda optimizer: optimizer) -> TrainStep:
    """Builds the step of this process on the devices of `placement`.

    reader, readers: this process reads the reader-th of `readers` parts of the examples. aggregated: steps of
    processes like this one whose gradients enter one update. wrap_optimizer: the seam for synchronous replicas; it gets
    and returns an object with apply_gradients(gradients_and_variables, global_step). Raises FlagError when the batch
    cannot be split evenly.
    """
    count = len(placement.towers)
    if task.batch_size % count:
        raise FlagError(f'--batch_size={task.batch_size} cannot be split evenly over {count} towers')
    host, operations = placement.towers[0].host, task.operations or PLAIN
    if task.seed:
        v1.set_random_seed(task.seed + reader)  # Workers begin with the chief's weights, but differ in their dropout.
    strategy = LargestFirst(len(placement.variables), round(placement.partition_mb * 1e6))
    variables = towers.Variables(placement.variables, task.frozen, placement.wire_dtype, placement.prefetch,
                                 operations, strategy)
    with variables.on(host):
        global_step = v1.train.create_global_step()
        loss_scale = LossScale() if task.scale_loss else None
        batches_done = global_step.read_value() * aggregated // readers  # Of each reader, in the updates so far.

    # 1. Every host reads its part of the data.
    dataset_for = task.dataset_from(batches_done) if task.dataset_from else task.dataset_for
    batches, starts = towers.read_batches(placement, lambda host, hosts, size: dataset_for(
        reader * hosts + host, readers * hosts, size), task.batch_size)
    # 2. Every tower computes its loss and its gradients.
    strategy.learn(task, batches[0], placement.towers[0])
    results = towers.build_towers(placement, variables, batches, task.loss_for,
                                  loss_scale.value if loss_scale else None)
    # 3. The gradients are averaged.
    gradients = towers.average_gradients(variables, results, placement.wire_dtype, operations)
    # 4. They are applied beside the variables. The statistics are those of the last tower alone, as in
    #    the 2016 release: one update per step, and the towers do not race for it.
    statistics = results[-1].loss.statistics
    moved = towers.build_statistics_update(statistics, operations)
    if loss_scale:
        gradients = loss_scale.build_unscale(gradients)
    learning_rate = build_learning_rate(task.optimizer, global_step, task.batch_size * aggregated, task.num_examples)
    # Statistics are averages already; the 2016 release averages them once more, and so do we. Frozen variables have
    # an average too, which moves towards them: evaluation takes the averages of all.
    averaged = [*variables.trainable, *(s.variable for s in statistics), *variables.frozen]
    inner = build_optimizer(task.optimizer, learning_rate, operations, task.make_optimizer)
    optimizer = optimizers.AveragedOptimizer(inner, task.optimizer.moving_average_decay, averaged, operations)
    optimizer = wrap_optimizer(loss_scale.wrap(optimizer) if loss_scale else optimizer)
    with tf.control_dependencies([moved, learning_rate]):
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
    return TrainStep(train_op, loss, parts, learning_rate, global_step, batches[0],
                     tf.group(*starts, *fills), gradients)
