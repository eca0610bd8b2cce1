"""Claim 6: kill a worker. Steps of each before, while it is away, and after it is back; real processes, SIGKILL."""

import dataclasses
import os
import pathlib
import re
import sys
import tempfile
import time

from dist.experiments import figures
from dist.experiments.result import Request, Result, Table
from dist.experiments.slow_task import OWN_STEP
from dist.launch.local import Drill, LocalCluster, free_ports, task_flags
from inception_mg.data.progress import note
from inception_mg.errors import UserError
from inception_mg.run_dir.run_state import request_stop

WORKERS, VICTIM, WAIT = 3, 'worker 2', 0.4  # Emulated: seconds that a device computes in a step.
SETTLE = 2.0  # Seconds after an event that belong to no phase.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLAIM = ('When a worker of an asynchronous job is killed the others go on at their pace; the job loses what the dead '
         'one made, until it is back.')


@dataclasses.dataclass
class Outage:
    """What happened, in seconds: the own steps of each worker, the kill, and the victim's first step after it."""

    steps: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    killed: float = 0.0
    back: float = 0.0

    def phases(self) -> dict[str, tuple[float, float]]:
        """From when to when: all were there, one was away, all were there again."""
        begun = max(times[0] for times in self.steps.values())
        return {'before': (begun + SETTLE, self.killed), 'away': (self.killed + SETTLE, self.back),
                'after': (self.back + SETTLE, min(times[-1] for times in self.steps.values()))}

    def rate(self, worker: str, phase: tuple[float, float]) -> float:
        """Steps per second of a worker between two moments."""
        begun, ended = phase
        return sum(begun <= at < ended for at in self.steps[worker]) / (ended - begun)


def run(request: Request) -> Result:
    """1 ps and WORKERS workers by the launcher, which kills one of them and starts it again."""
    return summarise(watch(request.data_dir, request.scratch, kill_at=150 if request.full else 50,
                           steps_after=60 if request.full else 20))


def watch(data_dir: str, scratch: str, kill_at: int, steps_after: int) -> Outage:
    """Runs the job until the victim has made so many steps after its return. UserError when it comes to no end."""
    folder = tempfile.mkdtemp(prefix='dead_worker_', dir=scratch)
    outage, begun = Outage(), time.monotonic()
    commands = {name: [sys.executable, '-m', 'dist.experiments.slow_task', *flags, f'--data_dir={data_dir}',
                       f'--train_dir={folder}', f'--wait_secs={WAIT}']
                for name, flags in task_flags(1, WORKERS, free_ports(1 + WORKERS)).items()}

    def hear(text: str) -> None:
        """Every line of every task comes here."""
        name, _, line = text.partition('|')
        now, worker = time.monotonic() - begun, name.strip()
        if 'drill: killing' in line:
            outage.killed = now
            note(f'dead_worker: {VICTIM} is killed after {now:.0f} s; it is started again')
        if re.search(OWN_STEP, line):
            outage.steps.setdefault(worker, []).append(now)
            if worker == VICTIM and outage.killed and not outage.back:
                outage.back = now
                note(f'dead_worker: {VICTIM} is back after {now:.0f} s')
            if outage.back and sum(at >= outage.back for at in outage.steps[VICTIM]) == steps_after:
                request_stop(folder, 'the experiment has seen enough')

    note(f'dead_worker: 1 ps and {WORKERS} workers start; about a minute and a half')
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])}
    code = LocalCluster(commands, os.path.join(folder, 'logs'), max_restarts=1, drills=[Drill(VICTIM, kill_at)],
                        step_pattern=r'global step (\d+)', colour=False, environ=environ, write=hear).run()
    if code or not outage.back:
        raise UserError(f'dead_worker: the cluster ended with {code} before {VICTIM} was back; see {folder}/logs')
    return outage


def summarise(outage: Outage) -> Result:
    """A row per worker, and their steps over time."""
    phases = outage.phases()
    workers = sorted(outage.steps)
    rows = [(worker, *(outage.rate(worker, phase) for phase in phases.values())) for worker in workers]
    rows.append(('all', *(sum(row[k] for row in rows) for k in (1, 2, 3))))
    others = [sum(row[k] for row in rows[:-1] if row[0] != VICTIM) for k in (1, 2, 3)]
    emulated = (f'a device that takes {WAIT * 1e3:.0f} ms longer per step, so that {WORKERS} workers do not fight for '
                'the cores; processes, network (Inception v3, width 0.05), ps and SIGKILL are real')
    figure, (axis,) = figures.panels(
        [f'{VICTIM} is killed, and started again'], [('seconds since the first step', 'own steps')],
        f'Emulated: {emulated}', width=8.2)
    first = min(times[0] for times in outage.steps.values())
    for worker, colour in zip(workers, figures.COLOURS, strict=False):
        axis.step([at - first for at in outage.steps[worker]], range(1, len(outage.steps[worker]) + 1), where='post',
                  color=colour, label=worker + (' (the chief)' if worker == 'worker 0' else ''))
    for at, words in ((outage.killed - first, 'SIGKILL'), (outage.back - first, 'its first step')):
        axis.axvline(at, color=figures.GREY, linestyle='--', linewidth=1)
        axis.annotate(words, (at, 1), xycoords=('data', 'axes fraction'), xytext=(3, -2), textcoords='offset points',
                      va='top', fontsize=8, color=figures.GREY)
    axis.set_ylim(bottom=0)
    figures.legend(axis, loc='center left', bbox_to_anchor=(1.0, 0.5))
    return Result(CLAIM, [Table(('worker', 'before', 'while it is away', 'after'), rows, 'Steps per second')], [
        f'The other {WORKERS - 1} workers made {others[0]:.2f} steps/s before, {others[1]:.2f} while {VICTIM} was away '
        f'({others[1] / others[0]:.0%}) and {others[2]:.2f} after. It was away for {outage.back - outage.killed:.0f} s,'
        ' most of which a new process takes to import TensorFlow and to build its graph, on the same cores.'],
        figure, emulated)
