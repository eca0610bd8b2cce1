"""Runs a whole cluster on this machine: starts every task, shows their lines, restarts the dead.

    python scripts/launch_local.py --num_ps=2 --num_workers=3 -- --data_dir=DIR --train_dir=DIR --sync

What follows `--` goes to scripts/train_distributed.py, or with --in_graph to scripts/train_in_graph.py. Each task's
lines are kept in a file of --log_directory too. --kill=worker:1@step=50 shows what happens when a task dies. With
--machines --link=1gbit each task has a machine of its own, whose cable can be slow, cut and healed
(docs/laboratory.md). Workers
share the GPUs of CUDA_VISIBLE_DEVICES, or all; without any, TensorFlow is imported once for all tasks. Exit codes: 0
when the job has reached --max_steps, 130 or 143 after SIGINT or SIGTERM, otherwise that of the task that ended the job,
or 1 if that was killed, or the process that starts the tasks.
"""

import pathlib
import sys
from collections.abc import Sequence

import common
from dist.launch import run
from inception_mg import checks, config, paths
from inception_mg.errors import FlagError

SCRIPTS = pathlib.Path(__file__).resolve().parent


def main(training_flags: Sequence[str]) -> int:
    launch = common.from_flags(config.LaunchConfig)
    checks.check_launch(launch)
    log_dir = launch.log_directory or log_dir_beside(training_flags)
    program = SCRIPTS / ('train_in_graph.py' if launch.in_graph else 'train_distributed.py')
    return run.run(launch, lambda own: [sys.executable, str(program), *own, *training_flags], log_dir, sys.argv)


def log_dir_beside(training_flags: Sequence[str]) -> str:
    """The default of --log_directory: a folder in --train_dir. FlagError when that flag is missing."""
    for number, flag in enumerate(training_flags):
        name, _, value = flag.partition('=')
        value = value or ''.join(training_flags[number + 1:number + 2])  # --train_dir=DIR or --train_dir DIR.
        if name in ('--train_dir', '-train_dir') and value:
            return str(pathlib.Path(paths.settle('--train_dir', value)) / 'logs')
    raise FlagError('--train_dir is missing: give the flags of train_distributed.py after --')


if __name__ == '__main__':
    split = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
    common.define_flags(config.LaunchConfig)
    common.run(lambda: main(sys.argv[split + 1:]), sys.argv[:split])
