"""Runs one task of a cluster that trains Inception v3 in-graph: the client, or a ps or worker that serves it.

    python scripts/train_in_graph.py --job_name=worker --task_id=0 --ps_hosts=a:2222 \\
        --worker_hosts=b:2222,c:2222 --data_dir=DIR --train_dir=DIR --num_gpus=2

Start one for each host of the two lists, in any order and with the same flags; worker 0 is the client, who alone
builds a graph: a tower on each of --num_gpus devices of every worker, and the variables on the ps, or on worker 0 if
--ps_hosts is empty. --batch_size is that of the whole cluster; --data_dir must hold the same shards on every worker.
Without cluster flags TF_CONFIG in the environment says who is who. `launch_local.py --in_graph` starts them all on
this machine. Exit codes: 0 at --max_steps, 2 for wrong flags, --retry_exit_code (138) when the rest of the cluster was
lost (start this task again), 143 after a signal, 1 otherwise.
"""

import os

import common  # First: it quiets TensorFlow's start.
from dist import hosts
from dist.server import check_port, choose_gpus, hide_gpus
from inception_mg import checks, config
from inception_mg.config import WITHIN
from inception_mg.errors import FlagError
from inception_mg.run_dir import model_card
from inception_mg.training.decays import decay_lines


def main() -> int:
    settings, options = common.from_flags(config.ClusterConfig), common.from_flags(config.InGraphConfig)
    checks.check_old(common.from_flags(config.OldConfig))
    data, model = common.data_and_model()
    devices, optimizer = common.from_flags(config.DeviceConfig), common.from_flags(config.OptimizerConfig)
    run = common.from_flags(config.RunConfig)
    cluster = hosts.resolve(settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_id,
                            os.environ, needs_ps=False, slurm_ps=settings.slurm_ps,
                            slurm_first_port=settings.slurm_first_port)
    if cluster is None:
        raise FlagError('no cluster: give --worker_hosts, --job_name, --task_id and perhaps --ps_hosts, or set '
                        'TF_CONFIG')
    if cluster.job == 'evaluator':
        raise FlagError('in-graph training has no evaluator: start evaluate.py --checkpoint_dir=DIR beside it')
    checks.check_cluster(settings)
    checks.check_in_graph(options, devices, len(cluster.ps), len(cluster.workers))
    if cluster.job == 'ps':
        hide_gpus(os.environ)  # Before TensorFlow is there to look.
    else:
        choose_gpus(settings.gpus, os.environ)
    if cluster.is_chief:
        checks.check_data(data, model.model)
        checks.check_model(model)
        checks.check_run(run, optimizer)
        checks.check_within(run, common.from_flags(config.EvalConfig, checkpoint_dir=run.train_dir), data.data_dir)
        data, model = model_card.settle_for_training(run.train_dir, data, model, common.given_flags())
        common.show(decay_lines(model, run))
    check_port(cluster.address, cluster.name)  # Before TensorFlow's import, which takes seconds.
    with common.quiet_import():
        from dist import in_graph
        from inception_mg.fast.choice import operations_for
        from inception_mg.training.image_task import image_task, open_training_data
    if cluster.is_chief:
        task = image_task(data, model, optimizer, operations_for(devices.plain_operations, print), run.seed)
        return in_graph.run_client(cluster, task, devices, run, options, settings,
                                   more_hooks=common.evaluation_hooks(data, model, run))
    if cluster.job == 'worker':
        print(f'data       {open_training_data(data).summary}')
    return in_graph.serve(cluster, devices, options, settings)


if __name__ == '__main__':
    common.define_flags(config.ClusterConfig, skip=('sync', 'num_replicas_to_aggregate', 'prefetch_variables'))
    common.define_flags(config.InGraphConfig, config.DataConfig, config.ModelConfig, config.DeviceConfig,
                        config.RunConfig)
    common.define_flags(config.OptimizerConfig, initial_learning_rate=0.045, num_epochs_per_decay=2.0,
                        learning_rate_decay_factor=0.94)  # Those of inception_distributed_train.py.
    common.flags.DEFINE_alias('task_index', 'task_id')
    common.define_flags(config.OldConfig)
    common.define_flags(config.EvalConfig, only=WITHIN)
    common.run_task(main)
