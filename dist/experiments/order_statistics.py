"""How long an update waits for the slowest of its workers: random steps, given to the planner's model."""

from collections.abc import Callable

import numpy as np

from dist.planner import model

Draw = Callable[[tuple[int, ...]], np.ndarray]  # Shape -> seconds of that many steps.


def stragglers(random: np.random.RandomState, seconds: float, chance: float, factor: float, spread: float = 0.0
               ) -> Draw:
    """Steps of `seconds`, times a normal 1 +- spread; with probability `chance`, of `factor` times as many."""
    def draw(shape: tuple[int, ...]) -> np.ndarray:
        jitter = 1 + spread * random.standard_normal(shape)
        return seconds * np.where(random.uniform(size=shape) < chance, factor, 1.0) * np.maximum(jitter, 0.1)
    return draw


def mean_wait(draw: Draw, needed: int, workers: int, updates: int = 4000) -> float:
    """Mean time until `needed` of `workers` that begin together are done: the planner's, of such draws."""
    return model.mean_wait(draw((updates, workers)).tolist(), needed)


def mean_update(draw: Draw, needed: int, workers: int, updates: int = 4000) -> float:
    """The same where who is late finishes before it begins for a later update, as SyncReplicas lets it."""
    return model.mean_order(draw((updates, workers)).tolist(), needed)


def normalised_speedup(times: dict[int, float], needed: int) -> dict[int, float]:
    """b -> t(0)/t(b) x N/(N + b): the gain per worker, so that backups pay for themselves above 1."""
    return {backups: times[0] / seconds * needed / (needed + backups) for backups, seconds in times.items()}
