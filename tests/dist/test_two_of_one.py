"""Two processes under one index, and tasks that are not where the host lists say: real tasks on machines of their own."""

import signal
import time

import pytest
from laboratory_cluster import LaboratoryCluster

from inception_mg.errors import EXIT_FAILED, EXIT_RETRY, EXIT_SIGTERM

pytestmark = [pytest.mark.laboratory, pytest.mark.cluster]
MODES = {'async': {}, 'sync': {'sync': True}, 'backups': {'sync': True, 'aggregate': 1}}


class Doubled(LaboratoryCluster):
    """A cluster with a spare machine, on which a second process of a task can be started."""

    def __init__(self, folder, **flags):
        super().__init__(folder, 2, 2, spare=('spare',), status_secs=2, **flags)

    def start_elsewhere(self, task: str, named: bool = True) -> None:
        """Starts the task again on the spare machine; what runs already is 'older' from now on. named: the name of its
        machine means the spare one from now on, as a cluster's manager does it."""
        self._processes['older'] = self._processes.pop(task)
        self.log_path(task).rename(self.log_path('older'))
        self.tasks.append('older')
        if named:
            self.laboratory.point(self.machines[task], 'spare')
        self.machines[task] = 'spare'
        self.start(task)


@pytest.mark.parametrize('mode, cut_from', [('async', 'ps1'), ('async', ''), ('sync', ''), ('backups', 'ps1')])
def test_a_chief_that_was_cut_off_and_replaced(tmp_path, mode, cut_from):
    """When the cable heals, the older one changes nothing, learns that it was replaced, and ends."""
    with Doubled(tmp_path, max_steps=10 ** 6, step_secs=0.1, save_secs=1, lost_secs=100, **MODES[mode]) as cluster:
        cluster.start_all()
        for task in ('worker 0', 'worker 1'):
            cluster.wait_step(task, 5)
        cluster.laboratory.cut('worker0', cut_from)
        cluster.wait_line('worker 0', 'chief is waiting for ps', 40, time.time())
        cluster.start_elsewhere('worker 0')
        begun = cluster.wait_line('worker 0', 'the variables on the ps are alive: going on from them', 60)
        cluster.wait_step('worker 0', 5, since=begun)
        cluster.laboratory.heal('worker0')
        healed = time.time()
        assert cluster.wait_exits('older', limit=60) == [EXIT_RETRY]
        assert 'on spare is chief now: this one ends' in cluster.text('older')
        assert not [text for at, text in cluster.lines('older') if at > healed and text.startswith(('step', 'saved'))]
        for task in ('worker 0', 'worker 1'):
            cluster.wait_line(task, '^step ', 20, time.time())
        cluster.kill('worker 0', number=signal.SIGTERM)
        assert cluster.wait_exits('worker 0', limit=60) == [EXIT_SIGTERM]
        if mode == 'sync':
            assert len(set(cluster.counts('contributed'))) == 1
        cluster.check_clean('worker 0', 'worker 1', 'ps 0', 'ps 1')


def test_an_index_that_is_used_on_two_machines(tmp_path):
    """The one that is not where the lists say is told so and ends; the right one goes on."""
    with Doubled(tmp_path, max_steps=10 ** 6, step_secs=0.1) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 5)
        cluster.start_elsewhere('worker 1', named=False)
        assert cluster.wait_exits('worker 1', limit=40) == [EXIT_FAILED]
        assert ('worker 1 is not at worker1:2222, its entry in --worker_hosts: another process answers there'
                in cluster.text('worker 1'))
        cluster.wait_line('older', '^step ', 10, time.time())
        cluster.wait_line('worker 0', '^step ', 10, time.time())
        assert cluster.text('older').count('session is ready') == 1


def test_the_name_of_a_chief_moves_while_it_is_well(tmp_path):
    """The process that the name means is the chief; the older one is told so and ends."""
    with Doubled(tmp_path, max_steps=10 ** 6, step_secs=0.1) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 0', 5)
        cluster.start_elsewhere('worker 0')
        assert cluster.wait_exits('older', limit=60) == [EXIT_RETRY]
        assert 'chief' in cluster.text('older').splitlines()[-1]
        for task in ('worker 0', 'worker 1'):
            cluster.wait_line(task, '^step ', 40, time.time())


def test_a_task_that_is_not_where_the_lists_say(tmp_path):
    with Doubled(tmp_path, max_steps=10 ** 6, step_secs=0.1, start_secs=12) as cluster:
        for task in ('ps 0', 'ps 1', 'worker 0'):
            cluster.start(task)
        cluster.machines['worker 1'] = 'spare'
        cluster.start('worker 1')
        assert cluster.wait_exits('worker 1', limit=60) == [EXIT_RETRY]
        assert 'waiting for ps 0 to reach it at worker1:2222, its entry in --worker_hosts (is it started on another' in (
            cluster.text('worker 1'))
        cluster.wait_line('worker 0', '^step ', 10, time.time())
        assert cluster.text('worker 0').count('session is ready') == 1
