"""What decays leave of first values in a short training, said before it begins. Standard library only."""

import math

from inception_mg.config import ModelConfig, RunConfig

MUCH = 0.1  # Above this share of their first values, statistics are not yet those of the training.
FITTING = 0.01  # The share that a decay which fits leaves at the end.


def left_over(decay: float, steps: int) -> float:
    """The share of a first value that is left after `steps` updates of decay `decay`."""
    return decay ** max(steps, 0)


def fitting_decay(steps: int) -> float:
    """A decay, in one or two significant digits below 1, that leaves at most FITTING after `steps` updates."""
    exact = FITTING ** (1 / max(steps, 1))
    digits = max(1, math.ceil(-math.log10(1 - exact)))
    return max(0.0, math.floor(exact * 10 ** digits) / 10 ** digits)


def decay_lines(model: ModelConfig, run: RunConfig) -> list[str]:
    """What to tell who trains for fewer steps than the batch-norm statistics need; [] where all is well.

    The moving averages of the weights need no such line: their decay starts low and rises with the steps. Nor does a
    training that begins at trained weights: there the first values are good ones.
    """
    left = left_over(model.batch_norm_decay, run.max_steps)
    if run.pretrained_model_checkpoint_path or left <= MUCH:
        return []
    return [f'decays     after --max_steps={run.max_steps} the batch-norm statistics, by which evaluation goes, still '
            f'hold {left:.0%} of their first values: --batch_norm_decay={fitting_decay(run.max_steps):g} would fit, or '
            f'{math.ceil(math.log(MUCH) / math.log(model.batch_norm_decay)):,} steps']
