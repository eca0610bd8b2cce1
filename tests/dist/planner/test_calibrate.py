"""What a calibration makes of what it has measured; the contenders that measure have tests of their own."""

import pytest
import tensorflow as tf

from dist.planner import calibrate, machine
from dist.planner.calibrate import Moved
from dist.planner.networks import network
from inception_mg.config import DataConfig, ModelConfig

v1 = tf.compat.v1
DATA, NARROW = DataConfig(image_size=75, batch_size=8), ModelConfig(width=0.05)


def test_figures_follow_from_what_was_seen(tmp_path):
    """1 MB each way: 20 ms of them and 10 ms of anything else."""
    said, size = [], 10 ** 6
    moved = {count: Moved([0.03 * count] * 4, 0.5e-9, 0.6e-9) for count in (1, 2, 4)}
    found = calibrate.summarise(DATA, NARROW, network('inception_v3'), size, [2.0, 2.02, 1.98, 2.0], moved,
                                Moved([0.01] * 4, 0.0, 0.0), Moved([0.04] * 4, 0.7e-9, 0.6e-9), [90.0, 110.0], said.append)
    assert found.seconds(8) == 2.0 and found.seconds(16) == 4.0 and found.spread < 0.02
    assert found.worker_rate == pytest.approx(1e8) and found.round == 0.01 and found.input_rate == 100.0
    assert found.ps_rate == pytest.approx(found.cores / 0.5e-9)
    assert found.update == pytest.approx(0.4e-9 / found.cores) and found.shuffled
    assert any('1.98 to 2.02' in line for line in said) and any('0.5' in line and 'CPU' in line for line in said)
    machine.save(found, str(tmp_path / 'here.json'))
    assert machine.load(str(tmp_path / 'here.json')) == found


def test_a_busy_machine_is_said_and_its_spread_not_taken():
    moved = {count: Moved([0.03], 0.5e-9, 0.6e-9) for count in (1, 2, 4)}
    found = calibrate.summarise(DATA, NARROW, network('inception_v3'), 10 ** 6, [2.0, 3.0, 4.0, 2.5], moved,
                                Moved([0.01], 0.0, 0.0), moved[1], [90.0], lambda line: None)
    assert found.spread == machine.ASSUMED_SPREAD and 'something else runs' in found.facts[0] and found.update == 0


def test_bytes_and_multiply_adds_are_those_of_the_graph():
    """At width 1 and 299 pixels they are those of the planner's own list; here of a narrow network, by the graph's plan."""
    found = calibrate.network_of_graph(DATA, NARROW)
    assert [one.trained for one in found] == [one.trained for one in network('inception_v3')]
    assert sum(one.trained for one in found) == 196
    kernels = [one for one in found if one.name.endswith('/weights')]
    assert all(one.macs for one in kernels) and not any(one.macs for one in found if one not in kernels)
    first = kernels[0]
    assert first.macs == first.bytes // 4 * 37 ** 2  # 75 pixels, stride 2, no padding.
