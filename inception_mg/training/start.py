"""Where a training begins: at the newest checkpoint of its train_dir, at trained weights, or anew."""

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import RunConfig
from inception_mg.errors import FlagError
from inception_mg.run_dir.run_state import refuse_stopped
from inception_mg.run_dir.written import Written
from inception_mg.slices import saved_name, wholes
from inception_mg.weights import checkpoints
from inception_mg.weights.sources import Weights, open_weights
from inception_mg.weights.warm_start import WarmStart, plan_warm_start

v1 = tf.compat.v1


class Start(NamedTuple):
    """Where a training begins. checkpoint: the one in train_dir, or the pretrained one, or ''.
    weights: of the pretrained one."""

    checkpoint: str
    weights: Weights | None
    fine_tune: bool
    step: int

    @classmethod
    def find(cls, run: RunConfig) -> 'Start':
        """Looks in train_dir first: a training that has begun resumes, also a fine-tuning one.

        Raises UserError where a STOP file from before still asks it to end.
        """
        refuse_stopped(run.train_dir)
        newest = checkpoints.newest_checkpoint(run.train_dir, print)
        if newest:
            return cls(newest, None, False, checkpoints.step_of(newest))
        if run.pretrained_model_checkpoint_path:
            weights = open_weights(run.pretrained_model_checkpoint_path, 'pretrained_model_checkpoint_path')
            return cls(weights.path, weights, run.fine_tune, 0)
        return cls('', None, False, 0)

    @property
    def resume_path(self) -> str | None:
        """The checkpoint that restores everything, if there is one."""
        return self.checkpoint if self.checkpoint and not self.weights else None

    def lines(self, run: RunConfig, alive: bool = False) -> list[str]:
        """What to tell the user. alive: a cluster's variables outlived their chief, and are gone on from."""
        what, more = 'starts new', []
        if alive:
            what = 'goes on from the variables on the ps, which are alive'
        elif self.weights:
            what = f'starts from {self.checkpoint}' + (' without its two heads' if self.fine_tune else '')
            more = self._plan().lines()
        elif self.checkpoint:
            what = f'resumes from {os.path.basename(self.checkpoint)} at step {self.step}'
            lacking = lacking_slots(self.checkpoint, v1.global_variables())
            more = [f'           {len(lacking)} slots of the optimizer that it lacks begin anew'] if lacking else []
        return [f'train_dir  {run.train_dir}: {what}; a checkpoint every {run.save_interval_secs:g} s and at the end',
                *more, f'           tensorboard --logdir {run.train_dir}']

    def check(self, frozen: Sequence[str] = ()) -> None:
        """Raises UserError if the checkpoint is not of this model, or if weights were frozen that nobody trained."""
        if self.resume_path:
            new = {saved_name(variable) for variable in lacking_slots(self.checkpoint, v1.global_variables())}
            wanted = {name: whole for name, whole in wholes(v1.global_variables()).items() if name not in new}
            checkpoints.check_shapes(self.checkpoint, wanted,
                                     'it is of another model; give the flags it was trained with, or another train_dir')
        elif self.weights:
            self._plan()
        elif frozen:
            raise FlagError(f'--freeze_below would freeze weights that nobody has trained ({frozen[0]}...): name some '
                            'with --pretrained_model_checkpoint_path')

    def build_init_fn(self) -> Callable[[v1.Session], None] | None:
        """What a new session does after the initialisers: takes the pretrained weights, and begins
        the moving averages at them."""
        if not self.weights:
            return None
        by_name = wholes(v1.global_variables())
        fed, assigns = [], []
        for name, _, parts in self._plan().taken:
            for (variable, piece), (average, _) in zip(parts, by_name[name + checkpoints.AVERAGE].parts, strict=True):
                with tf.device(None), tf.device(variable.device):
                    fed.append((v1.placeholder(tf.float32, variable.shape), name, piece))
                    assigns += [target.assign(fed[-1][0], read_value=False) for target in (variable, average)]

        def init_fn(session: v1.Session) -> None:
            values = {name: self.weights.read(name) for _, name, _ in fed}
            session.run(assigns, {value: values[name][piece] for value, name, piece in fed})

        return init_fn

    def _plan(self) -> WarmStart:
        by_name = wholes(v1.global_variables())
        model = [whole for name, whole in by_name.items() if name + checkpoints.AVERAGE in by_name]
        return plan_warm_start(self.weights, model, self.fine_tune)


class JobSaver(v1.train.Saver):
    """Saves and restores all variables: one unsharded checkpoint, whatever devices they are on.

    Of those that this job has written, over all its lives, it keeps the newest run.max_checkpoints_to_keep, and never
    touches others. newest: the path prefix of the one in run.train_dir that this life begins at, or None.
    """

    def __init__(self, variables: Sequence[tf.Variable], run: RunConfig, newest: str | None):
        super().__init__(variables, max_to_keep=None)
        self._written = Written.of_job(run.train_dir, run.max_checkpoints_to_keep, newest)

    def save(self, sess: v1.Session, save_path: str, global_step: int, **options) -> str:
        """As Saver.save, to `save_path` in run.train_dir; UserError where the list of checkpoints cannot be written."""
        folder, name = os.path.split(f'{save_path}-{global_step}')
        self._written.begin(name)
        path = super().save(sess, save_path, global_step, write_state=False, **options)
        checkpoints.name_newest(folder, name, self._written.end(name))
        self._written.prune()
        return path


class ResumingSaver(JobSaver):
    """Also restores one checkpoint that does not fit quite, the one that this life begins at.

    What it may lack are slots of the optimizer (it is of a run with frozen blocks, or has weights only): they begin
    anew. Its global_step may be float32, as the 2016 program has it.
    """

    def __init__(self, variables: Sequence[tf.Variable], run: RunConfig, odd: str):
        super().__init__(variables, run, odd)
        self._odd, lacking = odd, lacking_slots(odd, variables)
        steps = [v for v in variables if v.op.name == 'global_step' and checkpoints.step_is_float(odd)]
        self._begin_anew = v1.variables_initializer(lacking)
        self._steps = [step.assign(checkpoints.step_of(odd), read_value=False) for step in steps]
        apart = {v.op.name for v in [*lacking, *steps]}
        self._rest = v1.train.Saver([v for v in variables if v.op.name not in apart])

    def restore(self, sess: v1.Session, save_path: str) -> None:
        """Restores every variable from the path prefix `save_path`."""
        if save_path != self._odd:
            super().restore(sess, save_path)
            return
        sess.run(self._begin_anew)
        self._rest.restore(sess, save_path)
        sess.run(self._steps)


def build_saver(run: RunConfig) -> JobSaver:
    """The saver of all variables of a training that begins at the newest checkpoint in run.train_dir, or anew."""
    variables, newest = v1.global_variables(), checkpoints.newest_checkpoint(run.train_dir)
    odd = newest and (lacking_slots(newest, variables) or checkpoints.step_is_float(newest))
    return (ResumingSaver if odd else JobSaver)(variables, run, newest)


def lacking_slots(checkpoint: str, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """The optimizer's slots, and its own counters, that `checkpoint` does not have."""
    there = checkpoints.open_checkpoint(checkpoint).get_variable_to_shape_map()
    names = [saved_name(v) for v in variables]
    model = {name.removesuffix(checkpoints.AVERAGE) for name in names if name.endswith(checkpoints.AVERAGE)}
    lacking = {name for name in names if name not in there and (
        name.rpartition('/')[0] in model and not name.endswith(checkpoints.AVERAGE)
        or re.fullmatch(r'beta[12]_power', name))}
    return [v for v, name in zip(variables, names, strict=True) if name in lacking]
