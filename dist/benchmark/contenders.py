"""The contenders of one process: steps, inference, input, and the machine's own limits.

Each function builds one and returns a Contender, to be given to benchmark.serve in a process of its own.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dist.benchmark.flops import Conv, count_flops, heaviest_convolutions
from dist.benchmark.race import Contender
from inception_mg.config import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig
from inception_mg.data.input_pipeline import training_dataset
from inception_mg.errors import FlagError
from inception_mg.fast.choice import operations_for
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.layers import Layers
from inception_mg.model.losses import classification_loss
from inception_mg.model.networks import network
from inception_mg.placement import Placement
from inception_mg.training.devices import Machine, local_machine
from inception_mg.training.image_task import image_task, open_training_data
from inception_mg.training.task import Task
from inception_mg.training.towers import DatasetFor
from inception_mg.training.train_step import TrainStep, build_train_step
from inception_mg.weights.folding import FoldedLayers

v1 = tf.compat.v1

NUM_OUTPUTS = 1001       # ImageNet's classes and the background.
NUM_EXAMPLES = 1281167   # ImageNet's training images: only the schedule's steps depend on it.
MATRIX_SIDE = 2048       # Large enough that a larger one is not faster, in float32 and in bfloat16.
HEAVIEST = 6             # Kinds of convolution; about half of the operations of Inception v3 at 299 x 299.
OPTIMIZER = OptimizerConfig(initial_learning_rate=0.001)  # The loss of one batch again and again stays finite.
_PRODUCTS = 2            # Matrix products of one step.
_AHEAD = 4               # Batches that the input makes ahead. They must not count, so they are used before a turn.


def build(name: str, data: DataConfig, model: ModelConfig) -> Contender:
    """The contender of that name; FlagError for a name that there is not."""
    one = DeviceConfig()
    ways = {'one_device': one, 'two_towers': DeviceConfig(num_gpus=2),
            'split_branches': DeviceConfig(split_model='branches'),
            'split_stages': DeviceConfig(split_model='stages')}
    if name in ways:
        return training(data, model, OPTIMIZER, ways[name])
    makers = {'end_to_end': lambda: end_to_end(data, model, OPTIMIZER, one),
              'inference': lambda: inference(data, model, one),
              'input': lambda: input_alone(data),
              'matmul': lambda: matrix_product(model, one),
              'convolutions': lambda: convolutions(data, model, one)}
    if name not in makers:
        raise FlagError(f'--contender={name}: there is none')
    return makers[name]()


def synthetic_batch(data: DataConfig, batch_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Images float32 [batch_size, size, size, 3] in [-1, 1] and labels int32 [batch_size], always the same."""
    images = tf.random.stateless_uniform([batch_size, data.image_size, data.image_size, 3], [1, 2], -1.0, 1.0)
    labels = tf.random.stateless_uniform([batch_size], [3, 4], 1, NUM_OUTPUTS, tf.int32)
    return images, labels


def synthetic_dataset_for(data: DataConfig) -> DatasetFor:
    """A `dataset_for` whose every batch is the synthetic one, made once: input that costs nothing."""
    return lambda first, readers, size: tf.data.Dataset.from_tensors(synthetic_batch(data, size)).repeat()


def build_step(placement: Placement, data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig,
               operations: Operations = PLAIN, **step_options) -> TrainStep:
    """The training step of Inception v3 on synthetic input; step_options go to build_train_step."""
    def loss_for(batch, tower):
        return classification_loss(*batch, NUM_OUTPUTS, model, tower.branches, tower.stages, operations=operations)

    task = Task(synthetic_dataset_for(data), loss_for, NUM_EXAMPLES, data.batch_size, optimizer,
                scale_loss=model.compute_dtype == 'float16', operations=operations)
    return build_train_step(placement, task, **step_options)


def training(data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig, devices: DeviceConfig) -> Contender:
    """Training steps on synthetic input, on the devices of this machine that `devices` asks for."""
    machine = local_machine(devices)
    with tf.Graph().as_default() as graph:
        step = build_step(machine.placement, data, model, optimizer, operations_for(False, print))
        return _steps(step, graph, machine, data.batch_size)


def end_to_end(data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig, devices: DeviceConfig) -> Contender:
    """The same from the distorted images of records."""
    machine = local_machine(devices)
    with tf.Graph().as_default() as graph:
        step = build_train_step(machine.placement, image_task(data, model, optimizer, operations_for(False, print)))
        contender = _steps(step, graph, machine, data.batch_size)
    return contender._replace(prepare=lambda: contender.run(_AHEAD))


def inference(data: DataConfig, model: ModelConfig, devices: DeviceConfig) -> Contender:
    """Forward passes of the network of evaluation and export on synthetic input, with made-up weights inside."""
    chance = np.random.RandomState(7)

    def values(name: str, shape: Sequence[int]) -> np.ndarray:
        value = chance.standard_normal(shape).astype(np.float32)
        return value * np.sqrt(2 / np.prod(shape[:-1])) if name.endswith('weights') else abs(value) + 0.5

    machine = local_machine(devices)
    with tf.Graph().as_default() as graph:
        with tf.device(machine.placement.towers[0].device):
            images = v1.get_variable('images', initializer=synthetic_batch(data, data.batch_size)[0], trainable=False,
                                     use_resource=True)
            layers = FoldedLayers(False, tf.as_dtype(model.compute_dtype), model.width, values=values)
            logits = network(model.model).build(tf.ensure_shape(images.read_value(), images.shape), NUM_OUTPUTS, layers,
                                                model, aux_head=False).logits
        # As evaluation has it: the graph optimizer joins convolution, bias and ReLU, which training can do without.
        machine.session_config.graph_options.rewrite_options.disable_meta_optimizer = False
        session = _session(machine)
        flops = count_flops(graph)
    return Contender(_repeat(session, logits.op), _info('images', data.batch_size, flops))


def input_alone(data: DataConfig) -> Contender:
    """Distorted batches from records and nothing else."""
    source, operations = open_training_data(data), operations_for(False, print)
    return from_dataset(lambda: training_dataset(source.paths, source.num_examples, data=data, operations=operations),
                        data.batch_size)


def from_dataset(make: Callable[[], tf.data.Dataset], batch_size: int) -> Contender:
    """The batches of the dataset that make() builds in a new graph, taken as fast as they come."""
    with tf.Graph().as_default(), tf.device('/device:CPU:0'):
        iterator = v1.data.make_initializable_iterator(make())
        batch = tf.group(*iterator.get_next())
        session = v1.Session(config=v1.ConfigProto(device_count={'GPU': 0}))
        session.run(iterator.initializer)
    run = _repeat(session, batch)
    # Long turns: a batch more or less that lies ready at their beginning or end should not matter.
    return Contender(run, _info('images', batch_size) | {'least': 6 * _AHEAD}, prepare=lambda: run(2 * _AHEAD))


def matrix_product(model: ModelConfig, devices: DeviceConfig, side: int = MATRIX_SIDE) -> Contender:
    """Products of large square matrices in the compute dtype: what the device can do at best."""
    machine = local_machine(devices)
    dtype = tf.as_dtype(model.compute_dtype)
    with tf.Graph().as_default() as graph, tf.device(machine.placement.towers[0].device):
        one, other = _random([side, side], dtype), _random([side, side], dtype)
        done = _one_after_another([lambda: tf.matmul(one.read_value(), other.read_value())] * _PRODUCTS)
        session = _session(machine)
        return Contender(_repeat(session, done), _info('flops', count_flops(graph)))


def convolutions(data: DataConfig, model: ModelConfig, devices: DeviceConfig) -> Contender:
    """The network's own heaviest convolutions and their gradients, and nothing between them: what the
    device's convolutions can do at best in these shapes and this dtype."""
    machine = local_machine(devices)
    dtype = tf.as_dtype(model.compute_dtype)
    with tf.Graph().as_default() as whole:
        layers = Layers(True, dtype, model.width)
        network(model.model).build(synthetic_batch(data, data.batch_size)[0], NUM_OUTPUTS, layers, model)
        heaviest = heaviest_convolutions(whole, HEAVIEST)
    with tf.Graph().as_default() as graph, tf.device(machine.placement.towers[0].device):
        done = _one_after_another([part for conv in heaviest for part in _forward_and_backward(conv, dtype)])
        session = _session(machine)
        return Contender(_repeat(session, done), _info('flops', count_flops(graph)))


def _forward_and_backward(conv: Conv, dtype: tf.DType) -> list[Callable[[], tf.Tensor]]:
    images, kernel, result = (_random(shape, dtype) for shape in (conv.images, conv.kernel, conv.result))
    strides = [1, conv.stride, conv.stride, 1]
    return [
        lambda: tf.nn.conv2d(images.read_value(), kernel.read_value(), strides, conv.padding),
        lambda: v1.nn.conv2d_backprop_filter(images.read_value(), conv.kernel, result.read_value(), strides,
                                             conv.padding),
        lambda: v1.nn.conv2d_backprop_input(conv.images, kernel.read_value(), result.read_value(), strides,
                                            conv.padding)]


def _one_after_another(makers: Sequence[Callable[[], tf.Tensor]]) -> tf.Operation:
    """Each product by itself, on all cores of the device."""
    last: list[tf.Operation] = []
    for make in makers:
        with tf.control_dependencies(last):
            last = [make().op]
    return tf.group(*last)


def _random(shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    value = tf.cast(tf.random.stateless_uniform(shape, [5, 6], -1.0, 1.0), dtype)
    return tf.Variable(value, trainable=False)


def _steps(step: TrainStep, graph: tf.Graph, machine: Machine, batch_size: int) -> Contender:
    session = _session(machine)
    session.run(step.start_input)
    # With the loss, as the training loop has it, which looks at every one.
    return Contender(_repeat(session, (step.train_op, step.loss)),
                     _info('images', batch_size, count_flops(graph)))


def _session(machine: Machine) -> v1.Session:
    session = v1.Session(config=machine.session_config)
    session.run(v1.global_variables_initializer())
    return session


def _repeat(session: v1.Session, fetches) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            session.run(fetches)

    return run


def _info(unit: str, amount: int, flops: int = 0) -> dict:
    return {'unit': unit, 'amount': amount, **({'flops': flops} if flops else {})}
