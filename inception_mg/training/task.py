"""What is trained, as one value: the same for a network of ours and one of yours, on one machine and on a cluster."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import OptimizerConfig
from inception_mg.errors import UserError
from inception_mg.fast.operations import Operations
from inception_mg.model.tower_loss import TowerLoss
from inception_mg.placement import Tower

v1 = tf.compat.v1
Batch = object  # A tensor or a structure of tensors, as a tf.data.Dataset has them.
DatasetFor = Callable[[int, int, int], tf.data.Dataset]  # (part, parts, batch_size)
LossFor = Callable[[Batch, Tower], TowerLoss | tf.Tensor]  # (batch, tower)
MakeOptimizer = Callable[[OptimizerConfig, tf.Tensor], v1.train.Optimizer]  # (settings, learning rate)


class Inference(NamedTuple):
    """What a trained model is used for, by evaluation and export.

    inputs: shape and dtype of a batch of inputs. logits_for(inputs): float32 [n, outputs], with fixed statistics.
    outputs: the name of each. validation(batch_size): batches of (inputs, labels int32 [n]), each example once; None
    where there are none.
    """

    inputs: tf.TensorSpec
    logits_for: Callable[[tf.Tensor], tf.Tensor]
    outputs: tuple[str, ...]
    validation: Callable[[int], tf.data.Dataset] | None = None


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained. Where (a Placement) and for how long (a RunConfig) are said elsewhere.

    dataset_for(part, parts, batch_size): batches of the part-th of `parts` equal parts of the examples, for ever. A
        batch is a tensor or any structure of tensors (a tuple, a dictionary) with as many examples in each.
    dataset_from(batches_done): the dataset_for whose streams go on where each reader has made so many batches (int64
        scalar, read when a session begins); None: each session begins dataset_for's stream anew.
    loss_for(batch, tower): builds one copy of the model on its share of a batch: a float32 scalar, or a TowerLoss. Its
        variables are made by tf.compat.v1.get_variable. tower: see placement.Tower; most models leave it alone.
    num_examples: of one epoch. batch_size: examples per step of one process, a multiple of its towers.
    optimizer: settings of it, the schedule and the averages; make_optimizer: another one than those it names.
    operations: the faster forms that the step takes; None for those that mg.fit finds (and without it, for plain ones).
        What loss_for builds chooses its own. plain(): this task in plain operations throughout; None where `operations`
        is all there is to change.
    seed: of initial weights and dropout; 0 = others each time.
    frozen: beginnings of the names of variables that are not trained. scale_loss: for float16.
    title, source: the model and the examples, on the screen. notes: lines that the user should read.
    settings: what must be equal on all workers of a cluster, besides max_steps and what is in this value itself.
    files: name -> text of what is left in train_dir beside the checkpoints.
    inference: what the trained model is used for; None for a model that is only trained.
    explain(error): whether the examples are to blame for an error of a step, in one line; None if not.
    """

    dataset_for: DatasetFor
    loss_for: LossFor
    num_examples: int
    batch_size: int
    optimizer: OptimizerConfig = OptimizerConfig()
    make_optimizer: MakeOptimizer | None = None
    dataset_from: Callable[[tf.Tensor], DatasetFor] | None = None
    operations: Operations | None = None
    plain: Callable[[], 'Task'] | None = None
    seed: int = 0
    frozen: tuple[str, ...] = ()
    scale_loss: bool = False
    title: str = 'of your own'
    source: str = ''
    notes: tuple[str, ...] = ()
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inference: Inference | None = None
    explain: Callable[[Exception], UserError | None] = lambda error: None
