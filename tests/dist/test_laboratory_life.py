"""Machines that vanish, return, move and have unusual addresses: real toy tasks on machines of their own."""

import sys
import threading
import time

import pytest
from cluster_harness import TASK
from laboratory_cluster import LaboratoryCluster, why_not

from dist.launch import control, run
from inception_mg.config import LaunchConfig
from inception_mg.errors import EXIT_RETRY

pytestmark = [pytest.mark.laboratory, pytest.mark.cluster]


def test_a_worker_vanishes_and_returns(tmp_path):
    """Without closing a connection, for 5 s: the other goes on, and it comes back by itself."""
    with LaboratoryCluster(tmp_path, 1, 2, lost_secs=60, status_secs=2, max_steps=10 ** 6) as cluster:
        cluster.start_all()
        for task in cluster.tasks[1:]:
            cluster.wait_step(task, 5)
        cluster.laboratory.cut('worker1')
        cut = time.time()
        cluster.wait_line('worker 1', 'worker 1 is waiting for ps 0 at ps0:2222', 30, cut)
        cluster.wait_line('worker 0', '^step ', 20, cut + 4)
        assert not cluster.steps('worker 1', cut + 2)
        cluster.laboratory.heal('worker1')
        healed = time.time()
        cluster.wait_line('worker 1', '^step ', 60, healed)
        cluster.check_clean()
        assert all(cluster.text(task).count('serves on') == 1 for task in cluster.tasks)  # No restart.


def test_a_round_waits_for_a_worker_that_is_cut_off_from_one_ps(tmp_path):
    """Under sync with all gradients, the cut lies between two machines only; the count of gradients is exact."""
    with LaboratoryCluster(tmp_path, 2, 2, lost_secs=60, status_secs=2, max_steps=60, step_secs=0.1, sync=True
                           ) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 0', 10)
        cluster.laboratory.cut('worker1', 'ps1')
        cut = time.time()
        cluster.wait_line('worker 1', 'worker 1 is waiting for ps 1 at ps1:2222', 30, cut)
        cluster.laboratory.heal('worker1', 'ps1')
        assert cluster.wait_exits(limit=90) == [0, 0, 0, 0]
        assert cluster.final()[0] == 60 and cluster.counts('contributed') == [60, 60]
        cluster.check_clean()


def test_a_worker_that_is_cut_off_for_good_ends_and_the_other_goes_on(tmp_path):
    with LaboratoryCluster(tmp_path, 1, 2, lost_secs=3, status_secs=2, max_steps=10 ** 6) as cluster:
        cluster.start_all()
        for task in cluster.tasks[1:]:
            cluster.wait_step(task, 5)
        cluster.laboratory.cut('worker1')
        assert cluster.wait_exits('worker 1', limit=60) == [EXIT_RETRY]
        ended = time.time()
        assert 'worker 1 gave up after' in cluster.text('worker 1')
        cluster.wait_line('worker 0', '^step ', 20, ended + 1)


def test_a_worker_that_moves_is_found_again(tmp_path):
    """Under its name at another address, as a pod; nobody else is started again."""
    with LaboratoryCluster(tmp_path, 1, 2, lost_secs=90, status_secs=2, max_steps=10 ** 6) as cluster:
        cluster.start_all()
        for task in cluster.tasks[1:]:
            cluster.wait_step(task, 5)
        before = cluster.laboratory.address('worker1')
        assert cluster.move('worker 1') != before
        moved = time.time()
        cluster.wait_line('worker 1', '^step ', 90, moved)
        assert cluster.text('worker 0').count('serves on') == cluster.text('ps 0').count('serves on') == 1


def test_names_with_an_underscore_and_ipv6(tmp_path):
    with LaboratoryCluster(tmp_path, 1, 2, ipv6=True, between='_', max_steps=20, sync=True) as cluster:
        cluster.start_all()
        assert cluster.wait_exits(limit=60) == [0, 0, 0]
        assert 'worker 1 serves on worker_1:2222' in cluster.text('worker 1')
        assert cluster.counts('contributed') == [20, 20]
        cluster.check_clean()


def test_the_lists_may_have_ipv6_addresses(tmp_path):
    with LaboratoryCluster(tmp_path, 1, 1, ipv6=True, by_address=True, max_steps=10) as cluster:
        cluster.start_all()
        assert cluster.wait_exits(limit=60) == [0, 0]
        assert 'ps 0 serves on [fd00:77::1]:2222' in cluster.text('ps 0')


def test_the_launcher_obeys_drills_and_commands(tmp_path, capfd):
    """launch_local.py --machines with toy tasks: slow and cut by drills, status and heal from another terminal."""
    if reason := why_not():
        pytest.skip(reason)
    config = LaunchConfig(machines=True, link='1gbit', num_ps=1, num_workers=2,
                          drill='slow:ps0=50mbit@step=10,cut:worker1@step=20,kill:worker1@step=80')
    answers, log = [], tmp_path / 'worker_0.log'

    def other_terminal():
        deadline = time.monotonic() + 60
        while not log.exists() or ' step 5' not in log.read_text():
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        for line in ('status', 'heal worker1', 'cut worker0-worker1'):
            answers.append(control.ask(tmp_path, line))

    thread = threading.Thread(target=other_terminal)
    thread.start()
    code = run.run(config, lambda own: [sys.executable, str(TASK), *own, f'--train_dir={tmp_path}', '--max_steps=150'],
                   str(tmp_path), [])
    thread.join(60)
    out = capfd.readouterr().out
    assert code == 0, out
    for line in ('drill: the cable of ps0 carries 50mbit at step 1', 'drill: worker1 is cut off at step 2',
                 'worker1 is connected again', 'drill: worker 1 is killed at step 8', 'restart 1 of 3'):
        assert line in out
    status, *others = answers
    assert others == ['worker1 is connected again', 'worker0 and worker1 do not reach one another']
    assert [line.split()[0] for line in status.splitlines()] == ['machine', 'ps0', 'worker0', 'worker1']
    assert '50mbit' in status.splitlines()[1] and status.splitlines()[3].endswith('cut off from all')
    assert not (tmp_path / control.SOCKET).exists()
