"""The schedule and the moving averages, against their formulas."""

import numpy as np
import pytest
import tensorflow as tf
from forms import in_both_forms

from inception_mg.config import OptimizerConfig
from inception_mg.training.optimizers import (
    AveragedOptimizer,
    build_averages_update,
    build_learning_rate,
    build_moves,
    build_optimizer,
)

v1 = tf.compat.v1


@pytest.fixture
def session():
    with tf.Graph().as_default(), v1.variable_scope('', use_resource=True), v1.Session() as sess:
        yield sess


def global_step(value: int = 0) -> tf.Variable:
    return v1.get_variable('global_step', [], tf.int64, v1.constant_initializer(value), trainable=False)


@pytest.mark.parametrize('images_per_update', [32, 64, 128])
def test_the_rate_decays_by_images_seen_whatever_the_batch(session, images_per_update):
    """1 tower of 32, 2 towers of 32, 4 workers of 32 aggregated: equal rates at equal images seen."""
    config = OptimizerConfig(initial_learning_rate=0.1, num_epochs_per_decay=2, learning_rate_decay_factor=0.5)
    step = global_step()
    rate = build_learning_rate(config, step, images_per_update, num_examples=1280)
    session.run(v1.global_variables_initializer())
    found = []
    for images_seen in (0, 2432, 2560, 5000, 5120):
        session.run(step.assign(images_seen // images_per_update))
        found.append(session.run(rate))
    np.testing.assert_allclose(found, [0.1, 0.1, 0.05, 0.05, 0.025], rtol=1e-6)


def test_the_rate_of_fewer_images_than_an_update_takes_decays_at_each_step(session):
    step = global_step(3)
    rate = build_learning_rate(OptimizerConfig(initial_learning_rate=0.8, num_epochs_per_decay=1,
                                               learning_rate_decay_factor=0.5), step, 32, num_examples=8)
    session.run(v1.global_variables_initializer())
    np.testing.assert_allclose(session.run(rate), 0.1)


@in_both_forms
def test_the_optimizer_is_rmsprop_with_momentum(session, operations):
    config = OptimizerConfig(rmsprop_decay=0.75, rmsprop_momentum=0.5, rmsprop_epsilon=2.0)
    weight = v1.get_variable('weight', [4], tf.float32, v1.zeros_initializer())
    gradient = np.array([1, -2, 0, 100], np.float32)
    update = build_optimizer(config, tf.constant(0.1), operations).apply_gradients([(tf.constant(gradient), weight)])
    session.run(v1.global_variables_initializer())
    value, square, momentum = np.zeros(4), np.ones(4), np.zeros(4)  # TensorFlow's first mean square is 1.
    for _ in range(3):
        session.run(update)
        square = 0.75 * square + 0.25 * gradient ** 2
        momentum = 0.5 * momentum + 0.1 * gradient / np.sqrt(square + 2)
        value -= momentum
        np.testing.assert_allclose(session.run(weight), value, rtol=1e-5)


@in_both_forms
def test_a_move_goes_a_share_of_the_way_to_a_variable_or_a_tensor(session, operations):
    made = [v1.get_variable(name, [2], tf.float32, v1.constant_initializer(value))
            for name, value in (('a', 1.0), ('b', 1.0), ('goal', 5.0))]
    with tf.name_scope('moves') as scope:
        move = build_moves([(made[0], made[2], 0.25), (made[1], tf.constant([5.0, 9.0]), 0.5)], scope, operations)
    session.run(v1.global_variables_initializer())
    session.run(move)
    np.testing.assert_allclose(session.run(made[0]), [2, 2])
    np.testing.assert_allclose(session.run(made[1]), [3, 5])


@in_both_forms
def test_averages_follow_the_update_and_their_formula(session, operations):
    step, weight = global_step(), v1.get_variable('weight', [], tf.float32, v1.constant_initializer(1.0))
    moving = v1.get_variable('moving_mean', [], tf.float32, v1.constant_initializer(5.0), trainable=False)
    optimizer = AveragedOptimizer(v1.train.GradientDescentOptimizer(0.1), 0.5, [weight, moving], operations)
    train_op = optimizer.apply_gradients([(tf.constant(1.0), weight)], step)
    session.run(v1.global_variables_initializer())
    by_name = {v.op.name: v for v in v1.global_variables()}
    assert v1.trainable_variables() == [weight]
    value, average = 1.0, 1.0
    for count in range(1, 30):
        session.run(train_op)
        value -= 0.1
        decay = min(0.5, (1 + count) / (10 + count))
        average = decay * average + (1 - decay) * value
        np.testing.assert_allclose(session.run(by_name['weight/ExponentialMovingAverage']), average,
                                   rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(session.run(by_name['moving_mean/ExponentialMovingAverage']), 5.0)


@in_both_forms
def test_averages_equal_the_stock_class(session, operations):
    step = global_step(7)
    weight = v1.get_variable('weight', [4], tf.float32, v1.random_normal_initializer(seed=1))
    stock = tf.train.ExponentialMovingAverage(0.9, step, name='Stock')
    ours, theirs = build_averages_update(0.9, [weight], step, operations), stock.apply([weight])
    session.run(v1.global_variables_initializer())
    average = next(v for v in v1.global_variables() if v.op.name == 'weight/ExponentialMovingAverage')
    np.testing.assert_array_equal(session.run(average), session.run(weight))
    for _ in range(3):
        session.run(weight.assign_add(tf.ones([4])))
        session.run([ours, theirs])
        np.testing.assert_allclose(session.run(average), session.run(stock.average(weight)), rtol=1e-6)
