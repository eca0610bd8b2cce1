"""What a worker of a cluster says while it works: where it begins, how it goes, whose gradients were used, its pace."""

import time
from collections.abc import Callable

import tensorflow as tf

from dist import verdict
from dist.sync import SyncReplicas
from inception_mg.training.train_step import TrainStep

v1 = tf.compat.v1
Say = Callable[[str], None]
FOLLOWER_EVERY = 10  # A worker other than the chief says so many times less often how it goes.


class JoinHook(v1.train.SessionRunHook):
    """Says at which step this worker begins, and begins again after a loss."""

    def __init__(self, name: str, global_step: tf.Variable, say: Say):
        self._name, self._global_step, self._say = name, global_step, say

    def after_create_session(self, session, coord):
        self._say(f'{self._name} begins at step {session.run(self._global_step)}')


class CountsHook(v1.train.SessionRunHook):
    """On the chief of a synchronous job: says whose gradients were used, and whose came too late;
    at the end, and every `every_steps` while some do."""

    def __init__(self, sync: SyncReplicas, every_steps: int, say: Say):
        self._sync, self._every, self._say = sync, every_steps, say
        self._runs, self._told = 0, 0

    def after_run(self, run_context, run_values):
        self._runs += 1
        if self._runs % self._every == 0:
            used_v, dropped_v = run_context.session.run([self._sync.contributed, self._sync.dropped])
            if dropped_v.sum() > self._told:
                self._tell(used_v, dropped_v)

    def end(self, session):
        self._tell(*session.run([self._sync.contributed, self._sync.dropped]))

    def _tell(self, used_v, dropped_v) -> None:
        self._told = dropped_v.sum()
        self._say(f'gradients of each worker: used {used_v.tolist()}, dropped as too late {dropped_v.tolist()}')


class PaceHook(v1.train.SessionRunHook):
    """At the end says how fast this worker went, which bytes it moved, and how long it waited for others.

    bytes_each_way: weights that a step pulls, as many as it pushes. The first step also prepares the
    graph: it does not count.
    """

    def __init__(self, name: str, bytes_each_way: int, sync: SyncReplicas | None, say: Say):
        self._name, self._bytes, self._sync, self._say = name, bytes_each_way, sync, say
        self._runs, self._begun, self._waited = -1, 0.0, 0.0

    def after_run(self, run_context, run_values):
        self._runs += 1
        if self._runs == 0:
            self._begun = time.monotonic()
            self._waited = self._sync.hook.waited if self._sync else 0.0

    def end(self, session):
        if self._runs < 1:
            return
        passed = time.monotonic() - self._begun
        waited = ''
        if self._sync:
            waited = f', {(self._sync.hook.waited - self._waited) / passed:.0%} of it waiting for updates'
        self._say(f'{self._name} made {self._runs} steps in {passed:.1f} s{waited}: '
                  f'{self._bytes * self._runs / passed / 1e6:.1f} MB/s each way')


class FollowerHook(v1.train.SessionRunHook):
    """What a worker other than the chief says between its first and its last line: its own pace, every `every_steps`
    steps of its own, and that nobody saves while the chief is silent.

    images: of one step of its own. silence(): see Peers.chief_silence.
    """

    def __init__(self, name: str, step: TrainStep, every_steps: int, images: int, silence: Callable[[], float],
                 say: Say):
        self._name, self._loss, self._global_step = name, step.loss, step.global_step
        self._every, self._images, self._silence, self._say = every_steps, images, silence, say
        self._runs, self._since, self._alone = -1, 0.0, False  # The first step also prepares the graph.

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        before, self._alone = self._alone, self._silence() > verdict.SILENT_SECS
        if self._alone != before:
            what = 'silent: nobody saves until it is back' if self._alone else 'back'
            self._say(f'{self._name}: the chief is {what}')
        self._runs += 1
        if self._runs % self._every:
            return
        now = time.monotonic()
        if self._runs:
            speed = self._every * self._images / (now - self._since)
            self._say(f'{self._name}: {self._runs} steps of its own  loss {run_values.results:8.4f}  '
                      f'{speed:7.1f} images/s  the job is at step {run_context.session.run(self._global_step)}')
        self._since = now
