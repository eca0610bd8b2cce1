"""The slots and averages of a network's variables made at once, and so what moves and checks them."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.fast.nodes import Nodes, VariableGetter
from inception_mg.slices import description

v1 = tf.compat.v1


class RMSProp(v1.train.RMSPropOptimizer):
    """TensorFlow's RMSProp, whose slots are made all at once."""

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        nodes = Nodes()
        for variable in var_list:
            # The names and the initial values that the class gives them.
            for slot, value in ((f'{variable.op.name}/RMSProp', 1.0), (f'{variable.op.name}/RMSProp_1', 0.0)):
                initial = nodes.add_value(value, variable.shape, f'{slot}/Initializer', variable.device)
                nodes.add_variable(slot, variable.device, variable.shape, initial)
        made = nodes.build()

        def made_or_new(getter: Callable, name: str, *args, **kwargs) -> tf.Variable:
            name = name.removesuffix('/')
            return made[name] if name in made else getter(name, *args, **kwargs)

        with v1.variable_scope(v1.get_variable_scope(), custom_getter=made_or_new):
            super()._create_slots(var_list)


def build_averages(averaged: Sequence[tf.Variable], suffix: str) -> list[tf.Variable]:
    """As optimizers.build_averages; suffix: what their names end in."""
    nodes, names = Nodes(), []
    for variable in averaged:
        if part := description(variable):
            part.full_name += suffix
        names.append(nodes.add_variable(variable.op.name + suffix, variable.device, variable.shape,
                                        nodes.given(variable.initial_value), part))
    made = nodes.build()
    return [made[name] for name in names]


def build_moves(moves: Sequence[tuple[tf.Variable, tf.Variable | tf.Tensor, tf.Tensor | float]], scope: str
                ) -> tf.Operation:
    """As optimizers.build_moves, but each move waits for its share alone."""
    nodes, here = Nodes(), {}
    for variable, goal, share in moves:
        device, key = variable.device, (variable.device, share.name if isinstance(share, tf.Tensor) else share)
        if key not in here:
            with tf.device(device), tf.name_scope(scope):
                here[key] = tf.identity(share, 'share')
        name, known = f'{scope}{variable.op.name}', nodes.given(here[key], wait=True)
        handle = nodes.given(variable.handle)
        value = nodes.add_float('ReadVariableOp', f'{name}/value', device, [handle, known], 'dtype')
        if isinstance(goal, tf.Variable):
            to = nodes.add_float('ReadVariableOp', f'{name}/goal', device, [nodes.given(goal.handle), known], 'dtype')
        else:
            to = nodes.given(goal)
        delta = nodes.add_float('Sub', f'{name}/way', device, [value, to])
        nodes.add_float('ResourceApplyGradientDescent', f'{name}/move', device,
                        [handle, nodes.given(here[key]), delta], use_locking=v1.AttrValue(b=True))
    nodes.build()
    graph = v1.get_default_graph()
    return tf.group(*(graph.get_operation_by_name(f'{scope}{variable.op.name}/move') for variable, *_ in moves))


def build_finite(variables: Sequence[tf.Variable], scope: str) -> dict[str, tf.Tensor]:
    """As hooks.build_finite, of floating variables; scope: the name scope of the operations."""
    nodes, graph, sums = Nodes(), v1.get_default_graph(), {}
    for variable in variables:
        name = f'{scope}{variable.op.name}'
        value = nodes.add_float('ReadVariableOp', f'{name}/value', variable.device, [nodes.given(variable.handle)],
                                'dtype')
        sums[variable.op.name] = nodes.add_float('L2Loss', name, variable.device, [value])
    nodes.build()
    return {name: graph.get_operation_by_name(total).outputs[0] for name, total in sums.items()}


def try_nodes() -> None:
    """Raises if variables and what moves them cannot be made so, or do not work."""
    variable = VariableGetter()(v1.get_variable, 'tried', [2], tf.float32, v1.ones_initializer())
    update = RMSProp(0.1, momentum=0.9).apply_gradients([(tf.ones([2]), variable)])
    average, = build_averages([variable], '/Average')
    with tf.control_dependencies([update]):
        moved = build_moves([(average, variable, tf.identity(0.5))], 'moves/')
    with v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
        session.run(v1.global_variables_initializer())
        session.run(moved)
        if session.run(build_finite([average], 'finite/')['tried/Average']) >= 1:
            raise ValueError('an average did not move')
