"""The process that forks tasks: what becomes of them when it, or whoever asked it, is gone."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dist.launch import fork_server, local
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
for _ in range(600):
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


def test_when_it_is_killed_the_launcher_ends_its_tasks_and_says_so(tmp_path):
    """One of them obeys SIGTERM, the other does not; neither is started again or left behind."""
    obeys, resists = tmp_path / 'obeys.py', tmp_path / 'resists.py'
    obeys.write_text(WAITS)
    resists.write_text('import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint("argument", flush=True)\n'
                       'signal.alarm(60)\nwhile True:\n signal.pause()')
    server, lines = ForkServer(), []
    cluster = local.LocalCluster({'ps 0': [sys.executable, str(resists)],
                                  'worker 0': [sys.executable, str(obeys), 'one']}, tmp_path, colour=False,
                                 write=lines.append, start_one=server.start, starter_lost=lambda: server.lost)

    def kill():
        for name in ('ps_0.log', 'worker_0.log'):
            wait_text(tmp_path / name, 'argument')
        server._server.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert cluster.run() == 1
    killer.join()
    assert [line for line in lines if line.startswith('launcher')] == [
        'launcher | the process that started the tasks has ended: ending all tasks\n']
    assert 'worker 0 | asked to end\n' in lines
    assert not any(fork_server._runs(task.process.pid) for task in cluster._tasks.values())
    with pytest.raises(UserError, match='import tensorflow'):
        server.start([sys.executable, 'no.py'], tmp_path / 'log', dict(os.environ))


def test_a_signal_to_a_task_that_has_just_ended_is_no_error():
    gone = subprocess.Popen(['true'])
    gone.wait()
    fork_server.Process(gone.pid).send_signal(signal.SIGTERM)
