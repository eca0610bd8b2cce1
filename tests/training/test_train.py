"""Training on one machine: what it leaves behind, how it resumes, and how it refuses and stops."""

import dataclasses
import glob
import os

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.config import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.training.image_task import image_task
from inception_mg.training.train import train_here
from inception_mg.weights.checkpoints import AVERAGE

v1 = tf.compat.v1
MODEL = ModelConfig(width=0.05, batch_norm_decay=0.9)
OPTIMIZER = OptimizerConfig(initial_learning_rate=0.01, moving_average_decay=0.9)


def train(data_dir: str, train_dir, max_steps: int, optimizer=OPTIMIZER, model=MODEL, devices=None,
          batch_size: int = 4, **run) -> list[str]:
    """Trains and returns the lines it said."""
    lines: list[str] = []
    data = DataConfig(data_dir=data_dir, batch_size=batch_size, image_size=75)
    config = RunConfig(train_dir=str(train_dir), max_steps=max_steps, log_every_steps=1, **run)
    signal_name = train_here(image_task(data, model, optimizer), devices or DeviceConfig(), config, lines.append)
    assert signal_name == ''
    return lines


def values(checkpoint: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(checkpoint)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def scalars(train_dir) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list] = {}
    for path in glob.glob(os.path.join(train_dir, 'events*')):
        for event in v1.train.summary_iterator(path):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


@pytest.fixture(scope='module')
def trained(three_classes, tmp_path_factory):
    """A training of three steps on two towers: its directory and its lines."""
    train_dir = tmp_path_factory.mktemp('trained') / 'new' / 'train'
    return train_dir, train(three_classes, train_dir, 3, devices=DeviceConfig(num_gpus=2))


def test_the_first_screen(trained, three_classes):
    text = '\n'.join(trained[1])
    assert f'{three_classes}: 24 images of 3 classes in 2 shards' in text
    assert 'here 4 = 2 towers x 2; 6.0 steps per epoch' in text
    assert 'tower 1 on /device:CPU:1' in text and 'variables on /device:CPU:0' in text
    assert 'starts new' in text and str(trained[0]) in text
    assert 'no GPU on this machine: 2 CPU devices instead' in text


def test_status_lines(trained):
    lines = [line for line in trained[1] if line.startswith('step')]
    assert len(lines) == 3
    assert lines[-1].startswith('step 3/3  epoch   0.50  loss') and 'images/s  ETA 0s' in lines[-1]


def test_the_checkpoint_at_the_end(trained):
    assert tf.train.latest_checkpoint(str(trained[0])).endswith('model.ckpt-3')
    found = values(str(trained[0] / 'model.ckpt-3'))
    assert found['global_step'] == 3 and found['global_step'].dtype == np.int64
    weights = [name for name in found if name.endswith(('/weights', '/beta', '/biases'))]
    statistics = [name for name in found if name.endswith(('/moving_mean', '/moving_variance'))]
    assert len(weights) == 196 and len(statistics) == 192
    expected = {'global_step', *weights, *statistics, *[name + AVERAGE for name in weights + statistics],
                *[name + slot for name in weights for slot in ('/RMSProp', '/RMSProp_1')]}
    assert set(found) == expected
    assert all(np.isfinite(value).all() for value in found.values())


def test_the_summaries(trained):
    found = scalars(trained[0])
    assert [step for step, _ in found['loss']] == [1, 2, 3]
    assert found['learning_rate'][0][1] == pytest.approx(0.01)
    assert found['images_per_sec'][-1][1] > 0
    assert 'logits/logits/weights/gradient' in found and 'distorted_images/image/0' in found


def test_it_resumes_and_deletes_nothing_that_it_has_not_written(trained, three_classes):
    train_dir = trained[0]
    (train_dir / 'notes.txt').write_text('mine')
    before = set(os.listdir(train_dir))
    lines = train(three_classes, train_dir, 5, max_checkpoints_to_keep=2)
    assert any('resumes from model.ckpt-3 at step 3' in line for line in lines)
    steps = [line for line in lines if line.startswith('step')]
    assert steps[0].startswith('step 4/5') and steps[-1].startswith('step 5/5')
    starts = [event.step for path in sorted(glob.glob(f'{train_dir}/events*'))
              for event in v1.train.summary_iterator(path) if event.session_log.status == v1.SessionLog.START]
    assert sorted(starts) == [1, 4]  # By which TensorBoard drops what a life that was lost had written.
    assert before <= set(os.listdir(train_dir))
    assert tf.train.latest_checkpoint(str(train_dir)).endswith('model.ckpt-5')
    # The learning went on where it was: momentum and averages came along.
    third, fifth = values(str(train_dir / 'model.ckpt-3')), values(str(train_dir / 'model.ckpt-5'))
    name = 'logits/logits/weights'
    assert 0 < np.abs(third[name] - fifth[name]).max() < 0.1
    lines = train(three_classes, train_dir, 5)
    assert any('nothing to do' in line for line in lines)


def test_a_diverging_loss_ends_it_and_the_newest_checkpoint_is_finite(trained, three_classes):
    train_dir = trained[0]
    newest = tf.train.latest_checkpoint(str(train_dir))
    wild = dataclasses.replace(OPTIMIZER, initial_learning_rate=1e30)
    with pytest.raises(UserError, match=r'(loss is|not finite).* step \d+.*learning.rate') as error:
        train(three_classes, train_dir, 50, optimizer=wild, save_interval_secs=0.0)
    assert error.value.exit_code == 1 and '\n' not in str(error.value)
    assert all(np.isfinite(value).all() for value in values(tf.train.latest_checkpoint(str(train_dir))).values())
    assert v1.train.checkpoint_exists(newest)


def test_another_model_in_the_directory_is_named(trained, three_classes, two_classes):
    with pytest.raises(UserError, match=r'FC/weights.* shape \[\d+, 4\].*\[\d+, 3\]|logits.* shape \[\d+, 4\]'):
        train(two_classes, trained[0], 9)


def test_fine_tuning_takes_all_but_the_heads(trained, two_classes, tmp_path):
    source = str(trained[0] / 'model.ckpt-3')
    with pytest.raises(UserError, match=r'shape \[\d+, 4\], this model with \[\d+, 3\].*--fine_tune'):
        train(two_classes, tmp_path / 'refused', 1, pretrained_model_checkpoint_path=source)
    still = dataclasses.replace(OPTIMIZER, initial_learning_rate=0.0)
    frozen = dataclasses.replace(MODEL, batch_norm_decay=0.5)
    lines = train(two_classes, tmp_path / 'tuned', 1, still, frozen, fine_tune=True,
                  pretrained_model_checkpoint_path=source)
    assert any('without its two heads' in line for line in lines)
    before, after = values(source), values(str(tmp_path / 'tuned' / 'model.ckpt-1'))
    assert after['logits/logits/weights'].shape[1] == 3
    taken = [name for name in after if name.endswith(('/weights', '/beta')) and 'logits/logits' not in name
             and 'aux_logits/FC' not in name]
    assert len(taken) > 180
    for name in taken:
        np.testing.assert_allclose(after[name], before[name + AVERAGE], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(after[name + AVERAGE], before[name + AVERAGE], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize('devices', [DeviceConfig(num_gpus=2, split_model='branches'),
                                     DeviceConfig(num_gpus=4, split_model='stages')])
def test_split_models_train(three_classes, tmp_path, devices):
    lines = train(three_classes, tmp_path, 1, devices=devices)
    assert any(f'tower 0: {devices.split_model} over /device:CPU:0, /device:CPU:1' in line for line in lines)
    assert os.path.exists(tmp_path / 'model.ckpt-1.index')


def test_float16_trains_with_a_loss_scale(three_classes, tmp_path):
    train(three_classes, tmp_path, 2, model=dataclasses.replace(MODEL, compute_dtype='float16'))
    found = values(str(tmp_path / 'model.ckpt-2'))
    halved = 15 - np.log2(found['loss_scale'])  # It begins at 2^15; an update whose gradients overflow halves it.
    assert halved == int(halved) and 0 < halved < 15, halved  # That is too high here.
    # Those that overflowed are no steps, and begin the count of good ones anew; the last one was good.
    assert found['global_step'] == 2 and found['loss_scale_good_steps'] in (1, 2)
    assert all(np.isfinite(value).all() for value in found.values())


def test_a_batch_that_does_not_split_is_refused(three_classes, tmp_path):
    with pytest.raises(FlagError, match='--batch_size=4 cannot be split evenly over 3 towers'):
        train(three_classes, tmp_path, 1, devices=DeviceConfig(num_gpus=3))


def test_no_data(tmp_path):
    with pytest.raises(UserError, match='dataset.json is missing'):
        train(str(tmp_path / 'nope'), tmp_path / 'train', 1)
    with pytest.raises(FlagError, match='--data_dir is empty'):
        train('', tmp_path / 'train', 1)


def test_a_train_dir_that_cannot_be(three_classes, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='--train_dir=.*file'):
        train(three_classes, tmp_path / 'file' / 'train', 1)


def test_a_damaged_shard_is_named(three_classes, tmp_path):
    import shutil
    shutil.copytree(three_classes, tmp_path / 'records')
    shard = tmp_path / 'records' / 'train-00001-of-00002'
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(UserError, match='train-00001-of-00002: record'):
        train(str(tmp_path / 'records'), tmp_path / 'train', 20)
