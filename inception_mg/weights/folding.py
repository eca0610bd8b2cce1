"""The network for inference alone: a checkpoint's values as constants, batch normalisation folded into the weights.

With fixed statistics a normalisation is a factor and a summand per channel, so the factor goes into the kernel before
it and the summand becomes a bias. TensorFlow's graph optimizer then makes one operation of convolution, bias and ReLU,
and lays out the constants once for its kernels. Equal to the network of training up to rounding (1e-5 in float32).
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from inception_mg.errors import UserError
from inception_mg.model.layers import ConvVariables, Layers
from inception_mg.weights import checkpoints

v1 = tf.compat.v1
Values = Callable[[str, Sequence[int]], np.ndarray]  # (name of a variable, its shape) -> its value, float32.


class CheckpointValues:
    """What a checkpoint holds for inference: its moving averages, or its raw weights.

    remedy: the end of the message where it does not fit the network. Raises UserError when averages are wanted and
    there are none.
    """

    def __init__(self, checkpoint: str, use_averages: bool, remedy: str):
        self._checkpoint, self._remedy = checkpoint, remedy
        self._ending = checkpoints.AVERAGE if use_averages else ''
        self._reader = checkpoints.open_checkpoint(checkpoint)
        self._shapes = self._reader.get_variable_to_shape_map()
        if use_averages and not any(name.endswith(checkpoints.AVERAGE) for name in self._shapes):
            raise UserError(checkpoints.no_averages(checkpoint))

    def __call__(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """The value of that variable, float32; UserError where it is missing or has another shape."""
        name += self._ending
        if name not in self._shapes:
            raise UserError(f'{self._checkpoint} lacks {name}: {self._remedy}')
        if list(shape) != list(self._shapes[name]):
            raise UserError(f'{self._checkpoint} has {name} with shape {list(self._shapes[name])}, this model with '
                            f'{list(shape)}: {self._remedy}')
        return checkpoints.read_value(self._reader, self._checkpoint, name)


@dataclasses.dataclass
class FoldedLayers(Layers):
    """Layers whose convolutions have a folded kernel and a bias, both constants in the compute dtype.

    values: where they are from. Nothing else differs: the same network builds on it.
    """

    values: Values = lambda name, shape: np.zeros(shape, np.float32)
    joint_products: bool = False  # Each convolution keeps its bias and ReLU beside it, to become one operation.

    def conv_variables(self, shape: Sequence[int], stddev: float = 0.1, gamma: float | None = None) -> ConvVariables:
        """The folded kernel, and as beta the bias."""
        shape = [int(size) for size in shape]
        kernel = self._value('weights', shape)
        beta, mean, variance = (self._value(f'BatchNorm/{leaf}', shape[-1:])
                                for leaf in ('beta', 'moving_mean', 'moving_variance'))
        scale = 1 / np.sqrt(variance.astype(np.float64) + self.batch_norm_epsilon)
        if gamma is not None:
            scale *= self._value('BatchNorm/gamma', shape[-1:])
        return ConvVariables(self._constant('weights', kernel * scale), self._constant('bias', beta - mean * scale))

    def activate(self, net: tf.Tensor, made: ConvVariables, relu: bool = True) -> tf.Tensor:
        """The bias and, if `relu`, ReLU."""
        net = tf.nn.bias_add(net, made.beta)
        return tf.nn.relu(net) if relu else net

    def fully_connected(self, net: tf.Tensor, outputs: int, stddev: float = 0.01, scope: str = 'FC') -> tf.Tensor:
        """As in Layers: the product in the compute dtype, the logits float32."""
        with v1.variable_scope(scope):
            weights = self._constant('weights', self._value('weights', [int(net.shape[-1]), outputs]))
            biases = tf.constant(self._value('biases', [outputs]), tf.float32, name='biases')
            return tf.cast(tf.matmul(net, weights), tf.float32) + biases

    def _value(self, leaf: str, shape: Sequence[int]) -> np.ndarray:
        return self.values(f'{v1.get_variable_scope().name}/{leaf}', shape)

    def _constant(self, name: str, value: np.ndarray) -> tf.Tensor:
        return tf.constant(value.astype(self.compute_dtype.as_numpy_dtype), name=name)
