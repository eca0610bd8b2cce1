"""Checkpoints by variable name: which one is newest, what is in it, and what to take from it.

Values are read by name into the graph that we build; the graph stored beside a checkpoint is never
loaded, because a graph is a program and may be somebody else's.
"""

import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from inception_mg.errors import UserError
from inception_mg.weights.names import AUX_HEAD

v1 = tf.compat.v1
AVERAGE = '/ExponentialMovingAverage'
HEADS = ('logits/', 'aux_logits/FC/')  # The layers whose shape is the number of classes.


def newest_checkpoint(directory: str) -> str | None:
    """The path prefix of the newest checkpoint in `directory`, or None.

    A state file that names a checkpoint which is not there is an error: UserError names both.
    """
    state = v1.train.get_checkpoint_state(directory)
    if state is None or not state.model_checkpoint_path:
        return None
    # First by name: in a folder that was copied or moved the state file may hold the old absolute path.
    here = str(pathlib.Path(directory) / pathlib.Path(state.model_checkpoint_path).name)
    for path in (here, state.model_checkpoint_path):
        if v1.train.checkpoint_exists(path):
            return path
    raise UserError(f'{directory}/checkpoint names {state.model_checkpoint_path}, which is not there: put it back, '
                    'or edit that file to name a checkpoint that is')


def find_checkpoint(path: str, flag: str) -> str:
    """The checkpoint that `path`, a folder or a path prefix, stands for. Raises UserError naming
    `flag` when there is none."""
    if pathlib.Path(path).is_dir():
        found = newest_checkpoint(path)
    else:
        found = path if v1.train.checkpoint_exists(path) else None
    if not found:
        raise UserError(f'--{flag}={path}: no checkpoint there')
    return found


def step_of(checkpoint: str) -> int:
    """The global_step in `checkpoint`, or -1 if it has none."""
    reader = open_checkpoint(checkpoint)
    return int(reader.get_tensor('global_step')) if reader.has_tensor('global_step') else -1


def step_is_float(checkpoint: str) -> bool:
    """Whether the global_step in `checkpoint` is float32, as inception_train.py of 2016 has it."""
    return open_checkpoint(checkpoint).get_variable_to_dtype_map().get('global_step') == tf.float32


def open_checkpoint(checkpoint: str):
    """A tf.train.CheckpointReader; UserError when the files cannot be read."""
    try:
        return tf.train.load_checkpoint(checkpoint)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UserError(f'cannot read the checkpoint {checkpoint}: {str(error).splitlines()[0]}') from None


def read_value(reader, checkpoint: str, name: str) -> np.ndarray:
    """The value of `name`; UserError when it cannot be read, as from a file cut short."""
    try:
        return reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise UserError(f'cannot read {name} of {checkpoint}: {str(error).splitlines()[0]}') from None


def check_shapes(checkpoint: str, wanted: dict[str, tf.Variable], remedy: str) -> None:
    """Raises UserError if a wanted name is missing in `checkpoint` or has another shape there.

    wanted: name in the checkpoint -> variable of the graph. remedy: the end of the message.
    """
    there = open_checkpoint(checkpoint).get_variable_to_shape_map()
    for name, variable in wanted.items():
        if name in there and list(variable.shape) != list(there[name]):
            raise UserError(f'{checkpoint} has {name} with shape {list(there[name])}, this model with '
                            f'{list(variable.shape)}: {remedy}')
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UserError(f'{checkpoint} lacks {len(missing)} of {len(wanted)} variables, the first is {missing[0]}: '
                        f'{remedy}')


def average_names(variables: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    """Checkpoint name of each variable's moving average -> the variable (names of 2016)."""
    return {variable.op.name + AVERAGE: variable for variable in variables}


def names_to_restore(checkpoint: str, variables: Sequence[tf.Variable], use_averages: bool
                     ) -> dict[str, tf.Variable]:
    """Checkpoint name -> variable for evaluation: the averages, or the raw weights.

    variables: all of the model's, with the batch-norm statistics. The auxiliary head is left out: only training uses
    it, and its kernel follows from the image size. Raises UserError when averages are wanted and there are none.
    """
    variables = [variable for variable in variables if not variable.op.name.startswith(AUX_HEAD)]
    if not use_averages:
        return {variable.op.name: variable for variable in variables}
    names = average_names(variables)
    there = open_checkpoint(checkpoint).get_variable_to_shape_map()
    if not any(name in there for name in names):
        raise UserError(f'{checkpoint} has no moving averages (names ending in {AVERAGE}): --nouse_averages '
                        'evaluates the raw weights')
    return names


class Restorer:
    """Restores a checkpoint's averages, or raw weights, by name, after checking that they fit.

    variables: all of one graph's model. remedy: the end of the message where they do not fit.
    """

    def __init__(self, variables: Sequence[tf.Variable], use_averages: bool, remedy: str):
        self._variables, self._use_averages, self._remedy = variables, use_averages, remedy
        self._saver: v1.train.Saver | None = None

    def restore(self, session: v1.Session, checkpoint: str) -> None:
        """Raises UserError where a variable is missing or has another shape."""
        names = names_to_restore(checkpoint, self._variables, self._use_averages)
        check_shapes(checkpoint, names, self._remedy)
        try:
            with session.graph.as_default():
                self._saver = self._saver or v1.train.Saver(names)
                self._saver.restore(session, checkpoint)
        except tf.errors.OpError as error:
            raise UserError(f'cannot restore {checkpoint}: {str(error).splitlines()[0]}') from error
