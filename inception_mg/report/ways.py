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
        """CPU devices that the towers need on each machine, with the machine's own."""
        names = {device for placement in self.placements for tower in placement.towers
                 for device in (tower.device, *tower.branches, *tower.stages) if device}
        return 1 + max(int(name.rpartition(':')[2]) for name in names)


def ways_of(config: ReportConfig, device: str = '/device:CPU:{}', first: int = 1) -> list[Way]:
    """The way that `config` asks for, or all five.

    device: pattern of a machine's devices for towers, the first of them number `first`. CPU devices stand in
    for GPUs; device 0 is then the machine's own CPU.
    """
    def devices(count: int) -> tuple[str, ...]:
        return tuple(device.format(number) for number in range(first, first + count))

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
               (placements.in_graph(num_ps, [devices] * workers),), num_ps, workers)


def _between_graph(config: ReportConfig, devices: Sequence[str]) -> Way:
    num_ps, workers = config.num_ps or 2, config.num_workers
    return Way('between_graph', f'5  Between-graph: {workers} workers, each its own client, {num_ps} ps',
               'Every worker has a graph of its own over the same variables: as many bytes, no client to wait for.',
               tuple(placements.between_graph(num_ps, task, placements.multi_gpu(devices).towers)
                     for task in range(workers)), num_ps, workers)
