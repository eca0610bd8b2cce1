"""The second network through the whole program: trained, resumed by its card, fine-tuned, evaluated and exported."""

import dataclasses
import json
import os

import pytest
import tensorflow as tf

from inception_mg.config import (
    DataConfig,
    DeviceConfig,
    EvalConfig,
    ExportConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from inception_mg.errors import FlagError, UserError
from inception_mg.evaluation.evaluate import evaluate
from inception_mg.run_dir.model_card import settle_for_training
from inception_mg.serving.export import export
from inception_mg.training.image_task import image_task, synthetic_task
from inception_mg.training.train import train_here

v1 = tf.compat.v1
MODEL = ModelConfig(model='resnet_v1_50', width=0.1, batch_norm_decay=0.5)
OPTIMIZER = OptimizerConfig(initial_learning_rate=0.01, moving_average_decay=0.5)


def train(data_dir: str, train_dir, model: ModelConfig = MODEL, **run) -> list[str]:
    """Trains and returns the lines it said."""
    lines: list[str] = []
    data = DataConfig(data_dir=data_dir, batch_size=4, image_size=64)
    train_here(image_task(data, model, OPTIMIZER), DeviceConfig(),
               RunConfig(train_dir=str(train_dir), log_every_steps=1, **run), lines.append)
    return lines


@pytest.fixture(scope='module')
def trained(three_classes, tmp_path_factory) -> str:
    """The train_dir of two steps of a narrow ResNet-50."""
    folder = str(tmp_path_factory.mktemp('resnet'))
    lines = train(three_classes, folder, max_steps=2)
    assert any(line.startswith('model      ResNet-50 v1.5, width 0.1, 64 x 64, float32') for line in lines)
    return folder


def test_its_card_names_the_network_and_nobody_takes_it_for_another(trained, three_classes):
    with open(os.path.join(trained, 'model.json'), encoding='utf-8') as file:
        assert json.load(file)['model'] == 'resnet_v1_50'
    data = DataConfig(data_dir=three_classes)
    settled = settle_for_training(trained, data, ModelConfig(), chosen=())
    assert (settled[0].image_size, settled[1].model, settled[1].width) == (64, 'resnet_v1_50', 0.1)
    with pytest.raises(FlagError, match='--model=inception_v3, but the model in .* has resnet_v1_50'):
        settle_for_training(trained, data, ModelConfig(), chosen=('model',))


def test_it_is_evaluated_and_exported_without_a_word_about_its_network(trained, tmp_path):
    lines: list[str] = []
    config = EvalConfig(checkpoint_dir=trained, eval_dir=str(tmp_path / 'eval'), run_once=True)
    assert evaluate(DataConfig(batch_size=4), ModelConfig(), config, lines.append, chosen=()).images == 9
    assert any('ResNet-50' in line for line in lines)
    folder = export(DataConfig(), ModelConfig(), ExportConfig(checkpoint_dir=trained, export_dir=str(tmp_path / 'm')),
                    lines.append, chosen=())
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ['serve'], folder).signature_def['images']
        assert [dim.size for dim in signature.inputs['images'].tensor_shape.dim] == [-1, 64, 64, 3]


def test_fine_tuning_takes_all_but_its_head_and_trains_what_it_is_told(trained, two_classes, tmp_path):
    model = dataclasses.replace(MODEL, freeze_below='block4/unit_1')
    lines = '\n'.join(train(two_classes, tmp_path, model, max_steps=1, fine_tune=True,
                            pretrained_model_checkpoint_path=trained))
    assert '265 of 267 variables from the moving averages' in lines and 'names of a training by this program' in lines
    assert 'begin anew: logits/logits/weights, logits/logits/biases' in lines
    before, after = (tf.train.load_checkpoint(path) for path in (trained, str(tmp_path)))
    for name, moves in (('block3/unit_1/conv2/weights', False), ('block4/unit_2/conv2/weights', True)):
        same = (before.get_tensor(f'{name}/ExponentialMovingAverage') == after.get_tensor(name)).all()
        assert same != moves, name


def test_weights_of_the_other_network_are_refused(trained, three_classes, tmp_path):
    inception = ModelConfig(width=0.05)
    data = DataConfig(data_dir=three_classes, batch_size=4, image_size=75)
    with pytest.raises(UserError, match='is of another model: it has block1/'):
        train_here(image_task(data, inception, OPTIMIZER), DeviceConfig(), RunConfig(
            train_dir=str(tmp_path), max_steps=1, fine_tune=True, pretrained_model_checkpoint_path=trained),
            lambda line: None)


def test_made_up_images_need_no_records():
    task = synthetic_task(4, 64, 10, MODEL)
    with tf.Graph().as_default():
        images, labels = task.dataset_for(0, 1, 4).element_spec
    assert images.shape.as_list() == [4, 64, 64, 3] and labels.dtype == tf.int32
    assert task.title == 'ResNet-50 v1.5, width 0.1, 10 classes, 64 x 64, float32'


def test_two_runs_with_one_seed_are_equal_and_one_that_was_interrupted_too(three_classes, tmp_path):
    """Initial weights, the images' order and distortions, and what a resumed run goes on with; to the bit."""
    data = DataConfig(data_dir=three_classes, batch_size=4, image_size=64, num_preprocess_threads=2)
    config = OptimizerConfig(optimizer='adam', initial_learning_rate=0.001, num_epochs=1, schedule='cosine')
    found = {}
    for name, stops in (('a', [9]), ('b', [2, 9])):
        for stop in stops:
            train_here(image_task(data, MODEL, config, seed=3), DeviceConfig(), RunConfig(
                train_dir=str(tmp_path / name), max_steps=stop), lambda line: None)
        reader = tf.train.load_checkpoint(str(tmp_path / name))
        found[name] = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    assert found['a']['global_step'] == 6  # The end of the epoch.
    assert all((found['a'][key] == found['b'][key]).all() for key in found['a'])
