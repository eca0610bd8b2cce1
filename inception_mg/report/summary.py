"""One way of running in numbers: what sits where, what crosses, planned and measured, and what limits it."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.placement import Placement, bytes_of, machine_of, short_device, task_name
from inception_mg.report.plan import ACTIVATIONS, OTHER, ExpectedBytes, Plan, devices_of
from inception_mg.report.ways import Way
from inception_mg.training.step_records import Transfer, devices_of_ops, transfers
from inception_mg.training.timeline import READ, WAITING, WIRE, Shares, StepTrace
from inception_mg.weights.checkpoints import AVERAGE

v1 = tf.compat.v1
ROLES = ('weights', 'statistics', 'slots', 'averages', 'counters')


class VariableRow(NamedTuple):
    """A variable: its device, its bytes, and its role, one of ROLES."""

    name: str
    device: str
    elements: int
    bytes: int
    role: str


class GraphRun(NamedTuple):
    """What one client built, and one recorded step of it.

    client: its task, '' on one machine. local: (name, device) of what this graph keeps for itself.
    seconds: of a step that was not recorded.
    """

    client: str
    placement: Placement
    plan: Plan
    expected: list[ExpectedBytes]
    variables: list[VariableRow]
    local: list[tuple[str, str]]
    seconds: float
    metadata: v1.RunMetadata


@dataclasses.dataclass(frozen=True)
class DeviceRow:
    """What a device holds and does. parameters: trained values on it. bytes: of its variables, by role.
    activations_in, activations_out: bytes per step."""

    device: str
    operations: int
    towers: list[str]
    parameters: int
    bytes: dict[str, int]
    activations_in: int
    activations_out: int


@dataclasses.dataclass(frozen=True)
class PairRow:
    """What goes from one device to another in a step. gbits: achieved speed, 0 where the runtime times none."""

    source: str
    target: str
    kind: str
    tensors: int
    planned: int
    measured: int
    gbits: float


@dataclasses.dataclass(frozen=True)
class ExpectedRow:
    """Bytes that follow from the placement and the shapes alone, and what came of them."""

    what: str
    predicted: int
    planned: int
    measured: int


@dataclasses.dataclass(frozen=True)
class WayReport:
    """Everything that the table, the JSON and the page show of one way.

    clients: the tasks that built a graph; [''] on one machine. towers: of all graphs. seconds: of a step that was not
    recorded. wire: task -> bytes per step that it receives from and sends to other machines. balance: bytes of all
    variables on each of their devices. local: what is not shared, and why. moved: operations that ran elsewhere than
    asked. unknown: tensors whose size the graph does not tell. shares: where the recorded step's time went, mean over
    the clients. bound: what that says limits the step. verdict: both in a line. network: what the network would make
    of it. equal: whether every measured sum is as planned and as predicted.
    """

    name: str
    title: str
    text: str
    clients: list[str]
    towers: int
    seconds: float
    devices: list[DeviceRow]
    pairs: list[PairRow]
    expected: list[ExpectedRow]
    wire: dict[str, dict[str, int]]
    balance: dict[str, int]
    local: list[dict[str, str]]
    moved: list[dict[str, str]]
    unknown: list[str]
    shares: dict[str, float]
    bound: str
    verdict: str
    network: str
    equal: bool


def summarise(way: Way, runs: Sequence[GraphRun], network_gbits: float) -> WayReport:
    """Joins the runs of a way's clients. network_gbits: the network for which to predict."""
    measured = [transfers(run.metadata) for run in runs]
    pairs, expected = _pairs(runs, measured), _expected(runs, measured)
    shares, wire, homes = _shares(runs), _wire(pairs), runs[0].placement.variables
    balance = {home: sum(row.bytes for row in runs[0].variables if row.device == home) for home in homes}
    equal = all(row.planned == row.measured for row in (*pairs, *expected)) and all(
        row.predicted == row.measured for row in expected)
    bound = bound_by(shares, wire)
    return WayReport(
        way.name, way.title, way.text, [run.client for run in runs], sum(len(run.placement.towers) for run in runs),
        max(run.seconds for run in runs), _devices(runs, pairs), pairs, expected, wire, balance, _local(runs),
        _moved(runs), sorted({name for run in runs for name in run.plan.unknown}), shares._asdict(), bound,
        f'a recorded step took {shares.parts()}: bound by {bound}', _prediction(wire, shares, network_gbits), equal)


def describe_variables(variables: Iterable[tf.Variable], trainable: Sequence[tf.Variable],
                       statistics: Iterable[str]) -> list[VariableRow]:
    """A row for each variable. statistics: names of the batch-norm statistics."""
    weights, moving = {variable.op.name for variable in trainable}, set(statistics)

    def role(name: str) -> str:
        if name in weights or name in moving:
            return 'weights' if name in weights else 'statistics'
        if name.endswith(AVERAGE):
            return 'averages'
        return 'slots' if name.rpartition('/')[0] in weights else 'counters'

    return [VariableRow(v.op.name, short_device(v.device), v.shape.num_elements(), bytes_of(v), role(v.op.name))
            for v in variables]


def _pairs(runs: Sequence[GraphRun], measured: Sequence[Sequence[Transfer]]) -> list[PairRow]:
    """A row for each pair of devices and kind, the largest first; what was not planned is of kind 'other'."""
    planned, found = collections.Counter(), collections.defaultdict(list)
    for run, moves in zip(runs, measured, strict=True):
        for move in run.plan.moves:
            planned[move.source, move.target, run.plan.kinds[move.tensor, move.target]] += move.bytes
        for move in moves:
            if move.bytes:
                kind = run.plan.kinds.get((move.tensor, move.target), OTHER)
                found[move.source, move.target, kind].append(move)
    rows = [PairRow(*key, len(found[key]), planned[key], sum(move.bytes for move in found[key]), gbits_of(found[key]))
            for key in {*planned, *found} if planned[key] or found[key]]
    return sorted(rows, key=lambda row: (-row.measured, row.source, row.target))


def _expected(runs: Sequence[GraphRun], measured: Sequence[Sequence[Transfer]]) -> list[ExpectedRow]:
    """The rows of all clients; the last towers of several clients are told apart by their machine."""
    rows = []
    for run, moves in zip(runs, measured, strict=True):
        for each in run.expected:
            what = f'{task_name(run.client)}: {each.what}' if len(runs) > 1 else each.what
            rows.append(ExpectedRow(what, each.bytes, each.count(run.plan.moves, run.plan.kinds),
                                    each.count(moves, run.plan.kinds)))
    return rows


def gbits_of(moves: Sequence[Transfer]) -> float:
    """Gbit/s while at least one of these was under way."""
    busy, end = 0, 0
    timed = sorted((move for move in moves if move.end), key=lambda move: move.start)
    for move in timed:
        busy += max(0, move.end - max(move.start, end))
        end = max(end, move.end)
    return sum(move.bytes for move in timed) * 8 / max(busy, 1) / 1e3  # The clock has microseconds.


def _devices(runs: Sequence[GraphRun], pairs: Sequence[PairRow]) -> list[DeviceRow]:
    """One row per device that ran something, the ps first."""
    operations, towers = collections.Counter(), collections.defaultdict(list)
    for run in runs:
        operations.update(devices_of_ops(run.metadata).values())
        for number, tower in enumerate(run.placement.towers):
            for device in devices_of(tower):
                towers[device].append(f'{"part of " * (len(devices_of(tower)) > 1)}tower {number}')
    return [_device_row(device, operations[device], towers[device], runs[0].variables, pairs)
            for device in sorted(operations, key=lambda name: (not name.startswith('/job:ps'), name))]


def _device_row(device: str, operations: int, towers: list[str], variables: Sequence[VariableRow],
                pairs: Sequence[PairRow]) -> DeviceRow:
    own = [row for row in variables if row.device == device]
    held = {role: sum(row.bytes for row in own if row.role == role) for role in ROLES}
    crossing = [row for row in pairs if row.kind == ACTIVATIONS]
    return DeviceRow(device, operations, towers, sum(row.elements for row in own if row.role == 'weights'),
                     {role: size for role, size in held.items() if size},
                     sum(row.measured for row in crossing if row.target == device),
                     sum(row.measured for row in crossing if row.source == device))


def _wire(pairs: Sequence[PairRow]) -> dict[str, dict[str, int]]:
    """Task -> bytes in and out over the network; {} on one machine."""
    totals: dict[str, dict[str, int]] = {}
    for row in pairs:
        source, target = machine_of(row.source), machine_of(row.target)
        if source != target:
            totals.setdefault(target, {'in': 0, 'out': 0})['in'] += row.measured
            totals.setdefault(source, {'in': 0, 'out': 0})['out'] += row.measured
    return {task_name(task): totals[task] for task in sorted(totals)}


def _local(runs: Sequence[GraphRun]) -> list[dict[str, str]]:
    why = 'this host\'s place in the data: every reader has its own, it is neither shared nor saved'
    return [{'name': name, 'device': device, 'why': why} for run in runs for name, device in run.local]


def _moved(runs: Sequence[GraphRun]) -> list[dict[str, str]]:
    """Operations that the runtime put elsewhere than the graph asks."""
    found = []
    for run in runs:
        ran = devices_of_ops(run.metadata)
        found += [{'operation': name, 'asked': asked, 'ran': ran[name]}
                  for name, asked in run.plan.devices.items() if ran.get(name, asked) != asked]
    return found


def _shares(runs: Sequence[GraphRun]) -> Shares:
    """Means over the clients."""
    every = [StepTrace.of(run.client, 0, 0.0, run.metadata.step_stats).shares() for run in runs]
    return Shares(*(sum(values) / len(every) for values in zip(*every, strict=True)))


def bound_by(shares: Shares, wire: dict[str, dict[str, int]]) -> str:
    """The largest share in words. One client at a time was at work: what waits, waits for it."""
    what = shares.largest
    if what == WIRE:
        return f'the wire of {busiest(wire)[0]}' if wire else 'the bus between the devices'
    return {WAITING: 'the client', READ: 'the input'}.get(what, what)


def busiest(wire: dict[str, dict[str, int]]) -> tuple[str, int]:
    """The task with the most bytes per step one way, and how many; ('', 0) without a network."""
    return max(((task, max(ends.values())) for task, ends in wire.items()), key=lambda pair: pair[1], default=('', 0))


def _prediction(wire: dict[str, dict[str, int]], shares: Shares, gbits: float) -> str:
    """What the busiest machine's network would take, against the time that computing takes here."""
    if not wire:
        return 'nothing crosses a network: the devices and the bus between them set the limit'
    task, most = busiest(wire)
    seconds, computing = most * 8 / gbits / 1e9, shares.seconds * shares.compute
    what = f'at {gbits:g} Gbit/s {task} is the busiest: {most / 1e6:.1f} MB one way, {seconds:.3f} s per step'
    if seconds > computing:
        return f'{what}, more than the {computing:.3f} s of computing: its wire would bind'
    return (f'{what}, beside {computing:.3f} s of computing: its wire would bind with devices '
            f'{computing / seconds:.0f} times as fast as these')
