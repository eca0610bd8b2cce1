"""The schedule and the moving averages, against their formulas."""

import numpy as np
import pytest
import tensorflow as tf
from forms import in_both_forms

from inception_mg.config import OptimizerConfig
from inception_mg.training.optimizers import AveragedOptimizer, build_averages_update, build_learning_rate

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


@in_both_forms
def test_averages_follow_the_update_and_their_formula(session, operations):
    step, weight = global_step(), v1.get_variable('weight', [], tf.float32, v1.constant_initializer(1.0))
    moving = v1.get_variable('moving_mean', [], tf.float32, v1.constant_initializer(5.0), trainable=False)
    optimizer = AveragedOptimizer(v1.train.GradientDescentOptimizer(0.1), 0.5, [weight, moving], operations)
    train_op = optimizer.apply_gradients([(tf.constant(1.0), weight)], step)
    session.run(v1.global_variables_initializer())
    by_name = {v.op.name: v for v in v1.global_variables()}
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
