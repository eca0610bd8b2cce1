"""Conversion: somebody's trained weights become a checkpoint with this project's names."""

import os
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from inception_mg.config import SOURCES, ConvertConfig
from inception_mg.errors import UserError
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.reasons import reason_of
from inception_mg.weights import checkpoints
from inception_mg.weights.names import AUX_HEAD
from inception_mg.weights.sources import Weights, check_weights, open_weights

v1 = tf.compat.v1
Say = Callable[[str], None]
IMAGE_SIZE = 299  # Of the released weights; it decides the kernel of the auxiliary head.
NAME = 'model.ckpt-0'


def convert(config: ConvertConfig, say: Say = print) -> str:
    """Writes the weights of config.input as a checkpoint at step 0 and returns its path prefix.

    The weights are in it twice, raw and as moving averages, so that evaluation, export and training take it as one of
    their own; slots of the optimizer are not in it. Raises UserError, before anything is written, when a variable is
    missing or shaped differently, the file has weights too many, or there is a checkpoint already.
    """
    directory = pathlib.Path(config.output_directory)
    if list(directory.glob('model.ckpt-*')) or (directory / 'checkpoint').exists():
        raise UserError(f'--output_directory={directory} has a checkpoint already: name another folder')
    weights = open_weights(config.input, 'input', config.source)
    own_values = _check(weights)
    for line in _table(weights, own_values):
        say(line)
    values = {name: weights.read(name) for name in weights.shapes if name not in own_values} | own_values
    averages = {name + checkpoints.AVERAGE: value for name, value in values.items()}
    _write(directory, values | averages | {'global_step': np.int64(0)})
    say(f'wrote {directory / NAME}: {len(values)} variables, as many averages, global_step 0')
    return str(directory / NAME)


def _check(weights: Weights) -> dict[str, np.ndarray]:
    """Compares the file with the network; returns initial values of an auxiliary head that the file does not have."""
    outputs = weights.shapes.get('logits/logits/biases', (0,))[0]
    with tf.Graph().as_default():
        images = v1.placeholder(tf.float32, [1, IMAGE_SIZE, IMAGE_SIZE, 3])
        inception_v3(images, outputs or 1001, Layers(is_training=False))
        new = [] if weights.has_aux_head else [v for v in v1.global_variables() if v.op.name.startswith(AUX_HEAD)]
        names = {v.op.name for v in new}
        check_weights(weights, {v.op.name: v.shape.as_list() for v in v1.global_variables() if v.op.name not in names},
                      'Inception v3 needs it (files without a head can only be fine-tuned)')
        with v1.Session() as session:
            return dict(zip(sorted(names), session.run([v.initial_value for v in sorted(new, key=lambda v: v.op.name)]),
                            strict=True))


def _table(weights: Weights, own: dict) -> list[str]:
    """What was found, in counts."""
    outputs = weights.shapes['logits/logits/biases'][0]
    rows = [('read', len(weights.shapes), f'variables of the network, {outputs} outputs with the background'),
            ('averages', weights.averages, 'of them are moving averages'),
            ('new', len(own), 'variables of the auxiliary head, which the file does not have: initial values'),
            ('ignored', len(weights.ignored), 'names that are no weights, such as slots of an optimizer')]
    return [f'source    {weights.path}: {SOURCES[weights.source]}',
            *(f'{name:<9} {count:4d}  {text}' for name, count, text in rows),
            *(f'note      {note}' for note in weights.notes)]


def _write(directory: pathlib.Path, values: dict[str, np.ndarray]) -> None:
    """Writes the checkpoint beside its place and moves it there when it is whole."""
    names = sorted(values)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix='.converting-', dir=directory) as temporary:
            prefix = os.path.join(temporary, NAME)
            with tf.Graph().as_default(), v1.Session() as session:
                fed = [v1.placeholder(tf.as_dtype(values[name].dtype)) for name in names]
                save = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[''] * len(names),
                                         tensors=fed)
                session.run(save, {place: values[name] for place, name in zip(fed, names, strict=True)})
            for file in sorted(os.listdir(temporary)):  # The data before the index, which makes it a checkpoint.
                os.replace(os.path.join(temporary, file), directory / file)
        v1.train.update_checkpoint_state(str(directory), NAME)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f'cannot write in --output_directory={directory}: {reason_of(error)}') from None
