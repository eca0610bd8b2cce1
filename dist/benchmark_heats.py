"""Which contenders race against one another, and the processes of each on this machine.

Imports no TensorFlow: it only makes command lines.
"""

import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dist.local import free_ports, task_flags
from inception_mg.benchmark import Racer, RacerFailed
from inception_mg.errors import FlagError

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent / 'scripts'
PACERS = ('one_device', 'matmul', 'convolutions')  # In every heat of training: what the others are compared with.


class Heat(NamedTuple):
    """Contenders whose rounds are run side by side."""

    title: str
    names: tuple[str, ...]


HEATS = (
    Heat('one device', (*PACERS, 'keras', 'keras_float32', 'inference')),
    Heat('two towers', (*PACERS, 'two_towers', 'mirrored')),
    Heat('split model', (*PACERS, 'split_branches', 'split_stages')),
    Heat('a cluster of one worker, and one client', (*PACERS, 'ps_worker', 'in_graph')),
    Heat('two workers, synchronous', (*PACERS, 'sync_workers', 'multiworker')),
    Heat('two workers, asynchronous', (*PACERS, 'async_workers', 'parameter_server')),
    Heat('records', (*PACERS, 'end_to_end', 'input', 'input_2016')),
    Heat('wire', ('tcp', 'null_step')))

# Ours and what it is measured against.
PAIRS = (('one_device', 'keras'), ('one_device', 'keras_float32'), ('two_towers', 'mirrored'),
         ('sync_workers', 'multiworker'), ('async_workers', 'parameter_server'), ('input', 'input_2016'),
         ('null_step', 'tcp'))

# Contenders of --peer.
PEERS = {'keras': ('keras', 'keras_float32'), 'mirrored': ('mirrored',), 'multiworker': ('multiworker',),
         'parameter_server': ('parameter_server',), 'input_2016': ('input_2016',)}

_CLUSTERS = {'ps_worker': (1, 1), 'async_workers': (1, 2), 'sync_workers': (1, 2), 'null_step': (1, 1),
             'in_graph': (1, 2), 'parameter_server': (1, 2), 'multiworker': (0, 2)}  # Number of ps and of workers.
_START = (2, 2)  # Of the cluster whose start is timed.


def with_start(only: str) -> bool:
    """Whether --only leaves the timing of a cluster's start."""
    return not only or 'start' in _names('only', only, [*(name for heat in HEATS for name in heat.names), 'start'])


def chosen_heats(only: str, peer: str, compute_dtype: str) -> list[Heat]:
    """The heats that the flags --only and --peer leave; raises FlagError for a name that there is not."""
    known = list(dict.fromkeys(name for heat in HEATS for name in heat.names))
    peers = list(PEERS) if peer == 'all' else [] if peer == 'none' else _names('peer', peer, list(PEERS))
    wanted = _names('only', only, [*known, 'start']) or [
        name for name in known if not any(name in names for names in PEERS.values())]
    if not only:
        wanted += [name for each in peers for name in PEERS[each]]
        if compute_dtype == 'float32':
            wanted = [name for name in wanted if name != 'keras_float32']  # It would run twice.
    heats = [Heat(heat.title, tuple(name for name in heat.names if name in wanted)) for heat in HEATS]
    # Not the pacers alone over and over: once, if they race with nobody.
    heats = [heat for heat in heats if not set(heat.names) <= set(PACERS)]
    alone = tuple(name for name in PACERS if name in wanted and not any(name in heat.names for heat in heats))
    return [Heat(HEATS[0].title, alone), *heats] if alone else heats


def make_racer(name: str, settings: Sequence[str]) -> Racer:
    """The processes of a contender. settings: the flags that all of them get."""
    peer = any(name in names for names in PEERS.values())
    script = SCRIPTS / ('benchmark_peers.py' if peer else 'benchmark_contender.py')
    command = [sys.executable, str(script), f'--contender={name}', *settings]
    if name not in _CLUSTERS:
        return Racer(name, [command])
    num_ps, num_workers = _CLUSTERS[name]
    tasks = list(task_flags(num_ps, num_workers, free_ports(num_ps + num_workers)).values())
    commands = [[*command, *flags] for flags in tasks]
    if name == 'in_graph':  # The client is worker 0, which is named last because it has the clock.
        return Racer(name, [*commands[:num_ps], *reversed(commands[num_ps:])])
    if name == 'parameter_server':  # The workers only serve, and a coordinator has the clock.
        lists = [flag for flag in tasks[0] if '_hosts=' in flag]
        return Racer(name, [*commands, [*command, *lists]])
    return Racer(name, commands, timed=num_workers)


def time_start(folder: pathlib.Path, settings: Sequence[str], environ: Mapping[str, str], limit: float = 300.0
               ) -> float:
    """Seconds from the launch of 2 ps, a chief and a worker to the chief's first training step.

    settings: flags of scripts/train_distributed.py. Raises RacerFailed when that does not come.
    """
    num_ps, num_workers = _START
    command = [sys.executable, str(SCRIPTS / 'launch_local.py'), f'--num_ps={num_ps}', f'--num_workers={num_workers}',
               '--max_restarts=0', '--', f'--train_dir={folder / "start"}', '--log_every_steps=1', *settings]
    begun = time.monotonic()
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(environ))
    last = ''
    try:
        for line in launcher.stdout:
            if re.search(r'worker 0 +\| step +\d+/', line):
                return time.monotonic() - begun
            last = line.strip() or last
            if time.monotonic() - begun > limit:
                break
        raise RacerFailed(f'no first step: {last}')
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=90)


def _names(flag: str, text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(',') if name.strip()]
    for name in names:
        if name not in known:
            raise FlagError(f'--{flag}={text}: there is no {name}; there are {", ".join(known)}')
    return names
