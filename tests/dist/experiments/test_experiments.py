"""The arithmetic of the experiments, that an emulated wait is as long as it says, and that the small ones run."""

import json
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from dist.experiments import catalogue, machines, ps_bytes, split_gain, staleness, towers_equal
from dist.experiments.dead_worker import Outage
from dist.experiments.jobs import Client, one_layer, run_synchronously, start_clients, worker_placement
from dist.experiments.measure import weights_per_ps
from dist.experiments.order_statistics import mean_update, mean_wait, normalised_speedup, stragglers
from dist.experiments.result import Table, show
from dist.experiments.servers import run_clients
from dist.experiments.small_model import SIZE, small_loss
from dist.experiments.waiting import Busy, build_wait
from inception_mg import checks, config
from inception_mg.report import plots
from inception_mg.errors import FlagError
from inception_mg.model.inception_v3 import BLOCK_COST
from inception_mg.placement import in_graph
from inception_mg.training.ps_strategy import LargestFirst
from inception_mg.training.task import Task
from inception_mg.training.towers import Variables

v1 = tf.compat.v1


def uniform(shape):
    return np.random.RandomState(1).uniform(size=shape)


@pytest.mark.parametrize('needed, workers', [(1, 1), (5, 5), (5, 8), (50, 53)])
def test_mean_order_statistic_of_uniform_times(needed, workers):
    """The k-th smallest of n uniform numbers is k / (n + 1) on average."""
    assert mean_wait(uniform, needed, workers, 20000) == pytest.approx(needed / (workers + 1), abs=0.01)


def test_an_update_without_backups_is_the_slowest_worker():
    assert mean_update(uniform, 4, 4, 5000) == pytest.approx(uniform((5000, 4)).max(axis=1).mean())


def test_who_is_late_finishes_first():
    """Two workers, one needed; the first is slow for ever and never in an update."""
    assert mean_update(lambda shape: np.tile([10.0, 1.0], (shape[0], 1)), 1, 2, 30) == 1.0
    # Needed are both, and the slow one decides.
    assert mean_update(lambda shape: np.tile([10.0, 1.0], (shape[0], 1)), 2, 2, 30) == 10.0


def test_stragglers_and_normalised_speedup():
    times = stragglers(np.random.RandomState(0), 2.0, 0.25, 4.0)((10000,))
    assert set(times) == {2.0, 8.0} and np.mean(times == 8.0) == pytest.approx(0.25, abs=0.02)
    assert normalised_speedup({0: 2.0, 2: 1.0}, 6) == {0: 1.0, 2: 1.5}


def test_bytes_per_ps_fall_as_1_over_p():
    def many_equal_weights():
        for k in range(24):
            v1.get_variable(f'weights_{k}', [10, 10])

    shares = weights_per_ps((1, 2, 3, 4), many_equal_weights)
    assert shares == {count: [24 * 400 // count] * count for count in (1, 2, 3, 4)}


def test_bytes_per_ps_are_those_of_the_placed_variables():
    def build_tower():
        small_loss(v1.placeholder(tf.float32, [1, SIZE, SIZE, 3]), v1.placeholder(tf.int32, [1]), 10)

    placement = in_graph(3, [['/device:CPU:0']])
    with tf.Graph().as_default():
        strategy = LargestFirst(3)
        strategy.learn(Task(None, lambda batch, tower: build_tower(), 1, 1), (), placement.towers[0])
        variables = Variables(placement.variables, strategy=strategy)
        with variables.on(placement.towers[0].host):
            v1.train.create_global_step()
            build_tower()
        placed = dict.fromkeys(placement.variables, 0)
        for variable in variables.trainable:
            placed[variable.device] += 4 * variable.shape.num_elements()
    assert weights_per_ps((3,), build_tower)[3] == list(placed.values())


def test_emulated_links_agree_with_their_arithmetic():
    """1 ps whose link takes 50 ms each way: full from four workers on."""
    shares, rate, compute = [50], 1000.0, 0.1
    assert ps_bytes.knee(shares, compute, rate) == pytest.approx(4.0)
    assert ps_bytes.expected(shares, 1, compute, rate) == pytest.approx(5.0)
    assert ps_bytes.expected(shares, 100, compute, rate) == pytest.approx(20.0)
    seen = ps_bytes.emulate(shares, 6, compute, rate, 1.0)
    assert 0 < seen < 24  # At most 20, but for steps at the edges; fewer where this machine is busy.


def test_a_busy_device_serves_one_at_a_time():
    device, spans = Busy(), []
    threads = [threading.Thread(target=lambda: spans.append(device.hold(0.05))) for _ in range(4)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun >= 0.2
    spans.sort()
    assert all(later[0] >= earlier[1] for earlier, later in zip(spans, spans[1:], strict=False))
    assert all(ended - started == pytest.approx(0.05) for started, ended in spans)


def test_an_emulated_wait_takes_as_long_and_changes_nothing():
    calls = []

    def pause():
        calls.append(time.monotonic())
        time.sleep(0.1)

    with tf.Graph().as_default(), v1.Session() as session:
        value = tf.constant([1.0, 2.0])
        waited = build_wait(value, pause)
        gradient = v1.gradients(tf.reduce_sum(waited * 3), value)[0]
        begun = time.monotonic()
        waited_v, gradient_v = session.run([waited, gradient])
        assert time.monotonic() - begun >= 0.1 and len(calls) == 1
    np.testing.assert_array_equal(waited_v, [1, 2])
    np.testing.assert_array_equal(gradient_v, [3, 3])


def test_clients_are_counted_by_the_share_of_a_step():
    pace = run_clients([lambda: time.sleep(0.05), lambda: time.sleep(0.2)], 0.5)
    assert 0 < pace.counts[0] <= 10 and 0 < pace.counts[1] <= 2.5 and pace.counts[1] % 1 > 0
    assert pace.rate == pytest.approx(sum(pace.counts) / 0.5)

    def fail():
        raise ValueError('broken')
    with pytest.raises(ValueError, match='broken'):
        run_clients([fail, lambda: time.sleep(0.01)], 0.2)


@pytest.fixture(scope='module')
def costs() -> dict[str, int]:
    return split_gain.layer_costs()


def test_costs_of_the_blocks_are_those_that_stages_are_cut_by(costs):
    blocks = {}
    for name, cost in costs.items():
        blocks[split_gain.block_of(name)] = blocks.get(split_gain.block_of(name), 0) + cost
    assert {block: round(cost / 1e6) for block, cost in blocks.items()} == {
        block: cost for block, cost in BLOCK_COST.items() if block not in ('aux_logits', 'logits')}


def test_stages_gain_nothing_and_branches_as_predicted(costs):
    seconds = {name: cost / sum(costs.values()) for name, cost in costs.items()}
    predicted = {name: split_gain.predicted(placement, seconds) for name, placement in split_gain.PLACEMENTS.items()}
    assert predicted['one device'] == predicted['stages over 4'] == pytest.approx(1.0)
    longest = sum(max(parts.values()) for parts in split_gain.branch_seconds(seconds).values())
    assert longest == pytest.approx(predicted['branches over 4']) and predicted['branches over 2'] < 0.75
    spans = split_gain.forward(split_gain.PLACEMENTS['branches over 2'], seconds, passes=1)
    assert len(spans) == len(costs) and {span.device for span in spans} == set(split_gain.D[:2])
    loads = [0.0, 0.0]
    for parts in split_gain.branch_seconds(seconds).values():
        for number, value in enumerate(parts.values()):
            loads[number % 2] += value
    for device, load in zip(split_gain.D, loads, strict=False):
        assert sum(span.ended - span.begun for span in spans if span.device == device) == pytest.approx(load)
    assert max(span.ended for span in spans) >= predicted['branches over 2'] - 1e-6


def test_towers_differ_by_rounding_alone_unless_each_normalises_its_own_images():
    start = towers_equal.train(towers_equal.SMALL, 1, True, 3, {}).weights
    one, two = (towers_equal.train(towers_equal.SMALL, towers, False, 3, start) for towers in (1, 2))
    np.testing.assert_allclose(two.losses, one.losses, rtol=1e-5)
    assert 0 < towers_equal.difference(one.gradients, two.gradients) < 1e-5
    assert towers_equal.difference(one.weights, two.weights) < 1e-5
    own = towers_equal.train(towers_equal.SMALL, 2, True, 3, start)
    assert towers_equal.difference(one.gradients, own.gradients) > 1e-3


def test_two_machines_pay_by_the_planner_where_a_step_computes_long():
    rate = machines.NETWORKS['10 Gbit/s']
    assert machines.speed_up(1e4, rate) == pytest.approx(2.0, rel=1e-3) and machines.speed_up(1e-3, rate) < 0.02
    least = machines.even(rate)
    assert machines.speed_up(least, rate) == pytest.approx(1.0, rel=1e-3)
    assert machines.even(rate, per_device=True) > 6 * least  # Eight times the bytes through each machine's link.


def test_phases_of_a_death():
    steps = {'worker 0': list(np.arange(0.0, 40, 0.5)),
             'worker 2': [*np.arange(1.0, 10, 0.5), *np.arange(20.0, 40, 0.5)]}
    outage = Outage(steps, killed=10.0, back=20.0)
    phases = outage.phases()
    assert phases == {'before': (3.0, 10.0), 'away': (12.0, 20.0), 'after': (22.0, 39.5)}
    assert [outage.rate('worker 0', phase) for phase in phases.values()] == pytest.approx([2, 2, 2])
    assert [outage.rate('worker 2', phase) for phase in phases.values()] == pytest.approx([2, 0, 2])


def test_loss_between_two_points():
    curve = staleness.Curve([(0.0, 0, 3.0), (1.0, 10, 2.0), (2.0, 30, 1.0)], 0.0)
    assert staleness.loss_at(curve, 1, 20) == 1.5 and staleness.loss_at(curve, 0, 0.5) == 2.5
    assert staleness.loss_at(curve, 1, 31) is None


def test_backups_drop_the_slow_one_in_a_cluster_of_this_process():
    """3 workers, 2 gradients per update, one of the workers 5 times slower: the others do not wait for it."""
    def pause_of(worker):
        return lambda tower: (lambda: time.sleep(0.5 if worker == 2 else 0.05))

    pace = run_synchronously(start_clients([
        Client(worker_placement(k), k, one_layer(pause_of(k)), sync=(2, 3), last_step=14) for k in range(3)]))
    assert pace.seconds >= 0.05 and pace.dropped >= 1


def test_tables_and_names():
    assert [show(value) for value in (None, 'a', 12345, 0.0, 1.2e-7, 2.345, 1234.5)] == [
        '-', 'a', '12,345', '0', '1.2e-07', '2.35', '1,234']
    assert Table(('way', 'n'), [('one', 1), ('other', 20)], 'Ways').lines() == [
        'Ways', '', '| way   |  n |', '|-------|---:|', '| one   |  1 |', '| other | 20 |']
    assert tuple(catalogue.CATALOGUE) == config.EXPERIMENTS
    with pytest.raises(FlagError, match="'bakups' must be one of"):
        checks.check_experiments(config.ExperimentsConfig('/tmp', only='split_gain,bakups'))


@pytest.mark.skipif(not plots.available(), reason='matplotlib is an extra')
def test_a_result_draws_and_says_what_is_not_real():
    from dist.experiments.backups import summarise
    from dist.experiments.jobs import SyncPace
    result = summarise({0: SyncPace(0.4, 0), 1: SyncPace(0.3, 5)})
    assert 'is a wait of' in result.lines()[1] and 'best normalised at 3 backups' in result.findings[1]
    assert result.values()['tables'][0]['rows'][1][:2] == (1, 0.3)
    plots.pyplot().close(result.figure)


def test_results_of_earlier_calls_stay(tmp_path):
    import experiments
    path = tmp_path / 'experiments.json'
    experiments.keep(path, 'backups', {'seconds': 1})
    experiments.keep(path, 'machines', {'seconds': 2})
    experiments.keep(path, 'backups', {'seconds': 3})
    assert json.loads(path.read_text()) == {'backups': {'seconds': 3}, 'machines': {'seconds': 2}}
