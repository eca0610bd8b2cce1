"""The task of the programs: a network of model/ on the records of an image data set."""

import dataclasses
import zlib
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import DataConfig, ModelConfig, OptimizerConfig
from inception_mg.data.damage import explain_input_error
from inception_mg.data.dataset_info import DatasetInfo, read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import training_dataset
from inception_mg.errors import FlagError
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.losses import classification_loss
from inception_mg.model.networks import network
from inception_mg.model.tower_loss import TowerLoss
from inception_mg.paths import made_up_classes
from inception_mg.placement import Tower
from inception_mg.run_dir import model_card
from inception_mg.training.devices import bfloat16_hint
from inception_mg.training.task import DatasetFor, Task

MADE_UP_HINT = ('made-up images are for trying devices, wires and restarts: the weights will be worth nothing, and '
                'no time goes into reading')


class TrainingData(NamedTuple):
    """What training reads: the data set's classes and counts, and the paths of its shards; [] of made-up images.

    summary: where it is and what it holds, on the screen.
    """

    info: DatasetInfo
    paths: list[str]
    num_examples: int
    summary: str


def open_training_data(data: DataConfig) -> TrainingData:
    """Finds the training shards and their description; UserError when either is missing."""
    if not data.data_dir:
        raise FlagError('--data_dir is empty: name the folder with the shards and dataset.json')
    info = read_dataset_info(data.data_dir)
    if made_up_classes(data.data_dir):
        said = f'{data.data_dir}: made-up images of {len(info.classes)} classes from memory, no records'
        return TrainingData(info, [], info.num_images('train'), said)
    paths, count = shard_paths(data.data_dir, info.stem('train')), info.num_images('train')
    said = f'{data.data_dir}: {count} images of {len(info.classes)} classes in {len(paths)} shards'
    return TrainingData(info, paths, count, said)


def made_up_batches(batch_size: int, image_size: int, num_classes: int, part: int = 0) -> tf.data.Dataset:
    """One batch of made-up images, of as many classes as it has room for, again and again: nothing is read, decoded or
    distorted. part: which; each has images of its own."""
    images = tf.random.stateless_uniform([batch_size, image_size, image_size, 3], [1, 2 + part], -1.0, 1.0)
    labels = tf.range(part * batch_size, (part + 1) * batch_size) % num_classes + 1
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def synthetic_task(images_per_step: int, image_size: int, num_classes: int, model: ModelConfig,
                   operations: Operations = PLAIN) -> Task:
    """The training of `model` on made-up images, the same in every step; nothing is read."""
    def dataset_for(part: int, parts: int, batch_size: int) -> tf.data.Dataset:
        return made_up_batches(batch_size, image_size, num_classes, part)

    def loss_for(batch: tuple[tf.Tensor, tf.Tensor], tower: Tower) -> TowerLoss:
        return classification_loss(*batch, num_classes + 1, model, tower.branches, tower.stages,
                                   operations=operations)

    return Task(dataset_for, loss_for, 1000, images_per_step, scale_loss=model.compute_dtype == 'float16',
                operations=operations,
                title=f'{network(model.model).title}, width {model.width:g}, {num_classes} classes, '
                      f'{image_size} x {image_size}, {model.compute_dtype}')


def image_task(data: DataConfig, model: ModelConfig, optimizer: OptimizerConfig, operations: Operations = PLAIN,
               seed: int = 0) -> Task:
    """The training of `model` on the records in data.data_dir; UserError when they are not there.

    On images of the right size that are made up, where it is synthetic:1000 (classes). seed: see Task; also that of the
    images where data has none.
    """
    data = dataclasses.replace(data, data_seed=data.data_seed or seed)
    source = open_training_data(data)
    classes, net = source.info.classes, network(model.model)

    def dataset_from(batches_done: tf.Tensor | int) -> DatasetFor:
        def dataset_for(part: int, parts: int, batch_size: int) -> tf.data.Dataset:
            if not source.paths:
                return made_up_batches(batch_size, data.image_size, len(classes), part)
            return training_dataset(
                source.paths, source.num_examples, data=data, batch_size=batch_size, first_shard=part, num_shards=parts,
                num_classes=len(classes), counts=source.info.records_of('train', len(source.paths)),
                batches_done=batches_done, keys=source.info.records, operations=operations)
        return dataset_for

    def loss_for(batch: tuple[tf.Tensor, tf.Tensor], tower: Tower) -> TowerLoss:
        return classification_loss(*batch, source.info.num_outputs, model, tower.branches, tower.stages,
                                   operations=operations)

    hints = [bfloat16_hint(model.compute_dtype), '' if source.paths else MADE_UP_HINT]
    card = model_card.make_card(data, model, classes)
    return Task(
        dataset_from(0), loss_for, source.num_examples, data.batch_size, optimizer, operations=operations,
        dataset_from=dataset_from, seed=seed,
        frozen=net.scopes_below(model.freeze_below), scale_loss=model.compute_dtype == 'float16',
        title=f'{net.title}, width {model.width:g}, {data.image_size} x {data.image_size}, {model.compute_dtype}',
        source=source.summary, notes=tuple(filter(None, hints)),
        settings={'--image_size': data.image_size, **{f'--{name}': value for name, value in vars(model).items()},
                  'the training set in --data_dir': f'{source.num_examples} images of {len(classes)} classes '
                                                    f'(names {zlib.crc32("/".join(classes).encode()):08x})'},
        files={model_card.CARD_FILE: model_card.card_text(card)},
        explain=lambda error: explain_input_error(error, source.paths, source.info.records) if source.paths else None)
