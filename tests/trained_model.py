"""Small models for the tests of what comes after training: a trained one, and one made in a moment."""

import numpy as np
import tensorflow as tf

from inception_mg.config import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.data.dataset_info import read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import evaluation_dataset
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.run_dir import model_card
from inception_mg.training.image_task import image_task
from inception_mg.training.train import train_here
from inception_mg.weights.checkpoints import AVERAGE

v1 = tf.compat.v1
MODEL = ModelConfig(width=0.05, batch_norm_decay=0.5)
STEP = 6


def train(data_dir: str, train_dir: str, max_steps: int = STEP, say=lambda line: None, **run) -> str:
    """Trains a narrow network on small images for some steps."""
    task = image_task(DataConfig(data_dir=data_dir, batch_size=8, image_size=75, data_seed=1), MODEL,
                      OptimizerConfig(initial_learning_rate=0.05, moving_average_decay=0.9))
    return train_here(task, DeviceConfig(), RunConfig(train_dir=train_dir, max_steps=max_steps, **run), say)


def write_model(data_dir: str, train_dir: str) -> str:
    """Leaves in train_dir what a training would: model.json and a checkpoint, whose path prefix it returns.

    The averages are random weights with the statistics of the validation images; the raw weights are half of them.
    """
    info = read_dataset_info(data_dir)
    data, count = DataConfig(data_dir=data_dir, image_size=75), info.num_images('validation')
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        batches = v1.data.make_initializable_iterator(evaluation_dataset(
            shard_paths(data_dir, 'validation'), image_size=75, batch_size=count, num_preprocess_threads=1))
        layers = Layers(is_training=True, width=MODEL.width)
        with v1.variable_scope('', use_resource=True):
            inception_v3(tf.ensure_shape(batches.get_next()[0], [count, 75, 75, 3]), info.num_outputs, layers)
        session.run([batches.initializer, v1.global_variables_initializer()])
        values = dict(zip([v.op.name for v in v1.global_variables()], session.run(v1.global_variables()), strict=True))
        for statistic, value in zip(layers.statistics, session.run([s.value for s in layers.statistics]), strict=True):
            # Nearly constant channels would blow up the last bit of their input.
            small = value.mean() if statistic.variable.op.name.endswith('variance') else -np.inf
            values[statistic.variable.op.name] = np.maximum(value, small)
    halves = {name: value / 2 for name, value in values.items()}
    model_card.write_card(train_dir, model_card.make_card(data, MODEL, info.classes))
    return write_checkpoint(train_dir, {name + AVERAGE: value for name, value in values.items()} | halves)


def write_checkpoint(train_dir: str, values: dict[str, np.ndarray], step: int = STEP) -> str:
    """Saves values by name, and the step; returns the path prefix. Without a graph, which would take seconds."""
    path, values = f'{train_dir}/model.ckpt-{step}', {**values, 'global_step': np.int64(step)}
    tf.raw_ops.SaveV2(prefix=path, tensor_names=list(values), shape_and_slices=[''] * len(values),
                      tensors=[tf.constant(value) for value in values.values()])
    v1.train.update_checkpoint_state(train_dir, f'model.ckpt-{step}')
    return path
