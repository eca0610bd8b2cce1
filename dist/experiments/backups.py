"""Claim 5: backup workers. Update time against their number, with the project's synchronous replicas and simulated."""

import time
from collections.abc import Sequence

import numpy as np

from dist.experiments import figures
from dist.experiments.jobs import Client, SyncPace, one_layer, run_synchronously, start_clients, worker_placement
from dist.experiments.order_statistics import mean_update, mean_wait, normalised_speedup, stragglers
from dist.experiments.result import Request, Result, Table
from dist.experiments.waiting import step_seconds
from inception_mg.data.progress import progress

NEEDED, SECONDS, CHANCE, FACTOR = 6, 0.12, 0.08, 5.0  # The cluster that runs.
# 50 workers and the update time of the published experiment: Abadi et al., "TensorFlow: A system for large-scale
# machine learning", OSDI 2016, section 6.3 and figure 8. Distribution and ps cost are ours, chosen for its shape.
LARGE, LARGE_SECONDS, LARGE_CHANCE, LARGE_FACTOR, LARGE_SPREAD, PS_COST = 50, 1.44, 0.025, 1.4, 0.005, 0.0087
MOST_BACKUPS = 7
CLAIM = ('A few backup workers shorten a synchronous update that stragglers delay; each further one gains less, and '
         'costs a machine.')


def run(request: Request) -> Result:
    """NEEDED gradients per update and 0 to 3 (or 4) backups, for real; LARGE and 0 to MOST_BACKUPS, simulated."""
    counts, updates = (range(5), 150) if request.full else (range(4), 70)
    measured = {}
    for backups in progress(counts, len(counts), 'backups', 'numbers of backups'):
        measured[backups] = measure(backups, updates)
    return summarise(measured)


def measure(backups: int, updates: int) -> SyncPace:
    """NEEDED + backups workers in this process, of which each is now and then FACTOR times slower."""
    workers = NEEDED + backups

    def pause_of(worker: int):
        draw = step_seconds(SECONDS, CHANCE, FACTOR, seed=worker)
        return lambda tower: (lambda: time.sleep(draw()))

    return run_synchronously(start_clients([
        Client(worker_placement(k), k, one_layer(pause_of(k)), sync=(NEEDED, workers), last_step=updates + 2)
        for k in range(workers)]))


def simulate_small(backups: Sequence[int]) -> dict[int, float]:
    """What the cluster that runs should take, without its own costs."""
    return {b: mean_update(stragglers(np.random.RandomState(b), SECONDS, CHANCE, FACTOR), NEEDED, NEEDED + b)
            for b in backups}


def simulate_large(ps_cost: float) -> dict[int, float]:
    """b -> seconds of an update of LARGE gradients; each worker's traffic adds ps_cost to it."""
    return {b: mean_wait(stragglers(np.random.RandomState(7), LARGE_SECONDS, LARGE_CHANCE, LARGE_FACTOR, LARGE_SPREAD),
                         LARGE, LARGE + b, 20000) + ps_cost * (LARGE + b) for b in range(MOST_BACKUPS + 1)}


def summarise(measured: dict[int, SyncPace]) -> Result:
    """Tables and figure of the cluster that ran and of the one that was simulated."""
    times = {backups: pace.seconds for backups, pace in measured.items()}
    gains, expected = normalised_speedup(times, NEEDED), simulate_small(list(times))
    plain, loaded = simulate_large(0.0), simulate_large(PS_COST)
    plain_gains, loaded_gains = normalised_speedup(plain, LARGE), normalised_speedup(loaded, LARGE)
    emulated = (f'computing is a wait of {SECONDS * 1e3:.0f} ms, with probability {CHANCE:.0%} {FACTOR:g}x as long; '
                f'N={LARGE} is simulated: order statistics of {LARGE_SECONDS:g} s +- {LARGE_SPREAD:.1%}, with '
                f'probability {LARGE_CHANCE:.1%} {LARGE_FACTOR:g}x as long; {PS_COST * 1e3:g} ms of the ps per '
                'worker')
    most, peak = max(times), max(gains, key=gains.get)
    best, shortest = max(loaded_gains, key=loaded_gains.get), min(loaded, key=loaded.get)
    tables = [
        Table(('backups', 'update, s', 'simulated, s', 'normalised speed-up', 'gradients dropped'),
              [(b, times[b], expected[b], gains[b], measured[b].dropped) for b in times],
              f'Run: {NEEDED} gradients per update'),
        Table(('backups', 'update, s', 'normalised speed-up', 'update without ps cost, s', 'normalised without'),
              [(b, loaded[b], loaded_gains[b], plain[b], plain_gains[b]) for b in loaded],
              f'Simulated: {LARGE} gradients per update')]
    return Result(CLAIM, tables, [
        f'Run with {NEEDED} gradients per update: {most} backups take an update from {times[0]:.2f} to '
        f'{times[most]:.2f} s; best normalised is {peak}, with a speed-up of {gains[peak]:.2f} per machine.',
        f'Simulated with {LARGE}: best normalised at {best} backups ({loaded_gains[best]:.3f}), shortest update at '
        f'{shortest}. Published for 50 workers: best normalised at 3, shortest at 4. That more backups make it longer '
        'again comes from the ps alone; order statistics only fall.'],
        draw(times, expected, gains, loaded, loaded_gains, plain, emulated), emulated)


def draw(times, expected, gains, loaded, loaded_gains, plain, emulated: str):
    """Left the cluster that ran, right the one that was simulated: update time and normalised speed-up."""
    figure, (left, right) = figures.panels(
        [f'Run: N={NEEDED}', f'Simulated: N={LARGE}'], [('backup workers b', 'seconds per update')] * 2,
        f'Emulated: {emulated}', height=3.8)
    for axis, seconds, ratio, other, label in (
            (left, times, gains, expected, 'update, simulated'),
            (right, loaded, loaded_gains, plain, 'without ps cost')):
        figures.curve(axis, list(seconds), list(seconds.values()), figures.BLUE, 'update')
        figures.curve(axis, list(other), list(other.values()), figures.BLUE, label, measured=False)
        beside = axis.twinx()
        figures.curve(beside, list(ratio), list(ratio.values()), figures.RED, 'normalised speed-up (right axis)')
        beside.set_ylabel('t(0)/t(b) x N/(N+b)', color=figures.RED)
        beside.set_ylim(1 - 0.1 * (max(ratio.values()) - 1), 1 + 1.5 * (max(ratio.values()) - 1))
        axis.set_ylim(0, 1.5 * max(seconds.values()))
        axis.set_xticks(list(seconds))
        figures.legend(axis, handles=[*axis.get_lines(), *beside.get_lines()], loc='upper right')
    for backups, words in ((3, 'published: best normalised'), (4, 'published: shortest update')):
        right.axvline(backups, color=figures.GREY, linestyle=':', linewidth=1)
        right.annotate(words, (backups, 0.02), xycoords=('data', 'axes fraction'), fontsize=7, color=figures.GREY,
                       xytext=(2, 0), textcoords='offset points', rotation=90)
    return figure
