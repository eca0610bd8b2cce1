"""The rules by which tasks decide: every row of their table, and thousands of random histories of a whole cluster."""

import dataclasses
import random

import pytest

from dist import verdict
from dist.verdict import (
    AGAIN,
    BETWEEN,
    DONE,
    END,
    ENDING,
    ENTERING,
    FAILED,
    GO,
    IN_CALL,
    REFUSED,
    RUNNING,
    WAIT,
    WAITING,
    Seen,
    ServingSeen,
    decide,
    decide_serving,
)
from inception_mg.errors import EXIT_RETRY

PS = 'ps 1 at h:1 (connection refused)'


@pytest.mark.parametrize('seen, do, code, words', [
    # Where its index is another process's, it ends; in a call that returns soon it is left to say so itself.
    ({'taken': 'process 7 on h'}, REFUSED, EXIT_RETRY, 'process 7 on h is worker 1 now'),
    ({'taken': 'process 7 on h', 'where': WAITING, 'missing': PS}, REFUSED, EXIT_RETRY, 'this one ends'),
    ({'taken': 'process 7 on h', 'where': IN_CALL, 'secs': 3}, GO, 0, ''),
    ({'taken': 'process 7 on h', 'where': IN_CALL, 'secs': 11}, REFUSED, EXIT_RETRY, ''),
    # Another worker has failed.
    ({'failed': 2}, END, 1, 'ends because worker 2 failed'),
    ({'failed': 2, 'where': WAITING}, END, 1, 'worker 2 failed'),
    ({'failed': 2, 'where': IN_CALL, 'secs': 99}, GO, 0, ''),  # Between two steps it is said, and saved.
    # A serving task does not answer.
    ({'missing': PS, 'missing_secs': 20}, GO, 0, ''),
    ({'missing': PS, 'missing_secs': 31}, END, EXIT_RETRY, 'gave up after 30 s without ps 1'),
    ({'missing': PS, 'where': IN_CALL, 'missing_secs': 31}, WAIT, 0, PS),
    ({'missing': PS, 'where': IN_CALL, 'missing_secs': 41}, END, EXIT_RETRY, 'gave up after 41 s without ps 1'),
    ({'missing': PS, 'where': WAITING, 'secs': 29}, WAIT, 0, PS),
    ({'missing': PS, 'where': WAITING, 'secs': 31}, END, EXIT_RETRY, 'gave up after 31 s of waiting for ps 1'),
    ({'missing': PS, 'where': ENTERING, 'secs': 31}, END, EXIT_RETRY, 'gave up after 31 s of waiting for ps 1'),
    # A signal: between two steps the loop sees to it; a step or a save is not cut off unless somebody is missing.
    ({'asked': 99}, GO, 0, ''),
    ({'asked': 99, 'where': IN_CALL, 'secs': 99}, GO, 0, ''),
    ({'asked': 5, 'missing': PS, 'where': IN_CALL}, WAIT, 0, PS),
    ({'asked': 11, 'missing': PS, 'where': IN_CALL}, END, 143, 'was stopped while waiting for ps 1'),
    ({'asked': 1, 'missing': PS, 'where': WAITING}, END, 143, 'was stopped while waiting for ps 1'),
    ({'asked': 1, 'where': WAITING}, GO, 0, ''),
    # The chief is silent, or away.
    ({'silent': 29}, GO, 0, ''),
    ({'silent': 31}, END, EXIT_RETRY, 'the chief has been silent for 31 s'),
    ({'silent': 31, 'report': ENDING}, END, EXIT_RETRY, 'silent'),
    ({'silent': 31, 'report': DONE}, GO, 0, ''),
    ({'silent': 31, 'is_chief': True}, GO, 0, ''),
    # A ps was started anew.
    ({'restarted': 'ps 0'}, AGAIN, 0, 'ps 0 was restarted'),
    ({'restarted': 'ps 0', 'where': IN_CALL}, GO, 0, ''),
    # Whose state is it, and is it in order?
    ({'where': ENTERING, 'differs': 'x'}, REFUSED, 1, 'x'),
    ({'where': ENTERING, 'differs': 'x', 'ready': False, 'heard': False}, GO, 0, ''),
    ({'where': ENTERING, 'differs': 'x', 'ready': False, 'heard': False, 'is_chief': True}, GO, 0, ''),
    ({'where': ENTERING, 'differs': 'x', 'ready': False, 'heard': False, 'is_chief': True, 'others': True}, REFUSED,
     1, 'x'),
    ({'where': ENTERING, 'ready': False, 'heard': False}, GO, 0, ''),
    ({'where': WAITING, 'ready': False}, WAIT, 0, 'the chief to initialise or restore the variables'),
    ({'where': WAITING, 'ready': False, 'is_chief': True}, GO, 0, ''),
    ({'where': WAITING, 'heard': False}, WAIT, 0, 'a sign of life of the chief'),
    ({'where': WAITING, 'heard': False, 'secs': 31}, END, EXIT_RETRY, 'of waiting for a sign of life of the chief'),
    ({'where': WAITING, 'heard': False, 'joined': True}, GO, 0, ''),
    ({'where': WAITING}, GO, 0, ''),
    # The job is done: who comes too late waits until its ps have gone, for they may soon serve another job.
    ({'where': WAITING, 'report': DONE}, WAIT, 0, 'the ps of a job that is done to end'),
    ({'where': WAITING, 'report': DONE, 'missing': PS, 'missing_secs': 9}, WAIT, 0, PS),
    ({'where': WAITING, 'report': DONE, 'missing': PS, 'missing_secs': 11}, END, 0, 'the job is done'),
    ({'where': WAITING, 'report': DONE, 'is_chief': True}, GO, 0, ''),  # An earlier life's word.
])
def test_worker(seen, do, code, words):
    seen = Seen(**{'name': 'worker 1', 'is_chief': False, 'where': BETWEEN, 'limit': 30.0, 'lost': 30.0, **seen})
    found = decide(seen)
    assert (found.do, found.code) == (do, code) and words in found.line


@pytest.mark.parametrize('seen, do, code', [
    ({}, GO, 0),
    ({'reports': [DONE, DONE], 'over': 1}, END, 0),
    ({'reports': [DONE, RUNNING], 'over': 1}, GO, 0),                                  # Worker 1 is at its last step.
    ({'reports': [DONE, RUNNING], 'silent': [9, 9], 'over': 1}, GO, 0),                # It may be starting again.
    ({'reports': [DONE, RUNNING], 'silent': [9, 9], 'over': 7}, END, 0),
    ({'reports': [DONE, RUNNING], 'beats': [5, 0], 'over': 7}, END, 0),                # It never came.
    ({'reports': [ENDING, DONE], 'silent': [9, 9]}, GO, 0),                            # The chief saves.
    ({'reports': [RUNNING, FAILED], 'silent': [9, 0], 'over': 7}, END, 1),
    ({'reports': [RUNNING, FAILED], 'over': 7}, GO, 0),                                # The chief saves before it ends.
    ({'silent': [31, 31]}, END, EXIT_RETRY), ({'silent': [31, 3]}, GO, 0),
    ({'asked': 1}, GO, 0),                                                             # The chief may want to save.
    ({'asked': 1, 'silent': [4, 0]}, END, 143), ({'asked': 1, 'reports': [DONE, RUNNING]}, END, 143),
    ({'asked': 1, 'heard': [False, True]}, END, 143), ({'asked': 21}, END, 143)])
def test_serving(seen, do, code):
    seen = ServingSeen(**{'name': 'ps 0', 'reports': [RUNNING, RUNNING], 'beats': [5, 5], 'silent': [0.5, 0.5],
                          'heard': [True, True], 'idle': 30.0, **seen})
    found = decide_serving(seen)
    assert (found.do, found.code) == (do, code)


# A small world of whole clusters. One tick is a second. What the boards hold is true; who reaches whom is drawn.

LOST, IDLE, STEPS = 30, 40, 60


@dataclasses.dataclass
class Ps:
    """A serving task. fence: the life whose updates it takes, by worker."""

    life: int = 0
    alive: bool = True
    fence: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Worker:
    """A process that is started as worker `index`. since: when it began to wait, or its present call."""

    index: int
    life: int
    cut: set = dataclasses.field(default_factory=set)  # Ps that it does not reach.
    where: str = ENTERING
    since: int = 0
    missing_since: int | None = None
    lives: tuple = ()
    joined: bool = False
    made: bool = False
    code: int | None = None
    silence: verdict.Silence | None = None


class World:
    """The hub's board, the ps, and all processes that were ever started."""

    def __init__(self, draw: random.Random, num_ps: int, num_workers: int):
        self.draw, self.now, self.next_life = draw, 0, 1
        self.ps = [Ps(life=self.life()) for _ in range(num_ps)]
        self.num_workers, self.steps = num_workers, 0
        self.clear_hub()
        self.processes: list[Worker] = []
        self.named: dict[int, int] = {}
        for index in range(num_workers):
            self.start(index)

    def life(self) -> int:
        self.next_life += 1
        return self.next_life

    def clear_hub(self) -> None:
        count = self.num_workers
        self.claims, self.beats, self.reports, self.ready = [0] * count, [0] * count, [RUNNING] * count, ()

    def start(self, index: int, by_mistake: bool = False) -> None:
        """A process elsewhere. Unless by mistake the name of the worker's machine means this one from now on."""
        self.processes.append(Worker(index, self.life(), since=self.now,
                                     silence=verdict.Silence(self.num_workers, lambda: self.now)))
        if not by_mistake:
            self.named[index] = self.processes[-1].life

    def lives(self) -> tuple:
        return tuple(ps.life for ps in self.ps)

    def reached(self, process: Worker) -> int | None:
        """The first ps that does not answer, or None."""
        return next((k for k, ps in enumerate(self.ps) if not ps.alive or k in process.cut), None)

    def seen(self, process: Worker) -> Seen:
        missing = self.reached(process)
        if missing is None:
            process.missing_since = None
        elif process.missing_since is None:
            process.missing_since = self.now
        if missing != 0:  # The hub answers: it is read, and beaten on if nobody is missing.
            held = self.claims[process.index]
            if process.joined and held == process.life and missing is None:
                self.beats[process.index] += 1
            process.view = (list(self.claims), list(self.reports), self.ready, self.lives())
            process.silent = process.silence.update(self.beats)
        elif not hasattr(process, 'view'):
            process.view, process.silent = ([0] * self.num_workers, [RUNNING] * self.num_workers, (), ()), [0.0]
        claims, reports, ready, lives = process.view
        taken = claims[process.index] if process.joined else 0
        failed = [k for k, report in enumerate(reports) if report == FAILED and k != process.index]
        return Seen(
            'worker', process.index == 0, process.where, self.now - process.since, LOST, LOST,
            taken='another' if taken and taken != process.life else '', missing='' if missing is None else f'ps {missing}',
            missing_secs=0 if missing is None else self.now - process.missing_since, failed=failed[0] if failed else -1,
            report=reports[0], silent=process.silent[0], heard=process.silence.heard[0],
            restarted='ps' if process.lives and process.lives != lives else '', ready=bool(ready) and ready == lives,
            others=any(process.silence.heard[1:]), joined=process.made)

    def tick(self) -> None:
        self.now += 1
        for process in [p for p in self.processes if p.code is None]:
            self.act(process)

    def act(self, process: Worker) -> None:
        missing = self.reached(process)
        if process.where == IN_CALL and missing is None:  # The cable is whole: what was under way arrives before any look.
            process.where = BETWEEN
            self.update(process)
        elif process.where == BETWEEN and missing is not None and self.draw.random() < 0.5:
            process.where, process.since = IN_CALL, self.now
        what = decide(self.seen(process)) if process.code is None else verdict.Verdict(END, '', process.code)
        if what.do in (END, REFUSED):
            process.code = what.code
            return
        if what.do == AGAIN:
            process.where, process.since, process.lives = WAITING, self.now, ()
        if what.do != GO or self.reached(process) is not None:
            return
        if process.where in (ENTERING, WAITING) and not self.claim(process):
            return
        if process.where == ENTERING:
            process.where, process.since = WAITING, self.now
        elif process.where == WAITING:
            if process.index == 0 and self.ready != self.lives():
                assert self.claims[0] == process.life
                self.ready = self.lives()
            process.where, process.lives, process.made = BETWEEN, self.lives(), True
        elif process.where == BETWEEN:
            self.update(process)

    def claim(self, process: Worker) -> bool:
        if process.index and process.where == ENTERING:
            return True  # Others take their index when the variables are in order.
        if self.named[process.index] != process.life:  # The hub reaches another one at the entry of the lists.
            process.code = EXIT_RETRY if process.joined else 1
            return False
        self.claims[process.index], self.reports[process.index] = process.life, RUNNING
        for ps in self.ps:
            ps.fence[process.index] = process.life
        process.joined = True
        return True

    def update(self, process: Worker) -> None:
        """A step: every gate has to be open."""
        if any(ps.fence.get(process.index) != process.life for ps in self.ps):
            return  # It fails there, and the next look says why.
        if self.steps >= STEPS:  # Also for one that begins late: the step is read with the variables.
            self.reports[process.index] = DONE
            process.code = 0
            return
        self.steps += 1
        self.updated.setdefault(process.index, set()).add(process.life)

    def disturb(self) -> None:
        """Something happens to somebody."""
        living = [p for p in self.processes if p.code is None]
        what = self.draw.randrange(6)
        if what == 0 and living:      # SIGKILL, and its manager starts another one.
            process = self.draw.choice(living)
            process.code = -9
            self.start(process.index)
        elif what == 1 and living:    # Its cable is cut, and its manager starts another one elsewhere.
            process = self.draw.choice(living)
            process.cut |= set(self.draw.sample(range(len(self.ps)), self.draw.randint(1, len(self.ps))))
            if self.draw.random() < 0.7:
                self.start(process.index)
        elif what == 2:               # A ps dies, or comes back with nothing.
            k = self.draw.randrange(len(self.ps))
            self.ps[k].alive = not self.ps[k].alive
            if self.ps[k].alive:
                self.ps[k].life, self.ps[k].fence = self.life(), {}
                if k == 0:
                    self.clear_hub()
        elif what == 3:
            for process in living:    # All cables are whole again.
                process.cut.clear()
        elif what == 4 and living:    # The same index by mistake.
            self.start(self.draw.choice(living).index, by_mistake=True)
        elif living:                  # One that ended with the retry code is started again.
            for process in self.processes:
                if process.code == EXIT_RETRY and self.draw.random() < 0.3:
                    process.code = 750
                    self.start(process.index)


@pytest.mark.parametrize('first', range(0, 5000, 500))
def test_random_histories(first):
    for seed in range(first, first + 500):
        play(seed)


def play(seed: int) -> None:
    """One history; the promises are asserted on the way and at its end."""
    draw = random.Random(seed)
    world = World(draw, draw.randint(1, 3), draw.randint(1, 3))
    for _ in range(draw.randint(1, 12)):
        for _ in range(draw.choice([1, 3, 10, 35])):
            world.updated = {}
            world.tick()
            for index, lives in world.updated.items():  # No two chiefs, and no two of any worker.
                assert len(lives) == 1, f'two processes updated as worker {index} in one second'
        world.disturb()
    # The world stands still: nobody waits for ever.
    for _ in range(2 * LOST + int(verdict.SILENT_SECS) + 10 + STEPS + LOST):
        world.updated = {}
        world.tick()
    for process in world.processes:
        if process.code is None:
            assert process.where == BETWEEN and world.reached(process) is None, process
            assert world.claims[process.index] == process.life, 'a process goes on without its index'
