"""Examines a cluster from outside: of each address who answers there, how fast, with which versions, clock and GPUs.

It changes nothing, and takes no part: it may be run while a training runs, or to see why it does not start.
"""

import concurrent.futures
import json
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dist.board import session_config
from dist.hosts import Cluster, split_address
from dist.introduction import build_introduction
from inception_mg.placement import CPU

v1 = tf.compat.v1

OK, WARNING, WRONG = 'ok', 'warning', 'wrong'
CONNECT_SECS = 3.0
ANSWER_SECS = 10.0
SKEW_SECS = 5.0     # Beyond it, lines of two logs can hardly be put in order.
LOW_DISK = 10e9     # Bytes: some ten checkpoints of the whole network with its slots.
PROBE_BYTES = 16 << 20
PROBES = 3


class Finding(NamedTuple):
    """One line: what it is about, what was found, and whether that is OK, a WARNING or WRONG. version: of a task."""

    subject: str
    text: str
    level: str = OK
    version: str = ''

    @property
    def line(self) -> str:
        """As it is printed."""
        return f'{self.level:<8} {self.subject:<10} {self.text}'


def examine(cluster: Cluster, train_dir: str = '') -> list[Finding]:
    """Looks at every task of the cluster, and at the folder of checkpoints as this machine sees it; the last finding is
    the verdict. Takes a few seconds, and ANSWER_SECS for each task that hangs."""
    tasks = [(job, index, address) for job, addresses in cluster.lists.items()
             for index, address in enumerate(addresses) if address]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda task: _reach(*task), tasks))
    # One after the other: what crosses for one ps must not slow down another.
    findings = [finding or _ask(cluster, *task) for finding, task in zip(found, tasks, strict=True)]
    answered = [finding for finding in findings if finding.level != WRONG]
    findings += _versions(answered)
    if train_dir:
        findings.append(_disk(train_dir))
    return [*findings, _verdict(findings, len(answered), len(tasks))]


def name_of(job: str, index: int) -> str:
    """'ps 0', 'chief', 'worker 1'."""
    return 'chief' if (job, index) == ('worker', 0) else f'{job} {index}'


def _reach(job: str, index: int, address: str) -> Finding | None:
    """What is wrong on the way to a port; None if somebody listens there."""
    host, port = split_address(address, name_of(job, index))
    try:
        socket.create_connection((host, port), CONNECT_SECS).close()
    except socket.gaierror:
        reason = f'this machine knows no {host}'
    except ConnectionRefusedError:
        reason = f'the machine answers, but nothing listens on port {port}: not started yet, or ended'
    except TimeoutError:
        reason = f'no answer in {CONNECT_SECS:g} s: a firewall on the way, or another machine\'s address'
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    else:
        return None
    return Finding(name_of(job, index), f'{address}: {reason}', WRONG)


def _ask(cluster: Cluster, job: str, index: int, address: str) -> Finding:
    name = name_of(job, index)
    graph = tf.Graph()
    with graph.as_default():
        introduction = build_introduction()
        with tf.device(CPU):
            clock = tf.timestamp()
            down = tf.random.uniform([PROBE_BYTES // 4])
            data = v1.placeholder(tf.float32, [PROBE_BYTES // 4])
            up = tf.reduce_sum(data)
    session = v1.Session(f'grpc://{address}', graph=graph, config=session_config(ANSWER_SECS))
    try:
        with session:
            skew = _skew(session, clock)  # First: it needs nothing but a TensorFlow server.
            try:
                said = json.loads(session.run(introduction))
            except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
                return Finding(name, f'{address}: a TensorFlow server that is none of this program', WRONG)
            if wrong := _other_cluster(cluster, name, said):
                return Finding(name, f'{address}: {wrong}', WRONG)
            parts = [f'clock {skew:+.2f} s', _gpus(session)]
            if job == 'ps':
                parts.append(f'{_rate(session, down):.0f} MB/s from it, '
                             f'{_rate(session, up, {data: np.zeros([PROBE_BYTES // 4], np.float32)}):.0f} MB/s to it')
    except tf.errors.OpError as error:
        return Finding(name, f'{address}: somebody listens, but no TensorFlow server answers in {ANSWER_SECS:g} s '
                             f'({type(error).__name__})', WRONG)
    late = abs(skew) > SKEW_SECS
    return Finding(name, f'{address}: {", ".join(filter(None, [*parts, said["version"]]))}'
                   + (': set its clock or this machine\'s' if late else ''), WARNING if late else OK, said['version'])


def _other_cluster(cluster: Cluster, name: str, said: dict) -> str:
    difference = cluster.difference(said['lists'])
    if not difference and said['task'] != name:
        difference = f'it is {said["task"]} there'
    return f'a task of another cluster answers: {difference}' if difference else ''


def _skew(session: v1.Session, clock: tf.Tensor) -> float:
    """Seconds by which the clock of the session's task is ahead of this machine's, from the quickest of some looks."""
    looks = []
    session.run(clock)  # The first run sends the graph.
    for _ in range(5):
        begun = time.time()
        theirs = session.run(clock)
        ended = time.time()
        looks.append((ended - begun, theirs - (begun + ended) / 2))
    return float(min(looks)[1])


def _gpus(session: v1.Session) -> str:
    gpus = [device for device in session.list_devices() if device.device_type == 'GPU']
    gigabytes = sum(device.memory_limit_bytes for device in gpus) / 1e9
    return f'{len(gpus)} GPU{"s" * (len(gpus) > 1)} with {gigabytes:.0f} GB' if gpus else ''


def _rate(session: v1.Session, fetch: tf.Tensor, feed: dict | None = None) -> float:
    """MB per second, in the quickest of some runs after a first one. It crosses as a message of a client, which is
    copied more often than what crosses between tasks: on a fast network tasks reach more."""
    times = []
    for _ in range(PROBES + 1):
        begun = time.perf_counter()
        session.run(fetch, feed)
        times.append(time.perf_counter() - begun)
    return PROBE_BYTES / 1e6 / min(times[1:])


def _versions(findings: Sequence[Finding]) -> Iterator[Finding]:
    versions = Counter(finding.version for finding in findings)
    if len(versions) > 1:
        groups = {version: ', '.join(finding.subject for finding in findings if finding.version == version)
                  for version in versions}
        yield Finding('versions', '; '.join(f'{names}: {version}' for version, names in groups.items())
                      + ': install the same everywhere', WARNING)


def _disk(train_dir: str) -> Finding:
    """The folder of checkpoints, or the one in which it would be made."""
    if '://' in train_dir:
        return Finding('train_dir', f'{train_dir}: not on this machine, so its room is not known here', OK)
    folder = os.path.abspath(train_dir)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Finding('train_dir', f'{train_dir}: cannot write in {folder}', WRONG)
    low = free < LOW_DISK
    return Finding('train_dir', f'{train_dir}: {free / 1e9:.0f} GB free, as this machine sees it'
                   + (': make room, or keep fewer checkpoints' if low else ''), WARNING if low else OK)


def _verdict(findings: Sequence[Finding], answered: int, tasks: int) -> Finding:
    levels = Counter(finding.level for finding in findings)
    text = f'{answered} of {tasks} tasks answer'
    for level, word in ((WRONG, 'wrong'), (WARNING, 'warning')):
        if levels[level]:
            text += f'; {levels[level]} {word}{"s" * (level == WARNING and levels[level] > 1)}'
    return Finding('verdict', text, WRONG if levels[WRONG] else WARNING if levels[WARNING] else OK)
