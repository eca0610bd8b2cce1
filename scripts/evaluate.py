"""Evaluates checkpoints: precision@1 and recall@5 with the moving averages of the weights.

    python scripts/evaluate.py --data_dir=DIR --checkpoint_dir=TRAIN_DIR --run_once

Without --run_once it runs beside a training, on the same machine or on another that sees TRAIN_DIR: it evaluates
the newest checkpoint and each one that follows, keeps the best, can end the training (--stop_after_no_gain), and ends
when training is over. The last line on stdout is the result as JSON. The model's width and image size are those in
TRAIN_DIR/model.json. Exit codes: 0, 2 for wrong flags, 1 otherwise.
"""

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config


def main() -> int:
    data, model = common.from_flags(config.DataConfig), common.from_flags(config.ModelConfig)
    evaluation = common.from_flags(config.EvalConfig)
    checks.check_data(data, model.model)
    checks.check_model(model)
    checks.check_eval(evaluation)
    with common.quiet_import():
        from inception_mg.evaluation.evaluate import evaluate
        from inception_mg.evaluation.watch import watch
    (evaluate if evaluation.run_once else watch)(data, model, evaluation, chosen=common.given_flags())
    return 0


if __name__ == '__main__':
    common.define_flags(config.DataConfig, config.EvalConfig)
    common.define_flags(config.ModelConfig)
    common.run(main)
