"""The benchmark's contenders that are clusters: one task of each, for a process of its own.

The graphs, servers and hooks are those of dist.worker. What is left out is the care for tasks that die: the
benchmark's driver starts all tasks and tells them when to begin, the chief first.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from dist.benchmark.contenders import NUM_OUTPUTS, OPTIMIZER, build_step, synthetic_batch
from dist.benchmark.flops import count_flops
from dist.benchmark.race import Contender
from dist.board import Cell
from dist.hosts import Cluster
from dist.in_graph import unfiltered_config
from dist.server import session_config, start_server
from dist.sync import SyncReplicas
from dist.worker import cluster_machine
from inception_mg.config import ClusterConfig, DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.fast.choice import operations_for
from inception_mg.model.losses import TowerLoss, classification_loss
from inception_mg.placement import bytes_of, in_graph
from inception_mg.training import train
from inception_mg.training.devices import Machine, local_machine
from inception_mg.training.hooks import Stopper
from inception_mg.training.task import Task
from inception_mg.training.train_step import TrainStep, build_train_step

v1 = tf.compat.v1

FOREVER = 10**9  # Steps: the driver says when it is over.
_RUN = RunConfig(train_dir='the benchmark', max_steps=FOREVER)


def build(name: str, cluster: Cluster, data: DataConfig, model: ModelConfig) -> Contender:
    """This task's part of the contender of that name."""
    one_client = name == 'in_graph'
    if cluster.job == 'ps' or one_client and not cluster.is_chief:
        return serving(cluster, one_client)
    if one_client:
        return in_graph_client(cluster, data, model, OPTIMIZER)
    if name in ('null_step', 'null_update'):
        return null_worker(cluster, data, model, OPTIMIZER, update=name == 'null_update')
    return worker(cluster, name == 'sync_workers', data, model, OPTIMIZER)


def serving(cluster: Cluster, one_client: bool = False) -> Contender:
    """A task that only serves: a ps, or a worker of an in-graph cluster, which has one client."""
    base = local_machine(DeviceConfig()).session_config if cluster.job == 'worker' else None
    start_server(cluster, unfiltered_config(cluster, base) if one_client else session_config(cluster, base))
    return Contender(lambda count: None, {'unit': '', 'amount': 0})


def in_graph_client(cluster: Cluster, data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig) -> Contender:
    """The client of an in-graph cluster, with one tower on every worker; each computes data.batch_size images."""
    machine = local_machine(DeviceConfig())
    config = unfiltered_config(cluster, machine.session_config)
    server = start_server(cluster, config)
    workers = len(cluster.workers)
    placement = in_graph(len(cluster.ps), [[machine.placement.towers[0].device]] * workers)
    data = dataclasses.replace(data, batch_size=data.batch_size * workers)
    with tf.Graph().as_default() as graph:
        step = build_step(placement, data, model, optimizer, operations_for(False, print))
        run = _Loop(graph, server.target, Machine(placement, config, []), [v1.global_variables_initializer()], step,
                    train.loop_hooks_for(step, _RUN, Stopper()))
        return Contender(run, {'unit': 'images', 'amount': data.batch_size, 'flops': count_flops(graph)})


def worker(cluster: Cluster, sync: bool, data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig) -> Contender:
    """A worker that trains on synthetic input, asynchronously or synchronously with all others; with the hooks
    of every training loop."""
    machine = cluster_machine(cluster, local_machine(DeviceConfig()), ClusterConfig())
    server = start_server(cluster, machine.session_config)
    wrapped: list[SyncReplicas] = []

    def synchronous(inner) -> SyncReplicas:
        workers = len(cluster.workers)
        wrapped.append(SyncReplicas(inner, workers, workers, cluster.index, FOREVER))
        return wrapped[0]

    with tf.Graph().as_default() as graph:
        options = {'wrap_optimizer': synchronous} if sync else {}
        step = build_step(machine.placement, data, model, optimizer, operations_for(False, print), **options)
        flops = count_flops(graph)
        first = [v1.global_variables_initializer(), *(replicas.reset_op for replicas in wrapped)]
        hooks = [*(replicas.hook for replicas in wrapped), *train.loop_hooks_for(step, _RUN, Stopper())]
        run = _Loop(graph, server.target, machine, first if cluster.is_chief else [], step, hooks)
    return Contender(run, {'unit': 'images', 'amount': data.batch_size, 'flops': flops})


def null_worker(cluster: Cluster, data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig,
                update: bool = False) -> Contender:
    """A worker whose step moves the weights down and as many gradients up, and computes nothing.

    Both go through the same builder as in training; the gradients lie ready on the worker, leave when all
    weights have come, and are put down on the ps. update: they are applied there, as in training.
    """
    shapes = trainable_shapes(data, model)
    machine = cluster_machine(cluster, local_machine(DeviceConfig()), ClusterConfig())
    server = start_server(cluster, machine.session_config)
    host = machine.placement.towers[0].host
    with tf.Graph().as_default() as graph:
        ready = [Cell(f'null/gradient/{name}', tf.float32, shape, host) for name, shape in shapes.items()]

        def loss_for(batch, tower) -> TowerLoss:
            weights = [v1.get_variable(name, shape, tf.float32, v1.zeros_initializer())
                       for name, shape in shapes.items()]
            return TowerLoss(_loss_with_gradients(weights, ready))

        task = Task(_labels_alone, loss_for, 1, 1, optimizer, operations=operations_for(False, print))
        step = build_train_step(machine.placement, task, wrap_optimizer=lambda inner: inner if update else _PutDown())
        first = [v1.global_variables_initializer(),
                 *(cell.write(tf.zeros(shape)) for cell, shape in zip(ready, shapes.values(), strict=True))]
        run = _Loop(graph, server.target, machine, first, step, [])
    size = sum(bytes_of(variable) for _, variable in step.gradients)
    return Contender(run, {'unit': 'bytes', 'amount': 2 * size})


def trainable_shapes(data: DataConfig, model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the network's trainable variables."""
    with tf.Graph().as_default():
        classification_loss(*synthetic_batch(data, 1), NUM_OUTPUTS, model)
        return {variable.op.name: tuple(variable.shape) for variable in v1.trainable_variables()}


class _Loop(v1.train.SessionCreator):
    """run(n) of a worker. Its session begins with the first call, when the driver says that it is its turn."""

    def __init__(self, graph: tf.Graph, target: str, machine: Machine, first: Sequence[tf.Operation],
                 step: TrainStep, hooks: Sequence[v1.train.SessionRunHook]):
        self._graph, self._target, self._machine = graph, target, machine
        self._first, self._step, self._hooks, self._session = first, step, hooks, None

    def __call__(self, count: int) -> None:
        with self._graph.as_default():
            if self._session is None:
                self._session = v1.train.MonitoredSession(self, list(self._hooks))
            for _ in range(count):
                self._session.run(self._step.train_op)

    def create_session(self) -> v1.Session:
        """For MonitoredSession."""
        session = v1.Session(self._target, config=self._machine.session_config)
        for operation in [*self._first, self._step.start_input]:
            session.run(operation)
        return session


class _PutDown:
    """An optimizer that leaves each gradient beside its variable and changes nothing."""

    def apply_gradients(self, gradients_and_variables, global_step) -> tf.Operation:
        return tf.group(*(Cell(f'null/pushed/{variable.op.name}', variable.dtype, variable.shape,
                               variable.device).write(gradient) for gradient, variable in gradients_and_variables))


def _loss_with_gradients(weights: Sequence[tf.Tensor], gradients: Sequence[Cell]) -> tf.Tensor:
    """A loss of 0 that needs all weights, and whose gradients are read from the cells after that."""
    @tf.custom_gradient
    def loss(*values):
        with tf.control_dependencies(values):
            total = tf.identity(0.0)

        def gradient(_):
            with tf.control_dependencies([total]):
                return [cell.read() for cell in gradients]

        return total, gradient

    return loss(*weights)


def _labels_alone(first: int, readers: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.zeros([size, 1, 1, 3]), tf.ones([size], tf.int32))).repeat()
