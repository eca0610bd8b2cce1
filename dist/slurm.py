"""Who is who in a step of Slurm, from the variables that srun gives each task. Standard library only.

Slurm lists the nodes of a step and how many tasks each has, but not which task is where: that follows from how srun
dealt them out, and what a task knows for certain is which tasks are on its own node. So the layout is computed, and
compared with that; a layout that cannot be known is refused in one line, not guessed.

The list of nodes is expanded here: Slurm's `scontrol show hostnames` is not there in containers, ClusterShell's NodeSet
is a set, with an order of its own, where a task's number goes by the order as written, and python-hostlist has a
licence (GPL) that this project cannot take in.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

from dist.hosts import FIRST_PORT, LAST_PORT, Cluster
from inception_mg.errors import FlagError

PORTS_OF_A_STEP = 32  # Tasks on one node; with more, two steps on it might collide.
AS_ASKED = 'give srun --distribution=block, which this reckons with'

Layout = list[tuple[str, int]]  # For each task of the step its node, and its number among the node's tasks.


def from_slurm(environ: Mapping[str, str], num_ps: int, first_port: int = 0, needs_ps: bool = True) -> Cluster:
    """Returns the cluster of a Slurm step: its first `num_ps` tasks are ps, the others workers.

    The k-th task of a node listens on first_port + k; 0: on ports that follow from the numbers of the job and the step,
    so that the steps of a node differ. Uses no GPU variable, so it works on nodes without any. Raises FlagError naming
    the variable, also for tasks that lie elsewhere than they seem to.
    """
    layout = layout_of_step(environ)
    check_own_place(environ, layout)
    if not needs_ps <= num_ps < len(layout):
        raise FlagError(f'{num_ps} ps of {len(layout)} Slurm tasks: at least {"one ps and " * needs_ps}one worker is '
                        'needed')
    port = first_port or derived_port(environ)
    tasks = tuple(f'{node}:{port + number}' for node, number in layout)
    rank = _number(environ, 'SLURM_PROCID')
    job, index = ('ps', rank) if rank < num_ps else ('worker', rank - num_ps)
    return Cluster(tasks[:num_ps], tasks[num_ps:], job, index, needs_ps)


def layout_of_step(environ: Mapping[str, str]) -> Layout:
    """Where each task of the step is; raises FlagError naming a variable that is missing or contradicts another."""
    nodes = expand_nodes(_variable(environ, 'SLURM_STEP_NODELIST', 'SLURM_NODELIST', 'SLURM_JOB_NODELIST'))
    counts = expand_counts(_variable(environ, 'SLURM_STEP_TASKS_PER_NODE', 'SLURM_TASKS_PER_NODE'))
    if len(counts) != len(nodes):
        raise FlagError(f'Slurm lists {len(nodes)} nodes but task counts for {len(counts)}')
    groups = components(environ, nodes)
    if len(groups) > 1:  # Each task knows the distribution of its own component only.
        count_of = dict(zip(nodes, counts, strict=True))
        return [place for group in groups for place in deal(group, [count_of[node] for node in group], 0)]
    return deal(nodes, counts, plane_size(environ))


def components(environ: Mapping[str, str], nodes: Sequence[str]) -> list[list[str]]:
    """The nodes of a step by component of a heterogeneous job, in the order of the tasks; one list of any other job.

    The step's own list has the nodes of all components in order of their names.
    """
    found = []
    for number in range(int(environ.get('SLURM_HET_SIZE') or 0)):
        names = (f'SLURM_JOB_NODELIST_{word}_GROUP_{number}' for word in ('HET', 'PACK'))
        listed = expand_nodes(next((environ[name] for name in names if name in environ), ''))
        found.append([node for node in listed if node in nodes])
    found = [group for group in found if group]
    if not found:
        return [list(nodes)]
    if sorted(itertools.chain(*found)) != sorted(nodes):
        raise FlagError('the components of this heterogeneous job (SLURM_JOB_NODELIST_HET_GROUP_0 ...) do not list the '
                        f'nodes of the step ({",".join(nodes)}): give --ps_hosts and --worker_hosts instead')
    return found


def plane_size(environ: Mapping[str, str]) -> int:
    """How many tasks in a row srun puts on a node before it turns to the next; 0: as many as the node has.

    FlagError for a distribution from which it does not follow."""
    kind = environ.get('SLURM_DISTRIBUTION', '').lower().partition(':')[0].partition(',')[0]
    if kind in ('', 'block'):
        return 0
    if kind == 'cyclic':
        return 1
    if kind == 'plane':
        return _number(environ, 'SLURM_DIST_PLANESIZE')
    raise FlagError(f'SLURM_DISTRIBUTION={environ["SLURM_DISTRIBUTION"]} does not say which task is on which node: '
                    f'{AS_ASKED}, or --ps_hosts and --worker_hosts')


def deal(nodes: Sequence[str], counts: Sequence[int], plane: int) -> Layout:
    """Deals sum(counts) tasks out to nodes of which each takes its count, `plane` in a row (0: all at once)."""
    layout: Layout = []
    given = [0] * len(nodes)
    while given != list(counts):
        for k, node in enumerate(nodes):
            here = range(given[k], min(given[k] + (plane or counts[k]), counts[k]))
            layout += [(node, number) for number in here]
            given[k] += len(here)
    return layout


def check_own_place(environ: Mapping[str, str], layout: Layout) -> None:
    """Raises FlagError where the layout contradicts what this task knows of its own node."""
    rank = _number(environ, 'SLURM_PROCID')
    if rank >= len(layout):
        raise FlagError(f'SLURM_PROCID={rank}, but the step has {len(layout)} tasks')
    node, number = layout[rank]
    together = ','.join(str(k) for k, (other, _) in enumerate(layout) if other == node)
    for name, computed in (('SLURMD_NODENAME', node), ('SLURM_LOCALID', str(number)), ('SLURM_GTIDS', together)):
        if environ.get(name, computed) != computed:
            raise FlagError(f'{name}={environ[name]} for task {rank} of this step, but dealt out in blocks or as '
                            f'SLURM_DISTRIBUTION says it would be {computed}: {AS_ASKED}')


def derived_port(environ: Mapping[str, str]) -> int:
    """The first of PORTS_OF_A_STEP ports: others for each step of some hundred jobs in a row."""
    job, step = _number(environ, 'SLURM_JOB_ID', 'SLURM_JOBID'), _number(environ, 'SLURM_STEP_ID', 'SLURM_STEPID')
    slots = (LAST_PORT - FIRST_PORT) // PORTS_OF_A_STEP
    return FIRST_PORT + (61 * job + step) % slots * PORTS_OF_A_STEP  # 61: so that a job's next step is far off.


def expand_nodes(text: str) -> list[str]:
    """Expands a list such as 'a,node[01-02,05],r[1-2]n[3-4]' into names, in the order written."""
    if not re.fullmatch(r'([^\[\]]|\[[^\[\]]*\])*', text):
        raise FlagError(f'Slurm lists the nodes {text}, where a bracket is missing')
    nodes = []
    for part in re.findall(r'(?:[^,\[\]]|\[[^\]]*\])+', text):
        pieces = re.split(r'\[([^\]]*)\]', part)  # By turns as they are and lists of ranges.
        choices = [[piece] if k % 2 == 0 else _numbers(piece, text) for k, piece in enumerate(pieces)]
        nodes += [''.join(chosen) for chosen in itertools.product(*choices)]
    return nodes


def _numbers(ranges: str, text: str) -> list[str]:
    """'01-02,05' -> ['01', '02', '05']."""
    numbers = []
    for part in ranges.split(','):
        match = re.fullmatch(r'(\d+)(?:-(\d+))?', part.strip())
        if not match:
            raise FlagError(f'Slurm lists the nodes {text}, where [{ranges}] is no list of numbers')
        numbers += [str(n).zfill(len(match[1])) for n in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Expands Slurm's '2(x3),1' into [2, 2, 2, 1]."""
    if not re.fullmatch(r'\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*', text):
        raise FlagError(f'Slurm lists the tasks of its nodes as {text!r}, which is no list such as 2(x3),1')
    return [int(count) for count, times in re.findall(r'(\d+)(?:\(x(\d+)\))?', text)
            for _ in range(int(times or 1))]


def _variable(environ: Mapping[str, str], *names: str) -> str:
    """The first of these that is set."""
    for name in names:
        if environ.get(name):
            return environ[name]
    raise FlagError(f'{names[0]} is not set: start the tasks with srun')


def _number(environ: Mapping[str, str], *names: str) -> int:
    value = _variable(environ, *names)
    if not value.isdecimal():
        raise FlagError(f'{names[0]}={value} is not a number')
    return int(value)
