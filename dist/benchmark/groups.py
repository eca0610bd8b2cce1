"""Which contenders race against one another, what they are compared with, and the processes of each on this machine.

Imports no TensorFlow: it only makes command lines.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from dist.benchmark.race import Racer
from dist.launch.local import free_ports, task_flags
from inception_mg.errors import FlagError

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_INSTALLED = _ROOT / 'inception_mg_programs'  # What the folder is called in an installed package.
SCRIPTS = _INSTALLED if _INSTALLED.exists() else _ROOT / 'scripts'
CEILINGS = ('matmul', 'convolutions')
BASELINES = ('one_device', *CEILINGS)  # They run with every group; all of training is compared with them.


class Group(NamedTuple):
    """Contenders whose rounds are run side by side. with_baselines: the baselines take part."""

    title: str
    names: tuple[str, ...]
    with_baselines: bool = True


GROUPS = (
    Group('one device', ('keras', 'keras_float32', 'end_to_end')),
    Group('inference on one device', ('inference', 'keras_inference'), with_baselines=False),
    Group('two devices of this machine', ('two_towers', 'mirrored', 'split_branches', 'split_stages')),
    Group('a cluster of one worker, and one of one client', ('ps_worker', 'in_graph')),
    Group('two workers, synchronous', ('sync_workers', 'multiworker')),
    Group('two workers, asynchronous', ('async_workers', 'parameter_server')),
    Group('input', ('input', 'input_2016'), with_baselines=False),
    Group('wire', ('tcp', 'null_step'), with_baselines=False))
START = 'start'  # Not a contender: how long a cluster takes from its launch to its first step.
NAMES = tuple(dict.fromkeys((*BASELINES, *(name for group in GROUPS for name in group.names))))
FROM_RECORDS = ('end_to_end', 'input', 'input_2016', START)

# Contenders of --peer.
PEERS = {'keras': ('keras', 'keras_float32'), 'mirrored': ('mirrored',), 'multiworker': ('multiworker',),
         'parameter_server': ('parameter_server',), 'input_2016': ('input_2016',),
         'keras_inference': ('keras_inference',)}
# Of width 1 whatever --width says.
OF_WIDTH_1 = ('keras', 'keras_float32', 'keras_inference', 'mirrored', 'multiworker', 'parameter_server')

_CLUSTERS = {  # Number of ps and of workers.
    'ps_worker': (1, 1), 'async_workers': (1, 2), 'sync_workers': (1, 2), 'null_step': (1, 1), 'null_update': (1, 1),
    'in_graph': (1, 2), 'parameter_server': (1, 2), 'multiworker': (0, 2)}
_CEILING_SHARE = 1 / 3  # Of everybody's turn: large products, always the same, are steady soon.
# What is said of input is said of images of this size, as in the release; a full batch of them is no matter.
_OWN_FLAGS = {'input': ['--image_size=299'], 'input_2016': ['--image_size=299']}


class Pair(NamedTuple):
    """What is compared round by round. goal: the ratio that ours should reach, None where it only informs.
    per_core: amounts per CPU second, not per second."""

    ours: str
    other: str
    goal: float | None = None
    per_core: bool = False


def pairs_for(compute_dtype: str) -> list[Pair]:
    """All comparisons in that dtype, ours first; those with what others offer, then with one device, then limits."""
    return [
        Pair('one_device', 'keras', {'float32': 1.3, 'bfloat16': 2.0}.get(compute_dtype)),
        Pair('one_device', 'keras_float32', {'bfloat16': 3.0}.get(compute_dtype)),
        Pair('inference', 'keras_inference', 1.3),
        Pair('two_towers', 'mirrored'),
        Pair('sync_workers', 'multiworker'),
        Pair('async_workers', 'parameter_server'),
        Pair('input', 'input_2016'),
        Pair('input', 'input_2016', 2.5, per_core=True),
        Pair('two_towers', 'one_device', 0.97),
        Pair('ps_worker', 'one_device', 0.93),
        Pair('sync_workers', 'one_device', 0.93),
        Pair('async_workers', 'one_device', 0.93),
        Pair('end_to_end', 'one_device'),
        Pair('null_step', 'tcp', 0.8)]


def chosen_names(only: str, peer: str, compute_dtype: str) -> list[str]:
    """The contenders, and START, that the flags --only and --peer leave; FlagError for a name that there is not."""
    peers = list(PEERS) if peer == 'all' else [] if peer == 'none' else _names('peer', peer, list(PEERS))
    beside = [name for each in peers for name in PEERS[each]]
    if compute_dtype == 'float32':
        beside = [name for name in beside if name != 'keras_float32']  # It would run twice.
    ours = [name for name in (*NAMES, START) if not any(name in names for names in PEERS.values())]
    return _names('only', only, [*NAMES, START]) or [*ours, *beside]


def groups_of(names: Sequence[str]) -> list[Group]:
    """The groups of these contenders. The baselines alone have one if they race with nobody."""
    groups = [group._replace(names=tuple(name for name in group.names if name in names)) for group in GROUPS]
    groups = [group for group in groups if group.names]
    lonely = not any(group.with_baselines for group in groups) and any(name in names for name in BASELINES)
    return [GROUPS[0]._replace(names=()), *groups] if lonely else groups


def make_racer(name: str, settings: Sequence[str], size: tuple[int, int] | None = None) -> Racer:
    """The processes of a contender. settings: the flags that all of them get. size: number of ps and of workers, where
    others are wanted than the benchmark's."""
    peer = any(name in names for names in PEERS.values())
    script = SCRIPTS / ('benchmark_peers.py' if peer else 'benchmark_contender.py')
    command = [sys.executable, str(script), f'--contender={name}', *settings, *_OWN_FLAGS.get(name, [])]
    if name not in _CLUSTERS:
        return Racer(name, [command], share=_CEILING_SHARE if name in CEILINGS else 1.0)
    num_ps, num_workers = size or _CLUSTERS[name]
    tasks = list(task_flags(num_ps, num_workers, free_ports(num_ps + num_workers)).values())
    commands = [[*command, *flags] for flags in tasks]
    if name == 'in_graph':  # The client is worker 0, which is named last because it has the clock.
        return Racer(name, [*commands[:num_ps], *reversed(commands[num_ps:])])
    if name == 'parameter_server':  # The workers only serve, and a coordinator has the clock.
        lists = [flag for flag in tasks[0] if '_hosts=' in flag]
        return Racer(name, [*commands, [*command, *lists]])
    return Racer(name, commands, timed=num_workers)


def _names(flag: str, text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(',') if name.strip()]
    for name in names:
        if name not in known:
            raise FlagError(f'--{flag}={text}: there is no {name}; there are {", ".join(known)}')
    return names
