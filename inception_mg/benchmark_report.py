"""The figures of a benchmark as numbers, as a table and as a picture. Needs matplotlib for the picture only."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence

from inception_mg import benchmark
from inception_mg.benchmark import Lap, Spread

BASE, MATMUL, CONVOLUTIONS = 'one_device', 'matmul', 'convolutions'
_UNITS = {'images': (1, 'images/s'), 'flops': (1e9, 'GFLOP/s'), 'bytes': (1e9, 'GB/s')}


@dataclasses.dataclass(frozen=True)
class Figure:
    """One contender over all rounds.

    rate: in `unit` per second. to_base: its rate over that of one device in the same round. of_matmul and
    of_convolutions: its operations per second over those of the ceilings. per_core: amount per CPU second.
    None: says nothing for this contender.
    """

    name: str
    unit: str
    rate: Spread
    to_base: Spread | None
    of_matmul: Spread | None
    of_convolutions: Spread | None
    per_core: Spread
    rounds: int


def figures(laps: Sequence[Mapping[str, Lap]], infos: Mapping[str, Mapping]) -> list[Figure]:
    """The figures of all contenders, in the order of `infos`. laps: all rounds. infos: what each said of
    itself: 'unit', 'amount', and perhaps 'flops' of a step."""
    return [_figure(laps, name, info) for name, info in infos.items() if benchmark.rates(laps, name)]


def _figure(laps: Sequence[Mapping[str, Lap]], name: str, info: Mapping) -> Figure:
    images, flops = info['unit'] == 'images', info.get('flops', 0) / info['amount']

    def ratio(other: str, factor: float) -> Spread | None:
        values = [value * factor for value in benchmark.ratios(laps, name, other)]
        return benchmark.spread(values) if values and factor else None

    return Figure(name, info['unit'], benchmark.spread(benchmark.rates(laps, name)), ratio(BASE, float(images)),
                  ratio(MATMUL, flops), ratio(CONVOLUTIONS, flops),
                  benchmark.spread(benchmark.per_cpu_second(laps, name)), len(benchmark.rates(laps, name)))


def pairs(laps: Sequence[Mapping[str, Lap]], names: Sequence[tuple[str, str]]) -> dict[str, Spread]:
    """'ours / other' -> ratio of their rates, for the pairs that ran in the same rounds."""
    found = {f'{ours} / {other}': benchmark.ratios(laps, ours, other) for ours, other in names}
    return {text: benchmark.spread(values) for text, values in found.items() if values}


@dataclasses.dataclass(frozen=True)
class Report:
    """All that a benchmark has found. pairs: of `pairs`. start_seconds: of each start of a cluster that was timed.
    failed: contender -> why it did not run to its end."""

    title: str
    machine: dict
    flags: dict
    figures: list[Figure]
    pairs: dict[str, Spread]
    start_seconds: list[float]
    failed: dict[str, str]

    def lines(self) -> list[str]:
        """What the screen shows: medians, with quartiles in brackets."""
        lines = [f'{"":<18}{"speed":<34}{"x one device":<21}{"of matmul":<11}of convolutions']
        lines += [_line(figure) for figure in self.figures]
        if self.pairs:
            lines += ['', 'side by side, round by round']
            lines += [f'{text:<36}{show(value)}' for text, value in self.pairs.items()]
        for figure in self.figures:
            if figure.name in ('input', 'input_2016'):
                lines.append(f'{figure.name}: {show(figure.per_core)} images per second of one core')
        if self.start_seconds:
            lines += [f'start: {show(benchmark.spread(self.start_seconds))} s from the launch of 2 ps, a chief and a '
                      'worker to the first training step']
        return [*lines, *(f'{name} did not run: {why}' for name, why in self.failed.items())]

    def as_json(self) -> str:
        """Everything, as one object."""
        return json.dumps(_plain(self), indent=1) + '\n'

    def draw(self, peers: Sequence[str], output: str) -> None:
        """Writes a PNG: left, training speeds over that of one device; right, ours over what it is measured against.

        peers: names that are not ours. Whiskers are quartiles. Raises ImportError without matplotlib.
        """
        import matplotlib
        matplotlib.use('Agg')
        import matplotlib.pyplot as plt
        # Input and inference are no training: on this scale they would hide the rest.
        training = {figure.name: figure.to_base for figure in self.figures
                    if figure.to_base and figure.name not in ('input', 'input_2016', 'inference')}
        height = 1.6 + 0.36 * max(len(training), len(self.pairs), 3)
        picture, (left, right) = plt.subplots(1, 2, figsize=(12, height), layout='constrained', facecolor='white')
        _bars(left, training, ['#c77b30' if name in peers else '#1f5fa8' for name in training],
              'training images/s, one device = 1\n(orange: what others offer)')
        _bars(right, self.pairs, ['#1f5fa8'] * len(self.pairs), 'speed of ours / of the other, side by side')
        picture.suptitle(f'{self.title}\n{self.machine["cpu"]}, {self.machine["cores"]} cores', fontsize=10)
        picture.savefig(output, dpi=120)
        plt.close(picture)


def _line(figure: Figure) -> str:
    scale, unit = _UNITS[figure.unit]
    speed = f'{show(Spread(*(value / scale for value in figure.rate)))} {unit}'
    ratio = show(figure.to_base) if figure.to_base and figure.name != BASE else ''
    ceilings = ['' if value is None or figure.unit == 'flops' else f'{value.median:.2f}'
                for value in (figure.of_matmul, figure.of_convolutions)]
    return f'{figure.name:<18}{speed:<34}{ratio:<21}{ceilings[0]:<11}{ceilings[1]}'.rstrip()


def _plain(value):
    """Dataclasses and named tuples as dictionaries."""
    if dataclasses.is_dataclass(value):
        return _plain(vars(value))
    if isinstance(value, Spread):
        return value._asdict()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def show(value: Spread, digits: int = 3) -> str:
    """'1.03 (1.01-1.05)'."""
    median, low, high = (_short(number, digits) for number in value)
    return f'{median} ({low}-{high})'


def _short(number: float, digits: int) -> str:
    """So many significant digits, without an exponent."""
    whole = len(str(int(abs(number)))) if abs(number) >= 1 else 1
    return f'{number:.{max(0, digits - whole)}f}'


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


def _bars(axis, values: Mapping[str, Spread], colours: Sequence[str], label: str) -> None:
    names = list(values)
    medians = [values[name].median for name in names]
    errors = [[values[name].median - values[name].low for name in names],
              [values[name].high - values[name].median for name in names]]
    axis.barh(names, medians, xerr=errors, color=colours, ecolor='#333333', capsize=2, height=0.62)
    axis.axvline(1, color='#888888', linewidth=1, linestyle='--')
    for position, name in enumerate(names):
        axis.annotate(f'{values[name].median:.2f}', (values[name].high, position), xytext=(4, 0),
                      textcoords='offset points', va='center', fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel(label)
    axis.grid(axis='x', alpha=0.3)
    axis.set_axisbelow(True)
