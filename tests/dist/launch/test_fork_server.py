"""The process that forks tasks: what becomes of them when it, or whoever asked it, is gone."""

import os
import signal
import sys
import time

import pytest

from dist.launch.fork_server import ForkServer
from inception_mg.errors import UserError

pytestmark = pytest.mark.cluster
WAITS = '''
import signal, sys, time
def end(number, frame):
    print('asked to end', flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print('argument', sys.argv[1], 'tensorflow' in sys.modules, flush=True)
while True:
    time.sleep(0.1)  # (A signal just before signal.pause() would be missed.)
'''


def wait_text(log, text):
    deadline = time.monotonic() + 60
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline, f'{log} does not say {text!r}'
        time.sleep(0.05)


@pytest.fixture
def started(tmp_path):
    """A server of its own, its one task, which is running, and the task's log."""
    script, log = tmp_path / 'task.py', tmp_path / 'log'
    script.write_text(WAITS)
    server = ForkServer()
    task = server.start([sys.executable, str(script), 'one'], log, dict(os.environ))
    wait_text(log, 'argument one True')
    return server, task, log


def test_its_tasks_are_asked_to_end_when_nobody_is_left_to_ask_it(started):
    server, task, log = started
    assert task.poll() is None
    server.close()
    wait_text(log, 'asked to end')


def test_when_it_is_killed_its_tasks_count_as_lost(started):
    server, task, log = started
    try:
        server._server.send_signal(signal.SIGKILL)
        assert task.wait(10) == -signal.SIGKILL
        with pytest.raises(UserError, match='import tensorflow'):
            server.start([sys.executable, 'no.py'], log, dict(os.environ))
    finally:
        os.kill(task.pid, signal.SIGTERM)
    wait_text(log, 'asked to end')
