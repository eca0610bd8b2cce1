"""Training: the lines at start, the session, and the loop that every way of running goes through."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from inception_mg.config import DeviceConfig, RunConfig
from inception_mg.errors import UserError
from inception_mg.fast.operations import PLAIN
from inception_mg.files import make_folder, write_text
from inception_mg.paths import scheme_of
from inception_mg.placement import Placement, describe
from inception_mg.reasons import reason_of
from inception_mg.run_dir import run_state
from inception_mg.run_dir.metrics_log import MetricsLog
from inception_mg.training import hooks, partition, summaries
from inception_mg.training.devices import local_machine
from inception_mg.training.recipe import describe_schedule, with_epochs
from inception_mg.training.start import Start, build_saver
from inception_mg.training.task import Task
from inception_mg.training.trace import TraceHook
from inception_mg.training.train_step import TrainStep, build_train_step

v1 = tf.compat.v1
Say = Callable[[str], None]


def train_here(task: Task, devices: DeviceConfig, run: RunConfig, say: Say = print,
               more_hooks: Sequence[v1.train.SessionRunHook] = ()) -> str:
    """Trains on this machine until run.max_steps and returns '', or the name of the signal that
    ended it (after a checkpoint). Resumes from run.train_dir. more_hooks: of the caller, after those of the loop.

    Raises UserError for whatever the user can mend: data, flags, checkpoints, a loss that diverged.
    """
    machine, run = local_machine(devices), with_epochs(run, task.optimizer, task.num_examples, task.batch_size)
    make_directory(run.train_dir, 'train_dir')
    with run_state.announced(run.train_dir), tf.Graph().as_default():
        step = build_train_step(machine.placement, task)
        saver, start = build_saver(run), Start.find(run)
        for line in [*start_lines(machine.placement, task, step), *start.lines(run), *machine.notes, *task.notes]:
            say(line)
        if start.step >= run.max_steps:
            say(f'nothing to do: {start.checkpoint} is at --max_steps={run.max_steps} already')
            run_state.write_state(run.train_dir, run_state.OVER)
            return ''
        start.check(task.frozen)
        init_fn = start.build_init_fn()
        scaffold = v1.train.Scaffold(saver=saver, local_init_op=tf.group(v1.local_variables_initializer(),
                                                                         step.start_input),
                                     init_fn=init_fn and (lambda scaffold, session: init_fn(session)))
        # By path: with a directory the Saver would adopt, and later delete, checkpoints of earlier runs.
        creator = v1.train.ChiefSessionCreator(scaffold, config=machine.session_config,
                                               checkpoint_filename_with_path=start.resume_path)
        stopper = hooks.Stopper()
        loop_hooks = [*loop_hooks_for(step, run, stopper),
                      TraceHook(step.global_step, run.trace_step, run.train_dir, say=say),
                      *chief_hooks(step, task, run, saver, say=say), *more_hooks]
        with stopper.listening(), files_beside(run, task, stopper):
            run_steps(creator, loop_hooks, step.train_op, task, start.checkpoint)
    return stopper.signal_name


@contextlib.contextmanager
def files_beside(run: RunConfig, task: Task, stopper: hooks.Stopper) -> Iterator[None]:
    """What the one process that writes in train_dir leaves beside the checkpoints: the task's files (model.json, for
    whoever uses them) and the state of the training, for an evaluator. Within, training is running."""
    for name, text in task.files.items():
        write_text(os.path.join(run.train_dir, name), text)
    with run_state.recording(run.train_dir, lambda: bool(stopper.signal_name)):
        yield


def run_steps(creator: v1.train.SessionCreator, loop_hooks: Sequence[v1.train.SessionRunHook],
              train_op: tf.Operation, task: Task, checkpoint: str = '') -> None:
    """The loop of every way of running: steps until a hook asks to stop.

    Turns errors that the input data, the checkpoint or the memory are to blame for into UserError.
    """
    try:
        session = v1.train.MonitoredSession(session_creator=creator, hooks=list(loop_hooks))
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
        if not checkpoint:
            raise
        raise UserError(f'cannot restore {checkpoint}: {reason_of(error)}') from error
    try:
        with session, keeping(loop_hooks):
            while not session.should_stop():
                try:
                    session.run(train_op)
                except tf.errors.OutOfRangeError as error:
                    # MonitoredSession would take it for the end that was wanted, and save as if all steps were made.
                    if 'End of sequence' not in error.message:
                        raise
                    raise UserError('the examples have ended before the last step: a data set to train on must repeat '
                                    'without end (tf.data.Dataset.repeat)') from error
    except tf.errors.ResourceExhaustedError as error:
        reason = reason_of(error)
        if 'disk' in reason:  # Of the summaries, say.
            raise UserError(f'cannot write: {reason}') from error
        raise UserError(f'out of memory: lower --batch_size, --image_size or --width ({reason})') from error
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        explained = task.explain(error)
        if explained is None:
            raise
        raise explained from error


@contextlib.contextmanager
def keeping(loop_hooks: Sequence[v1.train.SessionRunHook]) -> Iterator[None]:
    """Saves when an error ends what is within: MonitoredSession calls no hook's end then. For within the session."""
    try:
        yield
    except Exception as error:
        for hook in loop_hooks:
            if isinstance(hook, hooks.CheckpointHook):
                hook.keep(error)
        raise


def loop_hooks_for(step: TrainStep, run: RunConfig, stopper: hooks.Stopper) -> list[v1.train.SessionRunHook]:
    """What every process needs: when to stop, and the guard against a diverging loss."""
    return [hooks.StopHook(step.global_step, run.max_steps, stopper), hooks.LossGuardHook(step, run.train_dir)]


def chief_hooks(step: TrainStep, task: Task, run: RunConfig, saver: v1.train.Saver, aggregated: int = 1,
                say: Say = print, around_save: hooks.Around = contextlib.nullcontext) -> list[v1.train.SessionRunHook]:
    """What the one process that writes in train_dir needs: status, summaries, checkpoints, an ear for STOP."""
    writer = v1.summary.FileWriter(run.train_dir)
    settings = {**vars(run), **vars(task.optimizer), 'batch_size': task.batch_size, 'seed': task.seed}
    summaries.write_settings(writer, 0, {**{f'--{name}': value for name, value in settings.items()}, **task.settings})
    return [
        hooks.StatusHook(step, run.log_every_steps, run.max_steps, task.batch_size * aggregated, task.num_examples,
                         [summaries.write_scalars_to(writer), MetricsLog(run.train_dir).write], say),
        summaries.SummaryHook(step, run.save_summaries_secs, writer),
        hooks.CheckpointHook(saver, v1.global_variables(), step.global_step, run.train_dir,
                             run.save_interval_secs, say, task.operations or PLAIN, around_save,
                             run.eval_every_steps),
        hooks.StopFileHook(run.train_dir, say)]


def start_lines(placement: Placement, task: Task, step: TrainStep, aggregated: int = 1) -> list[str]:
    """The screen that a user sees at start: data, model, placement, batch and schedule."""
    weights = sum(variable.shape.num_elements() for _, variable in step.gradients)
    towers, images = len(placement.towers), task.batch_size * aggregated
    per_epoch = task.num_examples / images
    place = describe(placement)
    return [
        f'data       {task.source or f"{task.num_examples} examples"}',
        f'model      {task.title}: {weights:,} weights, {weights * 4 / 1e6:.1f} MB' + (
            ', to train; all others are frozen' if task.frozen else ''),
        f'placement  {place[0]}', *(f'           {line}' for line in place[1:]),
        *partition.lines(placement, [variable for _, variable in step.gradients]),
        f'batch      {images} images per update; here {task.batch_size} = '
        f'{towers} tower{"s" * (towers > 1)} x {task.batch_size // towers}; {per_epoch:.1f} steps per epoch',
        f'schedule   {describe_schedule(task.optimizer, task.num_examples, images)}']


def make_directory(path: str, flag: str) -> None:
    """Makes the folder if need be; UserError naming the flag if it cannot be written in."""
    try:
        make_folder(path)
    except OSError as error:
        raise UserError(f'--{flag}={path}: {error.strerror}') from None
    if not scheme_of(path) and not os.access(path, os.W_OK):
        raise UserError(f'--{flag}={path} is not writable')
