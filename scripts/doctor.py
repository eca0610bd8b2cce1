"""Examines a cluster: who answers at each address, its versions, clock and GPUs, and the speed of the way to each ps.

    python scripts/doctor.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --train_dir=DIR

Give it the lists that the tasks have, on any machine of the cluster, while they run or wait for one another; it takes
no part and changes nothing. Where TF_CONFIG or Slurm say who is who, as in a pod of a task, it needs no flag. One line
for each task, one for the folder of checkpoints, a verdict. Exit codes: 0 when every task answers (warnings, such as
different versions, do not count), 1 when something is wrong, 2 for wrong flags.
"""

import os

import common  # First: it quiets TensorFlow's start.
from dist import hosts
from dist.server import bypass_proxy, hide_gpus
from inception_mg import config
from inception_mg.errors import EXIT_FAILED, FlagError


def main() -> int:
    settings, run = common.from_flags(config.ClusterConfig), common.from_flags(config.RunConfig)
    cluster = who_is_who(settings)
    hide_gpus(os.environ)
    bypass_proxy(cluster, os.environ)
    with common.quiet_import():
        from dist import doctor
    findings = doctor.examine(cluster, run.train_dir)
    common.show([finding.line for finding in findings])
    return EXIT_FAILED if findings[-1].level == doctor.WRONG else 0


def who_is_who(settings: config.ClusterConfig) -> hosts.Cluster:
    """The cluster of the flags, of Slurm or of TF_CONFIG, seen from outside; FlagError where none lists it."""
    if (settings.ps_hosts or settings.worker_hosts) and settings.slurm_ps < 0:
        lists = [hosts.parse_hosts(getattr(settings, name), name) for name in ('ps_hosts', 'worker_hosts')]
        cluster = hosts.Cluster(*lists, 'evaluator', 0)
    else:
        cluster = hosts.resolve('', '', '', 0, os.environ, needs_ps=False, slurm_ps=settings.slurm_ps,
                                slurm_first_port=settings.slurm_first_port)
    if cluster is None or not any(cluster.ps + cluster.workers):
        raise FlagError('no cluster: give --ps_hosts and --worker_hosts, or set TF_CONFIG to that of a ps or worker')
    return cluster


if __name__ == '__main__':
    common.define_flags(config.ClusterConfig, only=('ps_hosts', 'worker_hosts', 'slurm_ps', 'slurm_first_port'))
    common.define_flags(config.RunConfig, only=('train_dir',))
    common.run(main)
