"""On which of a placement's devices a variable is made: the trained ones dealt largest first, whatever their order.

For that the sizes must be known before the first variable is made. They come from a dry build: the model once more, in
a graph of its own that is thrown away, with placeholders for its weights. (Inception v3: 0.7 s, once per process of a
job with several ps; with real variables it is 1.2 s.)
"""

from collections.abc import Callable

import tensorflow as tf

from inception_mg import dealing
from inception_mg.fast.operations import PLAIN
from inception_mg.placement import Tower
from inception_mg.training.task import Task

v1 = tf.compat.v1


class LargestFirst:
    """A ps_strategy, as tf.compat.v1.train.replica_device_setter takes it.

    Trained variables go where `learn` has dealt them, and so to the same device in every process that builds the same
    model. Others, and all before `learn`, go to the device that holds the fewest bytes. Checkpoints do not depend on
    it. loads: bytes per device so far, those that are dealt included.
    """

    def __init__(self, devices: int):
        self.loads = [0] * devices
        self._places: dict[str, int] = {}

    def learn(self, task: Task, batch: object, tower: Tower) -> None:
        """Deals the variables that `task` trains; with one device there is nothing to deal. batch: like that of
        `tower`, for its shapes."""
        if len(self.loads) == 1:
            return
        sizes = trained_sizes(task, batch, tower)
        for (name, size), device in zip(sizes.items(), dealing.largest_first(list(sizes.values()), len(self.loads)),
                                        strict=True):
            self._places[name] = device
            self.loads[device] += size

    def __call__(self, op: tf.Operation) -> int:
        """Returns the index of the device for the variable operation `op`."""
        if op.name in self._places:
            return self._places[op.name]
        device = self.loads.index(min(self.loads))
        self.loads[device] += tf.TensorShape(op.get_attr('shape')).num_elements() * tf.as_dtype(
            op.get_attr('dtype')).size
        return device


def trained_sizes(task: Task, batch: object, tower: Tower) -> dict[str, int]:
    """Name -> bytes of the variables that `task` trains, in the order of the model; `batch` is only looked at."""
    sizes: dict[str, int] = {}
    operations = task.operations or PLAIN
    make = operations.variable_getter() if operations.variable_getter else None

    def weigh(getter: Callable, name: str, shape=None, dtype=tf.float32, *args, trainable=None, **kwargs):
        if trainable is False or shape is None:
            kwargs |= {'trainable': trainable, 'use_resource': True}
            return make(getter, name, shape, dtype, *args, **kwargs) if make else getter(name, shape, dtype, *args,
                                                                                         **kwargs)
        value = v1.placeholder(dtype or tf.float32, shape, name)
        if not name.startswith(task.frozen or ('\0',)):
            sizes.setdefault(name, value.shape.num_elements() * value.dtype.size)
        return value

    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
    with tf.Graph().as_default(), v1.variable_scope('', custom_getter=weigh, reuse=v1.AUTO_REUSE):
        v1.train.create_global_step()
        inputs = tf.nest.map_structure(lambda spec: v1.placeholder(spec.dtype, spec.shape), specs)
        task.loss_for(inputs, tower)
    return sizes
