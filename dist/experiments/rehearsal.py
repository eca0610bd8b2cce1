"""One recorded step of any way of running, on this machine: the clusters are servers of this process.

Nothing is trained and no data is read: what sits where and what crosses which wire does not depend on the images.
"""

import dataclasses
import time

import tensorflow as tf

from dist.launch.local import free_ports
from inception_mg.config import DeviceConfig
from inception_mg.placement import CPU, Placement, short_device
from inception_mg.report.plan import expected_bytes, plan_step
from inception_mg.report.summary import GraphRun, describe_variables
from inception_mg.report.ways import Way
from inception_mg.training import step_records
from inception_mg.training.devices import session_config
from inception_mg.training.step_records import lacks_times
from inception_mg.training.task import Task
from inception_mg.training.train_step import TrainStep, build_train_step

v1 = tf.compat.v1
_TRIES = 5  # Recorded steps, until one has the time of every transfer.


def rehearse(way: Way, task: Task) -> list[GraphRun]:
    """Runs a few steps of every client of `way`, one client after another, and returns the record of the last.

    task: what is trained; its batch_size is that of each tower. Soft placement is off. The servers of a cluster stay
    until this process ends: TensorFlow cannot stop them.
    """
    config = session_config(DeviceConfig(), way.devices_per_machine, on_gpus=False)
    targets = start_cluster(way.num_ps, way.num_workers, config) if way.num_workers else {}
    runs = []
    for number, placement in enumerate(way.placements):
        client = f'/job:worker/task:{number}' if way.num_workers else ''
        own = v1.ConfigProto()
        own.CopyFrom(config)
        if len(way.placements) > 1:  # As between-graph workers are: each sees the ps and itself.
            own.device_filters.extend(['/job:ps', client])
        with tf.Graph().as_default():
            batch_size = task.batch_size * len(placement.towers)
            step = build_train_step(placement, dataclasses.replace(task, batch_size=batch_size))
            runs.append(_run(client, placement, step, targets.get(number, ''), own))
    return runs


def start_cluster(num_ps: int, num_workers: int, config: v1.ConfigProto) -> dict[int, str]:
    """Starts a server per task on loopback; returns worker -> the target of its sessions."""
    ports = free_ports(num_ps + num_workers)
    hosts = [f'127.0.0.1:{port}' for port in ports]
    spec = tf.train.ClusterSpec({'ps': hosts[:num_ps], 'worker': hosts[num_ps:]})
    servers = {(job, task): tf.distribute.Server(spec, job_name=job, task_index=task, config=config)
               for job, count in (('ps', num_ps), ('worker', num_workers)) for task in range(count)}
    _SERVERS.extend(servers.values())
    return {task: servers['worker', task].target for task in range(num_workers)}


_SERVERS: list[tf.distribute.Server] = []  # Kept: the destructor of a server waits for its peers.


def _run(client: str, placement: Placement, step: TrainStep, target: str, config: v1.ConfigProto) -> GraphRun:
    """The first step prepares the graph, the second is timed, the last recorded."""
    trainable = [variable for _, variable in step.gradients]
    plan = plan_step(step.train_op, trainable, client + CPU)
    names = _statistics(step.train_op.graph)
    variables = describe_variables(v1.global_variables(), trainable, names)
    expected = expected_bytes(placement, trainable, sum(row.bytes for row in variables if row.role == 'statistics'))
    with v1.Session(target, config=config) as session:
        session.run(v1.global_variables_initializer())
        session.run(step.start_input)
        session.run(step.train_op)
        begun = time.monotonic()
        session.run(step.train_op)
        seconds = time.monotonic() - begun
        for _ in range(_TRIES):
            metadata = v1.RunMetadata()
            session.run(step.train_op, options=step_records.trace_options(), run_metadata=metadata)
            if not lacks_times(step_records.transfers(metadata)):
                break
    iterators = [(operation.name, short_device(operation.device))
                 for operation in step.train_op.graph.get_operations() if operation.type.startswith('Iterator')
                 and not operation.inputs]
    return GraphRun(client, placement, plan, expected, variables, iterators, seconds, metadata)


def _statistics(graph: tf.Graph) -> set[str]:
    """Names of the variables that the graph's statistics updates move, by whatever operation."""
    moves = [operation for operation in graph.get_operations() if operation.name.startswith('statistics')]
    return {move.inputs[0].op.name for move in moves if move.inputs and move.inputs[0].dtype == tf.resource}
