"""Real clusters on loopback for tests: processes with logs, SIGKILL, restart, and a time limit.

    with ToyCluster(tmp_path, num_ps=1, num_workers=2, max_steps=40) as cluster:
        cluster.start_all()
        cluster.wait_line('worker 1', 'step 20')
        cluster.kill('worker 1')
        cluster.start('worker 1')
        cluster.wait_exits()

On failure the logs of all tasks are printed. Only processes started here are ever signalled. Tasks are
forked from a process that has imported TensorFlow (dist/launch/fork_server.py), which saves seconds for each.
"""

import atexit
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from dist.launch.fork_server import ForkServer, Process
from dist.launch.local import free_ports
from inception_mg import tf_environment

TASK = pathlib.Path(__file__).parent / 'toy_task.py'
TABLE: list[tuple[str, str, str, str]] = []  # Scenario, outcome, steps lost, seconds until training went on.
TIMES = re.compile(r'^(\d+\.\d+) (.*)$')


@functools.cache
def fork_server() -> ForkServer:
    """The one of this test run."""
    server = ForkServer()
    atexit.register(server.close)
    return server


class ToyCluster:
    """The tasks of one toy job; 'ps K' and 'worker K' name them. Flags are those of `script`."""

    script = TASK

    def __init__(self, folder: pathlib.Path, num_ps: int = 1, num_workers: int = 2, environ: dict | None = None,
                 **flags):
        self.folder, self.flags = folder, flags
        self.environ = tf_environment.DEFAULTS | os.environ | (environ or {})
        ports = free_ports(num_ps + num_workers)
        addresses = [f'127.0.0.1:{port}' for port in ports]
        self.ps_hosts, self.worker_hosts = addresses[:num_ps], addresses[num_ps:]
        self.tasks = [f'ps {k}' for k in range(num_ps)] + [f'worker {k}' for k in range(num_workers)]
        self.train_dir = folder / 'train'
        self.train_dir.mkdir(exist_ok=True)
        self._processes: dict[str, Process] = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(20)
        if kind:
            for task in self.tasks:
                if self.log_path(task).exists():
                    print(f'--- {task}: exit {self._processes[task].returncode}\n{self.text(task)[-6000:]}')

    def log_path(self, task: str) -> pathlib.Path:
        """The file with all output of a task, over all its lives."""
        return self.folder / f'{task.replace(" ", "_")}.log'

    def start(self, task: str, **flags) -> None:
        """Starts a task, or starts it again; keyword arguments replace flags."""
        job, index = task.split()
        flags = {'job_name': job, 'task_id': index, 'ps_hosts': ','.join(self.ps_hosts),
                 'worker_hosts': ','.join(self.worker_hosts), 'train_dir': str(self.train_dir),
                 **self.flags, **flags}
        argv = [f'--{name}' if value is True else f'--{name}={value}' for name, value in flags.items()
                if value is not False]
        self._processes[task] = self._fork(task, [sys.executable, str(self.script), *argv])

    def _fork(self, task: str, command: list[str]) -> Process:
        return fork_server().start(command, self.log_path(task), self.environ)

    def start_all(self, **flags) -> None:
        """Starts all tasks, in order."""
        for task in self.tasks:
            self.start(task, **flags)

    def kill(self, *tasks: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal, and after SIGKILL waits for the end."""
        for task in tasks:
            self._processes[task].send_signal(number)
        if number == signal.SIGKILL:
            for task in tasks:
                self._processes[task].wait(20)

    def lines(self, task: str) -> list[tuple[float, str]]:
        """(time, text) of the task's own lines so far."""
        if not self.log_path(task).exists():
            return []
        found = (TIMES.match(line) for line in self.log_path(task).read_text().splitlines())
        return [(float(match[1]), match[2]) for match in found if match]

    def text(self, task: str) -> str:
        """All that the task wrote."""
        return self.log_path(task).read_text() if self.log_path(task).exists() else ''

    def steps(self, task: str, since: float = 0.0) -> list[int]:
        """Global steps that the task printed, in order."""
        return [int(text.split()[1]) for at, text in self.lines(task) if text.startswith('step ') and at >= since]

    def wait_line(self, task: str, pattern: str, limit: float = 120.0, since: float = 0.0) -> float:
        """Waits until a line of the task matches, and returns its time."""
        return self._wait(task, lambda: next((at for at, text in self.lines(task)
                                              if at >= since and re.search(pattern, text)), None),
                          f'write {pattern!r}', limit)

    def wait_step(self, task: str, step: int, limit: float = 120.0, since: float = 0.0) -> float:
        """Waits until the task has printed a global step of at least `step`."""
        return self._wait(task, lambda: next((at for at, text in self.lines(task) if at >= since and
                                              text.startswith('step ') and int(text.split()[1]) >= step), None),
                          f'reach step {step}', limit)

    def _wait(self, task: str, found, what: str, limit: float) -> float:
        deadline = time.monotonic() + limit
        while (at := found()) is None:
            ended = self._processes[task].poll()
            if ended is not None and found() is None:
                raise AssertionError(f'{task} ended with {ended} and did not {what}')
            assert time.monotonic() < deadline, f'{task} did not {what} within {limit} s'
            time.sleep(0.1)
        return at

    def wait_exits(self, *tasks: str, limit: float = 120.0) -> list[int]:
        """Waits for the tasks (all by default) and returns their exit codes."""
        deadline = time.monotonic() + limit
        for task in tasks or self.tasks:
            left = deadline - time.monotonic()
            try:
                self._processes[task].wait(max(left, 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError(f'{task} did not end within {limit} s') from None
        return [self._processes[task].returncode for task in tasks or self.tasks]

    def resident_bytes(self, task: str) -> int:
        """Memory of a living task that is its own: not that of the libraries it shares with other tasks."""
        status = pathlib.Path(f'/proc/{self._processes[task].pid}/status').read_text()
        return 1024 * int(re.search(r'RssAnon:\s+(\d+)', status)[1])

    def check_clean(self, *tasks: str) -> None:
        """Asserts that no log holds a traceback, an ERROR or a cancelled call."""
        for task in tasks or self.tasks:
            for word in ('Traceback', 'ERROR', 'Cancelled', 'CANCELLED'):
                assert word not in self.text(task), f'{task} wrote {word}'

    def final(self, task: str = 'worker 0') -> tuple[int, list[float]]:
        """The step and the weights that the chief printed at the end."""
        words = [text.split() for _, text in self.lines(task) if text.startswith('final ')][-1]
        return int(words[1]), [float(word) for word in words[2:]]

    def counts(self, what: str) -> list[int]:
        """'contributed' or 'dropped', per worker, that the chief printed at the end."""
        line = [text for _, text in self.lines('worker 0') if text.startswith(f'{what} ')][-1]
        return [int(number) for number in re.findall(r'-?\d+', line)]


def record(scenario: str, outcome: str, lost: int, seconds: float) -> None:
    """Notes one line of the table of deaths."""
    TABLE.append((scenario, outcome, str(lost), f'{seconds:.1f}'))


def table_lines() -> list[str]:
    """The table of deaths, ready to print; [] if nothing was recorded."""
    rows = [('scenario', 'outcome', 'steps lost', 'seconds until training went on'), *TABLE]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ['  '.join(f'{cell:<{width}}' for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows] if TABLE else []
