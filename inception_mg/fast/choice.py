"""Which of the faster forms this machine's TensorFlow has: those that lean on what it does not promise are tried."""

import functools
from collections.abc import Callable

import tensorflow as tf

from inception_mg.fast import batch_norm, colours, convolution, nodes, transfers, updates
from inception_mg.fast.operations import PLAIN, Operations

v1 = tf.compat.v1
_OF_NODES = {'variable_getter': nodes.VariableGetter, 'make_optimizer': updates.RMSProp,
             'build_averages': updates.build_averages, 'build_moves': updates.build_moves,
             'build_finite': updates.build_finite}


def operations_for(plain: bool, say: Callable[[str], None]) -> Operations:
    """The plain forms if asked for; else the fast ones that there are, and one line that names those that are not."""
    if plain:
        say('every operation in its plain form (--plain_operations)')
        return PLAIN
    operations, missing = fast_operations()
    if missing:
        say(f'this TensorFlow ({tf.__version__}) has no {", no ".join(missing)}: the plain form serves')
    return operations


@functools.cache
def fast_operations() -> tuple[Operations, tuple[str, ...]]:
    """The fast forms that work here, and what the others lack. Tries each once in a process, in a tenth of a second."""
    forms, missing = {'recolour': colours.recolour, 'carry': transfers.carry}, []
    verbosity = v1.logging.get_verbosity()
    v1.logging.set_verbosity(v1.logging.ERROR)  # What is tried may be deprecated.
    for what, try_it, offered in (
            ('gradient of its own for one convolution', convolution.try_override, {'conv2d': convolution.conv2d}),
            ('joint batch norm and ReLU', batch_norm.try_joint, {'batch_norm_relu': batch_norm.batch_norm_relu}),
            ('variables from hand-made nodes', updates.try_nodes, _OF_NODES),
            ('input of an operation that is bound late', transfers.try_late_input, {'reads': transfers.LateReads})):
        try:
            with tf.Graph().as_default(), tf.device('/device:CPU:0'), v1.variable_scope('', use_resource=True):
                try_it()
            forms |= offered
        except Exception:  # Whatever a TensorFlow raises that lacks it or has changed it.
            missing.append(what)
    v1.logging.set_verbosity(verbosity)
    return Operations(**forms), tuple(missing)
