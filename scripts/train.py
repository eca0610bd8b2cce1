"""Trains Inception v3 on this machine: on one device, on several GPUs, or split over them.

    python scripts/train.py --data_dir=DIR --train_dir=DIR --num_gpus=2

Exit codes: 0 at --max_steps, 143 after a signal and its checkpoint, 2 for wrong flags, 1 otherwise.
"""

import os

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config
from inception_mg.config import WITHIN
from inception_mg.errors import EXIT_SIGTERM
from inception_mg.run_dir import model_card
from inception_mg.training.decays import decay_lines


def main() -> int:
    checks.check_old(common.from_flags(config.OldConfig))
    data, model = common.data_and_model()
    optimizer = common.from_flags(config.OptimizerConfig)
    devices, run = common.from_flags(config.DeviceConfig), common.from_flags(config.RunConfig)
    checks.check_data(data, model.model)
    checks.check_model(model)
    checks.check_run(run, optimizer)
    checks.check_within(run, common.from_flags(config.EvalConfig, checkpoint_dir=run.train_dir), data.data_dir)
    data, model = model_card.settle_for_training(run.train_dir, data, model, common.given_flags())
    common.show(decay_lines(model, run))
    if devices.log_device_placement:
        os.environ['TF_CPP_MIN_LOG_LEVEL'] = '0'  # TensorFlow prints the placement at its INFO level.
    with common.quiet_import():
        from inception_mg.fast.choice import operations_for
        from inception_mg.training.image_task import image_task
        from inception_mg.training.train import train_here
    task = image_task(data, model, optimizer, operations_for(devices.plain_operations, print), run.seed)
    signal_name = train_here(task, devices, run, more_hooks=common.evaluation_hooks(data, model, run))
    return EXIT_SIGTERM if signal_name else 0


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.ModelConfig, config.OptimizerConfig, config.DeviceConfig,
                        config.RunConfig)
    common.define_flags(config.OldConfig)
    common.define_flags(config.EvalConfig, only=WITHIN)
    common.run(main)
