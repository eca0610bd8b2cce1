"""What is done to a cluster while it runs: by drills at a step, and from another terminal.

A command is a line: `cut worker1`, `cut worker0-ps1`, `heal worker1`, `slow ps0=100mbit`, `move worker1`,
`kill worker1`, `status`. It reaches the launcher by a Unix socket in the log directory. Imports no TensorFlow.
"""

import contextlib
import os
import pathlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from dist.launch.laboratory import Laboratory, parse_rate
from dist.launch.local import Drill
from inception_mg.errors import FlagError, UserError

COMMANDS = ('cut', 'heal', 'slow', 'move', 'kill', 'status')
SOCKET = 'laboratory.sock'
STATUS_SECS = 1.0  # A status is measured for so long.


def parse_drills(text: str, machines: Sequence[str]) -> list[Drill]:
    """Reads 'cut:worker1@step=50,heal:worker1@step=80'; raises FlagError otherwise."""
    drills = []
    for part in filter(None, map(str.strip, text.split(','))):
        match = re.fullmatch(r'([a-z]+):(.+)@step=(\d+)', part)
        if not match or match[1] not in COMMANDS[:-1]:
            raise FlagError(f'--drill={part} is not like cut:worker1@step=50, with one of {", ".join(COMMANDS[:-1])}')
        split_command(line := f'{match[1]} {match[2]}', machines, f'--drill={part}: ')
        drills.append(Drill('', int(match[3]), line))
    return drills


def split_command(line: str, machines: Sequence[str], prefix: str = '') -> tuple[str, str, str]:
    """('cut', machine, other machine or ''), ('slow', machine, speed) and so on; FlagError for a line that is none."""
    verb, _, rest = line.strip().partition(' ')
    if verb not in COMMANDS:
        raise FlagError(f'{prefix}{verb or "nothing"} is no command: use one of {", ".join(COMMANDS)}')
    name, rest = rest.strip(), ''
    if verb == 'slow':
        name, _, rest = name.partition('=')
        if not rest:
            raise FlagError(f'{prefix}slow wants a speed, such as slow {name or "ps0"}=100mbit')
        parse_rate(rest, f'slow:{name}')
    elif verb in ('cut', 'heal') and name not in machines:
        pairs = [(one, name[len(one) + 1:]) for one in machines if name.startswith(f'{one}-')]
        name, rest = next((pair for pair in pairs if pair[1] in machines), (name, ''))
        if name and name == rest:
            raise FlagError(f'{prefix}{name} cannot be cut from itself')
    if name not in machines and verb != 'status':
        raise FlagError(f'{prefix}{verb} wants a machine: there are {", ".join(machines)}' +
                        (', or two such as worker0-ps0' if verb in ('cut', 'heal') else ''))
    return verb, name, rest


class Control:
    """Obeys commands. machines: the task on each machine, by the machine's name. kill: kills a task, to be started
    again; alive: whether it runs."""

    def __init__(self, laboratory: Laboratory, machines: Mapping[str, str], kill: Callable[[str], None],
                 alive: Callable[[str], bool]):
        self._laboratory, self._machines, self._end, self._alive = laboratory, machines, kill, alive
        self._moving: set[str] = set()

    def obey(self, line: str) -> str:
        """Does what the line says and returns what was done, in a line (`status`: in a table). Raises UserError."""
        verb, name, rest = split_command(line, list(self._machines))
        return getattr(self, f'_{verb}')(name, rest)

    def _cut(self, name: str, other: str) -> str:
        self._laboratory.cut(name, other)
        return f'{name} and {other} do not reach one another' if other else f'{name} is cut off'

    def _heal(self, name: str, other: str) -> str:
        self._laboratory.heal(name, other)
        return f'{name} and {other} reach one another again' if other else f'{name} is connected again'

    def _slow(self, name: str, rate: str) -> str:
        self._laboratory.slow(name, rate)
        return f'the cable of {name} carries {rate}'

    def _kill(self, name: str, rest: str) -> str:
        self._end(self._machines[name])
        return f'{self._machines[name]} is killed'

    def _move(self, name: str, rest: str) -> str:
        self._moving.add(name)
        self._end(self._machines[name])
        return f'{self._machines[name]} is killed, and {name} gets another address'

    def settle(self, name: str) -> str:
        """Called before a task is started on its machine: gives that the new address it is to have; says so, or ''."""
        if name not in self._moving:
            return ''
        self._moving.remove(name)
        old = self._laboratory.address(name)
        return f'{name} had the address {old} and has {self._laboratory.move(name)}'

    def _status(self, name: str, rest: str) -> str:
        before, begun = {name: self._laboratory.bytes(name) for name in self._machines}, time.monotonic()
        time.sleep(STATUS_SECS)
        secs = time.monotonic() - begun
        rows = [('machine', 'task', 'address', 'cable', 'sends', 'receives', '')]
        for name, task in self._machines.items():
            machine, cuts = self._laboratory.machine(name), self._laboratory.cuts(name)
            speeds = [(now - then) / secs for then, now in
                      zip(before[name], self._laboratory.bytes(name), strict=True)]
            full = [f' ({800 * speed / machine.rate:3.0f}%)' if machine.rate else '' for speed in speeds]
            rows.append((name, task if self._alive(task) else f'{task}, gone', machine.address,
                         rate_text(machine.rate) or 'no limit',
                         *(f'{speed / 1e6:6.1f} MB/s{part}' for speed, part in zip(speeds, full, strict=True)),
                         f'cut off from {", ".join(cuts)}' if cuts else ''))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                         for row in rows)


def rate_text(rate: int) -> str:
    """1000000000 bits per second as '1gbit'; '' for 0."""
    for unit, size in (('g', 10 ** 9), ('m', 10 ** 6), ('k', 10 ** 3)):
        if rate >= size:
            return f'{rate / size:g}{unit}bit'
    return ''


@contextlib.contextmanager
def listening(folder: str | pathlib.Path, obey: Callable[[str], str], say: Callable[[str], None]) -> Iterator[bool]:
    """Obeys, within the context, the lines that `ask` sends to this folder; `say` gets what was done. Whether it does:
    not where the folder's file system takes no sockets. FlagError if another launcher listens there."""
    with contextlib.suppress(OSError), _connected(folder):
        raise FlagError(f'another cluster with machines of its own runs with --log_directory={folder}')
    server = socket.socket(socket.AF_UNIX)
    try:
        _with_short_name(folder, server.bind, remove=True)
    except OSError as error:
        say(f'no commands can be given from another terminal: {folder} takes no socket ({error.strerror})')
        server.close()
        yield False
        return
    server.listen()
    threading.Thread(target=_serve, args=(server, obey, say), daemon=True).start()
    try:
        yield True
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        pathlib.Path(folder, SOCKET).unlink(missing_ok=True)


def _serve(server: socket.socket, obey: Callable[[str], str], say: Callable[[str], None]) -> None:
    with contextlib.suppress(OSError):  # The listener was closed: the cluster has ended.
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError), connection.makefile('rw') as stream:
                connection.settimeout(5)
                line = stream.readline()
                try:
                    answer, sign = obey(line), '+'
                    if not line.startswith('status'):
                        say(answer)
                except UserError as error:
                    answer, sign = str(error), '-'
                stream.write(sign + answer)


def ask(folder: str | pathlib.Path, line: str) -> str:
    """Has the launcher that keeps its logs in `folder` obey a line, and returns its answer; UserError if it refuses,
    or is not there."""
    try:
        with _connected(folder) as connection, connection.makefile('rw') as stream:
            stream.write(line.replace('\n', ' ') + '\n')
            stream.flush()
            answer = stream.read()
    except OSError as error:
        raise UserError(f'no cluster with machines of its own answers in {folder} ({error.strerror or error}): start '
                        'launch_local.py with --machines, and give its --log_directory') from None
    if not answer.startswith('+'):
        raise UserError(answer[1:] or 'the launcher ended without an answer')
    return answer[1:]


@contextlib.contextmanager
def _connected(folder: str | pathlib.Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        _with_short_name(folder, connection.connect)
        yield connection


def _with_short_name(folder: str | pathlib.Path, use: Callable[[str], object], remove: bool = False) -> None:
    """Calls `use` with a name of the socket in `folder`: the name of a socket may have no more than 107 bytes."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        name = f'/proc/self/fd/{handle}/{SOCKET}'
        if remove:
            pathlib.Path(name).unlink(missing_ok=True)
        use(name)
    finally:
        os.close(handle)
