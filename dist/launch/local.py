"""A whole cluster on this machine: one process per task, their lines interleaved, the dead restarted.

Imports no TensorFlow: it only starts processes, listens to them, and ends them.
"""

import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from dist.hosts import FIRST_PORT, LAST_PORT
from inception_mg.errors import EXIT_FAILED, EXIT_RETRY, EXIT_SIGINT, EXIT_SIGTERM, FlagError, UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLOURS = (36, 32, 33, 35, 34, 31, 96, 92, 93, 95, 94, 91)  # ANSI foregrounds, one task after another.
LINGER_SECS = 20.0  # After the chief's end the others get so long for theirs.
INSIDE = 'INCEPTION_MG_PRIVATE_NETWORK'  # Set by a launcher for itself, in its new namespace.


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that nobody listens on now."""
    ports: list[int] = []
    for port in random.sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT):
        with socket.socket() as probe:
            try:
                probe.bind(('0.0.0.0', port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise UserError(f'fewer than {count} ports are free between {FIRST_PORT} and {LAST_PORT}')


def take_private_network(argv: Sequence[str]) -> None:
    """Puts this program, whose command line is `argv`, in a network namespace of its own, by starting it again."""
    if os.environ.pop(INSIDE, ''):
        raise_loopback()
    else:
        _enter_private_network(argv)


def _enter_private_network(argv: Sequence[str]) -> None:
    """Starts this program again in a network namespace of its own, where nobody outside can reach the
    tasks' open ports. UserError where the system does not allow that without root."""
    unshare = shutil.which('unshare')
    command = [unshare or '', '--map-current-user', '--net', '--keep-caps']
    if not unshare or subprocess.run([*command, 'true'], capture_output=True).returncode:
        raise UserError('--private_network: this system does not let `unshare --map-current-user --net` work without '
                        'root; leave the flag out, and keep the ports behind a firewall')
    sys.stdout.flush()
    os.execve(unshare, [*command, sys.executable, *argv], {**os.environ, INSIDE: '1'})


def raise_loopback() -> None:
    """Brings up the loopback interface of a new network namespace (`ip link set lo up`)."""
    import fcntl
    set_flags, up = 0x8914, 0x1  # SIOCSIFFLAGS and IFF_UP of <linux/sockios.h> and <linux/if.h>.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack('16sH14x', b'lo', up))


@dataclasses.dataclass(frozen=True)
class Drill:
    """A task to kill, by SIGKILL, when the job's lines first show a global step of at least `step`; or what is done
    then instead, a command of control.py."""

    task: str
    step: int
    command: str = ''


def parse_drill(text: str) -> Drill:
    """Reads 'worker:1@step=50'; raises FlagError otherwise."""
    match = re.fullmatch(r'(ps|worker):(\d+)@step=(\d+)', text.strip())
    if not match:
        raise FlagError(f'--kill={text} is not like worker:1@step=50')
    return Drill(f'{match[1]} {int(match[2])}', int(match[3]))


def task_names(num_ps: int, num_workers: int) -> list[str]:
    """'ps 0' to 'worker N'."""
    return [f'ps {k}' for k in range(num_ps)] + [f'worker {k}' for k in range(num_workers)]


def task_flags(num_ps: int, num_workers: int, ports: Sequence[int], host: str = '127.0.0.1') -> dict[str, list[str]]:
    """The cluster flags of each task, at these ports of one host."""
    return flags_for([f'{host}:{port}' for port in ports[:num_ps + num_workers]], num_ps)


def flags_for(addresses: Sequence[str], num_ps: int) -> dict[str, list[str]]:
    """The cluster flags of each task; the first `num_ps` addresses are those of the ps."""
    lists = [f'--ps_hosts={",".join(addresses[:num_ps])}', f'--worker_hosts={",".join(addresses[num_ps:])}']
    return {name: [*lists, f'--job_name={name.split()[0]}', f'--task_id={name.split()[1]}']
            for name in task_names(num_ps, len(addresses) - num_ps)}


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that tasks may use: those of CUDA_VISIBLE_DEVICES, else all that the driver lists."""
    if 'CUDA_VISIBLE_DEVICES' in environ:
        names = [name.strip() for name in environ['CUDA_VISIBLE_DEVICES'].split(',')]
        return [name for name in names if name and name != '-1']
    if not shutil.which('nvidia-smi'):
        return []
    listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, timeout=60, check=False)
    return [str(k) for k in range(sum(line.startswith('GPU ') for line in listed.stdout.splitlines()))]


def share_gpus(gpus: Sequence[str], num_workers: int) -> list[str]:
    """The CUDA_VISIBLE_DEVICES of each worker: as many GPUs each, and where there are fewer GPUs than workers
    several workers on one. [] without GPUs."""
    if not gpus:
        return []
    each = max(1, len(gpus) // num_workers)
    return [','.join(gpus[(k * each + i) % len(gpus)] for i in range(each)) for k in range(num_workers)]


def parse_drills(text: str) -> list[Drill]:
    """The drills of a list with commas; [] for ''."""
    return [parse_drill(part) for part in text.split(',') if part.strip()]


def environments(num_workers: int) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The environment of every task, and by name what a worker has besides: its share of this machine's GPUs.

    Prints who gets which; the second is {} without GPUs.
    """
    environ = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
    gpus = share_gpus(visible_gpus(environ), num_workers)
    if gpus:
        print(', '.join(f'worker {k}: GPU {names}' for k, names in enumerate(gpus)))
    return environ, {f'worker {k}': {'CUDA_VISIBLE_DEVICES': names} for k, names in enumerate(gpus)}


def start_process(command: Sequence[str], log: pathlib.Path, environ: Mapping[str, str]) -> subprocess.Popen:
    """Starts a task whose output is added to the file `log`."""
    # A session of its own: Ctrl-C in the terminal goes to the launcher alone, which ends them in order.
    with open(log, 'ab') as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                env=dict(environ), start_new_session=True)


class _Task:
    """One task over all its lives."""

    def __init__(self, name: str, command: Sequence[str], log_path: pathlib.Path, environ: Mapping[str, str],
                 start_one: Callable):
        self.name, self.command, self.log_path, self.environ = name, list(command), log_path, environ
        self.restarts, self.process, self.reader, self._start_one = 0, None, None, start_one

    def start(self, show: Callable[[str, str], None]) -> None:
        """Starts the process and a thread that passes its lines on."""
        self.log_path.touch()
        begin = self.log_path.stat().st_size
        self.process = self._start_one(self.command, self.log_path, self.environ)
        self.reader = threading.Thread(target=self._follow, args=(self.process, begin, show), daemon=True)
        self.reader.start()

    def _follow(self, process, begin: int, show: Callable[[str, str], None]) -> None:
        """Passes on what is added to the log from byte `begin`, line by line, until the process has ended."""
        rest = b''
        with open(self.log_path, 'rb') as log:
            log.seek(begin)
            while True:
                ended = process.poll() is not None  # Before the reading: what comes after it is complete.
                *lines, rest = (rest + log.read()).split(b'\n')
                for line in lines + ([rest] if ended and rest else []):
                    show(self.name, line.decode(errors='replace'))
                if ended:
                    return
                time.sleep(0.05)

    def end(self, number: int) -> None:
        """Signals the process if it is alive."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class LocalCluster:
    """Runs the tasks of one job on this machine.

    commands: each task's command line, by name ('ps 0', 'worker 0', ...); worker 0 is the chief. log_dir
    gets one file per task. max_restarts: of each task that died by a signal or asked for a restart; a
    task that failed or refused its flags is not restarted, and ends the job. drills: tasks to kill.
    step_pattern: finds the global step in the tasks' lines, for the drills. own_environ: variables of single tasks.
    start_one: starts a task, as `start_process` does; own_start: what starts single tasks instead. obey: does what a
    drill's command says, and returns a line. starter_lost: whether whoever started the tasks is gone, so that
    nobody would hear how they end; that ends the job. retry_code: by which a task asks for a restart.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]], log_dir: str | pathlib.Path, max_restarts: int = 3,
                 drills: Sequence[Drill] = (), step_pattern: str = r'\bstep\s+(\d+)', colour: bool | None = None,
                 environ: Mapping[str, str] | None = None, write: Callable[[str], object] | None = None,
                 own_environ: Mapping[str, Mapping[str, str]] | None = None, start_one: Callable = start_process,
                 own_start: Mapping[str, Callable] | None = None, obey: Callable[[str], str] = str,
                 starter_lost: Callable[[], bool] = lambda: False, retry_code: int = EXIT_RETRY):
        unknown = [drill.task for drill in drills if not drill.command and drill.task not in commands]
        if unknown:
            raise FlagError(f'--kill names {unknown[0].replace(" ", ":")}, but the tasks are {", ".join(commands)}')
        log_dir = pathlib.Path(log_dir)
        log_dir.mkdir(parents=True, exist_ok=True)
        environ = {'PYTHONUNBUFFERED': '1', **(os.environ if environ is None else environ)}
        self._tasks = {name: _Task(name, command, log_dir / f'{name.replace(" ", "_")}.log',
                                   {**environ, **(own_environ or {}).get(name, {})},
                                   (own_start or {}).get(name, start_one))
                       for name, command in commands.items()}
        self._max_restarts, self._drills = max_restarts, list(drills)
        self._step = re.compile(step_pattern)
        self._colour = sys.stdout.isatty() if colour is None else colour
        self._write, self._lock = write or sys.stdout.write, threading.Lock()
        self._width = max(map(len, commands))
        self._signal, self._starter_lost, self._obey, self._retry_code = 0, starter_lost, obey, retry_code

    def run(self) -> int:
        """Runs the job to its end; returns 0 only if the chief ended well.

        SIGINT, SIGTERM or SIGHUP ends all tasks (the workers may save first); returns 130 or 143.
        """
        before = {number: signal.signal(number, self._remember) for number in SIGNALS
                  if signal.getsignal(number) != signal.SIG_IGN}
        try:
            for task in self._tasks.values():
                task.start(self._show)
            return self._watch()
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame) -> None:
        self._signal = number

    def _watch(self) -> int:
        chief, chief_ended = self._tasks['worker 0'], None
        while True:
            if self._signal:
                self.say(f'{signal.Signals(self._signal).name}: ending all tasks')
                return EXIT_SIGINT if self._signal == signal.SIGINT else EXIT_SIGTERM
            if self._starter_lost():
                self.say('the process that started the tasks has ended: ending all tasks')
                return EXIT_FAILED
            alive = [task for task in self._tasks.values() if task.process.poll() is None]
            if chief.process.poll() == 0:
                chief_ended = chief_ended or time.monotonic()
                if not alive or time.monotonic() - chief_ended > LINGER_SECS:
                    return self._verdict()
            else:
                for task in set(self._tasks.values()) - set(alive):
                    if not self._revive(task):
                        return task.process.returncode if task.process.returncode > 0 else EXIT_FAILED
            time.sleep(0.1)

    def _revive(self, task: _Task) -> bool:
        """Restarts a task that has ended, if that can help; False if the job is lost by it."""
        code = task.process.returncode
        if code == 0:
            return True
        if not (code < 0 or code in (self._retry_code, EXIT_SIGTERM)):
            self.say(f'{task.name} failed with exit code {code}: ending the job')
            return False
        how = f'was killed by {signal.Signals(-code).name}' if code < 0 else f'ended with exit code {code}'
        if task.restarts >= self._max_restarts:
            self.say(f'{task.name} {how} and has used its {self._max_restarts} restarts: ending the job')
            return False
        task.restarts += 1
        self.say(f'{task.name} {how}: restart {task.restarts} of {self._max_restarts}')
        task.reader.join(5)
        task.start(self._show)
        return True

    def _verdict(self) -> int:
        """The chief has ended well; whoever is left over is named."""
        late = [task.name for task in self._tasks.values() if task.process.poll() is None]
        if late:
            self.say(f'the job is done; ending {", ".join(late)}, still there after {LINGER_SECS:g} s')
        return 0

    def _end_all(self) -> None:
        """Ends what is alive: workers first, since they may want the ps for a last checkpoint."""
        for job, patience in (('worker', 30.0), ('ps', 5.0)):
            tasks = [task for task in self._tasks.values() if task.name.startswith(job) and task.process]
            for task in tasks:
                task.end(signal.SIGTERM)
            deadline = time.monotonic() + patience
            for task in tasks:
                try:
                    task.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    task.end(signal.SIGKILL)
                    task.process.wait()
                task.reader.join(5)

    def _show(self, name: str, line: str) -> None:
        with self._lock:
            prefix = f'{name:<{self._width}} |'
            if self._colour:
                colour = COLOURS[list(self._tasks).index(name) % len(COLOURS)]
                prefix = f'\033[{colour}m{prefix}\033[0m'
            self._write(f'{prefix} {line}\n')
        match = self._step.search(line)
        if match:
            self._drill(int(match[1]))

    def _drill(self, step: int) -> None:
        with self._lock:
            due = [drill for drill in self._drills if step >= drill.step]
            self._drills = [drill for drill in self._drills if step < drill.step]
        for drill in due:
            if drill.command:
                self.say(f'drill: {self._obey(drill.command)} at step {step}')
            else:
                self.say(f'drill: killing {drill.task} at step {step}')
                self.kill(drill.task)

    def kill(self, name: str) -> None:
        """Kills a task, which is started again as any that is killed; one that has ended is left alone."""
        self._tasks[name].end(signal.SIGKILL)

    def alive(self, name: str) -> bool:
        """Whether a task's process runs."""
        process = self._tasks[name].process
        return process is not None and process.poll() is None

    def say(self, line: str) -> None:
        """Writes a line of the launcher's own."""
        with self._lock:
            self._write(f'{"launcher":<{self._width}} | {line}\n')
