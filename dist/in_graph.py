"""One task of in-graph training: the client, whose one graph covers all machines, or a task that serves it.

    [client: worker 0] - one graph -> [ps 0..: variables] <-> [worker 0: towers] [worker 1: towers] ...

The client is a worker too. It finds out which devices the workers have, and from there on it is training on one
machine whose devices have longer names: the placement, the builder, the step and the loop are those of
inception_mg.training. What one client costs is that a step needs every machine: when one is lost the client waits for
it, and all go back to the newest checkpoint.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from dist import board, ps
from dist.fence import Fence
from dist.hosts import Cluster
from dist.job import Job
from dist.peers import Peers, Refused, taking_part
from dist.server import session_config, start_server
from dist.session import ClusterSessionCreator, PeersHook, build_initialise
from dist.status import JoinHook
from dist.worker import explaining_loss
from inception_mg.config import ClusterConfig, DeviceConfig, InGraphConfig, RunConfig
from inception_mg.errors import EXIT_RETRY, EXIT_SIGTERM, UserError
from inception_mg.placement import Placement, in_graph
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
CheckDevices = Callable[[Sequence[str]], None]  # Given the names of all devices; raises UserError.


def serve(cluster: Cluster, devices: DeviceConfig, options: InGraphConfig, config: ClusterConfig, say: Say = print
          ) -> int:
    """Serves as a ps, or as a worker other than the client, until the job is over; returns the exit code
    (see ps.serve).

    A worker offers its devices, and reads its own part of the examples. Raises UserError when its port cannot be had.
    """
    machine_config = None
    if cluster.job == 'worker':
        machine = own_machine(devices, options)
        machine_config = machine.session_config
        for line in machine.notes:
            say(line)
    stopper = Stopper('ending; the job can go on once this task is back')
    with stopper.listening(), explaining_loss(cluster):
        server = start_server(cluster, unfiltered_config(cluster, machine_config), say)
        idle_secs = max(config.start_timeout, config.lost_timeout)
        return ps.serve(cluster, server, idle_secs, lambda: bool(stopper.signal_name), say, one_client=True)


def run_client(cluster: Cluster, task: Task, devices: DeviceConfig, run: RunConfig, options: InGraphConfig,
               config: ClusterConfig, say: Say = print, more_hooks: Sequence[v1.train.SessionRunHook] = ()) -> int:
    """Trains with the devices of all workers until run.max_steps and returns 0, or EXIT_SIGTERM after a signal.

    task.batch_size is that of the whole cluster. Begins, and goes on after any loss, at the newest checkpoint in
    run.train_dir. more_hooks: of the caller, after those of the loop. Raises UserError for whatever the user can mend,
    with EXIT_RETRY when the rest of the cluster was lost.
    """
    machine = own_machine(devices, options)
    run = train.with_epochs(run, task.optimizer, task.num_examples, task.batch_size)
    train.make_directory(run.train_dir, 'train_dir')
    stopper = Stopper()
    with run_state.announced(run.train_dir, taken=EXIT_RETRY), stopper.listening(), explaining_loss(cluster):
        server = start_server(cluster, unfiltered_config(cluster, machine.session_config), say)
        peers = Peers(cluster, Job({}), config.start_timeout, config.lost_timeout,
                      lambda: bool(stopper.signal_name), say, boards=board.connect_boards(cluster, one_client=True),
                      retry_code=config.retry_exit_code)
        with tf.Graph().as_default(), taking_part(peers):
            peers.enter(server.target)
            try:
                found = find_devices(peers, server.target, unfiltered_config(cluster))
                placement = dataclasses.replace(place(cluster, found, len(machine.placement.devices), devices, options),
                                                wire_dtype=config.wire_dtype, partition_mb=config.partition_mb)
            except UserError as error:  # The others serve on: they may yet fit another client.
                raise Refused(f'{error}', error.exit_code) from error
            client = _Client(cluster, peers, placement, machine, task, run, say)
            with naming_the_reader(cluster, task.source):
                client.work(server.target, stopper, more_hooks)
        say(f'{cluster.name} has ended the job' if not stopper.signal_name else f'{cluster.name} has left the job')
    return EXIT_SIGTERM if stopper.signal_name else 0


def own_machine(devices: DeviceConfig, options: InGraphConfig) -> Machine:
    """What each worker does with its own devices; a tower that is split over hosts has one of each worker."""
    return local_machine(dataclasses.replace(devices, split_model='') if options.split_over_hosts else devices)


def unfiltered_config(cluster: Cluster, base: v1.ConfigProto | None = None) -> v1.ConfigProto:
    """The ConfigProto of a task's server and sessions: every task sees all others, since a step runs on all."""
    config = session_config(cluster, base)
    del config.device_filters[:]
    return config


def find_devices(peers: Peers, target: str, config: v1.ConfigProto) -> list[str]:
    """Waits for all tasks, and returns the full names of all their devices; raises ClusterLost, Stopped or
    UserError."""
    with tf.Graph().as_default():
        session = ClusterSessionCreator(peers, target, config, {}).create_session()
        try:
            return [device.name for device in session.list_devices()]
        finally:
            session.close()


def worker_devices(cluster: Cluster, found: Sequence[str], count: int) -> list[list[str]]:
    """For each worker the first `count` of its GPUs, as '/device:GPU:0', or of its CPU devices if it shows no GPU.

    found: names of all devices. Raises UserError naming a worker that has fewer.
    """
    specs = [tf.DeviceSpec.from_string(name) for name in found]
    devices = []
    for task, address in enumerate(cluster.workers):
        kinds = [spec.device_type for spec in specs if spec.job == 'worker' and spec.task == task]
        kind = 'GPU' if 'GPU' in kinds else 'CPU'
        if (have := kinds.count(kind)) < count:
            raise UserError(f'worker {task} at {address} offers {have} {kind} device{"s" * (have != 1)}, but each '
                            f'worker needs {count}: give all the same --num_gpus, --split_model and --split_devices')
        devices.append([f'/device:{kind}:{number}' for number in range(count)])
    return devices


def place(cluster: Cluster, found: Sequence[str], count: int, devices: DeviceConfig, options: InGraphConfig
          ) -> Placement:
    """Puts towers on `count` devices of every worker, and the variables on the ps, or without any on the
    client's CPU."""
    return in_graph(len(cluster.ps), worker_devices(cluster, found, count), devices.split_model, devices.split_devices,
                    options.split_over_hosts)


@contextlib.contextmanager
def naming_the_reader(cluster: Cluster, source: str) -> Iterator[None]:
    """Turns an error of a data set, whose shards are in order on this machine, into one line that says whose
    are not. For the graph that is the default one."""
    try:
        yield
    except tf.errors.OpError as error:
        # Tasks in the message may be those that asked; the graph knows where the operation is.
        found = re.search(r'([^\n]+)\n\s*\[\[\{\{node (\S*IteratorGetNext\S*)\}\}', error.message)
        if not found:
            raise
        task = tf.DeviceSpec.from_string(v1.get_default_graph().get_operation_by_name(found[2]).device).task
        raise UserError(f'worker {task} at {cluster.workers[task]} cannot read its part of the data: {found[1]}; '
                        f'every worker must have the same ({source})') from error


class ClientSessionCreator(ClusterSessionCreator):
    """Begins every session at the newest checkpoint, or anew without any.

    That holds also after a loss: the ps may be alive, but the step in progress may have been applied to some
    variables and not to others. check_devices: whether all machines still have what the graph uses.
    """

    def __init__(self, peers: Peers, target: str, config: v1.ConfigProto, check_devices: CheckDevices,
                 initialise: Callable[[v1.Session], str], local_init_op: tf.Operation):
        super().__init__(peers, target, config, {}, local_init_op)
        self._check_devices, self._initialise = check_devices, initialise

    def _prepare(self, session):
        peers = self._peers
        self._check_devices([device.name for device in session.list_devices()])
        if self._made:
            peers.log((f'{self._restarted} was restarted' if self._restarted else 'the cluster was out of reach') +
                      ': a step may have been applied in part, so all go back to the newest checkpoint')
        peers.join()
        peers.log(self._initialise(session))


@dataclasses.dataclass(frozen=True)
class _Client:
    """What the client knows."""

    cluster: Cluster
    peers: Peers
    placement: Placement
    machine: Machine
    task: Task
    run: RunConfig
    say: Say

    def work(self, target: str, stopper: Stopper, more_hooks: Sequence[v1.train.SessionRunHook]) -> None:
        """Builds the graph of all machines and runs the loop, with sessions of the server at `target`."""
        gates = {'wrap_optimizer': Fence(1, 0, self.peers.claim.life).wrap} if self.cluster.ps else {}
        step = build_train_step(self.placement, self.task, **gates)
        start = train.Start.find(self.run)
        for line in self.start_lines(step, start):
            self.say(line)
        start.check(self.task.frozen)
        # What saves, restores and summarises is on the client's CPU, so the files are written on its disk.
        with tf.device(self.placement.towers[0].host):
            saver, init_fn = train.build_saver(self.run), start.build_init_fn()
            own_hooks = train.chief_hooks(step, self.task, self.run, saver, say=self.say, around_save=lambda: (
                self.peers.saving(contextlib.nullcontext())))
        initialise = build_initialise(
            saver, lambda: newest_checkpoint(self.run.train_dir) or '', v1.global_variables_initializer(),
            init_fn=init_fn)
        creator = ClientSessionCreator(self.peers, target, self.session_config(), self.check_devices, initialise,
                                       tf.group(v1.local_variables_initializer(), step.start_input))
        loop_hooks = [PeersHook(self.peers, step.global_step, self.run.max_steps),
                      JoinHook(self.cluster.name, step.global_step, self.say),
                      TraceHook(step.global_step, self.run.trace_step, self.run.train_dir, self.cluster.task,
                                say=self.say),
                      *train.loop_hooks_for(step, self.run, stopper), *own_hooks, *more_hooks]
        with train.files_beside(self.run, self.task, stopper):
            train.run_steps(creator, loop_hooks, step.train_op, self.task, start.checkpoint)

    def session_config(self) -> v1.ConfigProto:
        """That of this machine, and soft placement if any worker computes on GPUs."""
        config = unfiltered_config(self.cluster, self.machine.session_config)
        config.allow_soft_placement |= any('GPU' in device for device in self.placement.devices)
        return config

    def check_devices(self, found: Sequence[str]) -> None:
        """Raises UserError for a worker that came back without devices on which the graph has towers."""
        names = {name.replace('/replica:0', '') for name in found}
        for device in sorted(self.placement.devices - names):
            raise UserError(f'{device} is gone: its worker came back with other devices than it had; start it with the '
                            'flags it had, or the client again')

    def start_lines(self, step: TrainStep, start: train.Start) -> list[str]:
        """The whole screen."""
        workers = len(self.cluster.workers)
        return [f'cluster    {self.cluster.name} of {len(self.cluster.ps)} ps and {workers} '
                f'worker{"s" * (workers > 1)}, in-graph: one client, whose step is a step of all',
                *train.start_lines(self.placement, self.task, step), *start.lines(self.run), *self.task.notes,
                *self.machine.notes]
