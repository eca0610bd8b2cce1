"""What a finished run of a cluster logged, beside what the model says of it."""

import dataclasses
import pathlib
import re

from dist.planner.machine import Machine
from dist.planner.networks import of_classes, total
from dist.planner.plan import Planner, Question
from inception_mg.errors import UserError
from inception_mg.run_dir.model_card import read_card

_CLUSTER = re.compile(r'cluster +(?:chief|worker \d+) of (\d+) ps and (\d+) workers?, '
                      r'(asynchronous|synchronous, (\d+) of)')
_BATCH = re.compile(r'batch +\d+ images per update; here (\d+) = (\d+) towers?')
_WIRE = re.compile(r'wire +a step of each worker pulls ([\d.]+) MB of weights and pushes as much of gradients'
                   r'(?:, in (\w+))?;')
_SLICES = re.compile(r'slices +--partition_mb=([\d.]+):')
# Worker 0 calls itself the chief.
_PACE = re.compile(r'(?:chief|worker (\d+)) made (\d+) steps in ([\d.]+) s(?:, (\d+)% of it waiting for updates)?:')
_SERVES = re.compile(r'(?:chief|worker \d+) serves on (\S+):\d+')


@dataclasses.dataclass(frozen=True)
class Run:
    """What was logged. images, towers: of one worker's step. megabytes: that it pulls; 0 = not said. wire_dtype: in
    which. steps: worker -> (steps, seconds, share of them that it waited for updates, or None). one_machine: all
    listened on loopback. partition: bytes above which variables were cut into slices; 0 = none were."""

    ps: int
    workers: int
    sync: bool
    needed: int
    images: int
    towers: int
    megabytes: float
    wire_dtype: str
    steps: dict[int, tuple[int, float, float | None]]
    one_machine: bool
    partition: int = 0

    @property
    def images_per_sec(self) -> float:
        """Of all workers; those of dropped gradients do not count."""
        if self.sync:
            return max(count / seconds for count, seconds, _ in self.steps.values()) * self.needed * self.images
        return sum(count / seconds for count, seconds, _ in self.steps.values()) * self.images


def read_run(train_dir: str) -> Run:
    """Reads TRAIN_DIR/logs/*.log, the last run in each. UserError, in one line, where they do not say enough."""
    folder = pathlib.Path(train_dir, 'logs')
    texts = [path.read_text(errors='replace') for path in sorted(folder.glob('*.log'))]
    if not texts:
        raise UserError(f'--check={train_dir}: there is no {folder}/*.log; launch_local.py leaves them; on other '
                        'clusters put what each task prints there, a file per task')
    steps, found = {}, {}
    for text in texts:
        for name, pattern in (('cluster', _CLUSTER), ('batch', _BATCH), ('wire', _WIRE), ('slices', _SLICES)):
            if matches := list(pattern.finditer(text)):
                found[name] = matches[-1]
        for match in _PACE.finditer(text):
            steps[int(match[1] or 0)] = (int(match[2]), float(match[3]), int(match[4]) / 100 if match[4] else None)
    if 'cluster' not in found or 'batch' not in found or not any(seconds for _, seconds, _ in steps.values()):
        raise UserError(f'--check={train_dir}: its logs hold no run of a cluster that came to its end ("worker 0 made '
                        '... steps in ... s")')
    hosts = {host for text in texts for host in _SERVES.findall(text)}
    ps, workers, manner, needed = found['cluster'].groups()
    return Run(int(ps), int(workers), manner != 'asynchronous', int(needed or 1), int(found['batch'][1]),
               int(found['batch'][2]), float(found['wire'][1]) if 'wire' in found else 0.0,
               'wire' in found and found['wire'][2] or 'float32',
               {worker: one for worker, one in steps.items() if one[1] and worker < int(workers)},
               bool(hosts) and hosts <= {'127.0.0.1', 'localhost', '[::1]'},
               round(float(found['slices'][1]) * 1e6) if 'slices' in found else 0)


def machine_for(train_dir: str, machine: Machine) -> Machine:
    """The machine with the run's number of classes. UserError, in one line, if the run was of another network than was
    measured."""
    card = read_card(train_dir)
    if card is None:
        return machine
    for name in ('model', 'width', 'image_size', 'compute_dtype'):
        if getattr(card, name) != machine.settings.get(name, getattr(card, name)):
            raise UserError(f'--check={train_dir}: it trained with --{name}={getattr(card, name)}, --machine was '
                            f'measured with {machine.settings[name]}: calibrate with the flags of the run')
    return dataclasses.replace(machine, variables=of_classes(machine.variables, len(card.labels)))


def compare_run(train_dir: str, machine: Machine, gbits: float) -> list[str]:
    """Lines: what was run, and logged beside predicted images/s, step and bytes."""
    run, machine = read_run(train_dir), machine_for(train_dir, machine)
    factor = 0.5 if run.wire_dtype == 'bfloat16' else 1.0
    size = total(machine.variables) * factor / 1e6
    if run.megabytes and not 0.95 < run.megabytes / size < 1.05:
        raise UserError(f'--check={train_dir}: its workers pulled {run.megabytes:.1f} MB, --machine is of a network '
                        f'of {size:.1f} MB: calibrate with the flags of the run')
    planner = Planner(machine, Question(run.sync, run.towers, run.images // run.towers, bytes_factor=factor,
                                        partition=run.partition))
    more = []
    if run.one_machine:
        step = shared_cores(planner, run.workers)
        predicted, how = (run.needed if run.sync else run.workers) * run.images / step, 'all tasks share its cores'
    else:
        row = planner.row(run.workers, run.ps, gbits, run.workers - run.needed if run.sync else 0)
        step, predicted, how = row.step, row.images_per_sec, 'a machine per task'
        more.append(f'predicted: {row.low:.4g} to {row.high:.4g} images/s, bound by {row.bound}'
                    + (f' (doubled: {row.gains[row.bound]:+.0%})' if row.bound in row.gains else ''))
        if not (gbits or machine.own_gbits):
            more.append('no --network was given: wires that are never full are assumed; name that of the run, '
                        'such as --network=10')
    own = sum(seconds for _, seconds, _ in run.steps.values()) / sum(count for count, *_ in run.steps.values())
    megabytes = run.megabytes or size
    lines = [f'{train_dir}: {run.workers} worker{"s" * (run.workers > 1)} of {run.towers} '
             f'tower{"s" * (run.towers > 1)} and {run.images} images, {run.ps} ps, '
             + (f'synchronous, {run.needed} gradients per update' if run.sync else 'asynchronous') + f'; {how}',
             f'{"":<34}{"logged":>10}{"predicted":>11}{"error":>8}',
             _line('images/s', run.images_per_sec, predicted), _line('seconds of a worker\'s step', own, step),
             _line('MB/s each way of a worker', megabytes / own, megabytes / step)]
    waits = [wait for *_, wait in run.steps.values() if wait is not None]
    if waits:
        lines.append(f'{"waiting for updates":<34}{sum(waits) / len(waits):>10.0%}')
    return lines + more


def shared_cores(planner: Planner, workers: int) -> float:
    """Seconds of a worker's step where all tasks run on one machine: its cores compute and move for all of them, and
    nothing overlaps, as there is nobody else to do it."""
    machine = planner.machine
    moving = 2 * total(machine.variables) * planner.question.bytes_factor / machine.worker_rate
    return workers * (planner.seconds() + moving + total(machine.variables) * machine.update + machine.round)


def _line(what: str, logged: float, predicted: float) -> str:
    return f'{what:<34}{logged:>10.4g}{predicted:>11.4g}{predicted / logged - 1:>+8.1%}'
