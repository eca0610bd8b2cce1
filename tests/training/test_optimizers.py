"""The schedule and the moving averages, against their formulas."""

import numpy as np
import pytest
import tensorflow as tf
import toy_model
from forms import in_both_forms

from inception_mg.config import OPTIMIZERS, OptimizerConfig, RunConfig
from inception_mg.placement import Placement, Tower, multi_gpu, one_device
from inception_mg.training.optimizers import (
    AveragedOptimizer,
    build_averages_update,
    build_moves,
)
from inception_mg.training.recipe import build_learning_rate, build_optimizer, updates_of, with_epochs
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

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


def test_the_cosine_and_the_warm_up_against_their_formulas(session):
    config = OptimizerConfig(schedule='cosine', initial_learning_rate=0.4, num_epochs=10, warmup_epochs=2)
    step = global_step()
    rate = build_learning_rate(config, step, 50, num_examples=1000)  # 20 updates an epoch.
    session.run(v1.global_variables_initializer())
    for at in (0, 19, 39, 40, 100, 199, 200, 300):
        session.run(step.assign(at))
        expected = 0.2 * (1 + np.cos(np.pi * min(at, 200) / 200)) * min(1, (at + 1) / 40)
        np.testing.assert_allclose(session.run(rate), expected, rtol=1e-5, atol=1e-7, err_msg=str(at))
    constant = build_learning_rate(OptimizerConfig(schedule='constant', initial_learning_rate=0.4), step, 50, 1000)
    assert session.run(constant) == np.float32(0.4)


def test_epochs_end_where_their_images_are_consumed():
    assert [updates_of(*numbers) for numbers in ((1, 100, 10), (1, 101, 10), (0.5, 100, 10), (0.001, 100, 10))] == [
        10, 11, 5, 1]
    run, config = RunConfig(max_steps=30), OptimizerConfig(num_epochs=2)
    assert with_epochs(run, config, 100, 10).max_steps == 20 and with_epochs(run, config, 100, 5).max_steps == 30
    assert with_epochs(run, OptimizerConfig(), 100, 10) == run


def _steps(session, config: OptimizerConfig, gradients: list[np.ndarray]) -> np.ndarray:
    """The weights after an update with each gradient, from (1, 2), at rate 0.1."""
    weight = v1.get_variable('weight', initializer=np.array([1.0, 2.0], np.float32))
    gradient = v1.placeholder(tf.float32, [2])
    update = build_optimizer(config, tf.constant(0.1)).apply_gradients([(gradient, weight)], global_step())
    session.run(v1.global_variables_initializer())
    for gradient_v in gradients:
        session.run(update, {gradient: gradient_v})
    return session.run(weight)


GRADIENTS = [np.array([1.0, -3.0]), np.array([0.5, 4.0]), np.array([-2.0, 0.25])]


def test_sgd_and_momentum(session):
    np.testing.assert_allclose(_steps(session, OptimizerConfig(optimizer='sgd'), GRADIENTS),
                               np.array([1.0, 2.0]) - 0.1 * sum(GRADIENTS), rtol=1e-6)
    with tf.Graph().as_default(), v1.variable_scope('', use_resource=True), v1.Session() as other:
        value, velocity = np.array([1.0, 2.0]), 0
        for gradient in GRADIENTS:
            velocity = 0.5 * velocity + gradient
            value = value - 0.1 * velocity
        found = _steps(other, OptimizerConfig(optimizer='momentum', momentum=0.5), GRADIENTS)
        np.testing.assert_allclose(found, value, rtol=1e-6)


def test_adam(session):
    value, mean, square = np.array([1.0, 2.0]), 0, 0
    for step, gradient in enumerate(GRADIENTS, 1):
        mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient ** 2
        value = value - 0.1 * np.sqrt(1 - 0.9 ** step) / (1 - 0.8 ** step) * mean / (np.sqrt(square) + 0.01)
    config = OptimizerConfig(optimizer='adam', adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=0.01)
    np.testing.assert_allclose(_steps(session, config, GRADIENTS), value, rtol=1e-5)


@pytest.mark.parametrize('norm', [0.5, 4.0])
def test_gradients_are_clipped_by_the_norm_of_all(session, norm):
    """Two variables on two devices, gradients (3, 0) and (0, 4): 5 together."""
    pairs = []
    for number, gradient in enumerate(([3.0, 0.0], [0.0, 4.0], [0.0, 0.0])):
        with tf.device(f'/device:CPU:{number % 2}'):
            pairs.append((tf.constant(gradient), v1.get_variable(f'w{number}', [2], tf.float32,
                                                                 v1.zeros_initializer())))
    with tf.device('/device:CPU:0'):
        step = global_step()
    update = build_optimizer(OptimizerConfig(optimizer='sgd', clip_norm=norm), tf.constant(1.0)).apply_gradients(
        pairs, step)
    on_two = v1.Session(config=v1.ConfigProto(device_count={'CPU': 2}))
    with on_two:
        on_two.run(v1.global_variables_initializer())
        on_two.run(update)
        found = np.concatenate(on_two.run([variable for _, variable in pairs]))
        np.testing.assert_allclose(found, -np.array([3, 0, 0, 4, 0, 0]) * min(1, norm / 5), rtol=1e-6)
        assert on_two.run(step) == 1
    crossing = {(node.op.device, operation.device) for operation in session.graph.get_operations()
                for node in operation.inputs if operation.name.startswith('clip/') and node.op.device
                and operation.device and node.op.device != operation.device}
    assert crossing == {('/device:CPU:1', '/device:CPU:0'), ('/device:CPU:0', '/device:CPU:1')}


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


@in_both_forms
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_towers_together_make_the_update_of_one(operations, name):
    """Clipped, so that each gradient depends on all; 3 steps of 8 examples on 1 device, on 2, and ps beside them."""
    config = OptimizerConfig(optimizer=name, schedule='constant', initial_learning_rate=0.05, clip_norm=0.3,
                             moving_average_decay=0.9)
    devices = [f'/device:CPU:{number}' for number in range(4)]
    apart = Placement(devices[2:3], tuple(Tower(device, devices[0]) for device in devices[:2]))
    found = []
    for placement in (one_device(), multi_gpu(devices[:2]), apart):
        with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={'CPU': 4})) as session:
            step = build_train_step(placement, Task(toy_model.dataset_for(8), toy_model.toy_loss, 8, 8, config,
                                                    operations=operations))
            session.run(v1.global_variables_initializer())
            session.run(step.start_input)
            losses = [session.run([step.train_op, step.loss])[1] for _ in range(3)]
            found.append([losses, *session.run([variable for _, variable in step.gradients])])
    assert found[0][0][2] < found[0][0][0]
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
