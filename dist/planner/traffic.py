"""The model held against traffic of our own: set-ups on machines of the laboratory, predicted beside measured.

Each set-up is a cluster of real servers, one per machine, on cables of a given speed; computing is a wait. Two things
are calibrated, everything else is predicted: what a cable carries, from steps that only move, and what a step takes
without a wire, from one worker on a cable without limit.
"""

import dataclasses
import json
import os
import pathlib
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from dist.launch.laboratory import PORT, Laboratory
from dist.planner import model, placing
from dist.planner.model import Job
from dist.planner.networks import Variable, network
from inception_mg.data.progress import note
from inception_mg.errors import UserError
from inception_mg.files import write_text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 1.0   # Of computing in a step.
SCALE = 8       # Kernels have so many times fewer bytes than those of Inception v3, in the same order.
STEPS = 7       # Of each synchronous set-up that count, about.
STEPS_ASYNC = 24
SPREAD = 0.1    # Of the seconds of asynchronous workers: chance drives them apart, in 24 steps as in many with less.
LIMIT = 300.0   # Seconds that a task may take to answer.


class SetUp(NamedTuple):
    """mbits: of every cable, 0 for no limit. needed: gradients of an update, when synchronous. slow: see model.Job."""

    workers: int
    ps: int
    mbits: int
    sync: bool = True
    backups: int = 0
    slow: tuple[int, float] = (0, 1.0)
    seconds: float = SECONDS

    @property
    def title(self) -> str:
        """In words."""
        return (f'{self.workers} workers, {self.ps} ps, {self.mbits} Mbit/s, {"sync" if self.sync else "async"}'
                + ', which only pull and push' * (not self.seconds) + f', {self.backups} backup' * bool(self.backups)
                + f', {self.slow[0]} of them {self.slow[1]:g}x slower' * bool(self.slow[0]))


ONE_SLOW = (1, 3.0)
SET_UPS = (
    SetUp(2, 1, 200), SetUp(4, 1, 200, sync=False), SetUp(4, 2, 200), SetUp(4, 1, 500, slow=ONE_SLOW),
    SetUp(4, 1, 500, backups=1, slow=ONE_SLOW), SetUp(8, 1, 500), SetUp(8, 1, 500, sync=False),
    SetUp(4, 2, 200, sync=False, slow=ONE_SLOW), SetUp(1, 1, 100), SetUp(4, 4, 100), SetUp(8, 4, 200),
    SetUp(8, 4, 200, sync=False), SetUp(2, 1, 200, sync=False), SetUp(8, 2, 500), SetUp(8, 2, 200, sync=False),
    SetUp(8, 1, 1000), SetUp(8, 1, 1000, sync=False), SetUp(4, 1, 200), SetUp(4, 1, 500),
    SetUp(8, 2, 500, backups=1, slow=ONE_SLOW), SetUp(4, 1, 500, sync=False, seconds=0.0),
    SetUp(2, 1, 200, sync=False, seconds=0.0))


class Answered(NamedTuple):
    """rate: updates/s that count (of all workers when asynchronous). steps: that this was seen in."""

    rate: float
    steps: int


def variables() -> list[Variable]:
    """The kernels of Inception v3, SCALE times smaller."""
    return [Variable(one.name.replace('/', '_'), one.bytes // SCALE // 4 * 4, one.macs)
            for one in network('inception_v3') if one.macs]


def job_of(set_up: SetUp, seconds: float, rate: float) -> Job:
    """What the model is told. seconds: of a step without a wire. rate: bytes/s of a cable."""
    net, seconds = variables(), seconds if set_up.seconds else 0.0
    return Job(net, placing.largest_first(net, set_up.ps), set_up.workers, seconds, 1, rate, rate,
               spread=0.0, backups=set_up.backups, slow=set_up.slow, shuffled=True)


class Tasks:
    """A process per machine, which serves one set-up after the other."""

    def __init__(self, laboratory: Laboratory, ps: int, workers: int, folder: pathlib.Path):
        environ = {**os.environ, 'PYTHONPATH': str(ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': '-1'}
        self._laboratory, self._processes, self._used = laboratory, {}, 0
        for name in [*(f'ps{k}' for k in range(ps)), *(f'worker{k}' for k in range(workers))]:
            with open(folder / f'{name}.log', 'wb') as log:
                self._processes[name] = subprocess.Popen(
                    laboratory.command(name, [sys.executable, '-m', 'dist.planner.traffic_task']), cwd=ROOT,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environ, bufsize=0)
        for name in self._processes:
            self._answer(name)

    def close(self) -> None:
        """Ends all."""
        for process in self._processes.values():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def measure(self, set_up: SetUp, expected: float) -> Answered:
        """Runs it for about STEPS steps of `expected` seconds."""
        lab, count = self._laboratory, self._used
        self._used += 1
        ps, workers = ([f'{lab.address(f"{kind}{k}")}:{PORT + count}' for k in range(number)]
                       for kind, number in (('ps', set_up.ps), ('worker', set_up.workers)))
        names = [*(f'ps{k}' for k in range(set_up.ps)), *(f'worker{k}' for k in range(set_up.workers))]
        for name in names:
            lab.slow(name, '')  # Building is not what is measured.
        order = {'do': 'build', 'ps': ps, 'workers': workers, 'sync': set_up.sync,
                 'needed': set_up.workers - set_up.backups, 'variables': variables(),
                 'spread': 0.0 if set_up.sync or set_up.workers == 1 else SPREAD}
        for name in names:
            job = name.rstrip('0123456789')
            index = int(name.removeprefix(job))
            slow = job == 'worker' and index >= set_up.workers - set_up.slow[0]  # The last ones; never the chief.
            self._tell(name, order | {'job': job, 'index': index,
                                      'seconds': set_up.seconds * (set_up.slow[1] if slow else 1.0)})
        for name in names:
            self._answer(name)
        mine = names[set_up.ps:]
        for name in mine:
            self._tell(name, {'do': 'start'})
            self._answer(name)
        for name in names:
            lab.slow(name, f'{set_up.mbits}mbit' if set_up.mbits else '')
        slowest = expected * (set_up.slow[1] if not set_up.sync else 1.0)
        now = time.monotonic()
        begin = now + 2.0 + 1.5 * slowest + expected
        steps = STEPS if set_up.sync or set_up.workers == 1 else STEPS_ASYNC
        chance = random.Random(count)
        for name in mine:
            late = 0.0 if set_up.sync else expected * chance.random()
            self._tell(name, {'do': 'run', 'start': now + late, 'begin': begin,
                              'deadline': begin + max(8.0, (steps + 1) * slowest)})
        answers = [self._answer(name) for name in mine]
        if set_up.sync:
            chief = answers[0]
            return Answered(chief['updates'] / (chief['seconds'] - chief['durations'][-1])
                            if chief['steps'] > 1 else 0.0, chief['steps'])
        return Answered(sum(one['steps'] / one['seconds'] for one in answers if one['steps']),
                        sum(one['steps'] for one in answers))

    def _tell(self, name: str, order: dict) -> None:
        self._processes[name].stdin.write(json.dumps(order).encode() + b'\n')

    def _answer(self, name: str) -> dict:
        ready, _, _ = select.select([self._processes[name].stdout], [], [], LIMIT)
        line = self._processes[name].stdout.readline() if ready else b''
        answer = json.loads(line) if line else {'error': 'it ended' if ready else f'no answer in {LIMIT:.0f} s'}
        if 'error' in answer:
            raise UserError(f'{name} of the laboratory: {answer["error"]}')
        return answer


@dataclasses.dataclass
class Found:
    """seconds: of a step without a wire. rates: Mbit/s of a cable -> bytes/s of tensors. rows: set-up, measured and
    predicted updates/s."""

    seconds: float = 0.0
    rates: dict[int, float] = dataclasses.field(default_factory=dict)
    rows: list[tuple[SetUp, float, float]] = dataclasses.field(default_factory=list)

    def lines(self) -> list[str]:
        """A table in Markdown."""
        cables = ', '.join(f'{mbits} Mbit/s carry {rate / 1e6:.1f} MB/s' for mbits, rate in sorted(self.rates.items()))
        lines = [f'a step without a wire: {self.seconds:.3f} s; {cables}', '',
                 '| set-up | measured, updates/s | predicted | error |', '|---|---:|---:|---:|']
        lines += [f'| {set_up.title} | {measured:.3f} | {predicted:.3f} | {predicted / measured - 1:+.1%} |'
                  for set_up, measured, predicted in self.rows]
        errors = [abs(predicted / measured - 1) for _, measured, predicted in self.rows]
        return [*lines, '', f'mean {statistics.mean(errors):.1%}, largest {max(errors):.1%}, {len(errors)} set-ups']


def run_all(output: str, set_ups: Sequence[SetUp] = SET_UPS) -> Found:
    """Measures all, says so as it goes, and writes what was found to the file `output`."""
    folder = pathlib.Path(f'{output}.logs')
    folder.mkdir(parents=True, exist_ok=True)
    most_ps, most_workers = max(one.ps for one in set_ups), max(one.workers for one in set_ups)
    names = [*(f'ps{k}' for k in range(most_ps)), *(f'worker{k}' for k in range(most_workers))]
    found = Found()
    with Laboratory(names) as laboratory:
        tasks = Tasks(laboratory, most_ps, most_workers, folder)
        try:
            found.seconds = 1 / tasks.measure(SetUp(1, 1, 0, sync=False), SECONDS).rate
            note(f'a step without a wire takes {found.seconds:.3f} s')
            for number, set_up in enumerate(set_ups, 1):
                if set_up.mbits not in found.rates:
                    calibrate_cable(tasks, set_up.mbits, found)
                predicted, step = predict(set_up, found)
                measured = tasks.measure(set_up, step).rate
                found.rows.append((set_up, measured, predicted))
                note(f'[{number}/{len(set_ups)}] {set_up.title}: measured {measured:.3f}, predicted {predicted:.3f} '
                     f'updates/s ({predicted / measured - 1:+.1%})')
                write(found, output)
        finally:
            tasks.close()
    return found


def predict(set_up: SetUp, found: Found) -> tuple[float, float]:
    """Updates/s, and seconds of a worker's step."""
    pace = model.predict(job_of(set_up, found.seconds, found.rates[set_up.mbits]), set_up.sync)
    return pace.images_per_sec / (set_up.workers - set_up.backups if set_up.sync else 1), pace.step


def calibrate_cable(tasks: Tasks, mbits: int, found: Found) -> None:
    """What cables of that speed carry, from steps that only move."""
    size = sum(one.bytes for one in variables())
    pace = tasks.measure(SetUp(1, 1, mbits, sync=False, seconds=0.0), 2 * size / (mbits * 1.2e5))
    found.rates[mbits] = pace.rate * 2 * size  # It pulls all, then pushes all.
    note(f'{mbits} Mbit/s carry {found.rates[mbits] / 1e6:.1f} MB/s')


def write(found: Found, output: str) -> None:
    """The JSON of what was found so far."""
    values = {'seconds': found.seconds, 'rates': found.rates, 'rows': [
        {**set_up._asdict(), 'measured': measured, 'predicted': predicted}
        for set_up, measured, predicted in found.rows]}
    write_text(output, json.dumps(values, indent=1) + '\n')


def read(path: str) -> Found:
    """What `write` wrote, predicted anew; UserError where it is none."""
    try:
        values = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
        found = Found(float(values['seconds']), {int(mbits): float(rate) for mbits, rate in values['rates'].items()})
        for row in values['rows']:
            set_up = SetUp(**{name: row[name] for name in SetUp._fields} | {'slow': tuple(row['slow'])})
            found.rows.append((set_up, float(row['measured']), predict(set_up, found)[0]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f'--laboratory={path} is not what an earlier run wrote: remove it to measure anew') from error
    return found


def draw(found: Found, output: str) -> None:
    """Predicted over measured, both logarithmic; the line is where they are equal, the band 12 % around it."""
    from inception_mg.report import plots
    figure, axis = plots.pyplot().subplots(figsize=(5.5, 5), layout='constrained')
    ends = [0.8 * min(one for *_, measured, predicted in found.rows for one in (measured, predicted)),
            1.25 * max(one for *_, measured, predicted in found.rows for one in (measured, predicted))]
    axis.fill_between(ends, [0.88 * end for end in ends], [1.12 * end for end in ends], color='#8a8a8a', alpha=0.2,
                      linewidth=0)
    axis.plot(ends, ends, color='#8a8a8a', linewidth=1)
    for sync, colour, label in ((True, '#1f5fa8', 'synchronous'), (False, '#b3401f', 'asynchronous')):
        rows = [(measured, predicted) for set_up, measured, predicted in found.rows if set_up.sync is sync]
        if rows:
            axis.plot(*zip(*rows, strict=True), 'o', color=colour, markersize=5, label=label)
    axis.set(xscale='log', yscale='log', xlabel='measured, updates/s', ylabel='predicted, updates/s',
             title='Set-ups in the laboratory; band: 12 %')
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    plots.save(figure, output)
