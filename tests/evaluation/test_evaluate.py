"""Evaluation: averages, every image once, and clear words."""

import glob
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from trained_model import MODEL, write_checkpoint

from inception_mg.config import DataConfig, EvalConfig, ModelConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.evaluation import evaluate as evaluation
from inception_mg.weights.checkpoints import AVERAGE

v1 = tf.compat.v1


@pytest.fixture(scope='module')
def trained(small_model, tmp_path_factory) -> str:
    """A train_dir with one checkpoint at step 6 whose averages differ from its raw weights."""
    return str(shutil.copytree(small_model, tmp_path_factory.mktemp('trained') / 'train'))


def evaluate(data_dir: str, train_dir: str, batch_size: int = 4, model: ModelConfig = MODEL, **config):
    lines: list[str] = []
    scores = evaluation.evaluate(
        DataConfig(data_dir=data_dir, batch_size=batch_size, image_size=75), model,
        EvalConfig(checkpoint_dir=train_dir, run_once=True, **config), lines.append)
    return scores, lines


def test_every_image_once_whatever_the_batch(trained, three_classes, tmp_path):
    results = []
    for batch_size in (1, 4, 20):
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
    write_checkpoint(target, {name: value for name, value in values.items() if name != 'global_step'}, step=7)


def test_it_uses_the_averages_of_weights_and_statistics(trained, three_classes, tmp_path):
    """Raw values replaced by nonsense change nothing; averages replaced by nonsense do."""
    def spoil(raw: bool):
        return lambda values: {name: np.full_like(value, np.nan) if value.dtype == np.float32
                               and name.endswith(AVERAGE) != raw else value for name, value in values.items()}
    original = f'{trained}/model.ckpt-6'
    for folder, raw in (('raw', True), ('averages', False)):
        (tmp_path / folder).mkdir()
        rewrite(original, str(tmp_path / folder), spoil(raw))
    setup = evaluation.set_up(DataConfig(), ModelConfig(), EvalConfig(checkpoint_dir=trained), chosen=())
    with evaluation.Evaluation(setup) as averages:
        good = averages.score(original)
        again = averages.score(f'{tmp_path}/raw/model.ckpt-7')
        assert good.scores == again.scores and again.step == 7
        assert (good.confusion.matrix() == again.confusion.matrix()).all()
        assert averages.score(f'{tmp_path}/averages/model.ckpt-7').scores.first == 0
    assert evaluate(three_classes, str(tmp_path / 'raw'), use_averages=False)[0].first == 0


def test_without_averages_it_says_so_and_raw_weights_work(trained, three_classes, tmp_path):
    rewrite(f'{trained}/model.ckpt-6', str(tmp_path),
            lambda values: {name: value for name, value in values.items() if not name.endswith(AVERAGE)})
    with pytest.raises(UserError, match='no moving averages.*--nouse_averages'):
        evaluate(three_classes, str(tmp_path))
    assert evaluate(three_classes, str(tmp_path), use_averages=False)[0].images == 9


def test_other_classes_are_named(trained, two_classes):
    with pytest.raises(UserError, match=f'{two_classes} has 2 classes, the model in {trained} has 3'):
        evaluate(two_classes, trained)


def test_another_width_is_named(trained, three_classes):
    with pytest.raises(FlagError, match=r'--width=0.5, but the model in .* has 0.05'):
        evaluate(three_classes, trained, model=ModelConfig(width=0.5))


def test_without_a_card_the_checkpoint_itself_tells(trained, three_classes, two_classes, tmp_path):
    shutil.copytree(trained, tmp_path / 'copy', ignore=shutil.ignore_patterns('model.json', 'eval'))
    with pytest.raises(UserError, match=r'logits.*shape \[\d+, 4\].*\[\d+, 3\].*has 2 classes'):
        evaluate(two_classes, str(tmp_path / 'copy'))
    with pytest.raises(UserError, match=r'shape \[.*--width'):
        evaluate(three_classes, str(tmp_path / 'copy'), model=ModelConfig(width=0.5))


def test_settings_come_from_the_card_and_the_report_adds_up(trained, tmp_path):
    """Neither --width, --image_size nor --data_dir; the matrix holds the images that the scores count."""
    lines: list[str] = []
    config = EvalConfig(checkpoint_dir=trained, eval_dir=str(tmp_path), run_once=True, report_dir=str(tmp_path / 'r'))
    scores = evaluation.evaluate(DataConfig(batch_size=4), ModelConfig(), config, lines.append, chosen=())
    matrix = np.loadtxt(tmp_path / 'r' / 'confusion_matrix.csv', int, delimiter=',', skiprows=1, usecols=range(1, 5))
    assert matrix.sum(axis=1).tolist() == [3, 3, 3] and np.trace(matrix[:, 1:]) == scores.first
    assert json.loads((tmp_path / 'r' / 'report.json').read_text())['images'] == 9
    assert any(line.startswith('model      Inception v3, width 0.05, 75 x 75') for line in lines)


def test_where_nothing_can_be_written_the_result_stands(trained, three_classes, tmp_path):
    shutil.copytree(trained, tmp_path / 'copy', ignore=shutil.ignore_patterns('eval'))
    (tmp_path / 'copy' / 'eval').write_text('mine')
    scores, lines = evaluate(three_classes, str(tmp_path / 'copy'), report_dir=str(tmp_path / 'copy' / 'eval'))
    assert scores.images == json.loads(lines[-1])['images'] == json.loads(lines[-1])['images_declared'] == 9
    assert sum('the results are not kept: cannot write in' in line for line in lines) == 1
    assert sum('the report in --report_dir=' in line and 'is not kept' in line for line in lines) == 1
    assert (tmp_path / 'copy' / 'eval').read_text() == 'mine'
    with pytest.raises(UserError, match=f'--eval_dir={tmp_path}/copy/eval: File exists'):
        evaluate(three_classes, trained, eval_dir=str(tmp_path / 'copy' / 'eval'))


def test_records_that_are_fewer_than_dataset_json_counts_are_said(trained, three_classes, tmp_path):
    shutil.copytree(three_classes, tmp_path / 'records')
    info = json.loads((tmp_path / 'records' / 'dataset.json').read_text())
    info['counts']['validation'] += 3
    (tmp_path / 'records' / 'dataset.json').write_text(json.dumps(info))
    scores, lines = evaluate(str(tmp_path / 'records'), trained, eval_dir=str(tmp_path))
    result = json.loads(lines[-1])
    assert scores.images == result['images'] == 9 and result['images_declared'] == 12
    assert sum('3 of the 12 images are missing: dataset.json counts more' in line for line in lines) == 1


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
