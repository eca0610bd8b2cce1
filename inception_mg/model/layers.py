"""The layers of the 2016 release on tf.nn and get_variable.

One Layers object goes through one copy of the network. It carries what every layer shares, and
collects what the layers have to say beyond their output: the L2 loss of each weight and the batch
statistics. So nothing is looked up in graph collections, and the copies cannot mix theirs up.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.tower_loss import Statistic

v1 = tf.compat.v1


class ConvVariables(NamedTuple):
    """What a convolution with batch normalisation knows. kernel: the weights as read, in the compute dtype, [height,
    width, in, out]; the others float32 [out], gamma only where it was asked for."""

    kernel: tf.Tensor
    beta: tf.Tensor
    mean: tf.Variable | None = None  # None where they are folded into the kernel (weights/folding.py).
    variance: tf.Variable | None = None
    gamma: tf.Tensor | None = None


@dataclasses.dataclass
class Layers:
    """Makes layers that share their settings. Activations are NHWC in `compute_dtype`.

    Variables are always float32 and cast where they are used. In variable scopes that begin with one of `frozen`
    nothing is trained: no weight decay, and batch normalisation by the moving statistics. Defaults are those
    of the 2016 release (inception_model.py, slim/inception_model.py).
    """

    is_training: bool
    compute_dtype: tf.DType = tf.float32
    width: float = 1.0
    batch_norm_decay: float = 0.9997
    batch_norm_epsilon: float = 0.001
    weight_decay: float | None = 0.00004  # None: no L2 losses are made.
    frozen: tuple[str, ...] = ()
    operations: Operations = PLAIN
    joint_products: bool = True  # Branches that begin with a 1 x 1 convolution begin with one product.
    l2_losses: list[tf.Tensor] = dataclasses.field(default_factory=list)
    statistics: list[Statistic] = dataclasses.field(default_factory=list)

    def depth(self, channels: int) -> int:
        """Returns `channels` times the width, as a multiple of 8 and at least 8."""
        if self.width == 1.0:
            return channels
        return max(8, 8 * round(channels * self.width / 8))

    def conv(self, net: tf.Tensor, channels: int, kernel: Sequence[int], stride: int = 1,
             padding: str = 'SAME', stddev: float = 0.1, scope: str = 'Conv', gamma: float | None = None,
             relu: bool = True) -> tf.Tensor:
        """Convolution without bias, batch normalisation, ReLU.

        `channels` is the number in the release, before the width multiplier. Variables:
        scope/weights [kernel, in, out] and scope/BatchNorm/{beta, moving_mean, moving_variance}; with an initial
        value for it also scope/BatchNorm/gamma.
        """
        with v1.variable_scope(scope):
            made = self.conv_variables([*kernel, net.shape[-1], self.depth(channels)], stddev, gamma)
            return self.activate(self.product(net, made.kernel, stride, padding), made, relu)

    def conv_variables(self, shape: Sequence[int], stddev: float = 0.1, gamma: float | None = None) -> ConvVariables:
        """The variables of a convolution with a kernel of `shape`, [height, width, in, out], in the scope around."""
        kernel = tf.cast(self._weights(shape, stddev), self.compute_dtype)
        with v1.variable_scope('BatchNorm', auxiliary_name_scope=False):
            beta = v1.get_variable('beta', shape[-1:], tf.float32, v1.zeros_initializer())
            mean = v1.get_variable('moving_mean', shape[-1:], tf.float32, v1.zeros_initializer(), trainable=False)
            variance = v1.get_variable('moving_variance', shape[-1:], tf.float32, v1.ones_initializer(),
                                       trainable=False)
            scale = None if gamma is None else v1.get_variable('gamma', shape[-1:], tf.float32,
                                                               v1.constant_initializer(gamma))
        return ConvVariables(kernel, beta, mean, variance, scale)

    def product(self, net: tf.Tensor, kernel: tf.Tensor, stride: int = 1, padding: str = 'SAME') -> tf.Tensor:
        """The convolution of `net` with a kernel of conv_variables, and nothing else."""
        if self.is_training and self.operations.conv2d:
            return self.operations.conv2d(net, kernel, stride, padding)
        return tf.nn.conv2d(net, kernel, stride, padding)

    def activate(self, net: tf.Tensor, made: ConvVariables, relu: bool = True) -> tf.Tensor:
        """What follows a convolution's product, in its variables' scope: batch normalisation and, if `relu`, ReLU.

        Normalises over all but the last dimension of [batch, height, width, channels]. There is a beta, and the gamma
        that was asked for. In training, the biased variance of the batch normalises, and also enters the moving
        variance (no Bessel correction, as in 2016).
        """
        with tf.name_scope('BatchNorm'):
            gamma = tf.ones(made.beta.shape, tf.float32) if made.gamma is None else made.gamma
            if not self.is_training or self._is_frozen():
                net = v1.nn.fused_batch_norm(net, gamma, made.beta, mean=made.mean, variance=made.variance,
                                             epsilon=self.batch_norm_epsilon, is_training=False)[0]
                return tf.nn.relu(net) if relu else net
            joint = self.operations.batch_norm_relu
            if joint and relu and made.gamma is None:  # It has neither a gradient for gamma nor a form without ReLU.
                net, mean, variance = joint(net, gamma, made.beta, self.batch_norm_epsilon)
            else:
                net, mean, variance = v1.nn.fused_batch_norm(net, gamma, made.beta, epsilon=self.batch_norm_epsilon,
                                                             is_training=True)
                net = tf.nn.relu(net) if relu else net
            variance *= _bessel_inverse(net.shape[:-1].num_elements())
        self.statistics.append(Statistic(made.mean, mean, self.batch_norm_decay))
        self.statistics.append(Statistic(made.variance, variance, self.batch_norm_decay))
        return net

    def fully_connected(self, net: tf.Tensor, outputs: int, stddev: float = 0.01,
                        scope: str = 'FC') -> tf.Tensor:
        """[batch, features] -> [batch, outputs] with bias, without activation, in float32.

        The product is in the compute dtype; the logits are float32, because losses are.
        Variables: scope/weights [features, outputs], scope/biases [outputs].
        """
        with v1.variable_scope(scope):
            weights = self._weights([net.shape[-1], outputs], stddev)
            biases = v1.get_variable('biases', [outputs], tf.float32, v1.zeros_initializer())
            product = tf.matmul(net, tf.cast(weights, net.dtype))
            return tf.cast(product, tf.float32) + biases

    def dropout(self, net: tf.Tensor, keep_prob: float) -> tf.Tensor:
        """Keeps each value with `keep_prob` and scales it by 1/keep_prob; only in training."""
        if not self.is_training or keep_prob >= 1:
            return net
        return tf.nn.dropout(net, rate=1 - keep_prob)

    def _weights(self, shape: Sequence[int], stddev: float) -> tf.Tensor:
        weights = v1.get_variable('weights', shape, tf.float32,
                                  v1.truncated_normal_initializer(stddev=stddev))
        # Here, beside the product, so that a weight crosses to one device and not to two.
        if self.weight_decay is not None and not self._is_frozen():
            self.l2_losses.append(self.weight_decay * tf.nn.l2_loss(weights))
        return weights

    def _is_frozen(self) -> bool:
        return f'{v1.get_variable_scope().name}/'.startswith(self.frozen)


def max_pool(net: tf.Tensor, size: int = 3, stride: int = 2, padding: str = 'VALID') -> tf.Tensor:
    """Largest value of each window of size x size."""
    return tf.nn.max_pool2d(net, size, stride, padding)


def avg_pool(net: tf.Tensor, size: int | Sequence[int] = 3, stride: int = 1,
             padding: str = 'SAME') -> tf.Tensor:
    """Mean of each window; at the edges of the image, of its pixels inside."""
    return tf.nn.avg_pool2d(net, size, stride, padding)


def _bessel_inverse(count: int) -> float:
    """(n - 1) / n for the n values of a channel: turns the unbiased variance that the kernel
    returns into the biased one. With a single value the kernel does not correct, so neither do we.
    """
    return (count - 1) / count if count > 1 else 1.0
