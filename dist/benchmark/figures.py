"""The figures of a benchmark as numbers, as a table and as a picture."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Collection, Mapping, Sequence

from dist.benchmark import race
from dist.benchmark.race import Lap, Spread

BASE, MATMUL, CONVOLUTIONS, STREAM = 'one_device', 'matmul', 'convolutions', 'tcp'
LIMITS = (MATMUL, CONVOLUTIONS, STREAM)
NOT_TRAINING = ('input', 'input_2016', 'inference', 'keras_inference')
_UNITS = {'images': (1, 'images/s'), 'flops': (1e9, 'GFLOP/s'), 'bytes': (1e9, 'GB/s')}


@dataclasses.dataclass(frozen=True)
class Figure:
    """One contender over all rounds.

    rate: in `unit` per second. to_base: its rate over that of one device in the same round. of_matmul,
    of_convolutions and of_stream: its operations or bytes per second over those of the limits. per_core: amount
    per CPU second. None: says nothing for this contender.
    """

    name: str
    unit: str
    rate: Spread
    to_base: Spread | None
    of_matmul: Spread | None
    of_convolutions: Spread | None
    of_stream: Spread | None
    per_core: Spread
    rounds: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Ours over something else, round by round. goal: what the ratio should be at least; None where it informs."""

    ours: str
    other: str
    ratio: Spread
    goal: float | None
    per_core: bool

    @property
    def name(self) -> str:
        """'ours / other'."""
        return f'{self.ours} / {self.other}' + (', per core' if self.per_core else '')


def figures(laps: Sequence[Mapping[str, Lap]], infos: Mapping[str, Mapping]) -> list[Figure]:
    """The figures of all contenders, in the order of `infos`. laps: all rounds. infos: what each said of
    itself: 'unit', 'amount', and perhaps 'flops' of a step."""
    return [_figure(laps, name, info) for name, info in infos.items() if race.rates(laps, name)]


def _figure(laps: Sequence[Mapping[str, Lap]], name: str, info: Mapping) -> Figure:
    flops = info.get('flops', 0) / info['amount']

    def ratio(other: str, factor: float) -> Spread | None:
        values = [value * factor for value in race.ratios(laps, name, other)]
        return race.spread(values) if values and factor and name not in LIMITS else None

    return Figure(name, info['unit'], race.spread(race.rates(laps, name)),
                  ratio(BASE, info['unit'] == 'images'), ratio(MATMUL, flops), ratio(CONVOLUTIONS, flops),
                  ratio(STREAM, info['unit'] == 'bytes'), race.spread(race.per_core(laps, name)),
                  len(race.rates(laps, name)))


def comparisons(laps: Sequence[Mapping[str, Lap]], pairs: Sequence[tuple[str, str, float | None, bool]]
                ) -> list[Comparison]:
    """Those of `pairs` (ours, other, goal, per_core) that ran in the same rounds."""
    found = []
    for ours, other, goal, per_core in pairs:
        values = race.ratios(laps, ours, other, 'per_core' if per_core else 'rate')
        if values:
            found.append(Comparison(ours, other, race.spread(values), goal, per_core))
    return found


@dataclasses.dataclass(frozen=True)
class Report:
    """All that a benchmark has found. peers: names of what others offer. start_seconds: of each start of a cluster
    that was timed, which should stay below start_goal. failed: contender -> why it did not run to its end. rounds:
    the laps of each round."""

    title: str
    machine: dict
    flags: dict
    figures: list[Figure]
    comparisons: list[Comparison]
    start_seconds: list[float]
    start_goal: float
    failed: dict[str, str]
    peers: Collection[str]
    rounds: Sequence[Mapping[str, Lap]] = ()

    def lines(self) -> list[str]:
        """What the screen shows: medians, with quartiles in brackets."""
        lines = [self.title, f'{self.machine["cpu"]}, {self.machine["cores"]} cores, TensorFlow '
                 f'{self.machine["tensorflow"]}; medians of rounds (quartiles)']
        groups = {'limits of this machine': [f for f in self.figures if f.name in LIMITS],
                  'ours': [f for f in self.figures if f.name not in LIMITS and f.name not in self.peers],
                  'what others offer': [f for f in self.figures if f.name in self.peers]}
        for title, group in groups.items():
            if group:
                lines += ['', f'{title:<24}{"speed":<34}{"x one_device":<20}of its limits', *map(_line, group)]
        if self.comparisons:
            lines += ['', f'{"round by round":<38}{"ratio":<20}goal', *map(_comparison_line, self.comparisons)]
        if self.start_seconds:
            seconds = race.spread(self.start_seconds)
            lines += [f'{"start: seconds to the first step":<38}{show(seconds):<20}'
                      f'{_goal(self.start_goal, seconds.median < self.start_goal, "<")}']
        return [*lines, *(f'{name} failed: {why}' for name, why in self.failed.items())]

    def as_json(self) -> str:
        """Everything, as one object."""
        return json.dumps(_plain(self), indent=1) + '\n'


def _line(figure: Figure) -> str:
    scale, unit = _UNITS[figure.unit]
    speed = f'{show(Spread(*(value / scale for value in figure.rate)))} {unit}'
    ratio = show(figure.to_base) if figure.to_base and figure.name != BASE else ''
    limits = {MATMUL: figure.of_matmul, CONVOLUTIONS: figure.of_convolutions, STREAM: figure.of_stream}
    parts = [f'{value.median:.2f} {name}' for name, value in limits.items() if value]
    if figure.name in NOT_TRAINING[:2]:
        parts.append(f'{show(figure.per_core)} images/s per core')
    return f'{figure.name:<24}{speed:<34}{ratio:<20}{", ".join(parts)}'.rstrip()


def _comparison_line(one: Comparison) -> str:
    goal = '' if one.goal is None else _goal(one.goal, one.ratio.median >= one.goal)
    return f'{one.name:<38}{show(one.ratio):<20}{goal}'.rstrip()


def _goal(goal: float, met: bool, sign: str = '') -> str:
    return f'{sign}{goal:g} {"met" if met else "missed"}'


def _plain(value):
    """Dataclasses and named tuples as dictionaries."""
    if dataclasses.is_dataclass(value):
        return _plain(vars(value))
    if isinstance(value, (Spread, Lap)):
        return value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def show(value: Spread, digits: int = 3) -> str:
    """'1.03 (1.01-1.05)'."""
    median, low, high = (_short(number, digits) for number in value)
    return f'{median} ({low}-{high})'


def _short(number: float, digits: int) -> str:
    """So many significant digits, without an exponent."""
    whole = len(str(int(abs(number)))) if abs(number) >= 1 else 1
    return f'{number:.{max(0, digits - whole)}f}'


def draw(report: Report, output: str) -> None:
    """Writes a PNG: training speeds over that of one device; what part of the limits is reached; ours over others.

    Raises UserError without matplotlib.
    """
    from inception_mg.report import plots  # Here, for the table needs no numpy.
    training = {f.name: f.to_base for f in report.figures if f.to_base and f.name not in NOT_TRAINING}
    limits = {f'{f.name} / {name}': value for f in report.figures if f.name not in report.peers
              for name, value in ((MATMUL, f.of_matmul), (CONVOLUTIONS, f.of_convolutions), (STREAM, f.of_stream))
              if value and (f.name in (BASE, 'inference') or name == STREAM)}
    others = {one.name: one.ratio for one in report.comparisons if one.other in report.peers}
    goals = {one.name: one.goal for one in report.comparisons if one.goal}
    of_base = {one.ours: one.goal for one in report.comparisons if one.goal and one.other == BASE}
    left = plots.Bars('training: images/s over those of one_device', training, report.peers, of_base)
    right = [plots.Bars('speed of ours over the other', others, goals=goals),
             plots.Bars('speed over the limits of this machine', limits, goals=goals)]
    title = (f'{report.title}; {report.machine["cpu"]}, {report.machine["cores"]} cores\n'
             'medians of rounds, whiskers: quartiles; blue: ours, yellow: what others offer; red: the goal')
    plots.draw_bars(left, right, title, output)


def machine() -> dict:
    """What the figures were measured on."""
    cpuinfo = pathlib.Path('/proc/cpuinfo')
    text = cpuinfo.read_text() if cpuinfo.exists() else ''
    model = next((line.split(':')[1].strip() for line in text.splitlines() if line.startswith('model name')), '')
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    return {'cpu': model or platform.processor(), 'cores': cores, 'amx_bf16': 'amx_bf16' in text,
            'system': platform.system(), 'python': platform.python_version(), **_versions()}


def _versions() -> dict[str, str]:
    found = {}
    for package in ('tensorflow', 'keras'):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ''
    return found
