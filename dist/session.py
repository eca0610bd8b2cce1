"""Who initialises and who waits: the sessions of chief and workers.

The two session creators are for tf.compat.v1.train.MonitoredSession, which makes a new session through
them whenever one was lost. What they know of the other tasks comes from `Peers`.
"""

import time
from collections.abc import Callable

import tensorflow as tf

from dist.board import Unreachable
from dist.peers import LOST_ERRORS, ClusterLost, Peers, Stopped
from inception_mg.bounded import bounded
from inception_mg.errors import UserError

v1 = tf.compat.v1


class ClusterSession(v1.Session):
    """A session whose close() cannot hang, and whose errors say when it was the cluster's fault.

    TensorFlow's own close waits for ps that are gone, and a run that a dying ps has broken may fail
    with whatever error came first.
    """

    def __init__(self, target: str, config: v1.ConfigProto, peers: Peers):
        super().__init__(target, config=config)
        self._peers = peers

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        try:
            with self._peers.in_call():
                return super().run(fetches, feed_dict, options, run_metadata)
        except (tf.errors.CancelledError, tf.errors.FailedPreconditionError, tf.errors.InternalError,
                tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnknownError) as error:
            if not self._peers.missing_ps():
                self._peers.check()  # The ps may have been restarted, or this worker been replaced.
                raise
            raise tf.errors.AbortedError(None, None, 'a ps was lost') from error

    def close(self):
        bounded(super().close, 1.0)  # Recovery waits for this: longer only helps a ps that is gone.


class ClusterSessionCreator(v1.train.SessionCreator):
    """What chief and workers share: wait for the ps, make a session, bring the variables in order."""

    def __init__(self, peers: Peers, target: str, config: v1.ConfigProto, graph: dict[str, str],
                 local_init_op: tf.Operation | None = None):
        self._peers, self._target, self._config, self._graph = peers, target, config, graph
        self._warm_up = tf.no_op('warm_up')
        self._local_init_op = local_init_op if local_init_op is not None else v1.local_variables_initializer()
        self._made, self._restarted = False, ''

    def create_session(self) -> v1.Session:
        """Returns a session in which training can go on; bounded by start_secs the first time and by
        lost_secs later. Raises ClusterLost, Stopped or UserError."""
        peers = self._peers
        limit = peers.lost_secs if self._made else peers.start_secs
        begun = time.monotonic()
        while True:
            peers.wait(limit, begun)
            self._restarted, peers.lives = peers.restarted(), peers.current_lives()
            session = ClusterSession(self._target, self._config, peers)
            try:
                # The first run opens the session on every ps, and would wait for ever if one goes now.
                if bounded(lambda session=session: session.run(self._warm_up), 20.0):
                    self._prepare(session)
                    session.run(self._local_init_op)
                    self._made = True
                    peers.begun()
                    return session
            except (*LOST_ERRORS, Unreachable) as error:
                if time.monotonic() - begun > limit:
                    raise ClusterLost(f'{peers.cluster.name} gave up after {limit:g} s: {error}') from error
            session.close()
            time.sleep(0.2)

    def _prepare(self, session: v1.Session) -> None:
        """Brings the variables in order, or finds out whether they are."""


class ChiefSessionCreator(ClusterSessionCreator):
    """Goes on from the variables on the ps if they are all alive; else restores or initialises all.

    For after `peers.enter()`. graph: of describe_graph. initialise(session) brings every variable in order,
    from the newest checkpoint or anew, and returns a line for the log.
    """

    def __init__(self, peers: Peers, target: str, config: v1.ConfigProto, graph: dict[str, str],
                 initialise: Callable[[v1.Session], str], local_init_op: tf.Operation | None = None):
        super().__init__(peers, target, config, graph, local_init_op)
        self._initialise = initialise

    def _prepare(self, session):
        peers = self._peers
        peers.join()
        if peers.ready():
            peers.check_graph(self._graph)
            if not self._made:
                peers.log('the variables on the ps are alive: going on from them')
            return
        peers.write('ready', [])
        peers.write('job', peers.job._asdict())
        peers.write('graph', self._graph)
        peers.log(self._initialise(session))
        peers.write('ready', peers.lives)  # Not those of the last look: a ps that was restarted meanwhile has nothing.


class WorkerSessionCreator(ClusterSessionCreator):
    """Joins within a second of the chief's having the variables in order.

    A worker that begins has also waited for a sign of life of the chief: variables that are in order may be
    those that another job has left.
    """

    def _prepare(self, session):
        self._peers.check_graph(self._graph)
        self._peers.join()


def build_initialise(saver: v1.train.Saver, newest: Callable[[], str], init_op: tf.Operation,
                     reset_op: tf.Operation | None = None,
                     init_fn: Callable[[v1.Session], None] | None = None) -> Callable[[v1.Session], str]:
    """Returns ChiefSessionCreator's `initialise`.

    newest(): path of the newest checkpoint, or ''. init_op: initialises all variables. reset_op: of
    SyncReplicas, if training is synchronous. init_fn: what a training without a checkpoint does after
    init_op, such as taking pretrained weights.
    """
    def initialise(session: v1.Session) -> str:
        session.run(init_op)
        if reset_op is not None:
            session.run(reset_op)
        path = newest()
        if path:
            saver.restore(session, path)
            return f'restored {path}'
        if init_fn is not None:
            init_fn(session)
        return 'initialised all variables'

    return initialise


class PeersHook(v1.train.SessionRunHook):
    """Ends the session or the task when the cluster asks for it, and training at its last step.

    At the end, which may come before the last step, the chief tells the other workers and waits for them, so
    that the checkpoint of a hook after this one holds their last updates; for `finish_secs` at most, and not for the
    dead. A chief that was stopped by a signal is expected back, and the others go on.
    """

    def __init__(self, peers: Peers, global_step: tf.Variable, last_step: int, finish_secs: float = 600.0):
        self._peers, self._global_step, self._last_step = peers, global_step, last_step
        self._finish_secs = finish_secs
        self._seen = 0  # The global step beside this task's last step.

    def after_create_session(self, session, coord):
        step_v = int(session.run(self._global_step))
        if step_v >= self._last_step:
            coord.request_stop()  # Another worker, or an earlier life, has reached the end.
        if step_v < self._seen and self._peers.cluster.is_chief:
            self._peers.log(f'at least {self._seen - step_v} steps are lost: training goes on at step {step_v}'
                            + ('' if step_v else ', there was no checkpoint yet'))

    def before_run(self, run_context):
        self._peers.check()
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context, run_values):
        self._seen = int(run_values.results)

    def end(self, session):
        peers = self._peers
        if not peers.cluster.is_chief:
            return
        if not peers.stop():
            peers.end_job()

        def unfinished() -> str:
            peers.check()
            return ', '.join(f'the last step of worker {worker}' for worker in peers.busy_others())

        # Without them the checkpoint is still worth having.
        try:
            peers.wait(self._finish_secs, also=unfinished)
        except (ClusterLost, Stopped):
            pass
        except UserError as error:
            peers.log(f'while the last steps were waited for: {error}')


class EndWithChiefHook(v1.train.SessionRunHook):
    """Ends this worker's training when the chief says that the job ends; for after the hook of SyncReplicas."""

    def __init__(self, peers: Peers):
        self._peers = peers

    def after_run(self, run_context, run_values):
        if self._peers.job_ends():
            run_context.request_stop()
