"""Fine-tuning: from whose weights it starts, what is frozen, and how it resumes."""

import dataclasses

import foreign
import numpy as np
import pytest
import tensorflow as tf

from dist.experiments.rehearsal import start_cluster
from dist.launch.local import free_ports
from dist.session import build_initialise
from inception_mg.config import FREEZE_POINTS, DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.model.inception_v3 import BLOCK_COST, inception_v3, scopes_below
from inception_mg.model.layers import Layers
from inception_mg.placement import CPU, between_graph, multi_gpu
from inception_mg.slices import wholes
from inception_mg.training.devices import local_machine
from inception_mg.training.image_task import image_task
from inception_mg.training.optimizers import build_averages_update
from inception_mg.training.ps_strategy import LargestFirst
from inception_mg.training.start import Start
from inception_mg.training.task import Task
from inception_mg.training.towers import Variables
from inception_mg.training.train import train_here
from inception_mg.training.train_step import build_train_step
from inception_mg.weights.checkpoints import AVERAGE, HEADS
from inception_mg.weights.names import AUX_HEAD, model_names
from inception_mg.weights.sources import open_weights
from inception_mg.weights.warm_start import plan_warm_start

v1 = tf.compat.v1
MODEL = ModelConfig(width=0.05, batch_norm_decay=0.5)
FROZEN = dataclasses.replace(MODEL, freeze_below='mixed_8x8x2048b')
OPTIMIZER = OptimizerConfig(initial_learning_rate=0.05, moving_average_decay=0.5)
SLIM = {ours: slim for slim, ours in foreign.slim_names().items()}


def train(data_dir: str, train_dir, max_steps: int, model=MODEL, **run) -> list[str]:
    """Trains and returns the lines it said."""
    lines: list[str] = []
    task = image_task(DataConfig(data_dir=data_dir, batch_size=4, image_size=75), model, OPTIMIZER)
    config = RunConfig(train_dir=str(train_dir), max_steps=max_steps, log_every_steps=1, **run)
    train_here(task, DeviceConfig(), config, lines.append)
    return lines


def values(checkpoint) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def build_model(num_outputs: int) -> list[tf.Variable]:
    """The variables of a narrow network in the current graph, each with its moving average."""
    with v1.variable_scope(v1.get_variable_scope(), use_resource=True):
        inception_v3(v1.placeholder(tf.float32, [1, 75, 75, 3]), num_outputs,
                     Layers(is_training=False, width=MODEL.width))
        model = v1.global_variables()
        build_averages_update(0.5, model, v1.train.get_or_create_global_step())
    return model


@pytest.fixture(scope='module')
def four_outputs() -> tf.Graph:
    """A graph with the variables of a network of three classes."""
    with tf.Graph().as_default() as graph:
        build_model(4)
    return graph


@pytest.fixture(scope='module')
def three_outputs() -> tuple[tf.Graph, list[tf.Variable]]:
    """A graph with the variables of a network of two classes on a ps, and those without the averages."""
    with tf.Graph().as_default() as graph, tf.device('/job:ps/task:0/device:CPU:0'):
        model = build_model(3)
    return graph, model


@pytest.fixture(scope='module')
def weights(four_outputs) -> dict[str, np.ndarray]:
    """Random weights of a narrow network of three classes; its statistics are not the initial ones."""
    random, known = np.random.RandomState(3), set(model_names())
    with four_outputs.as_default():
        shapes = {v.op.name: v.shape.as_list() for v in v1.global_variables() if v.op.name in known}
    # Of the size that keeps activations where they are: the frozen body passes something on.
    return {name: (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1])) if name.endswith('weights') else
                   0.5 + random.random_sample(shape) if name.endswith('variance') else
                   0.1 * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope='module')
def frozen(weights, two_classes, tmp_path_factory):
    """Two steps of fine-tuning from weights with TF-slim's names, all but the last block and the heads frozen: the
    folder and the lines."""
    folder = tmp_path_factory.mktemp('frozen')
    source = {SLIM[name]: value[None, None] if name in ('logits/logits/weights', 'aux_logits/FC/weights') else value
              for name, value in weights.items()}
    lines = train(two_classes, folder / 'run', 2, FROZEN, fine_tune=True,
                  pretrained_model_checkpoint_path=foreign.write(folder / 'inception_v3.ckpt', source))
    return folder / 'run', lines


def test_what_was_restored_is_printed(frozen):
    text = '\n'.join(frozen[1])
    assert '384 of 388 variables from the weights of' in text and 'names of TF-slim' in text
    assert 'begin anew: ' in text
    for name in ('logits/logits/weights', 'logits/logits/biases', 'aux_logits/FC/weights', 'aux_logits/FC/biases'):
        assert name in text
    assert 'to train; all others are frozen' in text


def test_nothing_that_is_frozen_moves(frozen, weights):
    after, below = values(frozen[0] / 'model.ckpt-2'), scopes_below('mixed_8x8x2048b')
    still = [name for name in weights if name.startswith(below)]
    assert len(still) == 4 * 85
    for name in still:
        np.testing.assert_array_equal(after[name], weights[name], name)
        np.testing.assert_allclose(after[name + AVERAGE], weights[name], rtol=1e-6, err_msg=name)
    for name in weights:
        if name not in still and not name.startswith(HEADS):
            assert np.abs(after[name] - weights[name]).max() > 0, name


def test_its_checkpoint_has_every_variable_and_average_but_no_slots_of_the_frozen(frozen):
    after, below = values(frozen[0] / 'model.ckpt-2'), scopes_below('mixed_8x8x2048b')
    slots = {name + slot for name in model_names() for slot in ('/RMSProp', '/RMSProp_1')
             if not name.startswith(below) and not name.endswith(('moving_mean', 'moving_variance'))}
    assert set(after) == {'global_step', *model_names(), *[name + AVERAGE for name in model_names()], *slots}


def test_it_resumes_thawed_and_from_a_step_in_float32(frozen, weights, two_classes):
    """The variables that were frozen have no slots yet. The 2016 program has a global_step in float32, and averages
    of its losses."""
    folder = frozen[0]
    old = {'global_step': np.float32(2), 'tower_0/total_loss/avg': np.float32(1)}
    foreign.write(folder / 'model.ckpt-2', values(folder / 'model.ckpt-2') | old)
    lines = train(two_classes, folder, 3)
    assert any('resumes from model.ckpt-2 at step 2' in line for line in lines)
    assert any('340 slots of the optimizer that it lacks begin anew' in line for line in lines)
    before, after = values(folder / 'model.ckpt-2'), values(folder / 'model.ckpt-3')
    assert after['global_step'] == 3 and after['global_step'].dtype == np.int64
    assert np.abs(after['conv0/weights'] - weights['conv0/weights']).max() > 0
    assert after['conv0/weights/RMSProp'].min() > 0.89  # It began at 1, decayed by 0.9, and got a square.
    assert np.abs(after['logits/logits/weights'] - before['logits/logits/weights']).max() < 0.5
    with pytest.raises(UserError, match='it is of another model'):  # Only slots may be missing.
        with tf.Graph().as_default():
            v1.get_variable('loss_scale', [], use_resource=True)
            Start.find(RunConfig(train_dir=str(folder))).check()


def test_nothing_is_computed_backward_below(three_classes):
    """No gradient, no weight decay and no update of a frozen block."""
    data = DataConfig(data_dir=three_classes, batch_size=4, image_size=75)
    kinds = ('Conv2DBackprop', 'FusedBatchNormGrad', 'L2Loss', 'ReluGrad', 'ResourceApplyRMSProp', 'MaxPoolGrad',
             'AvgPoolGrad', 'ConcatOffset')
    with tf.Graph().as_default() as graph:
        build_train_step(local_machine(DeviceConfig()).placement, image_task(data, FROZEN, OPTIMIZER))
        names = [operation.name for operation in graph.get_operations() if operation.type.startswith(kinds)]
        fixed = [operation for operation in graph.get_operations() if operation.type.startswith('FusedBatchNormV')
                 and not operation.get_attr('is_training')]
    blocks = ('conv0', 'conv1', 'conv2', 'conv3', 'conv4', *FREEZE_POINTS['inception_v3'], 'aux_logits')
    touched = {block for block in blocks for name in names if f'/{block}/' in f'/{name}'}
    assert touched == {'mixed_8x8x2048b', 'logits', 'aux_logits'}
    assert len(fixed) == 85


def test_freeze_points_are_the_blocks():
    blocks = [name for name in BLOCK_COST if name not in ('stem', 'aux_logits')]
    assert list(FREEZE_POINTS['inception_v3']) == blocks
    assert scopes_below('') == () and scopes_below('mixed_35x35x256a') == tuple(f'conv{k}/' for k in range(5))
    covered = [name for name in model_names() if not name.startswith(scopes_below('logits'))]
    assert {name.split('/')[0] + '/' for name in covered} == {AUX_HEAD, 'logits/'}


def start_from(source: str, **run) -> Start:
    return Start.find(RunConfig(train_dir='', pretrained_model_checkpoint_path=source, **run))


def test_freezing_what_nobody_has_trained_is_refused(tmp_path):
    with pytest.raises(FlagError, match='--freeze_below would freeze weights that nobody has trained'):
        Start.find(RunConfig(train_dir=str(tmp_path))).check(('logits/',))


def test_another_number_of_classes(weights, three_outputs, tmp_path):
    source = foreign.write(tmp_path / 'source', weights)
    with three_outputs[0].as_default():
        with pytest.raises(UserError, match=r'FC/weights with shape \[\d+, 4\], this model with \[\d+, 3\]: .*--fine'):
            start_from(source).check()
        start_from(source, fine_tune=True).check()


def test_a_file_without_auxiliary_head(weights, four_outputs, tmp_path):
    source = foreign.write(tmp_path / 'source', {name: value for name, value in weights.items()
                                                 if not name.startswith(AUX_HEAD)})
    with four_outputs.as_default():
        text = '\n'.join(start_from(source).lines(RunConfig()))
    assert '378 of 388 variables from the weights of' in text and 'aux_logits/proj/weights' in text


def test_another_kernel_of_the_auxiliary_head(weights, three_outputs, tmp_path):
    """It follows from the image size: fine-tuning makes it anew with all that normalises it."""
    kernel = np.zeros([5, 5, *weights['aux_logits/Conv/weights'].shape[2:]], np.float32)
    source = foreign.write(tmp_path / 'source', weights | {'aux_logits/Conv/weights': kernel})
    anew = plan_warm_start(open_weights(source, 'input'), [*wholes(three_outputs[1]).values()], fine_tune=True).anew
    assert set(anew) == {name for name in weights if name.startswith(('aux_logits/Conv/', *HEADS))}


def test_a_chief_gives_the_weights_to_the_ps_once(weights, three_outputs, tmp_path):
    """Through a session of its own server; later a checkpoint counts, not the pretrained weights."""
    source = foreign.write(tmp_path / 'source', weights)
    ps_port, worker_port = free_ports(2)
    cluster = tf.train.ClusterSpec({'ps': [f'127.0.0.1:{ps_port}'], 'worker': [f'127.0.0.1:{worker_port}']})
    _, worker = [v1.train.Server(cluster, job, 0) for job in ('ps', 'worker')]
    graph, model = three_outputs
    with graph.as_default():
        with tf.device('/job:worker/task:0/device:CPU:0'):
            saver, init_fn = v1.train.Saver(), start_from(source, fine_tune=True).build_init_fn()
        fed = [op for op in graph.get_operations() if op.type == 'AssignVariableOp'
               and op.inputs[1].op.type == 'Placeholder']
        assert len(fed) == 2 * 384 and {op.device for op in fed} == {'/job:ps/task:0/device:CPU:0'}
        newest: list[str] = []
        initialise = build_initialise(saver, lambda: newest[-1] if newest else '', v1.global_variables_initializer(),
                                      None, init_fn)
        with v1.Session(worker.target) as session:
            assert initialise(session) == 'initialised all variables'
            check_taken(session, model, weights)
            moved_v = session.run(model[0].assign_add(tf.ones_like(model[0])))
            newest.append(saver.save(session, str(tmp_path / 'model.ckpt'), 1))
            assert initialise(session) == f'restored {newest[0]}'
            np.testing.assert_array_equal(session.run(model[0]), moved_v)


def test_slices_take_their_parts_of_trained_weights(weights, tmp_path):
    """On two ps, and so do the averages of slices; see tests/training/test_partition.py."""
    source = foreign.write(tmp_path / 'source', weights)
    placement = between_graph(2, 0, multi_gpu([CPU]).towers)

    def build(batch=None, tower=None):
        inception_v3(v1.placeholder(tf.float32, [1, 75, 75, 3]), 4, Layers(is_training=False, width=MODEL.width))
        return tf.constant(0.0)

    strategy = LargestFirst(2, 3000)
    strategy.learn(Task(None, build, 1, 1), (), placement.towers[0])
    assert len(strategy.cuts) > 5
    with tf.Graph().as_default():
        with Variables(placement.variables, strategy=strategy).on(placement.towers[0].host):
            build()
            made = v1.global_variables()
            build_averages_update(0.5, made, v1.train.create_global_step())
        init, init_fn = v1.global_variables_initializer(), start_from(source).build_init_fn()
        with v1.Session(start_cluster(2, 1, v1.ConfigProto())[0]) as session:
            session.run(init)
            init_fn(session)
            found = wholes(variable for variable in v1.global_variables() if variable.op.name != 'global_step')
            found_v = session.run({name: [variable for variable, _ in whole.parts] for name, whole in found.items()})
            for name, whole in found.items():
                assert len(whole.parts) == 1 or name.removesuffix(AVERAGE) in strategy.cuts
                value = np.zeros(whole.shape, np.float32)
                for (_, piece), part_v in zip(whole.parts, found_v[name], strict=True):
                    value[piece] = part_v
                np.testing.assert_array_equal(value, weights[name.removesuffix(AVERAGE)], name)


def check_taken(session: v1.Session, model: list[tf.Variable], weights: dict[str, np.ndarray]) -> None:
    """All but the heads have the file's values, and their averages too."""
    averages = {v.op.name.removesuffix(AVERAGE): v for v in v1.global_variables() if v.op.name.endswith(AVERAGE)}
    taken = [v for v in model if not v.op.name.startswith(HEADS)]
    raws_v, averages_v = session.run([taken, [averages[v.op.name] for v in taken]])
    for variable, raw_v, average_v in zip(taken, raws_v, averages_v, strict=True):
        np.testing.assert_array_equal(raw_v, weights[variable.op.name])
        np.testing.assert_array_equal(average_v, weights[variable.op.name])
