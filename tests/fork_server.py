"""Starts tasks by forking a process that has imported TensorFlow already: real processes, in a moment.

Run as a program it reads one JSON request a line: {"script", "argv", "log", "environ"}; it answers
'started PID' at once and 'ended PID CODE' when that process is gone (CODE < 0: killed by a signal).
"""

import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import threading


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
            os.kill(self.pid, number)

    def end(self, code: int) -> None:
        """Called by the server's reader."""
        self.returncode = code
        self._ended.set()


class ForkServer:
    """Owns the process that forks; `start` returns a Process."""

    def __init__(self):
        self._server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'})
        self._processes: dict[int, Process] = {}
        self._started, self._lock = threading.Semaphore(0), threading.Lock()
        self._last = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._server.stdout:
            word, pid, *code = line.split()
            if word == 'started':
                self._last = self._processes[int(pid)] = Process(int(pid))
                self._started.release()
            else:
                self._processes.pop(int(pid)).end(int(code[0]))

    def start(self, script: pathlib.Path, argv: list[str], log: pathlib.Path, environ: dict[str, str]) -> Process:
        """Runs `script` with the arguments `argv`; its output is added to the file `log`."""
        with self._lock:
            request = {'script': str(script), 'argv': argv, 'log': str(log), 'environ': environ}
            self._server.stdin.write(json.dumps(request) + '\n')
            self._server.stdin.flush()
            assert self._started.acquire(timeout=120), 'the fork server does not answer'
            return self._last

    def close(self) -> None:
        """Ends the server; the tasks must have ended."""
        self._server.stdin.close()
        self._server.wait(10)


def _run(request: dict) -> None:
    """The child's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends the tasks.
    output = os.open(request['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
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


def _serve() -> None:
    import tensorflow  # noqa: F401  (What the children need not wait for.)
    buffer = b''
    while True:
        ready, _, _ = select.select([0], [], [], 0.05)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b'\n')
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    _run(json.loads(line))
                print('started', pid, flush=True)
        _reap()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print('ended', pid, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == '__main__':
    _serve()
