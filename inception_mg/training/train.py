"""Training: the lines at start, the session, and the loop that every way of running goes through."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.data.damage import explain_input_error
from inception_mg.data.dataset_info import DatasetInfo, read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import training_dataset
from inception_mg.errors import FlagError, UserError
from inception_mg.model.inception_v3 import scopes_below
from inception_mg.model.losses import inception_loss
from inception_mg.placement import Placement, describe
from inception_mg.run_dir import model_card, run_state
from inception_mg.training import hooks, summaries
from inception_mg.training.devices import bfloat16_hint, local_machine
from inception_mg.training.start import Start, build_saver
from inception_mg.training.trace import TraceHook
from inception_mg.training.train_step import TrainStep, build_train_step

v1 = tf.compat.v1
Say = Callable[[str], None]


class TrainingData(NamedTuple):
    """What training reads: the data set's classes and counts, and the paths of its shards."""

    info: DatasetInfo
    paths: list[str]
    num_examples: int


def open_training_data(data: DataConfig) -> TrainingData:
    """Finds the training shards and their description; UserError when either is missing."""
    if not data.data_dir:
        raise FlagError('--data_dir is empty: name the folder with the shards and dataset.json')
    info = read_dataset_info(data.data_dir)
    paths = shard_paths(data.data_dir, 'train')
    return TrainingData(info, paths, info.num_images('train'))


def build_inception_step(placement: Placement, source: TrainingData, data: DataConfig, model: ModelConfig,
                         optimizer: OptimizerConfig, *, reader: int = 0, readers: int = 1,
                         **step_options) -> TrainStep:
    """Builds the training step of Inception v3 over `placement`.

    reader, readers: this process reads the reader-th of `readers` parts of the data. step_options go to
    build_train_step. Raises FlagError when the batch cannot be split evenly over the towers.
    """
    towers = len(placement.towers)
    if data.batch_size % towers:
        raise FlagError(f'--batch_size={data.batch_size} cannot be split evenly over {towers} towers')

    def dataset_for(host: int, hosts: int, batch_size: int) -> tf.data.Dataset:
        return training_dataset(source.paths, source.num_examples, data=data, batch_size=batch_size,
                                first_shard=reader * hosts + host, num_shards=readers * hosts,
                                num_classes=len(source.info.classes))

    def loss_for(images, labels, tower):
        return inception_loss(images, labels, source.info.num_outputs, model, tower.branches, tower.stages)

    return build_train_step(placement, dataset_for, data.batch_size, loss_for, optimizer,
                            source.num_examples, scale_loss=model.compute_dtype == 'float16',
                            frozen=scopes_below(model.freeze_below), **step_options)


def train_here(data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig, devices: DeviceConfig,
               run: RunConfig, say: Say = print) -> str:
    """Trains on this machine until run.max_steps and returns '', or the name of the signal that
    ended it (after a checkpoint). Resumes from run.train_dir.

    Raises UserError for whatever the user can mend: data, flags, checkpoints, a loss that diverged.
    """
    source = open_training_data(data)
    machine = local_machine(devices)
    make_directory(run.train_dir, 'train_dir')
    with tf.Graph().as_default():
        step = build_inception_step(machine.placement, source, data, model, optimizer)
        saver = build_saver(run)
        start = Start.find(run)
        for line in [*start_lines(machine.placement, source, data, model, optimizer, step.gradients, data.batch_size),
                     *start.lines(run), *machine.notes, bfloat16_hint(model.compute_dtype)]:
            if line:
                say(line)
        if start.step >= run.max_steps:
            say(f'nothing to do: {start.checkpoint} is at --max_steps={run.max_steps} already')
            run_state.write_state(run.train_dir, run_state.OVER)
            return ''
        start.check(model.freeze_below)
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
                      *chief_hooks(step, run, saver, data.batch_size, source.num_examples, say)]
        with stopper.listening(), files_beside(run, source, data, model, stopper):
            run_steps(creator, loop_hooks, step.train_op, source.paths, start.checkpoint)
    return stopper.signal_name


@contextlib.contextmanager
def files_beside(run: RunConfig, source: TrainingData, data: DataConfig, model: ModelConfig, stopper: hooks.Stopper
                 ) -> Iterator[None]:
    """What the one process that writes in train_dir leaves beside the checkpoints: model.json, for whoever uses them,
    and the state of the training, for an evaluator. Within, training is running."""
    model_card.write_card(run.train_dir, model_card.make_card(data, model, source.info.classes))
    with run_state.recording(run.train_dir, lambda: bool(stopper.signal_name)):
        yield


def run_steps(creator: v1.train.SessionCreator, loop_hooks: Sequence[v1.train.SessionRunHook],
              train_op: tf.Operation, paths: Sequence[str], checkpoint: str = '') -> None:
    """The loop of every way of running: steps until a hook asks to stop.

    Turns errors that the input data, the checkpoint or the memory are to blame for into UserError.
    """
    try:
        session = v1.train.MonitoredSession(session_creator=creator, hooks=list(loop_hooks))
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
        if not checkpoint:
            raise
        raise UserError(f'cannot restore {checkpoint}: {str(error).splitlines()[0]}') from error
    try:
        with session:
            while not session.should_stop():
                session.run(train_op)
    except tf.errors.ResourceExhaustedError as error:
        raise UserError('out of memory: lower --batch_size, --image_size or --width '
                        f'({str(error).splitlines()[0]})') from error
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        explained = explain_input_error(error, paths)
        if explained is None:
            raise
        raise explained from error


def loop_hooks_for(step: TrainStep, run: RunConfig, stopper: hooks.Stopper) -> list[v1.train.SessionRunHook]:
    """What every process needs: when to stop, and the guard against a diverging loss."""
    return [hooks.StopHook(step.global_step, run.max_steps, stopper), hooks.LossGuardHook(step, run.train_dir)]


def chief_hooks(step: TrainStep, run: RunConfig, saver: v1.train.Saver, images_per_update: int,
                num_examples: int, say: Say = print) -> list[v1.train.SessionRunHook]:
    """What the one process that writes in train_dir needs: status, summaries, checkpoints, an ear for STOP."""
    writer = v1.summary.FileWriter(run.train_dir)
    return [
        hooks.StatusHook(step, run.log_every_steps, run.max_steps, images_per_update, num_examples,
                         summaries.write_scalars_to(writer), say),
        summaries.SummaryHook(step, run.save_summaries_secs, writer),
        hooks.CheckpointHook(saver, v1.global_variables(), step.global_step, run.train_dir,
                             run.save_interval_secs, say),
        hooks.StopFileHook(run.train_dir, say)]


def start_lines(placement: Placement, source: TrainingData, data: DataConfig, model: ModelConfig,
                optimizer: OptimizerConfig, gradients, images_per_update: int) -> list[str]:
    """The screen that a user sees at start: data, model, placement, batch and schedule."""
    weights = sum(variable.shape.num_elements() for _, variable in gradients)
    towers = len(placement.towers)
    per_epoch = source.num_examples / images_per_update
    rate, factor = optimizer.initial_learning_rate, optimizer.learning_rate_decay_factor
    place = describe(placement)
    return [
        f'data       {data.data_dir}: {source.num_examples} images of {len(source.info.classes)} classes in '
        f'{len(source.paths)} shards',
        f'model      Inception v3, width {model.width:g}, {data.image_size} x {data.image_size}, '
        f'{model.compute_dtype}: {weights:,} weights, {weights * 4 / 1e6:.1f} MB' + (
            f', to train; all before {model.freeze_below} are frozen' if model.freeze_below else ''),
        f'placement  {place[0]}', *(f'           {line}' for line in place[1:]),
        f'batch      {images_per_update} images per update; here {data.batch_size} = '
        f'{towers} tower{"s" * (towers > 1)} x {data.batch_size // towers}; {per_epoch:.1f} steps per epoch',
        f'schedule   learning rate {rate:g} x {factor:g} every {optimizer.num_epochs_per_decay:g} epochs '
        f'({int(per_epoch * optimizer.num_epochs_per_decay)} steps)']


def make_directory(path: str, flag: str) -> None:
    """Makes the folder if need be; UserError naming the flag if it cannot be written in."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f'--{flag}={path}: {error.strerror}') from None
    if not os.access(path, os.W_OK):
        raise UserError(f'--{flag}={path} is not writable')
