"""One task of the laboratory's set-ups, in a machine of its own: real servers, updates and bytes; computing is a wait.

Reads commands at its standard input, one JSON object a line, and answers likewise. Each layer waits for its weights and
for the layer before, then by the clock for its part of the step; its gradient exists only after a wait of its own. So
what overlaps in training overlaps here. A process serves many set-ups, one after the other, each with a server of its
own, for servers cannot be stopped.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from dist.experiments.waiting import threads
from dist.hosts import Cluster
from dist.planner import model
from dist.planner.networks import BYTES, Variable
from dist.server import hide_gpus, keep_freed_memory, leave_process, session_config
from dist.sync import SyncReplicas
from inception_mg.config import OptimizerConfig
from inception_mg.placement import CPU, Tower, between_graph
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
FOR_EVER = 10**9
SLACK = 0.02  # Seconds: what follows a wait sooner than that follows at once, and a late thread costs no time.
LEAST = 0.02  # Of a step's computing: shorter layers wait together with the next one.


class Clock:
    """Emulated computing of one worker: each wait begins when the one before was meant to end. spread: of the seconds
    of a step, as a share of them."""

    def __init__(self, spread: float = 0.0, seed: int = 0):
        self._end, self._woken, self._pace = 0.0, 0.0, 1.0
        self._spread, self._chance = spread, random.Random(seed)

    def begin_step(self) -> None:
        """Draws how long the waits of the next step are."""
        self._pace = max(0.0, 1 + self._spread * self._chance.gauss(0, 1))

    def wait(self, seconds: float) -> None:
        """Waits as long as the computing of a layer takes."""
        now = time.monotonic()
        self._end = (self._end if now - self._woken < SLACK else now) + seconds * self._pace
        time.sleep(max(0.0, self._end - now))
        self._woken = time.monotonic()


def layered_loss(variables: Sequence[Variable], seconds: float, clock: Clock) -> Callable:
    """The loss of a network that waits: forward and backward through its layers, in `seconds`."""
    work = sum(variable.macs for variable in variables)
    shares, gathered = [], 0.0
    for variable in variables:
        gathered += variable.macs / work
        shares.append(gathered if gathered >= LEAST or variable is variables[-1] else 0.0)
        gathered = 0.0 if shares[-1] else gathered

    def loss_for(batch: tf.Tensor, tower: Tower) -> tf.Tensor:
        value = tf.reduce_sum(batch)
        for variable, share in zip(variables, shares, strict=True):
            weights = v1.get_variable(variable.name, [variable.bytes // BYTES], tf.float32, v1.zeros_initializer())
            value = _layer(value, weights, clock, model.FORWARD * share * seconds,
                           (1 - model.FORWARD) * share * seconds)
        return value
    return loss_for


def _layer(value: tf.Tensor, weights: tf.Tensor, clock: Clock, forward: float, backward: float) -> tf.Tensor:
    shape = weights.shape.as_list()

    @tf.custom_gradient
    def run(value, weights):
        with tf.control_dependencies([_waited(clock, forward, [value, weights])]):
            result = tf.identity(value)

        def gradient(upstream):
            # After the layer itself: nothing else here needs what it has computed.
            with tf.control_dependencies([_waited(clock, backward, [upstream, result])]):
                return tf.identity(upstream), tf.fill(shape, upstream * 0.0)

        return result, gradient

    return run(value, weights)


def _waited(clock: Clock, seconds: float, after: Sequence[tf.Tensor]) -> tf.Operation:
    def call():
        clock.wait(seconds)

    with tf.control_dependencies(after):
        return tf.numpy_function(call, [], []) if seconds else tf.no_op()


class Member:
    """This process in one set-up."""

    def __init__(self, order: dict):
        cluster = Cluster(tuple(order['ps']), tuple(order['workers']), order['job'], order['index'])
        self._spec = {'ps': order['ps'], 'worker': order['workers']}
        self._config = threads(session_config(cluster), 16)
        self._server = tf.distribute.Server(self._spec, order['job'], order['index'], config=self._config)
        self._order, self._deadline, self._sync = order, float('inf'), None
        self._clock = Clock(order['spread'], order['index'])
        if order['job'] == 'worker':
            self._build()

    def _build(self) -> None:
        order = self._order
        variables = [Variable(*values) for values in order['variables']]

        def wrap(inner):
            if not order['sync']:
                return inner
            self._sync = SyncReplicas(inner, order['needed'], len(order['workers']), order['index'], FOR_EVER,
                                      stop=lambda: time.monotonic() > self._deadline, log=lambda line: None)
            return self._sync

        with tf.Graph().as_default() as self._graph:
            task = Task(lambda part, parts, size: tf.data.Dataset.from_tensors(tf.ones([size])).repeat(),
                        layered_loss(variables, order['seconds'], self._clock), FOR_EVER, 1, OptimizerConfig())
            self._step = build_train_step(between_graph(len(order['ps']), order['index'], [Tower(CPU, CPU)]), task,
                                          wrap_optimizer=wrap)
            self._first = [v1.global_variables_initializer(), *([self._sync.reset_op] if self._sync else [])]
        self._session = v1.Session(self._server.target, graph=self._graph, config=self._config)

    def start(self) -> None:
        """Initialises, if this is the chief, and begins to read."""
        for operation in [*(self._first if self._order['index'] == 0 else []), self._step.start_input]:
            self._session.run(operation)

    def run(self, start: float, begin: float, deadline: float) -> dict:
        """Steps from `start` until the deadline (time.monotonic); counts those that begin after `begin`.

        steps, seconds: own ones. updates: of all, in the same seconds. durations: of each own step.
        """
        self._deadline, seen = deadline, []
        time.sleep(max(0.0, start - time.monotonic()))
        with self._graph.as_default(), v1.train.MonitoredSession(
                _Given(self._session), [self._sync.hook] if self._sync else []) as session:
            while time.monotonic() < deadline and not session.should_stop():
                began = time.monotonic()
                self._clock.begin_step()
                _, step_v = session.run([self._step.train_op, self._step.global_step])
                if began >= begin and time.monotonic() < deadline:
                    seen.append((began, time.monotonic(), int(step_v)))
        if not seen:
            return {'steps': 0, 'seconds': 0.0, 'updates': 0, 'durations': []}
        return {'steps': len(seen), 'seconds': seen[-1][1] - seen[0][0], 'updates': seen[-1][2] - seen[0][2],
                'durations': [end - began for began, end, _ in seen]}


class _Given(v1.train.SessionCreator):
    def __init__(self, session: v1.Session):
        self._session = session

    def create_session(self) -> v1.Session:
        """For MonitoredSession, which closes it at the end."""
        return self._session


def serve() -> None:
    """Answers commands until the input ends."""
    keep_freed_memory({})
    members: list[Member] = []
    print(json.dumps({'ready': True}), flush=True)
    for line in iter(sys.stdin.readline, ''):
        order = json.loads(line)
        answer: dict = {}
        if order['do'] == 'build':
            members.append(Member(order))
        elif order['do'] == 'start':
            members[-1].start()
        else:
            answer = members[-1].run(order['start'], order['begin'], order['deadline'])
        print(json.dumps({'done': order['do'], **answer}), flush=True)


if __name__ == '__main__':
    import os
    hide_gpus(os.environ)
    try:
        serve()
    except Exception as error:
        print(json.dumps({'error': f'{type(error).__name__}: {error}'[:400]}), flush=True)
    leave_process(0)
