"""Runs the groups of a benchmark on this machine, and says how far it is and why a contender fell out.

Imports no TensorFlow: it only starts processes, tells them when to run, and ends them.
"""

import contextlib
import dataclasses
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from dist.benchmark import race
from dist.benchmark.groups import BASELINES, SCRIPTS, START, Group, make_racer
from dist.benchmark.race import Lap, Racer, RacerFailed

_START = (2, 2)  # Number of ps and of workers of the cluster whose start is timed.
_START_LIMIT = 300.0
_PROCESS_SECS = 5.0  # What the start of a contender's process takes, roughly: for the first guess of the time to go.


@dataclasses.dataclass
class Found:
    """What a benchmark has measured. laps: all rounds of all groups. infos: what each contender said of itself.
    start_seconds: of each start of a cluster that was timed. failed: contender -> why it did not run to its end."""

    laps: list[dict[str, Lap]] = dataclasses.field(default_factory=list)
    infos: dict[str, dict] = dataclasses.field(default_factory=dict)
    start_seconds: list[float] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


class Progress:
    """How long the rest will take: what was guessed for it, times how wrong the guess was so far."""

    def __init__(self, expected_secs: float, clock: Callable[[], float] = time.monotonic):
        self._expected, self._done, self._clock, self._begun = expected_secs, 0.0, clock, clock()

    def advance(self, expected_secs: float) -> None:
        """A part is done that was expected to take so long."""
        self._done += expected_secs

    def to_go(self) -> str:
        """'4 min to go', 'less than a minute to go'."""
        factor = (self._clock() - self._begun) / self._done if self._done else 1.0
        minutes = round((self._expected - self._done) * factor / 60)
        return f'about {minutes} min to go' if minutes > 0 else 'less than a minute to go'


class Driver:
    """Runs groups. settings: the flags that all contenders get. folder: for logs. say: prints a line."""

    def __init__(self, settings: Sequence[str], rounds: int, lap_secs: float, folder: pathlib.Path,
                 environ: Mapping[str, str], say: Callable[[str], object] = print):
        self._settings, self._rounds, self._lap_secs = settings, rounds, lap_secs
        self._folder, self._environ, self._say = folder, environ, say
        self.found = Found()

    def run(self, groups: Sequence[Group], names: Sequence[str], starts: int = 0) -> Found:
        """All groups, with those of the baselines that are in `names`; then so many timed starts of a cluster."""
        baselines = self._racers(name for name in BASELINES if name in names)
        expected = [self._expected_secs(baselines, group) for group in groups]
        progress = Progress(sum(expected) + 4 * _PROCESS_SECS * starts)
        total = len(groups) + bool(starts)
        with contextlib.ExitStack() as stack:
            for number, (group, secs) in enumerate(zip(groups, expected, strict=True), 1):
                self._say(f'[{number}/{total}] {group.title}: {", ".join(group.names or names)}; {progress.to_go()}')
                if group.with_baselines and baselines and not baselines[0].children:
                    stack.enter_context(race.starting(baselines, self._log_folder(), self._environ, self._fail))
                self._group(baselines if group.with_baselines else [], self._racers(group.names))
                progress.advance(secs)
        if starts:
            self._say(f'[{total}/{total}] start of {_START[0]} ps, a chief and a worker; {progress.to_go()}')
            self._time_starts(starts)
        return self.found

    def _group(self, baselines: Sequence[Racer], own: Sequence[Racer]) -> None:
        with race.starting(own, self._log_folder(), self._environ, self._fail):
            ready = [racer for racer in [*baselines, *own] if racer.name not in self.found.failed]
            self.found.infos |= {racer.name: racer.info for racer in ready}
            self.found.laps += race.race(ready, self._rounds, self._lap_secs, self._fail, self._say_round)

    def _racers(self, names: Iterable[str]) -> list[Racer]:
        return [make_racer(name, self._settings) for name in names]

    def _time_starts(self, times: int) -> None:
        try:
            for _ in range(times):
                self.found.start_seconds.append(time_start(self._log_folder(), self._settings, self._environ))
                self._say(f'  {self.found.start_seconds[-1]:.1f} s')
        except RacerFailed as error:
            self._fail(START, str(error))

    def _fail(self, name: str, why: str) -> None:
        self.found.failed[name] = why
        self._say(f'  {name} failed, the others go on: {why}')

    def _say_round(self, number: int, laps: Mapping[str, Lap]) -> None:
        self._say(f'  round {number}/{self._rounds}: ' + ', '.join(
            f'{name} {lap.seconds:.1f} s' for name, lap in laps.items()))

    def _log_folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self._folder))

    def _expected_secs(self, baselines: Sequence[Racer], group: Group) -> float:
        own = self._racers(group.names)
        turns = sum(racer.share for racer in [*(baselines if group.with_baselines else []), *own])
        return (self._rounds + 1) * self._lap_secs * turns + _PROCESS_SECS * sum(len(racer.commands) for racer in own)


def time_start(folder: pathlib.Path, settings: Sequence[str], environ: Mapping[str, str],
               limit: float = _START_LIMIT) -> float:
    """Seconds from the launch of 2 ps, a chief and a worker to the chief's first training step.

    settings: flags of scripts/train_distributed.py. Raises RacerFailed when that does not come.
    """
    num_ps, num_workers = _START
    command = [sys.executable, str(SCRIPTS / 'launch_local.py'), f'--num_ps={num_ps}', f'--num_workers={num_workers}',
               '--max_restarts=0', '--', f'--train_dir={folder / "start"}', '--log_every_steps=1', *settings]
    begun = time.monotonic()
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(environ))
    watchdog = threading.Timer(limit, launcher.send_signal, [signal.SIGTERM])
    watchdog.start()
    last = ''
    try:
        for line in launcher.stdout:
            if re.search(r'worker 0 +\| step +\d+/', line):
                return time.monotonic() - begun
            last = line.strip() or last
        raise RacerFailed(f'no first step within {time.monotonic() - begun:.0f} s: {last[:300]}')
    finally:
        watchdog.cancel()
        launcher.send_signal(signal.SIGTERM)
        try:
            launcher.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.communicate()
