"""What others offer for the same work, as contenders of scripts/benchmark.py: one process of one of them.

    python scripts/benchmark_peers.py --contender=keras --batch_size=8

dist/benchmark/peers.py has them. The protocol is that of scripts/benchmark_contender.py.
"""

import os
import sys

os.environ['TF_USE_LEGACY_KERAS'] = '0'  # Here Keras is wanted, and this one.

import common  # First: it quiets TensorFlow's start.
from dist.benchmark import race
from dist.server import hide_gpus
from inception_mg import config


def main() -> int:
    answers = race.take_answers_apart()
    cluster = common.from_flags(config.ClusterConfig)
    if cluster.job_name == 'ps':
        hide_gpus(os.environ)
    with common.quiet_import():
        from dist.benchmark import peers
    contender = peers.build(common.flags.FLAGS.contender, common.from_flags(config.DataConfig),
                            common.from_flags(config.ModelConfig), cluster)
    race.serve(contender, sys.stdin, answers)
    race.leave()


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.ModelConfig, config.ClusterConfig)
    common.flags.DEFINE_string('contender', '', 'Which one.')
    common.run(main)
