"""Contenders that take turns, and what the times of their turns say. Standard library only.

Every contender is one or more processes of its own that wait at a pipe: they get a number of steps, run
them, and answer with times. So only one of them computes at a time, and a round lets all of them have their turn
within seconds of one another: what else the machine does hits all alike, and figures are ratios of one round.

    driver                         contender's process
    racer.start()  ------------->  builds, says {"amount": ..., "unit": ...}
    racer.run(n)   ---- "n" ---->  runs n steps, says {"begin": ..., "end": ..., "cpu": ...}
    racer.close()  -- end of file -->  ends
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

WARM_UP_STEPS = 2
END_SECS = 15.0  # A process that is told to end gets so long for it.


# What a contender's process does.

class Contender(NamedTuple):
    """What a process offers. run(n): runs n steps. info: 'unit', 'amount' of it per step, 'flops' per step where that
    says something, and 'least', the steps of the shortest turn that does. prepare(): what to do before the clock of
    a turn starts."""

    run: Callable[[int], object]
    info: dict
    prepare: Callable[[], object] = lambda: None


def take_answers_apart() -> TextIO:
    """Returns a file for the answers on the pipe to the driver; what others print goes to stderr."""
    answers = os.fdopen(os.dup(1), 'w', buffering=1)
    os.dup2(2, 1)
    return answers


def serve(contender: Contender, commands: TextIO, answers: TextIO) -> None:
    """Runs as many steps as each line of `commands` asks for, until its end, and answers with times.

    Answers are lines of JSON: the contender's info, then for each command 'begin' and 'end' in seconds of the
    machine's monotonic clock, and 'cpu', the CPU seconds that this process has used between them.
    """
    print(json.dumps(contender.info), file=answers, flush=True)
    for line in iter(commands.readline, ''):
        contender.prepare()
        begin, cpu = time.monotonic(), time.process_time()
        contender.run(int(line))
        end, cpu = time.monotonic(), time.process_time() - cpu
        print(json.dumps({'begin': begin, 'end': end, 'cpu': cpu}), file=answers, flush=True)


# What the driver does.

class RacerFailed(Exception):
    """A contender's process ended, or did not answer; the message is one line."""


class Lap(NamedTuple):
    """One turn. amount: images, bytes or operations done; seconds: from the first process's begin to the
    last one's end; cpu: CPU seconds of the processes that were asked."""

    amount: float
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Amount per second."""
        return self.amount / self.seconds

    @property
    def per_core(self) -> float:
        """Amount per CPU second."""
        return self.amount / max(self.cpu, 1e-9)


class Child:
    """One process of a contender. Its stderr goes to `log_path`."""

    def __init__(self, command: Sequence[str], log_path: pathlib.Path, environ: Mapping[str, str]):
        self._log_path = log_path
        with open(log_path, 'ab') as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                             env=dict(environ), bufsize=0)

    def ask(self, steps: int) -> None:
        """Tells the process to run so many steps."""
        with contextlib.suppress(BrokenPipeError):  # The answer will be missing, which says it better.
            self._process.stdin.write(b'%d\n' % steps)

    def answer(self, limit: float) -> dict:
        """The next answer; raises RacerFailed without one within `limit` seconds."""
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, limit))
        line = self._process.stdout.readline() if ready else b''
        if not line:
            raise RacerFailed(self._why() if ready else f'no answer in {limit:.0f} s')
        return json.loads(line)

    def cpu_seconds(self) -> float:
        """CPU seconds that the process has used so far; 0 where the system does not say."""
        try:
            fields = pathlib.Path(f'/proc/{self._process.pid}/stat').read_text().rpartition(')')[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

    def tell_end(self) -> None:
        """Closes the pipe at which the process waits; it then ends by itself."""
        self._process.stdin.close()

    def end(self) -> None:
        """Waits for the end, and kills the process if it takes long."""
        self.tell_end()
        try:
            self._process.wait(END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _why(self) -> str:
        code = self._process.wait(END_SECS)
        lines = self._log_path.read_text(errors='replace').strip().splitlines()
        return f'ended with {code}: {lines[-1].strip()[:300] if lines else "it left no line"}'


@dataclasses.dataclass
class Racer:
    """A contender. commands: of its processes, in the order of their start. timed: how many of them, the
    last ones, run the steps; the others only serve. share: its turn lasts that part of everybody's. limit:
    seconds for a start or a turn. steps: of a turn, once it is known how long they take."""

    name: str
    commands: Sequence[Sequence[str]]
    timed: int = 1
    share: float = 1.0
    limit: float = 600.0
    steps: int = 0
    info: dict = dataclasses.field(default_factory=dict)
    children: list[Child] = dataclasses.field(default_factory=list)

    def start(self, folder: pathlib.Path, environ: Mapping[str, str]) -> None:
        """Starts the processes; their logs go to `folder`."""
        for number, command in enumerate(self.commands):
            self.children.append(Child(command, folder / f'{self.name}_{number}.log', environ))

    def wait_ready(self) -> None:
        """Waits until all have built; then those that run steps begin in order, the first one alone."""
        deadline = time.monotonic() + self.limit
        infos = [child.answer(deadline - time.monotonic()) for child in self.children]
        self.info = infos[-1]
        for child in self.children[-self.timed:]:
            child.ask(0)
            child.answer(deadline - time.monotonic())

    def run(self, steps: int) -> Lap:
        """A turn: every process runs so many steps."""
        runners = self.children[-self.timed:]
        for child in runners:
            child.ask(steps)
        deadline = time.monotonic() + self.limit
        answers = [child.answer(deadline - time.monotonic()) for child in runners]
        seconds = max(a['end'] for a in answers) - min(a['begin'] for a in answers)
        return Lap(self.info['amount'] * steps * len(runners), seconds, sum(a['cpu'] for a in answers))

    def close(self) -> None:
        """Ends all processes, those that serve last."""
        for child in self.children[-self.timed:]:
            child.tell_end()
        for child in reversed(self.children):
            child.end()


Fail = Callable[[str, str], object]  # Takes a contender's name and why it is out.


@contextlib.contextmanager
def starting(racers: Sequence[Racer], folder: pathlib.Path, environ: Mapping[str, str], fail: Fail
             ) -> Iterator[list[Racer]]:
    """Starts all at once, yields those that got ready, and ends all. fail: is told of the others."""
    ready = []
    try:
        for racer in racers:
            racer.start(folder, environ)
        for racer in racers:
            try:
                racer.wait_ready()
                ready.append(racer)
            except RacerFailed as error:
                fail(racer.name, str(error))
        yield ready
    finally:
        for racer in racers:
            racer.close()


def race(racers: Sequence[Racer], rounds: int, lap_secs: float, fail: Fail,
         say: Callable[[int, Mapping[str, Lap]], object] = lambda number, laps: None) -> list[dict[str, Lap]]:
    """Lets all take turns and returns each round's laps by name. fail: is told of those that fall out.

    Before that each warms up (WARM_UP_STEPS, twice) and learns how many steps, at least 2, fill `lap_secs`. Every
    round begins with another one, so that nobody always follows the same one. say: gets each round, from 1.
    """
    running = list(racers)

    def turn(racer: Racer, count: int) -> Lap | None:
        try:
            return racer.run(count)
        except RacerFailed as error:
            fail(racer.name, str(error))
            running.remove(racer)
            return None

    for racer in racers:
        if turn(racer, WARM_UP_STEPS) and (lap := turn(racer, WARM_UP_STEPS)):
            steps = round(lap_secs * racer.share / (lap.seconds / WARM_UP_STEPS))
            racer.steps = max(racer.info.get('least', 2), steps)
    laps: list[dict[str, Lap]] = []
    for number in range(rounds):
        order = running[number % len(running):] + running[:number % len(running)] if running else []
        found = {racer.name: turn(racer, racer.steps) for racer in order}
        laps.append({racer.name: found[racer.name] for racer in racers if found.get(racer.name)})
        say(number + 1, laps[-1])
    return laps


# What the laps say.

class Spread(NamedTuple):
    """Median and quartiles of a figure over the rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of a single value, that value three times."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method='inclusive')
    return Spread(median, low, high)


def rates(laps: Sequence[Mapping[str, Lap]], name: str) -> list[float]:
    """Amount per second of each round that `name` took part in."""
    return [lap[name].rate for lap in laps if name in lap]


def per_core(laps: Sequence[Mapping[str, Lap]], name: str) -> list[float]:
    """Amount per CPU second of each round: how fast one core is when it does nothing else."""
    return [lap[name].per_core for lap in laps if name in lap]


def ratios(laps: Sequence[Mapping[str, Lap]], name: str, other: str, figure: str = 'rate') -> list[float]:
    """name / other of each round that both took part in. figure: 'rate' or 'per_core'."""
    return [getattr(lap[name], figure) / getattr(lap[other], figure) for lap in laps if name in lap and other in lap]


def leave(code: int = 0) -> None:
    """Ends this process at once: TensorFlow's servers cannot be stopped."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
