"""Trains Inception v3 on this machine: on one device, on several GPUs, or split over them.

    python scripts/train.py --data_dir=DIR --train_dir=DIR --num_gpus=2

Exit codes: 0 at --max_steps, 143 after a signal and its checkpoint, 2 for wrong flags, 1 otherwise.
"""

import os

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config
from inception_mg.run_dir import model_card
from inception_mg.training.decays import decay_lines

EXIT_SIGNAL = 143


def main() -> int:
    data = common.from_flags(config.DataConfig)
    model = common.from_flags(config.ModelConfig)
    optimizer = common.from_flags(config.OptimizerConfig)
    devices, run = common.from_flags(config.DeviceConfig), common.from_flags(config.RunConfig)
    checks.check_data(data)
    checks.check_model(model)
    checks.check_run(run, optimizer)
    data, model = model_card.settle_for_training(run.train_dir, data, model, common.given_flags())
    common.show(decay_lines(model, run))
    if devices.log_device_placement:
        os.environ['TF_CPP_MIN_LOG_LEVEL'] = '0'  # TensorFlow prints the placement at its INFO level.
    with common.quiet_import():
        from inception_mg.training.train import train_here
    signal_name = train_here(data, model, optimizer, devices, run)
    return EXIT_SIGNAL if signal_name else 0


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.ModelConfig, config.OptimizerConfig, config.DeviceConfig,
                        config.RunConfig)
    common.run(main)
