"""The task of a model of your own that tells classes apart."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.config import OptimizerConfig
from inception_mg.errors import UserError
from inception_mg.fast.choice import fast_operations
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.layers import Layers
from inception_mg.model.losses import smoothed_cross_entropy
from inception_mg.model.tower_loss import TowerLoss
from inception_mg.training.task import DatasetFor, Inference, Task

v1 = tf.compat.v1
_OUTSIDE = 'a label is outside'
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
    weight_decay: factor of the L2 loss of every weight of `layers`; None for none. operations: None for the fast forms
        that this TensorFlow has. They are tried when a tower is built, not here: a trial opens a session, and which
        GPUs that may see is known only to mg.fit.
    """
    given = dict(locals())

    def checked(dataset: tf.data.Dataset) -> tf.data.Dataset:
        # A label without an output would have no target, and so a loss of 0.
        def check(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            within = tf.reduce_all((labels >= 0) & (labels < len(outputs)))
            with tf.control_dependencies([tf.debugging.Assert(within, [_OUTSIDE, labels], summarize=8)]):
                return inputs, tf.identity(labels)
        return dataset.map(check)

    def explain(error: Exception) -> UserError | None:
        return UserError(f'{_OUTSIDE} of 0 to {len(outputs) - 1}, the numbers of the {len(outputs)} outputs'
                         ) if _OUTSIDE in str(error) else None

    def layers_for(is_training: bool) -> Layers:
        if not is_training:
            return Layers(False, tf.as_dtype(compute_dtype), weight_decay=None)
        return Layers(True, tf.as_dtype(compute_dtype), batch_norm_decay=batch_norm_decay, weight_decay=weight_decay,
                      operations=fast_operations()[0] if operations is None else operations)

    def loss_for(batch: tuple[tf.Tensor, tf.Tensor], tower) -> TowerLoss:
        layers, (inputs, labels) = layers_for(is_training=True), batch
        parts = {'cross_entropy': smoothed_cross_entropy(network(inputs, layers), labels, label_smoothing)}
        if layers.l2_losses:
            parts['weight_decay'] = tf.add_n(layers.l2_losses)
        return TowerLoss(tf.add_n(list(parts.values())), parts, layers.statistics)

    with tf.Graph().as_default():
        inputs, _ = examples(0, 1, batch_size).element_spec
    inference = Inference(inputs, lambda batch: network(batch, layers_for(is_training=False)),
                          tuple(map(str, outputs)), validation and (lambda size: checked(validation(size))))
    return Task(lambda *part: checked(examples(*part)), loss_for, num_examples, batch_size,
                settings or OptimizerConfig(), operations=operations,
                make_optimizer=(lambda config, rate: optimizer(rate)) if optimizer else None,
                plain=lambda: classifier(**given | {'operations': PLAIN}),
                scale_loss=compute_dtype == 'float16', inference=inference, explain=explain,
                title=f'{network.__name__}, {compute_dtype}')
