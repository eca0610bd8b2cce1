"""Evaluation: averages, every image once, and clear words."""

import glob
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from inception_mg import evaluate as evaluation
from inception_mg.config import DataConfig, DeviceConfig, EvalConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.errors import UserError
from inception_mg.model.checkpoints import AVERAGE
from inception_mg.training.train import train_here

v1 = tf.compat.v1
MODEL = ModelConfig(width=0.05, batch_norm_decay=0.5)


@pytest.fixture(scope='module')
def trained(three_classes, tmp_path_factory) -> str:
    """A train_dir with one checkpoint at step 6 whose averages differ from its raw weights."""
    train_dir = str(tmp_path_factory.mktemp('trained'))
    train_here(DataConfig(data_dir=three_classes, batch_size=8, image_size=75), MODEL,
               OptimizerConfig(initial_learning_rate=0.05, moving_average_decay=0.9), DeviceConfig(),
               RunConfig(train_dir=train_dir, max_steps=6), lambda line: None)
    return train_dir


def evaluate(data_dir: str, train_dir: str, batch_size: int = 4, model: ModelConfig = MODEL, **config):
    lines: list[str] = []
    scores = evaluation.evaluate(
        DataConfig(data_dir=data_dir, batch_size=batch_size, image_size=75), model,
        EvalConfig(checkpoint_dir=train_dir, run_once=True, **config), lines.append)
    return scores, lines


def test_every_image_once_whatever_the_batch(trained, three_classes, tmp_path):
    results = []
    for batch_size in (1, 4, 9, 20):
        scores, lines = evaluate(three_classes, trained, batch_size, eval_dir=str(tmp_path))
        assert scores.images == 9 and scores.first <= scores.within_k <= 9
        results.append(scores)
    assert len(set(results)) == 1
    assert results[0].precision_at_1 * 9 == pytest.approx(results[0].first)


def test_lines_json_and_summaries(trained, three_classes, tmp_path):
    scores, lines = evaluate(three_classes, trained, eval_dir=str(tmp_path / 'eval'))
    assert any('recall@2 instead of recall@5' in line and '3 classes' in line for line in lines)
    result = json.loads(lines[-1])
    assert result['images'] == 9 and result['step'] == 6 and result['averages']
    assert result['precision@1'] == pytest.approx(scores.precision_at_1, abs=1e-6)
    assert json.loads((tmp_path / 'eval' / 'results.jsonl').read_text().splitlines()[-1]) == result
    found = {}
    for path in glob.glob(str(tmp_path / 'eval' / 'events*')):
        for event in v1.train.summary_iterator(path):
            found.update({value.tag: (event.step, value.simple_value) for value in event.summary.value})
    assert found['precision@1'][0] == 6 and found['precision@1'][1] == pytest.approx(scores.precision_at_1, rel=1e-5)
    assert 'recall@2' in found


def rewrite(source: str, target: str, change) -> None:
    """Saves a copy of a checkpoint's values after `change(values)`, as model.ckpt-7 in `target`."""
    reader = tf.train.load_checkpoint(source)
    values = change({name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
    with tf.Graph().as_default():
        variables = {name: v1.get_variable(name.replace('/', '.'), initializer=value, use_resource=True)
                     for name, value in values.items()}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            v1.train.Saver(variables).save(session, f'{target}/model.ckpt', 7, write_meta_graph=False)


def test_it_uses_the_averages_of_weights_and_statistics(trained, three_classes, tmp_path):
    """Raw values replaced by nonsense change nothing; averages replaced by nonsense do."""
    def spoil(raw: bool):
        return lambda values: {name: np.full_like(value, np.nan) if value.dtype == np.float32
                               and name.endswith(AVERAGE) != raw else value for name, value in values.items()}
    rewrite(f'{trained}/model.ckpt-6', str(tmp_path), spoil(raw=True))
    good, _ = evaluate(three_classes, trained)
    assert evaluate(three_classes, str(tmp_path))[0] == good
    assert evaluate(three_classes, str(tmp_path), use_averages=False)[0].first == 0
    (tmp_path / 'other').mkdir()
    rewrite(f'{trained}/model.ckpt-6', str(tmp_path / 'other'), spoil(raw=False))
    assert evaluate(three_classes, str(tmp_path / 'other'))[0].first == 0


def test_without_averages_it_says_so_and_raw_weights_work(trained, three_classes, tmp_path):
    rewrite(f'{trained}/model.ckpt-6', str(tmp_path),
            lambda values: {name: value for name, value in values.items() if not name.endswith(AVERAGE)})
    with pytest.raises(UserError, match='no moving averages.*--nouse_averages'):
        evaluate(three_classes, str(tmp_path))
    assert evaluate(three_classes, str(tmp_path), use_averages=False)[0].images == 9


def test_other_classes_are_named(trained, two_classes):
    with pytest.raises(UserError, match=r'logits.*shape \[\d+, 4\].*\[\d+, 3\].*has 2 classes'):
        evaluate(two_classes, trained)


def test_another_width_is_named(trained, three_classes):
    with pytest.raises(UserError, match=r'shape \[.*--width'):
        evaluate(three_classes, trained, model=ModelConfig(width=0.5))


def test_no_checkpoint(three_classes, tmp_path):
    with pytest.raises(UserError, match=f'--checkpoint_dir={tmp_path}: no checkpoint'):
        evaluate(three_classes, str(tmp_path))


def test_a_missing_file_of_the_newest_checkpoint(trained, three_classes, tmp_path):
    shutil.copytree(trained, tmp_path / 'copy')
    (tmp_path / 'copy' / 'model.ckpt-6.data-00000-of-00001').write_bytes(b'short')
    with pytest.raises(UserError, match='model.ckpt-6'):
        evaluate(three_classes, str(tmp_path / 'copy'))


def test_a_folder_that_was_moved_still_evaluates(trained, three_classes, tmp_path):
    shutil.copytree(trained, tmp_path / 'moved')
    state = tmp_path / 'moved' / 'checkpoint'
    state.write_text(state.read_text().replace('"model', '"/nowhere/model'))
    assert '/nowhere' in state.read_text()
    assert evaluate(three_classes, str(tmp_path / 'moved'))[0].images == 9


def test_some_examples_only(trained, three_classes):
    assert evaluate(three_classes, trained, num_examples=5)[0].images == 5
    assert evaluate(three_classes, trained, subset='train')[0].images == 24
