"""Pictures of training, evaluation and benchmarks as PNG files, by matplotlib: pip install ".[demo]"."""

import importlib.util
import io
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from inception_mg.errors import UserError
from inception_mg.files import write_bytes

_LOSS, _RATE, _PRECISION = '#1f5fa8', '#666666', '#b3401f'
_OTHERS = '#d9a441'
_MOST_NAMES = 60  # With more classes the names beside a matrix cannot be read.


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec('matplotlib') is not None


def draw_training(losses: Mapping[int, float], rates: Mapping[int, float], precisions: Mapping[int, float],
                  title: str, output: str) -> None:
    """Draws step -> value: loss on the left axis, precision@1 on the right, the learning rate below."""
    figure, (top, bottom) = pyplot().subplots(2, 1, sharex=True, figsize=(9, 6), height_ratios=(4, 1),
                                               layout='constrained')
    for axis, values, colour, label in ((top, losses, _LOSS, 'training loss (with weight decay)'),
                                        (bottom, rates, _RATE, 'learning rate')):
        axis.plot(*_points(values), color=colour, linewidth=1.2)
        axis.set_ylabel(label, color=colour)
        axis.grid(alpha=0.3)
    if precisions:
        _plot_precision(top.twinx(), precisions)
    top.set_title(title)
    bottom.set_xlabel('global_step')
    save(figure, output)


def draw_precision(precisions: Mapping[int, float], title: str, output: str) -> None:
    """Draws precision@1 of evaluated checkpoints over their steps."""
    figure, axis = pyplot().subplots(figsize=(9, 4), layout='constrained')
    _plot_precision(axis, precisions)
    axis.grid(alpha=0.3)
    axis.set_title(title)
    axis.set_xlabel('global_step')
    save(figure, output)


def draw_confusion(confusion: np.ndarray, labels: Sequence[str], title: str, output: str) -> None:
    """Draws counts [classes, guesses] as shares of each class (row), with the counts in them if there is room."""
    rows, columns = confusion.shape
    side = min(16.0, 3.5 + 0.45 * max(rows, columns))
    figure, axis = pyplot().subplots(figsize=(side, side * 0.9), layout='constrained')
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axis.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    figure.colorbar(image, ax=axis, label='share of the class', shrink=0.8)
    axis.set(title=title, xlabel='guess', ylabel='class')
    if columns <= _MOST_NAMES:
        # Columns may begin with the background, which has no row.
        axis.set_xticks(range(columns), labels[-columns:], rotation=60, ha='right', fontsize=8)
        axis.set_yticks(range(rows), labels[-rows:], fontsize=8)
    if columns <= _MOST_NAMES // 3:
        for row, column in zip(*np.nonzero(confusion), strict=True):
            axis.text(column, row, confusion[row, column], ha='center', va='center', fontsize=8,
                      color='white' if shares[row, column] > 0.5 else 'black')
    save(figure, output)


class Bars(NamedTuple):
    """One panel of `draw_bars`. values: name -> (median, lower, upper quartile). peers: names drawn as others' work.
    goals: name -> a mark on its bar."""

    label: str
    values: Mapping[str, tuple[float, float, float]]
    peers: Collection[str] = ()
    goals: Mapping[str, float] = {}


def draw_bars(left: Bars, right: Sequence[Bars], title: str, output: str) -> None:
    """Draws bars with medians as numbers, quartiles as whiskers and a line at 1: `left`, and `right` of it the others,
    one below the other. Panels without values are left out."""
    panels = [panel for panel in right if panel.values]
    rows = max(len(left.values), sum(len(panel.values) + 2 for panel in panels) - 2)
    figure = pyplot().figure(figsize=(12, 1.4 + 0.3 * rows), layout='constrained')
    grid = figure.add_gridspec(len(panels) or 1, 2, height_ratios=[len(panel.values) + 0.5 for panel in panels] or [1])
    if left.values:
        _plot_bars(figure.add_subplot(grid[:, 0]), left)
    for row, panel in enumerate(panels):
        _plot_bars(figure.add_subplot(grid[row, 1]), panel)
    figure.suptitle(title, fontsize=10)
    save(figure, output)


def _plot_bars(axis, panel: Bars) -> None:
    for row, (name, (median, low, high)) in enumerate(panel.values.items()):
        axis.barh(row, median, height=0.64, color=_OTHERS if name in panel.peers else _LOSS,
                  xerr=[[median - low], [high - median]], error_kw={'ecolor': '#222222', 'capsize': 2, 'linewidth': 1})
        if name in panel.goals:
            axis.plot([panel.goals[name]] * 2, [row - 0.42, row + 0.42], color=_PRECISION, linewidth=2)
        axis.annotate(f'{median:.2f}', (max(high, panel.goals.get(name, 0)), row), xytext=(5, 0),
                      textcoords='offset points', va='center', fontsize=8,
                      bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.8})
    axis.set_yticks(range(len(panel.values)), panel.values, fontsize=9)
    axis.set_ylim(len(panel.values) - 0.4, -0.6)  # The first one on top.
    axis.axvline(1, color='#888888', linewidth=1, linestyle='--')
    axis.margins(x=0.14)
    axis.set_xlim(left=0)
    axis.set_title(panel.label, fontsize=9)
    axis.grid(axis='x', alpha=0.3)
    axis.set_axisbelow(True)


def _plot_precision(axis, precisions: Mapping[int, float]) -> None:
    steps, values = _points(precisions)
    axis.plot(steps, values, color=_PRECISION, marker='o', markersize=3, linewidth=1.4)
    axis.set_ylim(0, 1)
    axis.set_ylabel(f'precision@1 (last {values[-1]:.3f}, best {max(values):.3f})', color=_PRECISION)


def _points(values: Mapping[int, float]) -> tuple:
    return tuple(zip(*sorted(values.items()), strict=True)) or ((), ())


def pyplot():
    if not available():
        raise UserError('matplotlib is not installed: pip install ".[demo]"')
    import matplotlib
    matplotlib.use('Agg')  # Draws into files, on machines without a screen too.
    import matplotlib.pyplot as plt
    return plt


def save(figure, output: str) -> None:
    """Saves the figure as PNG, so that a reader sees the old file or the new one; UserError where it cannot."""
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=120, format='png')
        write_bytes(output, picture.getvalue())
    finally:
        pyplot().close(figure)
