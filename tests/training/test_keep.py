"""What is left after an error that ends a training: the steps made so far, unless the weights are to blame."""

import threading

import pytest
import tensorflow as tf
import toy_model

from inception_mg.config import DeviceConfig, OptimizerConfig, RunConfig
from inception_mg.errors import Diverged, UserError
from inception_mg.training import hooks
from inception_mg.training.task import Task
from inception_mg.training.train import train_here

v1 = tf.compat.v1
BATCH, GOOD_STEPS = 8, 5


def task_that_ends(change) -> Task:
    """change(number, inputs): what becomes of the inputs of batch 0, 1, ..."""
    def dataset_for(part: int, parts: int, batch_size: int) -> tf.data.Dataset:
        examples = toy_model.dataset_for(BATCH)(part, parts, batch_size)
        return tf.data.Dataset.zip((tf.data.Dataset.counter(), examples)).map(
            lambda number, example: (change(number, example[0]), example[1]))

    def explain(error: Exception) -> UserError | None:
        return UserError('shard 1: record 7 is no JPEG') if 'no JPEG' in str(error) else None

    return Task(dataset_for, toy_model.toy_loss, BATCH, BATCH, OptimizerConfig(moving_average_decay=0.9),
                toy_model.make_optimizer, explain=explain)


def bad_record(number: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([v1.assert_less(number, tf.constant(GOOD_STEPS, tf.int64), message='no JPEG')]):
        return tf.identity(inputs)


def not_finite(number: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    return tf.where(number < GOOD_STEPS, inputs, inputs * float('nan'))


def train(task: Task, train_dir, lines: list[str], max_steps: int = 100) -> str:
    run = RunConfig(train_dir=str(train_dir), max_steps=max_steps, log_every_steps=1, save_interval_secs=600)
    return train_here(task, DeviceConfig(), run, lines.append)


def test_a_bad_record_costs_no_step(tmp_path):
    lines: list[str] = []
    with pytest.raises(UserError, match='record 7 is no JPEG') as error:
        train(task_that_ends(bad_record), tmp_path, lines)
    assert error.value.exit_code == 1
    assert lines[-1] == f'kept: model.ckpt-{GOOD_STEPS}; lost: nothing'
    reader = tf.train.load_checkpoint(str(tmp_path / f'model.ckpt-{GOOD_STEPS}'))
    assert reader.get_tensor('global_step') == GOOD_STEPS
    _, values = toy_model.numpy_run(BATCH, GOOD_STEPS)
    for name in toy_model.SHAPES:
        assert reader.get_tensor(name) == pytest.approx(values[name], rel=1e-4)
    # The next life goes on from it; without the record it would reach the end.
    lines.clear()
    assert train(task_that_ends(lambda number, inputs: inputs), tmp_path, lines, GOOD_STEPS + 1) == ''
    assert any(f'resumes from model.ckpt-{GOOD_STEPS} at step {GOOD_STEPS}' in line for line in lines)


def test_a_diverged_loss_saves_nothing(tmp_path):
    lines: list[str] = []
    with pytest.raises(Diverged, match='the loss is nan'):
        train(task_that_ends(not_finite), tmp_path, lines)
    assert not list(tmp_path.glob("model.ckpt*"))
    assert not [line for line in lines if "kept" in line or "could not save" in line]


def test_what_cannot_be_saved_is_said(tmp_path):
    """A folder that is gone, a session that was lost, and variables that never answer."""
    with tf.Graph().as_default():
        step = v1.get_variable('global_step', [], tf.int64, v1.zeros_initializer(), use_resource=True)
        weight = v1.get_variable('weight', [], tf.float32, v1.zeros_initializer(), use_resource=True)
        lines: list[str] = []
        hook = hooks.CheckpointHook(v1.train.Saver([step, weight]), [weight], step, str(tmp_path / 'gone' / 'x'), 1e6,
                                    lines.append)
        hook.keep(ValueError())  # There was no session yet: nothing to lose, nothing to say.
        assert not lines
        with v1.Session() as session:
            session.run([step.initializer, weight.initializer])
            hook.after_create_session(session, None)
            session.run(step.assign(5))
            hook.keep(ValueError())
            assert lines[-1].startswith('could not save: cannot save a checkpoint in ')
            assert lines[-1].endswith('; lost: all steps, up to 5')
            session.run(weight.assign(float('nan')))
            hook.keep(ValueError())
            assert 'not finite' in lines[-1] and lines[-1].endswith('; lost: all steps, up to 5')
        hook.keep(ValueError())
        assert lines[-1] == 'could not save: the variables are out of reach; lost: all steps'


def test_variables_that_do_not_answer_are_given_up(tmp_path, monkeypatch):
    class Silent:
        answers = 1

        def run(self, fetches):
            self.answers -= 1
            if self.answers < 0:
                threading.Event().wait()
            return 0

    monkeypatch.setattr(hooks, 'ANSWER_SECS', 0.1)
    with tf.Graph().as_default():
        step = v1.get_variable('global_step', [], tf.int64, use_resource=True)
        lines: list[str] = []
        hook = hooks.CheckpointHook(v1.train.Saver([step]), [], step, str(tmp_path), 1e6, lines.append)
        hook.after_create_session(Silent(), None)
        hook.keep(ValueError())
    assert lines == ['could not save: the variables are out of reach; lost: all steps']
