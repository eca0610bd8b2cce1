"""Somebody else's weight files, made here: names as TF-slim has them, values by the golden rule."""

import pathlib

import golden
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
SHAPES = {variable['name']: tuple(variable['shape']) for variable in golden.FIGURES['variables']}

# TF-slim's convolutions in the order in which research/slim/nets/inception_v3.py makes them, the heads last.
_GRID35 = 'Branch_0/Conv2d_0a_1x1 {} Branch_2/Conv2d_0a_1x1 Branch_2/Conv2d_0b_3x3 Branch_2/Conv2d_0c_3x3 ' \
          'Branch_3/Conv2d_0b_1x1'
_GRID17 = 'Branch_0/Conv2d_0a_1x1 Branch_1/Conv2d_0a_1x1 Branch_1/Conv2d_0b_1x7 Branch_1/Conv2d_0c_7x1 ' \
          'Branch_2/Conv2d_0a_1x1 Branch_2/Conv2d_0b_7x1 Branch_2/Conv2d_0c_1x7 Branch_2/Conv2d_0d_7x1 ' \
          'Branch_2/Conv2d_0e_1x7 Branch_3/Conv2d_0b_1x1'
_GRID8 = 'Branch_0/Conv2d_0a_1x1 Branch_1/Conv2d_0a_1x1 Branch_1/Conv2d_0b_1x3 Branch_1/{} ' \
         'Branch_2/Conv2d_0a_1x1 Branch_2/Conv2d_0b_3x3 Branch_2/Conv2d_0c_1x3 Branch_2/Conv2d_0d_3x1 ' \
         'Branch_3/Conv2d_0b_1x1'
_FIVES = 'Branch_1/Conv2d_0a_1x1 Branch_1/Conv2d_0b_5x5'
_SLIM = {
    '': 'Conv2d_1a_3x3 Conv2d_2a_3x3 Conv2d_2b_3x3 Conv2d_3b_1x1 Conv2d_4a_3x3',
    'Mixed_5b': _GRID35.format(_FIVES),
    'Mixed_5c': _GRID35.format('Branch_1/Conv2d_0b_1x1 Branch_1/Conv_1_0c_5x5'),
    'Mixed_5d': _GRID35.format(_FIVES),
    'Mixed_6a': 'Branch_0/Conv2d_1a_1x1 Branch_1/Conv2d_0a_1x1 Branch_1/Conv2d_0b_3x3 Branch_1/Conv2d_1a_1x1',
    'Mixed_6b': _GRID17, 'Mixed_6c': _GRID17, 'Mixed_6d': _GRID17, 'Mixed_6e': _GRID17,
    'Mixed_7a': 'Branch_0/Conv2d_0a_1x1 Branch_0/Conv2d_1a_3x3 Branch_1/Conv2d_0a_1x1 Branch_1/Conv2d_0b_1x7 '
                'Branch_1/Conv2d_0c_7x1 Branch_1/Conv2d_1a_3x3',
    'Mixed_7b': _GRID8.format('Conv2d_0b_3x1'),
    'Mixed_7c': _GRID8.format('Conv2d_0c_3x1'),
    'AuxLogits': 'Conv2d_1b_1x1 Conv2d_2a_5x5 Conv2d_2b_1x1',
    'Logits': 'Conv2d_1c_1x1'}


def slim_names() -> dict[str, str]:
    """TF-slim's name -> ours. The body is paired by the order of creation, which is the same in both programs."""
    slim = ['/'.join(filter(None, ('InceptionV3', block, conv))) for block, convs in _SLIM.items()
            for conv in convs.split()]
    scopes = list(dict.fromkeys(name.split('/BatchNorm')[0].rsplit('/weights')[0].rsplit('/biases')[0]
                                for name in SHAPES))
    body = [scope for scope in scopes if 'logits' not in scope]
    ours = [*body, 'aux_logits/proj', 'aux_logits/Conv', 'aux_logits/FC', 'logits/logits']
    pairs = dict(zip(ours, slim, strict=True))
    return {name.replace(scope, pairs[scope], 1): name for name in SHAPES for scope in ours
            if name.startswith(f'{scope}/')}


def write(prefix: pathlib.Path | str, values: dict[str, np.ndarray]) -> str:
    """Writes a checkpoint of exactly these names; returns its path prefix."""
    names = sorted(values)
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[''] * len(names),
                      tensors=[values[name] for name in names])
    return str(prefix)


def small_values() -> dict[str, np.ndarray]:
    """Zeros under the names of 2016, in one channel: for tests that look at names only."""
    return {name: np.zeros([1] * len(shape), np.float32) for name, shape in SHAPES.items()}
