"""One task of between-graph training: a ps that serves, or a worker with a graph of its own.

    [ps 0..: variables] <-> [worker k: its towers]      (and every other worker likewise)

Only addresses tell it from training on one machine: the placement, the builder, the step and the loop
are those of inception_mg.training. What is added here is who initialises, who waits and who saves.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

import tensorflow as tf

from dist import ps
from dist.cluster import EXIT_RETRY, EXIT_SIGTERM, Cluster, session_config, start_server
from dist.peers import ClusterLost, Peers, describe_job, exit_code, taking_part
from dist.session import ChiefSessionCreator, PeersHook, WorkerSessionCreator, build_initialise
from dist.sync import SyncReplicas
from inception_mg.config import ClusterConfig, DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.errors import FlagError
from inception_mg.model.checkpoints import newest_checkpoint
from inception_mg.placement import between_graph
from inception_mg.training import train
from inception_mg.training.devices import Machine, bfloat16_hint, local_machine
from inception_mg.training.hooks import Stopper
from inception_mg.training.train_step import TrainStep

v1 = tf.compat.v1
Say = Callable[[str], None]


def run_ps(cluster: Cluster, config: ClusterConfig, say: Say = print) -> int:
    """Serves as a parameter server until the job is over; returns the exit code (see ps.serve).

    Raises UserError when its port cannot be had.
    """
    stopper = Stopper('ending; the job can go on once this ps is back')
    with stopper.listening(), explaining_loss(cluster):
        server = start_server(cluster, session_config(cluster), say)
        idle_secs = max(config.start_timeout, config.lost_timeout)
        return ps.serve(cluster, server, idle_secs, lambda: bool(stopper.signal_name), say)


def run_worker(cluster: Cluster, data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig,
               devices: DeviceConfig, run: RunConfig, config: ClusterConfig, say: Say = print) -> int:
    """Trains as one worker until run.max_steps and returns 0, or EXIT_SIGTERM after a signal.

    Worker 0, the chief, initialises, or resumes from run.train_dir, and alone writes there. Raises
    UserError for whatever the user can mend, with EXIT_RETRY when the rest of the cluster was lost.
    """
    aggregated = aggregated_replicas(cluster, config)
    source = train.open_training_data(data)
    machine = cluster_machine(cluster, local_machine(devices))
    if cluster.is_chief:
        train.make_directory(run.train_dir, 'train_dir')
    stopper = Stopper('saving after this step' if cluster.is_chief else 'ending after this step')
    with stopper.listening(), explaining_loss(cluster):
        server = start_server(cluster, machine.session_config, say)
        peers = Peers(cluster, config.start_timeout, config.lost_timeout, lambda: bool(stopper.signal_name), say)
        peers.missing_ps()  # A ps that was started with other lists says so at once.
        task = _Worker(cluster, peers, machine, source, data, model, optimizer, run, config, aggregated, say)
        with tf.Graph().as_default(), taking_part(peers):
            task.work(server.target, stopper)
        say(f'{cluster.name} has left the job')
    return EXIT_SIGTERM if stopper.signal_name else 0


@contextlib.contextmanager
def explaining_loss(cluster: Cluster) -> Iterator[None]:
    """Turns errors of a lost cluster into ClusterLost, one line that asks for a restart."""
    try:
        yield
    except (tf.errors.OpError, ps.Unreachable) as error:
        if exit_code(error) != EXIT_RETRY:
            raise
        raise ClusterLost(f'{cluster.name} lost the rest of the cluster: {str(error).splitlines()[0]}') from error


def aggregated_replicas(cluster: Cluster, config: ClusterConfig) -> int:
    """Gradients per update: 1 when training is asynchronous. FlagError when there are fewer workers."""
    count, workers = config.num_replicas_to_aggregate, len(cluster.workers)
    if count > workers:
        raise FlagError(f'--num_replicas_to_aggregate={count}, but the cluster has {workers} workers')
    return (workers if count == -1 else count) if config.sync else 1


def cluster_machine(cluster: Cluster, machine: Machine) -> Machine:
    """This machine's towers as those of a worker: the variables are on the ps."""
    placement = between_graph(len(cluster.ps), cluster.index, [tower.device for tower in machine.placement.towers])
    return Machine(placement, session_config(cluster, machine.session_config), machine.notes)


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


@dataclasses.dataclass(frozen=True)
class _Worker:
    """What one worker knows. aggregated: gradients per update."""

    cluster: Cluster
    peers: Peers
    machine: Machine
    source: train.TrainingData
    data: DataConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    run: RunConfig
    config: ClusterConfig
    aggregated: int
    say: Say

    def work(self, target: str, stopper: Stopper) -> None:
        """Builds this worker's graph and runs the loop, with sessions of the server at `target`."""
        step, sync = self.build()
        start = train.Start.find(self.run) if self.cluster.is_chief else None
        for line in self.start_lines(step, start):
            self.say(line)
        creator, own_hooks = self.chief(target, step, sync, start) if start else (self.follower(target, step), [])
        # In this order: a wait for the next update comes before whoever reads the global step.
        loop_hooks = [PeersHook(self.peers, step.global_step, self.run.max_steps), *([sync.hook] if sync else []),
                      JoinHook(self.cluster.name, step.global_step, self.say),
                      *train.loop_hooks_for(step, self.run, stopper), *own_hooks]
        train.run_steps(creator, loop_hooks, step.train_op, self.source.paths, start.checkpoint if start else '')

    def build(self) -> tuple[TrainStep, SyncReplicas | None]:
        """The step over this worker's towers and, if training is synchronous, what wraps its optimizer."""
        wrapped: list[SyncReplicas] = []

        def synchronous(optimizer) -> SyncReplicas:
            patience = max(self.config.start_timeout, self.config.lost_timeout)
            wrapped.append(SyncReplicas(
                optimizer, self.aggregated, len(self.cluster.workers), self.cluster.index, self.run.max_steps,
                check=self.peers.check, stop=self.peers.stop, log=self.say, give_up_secs=patience))
            return wrapped[0]

        step = train.build_inception_step(
            self.machine.placement, self.source, self.data, self.model, self.optimizer, reader=self.cluster.index,
            readers=len(self.cluster.workers), images_per_update=self.images_per_update,
            **({'wrap_optimizer': synchronous} if self.config.sync else {}))
        return step, wrapped[0] if wrapped else None

    @property
    def images_per_update(self) -> int:
        """Images whose gradients enter one update; every worker is taken to have this one's batch size."""
        return self.data.batch_size * self.aggregated

    def follower(self, target: str, step: TrainStep) -> WorkerSessionCreator:
        """The sessions of a worker that waits for the chief."""
        return WorkerSessionCreator(self.peers, target, self.machine.session_config, self.describe(),
                                    self.local_init(step))

    def chief(self, target: str, step: TrainStep, sync: SyncReplicas | None, start: train.Start
              ) -> tuple[ChiefSessionCreator, list[v1.train.SessionRunHook]]:
        """The chief's sessions and hooks. What saves, restores and summarises runs on its own CPU, so the
        files are written on its own disk."""
        start.check()
        job, local_init = self.describe(), self.local_init(step)
        with tf.device(self.machine.placement.towers[0].host):
            saver, init_fn = train.build_saver(self.run), start.build_init_fn()
            hooks = train.chief_hooks(step, self.run, saver, self.images_per_update, self.source.num_examples,
                                      self.say)
        if sync:
            hooks.append(CountsHook(sync, self.run.log_every_steps, self.say))
        initialise = build_initialise(
            saver, lambda: newest_checkpoint(self.run.train_dir) or '', v1.global_variables_initializer(),
            sync.reset_op if sync else None, init_fn and (lambda session: init_fn(None, session)))
        return ChiefSessionCreator(self.peers, target, self.machine.session_config, job, initialise,
                                   local_init), hooks

    def describe(self) -> dict:
        """What the ps are told about the job: the same on every worker, or it is refused."""
        return describe_job(f'{os.path.abspath(self.run.train_dir)} ({self.manner})', v1.global_variables())

    def local_init(self, step: TrainStep) -> tf.Operation:
        """What every new session of this worker begins with."""
        return tf.group(v1.local_variables_initializer(), step.start_input)

    def start_lines(self, step: TrainStep, start: train.Start | None) -> list[str]:
        """The whole screen on the chief; on the others what is their own."""
        workers = len(self.cluster.workers)
        lines = [f'cluster    {self.cluster.name} of {len(self.cluster.ps)} ps and {workers} '
                 f'worker{"s" * (workers > 1)}, {self.manner}; reads part {self.cluster.index + 1} of {workers} '
                 'of the images']
        screen = train.start_lines(self.machine.placement, self.source, self.data, self.model, self.optimizer,
                                   step.gradients, self.images_per_update)
        lines += screen if start else [line for line in screen if line.startswith('batch')]
        lines += [*start.lines(self.run), bfloat16_hint(self.model.compute_dtype)] if start else []
        return [line for line in [*lines, *self.machine.notes] if line]

    @property
    def manner(self) -> str:
        """How the workers' gradients come together."""
        if not self.config.sync:
            return 'asynchronous'
        return f'synchronous, {self.aggregated} of {len(self.cluster.workers)} gradients per update'
