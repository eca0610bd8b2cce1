"""Start, end, refusals and deaths of real tasks: a toy model, real processes, real SIGKILLs."""

import random
import re
import signal
import socket
import time

import numpy as np
import pytest
from cluster_harness import ToyCluster, record

from dist.job import Job, graph_difference, job_difference

pytestmark = pytest.mark.cluster
SYNC = pytest.mark.parametrize('sync', [False, True], ids=['async', 'sync'])
SOLUTION = [1.0, -2.0, 3.0, 0.5]  # The weights that the toy's targets are made with.


def mode(sync: bool) -> str:
    return 'sync' if sync else 'async'


def check_end(cluster, max_steps):
    """All exit 0, and the last checkpoint holds the last step that anybody made."""
    assert cluster.wait_exits() == [0] * len(cluster.tasks)
    step, weights = cluster.final()
    made = max(max(cluster.steps(task), default=0) for task in cluster.tasks)
    assert max_steps <= made == step, f'steps up to {made} were made, {step} is in the last checkpoint'
    assert (cluster.train_dir / f'model.ckpt-{step}.index').exists()
    np.testing.assert_allclose(weights, SOLUTION, atol=1.0)


def check_forward(cluster, since=0.0):
    """No task ever saw global_step go back."""
    for task in cluster.tasks:
        steps = cluster.steps(task, since)
        assert steps == sorted(steps), f'{task} saw {steps}'


def test_start_in_any_order_and_end(tmp_path):
    with ToyCluster(tmp_path, 2, 2, max_steps=60) as cluster:
        order = random.Random().sample(cluster.tasks, 4)
        print('order:', order)
        for task in order:
            cluster.start(task)
            time.sleep(0.5)
        check_end(cluster, 60)
        ready = cluster.wait_line('worker 0', 'initialised all variables')
        joined = cluster.wait_line('worker 1', 'session is ready')
        served = cluster.wait_line('worker 1', 'serves on')
        assert joined - max(ready, served) < 2.0
        assert len(cluster.steps('worker 1')) > 12
        last = max(cluster.lines('worker 0')[-1][0], cluster.lines('worker 1')[-1][0])
        assert all(cluster.lines(f'ps {k}')[-1][0] - last < 15 for k in (0, 1))
        check_forward(cluster)
        cluster.check_clean()


def test_missing_ps_is_named_and_waiting_is_bounded(tmp_path):
    with ToyCluster(tmp_path, 2, 2, start_secs=4) as cluster:
        for task in ('ps 0', 'worker 0', 'worker 1'):
            cluster.start(task)
        cluster.wait_line('worker 0', rf'chief is waiting for ps 1 at {cluster.ps_hosts[1]} \(connection refused\)')
        assert cluster.wait_exits('worker 0', 'worker 1') == [138, 138]
        assert f'chief gave up after 4 s of waiting for ps 1 at {cluster.ps_hosts[1]}' in cluster.text('worker 0')


def test_worker_trains_without_its_peers_and_late_ps(tmp_path):
    with ToyCluster(tmp_path, 1, 3, max_steps=30) as cluster:
        cluster.start('worker 0')
        cluster.wait_line('worker 0', 'waiting for ps 0')
        cluster.start('ps 0')
        assert cluster.wait_exits('worker 0', 'ps 0') == [0, 0]


def test_slow_worker_is_waited_for_before_the_last_save(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=30) as cluster:
        cluster.start('ps 0')
        cluster.start('worker 0', step_secs=0.2)
        cluster.start('worker 1', step_secs=3.0)
        check_end(cluster, 30)


@SYNC
def test_worker_dies_and_comes_back(tmp_path, sync):
    with ToyCluster(tmp_path, 1, 2, max_steps=90, sync=sync) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 15)
        cluster.kill('worker 1')
        killed = time.time()
        if sync:
            cluster.wait_line('worker 0', 'has 1 of 2 gradients: waiting for gradients of worker 1, 3 s')
        cluster.start('worker 1')
        again = cluster.wait_step('worker 1', 1, since=killed)
        check_end(cluster, 90)
        check_forward(cluster)
        record(f'{mode(sync)}: worker killed, back', 'went on', 0, (again if sync else killed) - killed)
        if sync:
            assert cluster.counts('contributed') == [90, 90]


@SYNC
def test_chief_dies_and_comes_back_before_the_first_checkpoint(tmp_path, sync):
    last = 120 if sync else 300
    with ToyCluster(tmp_path, 2, 2, max_steps=last, sync=sync) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 20)
        cluster.kill('worker 0')
        killed = time.time()
        before = max(cluster.steps('worker 0') + cluster.steps('worker 1'))
        cluster.start('worker 0')
        cluster.wait_line('worker 0', 'the variables on the ps are alive: going on from them')
        again = cluster.wait_step('worker 0', before, since=killed)
        check_end(cluster, last)
        check_forward(cluster)
        record(f'{mode(sync)}: chief killed, back', 'went on from the ps', 0, again - killed if sync else 0)
        if sync:
            assert cluster.counts('contributed') == [last, last]


@SYNC
def test_chief_dies_during_a_save(tmp_path, sync):
    with ToyCluster(tmp_path, 1, 2, max_steps=120, sync=sync, save_secs=1, save_takes=1) as cluster:
        cluster.start_all()
        cluster.wait_line('worker 0', '^saved')
        saved = time.time()
        cluster.wait_line('worker 0', '^saving', since=saved)
        cluster.kill('worker 0')
        cluster.start('worker 0', save_secs=1e9, save_takes=0)
        check_end(cluster, 120)
        check_forward(cluster)


@pytest.mark.parametrize('sync, dead', [(False, 'ps 1'), (True, 'ps 0')], ids=['async', 'sync'])
def test_ps_dies_and_comes_back(tmp_path, sync, dead):
    with ToyCluster(tmp_path, 2, 2, max_steps=150, sync=sync, save_secs=0.5) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 25)
        cluster.wait_line('worker 0', '^saved')
        cluster.kill(dead)
        killed = time.time()
        before = max(cluster.steps('worker 0') + cluster.steps('worker 1'))
        cluster.wait_line('worker 1', f'waiting for {dead}')
        cluster.start(dead)
        restored = cluster.wait_line('worker 0', 'restored .*model.ckpt-', since=killed)
        again = [cluster.wait_step(f'worker {k}', 1, since=restored) for k in (0, 1)]
        first = cluster.steps('worker 0', since=restored)[0]
        assert first > 1
        check_end(cluster, 150)
        check_forward(cluster, since=restored)
        record(f'{mode(sync)}: {dead} killed, back', 'restored a checkpoint', max(0, before - first),
               max(again) - killed)


def test_ps_dies_before_the_first_checkpoint(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=60) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 10)
        cluster.kill('ps 0')
        killed = time.time()
        cluster.start('ps 0')
        cluster.wait_line('worker 0', 'initialised all variables', since=killed)
        cluster.wait_line('worker 0', r'at least \d+ steps are lost: training goes on at step 0, there was no checkpoint',
                          since=killed)
        check_end(cluster, 60)


@SYNC
def test_everything_dies_and_comes_back(tmp_path, sync):
    with ToyCluster(tmp_path, 2, 2, max_steps=100, sync=sync, save_secs=0.5) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 25)
        cluster.wait_line('worker 0', '^saved')
        cluster.kill(*cluster.tasks)
        killed = time.time()
        before = max(cluster.steps('worker 0') + cluster.steps('worker 1'))
        cluster.start_all()
        restored = cluster.wait_line('worker 0', 'restored', since=killed)
        again = cluster.wait_step('worker 1', 1, since=restored)
        first = cluster.steps('worker 1', since=restored)[0]
        check_end(cluster, 100)
        record(f'{mode(sync)}: all killed, back', 'restored a checkpoint', max(0, before - first), again - killed)


@SYNC
def test_chief_dies_in_its_last_save(tmp_path, sync):
    with ToyCluster(tmp_path, 1, 2, max_steps=20, sync=sync, save_takes=4) as cluster:
        cluster.start_all()
        cluster.wait_line('worker 0', '^saving')
        cluster.kill('worker 0')
        cluster.start('worker 0', save_takes=0)
        assert cluster.wait_exits() == [0, 0, 0]
        made = max(cluster.steps('worker 0') + cluster.steps('worker 1'))
        assert cluster.final()[0] == made


def test_worker_dies_near_the_end_for_good(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=40) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 34)
        cluster.kill('worker 1')
        killed = time.time()
        assert cluster.wait_exits('worker 0', 'ps 0') == [0, 0]
        assert time.time() - killed < 25


@SYNC
def test_chief_gone_for_good(tmp_path, sync):
    with ToyCluster(tmp_path, 1, 2, max_steps=10000, sync=sync, lost_secs=5, idle_secs=6) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 5)
        cluster.kill('worker 0')
        assert cluster.wait_exits('worker 1', limit=20) == [138]
        assert 'worker 1 gave up: the chief has been silent for' in cluster.text('worker 1')
        assert cluster.wait_exits('ps 0', limit=20) == [138]
        assert 'no worker has been heard of for 6 s' in cluster.text('ps 0')


@SYNC
def test_ps_gone_for_good(tmp_path, sync):
    with ToyCluster(tmp_path, 2, 2, max_steps=10000, sync=sync, lost_secs=5) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 5)
        cluster.kill('ps 1')
        assert cluster.wait_exits('worker 0', 'worker 1', limit=25) == [138, 138]
        for task in ('worker 0', 'worker 1'):
            assert re.search(rf'gave up after .* ps 1 at {cluster.ps_hosts[1]}', cluster.text(task))


@SYNC
def test_sigterm_to_each_role(tmp_path, sync):
    with ToyCluster(tmp_path, 1, 2, max_steps=10000, sync=sync) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 5)
        cluster.kill('worker 1', number=signal.SIGTERM)
        assert cluster.wait_exits('worker 1', limit=15) == [143]
        if sync:
            cluster.wait_line('worker 0', 'waiting for gradients of worker 1')
        cluster.kill('worker 0', number=signal.SIGTERM)
        assert cluster.wait_exits('worker 0', limit=15) == [143]
        assert list(cluster.train_dir.glob('model.ckpt-*.index'))
        cluster.kill('ps 0', number=signal.SIGTERM)
        assert cluster.wait_exits('ps 0', limit=15) == [143]


def test_sigterm_while_waiting(tmp_path):
    with ToyCluster(tmp_path, 1, 1) as cluster:
        cluster.start('worker 0')
        cluster.wait_line('worker 0', 'waiting for ps 0')
        cluster.kill('worker 0', number=signal.SIGTERM)
        assert cluster.wait_exits('worker 0', limit=10) == [143]


@SYNC
def test_failure_of_one_worker_ends_all(tmp_path, sync):
    with ToyCluster(tmp_path, 2, 2, max_steps=10000, sync=sync) as cluster:
        for task in ('ps 0', 'ps 1', 'worker 0'):
            cluster.start(task)
        cluster.start('worker 1', nan_after=20)
        assert cluster.wait_exits() == [1, 1, 1, 1]
        assert 'the loss is nan at step 2' in cluster.text('worker 1')
        assert 'ends because worker 1 failed' in cluster.text('worker 0')


def test_refusals(tmp_path):
    with ToyCluster(tmp_path, 1, 3, max_steps=10000) as cluster:
        for task in ('ps 0', 'worker 0'):
            cluster.start(task)
        cluster.wait_step('worker 0', 3)
        cluster.start('worker 1', extra_variable='surplus')
        cluster.start('worker 2', setting='another')
        assert cluster.wait_exits('worker 1', 'worker 2') == [1, 1]
        assert 'the variable surplus exists only here' in cluster.text('worker 1')
        assert '--setting is  there and another here' in cluster.text('worker 2')
        lists = ','.join(cluster.worker_hosts[:2])
        cluster.start('worker 1', worker_hosts=lists)
        assert cluster.wait_exits('worker 1') == [1]
        assert 'the worker list has 3 hosts there and 2 here' in cluster.text('worker 1')
        cluster.start('worker 1', worker_hosts=','.join(cluster.worker_hosts) + ',127.0.0.1:9')
        assert cluster.wait_exits('worker 1') == [1]
        assert 'the worker list has 3 hosts there and 4 here' in cluster.text('worker 1')
        assert 'Traceback' not in cluster.text('worker 1') + cluster.text('worker 2')
        cluster.wait_step('worker 0', cluster.steps('worker 0')[-1] + 3)  # The others are not disturbed.


def test_a_job_that_others_left_is_refused(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=10000, idle_secs=1e9) as cluster:
        cluster.start('ps 0')
        cluster.start('worker 0')
        cluster.wait_step('worker 0', 3)
        cluster.kill('worker 0')
        (tmp_path / 'other').mkdir()
        cluster.start('worker 1', train_dir='', start_secs=4)  # Of the other job: it need not know whose this state is.
        cluster.start('worker 0', train_dir=tmp_path / 'other')
        assert cluster.wait_exits('worker 0') == [1]
        assert f'it is the job of {cluster.train_dir} there and {tmp_path / "other"} here' in cluster.text('worker 0')
        assert cluster.wait_exits('worker 1') == [138]
        assert 'waiting for a sign of life of the chief' in cluster.text('worker 1')
        assert not cluster.steps('worker 1') and not list((tmp_path / 'other').iterdir())


def test_what_was_never_in_order_is_no_state(tmp_path):
    with ToyCluster(tmp_path, 2, 1, max_steps=5) as cluster:
        cluster.start('ps 0')
        cluster.start('ps 1')
        cluster.start('worker 0', max_steps=10000)
        cluster.wait_step('worker 0', 3)
        cluster.kill('worker 0', 'ps 1')
        (tmp_path / 'other').mkdir()
        cluster.start('ps 1')
        cluster.start('worker 0', train_dir=tmp_path / 'other')
        assert cluster.wait_exits() == [0, 0, 0]
        assert cluster.final()[0] == 5


@SYNC
def test_a_ps_stands_still_for_a_while(tmp_path, sync):
    """As when a machine hangs: it neither answers nor closes a connection."""
    with ToyCluster(tmp_path, 2, 2, max_steps=120, sync=sync, step_secs=0.02, status_secs=2.0) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 15)
        cluster.kill('ps 1', number=signal.SIGSTOP)
        try:
            cluster.wait_line('worker 0', rf'chief is waiting for ps 1 at {cluster.ps_hosts[1]} \(no answer in 5 s', 20)
        finally:
            cluster.kill('ps 1', number=signal.SIGCONT)
        check_end(cluster, 120)
        check_forward(cluster)
        if sync:
            assert cluster.counts('contributed') == [120, 120]


def test_a_ps_stands_still_for_good(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=10000, status_secs=2.0, lost_secs=12) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 5)
        cluster.kill('ps 0', number=signal.SIGSTOP)
        time.sleep(1)
        cluster.kill('worker 1', number=signal.SIGTERM)  # It sits in a call: no Python signal handler can run.
        assert cluster.wait_exits('worker 1', limit=25) == [143]
        assert 'worker 1 was stopped while waiting for ps 0' in cluster.text('worker 1')
        assert cluster.wait_exits('worker 0', limit=25) == [138]
        assert re.search(r'chief gave up after \d+ s without ps 0', cluster.text('worker 0'))


@pytest.mark.parametrize('flags', [{}, {'sync': True, 'aggregate': 2}], ids=['async', 'backup'])
def test_a_worker_stands_still_and_the_others_go_on(tmp_path, flags):
    with ToyCluster(tmp_path, 1, 3, max_steps=200, step_secs=0.03, **flags) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 2', 10)
        cluster.kill('worker 2', number=signal.SIGSTOP)
        cluster.wait_step('worker 0', cluster.steps('worker 0')[-1] + 50)
        cluster.kill('worker 2', number=signal.SIGCONT)
        check_end(cluster, 200)
        check_forward(cluster)


def test_the_memory_of_a_ps_stays_flat(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=10000, sync=True, step_secs=0.0) as cluster:
        cluster.start_all()
        sizes = []
        for step in (100, 400):
            cluster.wait_step('worker 0', step)
            sizes.append(cluster.resident_bytes('ps 0'))
        assert sizes[1] < 1.05 * sizes[0], sizes


def test_swapped_ps_hosts_are_refused(tmp_path):
    with ToyCluster(tmp_path, 2, 1) as cluster:
        for task in ('ps 0', 'ps 1'):
            cluster.start(task)
        cluster.start('worker 0', ps_hosts=','.join(reversed(cluster.ps_hosts)))
        assert cluster.wait_exits('worker 0') == [1]
        assert 'was started with another cluster: ps 0 is' in cluster.text('worker 0')


def test_port_in_use_is_refused(tmp_path):
    with ToyCluster(tmp_path, 1, 1) as cluster, socket.socket() as holder:
        holder.bind(('127.0.0.1', int(cluster.ps_hosts[0].split(':')[1])))
        holder.listen(1)
        cluster.start('ps 0')
        assert cluster.wait_exits('ps 0') == [1]
        assert f'ps 0 cannot listen on {cluster.ps_hosts[0]}: address already in use' in cluster.text('ps 0')


def test_proxy_variables_do_not_matter(tmp_path):
    proxy = 'http://127.0.0.1:9'
    environ = {'http_proxy': proxy, 'https_proxy': proxy, 'grpc_proxy': proxy, 'no_proxy': 'example.com'}
    with ToyCluster(tmp_path, 1, 2, environ=environ, max_steps=20) as cluster:
        cluster.start_all()
        check_end(cluster, 20)


@pytest.mark.parametrize('theirs, words', [
    (Job({'--width': '1'}, 'a'), ''), (Job({'--width': '1'}), ''),
    (Job({'--width': '1'}, 'b'), 'it is the job of b there and a here'),
    (Job({'--width': '2'}, 'a'), '--width is 2 there and 1 here'),
    (Job({}, 'a'), '--width is not set there and 1 here')])
def test_job_difference(theirs, words):
    assert job_difference(theirs, Job({'--width': '1'}, 'a')) == words


@pytest.mark.parametrize('theirs, words', [
    ({'x': '[2]'}, ''), ({'x': '[3]'}, 'the variable x is [3] there and [2] here'),
    ({'x': '[2]', 'y': '[]'}, 'the variable y exists only there'), ({}, 'the variable x exists only here')])
def test_graph_difference(theirs, words):
    assert graph_difference(theirs, {'x': '[2]'}) == words
