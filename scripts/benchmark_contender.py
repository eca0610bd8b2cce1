"""One process of a contender of scripts/benchmark.py, which starts it and says when to run.

    python scripts/benchmark_contender.py --contender=one_device --batch_size=8

It waits at its standard input for numbers of steps, and answers with times. Ends with its input.
"""

import os
import sys

import common  # First: it quiets TensorFlow's start.
from dist.benchmark import race, tcp
from dist.hosts import from_flags
from dist.server import hide_gpus
from inception_mg import config


def build(name: str) -> race.Contender:
    """This process's part of the contender; FlagError for a name that there is not."""
    if name == 'tcp':
        return tcp.contender()  # Without TensorFlow.
    data, model = common.from_flags(config.DataConfig), common.from_flags(config.ModelConfig)
    settings = common.from_flags(config.ClusterConfig)
    if settings.job_name == 'ps':
        hide_gpus(os.environ)
    with common.quiet_import():
        from dist.benchmark import contenders, tasks
    if not settings.ps_hosts:
        return contenders.build(name, data, model)
    cluster = from_flags(settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_id)
    return tasks.build(name, cluster, data, model)


def main() -> int:
    answers = race.take_answers_apart()
    race.serve(build(common.flags.FLAGS.contender), sys.stdin, answers)
    race.leave()


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.ModelConfig, config.ClusterConfig)
    common.flags.DEFINE_string('contender', '', 'Which one.')
    common.run(main)
