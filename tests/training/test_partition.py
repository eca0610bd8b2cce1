"""Variables in slices over several ps: the same numbers as whole ones, each slice and all beside it on its ps, bytes to
the byte, and checkpoints that know nothing of it. Servers of this process, no processes.
"""

import dataclasses
import itertools
import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from forms import FAST, in_both_forms

from dist.experiments.rehearsal import rehearse, start_cluster
from dist.planner import placing, plan
from dist.planner.networks import network
from dist.sync import SyncReplicas
from inception_mg import checks, dealing, slices
from inception_mg.config import ClusterConfig, OptimizerConfig, ReportConfig, RunConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.fast.operations import PLAIN
from inception_mg.model.tower_loss import Statistic, TowerLoss
from inception_mg.placement import CPU, Tower, between_graph, in_graph, multi_gpu
from inception_mg.report.summary import summarise
from inception_mg.report.ways import ways_of
from inception_mg.training import partition, step_records
from inception_mg.training.ps_strategy import LargestFirst, trained_specs
from inception_mg.training.start import Start, build_saver
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step
from inception_mg.weights.checkpoints import Restorer

v1 = tf.compat.v1
PS, WORKERS, MOST = 4, 2, 600
SHAPES = {'conv/weights': [3, 3, 3, 8], 'conv/bias': [8], 'fc/weights': [72, 5]}  # 864, 32 and 1440 bytes.
CUT = {'conv/weights': (0, [2, 1]), 'fc/weights': (0, [24, 24, 24])}
BESIDE = ('', '/RMSProp', '/RMSProp_1', '/ExponentialMovingAverage')
CONFIG = v1.ConfigProto(device_count={'CPU': 2}, allow_soft_placement=False)


def dataset_for(part, parts, size):
    random = np.random.RandomState(5)
    images, labels = random.rand(8, 5, 5, 3).astype(np.float32), random.rand(8, 5).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((images[part::parts], labels[part::parts])).repeat().batch(
        size, drop_remainder=True)


def loss_for(batch, tower):
    images, labels = batch
    kernel = v1.get_variable('conv/weights', SHAPES['conv/weights'], tf.float32,
                             v1.truncated_normal_initializer(stddev=0.3, seed=1))
    bias = v1.get_variable('conv/bias', SHAPES['conv/bias'], tf.float32, v1.zeros_initializer())
    net = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, 'VALID') + bias)
    weights = v1.get_variable('fc/weights', SHAPES['fc/weights'], tf.float32, v1.glorot_uniform_initializer(seed=2))
    mean = v1.get_variable('mean', [8], tf.float32, v1.zeros_initializer(), trainable=False)
    statistic = Statistic(mean, tf.reduce_mean(net, [0, 1, 2]), 0.9)
    error = tf.reduce_mean(tf.square(tf.reshape(net, [net.shape[0], -1]) @ weights - labels))
    return TowerLoss(error + 0.01 * tf.nn.l2_loss(weights), {'error': error}, [statistic])


class Setting(NamedTuple):
    """ps: how many hold the variables. most: bytes of what is not cut, 0 = nothing is. aggregate: 0 = asynchronous."""

    ps: int = PS
    most: int = MOST
    operations: object = FAST
    wire: str = 'float32'
    prefetch: bool = False
    aggregate: int = 0


@pytest.fixture(scope='module')
def targets():
    return start_cluster(PS, WORKERS, CONFIG)


def task_for(operations, **options) -> Task:
    return Task(dataset_for, loss_for, 8, 4, OptimizerConfig(moving_average_decay=0.9), operations=operations,
                **options)


def placement_of(setting: Setting, worker: int = 0):
    return dataclasses.replace(
        between_graph(setting.ps, worker, multi_gpu(['/device:CPU:0', '/device:CPU:1']).towers),
        wire_dtype=setting.wire, prefetch=setting.prefetch, partition_mb=setting.most / 1e6)


class Worker:
    """One worker's graph and session."""

    def __init__(self, targets, setting: Setting, index: int = 0, **options):
        self.sync = None

        def synchronous(optimizer):
            self.sync = SyncReplicas(optimizer, setting.aggregate, WORKERS, index, 1000)
            return self.sync

        with tf.Graph().as_default() as self.graph:
            self.step = build_train_step(
                placement_of(setting, index), task_for(setting.operations, **options), reader=index, readers=WORKERS,
                **({'wrap_optimizer': synchronous} if setting.aggregate else {}))
            self.variables = v1.global_variables()
            self.init, self.saver = v1.global_variables_initializer(), v1.train.Saver(self.variables)
        self.session = v1.Session(targets[index], graph=self.graph, config=CONFIG)

    def by_name(self) -> dict[str, tf.Variable]:
        return {variable.op.name: variable for variable in self.variables}


def train(targets, setting: Setting, folder, begin='', steps: int = 3) -> tuple[list[float], str]:
    """The losses of a few steps, and the checkpoint after them."""
    workers = [Worker(targets, setting, index) for index in range(WORKERS if setting.aggregate else 1)]
    chief, losses = workers[0], []
    chief.session.run(chief.init)
    if begin:
        with chief.graph.as_default():
            chief.saver.restore(chief.session, begin)
    if setting.aggregate:
        chief.session.run(chief.sync.reset_op)
    for worker in workers:
        worker.session.run(worker.step.start_input)
    for number in range(steps):
        given = {}
        if setting.aggregate:
            ticket = chief.session.run(chief.sync.ticket)
        for worker in workers:
            given = {worker.sync.ticket_in_hand: ticket} if setting.aggregate else {}
            losses.append(worker.session.run([worker.step.loss, worker.step.train_op], given)[0])
        if setting.aggregate:  # With one backup, the workers' gradients count in turn.
            chosen = [(number + k) % WORKERS < setting.aggregate for k in range(WORKERS)]
            chief.session.run(chief.sync.update_op, {chief.sync.chosen: chosen})
    folder.mkdir(exist_ok=True)
    with chief.graph.as_default():
        path = chief.saver.save(chief.session, str(folder / 'model.ckpt'), steps)
    for worker in workers:
        worker.session.close()
    return losses, path


def values_of(checkpoint: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(checkpoint)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(sorted(one)) == list(sorted(other))
    for name, value in other.items():
        np.testing.assert_allclose(one[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


SETTINGS = {
    'plain': Setting(operations=PLAIN), 'fast': Setting(), 'bfloat16': Setting(wire='bfloat16'),
    '3 ps, small slices': Setting(3, 100),
    'sync': Setting(aggregate=WORKERS),
    'sync, a backup, plain, bfloat16': Setting(2, 300, PLAIN, 'bfloat16', aggregate=1)}


@pytest.mark.parametrize('name', SETTINGS)
def test_losses_weights_slots_and_averages_are_those_of_whole_variables(name, targets, tmp_path):
    """The checkpoint has the same names and shapes, too: nothing in it tells how the variables lay."""
    setting = SETTINGS[name]
    losses, whole = train(targets, setting._replace(most=0), tmp_path)
    losses_v, cut = train(targets, setting, tmp_path)
    np.testing.assert_allclose(losses_v, losses, rtol=1e-6)
    assert len(set(losses)) >= 3
    assert_equal(values_of(cut), values_of(whole))
    assert set(values_of(cut)) == {'global_step', 'mean', 'mean/ExponentialMovingAverage', *(
        name + beside for name in SHAPES for beside in BESIDE)}


@in_both_forms
def test_fetched_ahead_slices_are_put_together_too(operations, targets, tmp_path):
    """How old the weights are is a matter of chance then, but for the first step."""
    losses, _ = train(targets, Setting(most=0), tmp_path, steps=1)
    losses_v, _ = train(targets, Setting(prefetch=True, operations=operations), tmp_path, steps=6)
    assert losses_v[0] == pytest.approx(losses[0], rel=1e-6) and losses_v[5] < losses_v[0]


@pytest.mark.parametrize('ps, most', [(1, 0), (PS, 0), (PS, MOST), (3, 100)])
def test_a_checkpoint_loads_with_any_cut_and_any_number_of_ps(ps, most, targets, tmp_path):
    """Training goes on as if nothing had changed: with slots and averages."""
    _, begun = train(targets, Setting(), tmp_path)
    losses_v, changed = train(targets, Setting(ps, most), tmp_path / 'changed', begun)
    losses, same = train(targets, Setting(), tmp_path / 'same', begun)
    np.testing.assert_allclose(losses_v, losses, rtol=1e-6)
    assert_equal(values_of(changed), values_of(same))


@in_both_forms
@pytest.mark.parametrize('worker', range(WORKERS))
def test_each_slice_lies_where_it_was_dealt_with_all_that_stands_beside_it(worker, operations):
    strategy = LargestFirst(PS, MOST)
    strategy.deal({name: tf.TensorSpec(shape) for name, shape in SHAPES.items()})
    assert strategy.cuts == CUT
    with tf.Graph().as_default() as graph:
        build_train_step(placement_of(Setting(), worker), task_for(operations))
        variables = v1.global_variables()
        devices = {variable.op.name: variable.device for variable in variables}
        handles = {op.name: op.device for op in graph.get_operations() if op.type == 'VarHandleOp'}
    assert handles == devices
    found = slices.wholes(variables)
    for name, (axis, rows) in CUT.items():
        for beside in BESIDE:
            whole = found[name + beside]
            assert whole.shape == SHAPES[name] and [part.shape[axis] for part, _ in whole.parts] == rows
            first = np.cumsum([0, *rows])
            assert [piece[axis] for _, piece in whole.parts] == [
                slice(*pair) for pair in itertools.pairwise(first)]
            assert [tf.DeviceSpec.from_string(part.device).task for part, _ in whole.parts] == [
                strategy.place_of(f'{name}/part_{k}') for k in range(len(rows))]
    assert len(found['conv/bias'].parts) == 1 and len({devices[f'fc/weights/part_{k}'] for k in range(3)}) == 3


@in_both_forms
@pytest.mark.parametrize('wire', ['float32', 'bfloat16'])
def test_each_ps_sends_and_receives_its_slices_once(wire, operations, targets):
    """To the byte, whatever the towers of the worker; and they are put together once, on its CPU."""
    worker = Worker(targets, Setting(operations=operations, wire=wire))
    session, metadata = worker.session, v1.RunMetadata()
    session.run([worker.init])
    session.run(worker.step.start_input)
    session.run(worker.step.train_op, options=step_records.trace_options(), run_metadata=metadata)
    moved = step_records.bytes_between(step_records.transfers(metadata))
    own = dict.fromkeys(placement_of(Setting()).variables, 0)
    for _, variable in worker.step.gradients:
        own[variable.device] += variable.shape.num_elements() * tf.as_dtype(wire).size
    home = worker.by_name()['mean'].device
    steps = worker.by_name()['global_step'].device
    host = '/job:worker/task:0/device:CPU:0'
    between = {pair: size for pair, size in moved.items() if size and set(pair) <= set(own)}
    assert {source for source, _ in between} == {steps} and max(between.values()) <= 8  # Learning rate, decay.
    for ps, size in own.items():
        assert moved[ps, host] == size
        assert moved[host, ps] == size + 4 * 8 * (ps == home)
    joined = [op for op in worker.graph.get_operations() if re.search(r'/joined(_\d+)?$', op.name)]
    assert len(joined) == len(CUT) and {op.device for op in joined} == {host}
    session.close()


def test_evaluation_knows_nothing_of_slices(targets, tmp_path):
    _, checkpoint = train(targets, Setting(), tmp_path)
    want = values_of(checkpoint)
    for use_averages, beside in ((True, '/ExponentialMovingAverage'), (False, '')):
        with tf.Graph().as_default(), v1.Session() as session, v1.variable_scope('', use_resource=True):
            loss_for(v1.data.make_one_shot_iterator(dataset_for(0, 1, 4)).get_next(), None)
            Restorer(v1.global_variables(), use_averages, 'it is of another model').restore(session, checkpoint)
            for variable in v1.global_variables():
                np.testing.assert_array_equal(session.run(variable), want[variable.op.name + beside])


@pytest.mark.parametrize('most', [0, 100])
def test_resuming_where_slots_are_lacking(most, targets, tmp_path):
    """Of a run with frozen layers: their slots begin anew, also in slices, and what is frozen is not cut."""
    folder = tmp_path / 'frozen'
    folder.mkdir()
    first = Worker(targets, Setting(), frozen=('fc/',))
    assert first.by_name().keys() >= {'fc/weights', 'conv/weights/part_0'}
    run = RunConfig(train_dir=str(folder))
    for what in (first.init, first.step.start_input, first.step.train_op):
        first.session.run(what)
    with first.graph.as_default():
        build_saver(run).save(first.session, str(folder / 'model.ckpt'), 7)
    want = values_of(str(folder / 'model.ckpt-7'))
    assert 'fc/weights/RMSProp' not in want

    second = Worker(targets, Setting(3, most))
    with second.graph.as_default():
        start = Start.find(run)
        start.check()
        saver = build_saver(run)
        assert any('slots of the optimizer that it lacks' in line for line in start.lines(run))
    second.session.run(second.init)
    with second.graph.as_default():
        saver.restore(second.session, start.checkpoint)
        again = values_of(second.saver.save(second.session, str(tmp_path / 'again'), 0))
    assert_equal({name: again[name] for name in want}, want)
    assert (again['fc/weights/RMSProp'] == 1).all() and (again['fc/weights/RMSProp_1'] == 0).all()
    for worker in (first, second):
        worker.session.close()


def test_a_slice_starts_with_its_part_of_one_initial_value():
    """By themselves all slices would begin alike where an initializer has a seed, and as of a smaller layer."""
    with tf.Graph().as_default():
        wanted, parts = v1.glorot_uniform_initializer(seed=2)(SHAPES['fc/weights']), slices_here()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            wanted_v, parts_v = session.run([wanted, parts])
    np.testing.assert_array_equal(np.concatenate(parts_v), wanted_v)
    with tf.Graph().as_default():
        build_train_step(placement_of(Setting()), task_for(PLAIN))
        parts = slices.wholes(v1.global_variables())['fc/weights'].parts
        assert {part.initial_value.device for part, _ in parts} == {parts[0][0].device}


def slices_here() -> list[tf.Variable]:
    """Slices of fc/weights on this machine."""
    strategy = LargestFirst(2, MOST)
    strategy.deal({'fc/weights': tf.TensorSpec(SHAPES['fc/weights'])})
    slicer = partition.Slices(None, strategy, [CPU, CPU])
    made = []

    def getter(*args, **kwargs):
        made.extend(slicer.get(*args, **kwargs))
        return made[0]

    with v1.variable_scope('', custom_getter=getter):
        v1.get_variable('fc/weights', SHAPES['fc/weights'], initializer=v1.glorot_uniform_initializer(seed=2))
    return made


@pytest.mark.parametrize('way', ['in_graph', 'between_graph'])
def test_the_report_foretells_what_crosses(way):
    config = ReportConfig(way=way, num_ps=3, partition_mb=MOST / 1e6)
    found, = ways_of(config)
    assert {one.partition_mb for one in found.placements} == {MOST / 1e6}
    report = summarise(found, rehearse(found, dataclasses.replace(task_for(FAST), batch_size=2)), 10.0)
    assert report.equal and not report.moved
    rows = {row.what: row.measured for row in report.expected}
    weights = 4 * sum(map(np.prod, SHAPES.values()))
    assert [size for what, size in rows.items() if 'weights to worker' in what] == [weights] * 2
    assert {pair.kind for pair in report.pairs} >= {'weights', 'gradients'}


def test_what_is_asked_for_and_what_it_comes_to():
    for wrong in (-1.0, 1e-6):
        with pytest.raises(FlagError, match='--partition_mb=.* must be 0, .* or at least 0.01'):
            checks.check_cluster(ClusterConfig(partition_mb=wrong))
    with tf.Graph().as_default():
        step = build_train_step(placement_of(Setting()), task_for(FAST))
        trained = [variable for _, variable in step.gradients]
        assert partition.lines(placement_of(Setting()), trained) == [
            'slices     --partition_mb=0.0006: 2 variables, 0.0 MB, in 5 slices']
        assert partition.lines(placement_of(Setting(most=0)), trained) == []
    with tf.Graph().as_default():
        step = build_train_step(placement_of(Setting(ps=1)), task_for(FAST))
        trained = [variable for _, variable in step.gradients]
        assert len(trained) == len(SHAPES)
        assert partition.lines(placement_of(Setting(ps=1)), trained) == [
            'slices     --partition_mb=0.0006 has no effect: there are not two ps to cut variables over']
        assert partition.lines(placement_of(Setting(most=10000)), trained) == [
            'slices     --partition_mb=0.01 has no effect: no trained variable is larger']


def test_a_cut_variable_without_gradient_is_named_once():
    def loss(batch, tower):
        v1.get_variable('forgotten', [400], tf.float32)
        return loss_for(batch, tower)

    with tf.Graph().as_default(), pytest.raises(UserError, match='depend on forgotten$'):
        build_train_step(placement_of(Setting()), dataclasses.replace(task_for(FAST), loss_for=loss))


@pytest.mark.parametrize('shape, most, cut', [
    ([10], 0, (0, [10])), ([10], 40, (0, [10])), ([10], 39, (0, [5, 5])), ([10], 12, (0, [3, 3, 2, 2])),
    ([2, 10], 20, (1, [2] * 5)), ([2, 10], 24, (1, [3, 3, 2, 2])), ([2, 10], 40, (0, [1, 1])),
    ([3, 5], 8, (1, [1] * 5)), ([], 2, (0, []))])
def test_how_a_variable_is_cut(shape, most, cut):
    assert dealing.cut(shape, most) == cut
    assert sum(dealing.slices(shape, most)) == 4 * np.prod(shape)


def test_up_to_64_ps_none_has_more_than_a_tenth_above_the_mean():
    """Of the real network, by the strategy of a training: the figures of docs/planner.md. And the planner's own are the
    same."""
    from dist.experiments.measure import build_inception
    specs = trained_specs(Task(None, lambda batch, tower: build_inception(), 1, 1), (), Tower(CPU, CPU))
    net = network('inception_v3')

    def over_mean(ps: int, most: int) -> float:
        strategy = LargestFirst(ps, most)
        strategy.deal(specs)
        planned = plan.pieces(net, most)
        assert placing.loads(planned, placing.largest_first(planned, ps), ps) == strategy.loads
        return max(strategy.loads) * ps / sum(strategy.loads)

    before, after = ({ps: over_mean(ps, most) for ps in range(1, 65)} for most in (0, 400000))
    assert max(after.values()) <= 1.07
    assert [round(before[ps], 2) for ps in (8, 12, 16, 32, 64)] == [1.0, 1.09, 1.45, 2.9, 5.79]
    assert [round(after[ps], 2) for ps in (8, 12, 16, 32, 64)] == [1.0, 1.0, 1.01, 1.02, 1.03]


def test_in_graph_towers_on_two_machines_read_the_slices_each(targets):
    placement = dataclasses.replace(in_graph(PS, [['/device:CPU:0']] * 2), partition_mb=MOST / 1e6)
    with tf.Graph().as_default() as graph:
        step = build_train_step(placement, task_for(FAST))
        init = v1.global_variables_initializer()
        joined = sorted(op.device for op in graph.get_operations() if op.type == 'ConcatV2' and '/joined' in op.name)
        with v1.Session(targets[0], config=CONFIG) as session:
            session.run(init)
            session.run(step.start_input)
            losses_v = [session.run([step.loss, step.train_op])[0] for _ in range(3)]
    assert joined == [f'/job:worker/task:{k}/device:CPU:0' for k in (0, 0, 1, 1)]
    assert losses_v[2] < losses_v[0]
