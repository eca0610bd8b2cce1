"""The golden data of the 2016 program: figures made with its original code under TensorFlow 1.15.

golden_v3.json and golden_v3.npz hold names, shapes and figures; values follow from a rule, so no
weights are stored. `value_for` and `images` restate that rule.
"""

import json
import pathlib
import zlib

import numpy as np
import tensorflow as tf

_HERE = pathlib.Path(__file__).parent
FIGURES = json.loads((_HERE / 'golden_v3.json').read_text())
ARRAYS = np.load(_HERE / 'golden_v3.npz')
LABELS = np.array([3, 7], np.int32)
LABELS_8 = np.array([3, 7, 11, 101, 500, 750, 999, 1000], np.int32)


def value_for(name: str, shape) -> np.ndarray:
    """The value of the model variable `name`: drawn from a generator seeded by its name."""
    shape = tuple(int(size) for size in shape)
    random = np.random.RandomState(zlib.crc32(name.encode()) & 0xffffffff)
    leaf = name.rsplit('/', 1)[-1]
    if leaf == 'weights':
        value = random.standard_normal(shape) * np.sqrt(2 / int(np.prod(shape[:-1])))
    elif leaf == 'moving_variance':
        value = 0.5 + random.random_sample(shape)
    else:
        value = 0.1 * random.standard_normal(shape)
    return value.astype(np.float32)


def images() -> np.ndarray:
    """Two images of noise, float32 [2, 299, 299, 3]."""
    return np.random.RandomState(0).uniform(-1, 1, (2, 299, 299, 3)).astype(np.float32)


def smooth_images() -> np.ndarray:
    """Eight images of waves, float32 [8, 299, 299, 3]."""
    rows, columns = np.mgrid[0:299, 0:299] / 299.0
    result = np.zeros((8, 299, 299, 3))
    for number in range(8):
        random = np.random.RandomState(100 + number)
        for channel in range(3):
            value = random.uniform(-0.3, 0.3)
            for _ in range(6):
                down, across = random.uniform(-12, 12, 2)
                phase = random.uniform(0, 2 * np.pi)
                height = random.uniform(0.1, 0.5)
                value = value + height * np.sin(2 * np.pi * (down * rows + across * columns) + phase)
            result[number, :, :, channel] = value
    return np.clip(result, -1, 1).astype(np.float32)


def load(session: tf.compat.v1.Session, variables) -> None:
    """Gives every variable of the model its value by the rule."""
    known = {variable['name'] for variable in FIGURES['variables']}
    feeds, assigns = {}, []
    for variable in variables:
        if variable.op.name in known:
            value = tf.compat.v1.placeholder(tf.float32, variable.shape)
            feeds[value] = value_for(variable.op.name, variable.shape)
            assigns.append(variable.assign(value, read_value=False))
    session.run(assigns, feeds)


def l2(value: np.ndarray) -> float:
    """The L2 norm, summed in float64."""
    return float(np.sqrt((value.astype(np.float64) ** 2).sum()))
