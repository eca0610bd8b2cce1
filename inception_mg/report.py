"""What ran where and what crossed between devices in one step, from the runtime's own records."""

import collections
from typing import NamedTuple

import tensorflow as tf

v1 = tf.compat.v1
_TRANSFERS = ('_Send', '_Recv', '_HostSend', '_HostRecv')


class Transfer(NamedTuple):
    """One tensor that went from one device to another in a step. bytes: its size."""

    tensor: str
    source: str
    target: str
    bytes: int


def trace_options() -> v1.RunOptions:
    """The RunOptions under which a step leaves the records that this module reads."""
    return v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)


def devices_of_ops(metadata: v1.RunMetadata) -> dict[str, str]:
    """Name -> device of every operation that ran, transfers left out; devices in short form.

    An operation that the runtime folded into a constant goes by the name it had.
    """
    return {node.name.removeprefix('ConstantFolding/'): short_device(node.device)
            for graph in metadata.partition_graphs for node in graph.node if node.op not in _TRANSFERS}


def transfers(metadata: v1.RunMetadata) -> list[Transfer]:
    """Every tensor that crossed between two devices of one process in the recorded step.

    The graph says which tensors are sent; the step statistics say how large they were where they
    were made (they leave out the sending and receiving itself). Control edges cross as empty tensors
    and count 0 bytes.
    """
    sizes: dict[tuple[str, str, int], int] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            for output in node.output:
                key = short_device(device.device), node.node_name, output.slot
                sizes[key] = _bytes(output.tensor_description)
    found = []
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.op in ('_Send', '_HostSend') and not node.attr['client_terminated'].b:
                source = short_device(node.device)
                name, _, slot = node.input[0].partition(':')
                found.append(Transfer(node.input[0], source, short_device(node.attr['recv_device'].s.decode()),
                                      sizes.get((source, name, int(slot or 0)), 0)))
    return found


def bytes_between(moves: list[Transfer]) -> dict[tuple[str, str], int]:
    """(source, target) -> bytes of one step."""
    totals: dict[tuple[str, str], int] = collections.defaultdict(int)
    for move in moves:
        totals[move.source, move.target] += move.bytes
    return dict(totals)


def short_device(device: str) -> str:
    """'/job:localhost/replica:0/task:0/device:CPU:1' -> '/device:CPU:1'; other jobs keep job and
    task."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.job == 'localhost':
        spec = spec.replace(job=None, task=None)
    return spec.replace(replica=None).to_string()


def _bytes(description) -> int:
    if not description.dtype or description.shape.unknown_rank:
        return 0
    count = 1
    for dim in description.shape.dim:
        count *= dim.size
    return count * tf.as_dtype(description.dtype).size
