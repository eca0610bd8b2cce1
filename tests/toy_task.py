"""One task of a toy cluster: a linear model of a few variables, by the same parts as the real worker.

    python tests/toy_task.py --job_name=worker --task_id=0 --ps_hosts=... --worker_hosts=... --train_dir=...

Worker i of n draws its batch of step s from a generator seeded with (s, i), so that a test can compute
what n synchronous workers must arrive at. Lines that tests read: 'step S at T', 'final STEP WEIGHTS'.
"""

import argparse
import os
import pathlib
import signal
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from inception_mg import tf_environment  # noqa: E402

os.environ.update(tf_environment.DEFAULTS | os.environ)

from dist import hosts  # noqa: E402
from dist.server import hide_gpus, leave_process, session_config, start_server
from inception_mg.errors import EXIT_RETRY, UserError  # noqa: E402

SIZE, RATE = 3, 0.05


def parse() -> argparse.Namespace:
    """The toy's flags."""
    parser = argparse.ArgumentParser()
    for name in ('ps_hosts', 'worker_hosts', 'job_name', 'train_dir', 'extra_variable', 'setting'):
        parser.add_argument(f'--{name}', default='')
    parser.add_argument('--task_id', type=int, default=0)
    parser.add_argument('--max_steps', type=int, default=40)
    parser.add_argument('--sync', action='store_true')
    parser.add_argument('--aggregate', type=int, default=0)
    for name, default in (('step_secs', 0.05), ('save_secs', 1e9), ('start_secs', 60.0), ('lost_secs', 60.0),
                          ('idle_secs', 120.0), ('status_secs', 3.0), ('save_takes', 0.0), ('jitter_secs', 0.0)):
        parser.add_argument(f'--{name}', type=float, default=default)
    parser.add_argument('--nan_after', type=int, default=10 ** 9)
    return parser.parse_args()


def log(line: str) -> None:
    """A line at once, with the time."""
    print(f'{time.time():.2f} {line}', flush=True)


def batch(step: int, worker: int):
    """Inputs [4, SIZE] and targets [4] of one worker's step."""
    import numpy as np
    random = np.random.RandomState([step, worker])
    inputs = random.uniform(-1, 1, (4, SIZE))
    return inputs, inputs @ [1.0, -2.0, 3.0] + 0.5


class Stop:
    """Remembers SIGTERM."""

    def __init__(self):
        self.flag = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number, frame):
        self.flag = True

    def __call__(self) -> bool:
        return self.flag


def main() -> int:
    """Runs the task; returns its exit code."""
    flags, stop = parse(), Stop()
    cluster = hosts.resolve(flags.ps_hosts, flags.worker_hosts, flags.job_name, flags.task_id, os.environ)
    if cluster.job == 'ps':
        hide_gpus(os.environ)
    config = session_config(cluster)
    server = start_server(cluster, config, log)
    if cluster.job == 'ps':
        from dist import ps
        return ps.serve(cluster, server, flags.idle_secs, stop, log)
    from toy_worker import train
    return train(flags, cluster, server, config, stop, log)


def code_of_main() -> int:
    """Runs main() and turns exceptions into lines and exit codes."""
    try:
        return main()
    except UserError as error:
        print(f'toy_task: {error}', file=sys.stderr)
        return error.exit_code
    except Exception as error:
        from dist.peers import exit_code
        if exit_code(error) == EXIT_RETRY:
            print(f'toy_task: {str(error).splitlines()[0]}', file=sys.stderr)
        else:
            traceback.print_exc()
        return exit_code(error)


if __name__ == '__main__':
    leave_process(code_of_main())
