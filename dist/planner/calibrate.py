"""Measures on this machine what a prediction needs, with the benchmark's own contenders, in about a minute and a half.

    a step without a wire   `one_device`: seconds and spread of single steps
    a ps and a worker       `null_step` with 1 ps and 1, 2 and 4 workers: bytes/s, and CPU seconds per byte of both ends
    what is not bytes       the same with a network of next to no bytes
    an update               CPU seconds of the ps in `null_update`, which applies gradients, less those in `null_step`
    input                   `input`: images/s that are read and distorted

Bytes and variables are those of a step's graph, and that they lie where the ps strategy is said to put them is compared
with the report's plan of that graph.
"""

import dataclasses
import os
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dist.benchmark import groups, race
from dist.benchmark.contenders import OPTIMIZER, build_step
from dist.benchmark.figures import machine as this_machine
from dist.benchmark.made_up_records import make_records
from dist.benchmark.race import Racer, RacerFailed
from dist.planner.machine import ASSUMED_SPREAD, Machine
from dist.planner.networks import Variable
from dist.planner.placing import largest_first
from inception_mg.config import DataConfig, ModelConfig
from inception_mg.errors import UserError
from inception_mg.fast.choice import fast_operations
from inception_mg.placement import CPU, Tower, between_graph, bytes_of
from inception_mg.report.plan import GRADIENTS, WEIGHTS, plan_step

v1 = tf.compat.v1
CPU_BATCH = 8       # Images of a step where there is no GPU and none were asked for.
STEP_SECS = 25.0    # For single steps of one device.
MOVE_SECS = 4.0     # For each number of workers that only move.
WORKERS = (1, 2, 4)
LEAST_WIDTH = 0.02
MOST_SPREAD = 0.05  # Beyond it, it is not the machine's own.
PS = 4              # Number of ps of the graph whose bytes are counted.


class Moved(NamedTuple):
    """What workers that only move have shown. seconds: of a step, each lap. ps_cpu, worker_cpu: CPU s per byte."""

    seconds: list[float]
    ps_cpu: float
    worker_cpu: float


def measure(data: DataConfig, model: ModelConfig, say: Callable[[str], object] = print) -> Machine:
    """Everything, with a line per part. UserError, in one line, when a contender does not run."""
    begun = time.monotonic()
    on_gpu = bool(tf.config.list_physical_devices('GPU'))
    if not on_gpu and data.batch_size == DataConfig().batch_size:
        data = dataclasses.replace(data, batch_size=CPU_BATCH)
    settings = [*_flags(model), f'--image_size={data.image_size}', f'--batch_size={data.batch_size}']
    tiny = [*(flag for flag in settings if not flag.startswith('--width=')), f'--width={LEAST_WIDTH}']

    def part(number: int, what: str) -> None:
        say(f'[{number}/6] {what}; {time.monotonic() - begun:.0f} s so far, about 90 in all')

    with tempfile.TemporaryDirectory(prefix='calibrate_') as name:
        folder = pathlib.Path(name)
        part(1, 'bytes and variables of the graph')
        variables = network_of_graph(data, model)
        size = sum(one.bytes for one in variables if one.trained)
        part(2, f'steps of {data.batch_size} images without a wire')
        steps = single_steps(settings, folder)
        part(3, 'weights and gradients that only move: 1 ps and 1, 2 and 4 workers')
        moved = {count: laps for count, laps in zip(WORKERS, move('null_step', settings, folder, WORKERS), strict=True)}
        part(4, 'the same with next to no bytes')
        nothing, = move('null_step', tiny, folder, (1,))
        part(5, 'the update of a ps')
        updated, = move('null_update', settings, folder, (1,))
        part(6, 'input')
        rate = input_rate(data, folder)
    return summarise(data, model, variables, size, steps, moved, nothing, updated, rate, say)


def summarise(data: DataConfig, model: ModelConfig, variables: Sequence[Variable], size: int, steps: Sequence[float],
              moved: dict[int, Moved], nothing: Moved, updated: Moved, rate: Sequence[float],
              say: Callable[[str], object]) -> Machine:
    """What was measured as a Machine, each figure said with its range."""
    seconds, here = statistics.median(steps), this_machine()
    quartiles = race.spread(steps)
    spread = (quartiles.high - quartiles.low) / 1.35 / seconds  # Of a normal distribution with these quartiles.
    steady = spread <= MOST_SPREAD
    fixed = statistics.median(nothing.seconds)
    one = [2 * size / max(each - fixed, each / 10) for each in moved[1].seconds]
    ps_cpu = statistics.median(each.ps_cpu for each in moved.values())
    ps_rates = [here['cores'] / each.ps_cpu for each in moved.values()]
    # Of a byte that is updated two have moved, and a ps with all cores to itself updates on all of them.
    per_byte = max(0.0, 2 * (updated.ps_cpu - moved[1].ps_cpu)) / here['cores']
    average = _average_seconds()
    capacity = {count: 2 * count * size / statistics.median(each.seconds) for count, each in moved.items()}
    ranges = {'seconds': (min(steps), max(steps)), 'worker_rate': (min(one), max(one)),
              'ps_rate': (min(ps_rates), max(ps_rates)), 'round': (min(nothing.seconds), max(nothing.seconds)),
              'update': (per_byte, per_byte * here['cores']), 'input_rate': (min(rate), max(rate))}
    found = Machine(
        name=here['cpu'] or 'this machine',
        source=f'measured here, TensorFlow {here["tensorflow"]}, {here["cores"]} cores',
        network=model.model, variables=tuple(variables), speeds={data.batch_size: data.batch_size / seconds},
        ps_rate=statistics.median(ps_rates), worker_rate=statistics.median(one), cores=here['cores'],
        spread=spread if steady else ASSUMED_SPREAD, round=fixed, update=per_byte, average=average,
        input_rate=statistics.median(rate), shuffled=True, ranges=ranges,
        settings={'model': model.model, 'width': model.width, 'image_size': data.image_size,
                  'compute_dtype': model.compute_dtype},
        facts=(*([] if steady else [f'its steps vary by {spread:.0%}, as something else runs here: '
                                    f'{ASSUMED_SPREAD:.0%} is assumed for machines of their own']),
               f'on one machine, both ends on its {here["cores"]} cores: ' + ', '.join(
            f'{count} worker{"s" * (count > 1)} {value / 1e9:.2f} GB/s' for count, value in capacity.items()),
            f'a ps takes {ps_cpu * 1e9:.2f} CPU seconds per GB, so that {here["cores"]} cores move '
            f'{statistics.median(ps_rates) / 1e9:.2f} GB/s; a worker '
            f'{statistics.median(each.worker_cpu for each in moved.values()) * 1e9:.2f}'))
    for line in figures_of(found):
        say(line)
    return found


def figures_of(machine: Machine) -> list[str]:
    """Each measured figure with its lowest and highest."""
    def line(name: str, value: float, key: str, unit: str, scale: float = 1.0) -> str:
        low, high = machine.ranges[key]
        return f'  {name:<42}{value * scale:>9.3g} {unit} ({low * scale:.3g} to {high * scale:.3g})'

    batch = machine.default_batch
    trained = [one.bytes for one in machine.variables if one.trained]
    return [
        f'  {"weights down and gradients up, each":<42}{sum(trained) / 1e6:>9.3g} MB in {len(trained)} variables',
        line(f'a step of {batch} images without a wire', batch / machine.speeds[batch], 'seconds', 's'),
        f'  {"its spread":<42}{machine.spread:>9.1%}',
        line('a worker moves', machine.worker_rate, 'worker_rate', 'GB/s', 1e-9),
        line('a ps with all these cores moves', machine.ps_rate, 'ps_rate', 'GB/s', 1e-9),
        line('a step beside its bytes', machine.round, 'round', 'ms', 1e3),
        line('an update on a ps', machine.update, 'update', 's per GB', 1e9),
        f'  {"averaging a gradient on a ps":<42}{machine.average * 1e9:>9.3g} s per GB',
        line('input', machine.input_rate, 'input_rate', 'images/s'), *(f'  {fact}' for fact in machine.facts)]


def network_of_graph(data: DataConfig, model: ModelConfig) -> list[Variable]:
    """The variables of a worker's step, with the multiply-adds of each for one image.

    Raises UserError if the graph's plan moves other bytes to or from a ps than the planner's placement says.
    """
    with tf.Graph().as_default() as graph:
        step = build_step(between_graph(PS, 0, [Tower(CPU, CPU)]), dataclasses.replace(data, batch_size=1), model,
                          OPTIMIZER, fast_operations()[0])
        kernels = {variable.op.name: variable for _, variable in step.gradients}
        slots = {name for name in (v.op.name for v in v1.global_variables()) if name.endswith(
            ('/RMSProp', '/RMSProp_1', '/ExponentialMovingAverage'))}
        macs = multiply_adds(graph, kernels)
        found = [Variable(v.op.name, bytes_of(v), macs.get(v.op.name, 0), v.op.name in kernels,
                          tuple(v.shape.as_list()))
                 for v in v1.global_variables() if v.op.name not in slots and v.dtype == tf.float32]
        plan = plan_step(step.train_op, list(kernels.values()), f'/job:worker/task:0{CPU}')
    place = largest_first(found, PS)
    for ps in range(PS):
        expected = sum(one.bytes for one, where in zip((one for one in found if one.trained), place, strict=True)
                       if where == ps)
        device = f'/job:ps/task:{ps}{CPU}'
        for kind, moves in ((WEIGHTS, [m for m in plan.moves if m.source == device]),
                            (GRADIENTS, [m for m in plan.moves if m.target == device])):
            planned = sum(m.bytes for m in moves if plan.kinds[m.tensor, m.target] == kind)
            if planned != expected:
                raise UserError(f'the graph moves {planned} bytes of {kind} at ps {ps}, the planner says {expected}')
    return found


def multiply_adds(graph: tf.Graph, kernels: dict[str, tf.Variable]) -> dict[str, int]:
    """Kernel -> multiply-adds for one image, from the first product of the forward pass that it enters."""
    found: dict[str, int] = {}
    for name, variable in kernels.items():
        if variable.shape.rank < 2:
            continue
        read = re.compile(f'{re.escape(name)}/read(_[0-9]+)?$')
        seen, todo = set(), [op for op in graph.get_operations() if read.match(op.name)]
        while todo and name not in found:
            op = todo.pop(0)
            for user in (user for tensor in op.outputs for user in tensor.consumers() if user not in seen):
                seen.add(user)
                if user.type == 'Conv2D':
                    pixels = user.outputs[0].shape[1] * user.outputs[0].shape[2]
                    found[name] = variable.shape.num_elements() * pixels
                elif user.type == 'MatMul':
                    found[name] = variable.shape.num_elements()
                elif user.type in ('Identity', 'Cast', 'ConcatV2', 'IdentityN', 'Reshape'):
                    todo.append(user)
    return found


def single_steps(settings: Sequence[str], folder: pathlib.Path) -> list[float]:
    """Seconds of single steps of one device, for STEP_SECS."""
    with _running([groups.make_racer('one_device', settings)], folder) as (racer,):
        racer.run(race.WARM_UP_STEPS)
        end, seconds = time.monotonic() + STEP_SECS, []
        while len(seconds) < 4 or time.monotonic() < end and len(seconds) < 60:
            seconds.append(racer.run(1).seconds)
    return seconds


def move(name: str, settings: Sequence[str], folder: pathlib.Path, counts: Sequence[int]) -> list[Moved]:
    """1 ps and the most workers of `counts`, of which so many at a time move weights and gradients."""
    found, most = [], max(counts)
    with _running([groups.make_racer(name, settings, (1, most))], folder) as (racer,):
        for count in counts:
            racer.timed = count
            once = racer.run(2).seconds / 2
            steps, laps, ps_cpu, worker_cpu, moved = max(1, round(MOVE_SECS / 4 / once)), [], 0.0, 0.0, 0.0
            for _ in range(4):
                before = racer.children[0].cpu_seconds()
                lap = racer.run(steps)
                ps_cpu += racer.children[0].cpu_seconds() - before
                worker_cpu, moved = worker_cpu + lap.cpu, moved + lap.amount
                laps.append(lap.seconds / steps)
            found.append(Moved(laps, ps_cpu / moved, worker_cpu / moved))
        racer.timed = most
    return found


def input_rate(data: DataConfig, folder: pathlib.Path) -> list[float]:
    """Images/s of the input alone, each lap."""
    flags = [f'--data_dir={make_records(folder)}', f'--batch_size={data.batch_size}']
    with _running([groups.make_racer('input', [*flags, f'--image_size={data.image_size}'])], folder) as (racer,):
        return [racer.run(racer.info['least']).rate for _ in range(3)]


class _running:
    """Racers that are up; what fails is a UserError that names it."""

    def __init__(self, racers: Sequence[Racer], folder: pathlib.Path):
        self._why: dict[str, str] = {}
        environ = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
        self._racers = race.starting(racers, pathlib.Path(tempfile.mkdtemp(dir=folder)),
                                     environ | {'TF_FORCE_GPU_ALLOW_GROWTH': 'true'}, self._why.__setitem__)

    def __enter__(self) -> list[Racer]:
        ready = self._racers.__enter__()
        for name, why in self._why.items():
            self._racers.__exit__(None, None, None)
            raise UserError(f'--calibrate: {name} did not run: {why}')
        return ready

    def __exit__(self, kind, error, trace):
        self._racers.__exit__(None, None, None)
        if isinstance(error, RacerFailed):
            raise UserError(f'--calibrate: a contender stopped: {error}') from None


def _average_seconds() -> float:
    """Seconds per byte of adding a gradient to another."""
    one, other = np.ones(1 << 23, np.float32), np.ones(1 << 23, np.float32)
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        np.add(one, other, out=one)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) / one.nbytes


def _flags(settings) -> list[str]:
    return [f'--{name}={value}' for name, value in vars(settings).items()]
