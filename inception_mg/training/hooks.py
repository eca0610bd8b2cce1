"""What happens between steps: status lines, checkpoints, and reasons to stop."""

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from inception_mg.bounded import bounded
from inception_mg.errors import Diverged, UserError
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.reasons import reason_of
from inception_mg.run_dir.run_state import STOP_FILE, stop_request
from inception_mg.training.train_step import TrainStep
from inception_mg.weights.checkpoints import newest_checkpoint, step_of

v1 = tf.compat.v1
Around = Callable[[], contextlib.AbstractContextManager]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # The last: its terminal was closed.
_NEAR_END = 100  # Steps: more than there are workers.
ANSWER_SECS = 10.0  # Variables that do not answer for so long after an error are out of reach,
KEEP_SECS = 120.0   # and their checkpoint is given up after so long.


class Stopper:
    """Remembers a signal, so that the loop ends after the step in progress and saves.

    `signal_name` is '' until one came. A second signal interrupts at once. then: what the line says
    that this process does.
    """

    def __init__(self, then: str = 'saving after this step'):
        self.signal_name, self._then = '', then

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handles SIGINT, SIGTERM and SIGHUP (unless nohup ignores it) within; only the main thread can."""
        before = {number: signal.signal(number, self._handle) for number in SIGNALS
                  if signal.getsignal(number) != signal.SIG_IGN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame) -> None:
        if self.signal_name:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
        with contextlib.suppress(OSError):  # The terminal may be gone.
            print(f'{self.signal_name}: {self._then} (again: stop at once)', file=sys.stderr, flush=True)


class StopHook(v1.train.SessionRunHook):
    """Stops at max_steps and when a signal came."""

    def __init__(self, global_step: tf.Variable, max_steps: int, stopper: Stopper):
        self._global_step, self._max_steps, self._stopper = global_step, max_steps, stopper

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context, run_values):
        # The value was read beside the update, and other workers update too: near the end it is read again.
        near = run_values.results + _NEAR_END >= self._max_steps
        if self._stopper.signal_name or near and run_context.session.run(self._global_step) >= self._max_steps:
            run_context.request_stop()


class StopFileHook(v1.train.SessionRunHook):
    """Stops when somebody asks for it by a file STOP in train_dir; looks every few seconds.

    For the one process that saves there: it says why, and its hooks save at the end.
    """

    def __init__(self, train_dir: str, say: Callable[[str], None] = print, every_secs: float = 2.0):
        self._train_dir, self._say, self._every_secs = train_dir, say, every_secs
        self._next = 0.0

    def after_run(self, run_context, run_values):
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_secs
        if why := stop_request(self._train_dir):
            self._say(f'{os.path.join(self._train_dir, STOP_FILE)}: {why}: saving and ending')
            run_context.request_stop()


class LossGuardHook(v1.train.SessionRunHook):
    """Stops with Diverged, naming step and learning rate, when the loss is not finite."""

    def __init__(self, step: TrainStep, train_dir: str):
        self._fetches = (step.loss, step.learning_rate, step.parts)
        # On a cluster only the chief need be told.
        self._global_step, self._train_dir = step.global_step, train_dir or "the chief's --train_dir"

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        loss_v, rate_v, parts_v = run_values.results
        if not math.isfinite(loss_v):
            step_v = run_context.session.run(self._global_step)
            parts = ', '.join(f'{name} {value:g}' for name, value in parts_v.items())
            raise Diverged(f'the loss is {loss_v} ({parts}) at step {step_v} with learning rate {rate_v:g}: lower '
                           f'--initial_learning_rate and start again from the last checkpoint in {self._train_dir}')


class StatusHook(v1.train.SessionRunHook):
    """A status line, and the figures of the step, every few steps.

    images_per_step: images that one global step consumes. write_scalars: each is given the step and a dict.
    """

    def __init__(self, step: TrainStep, every_steps: int, max_steps: int, images_per_step: int,
                 num_examples: int, write_scalars: Sequence[Callable[[int, dict[str, float]], None]],
                 say: Callable[[str], None] = print):
        self._fetches = {'loss': step.loss, 'learning_rate': step.learning_rate, **step.parts}
        self._global_step, self._every, self._max_steps = step.global_step, every_steps, max_steps
        self._images, self._examples = images_per_step, num_examples
        self._write_scalars, self._say = write_scalars, say
        self._runs = 0  # Of this process; the global step also counts those of other workers.
        self._last_step, self._last_time = 0, 0.0

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        now, first = time.monotonic(), self._runs == 0
        self._runs += 1
        if not first and self._runs % self._every:
            return
        step_v = int(run_context.session.run(self._global_step))
        # The first run also prepares the graph: it says nothing about speed.
        passed = now - self._last_time
        speed = float('nan') if first or step_v <= self._last_step else (step_v - self._last_step) / passed
        self._report(step_v, run_values.results, speed)
        self._last_step, self._last_time = step_v, now

    def _report(self, step_v: int, values: dict[str, float], steps_per_sec: float) -> None:
        speed = ''
        if math.isfinite(steps_per_sec):
            values = {**values, 'images_per_sec': steps_per_sec * self._images}
            eta = max(0, self._max_steps - step_v) / steps_per_sec
            speed = f'  {values["images_per_sec"]:7.1f} images/s  ETA {duration(eta)}'
        epoch, right = step_v * self._images / self._examples, ''
        if 'precision_at_1' in values:  # Of this batch.
            right = f'  precision@1 {values["precision_at_1"]:5.3f}'
        self._say(f'step {step_v:>{len(str(self._max_steps))}}/{self._max_steps}  epoch {epoch:6.2f}  '
                  f'loss {values["loss"]:8.4f}{right}{speed}')
        for write in self._write_scalars:
            write(step_v, {'epoch': epoch, **{name: float(value) for name, value in values.items()}})


class CheckpointHook(v1.train.SessionRunHook):
    """Saves every `every_secs`, after every `every_steps` steps of this process (0: not so), and at the end; never
    weights that are not finite.

    The stock CheckpointSaverHook would also save weights that an update has just ruined, and then
    nothing finite would be left to go back to. around(): entered for each save as a whole, from reading the
    step to the file; so that nothing is updated meanwhile, say. What it raises ends the training.
    """

    def __init__(self, saver: v1.train.Saver, variables: Sequence[tf.Variable], global_step: tf.Variable,
                 train_dir: str, every_secs: float, say: Callable[[str], None] = print, operations: Operations = PLAIN,
                 around: Around = contextlib.nullcontext, every_steps: int = 0):
        self._saver, self._global_step, self._around = saver, global_step, around
        self._every_steps, self._runs = every_steps, 0
        self._train_dir, self._every_secs, self._say = train_dir, every_secs, say
        self._finite = build_finite(variables, operations)
        self._saved_step, self._next, self._session = None, None, None

    def after_create_session(self, session, coord):
        self._next, self._session = time.monotonic() + self._every_secs, session
        # Not the global step: variables that outlived their chief on a cluster may be ahead of what it saved.
        newest = newest_checkpoint(self._train_dir)
        self._saved_step = step_of(newest) if newest else 0
        if session.run(self._global_step) > self._saved_step:  # Nobody saved while the chief was away.
            self._save(session)

    def after_run(self, run_context, run_values):
        self._runs += 1
        if time.monotonic() >= self._next or self._every_steps and self._runs % self._every_steps == 0:
            self._save(run_context.session)
            self._next = time.monotonic() + self._every_secs

    def end(self, session):
        self._save(session)

    def keep(self, error: Exception) -> None:
        """For the loop, after an error that ends it and before the session is closed: saves what the error has nothing
        to do with, and says what is kept and what is lost. Raises nothing, and ends in any case."""
        if isinstance(error, Diverged) or self._session is None:
            return
        steps, why = [], 'the variables are out of reach'

        def save() -> None:
            with self._session.graph.as_default():  # A thread of its own has a default graph of its own.
                self._save(self._session)

        try:
            answered = bounded(lambda: steps.append(int(self._session.run(self._global_step))), ANSWER_SECS)
            if answered and bounded(save, KEEP_SECS):
                kept = f'model.ckpt-{self._saved_step}' if self._saved_step else 'no step was made'
                self._say(f'kept: {kept}; lost: nothing')
                return
        except RuntimeError:  # The session is closed.
            pass
        except Exception as reason:  # The error that ends the training is the one to be told.
            why = reason_of(reason)
        lost = f'the steps after model.ckpt-{self._saved_step}' if self._saved_step else 'all steps'
        self._say(f'could not save: {why}; lost: {lost}' + (f', up to {steps[0]}' if steps else ''))

    def _save(self, session) -> None:
        with self._around():
            self._save_now(session)

    def _save_now(self, session) -> None:
        step_v = int(session.run(self._global_step))
        if step_v == self._saved_step:
            return
        bad = [name for name, sum_v in session.run(self._finite).items() if not math.isfinite(sum_v)]
        if bad:
            raise Diverged(f'{len(bad)} variables are not finite at step {step_v}, the first is {bad[0]}: not saved; '
                           'lower --initial_learning_rate and start again from the last checkpoint in '
                           f'{self._train_dir}')
        try:
            path = self._saver.save(session, os.path.join(self._train_dir, 'model.ckpt'), global_step=step_v,
                                    write_meta_graph=False)
        except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.NotFoundError,
                tf.errors.UnknownError, tf.errors.FailedPreconditionError, tf.errors.DataLossError,
                tf.errors.InternalError, OSError, ValueError) as error:  # The last: the folder is gone.
            raise UserError(f'cannot save a checkpoint in {self._train_dir} at step {step_v}: '
                            f'{reason_of(error)}') from error
        self._saved_step = step_v
        self._say(f'saved {path}')


def build_finite(variables: Sequence[tf.Variable], operations: Operations = PLAIN) -> dict[str, tf.Tensor]:
    """Name of each floating variable -> a float32 scalar, computed beside it, that is finite if all its values are.

    Half the sum of squares: two operations for a variable instead of a dozen, and no value of a training that goes
    well comes near 1e19, where the square overflows.
    """
    floating, sums = [variable for variable in variables if variable.dtype.is_floating], {}
    with tf.name_scope('finite') as scope:
        if operations.build_finite:
            return operations.build_finite(floating, scope)
        for variable in floating:
            with tf.device(variable.device):
                sums[variable.op.name] = tf.nn.l2_loss(variable.read_value())
    return sums


def duration(seconds: float) -> str:
    """3725 -> '1h 02m 05s'; units that are zero in front are left out."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f'{days}d {hours:02d}h'
    if hours:
        return f'{hours}h {minutes:02d}m'
    return f'{minutes}m {secs:02d}s' if minutes else f'{secs}s'
