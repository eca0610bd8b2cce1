"""Evaluation within a training: at its steps, of its own checkpoints, and what ends by it."""

import json
import os

import pytest

from inception_mg import checks
from inception_mg.config import DataConfig, DeviceConfig, EvalConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.errors import FlagError
from inception_mg.evaluation.evaluate import set_up
from inception_mg.evaluation.within import EvaluateHook
from inception_mg.training.image_task import image_task
from inception_mg.training.train import train_here

MODEL = ModelConfig(model='resnet_v1_50', width=0.1, batch_norm_decay=0.5)


@pytest.mark.parametrize('target, steps', [(0.0, [2, 4, 5]), (0.01, [2])])
def test_a_training_evaluates_itself_and_ends_when_it_is_good_enough(three_classes, tmp_path, target, steps):
    data = DataConfig(data_dir=three_classes, batch_size=4, image_size=64)
    run = RunConfig(train_dir=str(tmp_path), max_steps=300 if target else 5, eval_every_steps=2)
    evaluation = EvalConfig(checkpoint_dir=str(tmp_path), stop_at_precision=target)
    lines = []
    hook = EvaluateHook(run.train_dir, lambda: set_up(data, MODEL, evaluation), run.eval_every_steps, lines.append)
    train_here(image_task(data, MODEL, OptimizerConfig(initial_learning_rate=0.01, moving_average_decay=0.5), seed=1),
               DeviceConfig(), run, lines.append, [hook])
    found = [json.loads(line) for line in open(os.path.join(tmp_path, 'eval', 'results.jsonl'))]
    assert [one['step'] for one in found][:len(steps)] == steps and all(one['images'] == 9 for one in found)
    asked = [line for line in lines if '--stop_at_precision=0.01' in line]
    assert bool(asked) == (max(one['precision@1'] for one in found) >= target > 0)
    assert len([line for line in lines if line.startswith('eval_dir ')]) == 1
    saved = {int(name.split('-')[1].split('.')[0]) for name in os.listdir(tmp_path) if name.endswith('.index')}
    assert saved >= set(steps)
    assert os.path.isdir(tmp_path / 'eval' / 'best')
    if target:
        assert max(saved) < 300  # It did not get to the last step.


@pytest.mark.parametrize('run, evaluation, words', [
    (RunConfig(train_dir='t', eval_every_steps=5), EvalConfig(stop_at_precision=1.5), '--stop_at_precision=1.5'),
    (RunConfig(train_dir='t'), EvalConfig(stop_at_precision=0.5), '--stop_at_precision in a training needs')])
def test_what_cannot_be_is_refused(run, evaluation, words):
    with pytest.raises(FlagError, match=words):
        checks.check_within(run, evaluation, 'records')
    with pytest.raises(FlagError, match='made-up images'):
        checks.check_within(RunConfig(train_dir='t', eval_every_steps=5), EvalConfig(), 'synthetic:5')
