"""What a task does when it sees this or that of the others: pure functions, and nothing else.

They know no clock and no network: what is seen, and for how many seconds, is their argument, and what they return is
done by others (peers.py, ps.py). docs/architecture.md has the table.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from inception_mg.errors import EXIT_FAILED, EXIT_RETRY, EXIT_SIGTERM

RUNNING, DONE, FAILED, ENDING = 0, 1, 2, 3  # What a worker reports; ENDING only the chief, who still has to save.
# Where a worker's main thread is: not yet part of the job; waiting for a session; training; in a call into TensorFlow.
ENTERING, WAITING, BETWEEN, IN_CALL = 'entering', 'waiting', 'between two steps', 'in a call'
GO, WAIT, AGAIN, REFUSED, END = 'go on', 'wait', 'begin again', 'is refused', 'end'
BEAT_SECS = 1.0      # A worker beats, and a serving task says that it lives, this often.
SILENT_SECS = 8.0    # A worker that has not beaten for so long is taken for dead when the job ends.
STUCK_SECS = 10.0    # So much longer than it should take until a task that sits in a call is ended.
GRACE_SECS = 6.0     # So long after the job's end a ps waits for workers that are just (re)starting.
FAREWELL_SECS = 20.0  # So long after a signal a task serves on while the chief is at work.
GONE_SECS = 10.0     # So long after its ps have gone a worker that came too late takes a job for done.


class Verdict(NamedTuple):
    """What to do. line: for the log, or why it ends; for WAIT, whom to wait for. code: of END and REFUSED, where the
    second is no reason for others to end."""

    do: str
    line: str = ''
    code: int = 0


class Seen(NamedTuple):
    """What a worker sees of its cluster.

    name: of this worker. where, secs: where its main thread is, and since when (WAITING, IN_CALL). limit: seconds that
    it may wait now. lost: seconds that training goes on without the chief. asked: seconds since a signal asked it to
    end; 0 = none did. taken: who has its index now, '' if nobody else. missing: the serving task that does not answer,
    and missing_secs since when one does not. failed: a worker that failed, -1 = none. report, silent, heard: of the
    chief: what it reported, seconds since its last beat, whether it has beaten since this worker looks. restarted: ps
    that were restarted since this worker's session was made. ready: whether the chief had the variables in order on the
    ps that run now. differs: in what the job on the ps is another one. others: whether another worker has beaten since
    this one looks. joined: whether this worker had a session before.
    """

    name: str
    is_chief: bool
    where: str
    secs: float = 0.0
    limit: float = 300.0
    lost: float = 300.0
    asked: float = 0.0
    taken: str = ''
    missing: str = ''
    missing_secs: float = 0.0
    failed: int = -1
    report: int = RUNNING
    silent: float = 0.0
    heard: bool = True
    restarted: str = ''
    ready: bool = True
    differs: str = ''
    others: bool = False
    joined: bool = False


def decide(seen: Seen) -> Verdict:
    """What a worker does. The first rule that holds counts."""
    if seen.taken and (seen.where != IN_CALL or seen.secs > STUCK_SECS):
        return Verdict(REFUSED, f'{seen.taken} is {seen.name} now: this one ends', EXIT_RETRY)
    if seen.where == IN_CALL:
        return _decide_in_call(seen)
    if seen.failed >= 0:
        return Verdict(END, f'{seen.name} ends because worker {seen.failed} failed: see its log', EXIT_FAILED)
    return _decide_between(seen) if seen.where == BETWEEN else _decide_waiting(seen)


def _decide_in_call(seen: Seen) -> Verdict:
    """In the place of a main thread that sits in a call which nothing can interrupt, signals included."""
    if not seen.missing:
        return Verdict(GO)
    if seen.asked > STUCK_SECS:
        return Verdict(END, f'{seen.name} was stopped while waiting for {seen.missing}', EXIT_SIGTERM)
    if seen.missing_secs > seen.lost + STUCK_SECS:
        return Verdict(END, f'{seen.name} gave up after {seen.missing_secs:.0f} s without {seen.missing}', EXIT_RETRY)
    return Verdict(WAIT, seen.missing)


def _decide_between(seen: Seen) -> Verdict:
    if seen.missing and seen.missing_secs > seen.lost:
        return Verdict(END, f'{seen.name} gave up after {seen.lost:g} s without {seen.missing}', EXIT_RETRY)
    if not seen.is_chief and seen.report in (RUNNING, ENDING) and seen.silent > seen.lost:
        return Verdict(END, f'{seen.name} gave up: the chief has been silent for {seen.silent:.0f} s', EXIT_RETRY)
    if seen.restarted:
        return Verdict(AGAIN, f'{seen.restarted} was restarted')
    return Verdict(GO)


def _decide_waiting(seen: Seen) -> Verdict:
    over = seen.report == DONE and not seen.is_chief
    if over and seen.missing and seen.missing_secs > GONE_SECS:
        return Verdict(END, f'{seen.name} came too late: the job is done', 0)
    whom = seen.missing or ('the ps of a job that is done to end' if over else '')
    if not whom and seen.differs and (seen.ready or seen.heard or seen.is_chief and seen.others):
        return Verdict(REFUSED, seen.differs, EXIT_FAILED)
    if not whom and not seen.is_chief and seen.where == WAITING:
        if not seen.ready:
            whom = 'the chief to initialise or restore the variables'
        elif not (seen.joined or seen.heard):
            whom = 'a sign of life of the chief'
    return wait_for(seen, whom) if whom else Verdict(GO)


def wait_for(seen: Seen, whom: str) -> Verdict:
    """Waits for `whom`, unless a signal came or the limit is passed."""
    if seen.asked:
        return Verdict(END, f'{seen.name} was stopped while waiting for {whom}', EXIT_SIGTERM)
    if seen.secs > seen.limit:
        return Verdict(END, f'{seen.name} gave up after {seen.secs:.0f} s of waiting for {whom}', EXIT_RETRY)
    return Verdict(WAIT, whom)


class ServingSeen(NamedTuple):
    """What a serving task sees. reports, beats, silent, heard: of each worker. asked, over: seconds since a signal
    asked it to end, and since the job was over; 0 = not. one_client: in-graph, where only the chief beats."""

    name: str
    reports: Sequence[int]
    beats: Sequence[int]
    silent: Sequence[float]
    heard: Sequence[bool]
    asked: float = 0.0
    over: float = 0.0
    one_client: bool = False
    idle: float = 600.0


def is_over(reports: Sequence[int]) -> bool:
    """Whether the chief is done, or a worker failed."""
    return FAILED in reports or reports[0] == DONE


def decide_serving(seen: ServingSeen) -> Verdict:
    """What a serving task does: GO serves on.

    The job is over when the chief reports that it is done, or any worker that it failed; then this waits for the other
    workers' reports, but not for those that fall silent (one that is starting again gets GRACE_SECS).
    """
    if seen.asked:
        at_work = seen.reports[0] in (RUNNING, ENDING) and seen.heard[0] and seen.silent[0] < 3 * BEAT_SECS
        # Whoever ends a whole cluster signals all tasks at once, and the chief needs the others to save.
        if not at_work or seen.asked > FAREWELL_SECS:
            return Verdict(END, '', EXIT_SIGTERM)
    if is_over(seen.reports):
        late = RUNNING in seen.reports and seen.over < GRACE_SECS
        if late or still_busy(seen.reports, seen.silent, seen.beats):
            return Verdict(GO)
        if FAILED in seen.reports:
            return Verdict(END, f'{seen.name} ends: worker {list(seen.reports).index(FAILED)} failed', EXIT_FAILED)
        return Verdict(END, f'{seen.name} ends: the job is done', 0)
    if min(seen.silent) > seen.idle:
        nobody = 'the chief has not' if seen.one_client else 'no worker has'
        return Verdict(END, f'{seen.name} ends: {nobody} been heard of for {seen.idle:g} s', EXIT_RETRY)
    return Verdict(GO)


def still_busy(reports: Sequence[int], silent: Sequence[float], beats: Sequence[int], skip: int = -1) -> list[int]:
    """The workers that may still do something: no report, and a beat heard lately."""
    return [worker for worker, (report, silence, beat) in enumerate(zip(reports, silent, beats, strict=True))
            if worker != skip and report in (RUNNING, ENDING) and beat > 0 and silence < SILENT_SECS]


class Silence:
    """How long each worker's beat has stood still, in seconds by this process's clock.

    heard: of each worker, whether its beat has moved while this looked: it is alive, not left over.
    """

    def __init__(self, num_workers: int, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: list[tuple[int | None, float]] = [(None, clock()) for _ in range(num_workers)]
        self.heard = [False] * num_workers

    def update(self, beats: Sequence[int]) -> list[float]:
        """Notes the beats and returns the silence of each worker; one never heard of is silent
        since the beginning."""
        now = self._clock()
        self.heard = [heard or old is not None and beat > old
                      for heard, beat, (old, _) in zip(self.heard, beats, self._seen, strict=True)]
        self._seen = [(beat, now) if beat != old else (old, since)
                      for beat, (old, since) in zip(beats, self._seen, strict=True)]
        return [now - since for _, since in self._seen]
