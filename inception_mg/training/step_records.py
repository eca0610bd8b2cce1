"""What ran where and what crossed between devices in one step, from the runtime's own records."""

import collections
import re
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from inception_mg.placement import machine_of, short_device

v1 = tf.compat.v1
_TRANSFERS = ('_Send', '_Recv', '_HostSend', '_HostRecv')
# What the runtime writes about a tensor that came from another process.
_RECEIVED = re.compile(r'\[\S+\] \[\S+\] (?P<edge>\S+) from (?P<source>/\S+) to (?P<target>/\S+)')


class Transfer(NamedTuple):
    """One tensor that went from one device to another in a step.

    bytes: its size; 0 for a control edge. start, end: microseconds of the clock of the receiving
    machine, from when the sender had it ready; 0 within one process, where the runtime times none.
    """

    tensor: str
    source: str
    target: str
    bytes: int
    start: int = 0
    end: int = 0


class Event(NamedTuple):
    """One operation that ran. start, end: microseconds of its machine's clock."""

    name: str
    type: str
    device: str
    start: int
    end: int


def trace_options() -> v1.RunOptions:
    """The RunOptions under which a step leaves the records that this module reads."""
    return v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)


def devices_of_ops(metadata: v1.RunMetadata) -> dict[str, str]:
    """Name -> device of every operation that ran, transfers left out; devices in short form.

    An operation that the runtime folded into a constant goes by the name it had.
    """
    return {_unfolded(node.name): short_device(node.device)
            for graph in metadata.partition_graphs for node in graph.node if node.op not in _TRANSFERS}


def transfers(metadata: v1.RunMetadata) -> list[Transfer]:
    """Every tensor that crossed between two devices in the recorded step.

    The graph says which tensors are sent. Between processes the runtime records each receipt with its
    bytes; within one, the step statistics say how large the tensor was where it was made (they leave out
    the sending and receiving itself).
    """
    sizes, received = _sizes(metadata.step_stats), _received(metadata.step_stats)
    found = []
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.op not in ('_Send', '_HostSend') or node.attr['client_terminated'].b:
                continue
            source, target = short_device(node.device), short_device(node.attr['recv_device'].s.decode())
            record = received.get((node.attr['tensor_name'].s.decode(), source, target))
            name, _, slot = node.input[0].partition(':')
            tensor = _unfolded(name) + (f':{slot}' if slot else '')
            size = sizes.get((source, name, int(slot or 0)), 0)
            found.append(record._replace(tensor=tensor) if record else Transfer(tensor, source, target, size))
    return found


def lacks_times(moves: Iterable[Transfer]) -> bool:
    """Whether the runtime has not timed something that crossed between tasks. It asks the others to, but does not wait
    for them to begin: on a busy machine a first tensor may be there before."""
    return any(move.bytes and not move.end and machine_of(move.source) != machine_of(move.target) for move in moves)


def wire_records(stats) -> list[Transfer]:
    """The receipts from other processes alone, under the runtime's names of the edges; needs no
    partition graphs. stats: StepStats."""
    return list(_received(stats).values())


def events(stats) -> list[Event]:
    """Every operation in the StepStats `stats`, transfers between processes left out."""
    found = []
    for device in stats.dev_stats:
        for node in device.node_stats:
            if node.node_name != 'RecvTensor':
                start = node.all_start_micros + node.op_start_rel_micros
                end = node.all_start_micros + max(node.op_end_rel_micros, node.op_start_rel_micros)
                found.append(Event(node.node_name, _type_of(node), short_device(device.device), start, end))
    return found


def bytes_between(moves: Iterable[Transfer]) -> dict[tuple[str, str], int]:
    """(source, target) -> bytes of one step."""
    totals: dict[tuple[str, str], int] = collections.defaultdict(int)
    for move in moves:
        totals[move.source, move.target] += move.bytes
    return dict(totals)


def _unfolded(name: str) -> str:
    """The name that an operation had before the runtime folded it into a constant."""
    return re.sub(r'/_\d+__cf__\d+$', '', name.removeprefix('ConstantFolding/'))


def _received(stats) -> dict[tuple[str, str, str], Transfer]:
    """(edge, source, target) -> transfer, of those between processes."""
    found = {}
    for device in stats.dev_stats:
        for node in device.node_stats:
            label = _RECEIVED.match(node.timeline_label) if node.node_name == 'RecvTensor' else None
            if label:
                edge, source, target = label['edge'], short_device(label['source']), short_device(label['target'])
                size = sum(output.tensor_description.allocation_description.requested_bytes for output in node.output)
                found[edge, source, target] = Transfer(edge, source, target, size, node.all_start_micros,
                                                       node.all_start_micros + node.all_end_rel_micros)
    return found


def _sizes(stats) -> dict[tuple[str, str, int], int]:
    """(device, operation, output) -> bytes of everything that was made in the step."""
    return {(short_device(device.device), node.node_name, output.slot): _bytes(output.tensor_description)
            for device in stats.dev_stats for node in device.node_stats if node.node_name != 'RecvTensor'
            for output in node.output}


def _bytes(description) -> int:
    if not description.dtype or description.shape.unknown_rank:
        return 0
    count = 1
    for dim in description.shape.dim:
        count *= dim.size
    return count * tf.as_dtype(description.dtype).size


def _type_of(node) -> str:
    """'Conv2D' of the label 'name = Conv2D(inputs)'; '' where the label says something else."""
    match = re.search(r' = (\w+)\(', node.timeline_label)
    return match[1] if match else ''
