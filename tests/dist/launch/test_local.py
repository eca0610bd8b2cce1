"""The launcher: its lines, its restarts, its exit codes. Tasks are one-line Python programs here."""

import os
import signal
import sys
import threading
import time

import pytest
from cluster_harness import TASK

from dist.launch import local
from inception_mg.errors import FlagError

SLEEP = 'import time; time.sleep(60)'


def launch(tmp_path, tasks, **options):
    """Runs programs by task name; returns (exit code, lines)."""
    lines = []
    cluster = local.LocalCluster({name: [sys.executable, '-c', program] for name, program in tasks.items()},
                                 tmp_path, colour=False, write=lines.append, **options)
    return cluster.run(), [line.rstrip('\n') for line in lines]


def test_free_ports_are_free_and_not_ephemeral():
    ports = local.free_ports(5)
    assert len(set(ports)) == 5 and all(20000 <= port < 32000 for port in ports)


def test_lines_are_prefixed_and_kept(tmp_path):
    code, lines = launch(tmp_path, {'ps 0': 'print("from ps")', 'worker 0': 'print("from worker")'})
    assert code == 0
    assert sorted(lines) == ['ps 0     | from ps', 'worker 0 | from worker']
    assert (tmp_path / 'worker_0.log').read_text() == 'from worker\n'


def test_colours(tmp_path):
    lines = []
    cluster = local.LocalCluster({'worker 0': [sys.executable, '-c', 'print(1)']}, tmp_path, colour=True,
                                 write=lines.append)
    assert cluster.run() == 0 and lines == ['\033[36mworker 0 |\033[0m 1\n']


@pytest.mark.parametrize('death', ['import os; os.kill(os.getpid(), 9)', 'import sys; sys.exit(138)',
                                   'import sys; sys.exit(143)'])
def test_dead_task_is_restarted(tmp_path, death):
    flag = tmp_path / 'was here'
    program = f'import pathlib\np = pathlib.Path({str(flag)!r})\n' \
              f'if p.exists(): print("back")\nelse:\n p.touch()\n {death}'
    code, lines = launch(tmp_path, {'worker 0': program})
    assert code == 0 and any('restart 1 of 3' in line for line in lines) and 'worker 0 | back' in lines


def test_restarts_are_bounded(tmp_path):
    code, lines = launch(tmp_path, {'ps 0': SLEEP, 'worker 0': 'import sys; sys.exit(138)'}, max_restarts=2)
    assert code == 138 and sum('restart' in line and ' of 2' in line for line in lines) == 2
    assert any('has used its 2 restarts: ending the job' in line for line in lines)


@pytest.mark.parametrize('failure', [1, 2])
def test_failure_is_not_restarted_and_ends_all(tmp_path, failure):
    begun = time.monotonic()
    code, lines = launch(tmp_path, {'ps 0': SLEEP, 'worker 0': SLEEP, 'worker 1': f'import sys; sys.exit({failure})'})
    assert code == failure and time.monotonic() - begun < 30
    assert any(f'worker 1 failed with exit code {failure}: ending the job' in line for line in lines)


def test_late_tasks_are_ended_when_the_chief_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(local, 'LINGER_SECS', 0.5)
    code, lines = launch(tmp_path, {'ps 0': SLEEP, 'worker 0': 'print()', 'worker 1': 'import sys; sys.exit(138)'})
    assert code == 0 and any('the job is done; ending ps 0' in line for line in lines)


@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_all(tmp_path, number, code):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job begins with it ignored.
    program = 'import signal, sys, time\n' \
              'signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(143)))\n' \
              'print("up")\ntime.sleep(60)'
    timer = threading.Timer(2.0, os.kill, (os.getpid(), number))
    timer.start()
    begun = time.monotonic()
    try:
        result, lines = launch(tmp_path, {'ps 0': program, 'worker 0': program})
    finally:
        signal.signal(signal.SIGINT, before)
    assert result == code and 'worker 0 | saved' in lines and 'ps 0     | saved' in lines
    assert time.monotonic() - begun < 20


def test_drill(tmp_path):
    flag = tmp_path / 'killed once'
    program = f'''
import pathlib, time
p = pathlib.Path({str(flag)!r})
if p.exists():
    raise SystemExit
p.touch()
for step in range(100):
    print("step", step, flush=True)
    time.sleep(0.05)
'''
    code, lines = launch(tmp_path, {'worker 0': program}, drills=[local.parse_drill('worker:0@step=7')])
    assert code == 0
    assert 'launcher | drill: killing worker 0 at step 7' in lines
    assert any('worker 0 was killed by SIGKILL: restart 1 of 3' in line for line in lines)


@pytest.mark.parametrize('text', ['worker:1', 'boss:1@step=5', 'worker:x@step=5', 'worker:1@50'])
def test_bad_drill(text):
    with pytest.raises(FlagError, match='is not like worker:1@step=50'):
        local.parse_drill(text)


def test_drill_of_a_task_that_is_not_there(tmp_path):
    with pytest.raises(FlagError, match='--kill names worker:5, but the tasks are worker 0'):
        local.LocalCluster({'worker 0': ['x']}, tmp_path, drills=[local.Drill('worker 5', 1)])


def test_task_flags():
    flags = local.task_flags(1, 2, [21, 22, 23])
    assert list(flags) == ['ps 0', 'worker 0', 'worker 1']
    assert flags['worker 1'] == ['--ps_hosts=127.0.0.1:21', '--worker_hosts=127.0.0.1:22,127.0.0.1:23',
                                 '--job_name=worker', '--task_id=1']


@pytest.mark.parametrize('gpus, workers, shares', [
    ([], 2, []), (['0'], 2, ['0', '0']), (['0', '1'], 2, ['0', '1']), (['4', '5', '6', '7'], 2, ['4,5', '6,7']),
    (['0', '1'], 3, ['0', '1', '0']), (['0', '1', '2'], 2, ['0', '1'])])
def test_workers_share_the_gpus(gpus, workers, shares):
    assert local.share_gpus(gpus, workers) == shares


def test_visible_gpus():
    assert local.visible_gpus({'CUDA_VISIBLE_DEVICES': '2, 3'}) == ['2', '3']
    assert local.visible_gpus({'CUDA_VISIBLE_DEVICES': '-1'}) == local.visible_gpus({'CUDA_VISIBLE_DEVICES': ''}) == []


def test_a_task_has_variables_of_its_own(tmp_path):
    show = 'import os; print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"))'
    code, lines = launch(tmp_path, {'worker 0': show, 'worker 1': show}, environ={},
                         own_environ={'worker 1': {'CUDA_VISIBLE_DEVICES': '7'}})
    assert code == 0 and sorted(lines) == ['worker 0 | sees None', 'worker 1 | sees 7']


@pytest.mark.cluster
def test_real_cluster_with_a_drill(tmp_path):
    flags = local.task_flags(1, 2, local.free_ports(3))
    commands = {name: [sys.executable, str(TASK), *own, f'--train_dir={tmp_path}', '--max_steps=80', '--sync']
                for name, own in flags.items()}
    lines = []
    cluster = local.LocalCluster(commands, tmp_path / 'logs', colour=False, write=lines.append,
                                 drills=[local.parse_drill('worker:1@step=20')])
    assert cluster.run() == 0, ''.join(lines[-50:])
    text = ''.join(lines)
    assert 'drill: killing worker 1 at step 2' in text and 'contributed [80, 80]' in text
    assert (tmp_path / 'model.ckpt-80.index').exists()
