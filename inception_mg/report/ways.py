"""The five ways of running, as the report shows them. Standard library only."""

import dataclasses
from collections.abc import Sequence

from inception_mg import placement as placements
from inception_mg.config import ReportConfig
from inception_mg.placement import Placement


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of running on a number of machines.

    name, title, text: for people. placements: one per client, in order; between-graph has a client on every
    worker, every other way one. num_ps, num_workers: 0 where there is no cluster.
    """

    name: str
    title: str
    text: str
    placements: tuple[Placement, ...]
    num_ps: int = 0
    num_workers: int = 0

    @property
    def devices_per_machine(self) -> int:
        """CPU devices that each machine needs: those of the towers, and the machine's own."""
        return 1 + max(int(name.rpartition(':')[2]) for placement in self.placements for name in placement.devices)


def ways_of(config: ReportConfig) -> list[Way]:
    """The way that `config` asks for, or all five. CPU 1, CPU 2 ... stand in for GPUs: bytes do not depend on that."""
    def devices(count: int) -> tuple[str, ...]:
        return tuple(f'/device:CPU:{number}' for number in range(1, 1 + count))

    several = config.devices or 2
    made = [_one_device(devices(1)[0]), _multi_gpu(devices(several)),
            _split_model(devices(several), config.split), _in_graph(config, devices(config.devices or 1)),
            _between_graph(config, devices(config.devices or 1))]
    return [way for way in made if config.all or way.name == config.way]


def _one_device(device: str) -> Way:
    return Way('one_device', '1  One device',
               'The weights go to the device and a gradient comes back.', (placements.one_device(device),))


def _multi_gpu(devices: Sequence[str]) -> Way:
    return Way('multi_gpu', '2  Several devices of one machine, a tower on each',
               'Every device gets all weights and a part of the batch; the machine averages their gradients.',
               (placements.multi_gpu(devices),))


def _split_model(devices: Sequence[str], by: str) -> Way:
    what = 'branches of each block' if by == 'branches' else 'stages of the network'
    return Way('split_model', f'3  One model over several devices, by its {by}',
               f'Each device holds some {what} and gets their weights alone; what crosses between them is activations.',
               (placements.split_model([devices], by),))


def _in_graph(config: ReportConfig, devices: Sequence[str]) -> Way:
    num_ps, workers = config.num_ps or 1, config.num_workers
    return Way('in_graph', f'4  In-graph: one client, {workers} workers, {num_ps} ps',
               'One graph holds the towers of every worker. Each machine gets the weights once and sends one gradient.',
               _cut(config, [placements.in_graph(num_ps, [devices] * workers)]), num_ps, workers)


def _between_graph(config: ReportConfig, devices: Sequence[str]) -> Way:
    num_ps, workers = config.num_ps or 2, config.num_workers
    return Way('between_graph', f'5  Between-graph: {workers} workers, each its own client, {num_ps} ps',
               'Every worker has a graph of its own over the same variables: as many bytes, no client to wait for.',
               _cut(config, [placements.between_graph(num_ps, task, placements.multi_gpu(devices).towers)
                             for task in range(workers)]), num_ps, workers)


def _cut(config: ReportConfig, found: Sequence[Placement]) -> tuple[Placement, ...]:
    return tuple(dataclasses.replace(one, partition_mb=config.partition_mb) for one in found)
