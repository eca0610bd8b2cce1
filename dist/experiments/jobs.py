"""Clients of the cluster in this process: each builds the step of training over a placement, and runs it.

The step is that of inception_mg.training, over a model of one layer that waits before it computes: so reading of
weights, averaging, updates and traffic are real and the computing is emulated.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dist.experiments.servers import Servers, servers
from dist.experiments.waiting import Pause, build_wait
from dist.sync import SyncReplicas
from inception_mg.config import OptimizerConfig
from inception_mg.fast.choice import fast_operations
from inception_mg.placement import CPU, Placement, Tower, between_graph
from inception_mg.training.task import Task
from inception_mg.training.towers import DatasetFor, LossFor
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
INPUTS, OUTPUTS = 64, 64
_FOR_EVER = 10**9  # Steps, and images of an epoch: the learning rate stays as it is.


def worker_placement(worker: int, num_ps: int = 1) -> Placement:
    """Between-graph, with one tower on the worker's CPU."""
    return between_graph(num_ps, worker, [Tower(CPU, CPU)])


def task_of(tower: Tower) -> int:
    """The worker that a tower is on."""
    return tf.DeviceSpec.from_string(tower.device).task


def one_layer(pause_of: Callable[[Tower], Pause]) -> LossFor:
    """The loss of a linear layer, INPUTS to OUTPUTS, whose tower waits by pause_of(tower) before it computes."""
    def loss_for(batch: tuple[tf.Tensor, tf.Tensor], tower: Tower) -> tf.Tensor:
        inputs, targets = build_wait(batch[0], pause_of(tower)), batch[1]
        weights = v1.get_variable('layer/weights', [INPUTS, OUTPUTS], tf.float32, v1.zeros_initializer())
        return tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - targets[:, None]))
    return loss_for


def few_vectors(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
    """The same random batch for ever, another one for each reader."""
    random = np.random.RandomState(first)
    batch = (random.uniform(-1, 1, (batch_size, INPUTS)).astype(np.float32), np.ones(batch_size, np.float32))
    return tf.data.Dataset.from_tensors(batch).repeat()


class Client:
    """A graph with one training step, and a session of a worker's server; calling it makes a step.

    sync: gradients per update and workers, for a synchronous job; None for any other. everybody: the client of an
    in-graph cluster. cluster: None = the one that all experiments share. The first client of a job gives the variables
    their values (`initialise`).
    """

    def __init__(self, placement: Placement, worker: int, loss_for: LossFor, *, batch_size: int = 8,
                 dataset_for: DatasetFor = few_vectors, optimizer: OptimizerConfig | None = None,
                 sync: tuple[int, int] | None = None, last_step: int = _FOR_EVER, everybody: bool = False,
                 cluster: Servers | None = None):
        self.sync: SyncReplicas | None = None
        self.leave = threading.Event()  # Ends the waits of a synchronous job.

        def wrap(inner):
            if sync is None:
                return inner
            self.sync = SyncReplicas(inner, *sync, worker, last_step, stop=self.leave.is_set, log=lambda line: None)
            return self.sync

        with tf.Graph().as_default() as self.graph:
            task = Task(dataset_for, loss_for, _FOR_EVER, batch_size, optimizer or OptimizerConfig(),
                        operations=fast_operations()[0])
            self.step = build_train_step(placement, task, wrap_optimizer=wrap)
            self._first = [v1.global_variables_initializer(), *([self.sync.reset_op] if self.sync else [])]
        self.session = (cluster or servers()).session(self.graph, worker, everybody)

    def start(self, initialise: bool) -> None:
        """Begins to read, after giving the variables their values if this client is the first."""
        for operation in [*(self._first if initialise else []), self.step.start_input]:
            self.session.run(operation)

    def __call__(self) -> None:
        self.session.run(self.step.train_op)

    def close(self) -> None:
        """Gives the session back; that may take seconds, for which nobody waits."""
        threading.Thread(target=self.session.close, daemon=True).start()


def start_clients(clients: Sequence[Client]) -> list[Client]:
    """Starts them, the first one first; returns them."""
    for number, client in enumerate(clients):
        client.start(initialise=number == 0)
    return list(clients)


class SyncPace(NamedTuple):
    """seconds: mean time of an update. dropped: gradients that came too late, of all workers."""

    seconds: float
    dropped: int


class Clock(v1.train.SessionRunHook):
    """Notes which update is done whenever its client has seen another one, and at the end how many gradients were
    dropped."""

    def __init__(self, client: Client):
        self._sync, self.seen, self.dropped, self.over = client.sync, [], 0, threading.Event()

    def after_run(self, run_context, run_values):
        self.seen.append((int(run_context.session.run(self._sync.global_step)), time.monotonic()))

    def end(self, session):
        self.dropped = int(session.run(self._sync.dropped).sum())
        self.over.set()


def run_synchronously(clients: Sequence[Client], warm_up: int = 2) -> SyncPace:
    """All clients make steps until the job's last one; measures from update `warm_up` on."""
    clocks = [Clock(client) for client in clients]
    for thread, clock in zip(run_monitored(clients, clocks), clocks, strict=True):
        while thread.is_alive() and not clock.over.wait(0.1):
            pass
        if not clock.over.is_set():
            raise RuntimeError('a client of a synchronous job has failed')
    seen = [pair for clock in clocks for pair in clock.seen]
    last_step = max(step for step, _ in seen)
    begun, first_step = min((at, step) for step, at in seen if step >= warm_up)
    ended = min(at for step, at in seen if step == last_step)
    return SyncPace((ended - begun) / (last_step - first_step), clocks[0].dropped)


def run_monitored(clients: Sequence[Client], hooks: Sequence[v1.train.SessionRunHook]) -> list[threading.Thread]:
    """Starts a thread per client of a synchronous job, with its hook; they end at the last step, or when told to
    leave."""
    def work(client: Client, hook: v1.train.SessionRunHook) -> None:
        with client.graph.as_default(), v1.train.MonitoredSession(_Given(client), [client.sync.hook, hook]) as session:
            while not session.should_stop() and not client.leave.is_set():
                session.run(client.step.train_op)

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in zip(clients, hooks, strict=True)]
    for thread in threads:
        thread.start()
    return threads


class _Given(v1.train.SessionCreator):
    """The session that a client has."""

    def __init__(self, client: Client):
        self._client = client

    def create_session(self) -> v1.Session:
        """For MonitoredSession, which closes it at the end."""
        return self._client.session
