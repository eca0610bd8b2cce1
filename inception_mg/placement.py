"""Where variables live and where towers compute, as plain data: the five ways of running.

A Placement holds device names and nothing else. It imports no TensorFlow, makes no operation and
is compared and tested as a value; the same value drives the graph builder, the lines printed at
start and the report. What tells multi-GPU from distributed training is only which names stand in it.
"""

import dataclasses
import re
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
    """variables: the devices that hold the variables, filled by size. towers: those of this graph.

    wire_dtype: in which weights and gradients cross between machines. prefetch: a step computes with the weights that
    were fetched during the step before. partition_mb: trained variables of more MB are cut into slices; 0 = none.
    """

    variables: tuple[str, ...]
    towers: tuple[Tower, ...]
    wire_dtype: str = 'float32'
    prefetch: bool = False
    partition_mb: float = 0.0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the towers, each once, in the order of the towers."""
        return tuple(dict.fromkeys(tower.host for tower in self.towers))

    @property
    def devices(self) -> frozenset[str]:
        """All devices on which the towers compute."""
        return frozenset(device for tower in self.towers for device in (tower.device, *tower.branches, *tower.stages)
                         if device)

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


def in_graph(num_ps: int, worker_devices: Sequence[Sequence[str]], split: str = '', split_devices: int = 0,
             over_hosts: bool = False) -> Placement:
    """Way 4: a cluster with one client, whose one graph has towers on every worker.

    worker_devices: for each worker task its devices, as '/device:GPU:0': a tower on each, or, under
    `split` ('branches' or 'stages'), on every `split_devices` of them (0 = all). over_hosts: a split tower has one
    device of every worker instead. num_ps: 0 puts the variables on the client's machine, worker 0.

        [client] - one graph -> [ps 0..: variables] <-> [worker 0: towers] [worker 1: towers] ...

        over_hosts:             [ps 0..: variables] <-> [worker 0: first layers] -> [worker 1: last layers]
    """
    workers = [tuple(f'/job:worker/task:{task}{device}' for device in devices)
               for task, devices in enumerate(worker_devices)]
    if over_hosts:
        groups = list(zip(*workers, strict=True))
    else:
        groups = [group for names in workers
                  for group in _groups(names, (split_devices or len(names)) if split else 1)]
    towers = tuple(Tower(group[0], host_of(group[0]), **({split: group} if split else {})) for group in groups)
    return Placement(_ps_devices(num_ps) or (f'/job:worker/task:0{CPU}',), towers)


def host_of(device: str) -> str:
    """The CPU of the machine that `device` is on."""
    return machine_of(device) + CPU


def machine_of(device: str) -> str:
    """'/job:ps/task:0/device:CPU:0' -> '/job:ps/task:0'; '' for a device without a job."""
    return device.partition('/device:')[0]


def task_name(device: str) -> str:
    """'/job:ps/task:1/device:CPU:0' -> 'ps 1'; 'this machine' without a cluster."""
    match = re.match(r'/job:(\w+)(?:/replica:\d+)?/task:(\d+)', device)
    return f'{match[1]} {match[2]}' if match else 'this machine'


def short_device(device: str) -> str:
    """'/job:localhost/replica:0/task:0/device:CPU:1' -> '/device:CPU:1'; other jobs keep job and
    task. What is not the name of a device, such as a GPU's stream, only loses the same parts."""
    return re.sub(r'^/job:localhost(/replica:0)?/task:0|/replica:\d+', '', device)


def bytes_of(variable) -> int:
    """The size of the value of a variable or tensor of known shape."""
    return variable.shape.num_elements() * variable.dtype.size


def between_graph(num_ps: int, task: int, towers: Sequence[Tower]) -> Placement:
    """Way 5: a cluster where each worker builds this graph for itself, over shared variables.

    towers: those of the worker's machine, split or not, by that machine's own device names.

        [ps 0..: variables] <-> [worker task: its towers]      (and every other worker likewise)
    """
    worker = f'/job:worker/task:{task}'

    def names(devices: Sequence[str]) -> tuple[str, ...]:
        return tuple(device and worker + device for device in devices)

    return Placement(_ps_devices(num_ps), tuple(
        Tower(worker + tower.device, worker + tower.host, names(tower.branches), names(tower.stages))
        for tower in towers))


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


def _groups(names: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [names[start:start + size] for start in range(0, len(names), size)]


def _ps_devices(num_ps: int) -> tuple[str, ...]:
    return tuple(f'/job:ps/task:{task}{CPU}' for task in range(num_ps))
