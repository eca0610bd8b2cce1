"""Trained weights from a file, whoever wrote it, under this project's names.

Four kinds of file: checkpoints with the names of the 2016 program (its own, and ours of Inception v3), checkpoints of
TF-slim, Keras's InceptionV3 in HDF5 (keras_weights.py), and our checkpoints of any other model. docs/weights.md says
how they differ. Values are read by name; graphs and programs stored beside them are never loaded.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from inception_mg.config import SOURCES
from inception_mg.errors import FlagError, UserError
from inception_mg.weights import checkpoints, keras_weights, names
from inception_mg.weights.checkpoints import AVERAGE

# Last parts of names that mean a weight: a file that has one too many is of another network.
_WEIGHT_LEAVES = ('weights', 'biases', 'beta', 'gamma', 'moving_mean', 'moving_variance')
Translate = Callable[[str], str | None]


@dataclasses.dataclass(frozen=True)
class Weights:
    """What a file holds for the network, by our names.

    source: a key of config.SOURCES. shapes: of each variable that the file has. read(name): its value, float32 of that
    shape. averages: how many of them are moving averages. unknown: weights of the file that the network does not have.
    other_heads: layers that are no head of ours, in the way unless the heads are left out. ignored: names that are no
    weights (slots of optimizers, steps). notes: what was changed on the way.
    """

    source: str
    path: str
    shapes: Mapping[str, Sequence[int]]
    read: Callable[[str], np.ndarray]
    averages: int = 0
    unknown: Sequence[str] = ()
    other_heads: Sequence[str] = ()
    ignored: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def has_aux_head(self) -> bool:
        """Whether the file has the auxiliary head, or a part of it."""
        return any(name.startswith(names.AUX_HEAD) for name in self.shapes)


def open_weights(path: str, flag: str, source: str = 'auto') -> Weights:
    """Opens a checkpoint (a path prefix, or the newest one of a folder) or a Keras file.

    Which kind it is, is told by its content; `source` refuses the others. Raises UserError naming `flag` when there is
    nothing, and naming the file when it cannot be read or is no Inception v3.
    """
    if keras_weights.is_keras_file(path):
        found = _from_keras(path)
    else:
        found = _from_checkpoint(checkpoints.find_checkpoint(path, flag))
    if source not in ('auto', found.source):
        raise FlagError(f'--source={source}, but {found.path} has the {SOURCES[found.source]}: '
                        f'use --source={found.source} or leave it out')
    return found


def check_weights(weights: Weights, wanted: Mapping[str, Sequence[int]], remedy: str) -> None:
    """Raises UserError if a wanted variable is missing or shaped differently, or if the file has weights too many.

    wanted: name -> shape. remedy: the end of the message.
    """
    heads = (*checkpoints.HEADS, names.AUX_HEAD)
    foreign = [name for name in weights.shapes if name not in wanted and not name.startswith(heads)]
    if weights.source == 'own' and foreign:  # Before the shapes: one name may be of a layer in both models.
        raise UserError(f'{weights.path} is of another model: it has {some(foreign, 3)}')
    for name, shape in wanted.items():
        if name in weights.shapes and list(weights.shapes[name]) != list(shape):
            raise UserError(f'{weights.path} has {name} with shape {list(weights.shapes[name])}, this model with '
                            f'{list(shape)}: {remedy}')
    with_head = any(name.startswith(checkpoints.HEADS) for name in wanted)
    unknown = [*weights.unknown, *(weights.other_heads if with_head else ())]
    if unknown:
        raise UserError(f'{weights.path} has weights that this model does not have ({len(unknown)}): {some(unknown)}')
    missing = [name for name in wanted if name not in weights.shapes]
    if missing:
        raise UserError(f'{weights.path} lacks {len(missing)} of {len(wanted)} variables, {some(missing)}: {remedy}')


def some(things: Iterable[str], limit: int = 12) -> str:
    """The first of the things, and how many more there are."""
    things = list(things)
    rest = f' and {len(things) - limit} more' if len(things) > limit else ''
    return ', '.join(things[:limit]) + rest


def _from_keras(path: str) -> Weights:
    model = keras_weights.read_keras(path)
    return Weights('keras', path, {name: value.shape for name, value in model.values.items()},
                   model.values.__getitem__, unknown=model.unknown, other_heads=model.other_heads, notes=model.notes)


def _from_checkpoint(path: str) -> Weights:
    reader = checkpoints.open_checkpoint(path)
    there = reader.get_variable_to_shape_map()
    source, translate = _naming(path, there)
    places, unknown, ignored = _sort_names(there, translate)
    ones = [name for name in unknown if name.removesuffix(AVERAGE).endswith('/gamma')
            and (checkpoints.read_value(reader, path, name) == 1).all()]
    # The logits of TF-slim are convolutions of one pixel: [1, 1, features, outputs].
    shapes = {ours: there[name][2:] if ours in ('logits/logits/weights', 'aux_logits/FC/weights') else there[name]
              for ours, name in places.items()} if source == 'slim' else {
              ours: there[name] for ours, name in places.items()}

    def read(ours: str) -> np.ndarray:
        return checkpoints.read_value(reader, path, places[ours]).astype(np.float32).reshape(shapes[ours])

    return Weights(source, path, shapes, read, sum(name.endswith(AVERAGE) for name in places.values()),
                   unknown=[name for name in unknown if name not in ones], ignored=ignored,
                   notes=[f'{len(ones)} factors of batch normalisation that are all 1 left out'] if ones else [])


def _naming(path: str, there: Iterable[str]) -> tuple[str, Translate]:
    """The source whose names these are, and what translates them into ours."""
    known = set(names.model_names())
    averaged = {name.removesuffix(AVERAGE) for name in there if name.endswith(AVERAGE)}
    if len(averaged - known) > len(averaged) / 2:  # Some names, such as that of the last layer, are of several models.
        return 'own', lambda name: name if name in averaged else None
    if not known.isdisjoint(name.removesuffix(AVERAGE) for name in there):
        return '2016', lambda name: name if name in known else None
    if any(name.startswith(names.SLIM) for name in there):
        return 'slim', names.from_slim
    raise UserError(f'{path} is no checkpoint of an Inception v3 that is known here: it has {some(sorted(there), 3)}')


def _sort_names(there: Iterable[str], translate: Translate) -> tuple[dict[str, str], list[str], list[str]]:
    """Our name -> the file's, the average where there is one; unknown weights; names that are no weights."""
    places: dict[str, str] = {}
    unknown, ignored = [], []
    for name in sorted(there):  # An average comes after its variable, and takes its place.
        plain = name.removesuffix(AVERAGE)
        ours = translate(plain)
        if ours:
            places[ours] = name
        elif plain.rpartition('/')[2] in _WEIGHT_LEAVES:
            unknown.append(name)
        else:
            ignored.append(name)
    return places, unknown, ignored
