"""One task of a real cluster whose device is slow: the worker of scripts/train_distributed.py, and a wait in each step.

    python -m dist.experiments.slow_task --job_name=worker --task_id=0 --ps_hosts=... --worker_hosts=... \\
        --data_dir=DIR --train_dir=DIR --wait_secs=0.3

For dead_worker.py, which kills one of them. It says of each step that it made: 'own step 12, global step 34'.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

OWN_STEP = r'own step (\d+), global step (\d+)'  # What a worker says of each of its steps.


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags above."""
    parser = argparse.ArgumentParser()
    for name in ('ps_hosts', 'worker_hosts', 'job_name', 'data_dir', 'train_dir'):
        parser.add_argument(f'--{name}', required=True)
    parser.add_argument('--task_id', type=int, required=True)
    parser.add_argument('--wait_secs', type=float, required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the task; returns its exit code."""
    from dist import hosts
    from dist.server import hide_gpus
    flags = parse(arguments)
    cluster = hosts.from_flags(flags.ps_hosts, flags.worker_hosts, flags.job_name, flags.task_id)
    hide_gpus(os.environ)
    from dist import worker
    from inception_mg import config
    from inception_mg.fast.choice import fast_operations
    from inception_mg.training.image_task import image_task
    if cluster.job == 'ps':
        return worker.run_ps(cluster, config.ClusterConfig())
    task = image_task(config.DataConfig(data_dir=flags.data_dir, batch_size=2, image_size=75, distort=False,
                                        num_preprocess_threads=1, num_readers=1),
                      config.ModelConfig(width=0.05, batch_norm_decay=0.9),
                      config.OptimizerConfig(initial_learning_rate=0.01), fast_operations()[0])
    return worker.run_worker(
        cluster, task, config.DeviceConfig(), config.RunConfig(train_dir=flags.train_dir, log_every_steps=1000),
        config.ClusterConfig(), more_hooks=[slow_device(flags.wait_secs)])


def slow_device(seconds: float):
    """The hook that waits before every step, and tells of it afterwards."""
    import tensorflow as tf
    v1 = tf.compat.v1

    class SlowDevice(v1.train.SessionRunHook):
        """As a device that takes so many seconds longer."""

        def begin(self):
            self._step, self._made = v1.train.get_global_step(), 0

        def before_run(self, run_context):
            time.sleep(seconds)
            return v1.train.SessionRunArgs(self._step)

        def after_run(self, run_context, run_values):
            self._made += 1
            print(f'own step {self._made}, global step {run_values.results}', flush=True)

    return SlowDevice()


if __name__ == '__main__':
    from dist.server import leave_process
    from inception_mg import tf_environment
    from inception_mg.errors import UserError
    os.environ.update(tf_environment.DEFAULTS | os.environ)
    code = 1
    try:
        code = main(sys.argv[1:])
    except UserError as error:
        print(f'slow_task: {error}', file=sys.stderr)
        code = error.exit_code
    leave_process(code)
