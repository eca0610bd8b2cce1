"""What decays leave of first values, against the plain product, and when it is said."""

import math

import pytest

from inception_mg.config import ModelConfig, RunConfig
from inception_mg.training.decays import FITTING, MUCH, decay_lines, fitting_decay, left_over


def test_what_is_left_is_the_product():
    left = 1.0
    for steps in range(5):
        assert left_over(0.9, steps) == pytest.approx(left)
        left *= 0.9
    assert left_over(0.9997, 150) == pytest.approx(0.956, abs=1e-3) and left_over(0.9, -3) == 1


@pytest.mark.parametrize('steps', [1, 2, 10, 150, 1000, 34567])
def test_a_decay_that_fits_does_and_a_little_higher_one_does_not(steps):
    decay = fitting_decay(steps)
    assert 0 <= decay < 1 and left_over(decay, steps) <= FITTING * (1 + 1e-9)
    digit = 10.0 ** -len(f'{decay:g}'.partition('.')[2])
    assert left_over(decay + digit, steps) > FITTING and len(f'{decay:g}') <= 2 + math.ceil(math.log10(steps) + 1)


def test_a_short_training_is_told_what_would_fit():
    line, = decay_lines(ModelConfig(batch_norm_decay=0.9997), RunConfig(max_steps=150))
    assert '--max_steps=150' in line and 'still hold 96% of their first values' in line
    assert f'--batch_norm_decay={fitting_decay(150):g} would fit' in line
    enough = int(line.split(' or ')[1].split()[0].replace(',', ''))
    assert left_over(0.9997, enough) <= MUCH < left_over(0.9997, enough - 1)


def test_a_training_that_is_long_enough_or_begins_at_trained_weights_is_told_nothing():
    assert decay_lines(ModelConfig(batch_norm_decay=0.9), RunConfig(max_steps=150)) == []
    assert decay_lines(ModelConfig(batch_norm_decay=0.0), RunConfig(max_steps=1)) == []
    assert decay_lines(ModelConfig(batch_norm_decay=0.9997), RunConfig(
        max_steps=150, pretrained_model_checkpoint_path='weights')) == []
