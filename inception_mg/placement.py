"""Where variables live and where towers compute, as plain data: the five ways of running.

A Placement holds device names and nothing else. It imports no TensorFlow, makes no operation and
is compared and tested as a value; the same value drives the graph builder, the lines printed at
start and the report. What tells multi-GPU from distributed training is only which names stand in it.
"""

import dataclasses
from collections.abc import Sequence

CPU = '/device:CPU:0'
OWN = ('',)  # '' keeps the enclosing device: the model is not split.


@dataclasses.dataclass(frozen=True)
class Tower:
    """One copy of the model.

    device: where it computes.
    host: the CPU beside it, which reads its input and averages the gradients of its machine.
    branches: devices of the independent branches of a block, dealt out in turn.
    stages: devices of the consecutive stages of the network.
    In both, '' means the enclosing device.
    """

    device: str
    host: str
    branches: tuple[str, ...] = OWN
    stages: tuple[str, ...] = OWN


@dataclasses.dataclass(frozen=True)
class Placement:
    """variables: the devices that hold the variables, filled by size. towers: those of this graph."""

    variables: tuple[str, ...]
    towers: tuple[Tower, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the towers, each once, in the order of the towers."""
        return tuple(dict.fromkeys(tower.host for tower in self.towers))

    def towers_on(self, host: str) -> tuple[Tower, ...]:
        """The towers whose host is `host`, in order."""
        return tuple(tower for tower in self.towers if tower.host == host)


def one_device(device: str = CPU, host: str = CPU) -> Placement:
    """Way 1: everything computes on one device.

        [host: variables, input] <-> [device: tower]
    """
    return Placement((host,), (Tower(device, host),))


def multi_gpu(devices: Sequence[str], host: str = CPU) -> Placement:
    """Way 2: one machine, a tower per device, the variables on the host, the batch split.

                                          +-> [device 0: tower 0]
        [host: variables, input, average] +-> [device 1: tower 1]
                                          +-> ...
    """
    return Placement((host,), tuple(Tower(device, host) for device in devices))


def split_model(groups: Sequence[Sequence[str]], by: str, host: str = CPU) -> Placement:
    """Way 3: each tower spreads over the devices of its group.

        by='branches'                       by='stages'
                 +-> [0: branch 1x1] -+
        block in +-> [1: branch 5x5] -+->   [0: first layers] -> [1: last layers]
                 +-> [0: branch 3x3] -+
    """
    if by not in ('branches', 'stages'):
        raise ValueError(f'split_model by {by!r}: must be branches or stages')
    return Placement((host,), tuple(Tower(group[0], host, **{by: tuple(group)}) for group in groups))


def in_graph(num_ps: int, worker_devices: Sequence[Sequence[str]], split: str = '') -> Placement:
    """Way 4: a cluster with one client, whose one graph has towers on every worker.

    worker_devices: for each worker task the devices of its towers, as '/device:GPU:0'; under `split`
    ('branches' or 'stages') they are the devices of its one tower.

        [client] - one graph -> [ps 0..: variables] <-> [worker 0: towers] [worker 1: towers] ...
    """
    towers = []
    for task, devices in enumerate(worker_devices):
        worker = f'/job:worker/task:{task}'
        names = tuple(worker + device for device in devices)
        if split:
            towers.append(Tower(names[0], worker + CPU, **{split: names}))
        else:
            towers.extend(Tower(name, worker + CPU) for name in names)
    return Placement(_ps_devices(num_ps), tuple(towers))


def between_graph(num_ps: int, task: int, devices: Sequence[str]) -> Placement:
    """Way 5: a cluster where each worker builds this graph for itself, over shared variables.

        [ps 0..: variables] <-> [worker task: its towers]      (and every other worker likewise)
    """
    return in_graph(num_ps, [()] * task + [devices])


def describe(placement: Placement) -> list[str]:
    """Returns the lines that tell a user what sits where."""
    lines = [f'variables on {", ".join(placement.variables)}']
    for number, tower in enumerate(placement.towers):
        line = f'tower {number} on {tower.device}'
        for name in ('branches', 'stages'):
            devices = getattr(tower, name)
            if devices != OWN:
                line = f'tower {number}: {name} over {", ".join(devices)}'
        lines.append(f'{line}, input and averaging on {tower.host}')
    return lines


def _ps_devices(num_ps: int) -> tuple[str, ...]:
    return tuple(f'/job:ps/task:{task}{CPU}' for task in range(num_ps))
