"""One process of a contender of scripts/benchmark.py, which starts it and says when to run.

    python scripts/benchmark_contender.py --contender=one_device --batch_size=8

It waits at its standard input for numbers of steps, and answers with times. Ends with its input.
"""

import os
import sys

import common  # First: it quiets TensorFlow's start.
from dist.benchmark import race, tcp
from dist.benchmark.race import Contender
from dist.hosts import from_flags
from dist.server import hide_gpus
from inception_mg import config
from inception_mg.errors import FlagError

STREAM_BYTES = 96 * 1024 * 1024  # About the weights of Inception v3.
OPTIMIZER = config.OptimizerConfig(initial_learning_rate=0.001)  # The loss of one batch again and again stays finite.


def build(name: str) -> Contender:
    """Returns this process's part of the contender; raises FlagError for a name that there is not."""
    if name == 'tcp':
        return Contender(tcp.open_stream(STREAM_BYTES), {'unit': 'bytes', 'amount': 2 * STREAM_BYTES})
    if common.flags.FLAGS.ps_hosts:
        return build_task(name)
    data, model = common.from_flags(config.DataConfig), common.from_flags(config.ModelConfig)
    one = config.DeviceConfig()
    with common.quiet_import():
        from dist.benchmark import contenders
    ways = {'one_device': one, 'two_towers': config.DeviceConfig(num_gpus=2),
            'split_branches': config.DeviceConfig(split_model='branches'),
            'split_stages': config.DeviceConfig(split_model='stages')}
    if name in ways:
        return contenders.training(data, model, OPTIMIZER, ways[name])
    makers = {'end_to_end': lambda: contenders.end_to_end(data, model, OPTIMIZER, one),
              'inference': lambda: contenders.inference(data, model, one),
              'input': lambda: contenders.input_alone(data),
              'matmul': lambda: contenders.matrix_product(model, one),
              'convolutions': lambda: contenders.convolutions(data, model, one)}
    if name not in makers:
        raise FlagError(f'--contender={name}: there is none')
    return makers[name]()


def build_task(name: str) -> Contender:
    """A task of a cluster."""
    data, model = common.from_flags(config.DataConfig), common.from_flags(config.ModelConfig)
    settings = common.from_flags(config.ClusterConfig)
    if settings.job_name == 'ps':
        hide_gpus(os.environ)
    with common.quiet_import():
        from dist.benchmark import tasks as clusters
    cluster = from_flags(settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_id)
    if cluster.job == 'ps' or name == 'in_graph' and not cluster.is_chief:
        return clusters.serving(cluster, one_client=name == 'in_graph')
    if name == 'in_graph':
        return clusters.in_graph_client(cluster, data, model, OPTIMIZER)
    if name == 'null_step':
        return clusters.null_worker(cluster, data, model, OPTIMIZER)
    return clusters.worker(cluster, name == 'sync_workers', data, model, OPTIMIZER)


def main() -> int:
    answers = race.take_answers_apart()
    race.serve(build(common.flags.FLAGS.contender), sys.stdin, answers)
    race.leave()


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.ModelConfig, config.ClusterConfig)
    common.flags.DEFINE_string('contender', '', 'Which one.')
    common.run(main)
