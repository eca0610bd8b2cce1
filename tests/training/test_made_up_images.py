"""--data_dir=synthetic:3: training, resuming and exporting without any data; a line where that makes no sense."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf
from conftest import ROOT

from inception_mg import checks
from inception_mg.config import (
    DataConfig,
    DeviceConfig,
    EvalConfig,
    ExportConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from inception_mg.data.dataset_info import read_dataset_info, shard_paths
from inception_mg.errors import EXIT_FLAGS, FlagError, UserError
from inception_mg.evaluation.evaluate import evaluate
from inception_mg.paths import made_up_classes, settle
from inception_mg.run_dir.model_card import read_card, settle_for_training
from inception_mg.serving.export import export
from inception_mg.training.image_task import image_task, made_up_batches
from inception_mg.training.train import train_here

v1 = tf.compat.v1
DATA = DataConfig(data_dir='synthetic:3', batch_size=4, image_size=64)
MODEL = ModelConfig(model='resnet_v1_50', width=0.1, batch_norm_decay=0.5)


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> tuple[str, list[str]]:
    """The train_dir of two steps, and the lines that were said."""
    lines: list[str] = []
    folder = str(tmp_path_factory.mktemp('made_up'))
    task = image_task(DATA, MODEL, OptimizerConfig(initial_learning_rate=0.01, moving_average_decay=0.5))
    train_here(task, DeviceConfig(), RunConfig(train_dir=folder, log_every_steps=1, max_steps=2), lines.append)
    return folder, lines


def test_the_start_lines_say_that_the_images_are_made_up(trained):
    text = '\n'.join(trained[1])
    assert 'synthetic:3: made-up images of 3 classes from memory, no records' in text
    assert 'the weights will be worth nothing' in text and '2/2  epoch   0.00  loss' in text


def test_its_card_names_no_folder_and_a_training_resumes_by_it(trained):
    folder, _ = trained
    card = read_card(folder)
    assert card.data_dir == 'synthetic:3' and card.labels == ('background', 'class 1', 'class 2', 'class 3')
    assert settle_for_training(folder, DATA, MODEL, chosen=())[0].image_size == 64
    with pytest.raises(UserError, match='data set in synthetic:4 has 4 classes, the model in .* has 3'):
        settle_for_training(folder, dataclasses.replace(DATA, data_dir='synthetic:4'), MODEL, chosen=())


def test_it_is_exported_and_not_evaluated(trained, tmp_path):
    folder, _ = trained
    export(DataConfig(), ModelConfig(), ExportConfig(checkpoint_dir=folder, export_dir=str(tmp_path / 'model')),
           lambda line: None, chosen=())
    assert read_card(str(tmp_path / 'model')).labels == read_card(folder).labels
    config = EvalConfig(checkpoint_dir=folder, eval_dir=str(tmp_path / 'eval'), run_once=True)
    with pytest.raises(FlagError, match='--data_dir=synthetic:3 is images made up while training: here name a folder'):
        evaluate(DataConfig(), ModelConfig(), config, chosen=())


def test_each_reader_has_images_of_its_own_and_labels_of_all_classes():
    with tf.Graph().as_default(), v1.Session() as session:
        iterators = [v1.data.make_initializable_iterator(made_up_batches(4, 8, 3, part)) for part in (0, 1)]
        session.run([iterator.initializer for iterator in iterators])
        batches = [iterator.get_next() for iterator in iterators]
        (images, labels), (others, _) = session.run(batches)
        (again, _), _ = session.run(batches)
    assert images.shape == (4, 8, 8, 3) and -1 <= images.min() < -0.5 < 0.5 < images.max() < 1
    assert labels.tolist() == [1, 2, 3, 1] and labels.dtype == 'int32'
    assert (images == again).all() and (images != others).any()


@pytest.mark.parametrize('text', ['synthetic:', 'synthetic:0', 'synthetic:x', 'synthetic:-1', 'synthetic:1000000',
                                  'synthetic:1.5'])
def test_no_number_of_classes_is_refused_before_anything_is_loaded(text):
    with pytest.raises(FlagError, match=f'--data_dir={text}: write synthetic:1000 for made-up images'):
        checks.check_data(DataConfig(data_dir=text))


def test_what_is_a_folder_stays_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir('synthetic:3')
    names = ('records', './synthetic:3', 'synthetic', 'synthetic:12')
    assert [made_up_classes(name) for name in names] == [0, 0, 0, 12]
    assert settle('--data_dir', 'synthetic:12', 'records') == 'synthetic:12'
    with pytest.raises(UserError, match='dataset.json is missing'):
        read_dataset_info('./synthetic:3')
    with pytest.raises(FlagError, match='here name a folder with train shards'):
        shard_paths('synthetic:3', 'train')


def test_an_evaluator_of_a_cluster_without_data_has_nothing_to_do(tmp_path):
    """It must not fail: a job manager would take that for the end of the job."""
    config = {'cluster': {'ps': ['a:1'], 'chief': ['b:1']}, 'task': {'type': 'evaluator', 'index': 0}}
    command = [sys.executable, str(ROOT / 'scripts' / 'train_distributed.py'), '--data_dir=synthetic:3',
               f'--train_dir={tmp_path}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          env={**os.environ, 'TF_CONFIG': json.dumps(config)})
    assert done.returncode == 0 and done.stdout == (
        '--data_dir=synthetic:3: of made-up images there is nothing to evaluate\n'), done.stderr
    done = subprocess.run([sys.executable, str(ROOT / 'scripts' / 'train.py'), '--data_dir=synthetic:x'],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == EXIT_FLAGS and done.stderr.startswith('train.py: --data_dir=synthetic:x: write synthetic')
