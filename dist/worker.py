"""One task of between-graph training: a ps that serves, or a worker with a graph of its own.

    [ps 0..: variables] <-> [worker k: its towers]      (and every other worker likewise)

Only addresses tell it from training on one machine: the placement, the builder, the step and the loop
are those of inception_mg.training. What is added here is who initialises, who waits and who saves.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from dist import ps
from dist.board import Unreachable
from dist.fence import Fence
from dist.hosts import Cluster
from dist.job import Job, describe_graph
from dist.peers import ClusterLost, Peers, exit_code, taking_part
from dist.server import session_config, start_server
from dist.session import ChiefSessionCreator, EndWithChiefHook, PeersHook, WorkerSessionCreator, build_initialise
from dist.status import FOLLOWER_EVERY, CountsHook, FollowerHook, JoinHook, PaceHook
from dist.sync import SyncReplicas
from inception_mg.config import ClusterConfig, DeviceConfig, RunConfig
from inception_mg.errors import EXIT_RETRY, EXIT_SIGTERM, FlagError
from inception_mg.files import whole
from inception_mg.placement import Placement, between_graph, bytes_of
from inception_mg.reasons import reason_of
from inception_mg.run_dir import run_state
from inception_mg.training import train
from inception_mg.training.devices import Machine, local_machine
from inception_mg.training.hooks import Stopper
from inception_mg.training.task import Task
from inception_mg.training.trace import TraceHook
from inception_mg.training.train_step import TrainStep, build_train_step
from inception_mg.weights.checkpoints import newest_checkpoint

v1 = tf.compat.v1
Say = Callable[[str], None]
LINK = 1.25e9  # Bytes per second each way of the network that the start line reckons with: 10 Gbit/s.


def run_ps(cluster: Cluster, config: ClusterConfig, say: Say = print) -> int:
    """Serves as a parameter server until the job is over; returns the exit code (see ps.serve).

    Raises UserError when its port cannot be had.
    """
    stopper = Stopper('ending; the job can go on once this ps is back')
    with stopper.listening(), explaining_loss(cluster):
        server = start_server(cluster, session_config(cluster), say)
        idle_secs = max(config.start_timeout, config.lost_timeout)
        return ps.serve(cluster, server, idle_secs, lambda: bool(stopper.signal_name), say)


def run_worker(cluster: Cluster, task: Task, devices: DeviceConfig, run: RunConfig, config: ClusterConfig,
               say: Say = print, more_hooks: Sequence[v1.train.SessionRunHook] = ()) -> int:
    """Trains as one worker until run.max_steps and returns 0, or EXIT_SIGTERM after a signal.

    Worker 0, the chief, initialises, or resumes from run.train_dir, and alone writes there; the others may
    leave it out. more_hooks: of the caller, after those of the loop. Raises UserError for whatever the user can
    mend, with EXIT_RETRY when the rest of the cluster was lost.
    """
    aggregated = aggregated_replicas(cluster, config)
    run = train.with_epochs(run, task.optimizer, task.num_examples, task.batch_size * aggregated)
    machine = cluster_machine(cluster, local_machine(devices), config)
    announced = contextlib.nullcontext()
    if cluster.is_chief:
        train.make_directory(run.train_dir, 'train_dir')
        announced = run_state.announced(run.train_dir, taken=EXIT_RETRY)
    stopper = Stopper('saving after this step' if cluster.is_chief else 'ending after this step')
    with announced, stopper.listening(), explaining_loss(cluster):
        server = start_server(cluster, machine.session_config, say)
        job = describe_job(cluster, task, run, config, aggregated)
        peers = Peers(cluster, job, config.start_timeout, config.lost_timeout, lambda: bool(stopper.signal_name), say,
                      retry_code=config.retry_exit_code)
        worker = _Worker(cluster, peers, machine, task, run, config, aggregated, say, tuple(more_hooks))
        with tf.Graph().as_default(), taking_part(peers):
            worker.work(server.target, stopper)
        say(f'{cluster.name} has left the job')
    return EXIT_SIGTERM if stopper.signal_name else 0


@contextlib.contextmanager
def explaining_loss(cluster: Cluster) -> Iterator[None]:
    """Turns errors of a lost cluster into ClusterLost, one line that asks for a restart."""
    try:
        yield
    except (tf.errors.OpError, Unreachable) as error:
        if exit_code(error) != EXIT_RETRY:
            raise
        raise ClusterLost(f'{cluster.name} lost the rest of the cluster: {reason_of(error)}') from error


def aggregated_replicas(cluster: Cluster, config: ClusterConfig) -> int:
    """Gradients per update: 1 when training is asynchronous. FlagError when there are fewer workers."""
    count, workers = config.num_replicas_to_aggregate, len(cluster.workers)
    if count > workers:
        raise FlagError(f'--num_replicas_to_aggregate={count}, but the cluster has {workers} workers')
    return (workers if count == -1 else count) if config.sync else 1


def manner_of(cluster: Cluster, config: ClusterConfig, aggregated: int) -> str:
    """How the workers' gradients come together, in words."""
    if not config.sync:
        return 'asynchronous'
    return f'synchronous, {aggregated} of {len(cluster.workers)} gradients per update'


def describe_job(cluster: Cluster, task: Task, run: RunConfig, config: ClusterConfig, aggregated: int) -> Job:
    """What must be equal on every worker, or it is refused: all that the graph, the schedule and the parts of
    the data follow from. How a worker deals its batch to its own devices is its own affair."""
    settings = {'--sync': manner_of(cluster, config, aggregated), '--batch_size': task.batch_size,
                '--max_steps': run.max_steps, '--partition_mb': f'{config.partition_mb:g}',
                **{f'--{name}': value for name, value in vars(task.optimizer).items()}, **task.settings}
    return Job({name: str(value) for name, value in settings.items()},
               whole(run.train_dir) if cluster.is_chief else '')


def cluster_machine(cluster: Cluster, machine: Machine, config: ClusterConfig) -> Machine:
    """This machine's towers as those of a worker: the variables are on the ps, and cross as `config` says."""
    placement = dataclasses.replace(between_graph(len(cluster.ps), cluster.index, machine.placement.towers),
                                    wire_dtype=config.wire_dtype, prefetch=config.prefetch_variables,
                                    partition_mb=config.partition_mb)
    return machine._replace(placement=placement, session_config=session_config(cluster, machine.session_config))


def bytes_by_device(variables: Iterable[tf.Variable]) -> collections.Counter[str]:
    """Device -> bytes of the variables on it."""
    found: collections.Counter[str] = collections.Counter()
    for variable in variables:
        found[variable.device] += bytes_of(variable)
    return found


def moved_by_device(step: TrainStep, wire_dtype: str) -> collections.Counter[str]:
    """Device -> bytes of trained weights on the wire: what each worker pulls, and pushes as gradients, in a step."""
    size = tf.as_dtype(wire_dtype).size
    return collections.Counter({device: count // tf.float32.size * size for device, count in
                                bytes_by_device(variable for _, variable in step.gradients).items()})


def with_counts(step: TrainStep, sync: SyncReplicas | None) -> TrainStep:
    """The step with each worker's late gradients among its scalars, if training is synchronous."""
    if sync is None:
        return step
    late = {f'dropped_gradients/worker_{k}': count for k, count in enumerate(tf.unstack(sync.dropped))}
    return step._replace(parts={**step.parts, **late})


def wire_lines(step: TrainStep, placement: Placement, batch_size: int, slots: int = 0) -> list[str]:
    """What a step moves, what each ps holds, and how many steps its network carries at most: beyond that
    more workers are not faster. slots: gradients that each ps keeps, one per worker under --sync."""
    loads, moved = bytes_by_device(v1.global_variables()), moved_by_device(step, placement.wire_dtype)
    total, fullest = moved.total(), max(moved.values())
    most, held = LINK / fullest, moved_by_device(step, 'float32')
    return [
        'ps         ' + ', '.join(f'ps {k} holds {loads[device] / 1e6:.1f} MB' + (
            f', and under --sync {slots} x {held[device] / 1e6:.1f} MB of gradients' if slots else '')
                                  for k, device in enumerate(placement.variables)),
        f'wire       a step of each worker pulls {total / 1e6:.1f} MB of weights and pushes as much of gradients'
        f'{", in " + placement.wire_dtype if placement.wire_dtype != "float32" else ""}; with 10 Gbit/s',
        f'           at each ps all workers together make at most {most:.0f} steps/s, {most * batch_size:.0f} '
        'images/s: more workers help until then']


@dataclasses.dataclass(frozen=True)
class _Worker:
    """What one worker knows. aggregated: gradients per update."""

    cluster: Cluster
    peers: Peers
    machine: Machine
    task: Task
    run: RunConfig
    config: ClusterConfig
    aggregated: int
    say: Say
    more_hooks: tuple[v1.train.SessionRunHook, ...] = ()

    def work(self, target: str, stopper: Stopper) -> None:
        """Builds this worker's graph and runs the loop, with sessions of the server at `target`."""
        alive = self.peers.enter(target)
        step, sync = self.build()
        start = train.Start.find(self.run) if self.cluster.is_chief else None
        for line in self.start_lines(step, start, alive):
            self.say(line)
        creator, own_hooks = self.chief(target, step, sync, start) if start else (self.follower(target, step), [])
        moved = moved_by_device(step, self.config.wire_dtype)
        # In this order: a wait for the next update comes before whoever reads the global step.
        loop_hooks = [PeersHook(self.peers, step.global_step, self.run.max_steps), *([sync.hook] if sync else []),
                      *([] if start else [EndWithChiefHook(self.peers), self.follower_hook(step)]),
                      JoinHook(self.cluster.name, step.global_step, self.say),
                      PaceHook(self.cluster.name, moved.total(), sync, self.say),
                      self.trace_hook(step), *train.loop_hooks_for(step, self.run, stopper), *own_hooks]
        beside = train.files_beside(self.run, self.task, stopper) if start else None
        with beside or contextlib.nullcontext():
            train.run_steps(creator, [*loop_hooks, *self.more_hooks], step.train_op, self.task,
                            start.checkpoint if start else '')

    def build(self) -> tuple[TrainStep, SyncReplicas | None]:
        """The step over this worker's towers and, if training is synchronous, what wraps its optimizer."""
        wrapped: list[SyncReplicas] = []
        fence = Fence(len(self.cluster.workers), self.cluster.index, self.peers.claim.life)

        def synchronous(optimizer) -> SyncReplicas:
            patience = max(self.config.start_timeout, self.config.lost_timeout)
            wrapped.append(SyncReplicas(
                optimizer, self.aggregated, len(self.cluster.workers), self.cluster.index, self.run.max_steps,
                check=self.peers.check, stop=lambda: self.peers.stop() or self.peers.job_ends(), log=self.say,
                give_up_secs=patience, passed=fence.build_passed))
            return wrapped[0]

        step = build_train_step(
            self.machine.placement, self.task, reader=self.cluster.index, readers=len(self.cluster.workers),
            aggregated=self.aggregated, wrap_optimizer=synchronous if self.config.sync else fence.wrap)
        return step, wrapped[0] if wrapped else None

    def trace_hook(self, step: TrainStep) -> TraceHook:
        """Only the chief writes in train_dir: the others' traces come to it over the board of ps 0."""
        return TraceHook(step.global_step, self.run.trace_step, self.run.train_dir if self.cluster.is_chief else '',
                         self.cluster.task, self.peers.share_trace, self.peers.shared_traces, self.say)

    def follower_hook(self, step: TrainStep) -> FollowerHook:
        """What the others say; less often than the chief's status lines, for there are many of them."""
        return FollowerHook(self.cluster.name, step, FOLLOWER_EVERY * self.run.log_every_steps, self.task.batch_size,
                            self.peers.chief_silence, self.say)

    def follower(self, target: str, step: TrainStep) -> WorkerSessionCreator:
        """The sessions of a worker that waits for the chief."""
        return WorkerSessionCreator(self.peers, target, self.machine.session_config,
                                    describe_graph(v1.global_variables()), self.local_init(step))

    def chief(self, target: str, step: TrainStep, sync: SyncReplicas | None, start: train.Start
              ) -> tuple[ChiefSessionCreator, list[v1.train.SessionRunHook]]:
        """The chief's sessions and hooks. What saves, restores and summarises runs on its own CPU, so the
        files are written on its own disk."""
        start.check(self.task.frozen)
        graph, local_init = describe_graph(v1.global_variables()), self.local_init(step)
        with tf.device(self.machine.placement.towers[0].host):
            saver, init_fn = train.build_saver(self.run), start.build_init_fn()
            hooks = train.chief_hooks(with_counts(step, sync), self.task, self.run, saver, self.aggregated, self.say,
                                      lambda: self.peers.saving(sync.updating if sync else contextlib.nullcontext()))
        if sync:
            hooks.append(CountsHook(sync, self.run.log_every_steps, self.say))
        initialise = build_initialise(
            saver, lambda: newest_checkpoint(self.run.train_dir) or '', v1.global_variables_initializer(),
            sync.reset_op if sync else None, init_fn)
        return ChiefSessionCreator(self.peers, target, self.machine.session_config, graph, initialise,
                                   local_init), hooks

    def local_init(self, step: TrainStep) -> tf.Operation:
        """What every new session of this worker begins with."""
        return tf.group(v1.local_variables_initializer(), step.start_input)

    def start_lines(self, step: TrainStep, start: train.Start | None, alive: bool = False) -> list[str]:
        """The whole screen on the chief; on the others what is their own. alive: the variables on the ps are."""
        workers = len(self.cluster.workers)
        lines = [f'cluster    {self.cluster.name} of {len(self.cluster.ps)} ps and {workers} '
                 f'worker{"s" * (workers > 1)}, {manner_of(self.cluster, self.config, self.aggregated)}; '
                 f'reads part {self.cluster.index + 1} of {workers} of the images']
        screen = train.start_lines(self.machine.placement, self.task, step, self.aggregated)
        lines += screen if start else [line for line in screen if line.startswith('batch')]
        if start:
            lines += [*wire_lines(step, self.machine.placement, self.task.batch_size,
                                  workers if self.config.sync else 0),
                      *start.lines(self.run, alive), *self.task.notes]
        return [*lines, *self.machine.notes]
