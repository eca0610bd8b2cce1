"""What a worker knows of the rest of its cluster, and tells it.

A `Peers` object is a task's view of all boards (see ps.py): it waits for the ps, checks that all tasks
agree, beats for this worker, and notices who is gone.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from dist import ps
from dist.cluster import EXIT_FAILED, EXIT_FLAGS, EXIT_RETRY, EXIT_SIGTERM, Cluster
from inception_mg.errors import UserError

Log = Callable[[str], None]
LOST_ERRORS = (tf.errors.AbortedError, tf.errors.UnavailableError)  # MonitoredSession recovers from these.


class ClusterLost(UserError):
    """The rest of the cluster was lost: this task should be started again."""

    def __init__(self, message: str):
        super().__init__(message, EXIT_RETRY)


class Stopped(UserError):
    """SIGTERM came while this task was waiting."""

    def __init__(self, message: str):
        super().__init__(message, EXIT_SIGTERM)


def exit_code(error: BaseException) -> int:
    """The exit code that tells a cluster manager what an error means for this task."""
    if isinstance(error, UserError):
        return error.exit_code
    lost = (*LOST_ERRORS, tf.errors.CancelledError, tf.errors.DeadlineExceededError, ps.Unreachable)
    return EXIT_RETRY if isinstance(error, lost) else EXIT_FAILED


def describe_job(job_id: str, variables: Sequence[tf.Variable]) -> dict:
    """What must be equal on every worker, ready for JSON: the job's id (say its train_dir) and each
    variable's type, shape and device."""
    return {'id': job_id, 'variables': {
        variable.op.name: f'{variable.dtype.name}{variable.shape.as_list()} on {variable.device}'
        for variable in variables}}


def job_difference(theirs: dict, mine: dict) -> str:
    """Says in a few words where two jobs differ; '' if they are the same."""
    if theirs['id'] != mine['id']:
        return f'it is the job {theirs["id"]} there and {mine["id"]} here'
    there, here = theirs['variables'], mine['variables']
    for name in sorted(set(there) ^ set(here)):
        return f'the variable {name} exists only {"there" if name in there else "here"}'
    for name in sorted(there):
        if there[name] != here[name]:
            return f'the variable {name} is {there[name]} there and {here[name]} here'
    return ''


class Peers:
    """What a worker knows of the rest of the cluster, and tells it.

    start_secs: how long to wait for missing tasks at the start. lost_secs: how long training goes on
    waiting for a task that was there and is gone. stop: whether a signal asked this task to end. All
    waits end with ClusterLost or Stopped, naming who was waited for.
    """

    def __init__(self, cluster: Cluster, start_secs: float = 300.0, lost_secs: float = 300.0,
                 stop: Callable[[], bool] = lambda: False, log: Log = print, status_secs: float = 10.0):
        self.cluster, self.start_secs, self.lost_secs = cluster, start_secs, lost_secs
        self.stop, self.log, self.status_secs = stop, log, status_secs
        self.lives: list[str] = []    # Of the ps, when the present session was made.
        self.joined = False           # Whether this task was found to belong to the job on the ps.
        self._boards = ps.connect_boards(cluster)
        self._lock = threading.Lock()  # Boards are used by the beating thread too.
        self._silence = ps.Silence(len(cluster.workers))
        self._views: list[ps.BoardView] = []
        self._silent = [0.0] * len(cluster.workers)
        self._heard = time.monotonic()  # When all ps answered last.
        self._over = threading.Event()
        self._thread = None
        self._trouble = ''

    def look(self) -> list[ps.BoardView]:
        """Reads all boards once; raises ps.Unreachable naming the first that does not answer, and
        UserError if a ps belongs to another cluster."""
        with self._lock:
            views = [board.view(functools.partial(self._check_card, index))
                     for index, board in enumerate(self._boards)]
            self._silent = self._silence.update(views[0].beats)
            self._views, self._heard, self._trouble = views, time.monotonic(), ''
        return views

    def _check_card(self, index: int, card: dict) -> None:
        difference = self.cluster.difference(card['lists'])
        if card['ps'] != index and not difference:
            difference = f'it is ps {card["ps"]} there'
        if difference:
            raise UserError(f'ps {index} at {self.cluster.ps[index]} was started with another cluster: {difference}; '
                            'give every task the same lists')

    def wait(self, what: Callable[[], str], limit: float, since: float | None = None) -> None:
        """Calls `what` twice a second until it returns '' instead of the name of what is missing."""
        begun = since or time.monotonic()
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
        except ps.Unreachable as error:
            return str(error)
        return ''

    def ready(self) -> bool:
        """Whether the chief had the variables in order on the ps that are running now, as of the last look."""
        return self._views[0].ready == self.current_lives()

    def current_lives(self) -> list[str]:
        """Which run of each ps answered the last look."""
        return [view.card['life'] for view in self._views]

    def check_job(self, job: dict) -> dict:
        """Raises UserError if ps 0 holds the state of another job or graph; returns what it holds."""
        with self._lock:
            held = self._boards[0].read_job()
        if held and (difference := job_difference(held, job)):
            raise UserError(f'ps 0 at {self.cluster.ps[0]} holds the state of another job or graph: {difference}; '
                            'start every worker with the same flags, or start the ps anew')
        return held

    def write_job(self, job: dict) -> None:
        """For the chief: says whose state the ps are going to hold."""
        with self._lock:
            self._boards[0].write_job(job)

    def set_ready(self, ready: bool) -> None:
        """For the chief: says whether the variables on the ps are in order."""
        with self._lock:
            self._boards[0].write_ready(self.current_lives() if ready else [])

    def join(self) -> None:
        """Begins to beat, as a worker of the job on the ps."""
        if self.joined or self.cluster.job != 'worker':
            return
        self.joined = True
        self._report(ps.RUNNING)
        self._thread = threading.Thread(target=self._beat, name='beat', daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.is_set():
            try:
                with self._lock:
                    for board in self._boards:
                        board.beat(self.cluster.index)
                self.look()
            except (ps.Unreachable, UserError) as error:
                self._trouble = str(error)
            if time.monotonic() - self._heard > self.lost_secs + 30:
                # The main thread should have given up by now: it sits in a call into TensorFlow, which
                # nothing can interrupt when the other machine vanished without closing its connections.
                self.log(f'{self.cluster.name} gives up: {self._trouble}')
                os._exit(EXIT_RETRY)
            self._over.wait(ps.BEAT_SECS)

    def check(self) -> None:
        """Raises what should end the present session or this task: AbortedError if a ps was restarted
        since the session was made, ClusterLost if a ps or the chief is gone for long, UserError if
        another worker failed."""
        views = self._views
        failed = [worker for worker, report in enumerate(views[0].reports) if report == ps.FAILED]
        if failed:
            raise UserError(f'{self.cluster.name} ends because worker {failed[0]} failed: see its log')
        if self._trouble and time.monotonic() - self._heard > self.lost_secs:
            raise ClusterLost(f'{self.cluster.name} gave up after {self.lost_secs:g} s without {self._trouble}')
        if self._silent[0] > self.lost_secs and views[0].reports[0] == ps.RUNNING:
            raise ClusterLost(f'{self.cluster.name} gave up: the chief has been silent for {self._silent[0]:.0f} s')
        if self.current_lives() != self.lives:
            raise tf.errors.AbortedError(None, None, 'a ps was restarted')

    def busy_others(self) -> list[int]:
        """The other workers that are still at it, as of the last look."""
        return ps.still_busy(self._views[0].reports, self._silent, self._views[0].beats, self.cluster.index)

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
                with contextlib.suppress(ps.Unreachable):
                    board.report(self.cluster.index, report)


@contextlib.contextmanager
def taking_part(peers: Peers) -> Iterator[Peers]:
    """Within, this worker is one of the job; on leaving, every ps is told how it ended.

    Done after a clean end; failed after an error that a restart would meet again; nothing after a
    signal or the loss of the cluster, since this worker is expected back.
    """
    report = ps.RUNNING
    try:
        yield peers
        report = ps.RUNNING if peers.stop() else ps.DONE
    except BaseException as error:
        if isinstance(error, Exception) and exit_code(error) in (EXIT_FAILED, EXIT_FLAGS):
            report = ps.FAILED
        raise
    finally:
        peers.leave(report)
