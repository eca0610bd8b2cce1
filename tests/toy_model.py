"""A model small enough to compute by hand: two branches, two stages, weight decay, one statistic.

`toy_loss` builds a tower of it as tower code does; `numpy_run` is the slow, obvious truth.
"""

import numpy as np
import tensorflow as tf

from inception_mg.model.layers import Statistic
from inception_mg.model.losses import TowerLoss
from inception_mg.placement import Placement

v1 = tf.compat.v1
INPUTS, HIDDEN, DECAY, WEIGHT_DECAY = 3, 4, 0.9, 0.01
RATE, MOMENTUM = 0.05, 0.9
SHAPES = {'left/weights': (INPUTS, HIDDEN), 'right/weights': (INPUTS, HIDDEN),
          'top/weights': (2 * HIDDEN, 1), 'top/bias': (1,)}
WEIGHT_BYTES = 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())
STATISTIC_BYTES = 4 * HIDDEN


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` examples: float32 [count, INPUTS] and float32 [count]."""
    random = np.random.RandomState(7)
    inputs = random.uniform(-1, 1, (count, INPUTS)).astype(np.float32)
    return inputs, np.sin(3 * inputs).sum(axis=1).astype(np.float32)


def initial_weights() -> dict[str, np.ndarray]:
    """The values that both implementations start from."""
    random = np.random.RandomState(3)
    return {name: random.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}


def toy_loss(inputs: tf.Tensor, targets: tf.Tensor, tower) -> TowerLoss:
    """One tower, its branches and stages on the tower's devices."""
    start = initial_weights()

    def weight(name: str) -> tf.Tensor:
        return v1.get_variable(name, SHAPES[name], tf.float32, v1.constant_initializer(start[name]))

    first, last = tower.stages[0], tower.stages[-1]
    halves, squares = [], []
    with tf.device(first):
        for number, (name, activation) in enumerate((('left', tf.tanh), ('right', tf.sigmoid))):
            with tf.device(tower.branches[number % len(tower.branches)]), tf.name_scope(f'branch_{name}'):
                weights = weight(f'{name}/weights')
                halves.append(activation(tf.matmul(inputs, weights)))
                squares.append(WEIGHT_DECAY * tf.nn.l2_loss(weights))
        moving = v1.get_variable('statistic', [HIDDEN], tf.float32, v1.zeros_initializer(), trainable=False)
        with tf.name_scope('statistic'):
            mean = tf.reduce_mean(halves[0], axis=0)
        with tf.name_scope('join'):
            joined = tf.concat(halves, axis=1)
    with tf.device(last), tf.name_scope('top_stage'):
        outputs = tf.squeeze(tf.matmul(joined, weight('top/weights')) + weight('top/bias'), 1)
        error = tf.reduce_mean(tf.square(outputs - targets))
        decay = tf.add_n(squares)
    return TowerLoss(error + decay, {'error': error, 'decay': decay}, [Statistic(moving, mean, DECAY)])


def dataset_for(count: int):
    """The `count` examples over and over, in order; reader i of n reads every n-th one."""
    def make(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
        inputs, targets = data(count)
        dataset = tf.data.Dataset.from_tensor_slices((inputs[first::readers], targets[first::readers]))
        return dataset.repeat().batch(batch_size, drop_remainder=True)
    return make


def make_optimizer(config, learning_rate, operations) -> v1.train.Optimizer:
    """Plain momentum: easy to write down in numpy."""
    return v1.train.MomentumOptimizer(RATE, MOMENTUM)


def numpy_run(count: int, steps: int, towers: int = 1) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses before each update and the values at the end, one example at a time.

    The batch is all `count` examples; with several towers, the statistic is that of the last part.
    """
    inputs, targets = data(count)
    inputs, targets = inputs.astype(np.float64), targets.astype(np.float64)
    w = {name: value.astype(np.float64) for name, value in initial_weights().items()}
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    statistic, losses = np.zeros(HIDDEN), []
    for _ in range(steps):
        gradients = {name: np.zeros_like(value) for name, value in w.items()}
        loss, left_values = 0.0, []
        for x, target in zip(inputs, targets, strict=True):
            left = np.tanh(x @ w['left/weights'])
            right = 1 / (1 + np.exp(-(x @ w['right/weights'])))
            output = np.concatenate([left, right]) @ w['top/weights'][:, 0] + w['top/bias'][0]
            loss += (output - target) ** 2 / count
            slope = 2 * (output - target) / count
            gradients['top/weights'][:, 0] += slope * np.concatenate([left, right])
            gradients['top/bias'][0] += slope
            top_left, top_right = np.split(w['top/weights'][:, 0], 2)
            gradients['left/weights'] += np.outer(x, slope * top_left * (1 - left ** 2))
            gradients['right/weights'] += np.outer(x, slope * top_right * right * (1 - right))
            left_values.append(left)
        for name in ('left/weights', 'right/weights'):
            loss += WEIGHT_DECAY * (w[name] ** 2).sum() / 2
            gradients[name] += WEIGHT_DECAY * w[name]
        losses.append(loss)
        last = np.array(left_values[count - count // towers:]).mean(axis=0)
        statistic = DECAY * statistic + (1 - DECAY) * last
        for name in w:
            velocity[name] = MOMENTUM * velocity[name] + gradients[name]
            w[name] -= RATE * velocity[name]
    return losses, {**w, 'statistic': statistic}


def check_tower_devices(placement: Placement, where: dict[str, str]) -> None:
    """Asserts of operations that ran (name -> device) that each part of a tower, forward and backward, was on its
    device: tower_0/branch_left/..., tower_0/gradients/tower_0/branch_left/..."""
    for number, tower in enumerate(placement.towers):
        devices = {'branch_left': tower.branches[0], 'branch_right': tower.branches[-1],
                   'top_stage': tower.stages[-1], 'join': tower.stages[0]}
        for scope, device in devices.items():
            ops = {op: d for op, d in where.items() if op.startswith(f'tower_{number}/') and f'/{scope}/' in op}
            assert any('gradients/' in op for op in ops), (scope, sorted(where))
            assert set(ops.values()) == {device or tower.device}, (scope, ops)
