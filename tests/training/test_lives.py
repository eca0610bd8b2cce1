"""Checkpoints over the lives of a training: they do not fill the disk, and others' are never deleted."""

import os
import pathlib
import shutil

import tensorflow as tf
import toy_model

from inception_mg.config import DeviceConfig, OptimizerConfig, RunConfig
from inception_mg.evaluation.watch import checkpoints_in
from inception_mg.training.start import ResumingSaver, build_saver
from inception_mg.training.task import Task
from inception_mg.training.train import train_here
from inception_mg.weights.checkpoints import newest_checkpoint

v1 = tf.compat.v1


def steps_in(folder: pathlib.Path) -> list[int]:
    values = sorted(int(path.name.split('.')[1].split('-')[1]) for path in folder.glob('model.ckpt-*.data*'))
    assert values == sorted(int(path.stem.split('-')[1]) for path in folder.glob('model.ckpt-*.index'))
    return values


def test_a_restart_loop_keeps_as_many_checkpoints_as_one_life(tmp_path):
    """Ten lives, each with two saves or more; with a stranger's checkpoint beside, and the best one kept elsewhere."""
    task = Task(toy_model.dataset_for(8), toy_model.toy_loss, 8, 8, OptimizerConfig(moving_average_decay=0.9))
    for life in range(1, 11):
        lines: list[str] = []
        run = RunConfig(train_dir=str(tmp_path), max_steps=2 * life, save_interval_secs=0.0)
        train_here(task, DeviceConfig(), run, lines.append)
        assert life == 1 or any(f'resumes from model.ckpt-{2 * life - 2} ' in line for line in lines)
        if life == 1:  # Those of a training that knew no list are another job's.
            (tmp_path / 'checkpoints.json').unlink()
        if life == 5:
            best = tmp_path / 'eval' / 'best'
            best.mkdir(parents=True)
            for path in tmp_path.glob('model.ckpt-10.*'):
                os.link(path, best / path.name)
            for path in tmp_path.glob('model.ckpt-9.*'):
                shutil.copyfile(path, tmp_path / path.name.replace('-9.', '-77.'))
    assert steps_in(tmp_path) == [1, 2, 16, 17, 18, 19, 20, 77] and steps_in(best) == [10]
    assert [os.path.basename(path) for path in checkpoints_in(str(tmp_path))] == [
        f'model.ckpt-{step}' for step in range(16, 21)]  # For an evaluator beside it.
    assert newest_checkpoint(str(tmp_path), lambda line: None).endswith('model.ckpt-20')


def test_a_folder_whose_name_is_a_pattern_and_a_checkpoint_that_does_not_fit_quite(tmp_path):
    """With the pattern's other folder beside it, which TensorFlow would prune too."""
    mine, other = tmp_path / 'run[1]', tmp_path / 'run1'
    for folder, most in ((other, 0), (mine, 2), (mine, 2)):
        folder.mkdir(exist_ok=True)
        with tf.Graph().as_default(), v1.Session() as session:
            step = v1.get_variable('global_step', [], tf.int64, use_resource=True)
            run = RunConfig(train_dir=str(folder), max_checkpoints_to_keep=most)
            saver, first = build_saver(run), 1
            if newest := newest_checkpoint(str(folder)):  # The second life restores by a saver of its own.
                saver, first = ResumingSaver([step], run, newest), 5
                saver.restore(session, newest)
                assert session.run(step) == 4
            for number in range(first, first + 4):
                session.run(step.assign(number))
                assert saver.save(session, f'{folder}/model.ckpt', number, write_meta_graph=False) == (
                    f'{folder}/model.ckpt-{number}')
    assert steps_in(other) == [1, 2, 3, 4] and steps_in(mine) == [7, 8]
    assert [os.path.basename(path) for path in checkpoints_in(str(other))] == [
        f'model.ckpt-{step}' for step in range(1, 5)]


def test_a_folder_can_be_named_from_elsewhere_and_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir('run')
    for number in (1, 2):
        with tf.Graph().as_default(), v1.Session() as session:
            step = v1.get_variable('global_step', [], tf.int64, use_resource=True)
            saver = build_saver(RunConfig(train_dir='run', max_checkpoints_to_keep=1))
            session.run(step.assign(number))
            saver.save(session, 'run/model.ckpt', number, write_meta_graph=False)
    shutil.move('run', 'moved')
    assert tf.train.latest_checkpoint('moved') == 'moved/model.ckpt-2' and steps_in(tmp_path / 'moved') == [2]
