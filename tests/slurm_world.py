"""Slurm for a test, with no service installed: munged, slurmctld, and a slurmd on each of some made-up machines.

    with SlurmWorld(folder, {'c1': 'CPUs=4', 'g1': 'CPUs=4 Gres=gpu:1'}) as slurm:
        print(slurm.run('srun', '-N', '2', 'hostname'))

Each machine is a network namespace with an address and a name of its own, since TensorFlow's servers listen on every
address of theirs. All of it lives in namespaces of one process, which takes everything with it when it is killed. Needs
root, slurm-wlm, munge and iproute2.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

TOOLS = ('munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'ip', 'unshare', 'nsenter')
CONTROLLER, NETWORK = 'controller', '10.77.0.'
# cred_expire: so long a requeued job waits before it starts again; two minutes by default. No control groups and no
# accounting: they want a service manager. config_overrides: the made-up machines have the cores that they are said to.
CONFIG = """
ClusterName=test
SlurmctldHost={controller}({network}1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
KillWait=20
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
"""


def why_not() -> str:
    """Why Slurm cannot be started here, in one line; '' if it can."""
    path = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if missing:
        return f'{", ".join(missing)} not found: apt-get install slurm-wlm munge iproute2'
    if os.geteuid():
        return 'needs root: for network namespaces, munged and slurmd'
    tried = subprocess.run(['unshare', '--mount', '--net', '--uts', '--pid', '--fork', 'sh', '-c',
                            'ip link add name a1 type veth peer name a2 && ip link add name bridge type bridge'],
                           capture_output=True, text=True)
    return f'no network namespaces here: {tried.stderr.strip()}' if tried.returncode else ''


class SlurmWorld:
    """A controller and machines: name -> the rest of its line in slurm.conf. Its logs are in `folder`."""

    def __init__(self, folder: pathlib.Path, machines: Mapping[str, str]):
        self.folder, self.machines = folder, dict(machines)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith('SLURM')}
        self.environ |= {'SLURM_CONF': f'{folder}/slurm.conf', 'PATH': f'{os.environ["PATH"]}:/usr/sbin:/sbin'}

    def __enter__(self):
        self.folder.chmod(0o755)  # munged asks that no stranger may write here.
        self._write_files()
        command = ['unshare', '--mount', '--net', '--uts', '--pid', '--fork', '--kill-child', '--mount-proc',
                   sys.executable, __file__, str(self.folder), *self.machines]
        self._log = open(self.folder / 'world.log', 'w')
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                         env=self.environ)
        try:
            self.wait(lambda: (self.folder / 'ready').exists(), 60, 'start')
            children = pathlib.Path(f'/proc/{self._process.pid}/task/{self._process.pid}/children')
            inside = children.read_text().split()[0]
            self._inside = ['nsenter', '--target', inside, '--mount', '--net', '--uts', '--pid']
            self.wait(lambda: self.states() == {'idle'}, 20, 'have its machines idle')
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, error, traceback):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _write_files(self) -> None:
        folder, lines = self.folder, CONFIG.format(folder=self.folder, controller=CONTROLLER, network=NETWORK)
        for number, (name, rest) in enumerate(self.machines.items()):
            lines += f'NodeName={name} NodeAddr={NETWORK}{number + 11} State=UNKNOWN {rest}\n'
        parts = {'all': list(self.machines), 'gpu': [name for name, rest in self.machines.items() if 'gpu' in rest]}
        parts['cpu'] = [name for name in self.machines if name not in parts['gpu']]
        lines += ''.join(f'PartitionName={part} Nodes={",".join(names)} Default={"YES" if part == "all" else "NO"}\n'
                         for part, names in parts.items() if names)
        (folder / 'slurm.conf').write_text(lines)
        (folder / 'gres.conf').write_text(''.join(f'NodeName={name} Name=gpu File=/dev/null\n' for name, rest
                                                  in self.machines.items() if 'gpu' in rest))
        (folder / 'hosts').write_text('127.0.0.1 localhost\n' + f'{NETWORK}1 {CONTROLLER}\n' + ''.join(
            f'{NETWORK}{number + 11} {name}\n' for number, name in enumerate(self.machines)))
        (folder / 'munge.key').write_bytes(os.urandom(128))
        (folder / 'munge.key').chmod(0o400)
        (folder / 'state').mkdir()
        for name in self.machines:
            (folder / f'spool-{name}').mkdir()

    def wait(self, done, seconds: float, what: str):
        """Waits until done() is true, and returns its value; AssertionError if that takes longer."""
        deadline = time.monotonic() + seconds
        while not (value := done()):
            assert self._process.poll() is None, f'Slurm has ended: {(self.folder / "world.log").read_text()}'
            assert time.monotonic() < deadline, f'it did not {what} within {seconds} s'
            time.sleep(0.3)
        return value

    def run(self, *command: str, cwd: pathlib.Path | None = None, environ: Mapping[str, str] | None = None,
            check: bool = True) -> str:
        """What a command prints (stdout, then stderr) that is run beside the controller."""
        directory = [f'--wd={cwd or self.folder}']
        done = subprocess.run([*self._inside, *directory, *command], env={**self.environ, **(environ or {})}, text=True,
                              capture_output=True, timeout=120)
        assert not (check and done.returncode), f'{command}: {done.returncode}: {done.stdout}{done.stderr}'
        return done.stdout + done.stderr

    def states(self) -> set[str]:
        """The states of all machines."""
        return set(self.run('sinfo', '--noheader', '--Node', '--format=%T', check=False).split())

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of a job, by name."""
        text = self.run('scontrol', '--oneliner', 'show', 'job', number, check=False)
        return dict(pair.split('=', 1) for pair in text.split() if '=' in pair)

    def set_time_limit(self, number: str, minutes: int) -> None:
        """Gives a job, with all its components, so long from its start."""
        for one in re.findall(r'JobId=(\d+)', self.run('scontrol', 'show', 'job', number)):
            self.run('scontrol', 'update', f'JobId={one}', f'TimeLimit={minutes}')

    def started(self, number: str) -> float:
        """When a job began to run, in seconds of the epoch."""
        return time.mktime(time.strptime(self.job(number)['StartTime'], '%Y-%m-%dT%H:%M:%S'))


def _live(folder: pathlib.Path, machines: list[str]) -> None:
    """The life of the process inside: the network, the names, the daemons; then it reaps what ends."""
    def do(*command: str) -> None:
        subprocess.run(command, check=True)

    do('mount', '--make-rprivate', '/')
    do('mount', '--bind', str(folder / 'hosts'), '/etc/hosts')
    do('hostname', CONTROLLER)
    do('ip', 'link', 'set', 'lo', 'up')
    do('ip', 'link', 'add', 'name', 'bridge', 'type', 'bridge')
    do('ip', 'address', 'add', f'{NETWORK}1/24', 'dev', 'bridge')
    do('ip', 'link', 'set', 'bridge', 'up')
    do('munged', f'--key-file={folder}/munge.key', f'--socket={folder}/munge.socket', f'--pid-file={folder}/munged.pid',
       f'--log-file={folder}/munged.log', f'--seed-file={folder}/munge.seed', '--force')
    do('slurmctld')
    for number, name in enumerate(machines):
        # It waits for its network, since that can be given to a process only.
        script = (f'hostname {name}; read go; ip link set lo up; ip address add {NETWORK}{number + 11}/24 dev eth0; '
                  f'ip link set eth0 up; exec slurmd -D -N {name}')
        machine = subprocess.Popen(['unshare', '--net', '--uts', 'sh', '-c', script], stdin=subprocess.PIPE, text=True)
        while os.readlink(f'/proc/{machine.pid}/ns/net') == os.readlink('/proc/self/ns/net'):
            time.sleep(0.01)
        do('ip', 'link', 'add', 'name', f'to_{name}', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', str(machine.pid))
        do('ip', 'link', 'set', f'to_{name}', 'master', 'bridge', 'up')
        machine.stdin.write('go\n')
        machine.stdin.flush()
    (folder / 'ready').touch()
    while True:
        with contextlib.suppress(ChildProcessError):
            os.wait()


if __name__ == '__main__':
    _live(pathlib.Path(sys.argv[1]), sys.argv[2:])
