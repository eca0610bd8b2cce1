"""Many machines as one of each: a picture of eight workers that do the same is a tangle, and says no more than one."""

import dataclasses
import re
from collections.abc import Callable, Iterable

from inception_mg.placement import machine_of
from inception_mg.report.summary import DeviceRow, PairRow, WayReport

MOST = {'ps': 2, 'worker': 3}  # So many machines of a job are drawn one by one.


def fold(way: WayReport) -> tuple[WayReport, dict[str, int]]:
    """Returns `way` with one machine for all of each job that has more than MOST, and task -> how many it stands for.

    The one has the name of task 0 and, of each device and flow, the row with the most bytes: all workers' weights
    are equal, the ps are not, and the batch statistics come from one worker alone. Flows within the job are left out.
    """
    tasks: dict[str, set[str]] = {}
    for row in way.devices:
        if match := re.match(r'/job:(\w+)/task:\d+', row.device):
            tasks.setdefault(match[1], set()).add(match[0])
    counts = {f'/job:{job}/task:0': len(found) for job, found in tasks.items() if len(found) > MOST.get(job, 0)}

    def drawn(device: str) -> str:
        first = re.sub(r'/task:\d+', '/task:0', device)
        return first if machine_of(first) in counts else device

    devices = _largest((dataclasses.replace(row, device=drawn(row.device)) for row in way.devices),
                       lambda row: (row.device,), lambda row: sum(row.bytes.values()))
    pairs = _largest((dataclasses.replace(row, source=drawn(row.source), target=drawn(row.target)) for row in way.pairs
                      if machine_of(row.source) == machine_of(row.target)
                      or machine_of(drawn(row.source)) != machine_of(drawn(row.target))),
                     lambda row: (row.source, row.target, row.kind), lambda row: row.measured)
    return dataclasses.replace(way, devices=devices, pairs=pairs), counts


def _largest(rows: Iterable[DeviceRow | PairRow], key: Callable, size: Callable) -> list:
    """Of the rows that have the same key the largest, in the order of the first ones."""
    found: dict[tuple, DeviceRow | PairRow] = {}
    for row in rows:
        name = key(row)
        if name not in found or size(row) > size(found[name]):
            found[name] = row
    return list(found.values())
