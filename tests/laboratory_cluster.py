"""Real clusters whose tasks have a machine each: cluster_harness.py in a Laboratory (dist/launch/laboratory.py).

    @pytest.mark.laboratory
    def test_x(tmp_path):
        with LaboratoryCluster(tmp_path, num_ps=1, num_workers=2, lost_secs=15) as cluster:
            cluster.start_all()
            cluster.wait_step('worker 1', 5)
            cluster.laboratory.cut('worker1')

The machine of 'worker 1' is `worker1`, or what `machines` calls it. Tests are skipped, with the reason, where the
system allows no namespaces.
"""

import functools
import pathlib
import subprocess

import pytest
from cluster_harness import ToyCluster, fork_server
from training_cluster import TrainingCluster

from dist.launch.fork_server import Process
from dist.launch.laboratory import Laboratory
from inception_mg.errors import UserError


@functools.cache
def why_not() -> str:
    """Why there can be no machines here; '' if there can."""
    try:
        with Laboratory(['probe'], link='1gbit'):
            return ''
    except UserError as error:
        return str(error)


class LaboratoryCluster(ToyCluster):
    """A ToyCluster with a machine for each task. link, ps_link, ipv6: of the Laboratory. between: what stands between
    job and index in the machines' names. spare: further machines. by_address: lists have addresses, not names."""

    def __init__(self, folder: pathlib.Path, *positional, link: str = '', ps_link: str = '', ipv6: bool = False,
                 between: str = '', spare: tuple[str, ...] = (), by_address: bool = False, **options):
        if reason := why_not():
            pytest.skip(reason)
        super().__init__(folder, *positional, **options)
        self.machines = {task: task.replace(' ', between) for task in self.tasks}
        self._settings, self._by_address = ([*self.machines.values(), *spare], link, ps_link, ipv6), by_address

    def __enter__(self):
        self.laboratory = Laboratory(*self._settings).__enter__()
        listed = [self.laboratory.listed(machine, self._by_address) for machine in self.machines.values()]
        self.ps_hosts, self.worker_hosts = listed[:len(self.ps_hosts)], listed[len(self.ps_hosts):]
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self.laboratory.close()

    def _fork(self, task: str, command: list[str]) -> Process:
        return fork_server().start(command, self.log_path(task), self.environ,
                                   self.laboratory.namespaces(self.machines[task]))

    def move(self, task: str) -> str:
        """What becomes of a pod: the task is killed, and started again at another address under the same name."""
        self.kill(task)
        address = self.laboratory.move(self.machines[task])
        self.start(task)
        return address

    def run_on(self, machine: str, *command: str, limit: float = 30) -> subprocess.CompletedProcess:
        """Runs a short command on a machine."""
        return subprocess.run(self.laboratory.command(machine, command), capture_output=True, text=True,
                              timeout=limit)


class LaboratoryTraining(LaboratoryCluster, TrainingCluster):
    """The same with the real programs, as TrainingCluster."""
