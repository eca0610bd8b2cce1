"""The report's bytes for all five ways on the toy model: as expected, as planned, as measured, all the same."""

import dataclasses
import json

import pytest
import toy_model

from dist.experiments.rehearsal import rehearse
from inception_mg.checks import check_report
from inception_mg.config import OptimizerConfig, ReportConfig
from inception_mg.errors import FlagError
from inception_mg.report.summary import WayReport, bound_by, summarise
from inception_mg.report.ways import ways_of
from inception_mg.training.task import Task
from inception_mg.training.timeline import Shares

BATCH = 8
WEIGHTS, STATISTIC = toy_model.WEIGHT_BYTES, toy_model.STATISTIC_BYTES
PS = [f'/job:ps/task:{task}/device:CPU:0' for task in range(2)]


TASK = Task(toy_model.dataset_for(BATCH), toy_model.toy_loss, BATCH, BATCH, OptimizerConfig(moving_average_decay=0.9),
            toy_model.make_optimizer)


@pytest.fixture(scope='module')
def reports() -> dict[str, WayReport]:
    """All five ways, with clusters inside this process."""
    return {way.name: summarise(way, rehearse(way, TASK), 10.0) for way in ways_of(ReportConfig(all=True))}


@pytest.fixture(params=['one_device', 'multi_gpu', 'split_model', 'in_graph', 'between_graph'])
def way(request, reports) -> WayReport:
    return reports[request.param]


def total(way: WayReport, kind: str, source: str = '', target: str = '') -> int:
    return sum(row.measured for row in way.pairs
               if row.kind == kind and row.source.startswith(source) and row.target.startswith(target))


def test_measured_as_planned_and_as_expected(way):
    assert way.equal
    assert [(row.what, row.measured, row.planned) for row in way.expected] == \
        [(row.what, row.predicted, row.predicted) for row in way.expected]
    assert any(row.what.endswith('batch statistics from the last tower') for row in way.expected)


def test_nothing_ran_elsewhere_than_asked(way):
    assert way.moved == []


def test_weights_once_down_and_gradients_once_up_per_device_of_one_machine(reports):
    for name, towers in (('one_device', 1), ('multi_gpu', 2), ('split_model', 1)):
        assert total(reports[name], 'weights') == towers * WEIGHTS, name
        assert total(reports[name], 'gradients') == towers * WEIGHTS, name
        assert total(reports[name], 'statistics') == STATISTIC, name
        assert reports[name].wire == {}, name


def test_weights_once_down_and_gradients_once_up_per_machine_of_a_cluster(reports):
    for name in ('in_graph', 'between_graph'):
        for task in (f'/job:worker/task:{number}/device:CPU:' for number in range(2)):
            assert total(reports[name], 'weights', '/job:ps', task) == WEIGHTS, name
            assert total(reports[name], 'gradients', task, '/job:ps') == WEIGHTS, name
    # One graph has one last tower; each graph of between-graph has its own.
    assert total(reports['in_graph'], 'statistics', '', '/job:ps') == STATISTIC
    assert total(reports['between_graph'], 'statistics', '', '/job:ps') == 2 * STATISTIC


def test_only_activations_cross_inside_a_split_model(reports):
    inside = [row for row in reports['split_model'].pairs if ':0' not in (row.source[-2:], row.target[-2:])]
    assert {row.kind for row in inside} == {'activations'}
    # 4 hidden values of each image forward, their gradient back, and the scalars of the weight decay.
    assert all(4 * BATCH * toy_model.HIDDEN <= row.measured <= 4 * BATCH * toy_model.HIDDEN + 12 for row in inside)


def test_variables_are_balanced_over_the_ps(reports):
    # 4 weights and the statistic, an average of each, a momentum of each weight, and global_step.
    everything = 3 * WEIGHTS + 2 * STATISTIC + 8
    assert set(reports['between_graph'].balance) == set(PS)
    assert sum(reports['between_graph'].balance.values()) == everything
    assert sum(size for row in reports['between_graph'].devices for size in row.bytes.values()) == everything


def test_each_worker_keeps_only_its_place_in_the_data(reports):
    devices = [entry['device'] for entry in reports['between_graph'].local]
    assert devices == [f'/job:worker/task:{number}/device:CPU:0' for number in range(2)]


def test_speed_is_known_where_a_network_is_crossed(reports):
    for row in reports['in_graph'].pairs:
        crosses = row.source.split('/device')[0] != row.target.split('/device')[0]
        assert (row.gbits > 0) == crosses


def test_shares_of_the_step_add_up(way):
    assert sum(way.shares[name] for name in ('compute', 'wire', 'input', 'waiting')) == pytest.approx(1)
    assert json.loads(json.dumps(dataclasses.asdict(way)))['verdict'] == way.verdict


def test_what_is_not_as_planned_is_told():
    way, = ways_of(ReportConfig(way='multi_gpu'))
    run, = rehearse(way, TASK)
    strayed = next(iter(run.plan.devices))
    plan = dataclasses.replace(run.plan, devices=run.plan.devices | {strayed: '/device:CPU:9'},
                               moves=run.plan.moves[1:])
    report = summarise(way, [run._replace(plan=plan)], 10.0)
    assert [(entry['operation'], entry['asked']) for entry in report.moved] == [(strayed, '/device:CPU:9')]
    assert not report.equal


@pytest.mark.parametrize('largest, words', [
    ('compute', 'compute'), ('input', 'the input'), ('waiting', 'the client'), ('wire', 'the wire of ps 1')])
def test_what_binds(largest, words):
    shares = Shares(1.0, **({name: 0.1 for name in ('compute', 'wire', 'input', 'waiting')} | {largest: 0.7}))
    assert bound_by(shares, {'ps 0': {'in': 5, 'out': 6}, 'ps 1': {'in': 7, 'out': 2}}) == words


def test_refusals():
    for config, words in ((ReportConfig(), '--all or --way'),
                          (ReportConfig(way='multi_gpu', all=True), '--all or --way'),
                          (ReportConfig(way='split_model', devices=1), '--devices=1'),
                          (ReportConfig(all=True, num_workers=0), '--num_workers=0'),
                          (ReportConfig(all=True, network_gbits=0.0), '--network_gbits=0')):
        with pytest.raises(FlagError, match=words):
            check_report(config)
