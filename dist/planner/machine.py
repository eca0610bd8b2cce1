"""What a prediction needs to know of a machine: measured (a file of --calibrate) or given by a published table."""

import dataclasses
import json
import os
from collections.abc import Mapping

from dist.planner import published, tables
from dist.planner.networks import Network, Variable, network
from inception_mg.errors import FlagError, UserError
from inception_mg.files import write_text

VERSION = 1
TCP_SHARE = 0.94  # Of a wire's bits, what TCP leaves for tensors (1448 of 1538 bytes of each frame).
ASSUMED_SPREAD = 0.03  # Of a step on machines of their own: between 0.02 and 0.04 in every published table.


@dataclasses.dataclass(frozen=True)
class Machine:
    """One machine, as a worker or as a ps.

    name, source: what it is and who measured it. network, variables: what is trained, in the order of the network.
    speeds: images per GPU and step -> images/s of one GPU (or, without GPUs, of the machine) on its own. cores: of the
    CPU. ps_rate, worker_rate: bytes/s each way that its CPU moves as a ps for all workers, and as a worker, on a wire
    that is never full. own_gbits: of its network in Gbit/s, where that is known. spread: of the seconds of a step.
    message, update, average, round, shuffled: see model.Job. input_rate: images/s that it reads and distorts;
    0 = unknown. host_rate, bus_rate, shared_power: of several GPUs, see model.machine_seconds. ranges: figure -> lowest
    and highest that was measured. measured: workers -> images/s that somebody saw. settings: flags that the figures
    depend on. facts: everything else that was seen, in words.
    """

    name: str
    source: str
    network: str
    variables: Network
    speeds: Mapping[int, float]
    ps_rate: float
    worker_rate: float
    cores: int = 0
    own_gbits: float = 0.0
    spread: float = ASSUMED_SPREAD
    message: float = 0.0
    update: float = 0.0
    average: float = 0.0
    round: float = 0.0
    input_rate: float = 0.0
    shuffled: bool = False
    host_rate: float = 12e9
    bus_rate: float = 12e9
    shared_power: float = 0.0
    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    measured: Mapping[int, float] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    facts: tuple[str, ...] = ()

    def seconds(self, batch_size: int) -> float:
        """Of a step of one GPU with so many images: by a line through what was measured, or in proportion to it."""
        known = sorted((batch, batch / speed) for batch, speed in self.speeds.items())
        if len(known) < 2:
            (batch, seconds), = known
            return seconds * batch_size / batch
        (first, low), (last, high) = known[0], known[-1]
        slope = (high - low) / (last - first)
        return max(low + slope * (batch_size - first), low * batch_size / first * 0.5)

    @property
    def default_batch(self) -> int:
        """The largest of those that were measured."""
        return max(self.speeds)

    def rates(self, gbits: float) -> tuple[float, float]:
        """Bytes/s each way of a ps and of a worker on a wire of so many Gbit/s (0: its own)."""
        gbits = gbits or self.own_gbits
        wire = TCP_SHARE * gbits / 8 * 1e9 if gbits else float('inf')
        return min(wire, self.ps_rate), min(wire, self.worker_rate)


def save(machine: Machine, path: str) -> None:
    """Writes the file of --calibrate."""
    write_text(path, json.dumps({'planner': VERSION, **dataclasses.asdict(machine)}, indent=1) + '\n')


def load(path: str) -> Machine:
    """Reads it. UserError, in one line, for a file that is none, or of another version."""
    try:
        with open(path, encoding='utf-8') as file:
            values = json.load(file)
    except OSError as error:
        raise UserError(f'--machine={path}: {error.strerror}; built in are {", ".join(BUILT_IN)}') from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        values = None
    if not isinstance(values, dict) or 'planner' not in values:
        raise UserError(f'--machine={path} is no file of plan.py --calibrate')
    if values.pop('planner') != VERSION:
        raise UserError(f'--machine={path} was written by another version of plan.py: calibrate again')
    try:
        # What an earlier version wrote has no shapes.
        values['variables'] = tuple(Variable(str(name), int(size), int(macs), bool(trained), *(tuple(map(int, shape))
                                                                                               for shape in shapes))
                                    for name, size, macs, trained, *shapes in values['variables'])
        values['speeds'] = {int(batch): float(speed) for batch, speed in values['speeds'].items()}
        values['ranges'] = {name: (float(low), float(high)) for name, (low, high) in values['ranges'].items()}
        values['measured'] = {int(count): float(speed) for count, speed in values['measured'].items()}
        values['settings'] = dict(values['settings'])
        values['facts'] = tuple(map(str, values['facts']))
        machine = Machine(**values)
        numbers = [getattr(machine, field.name) for field in dataclasses.fields(machine)
                   if field.type in (int, float)]
        usable = (all(isinstance(number, (int, float)) and 0 <= number < float('inf') for number in numbers)
                  and machine.speeds and min(machine.speeds) > 0 and min(machine.speeds.values()) > 0
                  and machine.ps_rate > 0 and machine.worker_rate > 0 and machine.host_rate > 0
                  and machine.bus_rate > 0
                  and sum(variable.macs for variable in machine.variables) > 0)
    except (KeyError, TypeError, ValueError, AttributeError):
        usable = False
    if not usable:
        raise UserError(f'--machine={path} is damaged: calibrate again')
    return machine


OURS = {'model': 'inception_v3', 'width': 1.0, 'image_size': 299, 'compute_dtype': 'float32'}


def _dgx() -> Machine:
    return Machine(
        'dgx1_p100', tables.BENCHMARKS, 'inception_v3', network('inception_v3'), {32: 128, 64: 142},
        ps_rate=4e9, worker_rate=4e9, own_gbits=25, host_rate=14e9, cores=40,
        settings=OURS, facts=('8 P100 of one machine; its network is assumed to be 25 Gbit/s',))


def _piz_daint() -> Machine:
    rate = published.node_rate(tables.PIZ_DAINT, 128)
    return Machine('piz_daint', tables.CSCS, 'inception_v3', network('inception_v3'), {64: 138.23},
                   ps_rate=rate, worker_rate=rate, cores=12, measured=tables.PIZ_DAINT.measured, settings=OURS,
                   facts=('one P100 per node; its rate is that with which the model meets the table at 128 nodes',))


def _p2_xlarge() -> Machine:
    rate = published.node_rate(tables.P2_XLARGE, 64)
    return Machine('p2_xlarge', tables.CSCS, 'inception_v3', network('inception_v3'), {64: 30.55},
                   ps_rate=rate, worker_rate=rate, cores=4, measured=tables.P2_XLARGE.measured, settings=OURS,
                   facts=('one K80 per machine; its rate is that with which the model meets the table at 64',))


def _ec2_k80() -> Machine:
    return Machine(
        'ec2_k80', tables.BENCHMARKS, 'inception_v3', network('inception_v3'), {32: 29.2, 64: 29.7},
        ps_rate=1.25e9, worker_rate=1.25e9, own_gbits=10, host_rate=10e9, shared_power=0.04, cores=32,
        settings=OURS, facts=('8 K80 of one p2.8xlarge; 10 Gbit/s by Amazon\'s sheet',))


BUILT_IN = {'dgx1_p100': _dgx, 'ec2_k80': _ec2_k80, 'piz_daint': _piz_daint, 'p2_xlarge': _p2_xlarge}


def find(name: str) -> Machine:
    """A built-in machine, or the file of that name; FlagError for ''."""
    if not name:
        raise FlagError(f'--machine is empty: name a file of --calibrate, or one of {", ".join(BUILT_IN)}')
    base = os.path.basename(name)
    return BUILT_IN[base]() if base in BUILT_IN and not os.path.exists(name) else load(name)
