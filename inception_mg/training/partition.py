"""Large variables in slices over the ps, cut by TensorFlow's own partitioner: how they and what stands beside them are
made, and how a host puts them together. Which are cut, and where each slice lies, is said in ps_strategy.py."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg import slices
from inception_mg.placement import Placement, bytes_of
from inception_mg.training.ps_strategy import LargestFirst

v1 = tf.compat.v1


def get_resource(getter: Callable, name: str, *args, **kwargs) -> tf.Variable:
    """The variable that v1.get_variable is asked for; a custom getter, see v1.variable_scope."""
    return getter(name, *args, **(kwargs | {'use_resource': True}))


class Slices:
    """Makes variables as lists: of one, or of the slices of a variable that `strategy` cuts; and puts them together.

    variable_getter: makes a custom getter for those that are not cut; None: get_resource serves. devices: as the
    strategy numbers them.
    """

    def __init__(self, variable_getter: Callable | None, strategy: LargestFirst, devices: Sequence[str]):
        self._get_whole = variable_getter() if variable_getter else get_resource
        self._strategy, self._devices = strategy, devices
        self._made: set[str] = set()
        self._joined: dict[tuple[str, str], tf.Tensor] = {}

    def get(self, getter: Callable, name: str, shape=None, dtype=tf.float32, initializer=None, **kwargs
            ) -> list[tf.Variable]:
        """The variable that v1.get_variable asks a custom getter for, new or again. A partitioner of the caller's is
        not used."""
        kwargs |= {'partitioner': self._strategy.partitioners.get(name)}
        if not kwargs['partitioner']:
            return [self._get_whole(getter, name, shape, dtype, initializer, **kwargs)]
        if name not in self._made:
            self._made.add(name)
            initializer = self._whole_value(name, shape, dtype, initializer)
        return list(get_resource(getter, name, shape, dtype, initializer, **kwargs))

    def join(self, name: str, parts: Sequence[tf.Tensor], host: str) -> tf.Tensor:
        """The value of the variable `name` on `host`, once, from what that has read of its slices. Its gradient comes
        apart there likewise."""
        if len(parts) == 1:
            return parts[0]
        if (name, host) not in self._joined:
            with tf.device(None), tf.device(host), tf.control_dependencies(None):
                self._joined[name, host] = tf.concat(parts, self._strategy.cuts[name][0], f'{name}/joined')
        return self._joined[name, host]

    def _whole_value(self, name: str, shape: Sequence[int], dtype: tf.DType, initializer) -> Callable:
        """The initializer of the slices: parts of one initial value, which is made beside the first of them.

        Asked for each slice by itself, an initializer with a seed of its own would give all of them the same numbers,
        and one that looks at the shape would take the slice for a smaller layer.
        """
        axis, rows = self._strategy.cuts[name]
        with tf.device(self._devices[self._strategy.place_of(f'{name}/part_0')]), tf.name_scope(f'{name}/whole'):
            initializer = v1.glorot_uniform_initializer if initializer is None else initializer  # TensorFlow's default.
            initializer = initializer() if isinstance(initializer, type) else initializer
            whole = initializer(shape, dtype=dtype) if callable(initializer) else tf.convert_to_tensor(initializer)
            values = tf.split(whole, rows, axis)
        firsts = [sum(rows[:number]) for number in range(len(rows))]

        def initial_value(shape, dtype=None, partition_info=None) -> tf.Tensor:
            return values[firsts.index(partition_info.var_offset[axis])]

        return initial_value


def get_beside(variable: tf.Variable, suffix: str) -> tf.Variable:
    """A variable that is not trained, of the shape and the initial value of `variable`, named NAME + `suffix`; of a
    slice, one of the same slice of that name."""
    part = slices.description(variable)
    made = v1.get_variable(variable.op.name + suffix, initializer=variable.initial_value, trainable=False,
                           use_resource=True, collections=[] if part else None)
    if not part:
        return made
    proto = made.to_proto()
    part.full_name += suffix
    proto.save_slice_info_def.CopyFrom(part)
    made = v1.Variable(variable_def=proto, use_resource=True)
    v1.add_to_collection(v1.GraphKeys.GLOBAL_VARIABLES, made)
    return made


def lines(placement: Placement, trained: Sequence[tf.Variable]) -> list[str]:
    """What cutting has come to, for the start; [] where it was not asked for."""
    if not placement.partition_mb:
        return []
    told = f'slices     --partition_mb={placement.partition_mb:g}'
    if len(placement.variables) < 2:
        return [f'{told} has no effect: there are not two ps to cut variables over']
    cut = [whole for whole in slices.wholes(trained).values() if len(whole.parts) > 1]
    if not cut:
        return [f'{told} has no effect: no trained variable is larger']
    sizes = [bytes_of(part) for whole in cut for part, _ in whole.parts]
    return [f'{told}: {len(cut)} variables, {sum(sizes) / 1e6:.1f} MB, in {len(sizes)} slices']
