"""How long an update waits for the slowest of its workers: simulated, by numpy alone."""

from collections.abc import Callable

import numpy as np

Draw = Callable[[tuple[int, ...]], np.ndarray]  # Shape -> seconds of that many steps.


def stragglers(random: np.random.RandomState, seconds: float, chance: float, factor: float, spread: float = 0.0
               ) -> Draw:
    """Steps of `seconds`, times a normal 1 +- spread; with probability `chance`, of `factor` times as many."""
    def draw(shape: tuple[int, ...]) -> np.ndarray:
        jitter = 1 + spread * random.standard_normal(shape)
        return seconds * np.where(random.uniform(size=shape) < chance, factor, 1.0) * np.maximum(jitter, 0.1)
    return draw


def mean_wait(draw: Draw, needed: int, workers: int, updates: int = 4000) -> float:
    """Mean time until `needed` of `workers` that begin together are done: the mean order statistic."""
    return float(np.sort(draw((updates, workers)), axis=1)[:, needed - 1].mean())


def mean_update(draw: Draw, needed: int, workers: int, updates: int = 4000) -> float:
    """The same where who is late finishes before it begins for a later update, as SyncReplicas lets it.

    Each update takes the first `needed` gradients that were begun for it.
    """
    free, now = np.zeros(workers), 0.0
    for seconds in draw((updates, workers)):
        done = np.maximum(free, now) + seconds
        end = np.sort(done)[needed - 1]
        # Who is free before the end began for this update and may be in it; the others are not there at all.
        free = np.where(np.maximum(free, now) < end, done, free)
        now = end
    return float(now / updates)


def normalised_speedup(times: dict[int, float], needed: int) -> dict[int, float]:
    """b -> t(0)/t(b) x N/(N + b): the gain per worker, so that backups pay for themselves above 1."""
    return {backups: times[0] / seconds * needed / (needed + backups) for backups, seconds in times.items()}
