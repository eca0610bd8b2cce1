"""Who is who in a cluster: host lists from flags, TF_CONFIG or Slurm (slurm.py). Standard library only."""

import dataclasses
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence

from inception_mg.errors import FlagError

JOBS = ('ps', 'worker', 'evaluator')
FIRST_PORT, LAST_PORT = 20000, 32000  # Below Linux's ephemeral ports, which outgoing connections take.
TF_CONFIG_JOBS = ('chief', 'master', 'worker', 'ps', 'evaluator')


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The host lists of a cluster and this task's place in it; always valid.

    Hosts are 'host:port', in the order of the task indices; '' is a worker that this task was not
    told of (TF_CONFIG may leave out the others). Worker 0 is the chief. An evaluator is outside of
    the cluster. needs_ps: whether an empty list of ps is refused. Raises FlagError naming the bad entry.
    """

    ps: tuple[str, ...]
    workers: tuple[str, ...]
    job: str
    index: int
    needs_ps: bool = True

    def __post_init__(self):
        if self.job not in JOBS:
            raise FlagError(f'unknown job {self.job!r}: use one of {", ".join(JOBS)} (the chief is worker 0)')
        for job, hosts in (('ps', self.ps), ('worker', self.workers)):
            if not any(hosts) and (job == 'worker' or self.needs_ps) and self.job != 'evaluator':
                raise FlagError(f'the cluster has no {job}: list at least one {job} host')
        known: dict[str, str] = {}
        for job, hosts in (('ps', self.ps), ('worker', self.workers)):
            for index, address in enumerate(hosts):
                self._check_address(address, f'{job} {index}', known)
        self._check_loopback()
        if self.job != 'evaluator' and not 0 <= self.index < len(self._hosts()):
            raise FlagError(f'there is no {self.job} {self.index}: the {self.job} list has '
                            f'{len(self._hosts())} hosts, 0 to {len(self._hosts()) - 1}')
        if not self.address and self.job != 'evaluator':
            raise FlagError(f'the cluster does not list {self.job} {self.index}, which is this task')

    def _check_address(self, address: str, task: str, known: dict[str, str]) -> None:
        if not address and task.startswith('worker'):
            return
        host, port = split_address(address, task)
        same = (host.lower().replace('localhost', '127.0.0.1'), port)
        if known.setdefault(f'{same}', task) != task:
            raise FlagError(f'{known[f"{same}"]} and {task} have the same address {address}')

    def _check_loopback(self) -> None:
        """On every machine loopback is that machine: with other hosts beside it each task would mean another one."""
        tasks = {f'{job} {index}': split_address(address, '')[0] for job, hosts in
                 (('ps', self.ps), ('worker', self.workers)) for index, address in enumerate(hosts) if address}
        local = [task for task, host in tasks.items() if is_loopback_host(host)]
        if local and len(local) < len(tasks):
            other = next(task for task in tasks if task not in local)
            raise FlagError(f'{local[0]} is at {tasks[local[0]]}, which on every machine is that machine itself, but '
                            f'{other} is at {tasks[other]}: list the name by which others reach {local[0]}')

    def _hosts(self) -> tuple[str, ...]:
        return {'ps': self.ps, 'worker': self.workers}.get(self.job, ())

    @property
    def is_chief(self) -> bool:
        return self.job == 'worker' and self.index == 0

    @property
    def address(self) -> str:
        """This task's own 'host:port'; '' for an evaluator."""
        return self._hosts()[self.index] if self._hosts() else ''

    @property
    def name(self) -> str:
        """What log lines call this task, such as 'worker 2'."""
        return 'chief' if self.is_chief else f'{self.job} {self.index}'

    @property
    def task(self) -> str:
        """What device names begin with, such as '/job:worker/task:2'."""
        return f'/job:{self.job}/task:{self.index}'

    @property
    def lists(self) -> dict[str, list[str]]:
        """What must be equal on all tasks, ready for JSON."""
        return {'ps': list(self.ps), 'worker': list(self.workers)}

    @property
    def device_filters(self) -> list[str]:
        """The tasks that this one talks to: a worker sees all ps and itself, a ps only itself."""
        return ['/job:ps', self.task] if self.job == 'worker' else [self.task]

    def difference(self, theirs: Mapping[str, Sequence[str]]) -> str:
        """Says in a few words where another task's `lists` differ from these; '' if they agree.

        An unknown worker ('') agrees with any, and a list with unknown workers with a longer one.
        """
        for job, mine in self.lists.items():
            other = list(theirs.get(job, ()))
            for index, (here, there) in enumerate(zip(mine, other, strict=False)):
                if here and there and here != there:
                    return f'{job} {index} is {there} there and {here} here'
            if len(mine) != len(other) and '' not in (mine if len(mine) < len(other) else other):
                return f'the {job} list has {len(other)} hosts there and {len(mine)} here'
        return ''


def split_address(address: str, task: str) -> tuple[str, int]:
    """Returns host and port of 'host:port' or '[IPv6]:port'; raises FlagError naming `task`."""
    if '://' in address:
        raise FlagError(f'{task}: {address!r} has a scheme: write host:port without {address.split("://")[0]}://')
    match = re.fullmatch(r'(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\],]+):(\d+)', address)
    if not match:
        hint = ' (IPv6 as [::1]:port)' if address.count(':') > 1 else ''
        raise FlagError(f'{task}: {address!r} is not host:port{hint}')
    if not 1 <= int(match[2]) <= 65535:
        raise FlagError(f'{task}: the port of {address!r} is not in 1 to 65535')
    host = match[1].strip('[]')
    if match[1].startswith('['):
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise FlagError(f'{task}: {match[1]} in {address!r} is no IPv6 address') from None
    elif odd := re.search(r'[^\w.-]', host):
        raise FlagError(f'{task}: {address!r} has {odd[0]!r}, which no name of a host has: list each task by itself')
    if _is_everywhere(host):
        raise FlagError(f'{task}: {address!r} is every interface of a machine, not an address that others can reach: '
                        'list the name or the address of its machine')
    return host, int(match[2])


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition('%')[0]).is_unspecified
    except ValueError:  # A name; 0 and 0.0 are short for 0.0.0.0.
        return re.fullmatch(r'(0x)?0+(\.0+){0,3}', host.lower()) is not None


def is_loopback_host(host: str) -> bool:
    """Whether a host, without its port, is this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip('.') in ('localhost', 'localhost.localdomain', 'ip6-localhost', 'ip6-loopback')


def parse_hosts(text: str, flag: str) -> tuple[str, ...]:
    """Splits 'a:1, b:2,' into addresses; raises FlagError for a gap, which would shift the indices."""
    hosts = [host.strip() for host in text.split(',')]
    while hosts and not hosts[-1]:
        hosts.pop()
    if '' in hosts:
        raise FlagError(f'--{flag}={text}: entry {hosts.index("")} is empty')
    return tuple(hosts)


def from_flags(ps_hosts: str, worker_hosts: str, job_name: str, task_id: int, needs_ps: bool = True) -> Cluster:
    """Returns the cluster of --ps_hosts, --worker_hosts, --job_name and --task_id; raises FlagError."""
    for flag, value in (('ps_hosts', ps_hosts), ('worker_hosts', worker_hosts), ('job_name', job_name)):
        if not value.strip(' ,') and (needs_ps or flag != 'ps_hosts'):
            raise FlagError(f'--{flag} is empty: a cluster needs --ps_hosts, --worker_hosts, --job_name and --task_id')
    return Cluster(parse_hosts(ps_hosts, 'ps_hosts'), parse_hosts(worker_hosts, 'worker_hosts'), job_name, task_id,
                   needs_ps)


def from_tf_config(text: str, needs_ps: bool = True, ps_hosts: str = '', worker_hosts: str = '') -> Cluster:
    """Returns the cluster of a TF_CONFIG value; raises FlagError in one line.

    A chief (or master) becomes worker 0 and moves the workers up by one, since a ClusterSpec of ps
    and worker has no chief. Hosts may be lists, or dictionaries from index to host with gaps. ps_hosts,
    worker_hosts: the flags, which say who is in the cluster where TF_CONFIG lists but a part of it; this
    task is then the one at its address.
    """
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise FlagError(f'TF_CONFIG is not JSON: {error}') from None
    config = _expect(config, dict, 'TF_CONFIG')
    hosts = _expect(config.get('cluster'), dict, "TF_CONFIG's cluster")
    task = _expect(config.get('task'), dict, "TF_CONFIG's task")
    for job in (*hosts, task.get('type')):
        if job not in TF_CONFIG_JOBS:
            raise FlagError(f'TF_CONFIG: unknown job {job!r}: known are {", ".join(TF_CONFIG_JOBS)}')
    lists = {job: _hosts_of(job, value) for job, value in hosts.items()}
    chiefs = lists.get('chief', ()) + lists.get('master', ())
    if len(chiefs) > 1:
        raise FlagError(f'TF_CONFIG: {len(chiefs)} chiefs ({", ".join(chiefs)}): there can be one')
    job, index = task['type'], _index(task.get('index', 0), 'task index')
    if ps_hosts or worker_hosts:
        return _among(parse_hosts(ps_hosts, 'ps_hosts'), parse_hosts(worker_hosts, 'worker_hosts'), job, index,
                      lists.get(job, ()), needs_ps)
    if not any(chiefs + lists.get('worker', ())) and job in ('ps', 'chief', 'master'):
        raise FlagError(f'TF_CONFIG tells {job} {index} of no worker (as with enableDynamicWorker of a TFJob): leave '
                        'that out, or give every task the same --ps_hosts and --worker_hosts as well')
    if job in ('chief', 'master'):
        if not chiefs or index:
            raise FlagError(f'TF_CONFIG: this task is {job} {index}, which its cluster does not list')
        job = 'worker'
    elif job == 'worker':
        index += len(chiefs)
    return Cluster(lists.get('ps', ()), chiefs + lists.get('worker', ()), job, index, needs_ps)


def _among(ps: tuple[str, ...], workers: tuple[str, ...], job: str, index: int, hosts: tuple[str, ...], needs_ps: bool
           ) -> Cluster:
    """The cluster of the flags, in which this task is at the address that TF_CONFIG has for it; a chief is worker 0.

    hosts: what TF_CONFIG lists of the task's job: for a ps of a sparse one its own address alone.
    """
    if job == 'evaluator':
        return Cluster(ps, workers, job, index, needs_ps)
    chief = job in ('chief', 'master')
    listed = ps if job == 'ps' else workers[:1] if chief else workers
    address = hosts[index] if index < len(hosts) else hosts[0] if len(hosts) == 1 else ''
    if chief and not address:
        address = ''.join(listed)
    if address not in listed:
        raise FlagError(f'TF_CONFIG: this task, {job} {index}, is at {address or "no address"}, which is not in '
                        f'{"the first of " * chief}--{"ps" if job == "ps" else "worker"}_hosts: {", ".join(listed)}')
    return Cluster(ps, workers, 'ps' if job == 'ps' else 'worker', listed.index(address), needs_ps)


def _expect(value, kind: type, what: str):
    if not isinstance(value, kind):
        raise FlagError(f'{what} must be {"an object" if kind is dict else kind.__name__}, got {json.dumps(value)}')
    return value


def _index(value, what: str) -> int:
    if isinstance(value, bool) or not re.fullmatch(r'\d+', str(value)):
        raise FlagError(f'TF_CONFIG: the {what} {value!r} is not a number from 0')
    return int(value)


def _hosts_of(job: str, value) -> tuple[str, ...]:
    """Returns the hosts of one job in order of index, '' where a dictionary leaves one out."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    value = {_index(index, f'index of {job}'): host for index, host in
             _expect(value, dict, f"TF_CONFIG's list of {job}").items()}
    for host in value.values():
        _expect(host, str, f'TF_CONFIG: a host of {job}')
    return tuple(value.get(index, '') for index in range(max(value, default=-1) + 1))


def resolve(ps_hosts: str, worker_hosts: str, job_name: str, task_id: int,
            environ: Mapping[str, str], needs_ps: bool = True, slurm_ps: int = -1, slurm_first_port: int = 0
            ) -> Cluster | None:
    """Returns the cluster of Slurm if `slurm_ps` asks for it, else of the flags if any is given, else of TF_CONFIG,
    else None (no cluster). Host lists without a job name beside TF_CONFIG: it says which of them this task is."""
    if slurm_ps >= 0:
        from dist.slurm import from_slurm  # Which needs this file.
        return from_slurm(environ, slurm_ps, slurm_first_port, needs_ps)
    text = environ.get('TF_CONFIG', '').strip()
    if job_name or (ps_hosts or worker_hosts) and not text:
        return from_flags(ps_hosts, worker_hosts, job_name, task_id, needs_ps)
    return from_tf_config(text, needs_ps, ps_hosts, worker_hosts) if text else None
