"""The model beside tables that others have printed: each from its own few calibration points, all others predicted."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

from dist.planner import model, placing, tables
from dist.planner.model import REPLICATED, Job
from dist.planner.networks import network, trained

GATE_LARGEST, GATE_MEAN = 0.10, 0.04
TEN_GBITS = 1.25e9
BUS = 12e9  # Bytes/s of PCIe 3 x16 in use, each way.


class Point(NamedTuple):
    """what: the set-up. measured and predicted: in the table's unit."""

    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One table. fitted: what was taken from it, in words. points: the others, predicted. gated: whether they must
    hold. outliers: those that the model does not reach; they are listed and count. note: why."""

    title: str
    source: str
    unit: str
    fitted: str
    points: list[Point]
    gated: bool = False
    outliers: tuple[str, ...] = ()
    note: str = ''

    @property
    def errors(self) -> list[float]:
        """Sizes of all errors, those of outliers too."""
        return [abs(point.error) for point in self.points]

    @property
    def mean(self) -> float:
        """Mean size of the errors."""
        return sum(self.errors) / len(self.errors)

    @property
    def largest(self) -> float:
        """The largest error."""
        return max(self.errors)


def compare() -> list[Comparison]:
    """All tables, recomputed."""
    return [google_ec2(), cscs(tables.PIZ_DAINT, 128), cscs(tables.P2_XLARGE, 64), inside_gce(), inside_dgx(),
            program_2016(), forward_only(), ohio(), null_step(), own_links(), own_staleness()]


def failures(found: list[Comparison]) -> list[str]:
    """What breaks the gate: a predicted distributed point that is off by more than 10 %, or a mean of more than 4 %."""
    wrong, all_errors = [], []
    for one in found:
        if one.gated:
            all_errors += one.errors
            wrong += [f'{one.title}, {point.what}: {point.error:+.1%}' for point in one.points
                      if abs(point.error) > GATE_LARGEST]
    mean = sum(all_errors) / len(all_errors)
    return wrong + [f'the mean of the distributed points is {mean:.1%}'] * (mean > GATE_MEAN)


def solve(error: Callable[[float], float], low: float, high: float) -> float:
    """Where error(x), which grows with x, crosses 0: the logarithm is halved."""
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if error(middle) < 0 else (low, middle)
    return (low * high) ** 0.5


# Clusters.

def google_ec2() -> Comparison:
    """Machines of 8 GPUs; the cost of a message is fitted, for `distributed_replicated` has a queue per variable."""
    def speed(series: tables.Series, gpus: int, message: float) -> float:
        variables = network(series.network)
        job = Job(trained(variables), placing.round_robin_of_trained(variables, series.ps[gpus]), gpus // 8,
                  8 * series.batch / series.measured[8], 8 * series.batch, TEN_GBITS, TEN_GBITS, message=message,
                  style=REPLICATED)
        return model.synchronous(job).images_per_sec

    fit, at = tables.GOOGLE_EC2[-1], 64
    message = solve(lambda seconds: fit.measured[at] - speed(fit, at, seconds), 1e-6, 1e-1)
    points = [Point(f'{series.title}, {gpus} GPUs, {series.ps[gpus]} ps', series.measured[gpus],
                    speed(series, gpus, message))
              for series in tables.GOOGLE_EC2 for gpus in series.ps if (series, gpus) != (fit, at)]
    return Comparison('Google on EC2, machines of 8 K80', tables.BENCHMARKS, 'images/s',
                      f'a machine from its own speed; {message * 1e3:.2f} ms a message from {fit.title} at {at} GPUs; '
                      '10 Gbit/s given', points, gated=True)


def node_job(series: tables.Series, gpus: int, rate: float) -> Job:
    """A cluster of single-GPU nodes."""
    variables, replicated = network(series.network), gpus in series.replicated
    place = (placing.round_robin_of_trained if replicated else placing.in_creation_order)(variables, series.ps[gpus])
    return Job(trained(variables), place, gpus, series.batch / series.measured[1], series.batch, rate, rate,
               style=REPLICATED if replicated else '')


def cscs(series: tables.Series, at: int) -> Comparison:
    """Single-GPU nodes; the rate of their network is fitted where it is full."""
    rate = node_rate(series, at)
    points = [Point(f'{gpus} nodes, {series.ps[gpus]} ps', series.measured[gpus],
                    model.synchronous(node_job(series, gpus, rate)).images_per_sec)
              for gpus in series.ps if gpus != at]
    return Comparison(f'CSCS on {series.title}, single GPUs, Inception v3', tables.CSCS, 'images/s',
                      f'a node from its own speed; {rate / 1e9:.2f} GB/s of a ps from {at} nodes', points, gated=True)


@functools.cache
def _rate(title: str, at: int) -> float:
    series = next(one for one in (tables.PIZ_DAINT, tables.P2_XLARGE) if one.title == title)
    return solve(lambda rate: model.synchronous(node_job(series, at, rate)).images_per_sec - series.measured[at],
                 1e7, 1e11)


def node_rate(series: tables.Series, at: int) -> float:
    """Bytes/s of a ps with which the model meets the table at so many nodes."""
    return _rate(series.title, at)


def program_2016() -> Comparison:
    """The program whose reference this project is: round robin puts all kernels on every fourth ps."""
    series, at = tables.PROGRAM_2016, 16

    def speed(gpus: int, rate: float) -> float:
        variables = network(series.network)
        job = Job(trained(variables), placing.round_robin(variables, series.ps[gpus]), gpus,
                  series.batch / series.measured[1], series.batch, rate, rate)
        return model.synchronous(job).images_per_sec

    rate = solve(lambda value: speed(at, value) - series.measured[at], 1e7, 1e11)
    points = [Point(f'{gpus} GPUs, {series.ps[gpus]} ps', series.measured[gpus], speed(gpus, rate))
              for gpus in series.ps if gpus not in (1, at)]
    return Comparison('the program of 2016, one worker per GPU, 16 per machine', tables.PROGRAM_2016_SOURCE, 'images/s',
                      f'a GPU from its own speed; {rate / 1e9:.2f} GB/s of a ps from {at} GPUs', points,
                      outliers=('32 GPUs, 2 ps',),
                      note='with 2 ps all kernels lie on one, so 32 GPUs should be as slow as 16: the table has 1.42 '
                           'times as much')


# GPUs of one machine.

def inside(series: tables.Series, gpus: int, host: float, shared_power: float = 0.0) -> float:
    """images/s of so many GPUs of one machine."""
    seconds = model.machine_seconds(trained(network(series.network)), series.batch / series.measured[1], gpus, host,
                                    BUS, shared_power)
    return gpus * series.batch / seconds


def inside_gce() -> Comparison:
    """Eight K80, two to a board."""
    first, vgg = tables.GCE_K80[0], tables.GCE_K80[4]
    power = 0.05
    for _ in range(3):  # Each fit with the other's newest value.
        host = solve(lambda rate, power=power: inside(vgg, 8, rate, power) - vgg.measured[8], 1e9, 1e11)
        power = solve(lambda share, host=host: first.measured[2] - inside(first, 2, host, share),
                      1e-3, 1.0)
    points = _inside_points(tables.GCE_K80, host, power, {(vgg.title, 8), (first.title, 2)})
    return Comparison('Google on GCE, 1 to 8 K80 of a machine', tables.BENCHMARKS, 'images/s',
                      f'{host / 1e9:.1f} GB/s of the host from VGG16 at 8; {power:.0%} slower beside a busy neighbour '
                      'from Inception v3 at 2', points, outliers=('VGG16, 4 GPUs',),
                      note='how its buses are laid out is not printed')


def inside_dgx() -> Comparison:
    """Eight P100."""
    fit = tables.DGX_P100[4]
    host = solve(lambda rate: inside(fit, 8, rate) - fit.measured[8], 1e9, 1e11)
    return Comparison('Google on a DGX-1, 1 to 8 P100', tables.BENCHMARKS, 'images/s',
                      f'{host / 1e9:.1f} GB/s of the host from {fit.title} at 8',
                      _inside_points(tables.DGX_P100, host, 0.0, {(fit.title, 8)}))


def _inside_points(all_series, host: float, power: float, fitted: set) -> list[Point]:
    return [Point(f'{series.title}, {gpus} GPUs', series.measured[gpus], inside(series, gpus, host, power))
            for series in all_series for gpus in (2, 4, 8) if (series.title, gpus) not in fitted]


# Links alone.

def forward_only() -> Comparison:
    """Workers that only pull."""
    series = tables.FORWARD_ONLY
    pull = series.batch / series.measured[8]  # The one link is full at 8 workers.
    think = series.batch / series.measured[1] - pull

    def speed(workers: int) -> float:
        return series.batch * model.share_links([(workers, think)], pull, 0.0)[0]

    rate = sum(variable.bytes for variable in trained(network(series.network))) / pull
    return Comparison('a user\'s CPUs, forward only, 1 ps', tables.FORWARD_ONLY_SOURCE, 'images/s',
                      f'a worker from 1, {rate / 1e6:.0f} MB/s of the ps from 8',
                      [Point(f'{workers} workers', series.measured[workers], speed(workers)) for workers in (2, 4)],
                      outliers=('2 workers',), note='two that hardly ever pull at the same time')


def ohio() -> Comparison:
    """Eleven asynchronous workers that fill the one ps's link."""
    (size, batch, speed), (other, other_batch, measured) = tables.OHIO.values()
    rate = speed / batch * size
    return Comparison('Ohio State, 11 workers, 1 ps, gRPC', tables.OHIO_SOURCE, 'images/s',
                      f'{rate / 1e9:.2f} GB/s of the ps from Inception v4',
                      [Point('ResNet-152', measured, other_batch * rate / other)])


def null_step() -> Comparison:
    """Weights that are only fetched, from 16 ps: the worker's own link, or those of the ps."""
    rate = 1e9 / tables.NULL_STEP[1e9, 1]
    points = [Point(f'{size / 1e6:.0f} MB, {workers} workers', measured,
                    size * max(1 / rate, workers / (tables.NULL_STEP_PS * rate)))
              for (size, workers), measured in tables.NULL_STEP.items() if (size, workers) != (1e9, 1)]
    return Comparison('Abadi et al., null steps, 16 ps', tables.NULL_STEP_SOURCE, 'seconds',
                      f'{rate / 1e9:.2f} GB/s from 1 GB and 1 worker', points,
                      outliers=('100 MB, 1 workers', '1000 MB, 100 workers'),
                      note='what is not bytes: a step has a fixed part of some 45 ms there')


def own_links() -> Comparison:
    """Emulated links of our own: no overlap, 10 % spread."""
    points = []
    for num_ps, (size, steps) in tables.OWN_STEPS.items():
        wire = size / tables.OWN_LINK
        points += [Point(f'{num_ps} ps, {workers} workers', steps[workers],
                         model.take_turns(workers, 1 / steps[1] - 2 * wire, wire))
                   for workers in (2, 4, 8, 16)]
    return Comparison('ours, emulated links, asynchronous', tables.OWN_SOURCE, 'steps/s',
                      'a worker from W = 1; links given', points, outliers=('2 ps, 8 workers',),
                      note='on a busy machine')


def own_staleness() -> Comparison:
    """Updates between a worker's reading and its own, nobody waiting for a wire."""
    points = [Point(f'{workers} workers', measured, model.share_links([(workers, 1.0)], 1e-6, 1e-6)[1])
              for workers, measured in tables.OWN_STALENESS.items()]
    return Comparison('ours, staleness', tables.OWN_STALENESS_SOURCE, 'updates', 'nothing', points)


def lines(found: list[Comparison]) -> list[str]:
    """All tables as text."""
    said = []
    for one in found:
        said += ['', f'{one.title}; {one.unit}', f'  from {one.source}', f'  fitted: {one.fitted}',
                 f'  {"":<44}{"measured":>10}{"predicted":>11}{"error":>8}']
        for point in one.points:
            mark = '  outlier' if point.what in one.outliers else ''
            said.append(f'  {point.what:<44}{point.measured:>10.4g}{point.predicted:>11.4g}{point.error:>+8.1%}{mark}')
        said.append(f'  mean {one.mean:.1%}, largest {one.largest:.1%}, {len(one.points)} points predicted'
                    + ('' if one.gated else '; not gated') + (f' ({one.note})' if one.note else ''))
    gated = [error for one in found if one.gated for error in one.errors]
    said += ['', f'distributed points of Google and CSCS: {len(gated)} predicted, mean {sum(gated) / len(gated):.1%}, '
             f'largest {max(gated):.1%} (gate: none beyond {GATE_LARGEST:.0%}, mean at most {GATE_MEAN:.0%})']
    return said


def as_values(one: Comparison) -> dict:
    """A table for JSON."""
    return {**dataclasses.asdict(one), 'points': [{**point._asdict(), 'error': point.error} for point in one.points],
            'mean': one.mean, 'largest': one.largest}
