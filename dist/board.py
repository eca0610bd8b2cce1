"""The boards of the serving tasks: the few things that the tasks of a cluster tell one another.

A board is a handful of small variables outside of any checkpoint. Tasks reach it by a session on that task's own
server, so each call has a time limit whatever state the other tasks are in, and works before, between and after
training sessions.

Every serving task (a ps; in-graph, also a worker other than the client) has one, with its card, what the workers say of
their own end, and the fence. The first of them, the hub, is where the cluster is kept together: there every worker
beats and every serving task says that it lives, one small message each per second, and what they read back tells them
of all others. So the traffic grows with the number of tasks, not with workers times ps.
"""

import contextlib
import json
import socket
import threading
import uuid
from typing import NamedTuple

import tensorflow as tf

from dist.hosts import Cluster, split_address
from inception_mg.bounded import bounded
from inception_mg.errors import UserError
from inception_mg.placement import CPU

v1 = tf.compat.v1

FENCE = 'board/fence'  # int64 [workers] on every serving task: the life whose updates are taken, by worker.
NOT_YOURS = 'another process has this index'


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

    def read(self) -> tf.Tensor:
        """The value when this operation runs."""
        with tf.device(None), v1.device(self._device):
            value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
            value.set_shape(self._shape)
            return value

    def write_at(self, index, value) -> tf.Operation:
        """The operation that sets one element of a vector, which must have been written before."""
        with tf.device(None), v1.device(self._device):
            return tf.raw_ops.ResourceScatterUpdate(resource=self._handle, indices=index,
                                                    updates=tf.cast(value, self._dtype))

    def add_at(self, index, value) -> tf.Operation:
        """The operation that adds to one element of a vector, which must have been written before."""
        with tf.device(None), v1.device(self._device):
            return tf.raw_ops.ResourceScatterAdd(resource=self._handle, indices=index,
                                                 updates=tf.cast(value, self._dtype))

    def read_at(self, index) -> tf.Tensor:
        """One element of a vector when this operation runs."""
        with tf.device(None), v1.device(self._device):
            return tf.raw_ops.ResourceGather(resource=self._handle, indices=index, dtype=self._dtype)


class BoardView(NamedTuple):
    """What the hub says.

    job: whose state the ps hold, as the chief wrote it; {} before. ready: the lives of all ps when the chief had their
    variables in order; [] if they are not. lives: of each serving task, a name of the run of its process that announced
    itself last; '' before. claims: of each worker, the fence.Claim of the process that has its index; [] before.
    beats, reports: one int per worker.
    """

    job: dict
    ready: list[str]
    lives: list[str]
    claims: list[list]
    beats: list[int]
    reports: list[int]


class Unreachable(Exception):
    """A serving task does not answer; the message says which and why."""


class NotYours(Exception):
    """Another process has the index of the worker that wanted to write."""


class Board:
    """The board of the serving task `name` at `address`; every call ends within a few seconds. For several threads.

    clients: how many workers beat and report. tasks: how many serving tasks there are. target: of the task's own
    server, for itself. timeout: seconds for each call; 0 = no limit, for the task itself. Raises Unreachable, naming
    the task, when it does not answer.
    """

    def __init__(self, name: str, address: str, clients: int, tasks: int, target: str = '', timeout: float = 5.0):
        self.name, self.address, self.clients = name, address, clients
        self._target = target or f'grpc://{address}'
        self._timeout, self._session, self._lock = timeout, None, threading.Lock()
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device(CPU):
            self._build(tasks)

    def _build(self, tasks: int) -> None:
        workers = self.clients
        texts = {name: Cell(f'board/{name}', tf.string, device=CPU) for name in ('card', 'job', 'graph', 'ready')}
        lives = Cell('board/lives', tf.string, [tasks], CPU)
        claims, traces = (Cell(f'board/{name}', tf.string, [workers], CPU) for name in ('claims', 'traces'))
        beats, reports, fence = (Cell(name, tf.int64, [workers], CPU)
                                 for name in ('board/beats', 'board/reports', FENCE))
        self._index, self._text = v1.placeholder(tf.int32, []), v1.placeholder(tf.string, [])
        self._number, self._claim = v1.placeholder(tf.int64, []), v1.placeholder(tf.string, [])
        index, text, number = self._index, self._text, self._number
        self._setup = tf.group(
            texts['card'].write(text), texts['job'].write('{}'), texts['graph'].write('{}'), texts['ready'].write('[]'),
            lives.write(tf.fill([tasks], '')), *(cell.write(tf.fill([workers], '')) for cell in (claims, traces)),
            *(cell.write(tf.zeros([workers], tf.int64)) for cell in (beats, reports, fence)))
        self._card, self._graph_text = texts['card'].read(), texts['graph'].read()

        def view_after(*operations: tf.Operation) -> list[tf.Tensor]:
            with tf.control_dependencies(operations):
                return [cell.read() for cell in (texts['job'], texts['ready'], lives, claims, beats, reports)]

        mine = tf.equal(claims.read_at(index), self._claim)
        self._view = view_after()
        self._beat = view_after(beats.add_at(index, tf.cast(mine, tf.int64) * number))
        self._enlist = view_after(lives.write_at(index, text))
        with tf.control_dependencies([tf.debugging.Assert(mine, [NOT_YOURS])]):
            self._writes = {name: texts[name].write(text) for name in ('job', 'graph', 'ready')}
            self._report = reports.write_at(index, number)
        self._take, self._put_fence = claims.write_at(index, self._claim), fence.write_at(index, number)
        self._put_trace, self._traces = traces.write_at(index, text), traces.read()
        self._end, self._reports = reports.write_at(index, number), reports.read()

    def setup(self, lists: dict) -> str:
        """Called once, by the task itself; returns the name of this run of its process."""
        life = uuid.uuid4().hex
        card = {'task': self.name, 'lists': lists, 'clients': self.clients, 'life': life}
        self._run(self._setup, {self._text: json.dumps(card)})
        return life

    def card(self) -> dict:
        """{'task': name, 'lists': host lists, 'clients': how many workers beat here, 'life': a name of this run}."""
        return json.loads(self._run(self._card))

    def view(self) -> BoardView:
        """What the hub says. Of a hub of the same cluster: see check_card."""
        return _view(self._run(self._view))

    def beat(self, worker: int, claim: str, count: int = 1) -> BoardView:
        """Adds to the worker's beat, if the process of `claim` has its index; returns what the hub says then."""
        return _view(self._run(self._beat, {self._index: worker, self._claim: claim, self._number: count}))

    def enlist(self, task: int, life: str) -> BoardView:
        """Says that a serving task lives; returns what the hub says then."""
        return _view(self._run(self._enlist, {self._index: task, self._text: life}))

    def read_graph(self) -> dict:
        """The variables on the ps: what the chief wrote, or {}."""
        return json.loads(self._run(self._graph_text))

    def write(self, name: str, value, claim: str) -> None:
        """For the chief: sets 'job' (whose state the ps are going to hold), 'graph' (which variables) or 'ready' (the
        lives of the ps whose variables are in order). NotYours if the process of `claim` is not the chief."""
        self._run(self._writes[name], {self._text: json.dumps(value), self._index: 0, self._claim: claim})

    def take(self, worker: int, claim: str) -> None:
        """Gives the index of a worker to the process of `claim`."""
        self._run(self._take, {self._index: worker, self._claim: claim})

    def put_fence(self, worker: int, life: int) -> None:
        """From here on the updates of this life of a worker are taken by this task, and of no other."""
        self._run(self._put_fence, {self._index: worker, self._number: life})

    def report(self, worker: int, report: int, claim: str) -> None:
        """On the hub: says RUNNING, ENDING, DONE or FAILED of a worker. NotYours if another process has its index."""
        self._run(self._report, {self._index: worker, self._number: report, self._claim: claim})

    def report_end(self, worker: int, report: int) -> None:
        """On any other: the same, by a worker whose end the hub has taken down."""
        self._run(self._end, {self._index: worker, self._number: report})

    def reports(self) -> list[int]:
        """What the workers have said here of their ends."""
        return self._run(self._reports).tolist()

    def write_trace(self, worker: int, packed: bytes) -> None:
        """Leaves a worker's recorded step for the chief."""
        self._run(self._put_trace, {self._index: worker, self._text: packed})

    def read_traces(self) -> list[bytes]:
        """What workers have left so far."""
        return [packed for packed in self._run(self._traces) if packed]

    def close(self) -> None:
        """Ends the session; safe to call twice."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(tf.errors.OpError):  # The other side is gone: nothing is left to close.
                bounded(session.close, 0.5)

    def _run(self, fetches, feed: dict | None = None):
        try:
            with self._lock:
                return self._run_alone(fetches, feed)
        except tf.errors.InvalidArgumentError as error:
            if NOT_YOURS in error.message:
                raise NotYours from None
            raise Unreachable(f'{self.name} at {self.address} (it runs another version)') from error

    def _run_alone(self, fetches, feed):
        try:
            if self._timeout:  # Of a task that was killed this says so at once; a call would wait for its time limit.
                check_listening(self.address, connected=self._session is not None)
            if self._session is None:
                self._session = v1.Session(self._target, graph=self._graph, config=session_config(self._timeout))
            return self._session.run(fetches, feed)
        except tf.errors.InvalidArgumentError:
            raise
        except (tf.errors.OpError, OSError) as error:
            self._close()
            raise Unreachable(f'{self.name} at {self.address} ({self._reason(error)})') from error

    def _reason(self, error: Exception) -> str:
        if isinstance(error, tf.errors.DeadlineExceededError):
            return f'no answer in {self._timeout:g} s'
        return str(error.strerror or error).lower() if isinstance(error, OSError) else type(error).__name__


def _view(values) -> BoardView:
    job, ready, lives, claims, beats, reports = values
    return BoardView(json.loads(job), json.loads(ready), [life.decode() for life in lives],
                     [json.loads(claim) if claim else [] for claim in claims], beats.tolist(), reports.tolist())


def session_config(timeout: float, *tasks: str) -> v1.ConfigProto:
    """Of a session that waits for no task but those named: a filter that none passes by default; timeout: seconds."""
    return v1.ConfigProto(device_filters=list(tasks) or ['/job:nobody'], device_count={'GPU': 0},
                          operation_timeout_in_ms=int(timeout * 1000))


def check_listening(address: str, timeout: float = 2.0, connected: bool = False) -> None:
    """Raises OSError if nothing accepts connections at host:port. connected: there is a connection already, so a name
    that cannot be looked up just now says nothing."""
    try:
        socket.create_connection(split_address(address, 'ps'), timeout).close()
    except socket.gaierror:
        if not connected:
            raise


def check_card(cluster: Cluster, board: Board, card: dict) -> None:
    """Raises UserError for the card of a task that belongs to another cluster, or to another way of running."""
    difference = cluster.difference(card['lists'])
    if card['task'] != board.name and not difference:
        difference = f'it is {card["task"]} there'
    if difference:
        raise UserError(f'{board.name} at {board.address} was started with another cluster: {difference}; '
                        'give every task the same lists')
    if card['clients'] != board.clients:
        raise UserError(f'{board.name} at {board.address} serves {card["clients"]} clients, not {board.clients}: '
                        'in-graph there is one, otherwise every worker; start every task by the same program')


def serving_tasks(cluster: Cluster, one_client: bool = False) -> list[tuple[str, str]]:
    """Name and address of each task with a board, the hub first. one_client: in-graph all but the client have one."""
    tasks = [(f'ps {index}', address) for index, address in enumerate(cluster.ps)]
    others = [(f'worker {index}', address) for index, address in enumerate(cluster.workers) if index]
    return tasks + others if one_client else tasks


def connect_boards(cluster: Cluster, one_client: bool = False) -> list[Board]:
    """The boards of all serving tasks, the hub first; connects at the first call of each."""
    tasks, clients = serving_tasks(cluster, one_client), 1 if one_client else len(cluster.workers)
    return [Board(name, address, clients, len(tasks)) for name, address in tasks]
