"""The task of a model of your own that tells classes apart."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.config import OptimizerConfig
from inception_mg.fast.choice import operations_for
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.layers import Layers
from inception_mg.model.losses import smoothed_cross_entropy
from inception_mg.model.tower_loss import TowerLoss
from inception_mg.training.task import DatasetFor, Inference, Task

v1 = tf.compat.v1
Network = Callable[[tf.Tensor, Layers], tf.Tensor]  # (inputs, layers) -> logits


def classifier(network: Network, examples: DatasetFor, *, num_examples: int, outputs: Sequence[object], batch_size: int,
               validation: Callable[[int], tf.data.Dataset] | None = None,
               optimizer: Callable[[tf.Tensor], v1.train.Optimizer] | None = None,
               settings: OptimizerConfig | None = None, label_smoothing: float = 0.0, weight_decay: float | None = None,
               batch_norm_decay: float = 0.9, compute_dtype: str = 'float32',
               operations: Operations | None = None) -> Task:
    """The training of `network` with cross entropy, and what evaluates and exports it.

    network(inputs, layers): builds one copy of the model and returns its logits, float32 [n, outputs]. Its variables
        are those of `layers` (see Layers: convolution with batch normalisation and ReLU, dense, dropout), or made by
        tf.compat.v1.get_variable.
    examples(part, parts, batch_size): endless batches of (inputs, labels int32 [n]) from the part-th of `parts` equal
        parts, since every reader has its own. num_examples: of all parts. outputs: the name of each class, in the order
        of the labels. batch_size: examples per step of one process.
    validation(batch_size): batches that nothing learns from, each example once.
    optimizer(learning_rate): another one than RMSProp. settings: learning rate, its schedule, decay of the averages.
    weight_decay: factor of the L2 loss of every weight of `layers`; None for none. operations: by default the fast
        forms that this TensorFlow has.
    """
    given = dict(locals())
    operations = operations_for(False, print) if operations is None else operations

    def layers_for(is_training: bool) -> Layers:
        return Layers(is_training, tf.as_dtype(compute_dtype), batch_norm_decay=batch_norm_decay,
                      weight_decay=weight_decay if is_training else None, operations=operations)

    def loss_for(batch: tuple[tf.Tensor, tf.Tensor], tower) -> TowerLoss:
        layers, (inputs, labels) = layers_for(is_training=True), batch
        parts = {'cross_entropy': smoothed_cross_entropy(network(inputs, layers), labels, label_smoothing)}
        if layers.l2_losses:
            parts['weight_decay'] = tf.add_n(layers.l2_losses)
        return TowerLoss(tf.add_n(list(parts.values())), parts, layers.statistics)

    with tf.Graph().as_default():
        inputs, _ = examples(0, 1, batch_size).element_spec
    inference = Inference(inputs, lambda batch: network(batch, layers_for(is_training=False)),
                          tuple(map(str, outputs)), validation)
    return Task(examples, loss_for, num_examples, batch_size, settings or OptimizerConfig(),
                make_optimizer=(lambda config, rate: optimizer(rate)) if optimizer else None, operations=operations,
                plain=lambda: classifier(**given | {'operations': PLAIN}),
                scale_loss=compute_dtype == 'float16', inference=inference,
                title=f'{network.__name__}, {compute_dtype}')
