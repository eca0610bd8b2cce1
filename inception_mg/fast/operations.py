"""Which operations of a step take a faster form than the plain one that stands where a reader meets it."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Operations:
    """The faster forms, each a function that replaces a plain one; None: the plain form serves.

    Both forms of a pair give the same values up to rounding, the same variables in the same order under the same names
    on the same devices, and the same bytes between machines. `choice.fast_operations` has those that there are.
    """

    conv2d: Callable | None = None              # In training; plain: tf.nn.conv2d.
    batch_norm_relu: Callable | None = None     # In training; plain: Layers.activate.
    recolour: Callable | None = None            # Plain: distortions.distort_colours.
    variable_getter: Callable | None = None     # Makes a custom getter; plain: partition.get_resource.
    make_optimizer: Callable | None = None      # Plain: v1.train.RMSPropOptimizer.
    build_averages: Callable | None = None      # Plain: optimizers.build_averages.
    build_moves: Callable | None = None         # Plain: optimizers.build_moves.
    build_finite: Callable | None = None        # Plain: hooks.build_finite.
    carry: Callable | None = None               # Plain: wire.carry.
    reads: Callable | None = None               # Plain: wire.Reads.


PLAIN = Operations()
