"""Runs one task of a cluster that trains Inception v3: a ps, a worker, or (by TF_CONFIG) an evaluator.

    python scripts/train_distributed.py --job_name=worker --task_id=0 --ps_hosts=a:2222 \\
        --worker_hosts=b:2222,c:2222 --data_dir=DIR --train_dir=DIR

Start one for each host of the two lists, in any order; worker 0 is the chief. Without cluster flags
TF_CONFIG in the environment says who is who. scripts/launch_local.py starts them all on this machine.
Exit codes: 0 at --max_steps, 2 for wrong flags, --retry_exit_code (138) when the rest of the cluster was lost
(start this task again), 143 after a signal, 1 otherwise.
"""

import os

import common  # First: it quiets TensorFlow's start.
from dist import hosts
from dist.server import check_port, choose_gpus, hide_gpus
from inception_mg import checks, config
from inception_mg.errors import FlagError
from inception_mg.paths import made_up_classes
from inception_mg.run_dir import model_card
from inception_mg.training.decays import decay_lines


def main() -> int:
    settings = checks.with_sync(common.from_flags(config.ClusterConfig), 'sync' in common.given_flags())
    checks.check_old(common.from_flags(config.OldConfig))
    data, model = common.data_and_model()
    devices, optimizer = common.from_flags(config.DeviceConfig), common.from_flags(config.OptimizerConfig)
    run = common.from_flags(config.RunConfig)
    evaluation = common.from_flags(config.EvalConfig, checkpoint_dir=run.train_dir)
    checks.check_cluster(settings)
    cluster = hosts.resolve(settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_id,
                            os.environ, slurm_ps=settings.slurm_ps,
                            slurm_first_port=settings.slurm_first_port)
    if cluster is None:
        raise FlagError('no cluster: give --ps_hosts, --worker_hosts, --job_name and --task_id, or set TF_CONFIG')
    if cluster.job == 'ps':
        return serve(cluster, settings)
    checks.check_data(data, model.model)
    checks.check_model(model)
    checks.check_run(run, optimizer, writes=cluster.is_chief or cluster.job == 'evaluator')
    if cluster.job == 'evaluator':
        return evaluate(data, model, evaluation)
    if run.eval_every_steps:  # Else the flags are those of an evaluator beside this task.
        checks.check_within(run, evaluation, data.data_dir)
    data, model = model_card.settle_for_training(run.train_dir, data, model, common.given_flags())
    choose_gpus(settings.gpus, os.environ)
    check_port(cluster.address, cluster.name)
    if cluster.is_chief:
        common.show(decay_lines(model, run))
    with common.quiet_import():
        from dist.worker import run_worker
        from inception_mg.fast.choice import operations_for
        from inception_mg.training.image_task import image_task
    task = image_task(data, model, optimizer, operations_for(devices.plain_operations, print), run.seed)
    return run_worker(cluster, task, devices, run, settings,
                      more_hooks=common.evaluation_hooks(data, model, run) if cluster.is_chief else ())


def serve(cluster: hosts.Cluster, settings: config.ClusterConfig) -> int:
    """The ps: it must not see a GPU, so they are hidden before TensorFlow is there to look."""
    hide_gpus(os.environ)
    check_port(cluster.address, cluster.name)  # Before TensorFlow's import, which takes seconds.
    with common.quiet_import():
        from dist.worker import run_ps
    return run_ps(cluster, settings)


def evaluate(data: config.DataConfig, model: config.ModelConfig, evaluation: config.EvalConfig) -> int:
    """The evaluator: outside of the cluster, it evaluates each new checkpoint in train_dir."""
    checks.check_eval(evaluation)
    if made_up_classes(data.data_dir):
        print(f'--data_dir={data.data_dir}: of made-up images there is nothing to evaluate')
        return 0
    with common.quiet_import():
        from inception_mg.evaluation.evaluate import evaluate
        from inception_mg.evaluation.watch import watch
    (evaluate if evaluation.run_once else watch)(data, model, evaluation, chosen=common.given_flags())
    return 0


if __name__ == '__main__':
    common.define_flags(config.ClusterConfig, config.DataConfig, config.ModelConfig, config.RunConfig)
    common.define_flags(config.OptimizerConfig, initial_learning_rate=0.045, num_epochs_per_decay=2.0,
                        learning_rate_decay_factor=0.94)  # Those of inception_distributed_train.py.
    common.define_flags(config.DeviceConfig)
    common.define_flags(config.EvalConfig, skip=('checkpoint_dir', 'num_examples', 'subset'))
    common.flags.DEFINE_alias('task_index', 'task_id')
    common.define_flags(config.OldConfig)
    common.run_task(main)
