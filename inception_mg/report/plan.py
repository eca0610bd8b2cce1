"""What a step is going to move, told before it runs: from the placement alone, and from the graph."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.placement import Placement, Tower, bytes_of, host_of, machine_of, short_device, task_name
from inception_mg.training.step_records import Transfer

v1 = tf.compat.v1
WEIGHTS, GRADIENTS, STATISTICS = 'weights', 'gradients', 'statistics'
ACTIVATIONS, INPUT, OTHER = 'activations', 'input', 'other'
_COMES_APART = re.compile(r'/joined(_\d+)?_grad/')  # The gradient of a variable in slices, see partition.Slices.
ANYWHERE = ''  # The device of a constant that asks for none: the runtime puts it beside whoever wants it.
KINDS = (WEIGHTS, GRADIENTS, ACTIVATIONS, INPUT, STATISTICS, OTHER)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a graph asks for.

    devices: operation -> device, of all that the step needs. moves: each tensor that has to cross, once per device of
    its own task and once per other task that wants it; `kinds` says what each (tensor, target device) is. unknown:
    tensors whose size only shows at run time (counted as 0 bytes).
    """

    devices: dict[str, str]
    moves: tuple[Transfer, ...]
    kinds: dict[tuple[str, str], str]
    unknown: tuple[str, ...]


class ExpectedBytes(NamedTuple):
    """A sum of bytes that follows from the placement and the variables' shapes alone.

    what: in words. kind: of KINDS. sources, targets: devices. bytes: per step.
    """

    what: str
    kind: str
    sources: frozenset[str]
    targets: frozenset[str]
    bytes: int

    def count(self, moves: Iterable[Transfer], kinds: dict[tuple[str, str], str]) -> int:
        """The bytes of those `moves` that this sum is of."""
        return sum(move.bytes for move in moves if move.source in self.sources and move.target in self.targets
                   and kinds.get((move.tensor, move.target)) == self.kind)


def plan_step(fetch: tf.Operation, trainable: Sequence[tf.Variable], default_device: str) -> Plan:
    """Walks the graph that `fetch` needs and lists the tensors whose producer and consumer ask for different devices.

    trainable: the variables whose reads are weights. default_device: where the runtime puts what asks for none.
    Control edges are left out: they carry no bytes.
    """
    needed = _needed(fetch)
    devices = {operation.name: _device_of(operation, default_device) for operation in needed}
    weights = {variable.op.name for variable in trainable}
    consumers: dict[tuple[tf.Tensor, str], list[tf.Operation]] = {}
    for operation in needed:
        for tensor in operation.inputs:
            consumers.setdefault((tensor.ref(), devices[operation.name]), []).append(operation)
    moves, kinds, unknown, arrived = [], {}, [], set()
    for (reference, target), users in consumers.items():
        tensor = reference.deref()
        source = devices[tensor.op.name]
        if source in (target, ANYWHERE) or tensor.dtype == tf.resource:
            continue
        if machine_of(source) != machine_of(target):
            if (reference, machine_of(target)) in arrived:
                continue  # The runtime sends a tensor to another task once; it does not record how it goes on there.
            arrived.add((reference, machine_of(target)))
        name, size = tensor.name.removesuffix(':0'), _size(tensor)
        kinds[name, target] = _kind(tensor.op, users, weights)
        moves.append(Transfer(name, source, target, size or 0))
        if size is None:
            unknown.append(name)
    asked = {name: device for name, device in devices.items() if device != ANYWHERE}
    return Plan(asked, tuple(moves), kinds, tuple(unknown))


def expected_bytes(placement: Placement, trainable: Sequence[tf.Variable], statistics_bytes: int
                   ) -> list[ExpectedBytes]:
    """What each machine and each tower should receive and send: the weights once down, the gradients once up.

    A row is left out where nothing crosses, and where it takes the graph to say how much does: a tower
    whose parts are on the variables' own machine.
    """
    homes = frozenset(placement.variables)
    size = sum(bytes_of(variable) for variable in trainable)
    rows = []
    for hosts in dict.fromkeys(frozenset(map(host_of, devices_of(tower))) for tower in placement.towers):
        if not hosts & homes:
            name = _names(hosts)
            inside = hosts.union(*(devices_of(tower) for tower in placement.towers
                                   if hosts >= set(map(host_of, devices_of(tower)))))
            rows += [ExpectedBytes(f'weights to {name}', WEIGHTS, homes, hosts, size),
                     ExpectedBytes(f'gradients from {name}', GRADIENTS, inside, homes, size)]
    for number, tower in enumerate(placement.towers):
        devices = frozenset(devices_of(tower))
        hosts = frozenset(map(host_of, devices))
        if not devices & hosts:
            rows += [ExpectedBytes(f'weights to tower {number}', WEIGHTS, hosts, devices, size),
                     ExpectedBytes(f'gradients from tower {number}', GRADIENTS, devices, hosts | homes, size)]
    last = frozenset(devices_of(placement.towers[-1]))
    if not last & homes and statistics_bytes:  # To other machines by way of the tower's host.
        sources = last.union(map(host_of, last)) - homes
        rows.append(ExpectedBytes('batch statistics from the last tower', STATISTICS, sources, homes, statistics_bytes))
    return rows


def devices_of(tower: Tower) -> tuple[str, ...]:
    """Every device that a tower computes on, each once."""
    named = [device for device in (*tower.branches, *tower.stages) if device]
    return tuple(dict.fromkeys(named or [tower.device]))


def _needed(fetch: tf.Operation) -> list[tf.Operation]:
    """The operations that `fetch` depends on, in the order of the graph."""
    seen, todo = {fetch}, [fetch]
    while todo:
        operation = todo.pop()
        for before in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return [operation for operation in fetch.graph.get_operations() if operation in seen]


def _device_of(operation: tf.Operation, default: str) -> str:
    """The device that an operation asks for, or follows: it runs where its resource is."""
    while not operation.device:
        resources = [tensor.op for tensor in operation.inputs if tensor.dtype == tf.resource]
        if not resources:
            return ANYWHERE if operation.type == 'Const' else default
        operation = resources[0]
    return short_device(operation.device)


def _size(tensor: tf.Tensor) -> int | None:
    count = tensor.shape.num_elements()
    return None if count is None or tensor.dtype == tf.string else count * tensor.dtype.size


def _kind(producer: tf.Operation, users: Sequence[tf.Operation], weights: set[str]) -> str:
    """What a tensor is, by who makes it and who wants it."""
    variable = _variable_read(producer)
    if variable:
        return WEIGHTS if variable in weights else OTHER
    if any(_COMES_APART.search(user.name) for user in users):
        return GRADIENTS
    scopes = {user.name.partition('/')[0] for user in (producer, *users)}
    for scope, kind in (('average', GRADIENTS), ('statistics', STATISTICS), ('input', INPUT)):
        if any(name == scope or name.startswith(f'{scope}_') for name in scopes):
            return kind
    if all(name.startswith('tower_') for name in scopes):
        return ACTIVATIONS
    return GRADIENTS if producer.name.startswith('tower_') else OTHER  # Of a graph's only tower: there is no average.


def _variable_read(operation: tf.Operation) -> str:
    """The name of the variable whose value this operation hands on unchanged, or of the first of those that it hands
    on in one piece; '' for others."""
    while operation.type in ('Identity', 'Reshape', 'ConcatV2', 'SplitV'):
        operation = operation.inputs[0].op
    return operation.inputs[0].op.name if operation.type == 'ReadVariableOp' else ''


def _names(devices: Iterable[str]) -> str:
    """'worker 0 and worker 1', or 'this machine'."""
    return ' and '.join(task_name(device) for device in sorted(devices))
