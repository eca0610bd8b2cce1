"""The board on every ps: the few things that the tasks of a cluster tell one another.

A board is a handful of small variables outside of any checkpoint: which cluster the ps was started for, whose state it
holds, a beat per worker, and what each worker says of its own end. Tasks reach it by a session on that ps's own
server, so each call has a time limit whatever state the other tasks are in, and works before, between and after
training sessions.
"""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from dist.hosts import Cluster, split_address
from inception_mg.bounded import bounded
from inception_mg.placement import CPU

v1 = tf.compat.v1

RUNNING, DONE, FAILED, ENDING = 0, 1, 2, 3  # What a worker reports; ENDING only the chief, who still has to save.
BEAT_SECS = 1.0      # A worker beats this often.
SILENT_SECS = 8.0    # Who has not beaten for so long is taken for dead when the job ends.


class Cell:
    """A named value on one device of one task, shared by every session of that task's server.

    Unlike tf.Variable it belongs to no collection, needs no initialiser and never gets into a checkpoint:
    its first `write` makes it.
    """

    def __init__(self, name: str, dtype: tf.DType, shape=(), device: str = ''):
        self._device, self._dtype, self._shape = device, dtype, shape
        with tf.device(None), v1.device(device):
            self._handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name,
                                                  name=name.replace(':', '_'))

    @property
    def handle(self) -> tf.Tensor:
        """The resource itself, a scalar."""
        return self._handle

    def write(self, value) -> tf.Operation:
        """The operation that sets the cell."""
        with tf.device(None), v1.device(self._device):
            return tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.cast(value, self._dtype))

    def add(self, value) -> tf.Operation:
        """The operation that adds to the cell, which must have been written before."""
        with tf.device(None), v1.device(self._device):
            return tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=tf.cast(value, self._dtype))

    def write_at(self, index: int, value) -> tf.Operation:
        """The operation that sets one element of a vector, which must have been written before."""
        with tf.device(None), v1.device(self._device):
            return tf.raw_ops.ResourceScatterUpdate(resource=self._handle, indices=index,
                                                    updates=tf.cast(value, self._dtype))

    def read(self) -> tf.Tensor:
        """The value when this operation runs."""
        with tf.device(None), v1.device(self._device):
            value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
            value.set_shape(self._shape)
            return value


class BoardView(NamedTuple):
    """What a board says.

    card: {'task': name, 'lists': host lists, 'clients': how many workers beat here, 'life': a name of this
        run of the process}, by the ps.
    job: on ps 0, whose state the ps hold, as the chief wrote it; {} before.
    ready: on ps 0, the lives of all ps when the chief had their variables in order; [] if they are not.
    beats, reports: one int per worker.
    """

    card: dict
    job: dict
    ready: list[str]
    beats: list[int]
    reports: list[int]


class Unreachable(Exception):
    """A ps does not answer; the message says which and why."""


class Board:
    """The board of the ps at `address`; every call ends within a few seconds.

    Not for several threads at once. Raises Unreachable, naming the ps, when it does not answer.
    timeout: seconds for each call; 0 = no limit, for the ps itself.
    """

    def __init__(self, name: str, address: str, num_workers: int, target: str = '', timeout: float = 5.0):
        self.name, self.address, self.clients = name, address, num_workers
        self._target = target or f'grpc://{address}'
        self._timeout, self._session = timeout, None
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device(CPU):
            self._build(num_workers)

    def _build(self, num_workers: int) -> None:
        card, job, graph, ready = (Cell(f'board/{name}', tf.string, device=CPU)
                                   for name in ('card', 'job', 'graph', 'ready'))
        beats = [Cell(f'board/beat_{i}', tf.int64, device=CPU) for i in range(num_workers)]
        reports = [Cell(f'board/report_{i}', tf.int64, device=CPU) for i in range(num_workers)]
        traces = [Cell(f'board/trace_{i}', tf.string, device=CPU) for i in range(num_workers)]
        self._text, self._number = v1.placeholder(tf.string, []), v1.placeholder(tf.int64, [])
        self._setup = tf.group(card.write(self._text), job.write('{}'), graph.write('{}'), ready.write('[]'),
                               *(cell.write(0) for cell in beats + reports), *(cell.write('') for cell in traces))
        self._write_job, self._write_graph = job.write(self._text), graph.write(self._text)
        self._write_ready = ready.write(self._text)
        self._beats = [cell.add(1) for cell in beats]
        self._reports = [cell.write(self._number) for cell in reports]
        self._write_traces, self._read_traces = [cell.write(self._text) for cell in traces], [
            cell.read() for cell in traces]
        self._card, self._graph_text = card.read(), graph.read()
        self._view = (job.read(), ready.read(), tf.stack([cell.read() for cell in beats]),
                      tf.stack([cell.read() for cell in reports]))

    def setup(self, lists: dict) -> None:
        """Called once, by the ps itself."""
        card = {'task': self.name, 'lists': lists, 'clients': self.clients, 'life': uuid.uuid4().hex}
        self._run(self._setup, {self._text: json.dumps(card)})

    def view(self, check_card: Callable[[dict], None] = lambda card: None) -> BoardView:
        """Reads everything but the graph. check_card sees the card first: the board of another cluster
        may have other cells."""
        card = json.loads(self._run(self._card))
        check_card(card)
        job, ready, beats, reports = self._run(self._view)
        return BoardView(card, json.loads(job), json.loads(ready), beats.tolist(), reports.tolist())

    def read_graph(self) -> dict:
        """The variables on the ps: what `write_graph` was given, or {}."""
        return json.loads(self._run(self._graph_text))

    def write_job(self, job: dict) -> None:
        """Says whose state the ps are going to hold."""
        self._run(self._write_job, {self._text: json.dumps(job)})

    def write_graph(self, graph: dict) -> None:
        """Says which variables the ps are going to hold."""
        self._run(self._write_graph, {self._text: json.dumps(graph)})

    def write_ready(self, lives: list[str]) -> None:
        """Says that the variables on the ps of these lives are in order; [] that they are not."""
        self._run(self._write_ready, {self._text: json.dumps(lives)})

    def beat(self, worker: int) -> None:
        """Counts up the worker's beat."""
        self._run(self._beats[worker])

    def report(self, worker: int, report: int) -> None:
        """Says RUNNING, DONE or FAILED of a worker."""
        self._run(self._reports[worker], {self._number: report})

    def write_trace(self, worker: int, packed: bytes) -> None:
        """Leaves a worker's recorded step for the chief."""
        self._run(self._write_traces[worker], {self._text: packed})

    def read_traces(self) -> list[bytes]:
        """What workers have left so far."""
        return [packed for packed in self._run(self._read_traces) if packed]

    def close(self) -> None:
        """Ends the session; safe to call twice."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(tf.errors.OpError):  # The other side is gone: nothing is left to close.
                bounded(session.close, 0.5)

    def _run(self, fetches, feed: dict | None = None):
        try:
            if self._timeout:  # Of a ps that was killed this says so at once; a call would wait for its time limit.
                check_listening(self.address)
            if self._session is None:
                self._session = v1.Session(self._target, graph=self._graph, config=self._config())
            return self._session.run(fetches, feed)
        except (tf.errors.OpError, OSError) as error:
            self.close()
            raise Unreachable(f'{self.name} at {self.address} ({self._reason(error)})') from error

    def _reason(self, error: Exception) -> str:
        if isinstance(error, tf.errors.DeadlineExceededError):
            return f'no answer in {self._timeout:g} s'
        return str(error.strerror or error).lower() if isinstance(error, OSError) else type(error).__name__

    def _config(self) -> v1.ConfigProto:
        # A filter that no task passes: the ps's server then waits for nobody else.
        return v1.ConfigProto(device_filters=['/job:nobody'], device_count={'GPU': 0},
                              operation_timeout_in_ms=int(self._timeout * 1000))


def check_listening(address: str, timeout: float = 2.0) -> None:
    """Raises OSError if nothing accepts connections at host:port."""
    socket.create_connection(split_address(address, 'ps'), timeout).close()


def connect_boards(cluster: Cluster) -> list[Board]:
    """The boards of all ps, in order; connects at the first call of each."""
    return [Board(f'ps {index}', address, len(cluster.workers)) for index, address in enumerate(cluster.ps)]


def connect_all_boards(cluster: Cluster) -> list[Board]:
    """The boards of a cluster with one client, the chief: the ps and the other workers hold one each."""
    tasks = [(f'ps {index}', address) for index, address in enumerate(cluster.ps)]
    tasks += [(f'worker {index}', address) for index, address in enumerate(cluster.workers) if index]
    return [Board(name, address, num_workers=1) for name, address in tasks]


class Silence:
    """How long each worker's beat has stood still, in seconds by this process's clock.

    heard: of each worker, whether its beat has moved while this looked: it is alive, not left over.
    """

    def __init__(self, num_workers: int, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: list[tuple[int | None, float]] = [(None, clock()) for _ in range(num_workers)]
        self.heard = [False] * num_workers

    def update(self, beats: list[int]) -> list[float]:
        """Notes the beats and returns the silence of each worker; one never heard of is silent
        since the beginning."""
        now = self._clock()
        self.heard = [heard or old is not None and beat > old
                      for heard, beat, (old, _) in zip(self.heard, beats, self._seen, strict=True)]
        self._seen = [(beat, now) if beat != old else (old, since)
                      for beat, (old, since) in zip(beats, self._seen, strict=True)]
        return [now - since for _, since in self._seen]


def still_busy(reports: list[int], silence: list[float], beats: list[int], skip: int = -1) -> list[int]:
    """The workers that may still do something: no report, and a beat heard lately."""
    return [worker for worker, (report, silent, beat) in enumerate(zip(reports, silence, beats, strict=True))
            if worker != skip and report in (RUNNING, ENDING) and beat > 0 and silent < SILENT_SECS]
