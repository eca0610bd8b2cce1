"""Many small operations made at once: the slots and the averages of a network's variables, and what moves them."""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

v1 = tf.compat.v1


class Nodes:
    """Operations that are described one by one and made together, from one GraphDef.

    Beside the 390 variables of Inception v3 stand 780 more, its slots and averages, and 4,700 operations that move and
    check them. One by one TensorFlow takes 2.5 ms for a variable and 0.3 ms for an operation, several seconds before
    the first step; this way a fifth of that. Names are exact, and each operation has the device that it is given.
    """

    def __init__(self):
        self._graph_def = v1.GraphDef(versions=v1.get_default_graph().graph_def_versions)
        self._given: dict[str, tf.Tensor] = {}
        self._constants: dict[tuple, str] = {}
        self._variables: list[dict] = []

    def add(self, op: str, name: str, device: str, inputs: Sequence[str] = (), **attributes: v1.AttrValue) -> str:
        """Describes an operation; returns its name, by which others take its first output ('^' before: wait for it)."""
        node = self._graph_def.node.add(op=op, name=name, device=device, input=inputs)
        for key, value in attributes.items():
            node.attr[key].CopyFrom(value)
        return name

    def given(self, tensor: tf.Tensor, wait: bool = False) -> str:
        """The name by which described operations take a tensor that there is, or wait for it."""
        name = f'^{tensor.op.name}' if wait else tensor.name
        self._given[name] = tensor
        return name

    def add_value(self, value: float, shape: tf.TensorShape, name: str, device: str) -> str:
        """Describes a float32 tensor of `shape` that is `value` everywhere, and takes no memory until it is used."""
        parts = []
        for key, dtype in ((tuple(shape.as_list()), tf.int32), (value, tf.float32)):
            if (key, device) not in self._constants:
                self._constants[key, device] = self.add(
                    'Const', f'{name}/{dtype.name}', device, dtype=_type(dtype),
                    value=v1.AttrValue(tensor=tf.make_tensor_proto(key, dtype)))
            parts.append(self._constants[key, device])
        return self.add('Fill', name, device, parts, T=_type(tf.float32), index_type=_type(tf.int32))

    def add_variable(self, name: str, device: str, shape: tf.TensorShape, initial: str, part=None) -> str:
        """Describes a float32 variable that is not trained; `initial` is the name of its initial value. part: what it
        is a slice of, see slices.description."""
        f32 = _type(tf.float32)
        self.add('VarHandleOp', name, device, dtype=f32, shape=v1.AttrValue(shape=shape.as_proto()),
                 shared_name=v1.AttrValue(s=name.encode()))
        assign = self.add('AssignVariableOp', f'{name}/Assign', device, [name, initial], dtype=f32)
        read = self.add('ReadVariableOp', f'{name}/Read', device, [name], dtype=f32)
        self._variables.append({'variable_name': f'{name}:0', 'initializer_name': assign,
                                'initial_value_name': initial if ':' in initial else f'{initial}:0',
                                'snapshot_name': f'{read}:0', 'save_slice_info_def': part})
        return name

    def add_float(self, op: str, name: str, device: str, inputs: Sequence[str] = (), key: str = 'T',
                  **attributes: v1.AttrValue) -> str:
        """As `add`, of an operation whose attribute `key` is the type of its tensors, float32."""
        return self.add(op, name, device, inputs, **{key: _type(tf.float32)}, **attributes)

    def build(self) -> dict[str, tf.Variable]:
        """Makes everything. Returns the variables by name; they are global variables like all others."""
        with tf.device(None), tf.control_dependencies(None):
            tf.import_graph_def(self._graph_def, self._given, name='')
        made = [_wrap(False, **names) for names in self._variables]
        return {variable.op.name: variable for variable in made}


class VariableGetter:
    """A custom getter, as v1.variable_scope takes it, that makes variables by `build_variable`."""

    def __init__(self):
        self._made: dict[str, tf.Variable] = {}

    def __call__(self, getter: Callable, name: str, shape=None, dtype=None, initializer=None, trainable=None,
                 collections=None, **kwargs) -> tf.Variable:
        """The variable that v1.get_variable is asked for, new or again."""
        if name not in self._made:
            if collections or not callable(initializer) or kwargs.get('partitioner'):
                return getter(name, shape, dtype, initializer, trainable=trainable, collections=collections,
                              **(kwargs | {'use_resource': True}))
            initializer = initializer() if isinstance(initializer, type) else initializer
            self._made[name] = build_variable(name, shape, tf.as_dtype(dtype), initializer, trainable is not False)
        if not self._made[name].shape.is_compatible_with(shape):
            raise ValueError(f'the variable {name} has the shape {self._made[name].shape}, not {shape}')
        return self._made[name]


def build_variable(name: str, shape: Sequence[int], dtype: tf.DType, initializer: Callable, trainable: bool
                   ) -> tf.Variable:
    """Makes one variable as v1.get_variable does, from the operations that it needs, in a third of the time.

    It is where the device functions around put it, and its initial value, initializer(shape, dtype), is beside it.
    """
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, name=name)
    with tf.device(handle.device), tf.name_scope(f'{name}/'):
        initial = initializer(shape, dtype=dtype)
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=initial, name='Assign')
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype, name='Read')
    return _wrap(trainable, variable_name=handle.name, initializer_name=assign.name, initial_value_name=initial.name,
                 snapshot_name=read.name)


def _wrap(trainable: bool, **names) -> tf.Variable:
    """The object for operations that there are; it is listed where all variables are."""
    variable = v1.Variable(variable_def=_variable_def()(is_resource=True, trainable=trainable, **names),
                           use_resource=True)
    v1.add_to_collection(v1.GraphKeys.GLOBAL_VARIABLES, variable)
    if trainable:
        v1.add_to_collection(v1.GraphKeys.TRAINABLE_VARIABLES, variable)
    return variable


def _type(dtype: tf.DType) -> v1.AttrValue:
    return v1.AttrValue(type=dtype.as_datatype_enum)


@functools.cache
def _variable_def() -> type:
    """The class of a variable's description, which has no public name."""
    with tf.Graph().as_default():
        return type(v1.Variable(0.0, use_resource=True).to_proto())
