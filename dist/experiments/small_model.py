"""A network of three convolutions by the project's layers: quick enough to train eight copies at once."""

import tensorflow as tf

from inception_mg.config import ModelConfig
from inception_mg.model.layers import Layers
from inception_mg.model.losses import TowerLoss, smoothed_cross_entropy

SIZE = 32
MODEL = ModelConfig(batch_norm_decay=0.5, dropout_keep_prob=1.0)


def small_loss(images: tf.Tensor, labels: tf.Tensor, num_outputs: int, is_training: bool = True) -> TowerLoss:
    """images: float32 [batch, SIZE, SIZE, 3] in [-1, 1]; labels: int32 [batch]. Cross entropy and weight decay."""
    layers = Layers(is_training, batch_norm_decay=MODEL.batch_norm_decay, weight_decay=MODEL.weight_decay)
    net = images
    for number, channels in enumerate((16, 24, 32)):
        net = layers.conv(net, channels, [3, 3], stride=2, scope=f'conv{number}')  # SIZE / 2, / 4, / 8
    logits = layers.fully_connected(tf.reduce_mean(net, axis=[1, 2]), num_outputs, stddev=0.1, scope='logits')
    parts = {'cross_entropy': smoothed_cross_entropy(logits, labels, MODEL.label_smoothing),
             'weight_decay': tf.add_n(layers.l2_losses)}
    return TowerLoss(tf.add_n(list(parts.values())), parts, layers.statistics)
