"""Where the time of one step went: shares, a verdict in a line, and a file for Chrome's trace viewer or Perfetto.

TensorFlow's own tensorflow.python.client.timeline is not public, gives every device a process of its own and mixes
received tensors with the operations of the receiving device. Here every task is one process, with the transfers on
rows of their own and an arrow from the sender, and traces of several sessions go into one file.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inception_mg.placement import machine_of, task_name
from inception_mg.training.step_records import Event, Transfer, events, wire_records

COMPUTE, WIRE, READ, WAITING = 'compute', 'wire', 'input', 'waiting'
_BOUND = {COMPUTE: 'compute-bound', WIRE: 'wire-bound', READ: 'input-bound', WAITING: 'mostly waiting'}
# Colours of the trace viewer, by name.
_COLOURS = {COMPUTE: 'thread_state_running', WIRE: 'thread_state_iowait', READ: 'thread_state_runnable',
            WAITING: 'thread_state_sleeping'}
# Operations that mostly wait: for the input pipeline, for another task, for another operation.
_READING = ('IteratorGetNext', 'IteratorGetNextSync', 'OneShotIterator')
_IN, _OUT = 'in', 'out'  # The rows of a wire.
_STANDING = ('_Send', '_Recv', '_HostSend', '_HostRecv', 'NoOp', 'QueueDequeueV2', 'QueueDequeueManyV2')


def size_text(size: float) -> str:
    """'109 MB', '2.1 MB', '17 kB': three digits at most."""
    for unit, factor in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if size >= factor:
            value = size / factor
            return f'{value:.0f} {unit}' if value >= 99.5 else f'{value:.3g} {unit}'
    return f'{size:.0f} B'


class Shares(NamedTuple):
    """Where the `seconds` of a step went, as shares that add up to 1.

    compute: some operation was computing. wire: none was, but a tensor was crossing. input: neither, but
    the input pipeline was waited for. waiting: none of these: for other tasks, for a processor, or for what the
    client does between two steps.
    """

    seconds: float
    compute: float
    wire: float
    input: float
    waiting: float

    @property
    def largest(self) -> str:
        """The name of the largest share."""
        return max((COMPUTE, WIRE, READ, WAITING), key=lambda name: getattr(self, name))

    @property
    def bound(self) -> str:
        """What limits the step, in words."""
        return _BOUND[self.largest]

    def parts(self) -> str:
        """'1.23 s: compute 81 %, wire 12 %, input 5 %, waiting 2 %'."""
        return f'{self.seconds:.3g} s: ' + ', '.join(
            f'{name} {100 * getattr(self, name):.0f} %' for name in (COMPUTE, WIRE, READ, WAITING))

    def line(self) -> str:
        """The parts and what they say."""
        return f'{self.parts()}: {self.bound}'


class StepTrace(NamedTuple):
    """One client's records of one step, of all tasks that took part in it.

    task: the client's, as '/job:worker/task:1'; '' on one machine. seconds: from the end of its step before to the end
    of this one, with whatever its loop did in between.
    """

    task: str
    step: int
    seconds: float
    events: list[Event]
    wire: list[Transfer]

    @classmethod
    def of(cls, task: str, step: int, seconds: float, stats) -> 'StepTrace':
        """From the StepStats of a run with FULL_TRACE."""
        return cls(task, step, seconds, events(stats), wire_records(stats))

    def shares(self) -> Shares:
        """Sweeps over the step and gives each moment to the first of compute, wire and input that was busy."""
        busy = [(COMPUTE, event) for event in self.events if category(event) == COMPUTE]
        busy += [(WIRE, move) for move in self.wire if move.bytes]
        busy += [(READ, event) for event in self.events if category(event) == READ]
        spent = _sweep([(kind, one.start, one.end) for kind, one in busy])
        seconds = max(self.seconds, sum(spent.values()), 1e-9)
        shares = [spent[kind] / seconds for kind in (COMPUTE, WIRE, READ)]
        return Shares(seconds, *shares, max(0.0, 1 - sum(shares)))

    def pack(self) -> bytes:
        """A compressed form, from which `unpack` makes the trace again in another process."""
        return zlib.compress(json.dumps(self).encode())

    @classmethod
    def unpack(cls, packed: bytes) -> 'StepTrace':
        task, step, seconds, events_, wire = json.loads(zlib.decompress(packed))
        return cls(task, step, seconds, [Event(*event) for event in events_], [Transfer(*move) for move in wire])


def category(event: Event) -> str:
    """What an operation's time counts as. A GPU's copies over its bus count as wire."""
    if event.type in _READING:
        return READ
    if event.type in _STANDING:
        return WAITING
    return WIRE if 'memcpy' in f'{event.device}{event.name}'.lower() else COMPUTE


def chrome_trace(traces: Sequence[StepTrace]) -> str:
    """One JSON text for all traces. Each task has a process with rows for the operations of each device, and
    another for what comes and goes by its wire: many tensors are under way at a time, and viewers fold processes.

    Times are microseconds from the first event. Each machine's events are as its own clock has them: between
    machines they are as far apart as the clocks.
    """
    origin = min((one.start for trace in traces for one in (*trace.events, *trace.wire)), default=0)
    rows = _Rows(origin)
    for trace in traces:
        rows.verdict(trace)
        for event in trace.events:
            rows.operation(event)
        moves = [move for move in trace.wire if move.bytes]
        for number, move in enumerate(moves):
            rows.transfer(move, f'{trace.task}-{number}')
        rows.under_way(moves)
    return json.dumps({'displayTimeUnit': 'ms', 'traceEvents': rows.names() + rows.entries,
                       'otherData': {task_name(trace.task): trace.shares().line() for trace in traces}})


def _sweep(intervals: Iterable[tuple[str, int, int]]) -> dict[str, float]:
    """Seconds of each kind; a moment of several kinds counts for the first of compute, wire and input."""
    changes = sorted(change for kind, start, end in intervals for change in ((start, kind, 1), (end, kind, -1)))
    active, spent, before = dict.fromkeys((COMPUTE, WIRE, READ), 0), dict.fromkeys((COMPUTE, WIRE, READ), 0.0), 0
    for moment, kind, change in changes:
        now = next((name for name, count in active.items() if count), None)
        if now:
            spent[now] += (moment - before) / 1e6
        active[kind] += change
        before = moment
    return spent


class _Rows:
    """Deals events to processes (tasks) and threads (rows without overlap within a device)."""

    def __init__(self, origin: int):
        self._origin = origin
        self._processes: dict[tuple[str, bool], int] = {}    # (task, whether its wire) -> number.
        self._rows: dict[tuple[str, str], list[int]] = {}    # (task, group) -> end of the last event of each row.
        self._threads: dict[tuple[str, str, int], int] = {}
        self.entries: list[dict] = []

    def names(self) -> list[dict]:
        """The entries that name and order processes and threads."""
        found = []
        for place, (task, wire) in enumerate(sorted(self._processes)):
            label = {'ph': 'M', 'pid': self._processes[task, wire]}
            name = task_name(task) + ', wire' * wire
            found += [{**label, 'name': 'process_name', 'args': {'name': name}},
                      {**label, 'name': 'process_sort_index', 'args': {'sort_index': place}}]
        for (task, group, row), tid in self._threads.items():
            label = {'pid': self._processes[task, group in (_IN, _OUT)], 'tid': tid, 'ph': 'M'}
            name = f'{group} ({row + 1})' if row else group
            found.append({**label, 'name': 'thread_name', 'args': {'name': name}})
            found.append({**label, 'name': 'thread_sort_index', 'args': {'sort_index': tid}})
        return found

    def operation(self, event: Event) -> None:
        """An operation, on a row of its device."""
        device = event.device.partition('/device:')[2] or event.device
        kind = category(event)
        self._entry(machine_of(event.device), device, event, {
            'name': event.type or event.name, 'cat': kind, 'cname': _COLOURS[kind], 'args': {'operation': event.name}})

    def transfer(self, move: Transfer, number: str) -> None:
        """A transfer, on the wire rows of the receiving task, with an arrow from a row of the sender."""
        seconds = max(move.end - move.start, 1) / 1e6
        look = {'cat': WIRE, 'cname': _COLOURS[WIRE], 'args': {
            'tensor': move.tensor, 'bytes': move.bytes, 'speed': f'{move.bytes * 8 / seconds / 1e9:.3g} Gbit/s',
            'from': move.source, 'to': move.target}}
        source, target, size = machine_of(move.source), machine_of(move.target), size_text(move.bytes)
        pid, tid = self._entry(target, _IN, move, {'name': f'{size} from {task_name(source)}', **look})
        there, row = self._entry(source, _OUT, move, {'name': f'{size} to {task_name(target)}', **look})
        begin = move.start - self._origin
        arrow = {'cat': 'transfer', 'name': 'transfer', 'id': number}
        self.entries.append({**arrow, 'ph': 's', 'pid': there, 'tid': row, 'ts': begin})
        self.entries.append({**arrow, 'ph': 'f', 'bp': 'e', 'pid': pid, 'tid': tid,
                             'ts': begin + max(move.end - move.start, 1) - 1})  # Inside the bar, not at its end.

    def under_way(self, moves: Sequence[Transfer]) -> None:
        """For each task a curve of the bytes that are on the way to it."""
        for task in sorted({machine_of(move.target) for move in moves}):
            size, here = 0, [move for move in moves if machine_of(move.target) == task]
            for moment, change in sorted(change for move in here for change in (
                    (move.start, move.bytes), (move.end, -move.bytes))):
                size += change
                self.entries.append({'ph': 'C', 'name': 'bytes on the way here', 'pid': self._process(task, False),
                                     'ts': moment - self._origin, 'args': {'bytes': size}})

    def verdict(self, trace: StepTrace) -> None:
        """Where the time went, as one bar over the whole step."""
        every = [*trace.events, *trace.wire]
        if every:
            text = f'step {trace.step} took {trace.shares().line()}'
            span = Event(text, '', '', min(one.start for one in every), max(one.end for one in every))
            self._entry(trace.task, 'step', span, {'name': text, 'cat': 'step', 'args': {}})

    def _entry(self, task: str, group: str, span: Event | Transfer, entry: dict) -> tuple[int, int]:
        """Adds a bar on the first row of the group that is free; returns its process and thread."""
        pid = self._process(task, group in (_IN, _OUT))
        ends = self._rows.setdefault((task, group), [])
        row = next((k for k, end in enumerate(ends) if end <= span.start), len(ends))
        ends[row:row + 1] = [span.end]
        tid = self._threads.setdefault((task, group, row), len(self._threads) + 1)
        self.entries.append({'ph': 'X', 'pid': pid, 'tid': tid, 'ts': span.start - self._origin,
                             'dur': max(span.end - span.start, 1), **entry})
        return pid, tid

    def _process(self, task: str, wire: bool) -> int:
        return self._processes.setdefault((task, wire), len(self._processes) + 1)
