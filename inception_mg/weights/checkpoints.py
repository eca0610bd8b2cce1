"""Checkpoints by variable name: which one is newest, what is in it, and what to take from it.

Values are read by name into the graph that we build; the graph stored beside a checkpoint is never
loaded, because a graph is a program and may be somebody else's.
"""

import math
import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from inception_mg.errors import UserError
from inception_mg.files import exists, is_file, is_folder, names_in, size_of, whole
from inception_mg.paths import STATE_FILE, checkpoint_prefix, scheme_of
from inception_mg.reasons import reason_of
from inception_mg.slices import Whole
from inception_mg.weights.names import AUX_HEAD

v1 = tf.compat.v1
Say = Callable[[str], None]
AVERAGE = '/ExponentialMovingAverage'
HEADS = ('logits/', 'aux_logits/FC/')  # The layers whose shape is the number of classes.
NOT_THERE = 'it is not there'
_OF_CHECKPOINT = re.compile(r'model\.ckpt-(\d{1,18})\.(?:index|data-\d{5}-of-\d{5})')


def _nothing(line: str) -> None:
    """Says nothing."""


def newest_checkpoint(directory: str, say: Say = _nothing) -> str | None:
    """The path prefix of the newest whole checkpoint in `directory`, or None where there is none at all.

    That is the one which TensorFlow's state file names, or, where that file is gone, empty, damaged or names what is
    not there or not whole, the model.ckpt-N with the highest N that is whole; `say` is then told why. UserError
    where there are checkpoints, or one is named, and none of them is whole: a new training would write over them.
    """
    state = os.path.join(directory, STATE_FILE)
    named, listed = listed_checkpoints(directory)
    by_number = numbered_checkpoints(directory)
    if not named and not by_number:
        return None
    # First by name: in a folder that was copied or moved the state file may hold the old absolute path.
    here = os.path.join(directory, os.path.basename(named)) if named else ''
    for path in dict.fromkeys(filter(None, (here, named))):
        if not fault_of(path):
            if by_number and path in by_number[1:] and not fault_of(by_number[0]):
                say(f'{by_number[0]} is newer than {os.path.basename(path)}, which {state} names: if it should be '
                    'kept, copy it elsewhere, for a training that gets there writes over it')
            return path
    if named:
        why = f'{state} names {named}, which is not whole ({fault_of(here)})' if fault_of(here) != NOT_THERE else (
            f'{state} names {named}, which is not there')
    else:
        why = f'{state} is {"damaged or empty" if exists(state) else "missing"}'
    for path in by_number:
        if path == here:
            continue
        if not (fault := fault_of(path)):
            say(f'{why}: taking {os.path.basename(path)}, the newest that is whole')
            return path
        say(f'{path} is passed over: {fault}')
    raise UserError(f'{why}, and no model.ckpt-N in {directory} is whole: put the files back, or move what is left of '
                    'them elsewhere to start anew')


def name_newest(directory: str, name: str, kept: Sequence[str] = ()) -> None:
    """Writes TensorFlow's state file: the name of the newest checkpoint, and of all, oldest first, if not of it alone.

    By names, so that the folder can be moved. Raises what TensorFlow does where it cannot.
    """
    folder = whole(directory)
    start = f'{folder}/' if scheme_of(folder) else ''  # There it takes the folder away from each.
    v1.train.update_checkpoint_state(folder, start + name, [start + one for one in kept] or None)


def listed_checkpoints(directory: str) -> tuple[str, list[str]]:
    """What TensorFlow's state file in `directory` says: the newest checkpoint, and all of them, oldest first.

    ('', []) where the file is missing, empty or cannot be understood.
    """
    try:
        state = v1.train.get_checkpoint_state(directory)  # None where it cannot be parsed.
    except (ValueError, tf.errors.OpError):  # Empty; not UTF-8; a folder of that name.
        state = None
    return (state.model_checkpoint_path, list(state.all_model_checkpoint_paths)) if state else ('', [])


def numbered_checkpoints(directory: str) -> list[str]:
    """The path prefixes of all model.ckpt-N of which some file is in `directory`, the highest N first."""
    try:
        names = names_in(directory)
    except OSError:
        return []
    steps = {int(found[1]) for found in map(_OF_CHECKPOINT.fullmatch, names) if found}
    return [os.path.join(directory, f'model.ckpt-{step}') for step in sorted(steps, reverse=True)]


def fault_of(checkpoint: str) -> str:
    """Why the checkpoint of this path prefix is not whole, in a few words; '' if it is.

    Looks at the index and at the sizes of the files of values, not at the values.
    """
    folder, name = os.path.split(checkpoint)
    try:
        names = [one for one in names_in(folder or '.') if one.startswith(f'{name}.')]
    except OSError:
        names = []
    parts = [one for one in names if re.fullmatch(re.escape(name) + r'\.data-\d{5}-of-\d{5}', one)]
    if not parts and f'{name}.index' not in names:
        return '' if is_file(checkpoint) and v1.train.checkpoint_exists(checkpoint) else NOT_THERE  # Or of V1.
    if f'{name}.index' not in names:
        return 'its .index is missing'
    if len(parts) != (int(parts[0][-5:]) if parts else 1):
        return f'{len(parts)} of its files .data are there'
    try:
        reader = open_checkpoint(checkpoint)
    except UserError:
        return 'its .index is cut or damaged'
    types = reader.get_variable_to_dtype_map()
    # Strings have no fixed size: what they take is more than nothing.
    needed = sum(types[key].size * math.prod(shape) for key, shape in reader.get_variable_to_shape_map().items()
                 if types[key] not in (tf.string, tf.variant, tf.resource))
    there = sum(size_of(os.path.join(folder, part)) for part in parts)
    return f'its .data has {there} of {needed} bytes' if there < needed else ''


def find_checkpoint(path: str, flag: str, say: Say = print) -> str:
    """The checkpoint that `path`, a folder, a path prefix or one of a checkpoint's files, stands for. Raises UserError
    naming `flag` when there is none, or when it is not whole."""
    path = checkpoint_prefix(path)
    if is_folder(path):
        if found := newest_checkpoint(path, say):
            return found
    elif not (fault := fault_of(path)):
        return path
    elif fault != NOT_THERE:
        raise UserError(f'--{flag}={path} is not whole: {fault}')
    raise UserError(f'--{flag}={path}: no checkpoint there')


def step_of(checkpoint: str) -> int:
    """The global_step in `checkpoint`, or -1 if it has none."""
    reader = open_checkpoint(checkpoint)
    return int(read_value(reader, checkpoint, 'global_step')) if reader.has_tensor('global_step') else -1


def step_is_float(checkpoint: str) -> bool:
    """Whether the global_step in `checkpoint` is float32, as inception_train.py of 2016 has it."""
    return open_checkpoint(checkpoint).get_variable_to_dtype_map().get('global_step') == tf.float32


def open_checkpoint(checkpoint: str):
    """A tf.train.CheckpointReader of a path prefix; UserError when the files cannot be read."""
    try:
        return v1.train.NewCheckpointReader(checkpoint)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise UserError(f'cannot read the checkpoint {checkpoint}: {reason_of(error)}') from None


def read_value(reader, checkpoint: str, name: str) -> np.ndarray:
    """The value of `name`; UserError when it cannot be read, as from a file cut short."""
    try:
        return reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise UserError(f'cannot read {name} of {checkpoint}: {reason_of(error)}') from None


def check_shapes(checkpoint: str, wanted: dict[str, tf.Variable | Whole], remedy: str) -> None:
    """Raises UserError if a wanted name is missing in `checkpoint` or has another shape there.

    wanted: name in the checkpoint -> variable of the graph, or all its slices. remedy: the end of the message.
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
        raise UserError(no_averages(checkpoint))
    return names


def no_averages(checkpoint: str) -> str:
    """What to say of a checkpoint that has none, where they are wanted."""
    return (f'{checkpoint} has no moving averages (names ending in {AVERAGE}): --nouse_averages evaluates the raw '
            'weights')


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
            raise UserError(f'cannot restore {checkpoint}: {reason_of(error)}') from error
