"""The eight experiments by name, in the order of the claims."""

from collections.abc import Callable
from typing import NamedTuple

from dist.experiments import (
    backups,
    dead_worker,
    machines,
    ps_bytes,
    split_gain,
    staleness,
    stragglers,
    towers_equal,
)
from dist.experiments.result import Request, Result


class Experiment(NamedTuple):
    """seconds: about how long it takes on two cores. needs_data: whether it reads images."""

    run: Callable[[Request], Result]
    seconds: int
    needs_data: bool = False


CATALOGUE = {
    'towers_equal': Experiment(towers_equal.run, 10),
    'split_gain': Experiment(split_gain.run, 45),
    'ps_bytes': Experiment(ps_bytes.run, 75),
    'stragglers': Experiment(stragglers.run, 80),
    'backups': Experiment(backups.run, 90),
    'dead_worker': Experiment(dead_worker.run, 80, needs_data=True),
    'machines': Experiment(machines.run, 30),
    'staleness': Experiment(staleness.run, 110, needs_data=True),
}
