"""The plan as a picture: images/s over workers, a curve per network."""

from collections.abc import Sequence

from dist.planner.plan import Planner
from inception_mg.errors import UserError

COLOURS = ('#1f5fa8', '#b3401f', '#2e7d4f', '#d98a1f', '#6f4a9e', '#8a8a8a')


def require() -> None:
    """UserError without matplotlib."""
    from inception_mg.report import plots
    if not plots.available():
        raise UserError('--png: matplotlib is not installed: pip install ".[demo]"')


def draw(planner: Planner, workers: Sequence[int], ps: Sequence[int], networks: Sequence[float], output: str) -> None:
    """Writes a PNG: a curve and a band (its range) per network, linear in grey, measured points as dots."""
    from inception_mg.report import plots
    figure, axis = plots.pyplot().subplots(figsize=(7.5, 5), layout='constrained')
    most, alone = max(workers), planner.images / planner.seconds()
    counts = sorted({*workers, *(2 ** k for k in range(most.bit_length()) if 2 ** k <= most)})
    axis.plot(counts, [count * alone for count in counts], color='#aaaaaa', linewidth=1, label='linear')
    for gbits, colour in zip(networks, COLOURS * len(networks), strict=False):
        rows = [planner.row(count, (max(ps) if ps else planner.best_ps(count, gbits)), gbits) for count in counts]
        label = f'{gbits:g} Gbit/s' if gbits else 'its own network'
        axis.plot(counts, [row.images_per_sec for row in rows], color=colour, linewidth=1.8, label=label)
        axis.fill_between(counts, [row.low for row in rows], [row.high for row in rows], color=colour, alpha=0.15,
                          linewidth=0)
    measured = {count: speed for count, speed in planner.machine.measured.items() if count <= most}
    if measured and planner.as_measured:
        axis.plot(list(measured), list(measured.values()), 'o', color='black', markersize=4, label='measured')
    axis.set_xscale('log', base=2)
    axis.set_xticks(counts, list(map(str, counts)))
    axis.minorticks_off()
    axis.set_xlabel(f'workers of {planner.question.gpus} GPU, {planner.batch} images each')
    axis.set_ylabel('images/s of all workers')
    axis.set_ylim(bottom=0)
    axis.set_title(f'{planner.machine.name}: {"synchronous" if planner.question.sync else "asynchronous"}, '
                   f'{f"{max(ps)} ps" if ps else "the fewest ps within 2 % of the best"}; bands: links 12 % off, '
                   'spread 0 to 4 %', fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=9)
    plots.save(figure, output)
