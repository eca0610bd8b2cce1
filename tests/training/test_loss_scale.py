"""The loss scale: it follows its rule, and an update that overflows leaves no trace but in the scale."""

import numpy as np
import pytest
import tensorflow as tf
from forms import in_both_forms

from inception_mg.config import OptimizerConfig
from inception_mg.fast.operations import PLAIN
from inception_mg.training.loss_scale import LossScale
from inception_mg.training.optimizers import AveragedOptimizer
from inception_mg.training.recipe import build_optimizer

v1 = tf.compat.v1


@pytest.fixture
def session():
    with tf.Graph().as_default(), v1.variable_scope('', use_resource=True), v1.Session() as sess:
        yield sess


class Scaled:
    """Two variables under `inner`, by default RMSProp, with their averages; their gradients are fed."""

    def __init__(self, session, initial: float, growth_steps: int, operations=PLAIN, inner=None):
        self._session = session
        step = v1.get_variable('global_step', [], tf.int64, v1.zeros_initializer(), trainable=False)
        weights = [v1.get_variable(name, [2], initializer=v1.ones_initializer()) for name in ('one', 'two')]
        loss_scale = LossScale(initial, growth_steps)
        self._gradients = [v1.placeholder(tf.float32, [2]) for _ in weights]
        inner = inner or build_optimizer(OptimizerConfig(), tf.constant(0.1), operations)
        optimizer = loss_scale.wrap(AveragedOptimizer(inner, 0.5, weights, operations))
        self._unscaled = loss_scale.build_unscale(zip(self._gradients, weights, strict=True))
        with tf.control_dependencies([tf.no_op()]):
            self._train_op = optimizer.apply_gradients(self._unscaled, step)
        self._variables = {v.op.name: v for v in v1.global_variables()}
        session.run(v1.global_variables_initializer())

    def step(self, one: list[float], two: list[float]) -> list[np.ndarray]:
        """Makes an update; returns the unscaled gradients."""
        unscaled = [gradient for gradient, _ in self._unscaled]
        feed = dict(zip(self._gradients, (one, two), strict=True))
        return self._session.run([unscaled, self._train_op], feed)[0]

    def values(self) -> dict[str, np.ndarray]:
        return self._session.run(self._variables)

    @property
    def scale(self) -> float:
        return float(self.values()['loss_scale'])


def test_it_halves_on_overflow_and_doubles_after_good_updates(session):
    scaled = Scaled(session, 8.0, growth_steps=2)
    np.testing.assert_allclose(scaled.step([8, 16], [0, 24]), [[1, 2], [0, 3]])
    scaled.step([np.inf, 16], [0, 0])
    assert scaled.scale == 4
    scaled.step([1, 1], [0, np.nan])
    assert scaled.scale == 2
    np.testing.assert_allclose(scaled.step([2, 4], [0, 6]), [[1, 2], [0, 3]])
    assert scaled.scale == 2
    scaled.step([2, 4], [0, 0])
    assert scaled.scale == 4


@in_both_forms
@pytest.mark.parametrize('adam', [False, True])
def test_an_overflow_leaves_no_trace_but_in_the_scale(session, operations, adam):
    scaled = Scaled(session, 8.0, 100, operations, v1.train.AdamOptimizer(0.1) if adam else None)
    for _ in range(2):
        scaled.step([8, 8], [16, 16])
    before = scaled.values()
    assert len(before) == (13 if adam else 11) and before['global_step'] == 2 and before['loss_scale_good_steps'] == 2
    scaled.step([8, np.inf], [16, 16])
    after = scaled.values()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {'loss_scale', 'loss_scale_good_steps'}  # The second counts good ones in a row.
    assert after['loss_scale'] == 4 and after['loss_scale_good_steps'] == 0
    scaled.step([8, 8], [16, 16])
    again = scaled.values()
    assert {name for name in after if np.array_equal(after[name], again[name])} == {'loss_scale'}


def test_at_scale_1_a_divergence_shows(session):
    """Else a training whose gradients are never finite would go on for ever, and say nothing."""
    scaled = Scaled(session, 2.0, 100)
    scaled.step([np.nan, 0], [0, 0])
    assert scaled.scale == 1 and np.isfinite(scaled.values()['one']).all()
    scaled.step([np.nan, 0], [0, 0])
    assert scaled.scale == 1 and not np.isfinite(scaled.values()['one']).all() and scaled.values()['global_step'] == 1
