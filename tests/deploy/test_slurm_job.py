"""deploy/slurm/train.sbatch on a Slurm of the test's own: tasks are where they should be, and a job gets through a
killed task and its time limit."""

import os
import re
import signal
import sys
import time

import pytest
from conftest import ROOT
from slurm_world import SlurmWorld, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
MACHINE = 'CPUs=16 RealMemory=128000'
WHERE = """
import os, sys
sys.path.insert(0, {root!r})
from dist.slurm import from_slurm
print(os.environ['SLURM_PROCID'], os.uname().nodename, from_slurm(os.environ, 1).address)
"""
FLAGS = ['--width=0.05', '--image_size=75', '--batch_size=2', '--batch_norm_decay=0.9', '--num_preprocess_threads=1',
         '--log_every_steps=1', '--save_interval_secs=100000', '--plain_operations', '--lost_timeout=4']


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with SlurmWorld(tmp_path_factory.mktemp('slurm'), {
            'c1': MACHINE, 'c2': MACHINE, 'g1': f'{MACHINE} Gres=gpu:1', 'g2': f'{MACHINE} Gres=gpu:1'}) as world:
        yield world


@pytest.mark.parametrize('layout', [
    '-n 6 -N 4', '-n 6 -N 4 -m cyclic', '-n 7 -N 3 -m plane=2', '-n 5 -N 2 -m block', '-w g2,c1 -n 3',
    '-m block -p gpu -n 3 -N 2 : -m block -p cpu -n 4 -N 2'])
def test_each_task_takes_its_own_node_for_its_address(slurm, layout):
    (slurm.folder / 'where.py').write_text(WHERE.format(root=str(ROOT)))
    program = [sys.executable, str(slurm.folder / 'where.py')]
    command = ['srun']
    for component in layout.split(' : '):  # Each names the program.
        command += [*component.split(), *program, ':']
    command.pop()
    lines = [line.split() for line in slurm.run(*command).splitlines() if len(line.split()) == 3 and ':' in line]
    count = sum(map(int, re.findall(r'-n (\d+)', layout)))
    assert sorted(int(rank) for rank, *_ in lines) == list(range(count)), lines
    assert all(address.split(':')[0] == host for _, host, address in lines), lines
    assert len({address for *_, address in lines}) == count


def test_what_cannot_be_known_is_refused(slurm):
    (slurm.folder / 'hosts_of_tasks').write_text('g1\nc1\ng1\n')
    text = slurm.run('srun', '-n', '3', '-m', 'arbitrary', sys.executable, str(ROOT / 'scripts/train_distributed.py'),
                     '--slurm_ps=1', environ={'SLURM_HOSTFILE': str(slurm.folder / 'hosts_of_tasks')}, check=False)
    assert text.count('SLURM_DISTRIBUTION=arbitrary does not say which task is on which node') == 3, text
    assert 'Exited with exit code 2' in text and 'Traceback' not in text


class Job:
    """A job of train.sbatch, with one ps and two workers."""

    def __init__(self, slurm, data_dir: str):
        self.slurm, self.run_dir, self.flags = slurm, slurm.folder / 'run', slurm.folder / 'flags'
        work = slurm.folder / 'work'  # As a clone: the script is submitted where the programs are.
        work.mkdir()
        for name in ('scripts', 'dist', 'inception_mg'):
            (work / name).symlink_to(ROOT / name)
        (work / 'bin').mkdir()
        (work / 'bin' / 'python').symlink_to(sys.executable)
        text = (ROOT / 'deploy/slurm/train.sbatch').read_text()
        text = text.replace('--nodes=2 --ntasks-per-node=1 ', '--nodes=1 --ntasks-per-node=1 ')
        text = text.replace('--nodes=2 --ntasks-per-node=2 ', '--nodes=2 --ntasks-per-node=1 ').replace('@300', '@30')
        (work / 'train.sbatch').write_text(text)
        environ = {'DATA': data_dir, 'RUN': str(self.run_dir), 'PYTHONPATH': str(ROOT), 'CUDA_VISIBLE_DEVICES': '',
                   'PATH': f'{os.path.dirname(sys.executable)}:{slurm.environ["PATH"]}'}
        said = slurm.run('sbatch', '--parsable', 'train.sbatch', *FLAGS, f'--flagfile={self.flags}', cwd=work,
                         environ=environ)
        self.number = said.split()[0]
        self.log = work / f'inception-{self.number}.out'

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ''

    def wait_line(self, pattern: str, seconds: float, since: int = 0) -> re.Match:
        """Waits for a line of the job's log."""
        return self.slurm.wait(lambda: re.search(pattern, self.text()[since:], re.MULTILINE), seconds,
                               f'write {pattern!r}: {self.text()[-5000:]}')

    def pid(self, task: str) -> int:
        """The process of a task, such as 'worker 0', seen from here."""
        rank = {'ps 0': '0', 'worker 0': '1', 'worker 1': '2'}[task]
        for name in filter(str.isdecimal, os.listdir('/proc')):
            try:
                command = open(f'/proc/{name}/cmdline').read().split('\0')
                environ = open(f'/proc/{name}/environ').read().split('\0')
            except OSError:
                continue
            if (f'--train_dir={self.run_dir}' in command and 'bash' not in command[0]
                    and f'SLURM_PROCID={rank}' in environ):
                return int(name)
        raise AssertionError(f'{task} does not run: {self.text()[-5000:]}')

    def steps(self) -> list[int]:
        """Global steps that the chief printed."""
        return [int(step) for step in re.findall(r'^1: step +(\d+)', self.text(), re.MULTILINE)]

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        return max(int(re.search(r'ckpt-(\d+)', path.name)[1]) for path in self.run_dir.glob('model.ckpt-*.index'))


def test_a_job_gets_through_a_killed_task_and_its_time_limit(slurm, three_classes):
    """The chief is killed, and the worker that waits for it asks for a restart; the limit strikes, the chief saves,
    the job is requeued, goes on in the same folder, and ends at --max_steps."""
    (slurm.folder / 'flags').write_text('--max_steps=1000000\n')
    job = Job(slurm, three_classes)
    job.wait_line(r'^1: step +3', 180)
    job.wait_line(r'^2: worker 1: \d+ steps of its own', 60)
    os.kill(job.pid('worker 0'), signal.SIGKILL)
    killed = len(job.text())
    job.wait_line(r'task 1 ended with exit code 137: start 2 of 10', 30)
    job.wait_line(r'task 2 ended with exit code 138: start 2 of 10', 60)  # It does not wait so long (--lost_timeout).
    job.wait_line(r'^1: step +\d', 180, killed)
    limit = int(time.time() - slurm.started(job.number) + 100) // 60
    slurm.set_time_limit(job.number, limit)
    job.wait_line(r'SIGTERM: saving after this step', 60 * limit + 60)
    job.wait_line(r'was ended before its last step: requeued', 60)
    saved = job.saved()
    assert saved >= job.steps()[-1] > 3
    requeued, last = len(job.text()), saved + 5
    (slurm.folder / 'flags').write_text(f'--max_steps={last}\n')
    slurm.wait(lambda: slurm.job(job.number).get('JobState') in ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEOUT'), 240,
               f'end: {slurm.job(job.number)} {job.text()[-5000:]}')
    assert slurm.job(job.number)['JobState'] == 'COMPLETED', job.text()
    assert slurm.job(job.number)['Restarts'] == '1' and slurm.job(job.number)['ExitCode'] == '0:0'
    assert f'resumes from model.ckpt-{saved}' in job.text()[requeued:] and job.steps()[-1] >= last
    assert job.saved() >= job.steps()[-1]  # The other worker may take steps after the chief's last line.
    assert '"over"' in (job.run_dir / 'training.json').read_text()
    assert 'Traceback' not in job.text()
