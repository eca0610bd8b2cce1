"""What a worker knows of the rest of its cluster, and tells it.

A `Peers` object brings together the boards (board.py), the thread that beats (heartbeat.py) and the rules (verdict.py):
it keeps what was seen last, asks what to do, and does it.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from dist import verdict
from dist.board import Board, BoardView, NotYours, Unreachable, check_card, connect_boards
from dist.fence import Claim, own_claim
from dist.heartbeat import Calls, Heartbeat, Signals
from dist.hosts import Cluster
from dist.introduction import other_versions
from dist.job import Job, graph_difference, job_difference
from dist.reach import WrongMachine, unreached
from dist.server import leave_process
from dist.verdict import BETWEEN, DONE, ENDING, ENTERING, FAILED, IN_CALL, RUNNING, WAITING, Seen, Silence, Verdict
from inception_mg.errors import EXIT_FAILED, EXIT_FLAGS, EXIT_RETRY, EXIT_SIGTERM, UserError, told

Log = Callable[[str], None]
LOST_ERRORS = (tf.errors.AbortedError, tf.errors.UnavailableError)  # MonitoredSession recovers from these.
CALL_SECS = 5.0    # A call that takes longer may be one into the void: then every serving task is asked.
REACH_SECS = 60.0  # A name that has moved is looked up again by then.


class ClusterLost(UserError):
    """The rest of the cluster was lost: this task should be started again."""

    def __init__(self, message: str):
        super().__init__(message, EXIT_RETRY)


class Refused(UserError):
    """This task has no part in the job on the ps, or another process has its index; no reason to end the others."""


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


class Peers:
    """What a worker knows of the rest of the cluster, and tells it.

    start_secs: how long to wait for missing tasks at the start. lost_secs: how long training goes on waiting for a task
    that was there and is gone. stop: whether a signal asked this task to end. All waits end with ClusterLost, Stopped
    or Refused, naming who was waited for. boards: see connect_boards; by default of all ps. retry_code: with which the
    thread that beats ends the process where a restart helps.
    """

    def __init__(self, cluster: Cluster, job: Job, start_secs: float = 300.0, lost_secs: float = 300.0,
                 stop: Callable[[], bool] = lambda: False, log: Log = print, status_secs: float = 10.0,
                 boards: Sequence[Board] = (), retry_code: int = EXIT_RETRY):
        self.cluster, self.job, self.start_secs, self.lost_secs = cluster, job, start_secs, lost_secs
        self.stop, self.log, self.status_secs = stop, log, status_secs
        self.claim, self._retry_code = own_claim(), retry_code
        self.lives: list[str] = []    # Of the serving tasks, when the present session was made.
        self.joined = False           # Whether this process has the index of its worker.
        self._boards = list(boards) or connect_boards(cluster)
        self._hub, self._claim_text = self._boards[0], json.dumps(self.claim)
        self._silence = Silence(self._hub.clients)
        self._view, self._silent = BoardView({}, [], [], [], [], []), [0.0] * self._hub.clients
        self._missing, self._missing_since, self._told = '', 0.0, time.monotonic()
        self._waiting, self._made, self._target = False, False, ''
        self._calls, self._signals, self._heartbeat = Calls(), Signals(), Heartbeat(self._beat)

    # What is seen.

    def missing_ps(self) -> str:
        """Asks every serving task; names the first that does not answer, or returns ''. UserError for one of another
        cluster."""
        try:
            check_card(self.cluster, self._hub, card := self._hub.card())
            self._look()
            lives = [card['life']]
            for board in self._boards[1:]:
                check_card(self.cluster, board, card := board.card())
                lives.append(card['life'])
            for board, life, known in zip(self._boards, lives, self._view.lives, strict=True):
                if life != known:
                    raise Unreachable(f'{board.name} at {board.address} (it has not joined {self._hub.name} yet)')
        except Unreachable as error:
            self._miss(str(error))
            return str(error)
        self._missing = ''
        return ''

    def _look(self) -> None:
        """Reads the hub, and beats there if this worker has joined and is in touch with all."""
        if self.joined:
            self._view = self._hub.beat(self.cluster.index, self._claim_text, 0 if self._missing else 1)
        else:
            self._view = self._hub.view()
        self._silent = self._silence.update(self._view.beats)

    def _miss(self, what: str) -> None:
        if not self._missing:
            self._missing_since = time.monotonic()
        self._missing = what

    def _seen(self, where: str, secs: float = 0.0, limit: float = 0.0) -> Seen:
        """What verdict.decide wants to know, as of the last look."""
        me, view = self.cluster.index, self._view
        reports = view.reports or [RUNNING]
        failed = [worker for worker, report in enumerate(reports) if report == FAILED and worker != me]
        return Seen(
            self.cluster.name, self.cluster.is_chief, where, secs, limit, self.lost_secs,
            asked=self._signals.age() if where == IN_CALL else float(self.stop()), taken=self._taken(),
            missing=self._missing, missing_secs=time.monotonic() - self._missing_since if self._missing else 0.0,
            failed=failed[0] if failed else -1, report=reports[0], silent=self._silent[0],
            heard=self._silence.heard[0], restarted=self.restarted(), ready=self.ready(), differs=self._difference(),
            others=any(self._silence.heard[1:]), joined=self._made)

    def _taken(self) -> str:
        claim = self._view.claims[self.cluster.index] if self._view.claims and self.joined else None
        return f'{Claim(*claim)}' if claim and claim != list(self.claim) else ''

    def _difference(self) -> str:
        held = self._view.job
        difference = job_difference(Job(**held), self.job) if held else ''
        return self._in_other_words(difference) if difference else ''

    def _in_other_words(self, difference: str) -> str:
        return (f'{self._hub.name} at {self._hub.address} holds the state of another job or graph: {difference}; '
                'start every worker with the same flags, or start the ps anew')

    def ready(self) -> bool:
        """Whether the chief had the variables in order on the ps that are running now, as of the last look."""
        return bool(self._view.lives) and self._view.ready == self._view.lives

    def current_lives(self) -> list[str]:
        """Which run of each serving task announced itself last, as of the last look."""
        return self._view.lives

    def restarted(self) -> str:
        """Names the tasks that were started anew since the present session was made; '' if none was."""
        return ', '.join(board.name for board, then, now in
                         zip(self._boards, self.lives, self._view.lives, strict=False) if then != now)

    def chief_silence(self) -> float:
        """Seconds since the chief's last sign of life; 0 after it has said how it ended."""
        return self._silent[0] if self._view.reports[0] in (RUNNING, ENDING) else 0.0

    def job_ends(self) -> bool:
        """Whether the chief has said that the job ends, as of the last look."""
        return bool(self._view.reports) and self._view.reports[0] in (ENDING, DONE)

    def busy_others(self) -> list[int]:
        """The other workers that are still at it, as of the last look."""
        return verdict.still_busy(self._view.reports, self._silent, self._view.beats, self.cluster.index)

    # What is done.

    def check(self) -> None:
        """Between two steps: raises what should end the present session (AbortedError) or this task (UserError)."""
        self._obey(verdict.decide(self._seen(BETWEEN)))

    def _obey(self, what: Verdict) -> None:
        if what.do == verdict.AGAIN:
            raise tf.errors.AbortedError(None, None, what.line)
        if what.do == verdict.REFUSED:
            raise Refused(what.line, what.code)
        if what.do == verdict.END:
            kinds = {EXIT_RETRY: ClusterLost, EXIT_SIGTERM: Stopped}
            raise kinds[what.code](what.line) if what.code in kinds else UserError(what.line, what.code)

    def wait(self, limit: float, since: float | None = None, where: str = WAITING,
             also: Callable[[], str] = lambda: '') -> None:
        """Returns when nothing is missing for this worker to go on; `also` names what else is."""
        begun = since or time.monotonic()
        last_told, self._waiting = begun, True
        try:
            while True:
                self.missing_ps()
                waited = time.monotonic() - begun
                what = verdict.decide(seen := self._seen(where, waited, limit))
                if what.do == verdict.GO and (whom := also()):
                    what = verdict.wait_for(seen, whom)
                if what.do == verdict.GO:
                    return
                self._obey(what)
                if time.monotonic() - last_told >= self.status_secs or last_told == begun and waited > 1:
                    last_told = time.monotonic()
                    self.log(f'{self.cluster.name} is waiting for {what.line}, {waited:.0f} s')
                time.sleep(0.4)
        finally:
            self._waiting = False

    def enter(self, target: str) -> bool:
        """Waits for the ps, and has this worker refused before it builds a graph if the ps hold another job.

        target: of this task's own server. The chief also takes its index, begins to beat, and says whose state the ps
        are going to hold. What a job left that never had its variables in order, and of which nobody is alive, is no
        state. Returns whether the variables on the ps are in order. Raises Refused, WrongMachine, ClusterLost or
        Stopped.
        """
        self.wait(self.start_secs, where=ENTERING)
        if not self.ready() and self._difference():
            time.sleep(2.5 * verdict.BEAT_SECS)  # Long enough to hear whether the tasks of that job are alive.
            self.wait(self.start_secs, where=ENTERING)
        self._target = target
        if not self.cluster.is_chief:
            self._check_reached()
        else:
            self.join()
            self.lives = self.current_lives()
            if not self.ready():
                self.write('job', self.job._asdict())
        other_versions(self.cluster, self.log)
        return self.ready()

    def _check_reached(self) -> None:
        self.wait(min(self.start_secs, REACH_SECS), where=ENTERING, also=self._unreached)

    def _unreached(self) -> str:
        try:
            return unreached(self.cluster, self._target, self._hub, self.claim.life)
        except Unreachable as error:
            return str(error)
        except WrongMachine as error:
            raise Refused(str(error), EXIT_RETRY) if self.joined else error from error

    def join(self) -> None:
        """Takes the index of this worker on every board, and begins to beat.

        It belongs to whom the hub reaches at its entry in the lists; a process that had it learns so by its next beat.
        Again with every session: the hub may have been restarted, and the name have moved to another process.
        """
        self._check_reached()
        self.wait(self.start_secs, where=ENTERING, also=self._take_index)
        self._heartbeat.start()

    def _take_index(self) -> str:
        try:
            self._hub.take(self.cluster.index, self._claim_text)
            for board in self._boards:
                board.put_fence(self.cluster.index, self.claim.life)
            self.joined = True
            self._report(RUNNING)
            self._look()
        except Unreachable as error:
            return str(error)
        except NotYours:  # It was taken again at once.
            raise self._replaced('another process') from None
        return ''

    def check_graph(self, graph: dict[str, str]) -> None:
        """Raises Refused if the variables on the ps are not those of `graph` (see describe_graph)."""
        difference = graph_difference(self._hub.read_graph(), graph)
        if difference:
            raise Refused(self._in_other_words(difference))

    def write(self, name: str, value) -> None:
        """For the chief: see Board.write. Refused if another process is the chief."""
        try:
            self._hub.write(name, value, self._claim_text)
        except NotYours:
            self._look()
            raise self._replaced(self._taken() or 'another process') from None

    def saving(self, updating: contextlib.AbstractContextManager) -> contextlib.AbstractContextManager:
        """For the chief, around a save: asks the hub first, and raises Refused if another process is the chief; returns
        `updating`, within which no update is made."""
        with contextlib.suppress(Unreachable):
            self._look()
        if other := self._taken():
            raise self._replaced(other)
        return updating

    def _replaced(self, other: str) -> Refused:
        return Refused(f'{other} is {self.cluster.name} now: this one ends', EXIT_RETRY)

    def begun(self) -> None:
        """For a session creator: a session of this worker has been made."""
        self._made = True

    def in_call(self) -> contextlib.AbstractContextManager:
        """Within, this thread is in a call into TensorFlow, which may hang."""
        return self._calls.noted()

    def noticing_signals(self) -> contextlib.AbstractContextManager:
        """Within, in the main thread, a signal ends this task also when a ps stands still."""
        return self._signals.noticed()

    def _beat(self) -> None:
        """Once a second: the hub alone, as long as nothing is amiss."""
        secs = self._calls.longest()
        try:
            if self._missing or secs > CALL_SECS:
                self.missing_ps()
            else:
                self._look()
        except (Unreachable, UserError) as error:
            self._miss(str(error))
        if self._waiting or not secs:
            return  # The main thread looks after itself.
        what = verdict.decide(self._seen(IN_CALL, secs))
        if what.do in (verdict.END, verdict.REFUSED):
            self.log(what.line)
            leave_process(told(what.code, self._retry_code))
        now = time.monotonic()
        if what.do == verdict.WAIT and now - max(self._missing_since, self._told) >= self.status_secs:
            self._told = now
            self.log(f'{self.cluster.name} is waiting for {what.line}, {now - self._missing_since:.0f} s')

    def share_trace(self, packed: bytes) -> None:
        """Leaves this worker's trace of a step where the chief finds it; a ps that is gone gets none."""
        with contextlib.suppress(Unreachable):
            self._hub.write_trace(self.cluster.index, packed)

    def shared_traces(self) -> list[bytes]:
        """For the chief: what other workers have shared so far; [] when ps 0 does not answer."""
        with contextlib.suppress(Unreachable):
            return self._hub.read_traces()
        return []

    def end_job(self) -> None:
        """For the chief: tells the other workers to end after the step in progress, while it goes on to save."""
        with contextlib.suppress(Unreachable, NotYours):
            self._hub.report(self.cluster.index, ENDING, self._claim_text)

    def leave(self, report: int) -> None:
        """Stops beating and tells every board how this worker ended; a task that is gone is not told."""
        self._heartbeat.stop()
        if self.joined:
            with contextlib.suppress(Unreachable, NotYours):
                self._report(report)
        for board in self._boards:
            board.close()

    def _report(self, report: int) -> None:
        self._hub.report(self.cluster.index, report, self._claim_text)
        for board in self._boards[1:]:
            with contextlib.suppress(Unreachable):
                board.report_end(self.cluster.index, report)


@contextlib.contextmanager
def taking_part(peers: Peers) -> Iterator[Peers]:
    """Within, this worker is one of the job; on leaving, every board is told how it ended.

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
