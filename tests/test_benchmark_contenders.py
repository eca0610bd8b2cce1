"""The contenders themselves, as processes with a narrow network: they do the work that they count."""

import os

import numpy as np
import pytest

from dist import benchmark_heats
from inception_mg.benchmark import race, starting

SMALL = ['--width=0.05', '--image_size=75', '--batch_size=2', '--num_preprocess_threads=1']


def race_of(folder, *names: str, flags=()) -> tuple[list, dict]:
    """One round of the contenders; returns its laps and what they said of themselves."""
    failed = {}
    racers = [benchmark_heats.make_racer(name, [*SMALL, *flags]) for name in names]
    with starting(racers, folder, os.environ, failed.__setitem__) as ready:
        laps = race(ready, 1, 0.05, failed.__setitem__)
    assert not failed
    return laps[0], {racer.name: racer.info for racer in racers}


def test_steps_inference_and_ceilings(tmp_path):
    laps, infos = race_of(tmp_path, 'one_device', 'inference', 'convolutions')
    assert set(laps) == {'one_device', 'inference', 'convolutions'}
    # Backward costs twice what forward does, but for the first layer, whose input needs no gradient.
    assert 2.9 < infos['one_device']['flops'] / infos['inference']['flops'] <= 3
    assert infos['convolutions']['amount'] > 0


def test_input_here_and_in_the_order_of_2016(tmp_path, three_classes):
    laps, infos = race_of(tmp_path, 'input', 'input_2016', flags=[f'--data_dir={three_classes}'])
    assert {info['unit'] for info in infos.values()} == {'images'}
    assert all(lap.amount >= 4 and lap.cpu > 0 for lap in laps.values())


@pytest.mark.cluster
def test_the_null_step_counts_the_weights_down_and_up(tmp_path):
    import tensorflow as tf

    from dist.benchmark import trainable_shapes
    from inception_mg.config import DataConfig, ModelConfig
    laps, infos = race_of(tmp_path, 'null_step')
    shapes = trainable_shapes(DataConfig(image_size=75), ModelConfig(width=0.05))
    weights = sum(np.prod(shape) for shape in shapes.values())
    assert infos['null_step']['amount'] == 2 * weights * tf.float32.size
    assert laps['null_step'].amount % infos['null_step']['amount'] == 0
