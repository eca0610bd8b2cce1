"""Evaluates checkpoints: precision@1 and recall@5 with the moving averages of the weights.

    python scripts/evaluate.py --data_dir=DIR --checkpoint_dir=TRAIN_DIR --run_once

Without --run_once it goes on for ever and evaluates each newer checkpoint. The last line on stdout is
the result as JSON. Exit codes: 0, 2 for wrong flags, 1 otherwise.
"""

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config


def main() -> int:
    data, model = common.from_flags(config.DataConfig), common.from_flags(config.ModelConfig)
    evaluation = common.from_flags(config.EvalConfig)
    checks.check_data(data)
    checks.check_model(model)
    checks.check_eval(data, evaluation)
    with common.quiet_import():
        from inception_mg.evaluate import evaluate
    evaluate(data, model, evaluation)
    return 0


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.EvalConfig)
    common.define_flags(config.ModelConfig)
    common.run(main)
