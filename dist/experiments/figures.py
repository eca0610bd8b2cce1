"""The one look of all figures."""

import textwrap
from collections.abc import Sequence

from inception_mg.report import plots

BLUE, RED, GREEN, ORANGE, PURPLE, GREY = '#1f5fa8', '#b3401f', '#2e7d4f', '#d98a1f', '#6f4a9e', '#8a8a8a'
COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, '#2a9d9d', '#a83a74', '#5b6b1f', '#7fb2e5', '#e59a85', '#86c7a0')
_STYLE = {'font.size': 9, 'axes.titlesize': 10, 'axes.titleweight': 'bold', 'axes.titlelocation': 'left',
          'axes.spines.top': False, 'axes.spines.right': False, 'axes.edgecolor': '#555555', 'axes.grid': True,
          'grid.color': '#dddddd', 'grid.linewidth': 0.6, 'axes.axisbelow': True}


def panels(titles: Sequence[str], labels: Sequence[tuple[str, str]], note: str, width: float = 0.0,
           height: float = 3.6):
    """Returns a figure and its axes, side by side. labels: of x and y, with units. note: below the figure, says what
    was emulated. width, height: in inches; 0 = by the number of axes."""
    width = width or 4.4 * len(titles) + 0.4
    plt = plots.pyplot()
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(1, len(titles), figsize=(width, height), layout='constrained', squeeze=False)
        for axis, title, (x, y) in zip(axes[0], titles, labels, strict=True):
            axis.set_title(title)
            axis.set_xlabel(x)
            axis.set_ylabel(y)
        figure.supxlabel(textwrap.fill(note, int(17 * width)), fontsize=7.5, color='#666666', x=0.01, ha='left')
    return figure, list(axes[0])


def curve(axis, x: Sequence[float], y: Sequence[float], colour: str, label: str, measured: bool = True) -> None:
    """A line with a point per measurement, or a dashed one without for what was computed."""
    look = {'marker': 'o', 'markersize': 4.5} if measured else {'linestyle': '--', 'alpha': 0.8}
    axis.plot(x, y, color=colour, label=label, linewidth=1.6, **look)


def doubling(axis, ticks: Sequence[int]) -> None:
    """The x axis for 1, 2, 4, 8, ... of something."""
    axis.set_xscale('log', base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()


def legend(axis, **options) -> None:
    """The legend in small letters, without a frame."""
    axis.legend(frameon=False, fontsize=8, **options)
