"""Variables as a checkpoint knows them: what is cut into slices, over several ps, is one tensor there, of one name.

TensorFlow's Saver does it so. A slice knows what it is of; here that is read from its description, the one that
tf.Variable.to_proto gives. Standard library only.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Whole(NamedTuple):
    """name, shape: of what a checkpoint holds. parts: the variables that hold it, in order, and where in it each lies;
    most often one, the variable itself."""

    name: str
    shape: list[int]
    parts: list[tuple]


def description(variable):
    """The SaveSliceInfoDef of a variable that is a slice, a copy; None for others."""
    if not re.search(r'/part_\d+(/|$)', variable.op.name):  # As TensorFlow names them; a description takes time.
        return None
    with variable.graph.as_default():
        proto = variable.to_proto()
    return proto.save_slice_info_def if proto.HasField('save_slice_info_def') else None


def saved_name(variable) -> str:
    """The name of a variable in a checkpoint: that of the whole for a slice."""
    part = description(variable)
    return part.full_name if part else variable.op.name


def wholes(variables: Iterable) -> dict[str, Whole]:
    """Name in a checkpoint -> what is there, in the order of the variables."""
    found: dict[str, Whole] = {}
    for variable in variables:
        part = description(variable)
        name, shape = (part.full_name, part.full_shape) if part else (variable.op.name, variable.shape)
        piece = tuple(slice(first, first + rows) for first, rows in zip(part.var_offset, part.var_shape, strict=True)
                      ) if part else ()
        found.setdefault(name, Whole(name, list(shape), [])).parts.append((variable, piece))
    return found
