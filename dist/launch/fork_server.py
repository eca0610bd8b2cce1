"""Starts tasks by forking a process that has imported TensorFlow already: real processes, in a moment.

TensorFlow takes three to four seconds of a core to import. A cluster of four on two cores would spend most of its start
on that.

The process that forks reads one JSON request a line: {"script", "argv", "log", "environ", "namespaces"}; it answers
'started PID' at once and 'ended PID CODE' when that process is gone (CODE < 0: killed by a signal). When whoever asks
is gone, it ends the tasks with SIGTERM.

Not multiprocessing's forkserver, which was tried: it runs the launcher's own file again in every task; Ctrl-C during
its import of TensorFlow ends it with a traceback, since it shares the launcher's terminal; and when it is killed, tasks
that live on count as ended with 255 while the next start makes another server without a word.
"""

import contextlib
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from dist.launch.laboratory import enter_namespaces
from inception_mg import tf_environment
from inception_mg.errors import UserError


class Process:
    """One forked task; poll, wait and send_signal are those of subprocess.Popen."""

    def __init__(self, pid: int):
        self.pid, self.returncode, self._ended = pid, None, threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended, and the word of it is on its way.
                os.kill(self.pid, number)

    def end(self, code: int) -> None:
        """Called by the server's reader."""
        self.returncode = code
        self._ended.set()


class ForkServer:
    """Owns the process that forks; `start` returns a Process. Not for tasks with GPUs: a forked process has not been
    tried with them.

    lost: whether that process is gone. Then tasks that still run can be signalled and waited for, and whoever owns this
    has to end them; nobody hears of their exit codes, and they count as killed.
    """

    def __init__(self):
        # A session of its own, so that Ctrl-C reaches only whoever owns this.
        root = str(pathlib.Path(__file__).resolve().parent.parent.parent)
        code = f'import sys; sys.path[0] = {root!r}; from dist.launch import fork_server; fork_server.serve()'
        self._server = subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                                        env=tf_environment.DEFAULTS | os.environ)
        self._processes: dict[int, Process] = {}
        self._answers, self._lock = threading.Semaphore(0), threading.Lock()
        self._last: Process | None = None
        self.lost = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._server.stdout:
            word, pid, *code = line.split()
            if word == 'started':
                self._last = self._processes[int(pid)] = Process(int(pid))
                self._answers.release()
            else:
                self._processes.pop(int(pid)).end(int(code[0]))
        self._last, self.lost = None, True
        self._answers.release()
        while self._processes:
            for pid in [pid for pid in self._processes if not _runs(pid)]:
                self._processes.pop(pid).end(-signal.SIGKILL)
            time.sleep(0.05)

    def start(self, command: Sequence[str], log: pathlib.Path, environ: Mapping[str, str],
              namespaces: Sequence[str] = ()) -> Process:
        """Runs `command`, which is [python, script, *arguments]; its output is added to the file `log`.

        namespaces: those of a machine (Laboratory.namespaces) to run it in; it then ends, by SIGKILL, with the process
        that forks. Raises UserError if TensorFlow cannot be imported.
        """
        with self._lock, contextlib.suppress(BrokenPipeError):
            request = {'script': command[1], 'argv': list(command[2:]), 'log': str(log), 'environ': dict(environ),
                       'namespaces': list(namespaces)}
            self._server.stdin.write(json.dumps(request) + '\n')
            self._server.stdin.flush()
            self._answers.acquire()
            if self._last is not None:
                return self._last
        raise UserError(f'the process that starts the tasks has ended: does `{sys.executable} -c "import tensorflow"` '
                        'work?')

    def close(self) -> None:
        """Ends the server, and with SIGTERM tasks that are left."""
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:  # On a busy machine it may be importing still.
            self._server.kill()
            self._server.wait()


def _runs(pid: int) -> bool:
    """Whether a process that is not our child still runs; one that has ended and waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # A system without /proc; or it has ended just now, and the next look will say so.
        return True


def serve() -> None:
    """The life of the process that forks."""
    import tensorflow  # noqa: F401  (What the children need not wait for.)
    children: set[int] = set()
    buffer = b''
    while True:
        ready, _, _ = select.select([0], [], [], 0.05)
        chunk = os.read(0, 65536) if ready else b''
        if ready and not chunk:
            for pid in children:
                os.kill(pid, signal.SIGTERM)
            return
        *lines, buffer = (buffer + chunk).split(b'\n')
        for line in lines:
            pid = os.fork()
            if pid == 0:
                _run(json.loads(line))
            children.add(pid)
            print('started', pid, flush=True)
        children -= set(_reap())


def _run(request: dict) -> None:
    """The child's life."""
    os.setsid()
    output = os.open(request['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if request['namespaces']:
        enter_namespaces(request['namespaces'])
    os.environ.clear()
    os.environ.update(request['environ'])
    sys.argv = [request['script'], *request['argv']]
    sys.path[0] = str(pathlib.Path(request['script']).parent)
    code = 1
    try:
        runpy.run_path(request['script'], run_name='__main__')
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _reap() -> list[int]:
    """Tells of the children that have ended, and returns their pids."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)
        print('ended', pid, os.waitstatus_to_exitcode(status), flush=True)
