"""Runs a whole cluster on this machine: starts every task, shows their lines, restarts the dead.

    python scripts/launch_local.py --num_ps=2 --num_workers=3 -- --data_dir=DIR --train_dir=DIR --sync

What follows `--` goes to scripts/train_distributed.py, or with --in_graph to scripts/train_in_graph.py. Each task's
lines are kept in a file of --log_directory too. --kill=worker:1@step=50 shows what happens when a task dies. Workers
share the GPUs of CUDA_VISIBLE_DEVICES, or all; without any, TensorFlow is imported once for all tasks. Exit codes: 0
when the job has reached --max_steps, 130 or 143 after SIGINT or SIGTERM, otherwise that of the task that ended the job,
or 1 if that was killed, or the process that starts the tasks.
"""

import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

import common
from dist.launch import fork_server, local
from inception_mg import checks, config, paths
from inception_mg.errors import FlagError, UserError

SCRIPTS = pathlib.Path(__file__).resolve().parent
INSIDE = 'INCEPTION_MG_PRIVATE_NETWORK'  # Set by this program for itself, in the new namespace.


def main(training_flags: Sequence[str]) -> int:
    launch = common.from_flags(config.LaunchConfig)
    checks.check_launch(launch)
    log_dir = launch.log_directory or log_dir_beside(training_flags)
    drills = [local.parse_drill(text) for text in launch.kill.split(',') if text.strip()]
    if launch.private_network and not os.environ.pop(INSIDE, ''):
        enter_private_network()
    elif launch.private_network:
        raise_loopback()
    tasks = local.task_flags(launch.num_ps, launch.num_workers, local.free_ports(launch.num_ps + launch.num_workers))
    program = SCRIPTS / ('train_in_graph.py' if launch.in_graph else 'train_distributed.py')
    commands = {name: [sys.executable, str(program), *own, *training_flags] for name, own in tasks.items()}
    environ = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
    gpus = local.share_gpus(local.visible_gpus(environ), launch.num_workers)
    own = {f'worker {k}': {'CUDA_VISIBLE_DEVICES': names} for k, names in enumerate(gpus)}
    print(f'{len(commands)} tasks; their logs are in {log_dir}')
    if gpus:
        print(', '.join(f'worker {k}: GPU {names}' for k, names in enumerate(gpus)))
    # A process that was forked has not been tried with GPUs: there each task imports TensorFlow for itself.
    forks = None if gpus else fork_server.ForkServer()
    try:
        starter = {'start_one': forks.start, 'starter_lost': lambda: forks.lost} if forks else {}
        return local.LocalCluster(commands, log_dir, launch.max_restarts, drills, environ=environ, own_environ=own,
                                  **starter).run()
    finally:
        if forks:
            forks.close()


def log_dir_beside(training_flags: Sequence[str]) -> str:
    """The default of --log_directory: a folder in --train_dir. FlagError when that flag is missing."""
    for number, flag in enumerate(training_flags):
        name, _, value = flag.partition('=')
        value = value or ''.join(training_flags[number + 1:number + 2])  # --train_dir=DIR or --train_dir DIR.
        if name in ('--train_dir', '-train_dir') and value:
            return str(pathlib.Path(paths.settle('--train_dir', value)) / 'logs')
    raise FlagError('--train_dir is missing: give the flags of train_distributed.py after --')


def enter_private_network() -> None:
    """Starts this program again in a network namespace of its own, where nobody outside can reach the
    tasks' open ports. UserError where the system does not allow that without root."""
    unshare = shutil.which('unshare')
    command = [unshare or '', '--map-current-user', '--net', '--keep-caps']
    if not unshare or subprocess.run([*command, 'true'], capture_output=True).returncode:
        raise UserError('--private_network: this system does not let `unshare --map-current-user --net` work without '
                        'root; leave the flag out, and keep the ports behind a firewall')
    sys.stdout.flush()
    os.execve(unshare, [*command, sys.executable, *sys.argv], {**os.environ, INSIDE: '1'})


def raise_loopback() -> None:
    """Brings up the loopback interface of a new network namespace (`ip link set lo up`)."""
    import fcntl
    set_flags, up = 0x8914, 0x1  # SIOCSIFFLAGS and IFF_UP of <linux/sockios.h> and <linux/if.h>.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack('16sH14x', b'lo', up))


if __name__ == '__main__':
    split = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
    common.define_flags(config.LaunchConfig)
    common.run(lambda: main(sys.argv[split + 1:]), sys.argv[:split])
