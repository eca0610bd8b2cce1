"""What a worker knows of the rest of its cluster, and tells it.

A `Peers` object is a task's view of all boards (see board.py): it waits for the ps, checks that all tasks
agree, beats for this worker, and notices who is gone.
"""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from dist.board import (
    BEAT_SECS,
    DONE,
    ENDING,
    FAILED,
    RUNNING,
    Board,
    BoardView,
    Silence,
    Unreachable,
    connect_boards,
    still_busy,
)
from dist.hosts import Cluster
from dist.introduction import other_versions
from dist.server import leave_process
from inception_mg.errors import EXIT_FAILED, EXIT_FLAGS, EXIT_RETRY, EXIT_SIGTERM, UserError

Log = Callable[[str], None]
LOST_ERRORS = (tf.errors.AbortedError, tf.errors.UnavailableError)  # MonitoredSession recovers from these.
STUCK_SECS = 10.0  # So much longer than it should take until a task that sits in a call is ended.


class ClusterLost(UserError):
    """The rest of the cluster was lost: this task should be started again."""

    def __init__(self, message: str):
        super().__init__(message, EXIT_RETRY)


class Refused(UserError):
    """The ps hold another job: this task has no part in it, and is no reason to end it."""


class Stopped(UserError):
    """SIGTERM came while this task was waiting."""

    def __init__(self, message: str):
        super().__init__(message, EXIT_SIGTERM)


def exit_code(error: BaseException) -> int:
    """The exit code that tells a cluster manager what an error means for this task."""
    if isinstance(error, UserError):
        return error.exit_code
    lost = (*LOST_ERRORS, tf.errors.CancelledError, tf.errors.DeadlineExceededError, Unreachable)
    return EXIT_RETRY if isinstance(error, lost) else EXIT_FAILED


class Job(NamedTuple):
    """Whose state the ps hold, in what can be compared before a graph is built.

    settings: name (of a flag) -> value, equal on all workers. id: the chief's train_dir; '' on the others,
    who need not know it.
    """

    settings: dict[str, str]
    id: str = ''


def job_difference(theirs: Job, mine: Job) -> str:
    """Says in a few words where two jobs differ; '' if they are the same."""
    if theirs.id and mine.id and theirs.id != mine.id:
        return f'it is the job of {theirs.id} there and {mine.id} here'
    for name in {**theirs.settings, **mine.settings}:
        there, here = (job.settings.get(name, 'not set') for job in (theirs, mine))
        if there != here:
            return f'{name} is {there} there and {here} here'
    return ''


def describe_graph(variables: Sequence[tf.Variable]) -> dict[str, str]:
    """Type, shape and device of each variable by its name: the same on every worker, ready for JSON."""
    return {variable.op.name: f'{variable.dtype.name}{variable.shape.as_list()} on {variable.device}'
            for variable in variables}


def graph_difference(there: dict[str, str], here: dict[str, str]) -> str:
    """Says in a few words which variable differs; '' if none does."""
    for name in sorted(set(there) ^ set(here)):
        return f'the variable {name} exists only {"there" if name in there else "here"}'
    for name in sorted(there):
        if there[name] != here[name]:
            return f'the variable {name} is {there[name]} there and {here[name]} here'
    return ''


class Peers:
    """What a worker knows of the rest of the cluster, and tells it.

    start_secs: how long to wait for missing tasks at the start. lost_secs: how long training goes on waiting for a task
    that was there and is gone (retry_code: with which a thread may then end the process). stop: whether a signal asked
    this task to end. All waits end with ClusterLost or Stopped, naming who was waited for. boards: those that count.
    """

    def __init__(self, cluster: Cluster, job: Job, start_secs: float = 300.0, lost_secs: float = 300.0,
                 stop: Callable[[], bool] = lambda: False, log: Log = print, status_secs: float = 10.0,
                 boards: Sequence[Board] = (), retry_code: int = EXIT_RETRY):
        self.cluster, self.job, self.start_secs, self.lost_secs = cluster, job, start_secs, lost_secs
        self.stop, self.log, self.status_secs = stop, log, status_secs
        self.lives: list[str] = []    # Of the ps, when the present session was made.
        self.joined = False           # Whether this task was found to belong to the job on the ps.
        self._boards = list(boards) or connect_boards(cluster)
        clients = self._boards[0].clients
        self._lock = threading.Lock()  # Boards are used by the beating thread too.
        self._silence = Silence(clients)
        self._views: list[BoardView] = []
        self._silent = [0.0] * clients
        self._heard = self._told = time.monotonic()  # When all ps answered last, and when that was said.
        self._over = threading.Event()
        self._trouble, self._waiting, self._thread = '', False, None
        self._signals, self._retry_code = Signals(), retry_code

    def look(self) -> list[BoardView]:
        """Reads all boards once; Unreachable names the first that is silent; UserError for a ps of another cluster."""
        with self._lock:
            views = [board.view(functools.partial(self._check_card, board)) for board in self._boards]
            self._silent = self._silence.update(views[0].beats)
            self._views, self._heard, self._trouble = views, time.monotonic(), ''
        return views

    def _check_card(self, board: Board, card: dict) -> None:
        difference = self.cluster.difference(card['lists'])
        if card['task'] != board.name and not difference:
            difference = f'it is {card["task"]} there'
        if difference:
            raise UserError(f'{board.name} at {board.address} was started with another cluster: {difference}; '
                            'give every task the same lists')
        if card['clients'] != board.clients:
            raise UserError(f'{board.name} at {board.address} serves {card["clients"]} clients, not {board.clients}: '
                            'in-graph there is one, otherwise every worker; start every task by the same program')

    def wait(self, what: Callable[[], str], limit: float, since: float | None = None) -> None:
        """Calls `what` twice a second until it returns '' instead of the name of what is missing."""
        self._waiting = True
        try:
            self._wait(what, limit, since or time.monotonic())
        finally:
            self._waiting = False

    def _wait(self, what: Callable[[], str], limit: float, begun: float) -> None:
        told = begun
        while missing := what():
            waited = time.monotonic() - begun
            if self.stop():
                raise Stopped(f'{self.cluster.name} was stopped while waiting for {missing}')
            if waited > limit:
                raise ClusterLost(f'{self.cluster.name} gave up after {waited:.0f} s of waiting for {missing}')
            if time.monotonic() - told >= self.status_secs or told == begun and waited > 1:
                told = time.monotonic()
                self.log(f'{self.cluster.name} is waiting for {missing}, {waited:.0f} s')
            time.sleep(0.4)

    def missing_ps(self) -> str:
        """Names a ps that does not answer, or returns '' after reading all boards."""
        try:
            self.look()
        except Unreachable as error:
            return str(error)
        return ''

    def ready(self) -> bool:
        """Whether the chief had the variables in order on the ps that are running now, as of the last look."""
        return self._views[0].ready == self.current_lives()

    def current_lives(self) -> list[str]:
        """Which run of each ps answered the last look."""
        return [view.card['life'] for view in self._views]

    def restarted(self) -> str:
        """Names the tasks that were started anew since the present session was made; '' if none was."""
        return ', '.join(board.name for board, then, now in
                         zip(self._boards, self.lives, self.current_lives(), strict=False) if then != now)

    def enter(self) -> bool:
        """Waits for the ps, and has this worker refused before it builds a graph if the ps hold another job.

        The chief also says whose state the ps are going to hold, and begins to beat. What a job left that
        never had its variables in order, and of which nobody is alive, is no state. Returns whether the
        variables on the ps are in order. Raises Refused, ClusterLost or Stopped.
        """
        self.wait(self.missing_ps, self.start_secs)
        if not self.ready() and self._job_difference():
            self._over.wait(2.5 * BEAT_SECS)  # Long enough to hear whether the tasks of that job are alive.
            self.wait(self.missing_ps, self.start_secs)
        if self.cluster.is_chief:
            if self.ready() or any(self._silence.heard[1:]):
                self._refuse(self._job_difference())
            self.lives = self.current_lives()
            if not self.ready():
                self.write_job()
            self.join()
        else:
            self.check_job()
        other_versions(self.cluster, self.log)
        return self.ready()

    def check_job(self) -> None:
        """Raises Refused if the ps hold the state of another job, as of the last look.

        While the variables are not in order, that job counts only if its chief is alive: else a chief may
        be about to take the ps over.
        """
        if self.ready() or self.chief_heard():
            self._refuse(self._job_difference())

    def chief_heard(self) -> bool:
        """Whether the chief has given a sign of life since this task first looked."""
        return self._silence.heard[0]

    def chief_silence(self) -> float:
        """Seconds since the chief's last sign of life; 0 after it has said how it ended."""
        return self._silent[0] if self._views[0].reports[0] in (RUNNING, ENDING) else 0.0

    def check_graph(self, graph: dict[str, str]) -> None:
        """Raises Refused if the variables on the ps are not those of `graph` (see describe_graph)."""
        with self._lock:
            held = self._boards[0].read_graph()
        self._refuse(graph_difference(held, graph))

    def _job_difference(self) -> str:
        held = self._views[0].job
        return job_difference(Job(**held), self.job) if held else ''

    def _refuse(self, difference: str) -> None:
        if difference:
            raise Refused(f'ps 0 at {self.cluster.ps[0]} holds the state of another job or graph: {difference}; '
                            'start every worker with the same flags, or start the ps anew')

    def write_job(self) -> None:
        """For the chief: says whose state the ps are going to hold."""
        with self._lock:
            self._boards[0].write_job(self.job._asdict())

    def write_graph(self, graph: dict[str, str]) -> None:
        """For the chief: says which variables the ps are going to hold."""
        with self._lock:
            self._boards[0].write_graph(graph)

    def set_ready(self, ready: bool) -> None:
        """For the chief: says whether the variables on the ps are in order."""
        with self._lock:
            self._boards[0].write_ready(self.current_lives() if ready else [])

    def join(self) -> None:
        """Begins to beat, as a worker of the job on the ps."""
        if self.joined or self.cluster.job != 'worker':
            return
        self.joined = True
        self._report(RUNNING)
        self._thread = threading.Thread(target=self._beat, name='beat', daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.is_set():
            try:
                with self._lock:
                    for board in self._boards:
                        board.beat(self.cluster.index)
                self.look()
            except (Unreachable, UserError) as error:
                self._trouble = str(error)
                self._tell_trouble()
            self._over.wait(BEAT_SECS)

    def _tell_trouble(self) -> None:
        """Says whom this task waits for when its main thread cannot, and ends it when that takes too long.

        When another machine stands still or vanishes without closing its connections, the main thread
        sits in a call into TensorFlow that nothing can interrupt, signals included.
        """
        now = time.monotonic()
        if not self._waiting and now - max(self._heard, self._told) >= self.status_secs:
            self._told = now
            self.log(f'{self.cluster.name} is waiting for {self._trouble}, {now - self._heard:.0f} s')
        if now - self._heard > self.lost_secs + STUCK_SECS:
            self.log(f'{self.cluster.name} gave up after {now - self._heard:.0f} s without {self._trouble}')
            leave_process(self._retry_code)
        if self._signals.age() > STUCK_SECS:
            self.log(f'{self.cluster.name} was stopped while waiting for {self._trouble}')
            leave_process(EXIT_SIGTERM)

    def check(self) -> None:
        """Raises what should end the present session or this task: AbortedError if a ps was restarted since the session
        was made, ClusterLost if a ps or the chief is gone for long, UserError if another worker failed."""
        views = self._views
        failed = [worker for worker, report in enumerate(views[0].reports) if report == FAILED]
        if failed:
            raise UserError(f'{self.cluster.name} ends because worker {failed[0]} failed: see its log')
        if self._trouble and time.monotonic() - self._heard > self.lost_secs:
            raise ClusterLost(f'{self.cluster.name} gave up after {self.lost_secs:g} s without {self._trouble}')
        if self.chief_silence() > self.lost_secs:
            raise ClusterLost(f'{self.cluster.name} gave up: the chief has been silent for {self._silent[0]:.0f} s')
        if self.current_lives() != self.lives:
            raise tf.errors.AbortedError(None, None, f'{self.restarted()} was restarted')

    def share_trace(self, packed: bytes) -> None:
        """Leaves this worker's trace of a step where the chief finds it; a ps that is gone gets none."""
        with self._lock, contextlib.suppress(Unreachable):
            self._boards[0].write_trace(self.cluster.index, packed)

    def shared_traces(self) -> list[bytes]:
        """For the chief: what other workers have shared so far; [] when ps 0 does not answer."""
        with self._lock, contextlib.suppress(Unreachable):
            return self._boards[0].read_traces()
        return []

    def end_job(self) -> None:
        """For the chief: tells the other workers to end after the step in progress, while it goes on to save."""
        self._report(ENDING)

    def job_ends(self) -> bool:
        """Whether the chief has said that the job ends, as of the last look."""
        return bool(self._views) and self._views[0].reports[0] in (ENDING, DONE)

    def busy_others(self) -> list[int]:
        """The other workers that are still at it, as of the last look."""
        return still_busy(self._views[0].reports, self._silent, self._views[0].beats, self.cluster.index)

    def noticing_signals(self) -> contextlib.AbstractContextManager:
        """Within, in the main thread, a signal ends this task also when a ps stands still."""
        return self._signals.noticed()

    def leave(self, report: int) -> None:
        """Stops beating and tells every ps how this worker ended; a ps that is gone is not told."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(15)
        if self.joined:
            self._report(report)
        for board in self._boards:
            board.close()

    def _report(self, report: int) -> None:
        with self._lock:
            for board in self._boards:
                with contextlib.suppress(Unreachable):
                    board.report(self.cluster.index, report)


class Signals:
    """Notices SIGINT, SIGTERM and SIGHUP while the main thread is in a call that does not return to Python."""

    def __init__(self):
        self._pipe, self._since = -1, None

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Within, in the main thread, `age` knows of signals that have a handler."""
        self._pipe, write_end = os.pipe2(os.O_NONBLOCK)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            pipe, self._pipe = self._pipe, -1
            os.close(write_end)
            os.close(pipe)

    def age(self) -> float:
        """Seconds since the first of them was seen here; 0 if none came."""
        with contextlib.suppress(OSError):  # Nothing there, or no longer (or not) listening.
            if {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & set(os.read(self._pipe, 64)):
                self._since = self._since or time.monotonic()
        return time.monotonic() - self._since if self._since else 0.0


@contextlib.contextmanager
def taking_part(peers: Peers) -> Iterator[Peers]:
    """Within, this worker is one of the job; on leaving, every ps is told how it ended.

    Done after a clean end; failed after an error that a restart would meet again; nothing after a
    signal or the loss of the cluster, since this worker is expected back.
    """
    report = RUNNING
    try:
        with peers.noticing_signals():
            yield peers
        report = RUNNING if peers.stop() else DONE
    except Exception as error:
        if not isinstance(error, Refused) and exit_code(error) in (EXIT_FAILED, EXIT_FLAGS):
            report = FAILED
        raise
    finally:
        peers.leave(report)
