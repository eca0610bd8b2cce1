"""The loss of one tower, and what comes with it."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import ModelConfig
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.inception_v3 import inception_v3, scopes_below
from inception_mg.model.layers import Layers, Statistic


class TowerLoss(NamedTuple):
    """What one tower returns.

    total: float32 scalar, what the gradients are taken of. parts: its named summands, float32
    scalars. statistics: the batch-norm statistics of this tower's images.
    """

    total: tf.Tensor
    parts: dict[str, tf.Tensor]
    statistics: list[Statistic]


def smoothed_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Mean cross entropy against smoothed labels.

    logits: float32 [batch, outputs]; labels: int32 [batch]. A share `smoothing` of each target is
    spread evenly over all outputs (slim/losses.py of the 2016 release). Returns a float32 scalar.
    """
    outputs = logits.shape[-1]
    targets = tf.one_hot(labels, outputs, on_value=1 - smoothing + smoothing / outputs,
                         off_value=smoothing / outputs)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))


def inception_loss(images: tf.Tensor, labels: tf.Tensor, num_outputs: int, model: ModelConfig,
                   branches: Sequence[str] = ('',), stages: Sequence[str] = ('',),
                   is_training: bool = True, operations: Operations = PLAIN) -> TowerLoss:
    """Builds one tower of Inception v3: cross entropy, auxiliary loss and weight decay.

    images: float32 [batch, size, size, 3] in [-1, 1]; labels: int32 [batch], 0 = background.
    is_training=False normalises by the moving statistics (for checks of the gradients).
    """
    layers = Layers(is_training, tf.as_dtype(model.compute_dtype), model.width,
                    batch_norm_decay=model.batch_norm_decay, weight_decay=model.weight_decay,
                    frozen=scopes_below(model.freeze_below), operations=operations)
    outputs = inception_v3(images, num_outputs, layers, model.dropout_keep_prob, branches, stages)
    parts = {
        'cross_entropy': smoothed_cross_entropy(outputs.logits, labels, model.label_smoothing),
        'aux_loss': model.aux_loss_weight * smoothed_cross_entropy(
            outputs.aux_logits, labels, model.label_smoothing),
        'weight_decay': tf.add_n(layers.l2_losses)}
    return TowerLoss(tf.add_n(list(parts.values())), parts, layers.statistics)
