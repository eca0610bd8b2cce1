"""The loss of one tower, and what comes with it."""

from collections.abc import Sequence

import tensorflow as tf

from inception_mg.config import ModelConfig
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.layers import Layers
from inception_mg.model.networks import network
from inception_mg.model.tower_loss import TowerLoss


def smoothed_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Mean cross entropy against smoothed labels.

    logits: float32 [batch, outputs]; labels: int32 [batch]. A share `smoothing` of each target is
    spread evenly over all outputs (slim/losses.py of the 2016 release). Returns a float32 scalar.
    """
    outputs = logits.shape[-1]
    targets = tf.one_hot(labels, outputs, on_value=1 - smoothing + smoothing / outputs,
                         off_value=smoothing / outputs)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))


def classification_loss(images: tf.Tensor, labels: tf.Tensor, num_outputs: int, model: ModelConfig,
                        branches: Sequence[str] = ('',), stages: Sequence[str] = ('',),
                        is_training: bool = True, operations: Operations = PLAIN) -> TowerLoss:
    """Builds one tower of the network `model.model`: cross entropy, auxiliary loss (if it has that head), weight decay.

    images: float32 [batch, size, size, 3] in [-1, 1]; labels: int32 [batch], 0 = background.
    is_training=False normalises by the moving statistics (for checks of the gradients).
    """
    net = network(model.model)
    layers = Layers(is_training, tf.as_dtype(model.compute_dtype), model.width,
                    batch_norm_decay=model.batch_norm_decay, weight_decay=model.weight_decay,
                    frozen=net.scopes_below(model.freeze_below), operations=operations)
    outputs = net.build(images, num_outputs, layers, model, branches, stages)
    parts = {'cross_entropy': smoothed_cross_entropy(outputs.logits, labels, model.label_smoothing)}
    if outputs.aux_logits is not None:
        parts['aux_loss'] = model.aux_loss_weight * smoothed_cross_entropy(
            outputs.aux_logits, labels, model.label_smoothing)
    parts['weight_decay'] = tf.add_n(layers.l2_losses)
    total = tf.add_n(list(parts.values()))
    parts['precision_at_1'] = tf.reduce_mean(tf.cast(tf.math.in_top_k(labels, outputs.logits, 1), tf.float32))
    return TowerLoss(total, parts, layers.statistics)
