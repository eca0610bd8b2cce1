"""On which of a placement's devices a variable is made: the trained ones dealt largest first, whatever their order, and
large ones in slices.

For that the sizes must be known before the first variable is made. They come from a dry build: the model once more, in
a graph of its own that is thrown away, with placeholders for its weights. (Inception v3: 0.7 s, once per process of a
job with several ps; with real variables it is 1.2 s.)
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg import dealing
from inception_mg.fast.operations import PLAIN
from inception_mg.placement import Tower, bytes_of
from inception_mg.training.task import Task

v1 = tf.compat.v1


class LargestFirst:
    """A ps_strategy, as tf.compat.v1.train.replica_device_setter takes it.

    Trained variables go where `learn` has dealt them, and so to the same device in every process that builds the same
    model. Others, and all before `learn`, go to the device that holds the fewest bytes. Checkpoints do not depend on
    it. loads: bytes per device so far, those that are dealt included. cuts: name -> axis and rows of the slices of each
    variable that is cut; partitioners: what v1.get_variable needs for it, see partition.py.
    """

    def __init__(self, devices: int, most: int = 0):
        """most: bytes of a trained variable above which it is cut into slices; 0 = none is."""
        self.loads = [0] * devices
        self.cuts: dict[str, tuple[int, list[int]]] = {}
        self.partitioners: dict[str, Callable] = {}
        self._most, self._places = most, {}

    def learn(self, task: Task, batch: object, tower: Tower) -> None:
        """Deals the variables that `task` trains; with one device there is nothing to deal. batch: like that of
        `tower`, for its shapes."""
        if len(self.loads) > 1:
            self.deal(trained_specs(task, batch, tower))

    def deal(self, specs: dict[str, tf.TensorSpec]) -> None:
        """Deals variables of these names and shapes."""
        sizes: dict[str, int] = {}
        for name, spec in specs.items():
            axis, rows = dealing.cut(spec.shape.as_list(), self._most)
            if len(rows) < 2:
                sizes[name] = bytes_of(spec)
                continue
            self.cuts[name], self.partitioners[name] = (axis, rows), v1.fixed_size_partitioner(len(rows), axis)
            sizes |= {f'{name}/part_{number}': size  # TensorFlow's names.
                      for number, size in enumerate(dealing.slices(spec.shape.as_list(), self._most))}
        for (name, size), device in zip(sizes.items(), dealing.largest_first(list(sizes.values()), len(self.loads)),
                                        strict=True):
            self._places[name] = device
            self.loads[device] += size

    def place_of(self, name: str) -> int:
        """The index of the device to which a variable or slice was dealt."""
        return self._places[name]

    def __call__(self, op: tf.Operation) -> int:
        """Returns the index of the device for the variable operation `op`."""
        if op.name in self._places:
            return self._places[op.name]
        device = self.loads.index(min(self.loads))
        self.loads[device] += tf.TensorShape(op.get_attr('shape')).num_elements() * tf.as_dtype(
            op.get_attr('dtype')).size
        return device


def device_setter(devices: Sequence[str], strategy: LargestFirst) -> Callable:
    """replica_device_setter for one device, or for the tasks of one job; ValueError for other lists."""
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    tasks = [spec.task for spec in specs]
    if tasks not in ([None], list(range(len(specs)))) or len({spec.replace(task=None) for spec in specs}) != 1:
        raise ValueError(f'variables must be on one device or on tasks 0, 1, ... of one job, not {devices}')
    # A device without a task (one machine) is taken by the setter as it is.
    return v1.train.replica_device_setter(
        ps_tasks=len(specs), ps_device=specs[0].replace(task=None).to_string(),
        worker_device='', ps_strategy=strategy)


def trained_specs(task: Task, batch: object, tower: Tower) -> dict[str, tf.TensorSpec]:
    """Name -> shape and dtype of the variables that `task` trains, in the order of the model; `batch` is only looked
    at."""
    found: dict[str, tf.TensorSpec] = {}
    operations = task.operations or PLAIN
    make = operations.variable_getter() if operations.variable_getter else None

    def weigh(getter: Callable, name: str, shape=None, dtype=tf.float32, *args, trainable=None, **kwargs):
        if trainable is False or shape is None:
            kwargs |= {'trainable': trainable, 'use_resource': True}
            return make(getter, name, shape, dtype, *args, **kwargs) if make else getter(name, shape, dtype, *args,
                                                                                         **kwargs)
        value = v1.placeholder(dtype or tf.float32, shape, name)
        if not name.startswith(task.frozen or ('\0',)):
            found.setdefault(name, tf.TensorSpec(value.shape, value.dtype))
        return value

    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
    with tf.Graph().as_default(), v1.variable_scope('', custom_getter=weigh, reuse=v1.AUTO_REUSE):
        v1.train.create_global_step()
        inputs = tf.nest.map_structure(lambda spec: v1.placeholder(spec.dtype, spec.shape), specs)
        task.loss_for(inputs, tower)
    return found
