"""The two forms of an operation are equal: forward, backward, in whole steps; and where a TensorFlow lacks what a fast
form leans on, the plain one serves and one line says so."""

import numpy as np
import pytest
import tensorflow as tf
import toy_model
from forms import FAST, FORMS, in_both_forms

from inception_mg.config import DataConfig, ModelConfig, OptimizerConfig
from inception_mg.fast import batch_norm, choice
from inception_mg.fast.operations import PLAIN
from inception_mg.model.layers import Layers
from inception_mg.model.losses import classification_loss
from inception_mg.placement import one_device
from inception_mg.training.hooks import build_finite
from inception_mg.training.image_task import image_task
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
CPU_ONLY = v1.ConfigProto(device_count={'GPU': 0})
in_both_types = pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-5), ('bfloat16', 2e-2)])


@in_both_types
@pytest.mark.parametrize('kernel, channels, stride', [((1, 1), 16, 1), ((3, 3), 256, 1), ((3, 3), 16, 2)])
def test_a_layer_and_its_gradients(dtype, tolerance, kernel, channels, stride):
    """Convolution, batch norm and ReLU as Layers puts them together."""
    def run(operations):
        random = np.random.default_rng(4)
        with tf.Graph().as_default(), tf.device('/device:CPU:0'), v1.Session(config=CPU_ONLY) as session:
            layers = Layers(True, tf.as_dtype(dtype), operations=operations)
            images = tf.constant(random.normal(size=[4, 8, 8, channels]), tf.float32)
            net = layers.conv(tf.cast(images, dtype), channels, kernel, stride)
            upstream = tf.cast(random.normal(size=net.shape), dtype)
            weights, beta = v1.trainable_variables()
            gradients = tf.gradients(net, [images, weights, beta], upstream)
            session.run(v1.global_variables_initializer())
            session.run(weights.assign(random.normal(0, 0.1, size=weights.shape).astype(np.float32)))
            # A little off 0, where ReLU bends and rounding decides.
            session.run(beta.assign(random.choice([-0.4, 0.4], size=beta.shape).astype(np.float32)))
            wanted = [net, *(statistic.value for statistic in layers.statistics), *gradients]
            return session.run([tf.cast(value, tf.float32) for value in wanted])

    for fast_v, plain_v in zip(run(FAST), run(PLAIN), strict=True):
        difference = np.abs(fast_v - plain_v) / np.abs(plain_v).max()
        assert np.median(difference) <= tolerance / 10 and np.quantile(difference, 0.999) <= tolerance


def images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """Eight images, each noise around a colour of its own: batch norm needs something to tell apart."""
    random = np.random.RandomState(5)
    images = random.uniform(-0.7, 0.7, (8, 1, 1, 3)) + random.uniform(-0.3, 0.3, (8, 75, 75, 3))
    return images.astype(np.float32), np.arange(8, dtype=np.int32) % 6


class Steps:
    """Three steps of a narrow Inception: the losses, all variables after them, and what the graph is made of."""

    def __init__(self, operations, dtype: str):
        model = ModelConfig(width=0.05, compute_dtype=dtype, dropout_keep_prob=1.0, batch_norm_decay=0.9)

        def loss_for(batch, tower):
            return classification_loss(*batch, 6, model, operations=operations)

        with tf.Graph().as_default() as graph:
            step = build_train_step(one_device(), Task(
                lambda *args: tf.data.Dataset.from_tensors(images_and_labels()).repeat(), loss_for, 100, 8,
                OptimizerConfig(initial_learning_rate=0.001, moving_average_decay=0.9), operations=operations))
            variables = v1.global_variables()
            finite = build_finite(variables, operations)
            with v1.Session(config=CPU_ONLY) as session:
                session.run([v1.global_variables_initializer(), step.start_input])
                self.first = self._same_start(session, variables)
                self.losses_v = [session.run([step.loss, step.train_op])[0] for _ in range(3)]
                self.values = dict(zip(self.first, session.run(variables), strict=True))
                self.finite_v = session.run(finite)
        self.where = [(v.op.name, tuple(v.shape), v.dtype, v.trainable, v.device) for v in variables]
        self.types = {op.type for op in graph.get_operations()}

    @staticmethod
    def _same_start(session: v1.Session, variables) -> dict[str, np.ndarray]:
        """Gives weights, and the averages of all, values that do not depend on the order of the operations."""
        random = np.random.RandomState(6)
        values = {v.op.name: random.normal(0, np.sqrt(2 / np.prod(v.shape[:-1])), v.shape)
                  for v in variables if v.op.name.endswith('/weights')}
        holders = {v1.placeholder(tf.float32, v.shape): v for v in variables
                   if v.op.name.removesuffix('/ExponentialMovingAverage') in values}
        session.run([v.assign(holder, read_value=False) for holder, v in holders.items()],
                    {holder: values[v.op.name.removesuffix('/ExponentialMovingAverage')]
                     for holder, v in holders.items()})
        first = dict(zip([v.op.name for v in variables], session.run(variables), strict=True))
        for name, value in first.items():  # An average begins where its variable does.
            if name.endswith('/ExponentialMovingAverage'):
                np.testing.assert_array_equal(value, first[name.removesuffix('/ExponentialMovingAverage')])
        return first


@pytest.mark.parametrize('dtype, rounding', [('float32', 1e-4), ('bfloat16', 1e-2)])
def test_three_whole_steps(dtype, rounding):
    plain, fast = Steps(PLAIN, dtype), Steps(FAST, dtype)
    assert plain.where == fast.where  # Also the order: what a checkpoint has, and where.
    for name, value in plain.first.items():
        np.testing.assert_array_equal(value, fast.first[name], err_msg=name)
    np.testing.assert_allclose(fast.losses_v, plain.losses_v, rtol=5 * rounding)
    # How far the two are from each other, as a share of how far each variable came. Where rounding puts a value on the
    # other side of a ReLU, that of a few can be large.
    came = {name: np.linalg.norm(value - plain.first[name]) for name, value in plain.values.items()}
    assert min(came.values()) > 0
    shares = [np.linalg.norm(fast.values[name] - value) / came[name] for name, value in plain.values.items()]
    assert np.median(shares) <= 10 * rounding and max(shares) < 0.5
    assert plain.values['global_step'] == fast.values['global_step'] == 3
    assert list(plain.finite_v) == list(fast.finite_v)
    for name, sum_v in fast.finite_v.items():
        np.testing.assert_allclose(sum_v, np.square(fast.values[name]).sum() / 2, rtol=1e-3, err_msg=name)
    private = {'_FusedBatchNormEx'} if FAST.batch_norm_relu else set()
    assert private <= fast.types and not {'_FusedBatchNormEx', 'ResourceApplyGradientDescent'} & plain.types


def test_a_value_that_is_not_finite_is_seen():
    for operations in FORMS.values():
        with tf.Graph().as_default(), v1.variable_scope('', use_resource=True), v1.Session() as session:
            values = {'good': [1.0, 2.0], 'bad': [1.0, np.nan], 'endless': [np.inf, 0.0]}
            made = [v1.get_variable(name, initializer=tf.constant(value)) for name, value in values.items()]
            sums = build_finite([*made, v1.get_variable('step', initializer=1)], operations)
            session.run(v1.global_variables_initializer())
            assert [name for name, value in session.run(sums).items() if not np.isfinite(value)] == ['bad', 'endless']
            assert list(sums) == list(values)


def refuse(*args, **kwargs):
    raise AttributeError('there is no such thing')


@pytest.mark.parametrize('where, what, fields, said', [
    (tf.Operation, '_update_input', ['reads'], 'input of an operation that is bound late'),
    # (By which TensorFlow also makes the gradients of tf.custom_gradient.)
    (tf.Graph, 'gradient_override_map', ['conv2d', 'batch_norm_relu'], 'gradient of its own for one convolution'),
    (tf, 'import_graph_def', ['variable_getter', 'make_optimizer', 'build_averages', 'build_moves', 'build_finite'],
     'variables from hand-made nodes'),
    (batch_norm, '_build', ['batch_norm_relu'], 'joint batch norm and ReLU')])
def test_the_plain_form_serves_where_a_fast_one_cannot(monkeypatch, where, what, fields, said):
    monkeypatch.setattr(where, what, refuse)
    monkeypatch.setattr(choice, 'fast_operations', choice.fast_operations.__wrapped__)
    lines = []
    operations = choice.operations_for(False, lines.append)
    assert [field for field, form in vars(FAST).items() if form and not getattr(operations, field)] == fields
    assert len(lines) == 1 and said in lines[0] and tf.__version__ in lines[0] and 'plain' in lines[0]
    with tf.Graph().as_default():
        step = build_train_step(one_device(), Task(toy_model.dataset_for(8), toy_model.toy_loss, 8, 8,
                                                   make_optimizer=toy_model.make_optimizer, operations=operations))
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), step.start_input])
            losses_v = [session.run([step.loss, step.train_op])[0] for _ in range(3)]
    np.testing.assert_allclose(losses_v, toy_model.numpy_run(8, 3)[0], rtol=1e-5)


def test_the_flag_chooses():
    said: list[str] = []
    assert choice.operations_for(False, said.append) == FAST and said == []
    assert choice.operations_for(True, said.append) == PLAIN and '--plain_operations' in said[0]


@in_both_forms
def test_a_program_builds_all_of_its_step_from_one_form(three_classes, operations):
    data = DataConfig(data_dir=three_classes, batch_size=2, image_size=75)
    with tf.Graph().as_default() as graph:
        build_train_step(one_device(), image_task(data, ModelConfig(width=0.05), OptimizerConfig(), operations))
        types = {op.type for op in graph.get_operations()}
        functions = {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
    assert ('Relu' not in types) == bool(operations.batch_norm_relu)
    assert ('ResourceApplyGradientDescent' in types) == bool(operations.build_moves)
    assert ('AdjustSaturation' not in functions) == bool(operations.recolour)
