"""model.json: what training writes, and how contradictions are refused."""

import json

import pytest

from inception_mg.config import DataConfig, ModelConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.run_dir import model_card

CARD = model_card.ModelCard(0.25, 107, ('daisy', 'rose'), 'bfloat16', '/records')


def test_it_reads_what_it_writes(tmp_path):
    model_card.write_card(str(tmp_path), CARD)
    assert model_card.read_card(str(tmp_path)) == CARD
    assert [path.name for path in tmp_path.iterdir()] == ['model.json']
    assert json.loads((tmp_path / 'model.json').read_text())['num_classes'] == 2
    assert CARD.labels == ('background', 'daisy', 'rose')
    assert model_card.read_card(str(tmp_path / 'nowhere')) is None


@pytest.mark.parametrize('text, words', [('{', 'is damaged'), ('{"format": 1}', 'width'), ('[]', 'is damaged'),
                                         ('{"format": 9}', 'has format 9')])
def test_a_file_that_cannot_be_understood_is_named(tmp_path, text, words):
    (tmp_path / 'model.json').write_text(text)
    with pytest.raises(UserError, match=f'model.json.*{words}'):
        model_card.read_card(str(tmp_path))


def test_settings_come_from_the_card():
    data, model = model_card.settle(CARD, 'run', DataConfig(), ModelConfig(compute_dtype='float16'), chosen=())
    assert (data.image_size, data.data_dir, model.width, model.compute_dtype) == (107, '/records', 0.25, 'float16')
    data, _ = model_card.settle(CARD, 'run', DataConfig(data_dir='/mine', image_size=107), ModelConfig(),
                                chosen=('image_size', 'data_dir'))
    assert data.data_dir == '/mine'
    settings = DataConfig(image_size=200), ModelConfig(width=0.5)
    assert model_card.settle(None, 'run', *settings) == settings


@pytest.mark.parametrize('data, model, words', [
    (DataConfig(image_size=299), ModelConfig(width=0.25), '--image_size=299, but the model in run has 107'),
    (DataConfig(image_size=107), ModelConfig(width=0.5), '--width=0.5, but the model in run has 0.25')])
def test_a_contradiction_names_both_values(data, model, words):
    with pytest.raises(FlagError, match=words):
        model_card.settle(CARD, 'run', data, model)


@pytest.mark.parametrize('classes, words', [
    (('daisy',), 'has 1 classes, the model in run has 2'), (('rose', 'daisy'), "calls class 1 'rose', .* 'daisy'")])
def test_other_classes_are_refused(classes, words):
    with pytest.raises(UserError, match=f'the data set in d {words}'):
        model_card.check_classes(CARD, 'run', classes, 'd')
    model_card.check_classes(CARD, 'run', CARD.classes, 'd')
    model_card.check_classes(None, 'run', classes, 'd')


def test_the_folder_of_a_checkpoint(tmp_path):
    assert model_card.folder_of(str(tmp_path)) == str(tmp_path)
    assert model_card.folder_of(str(tmp_path / 'model.ckpt-7')) == str(tmp_path)
    assert model_card.folder_of('model.ckpt-7') == '.'


def _trained(folder, classes=('daisy', 'rose')):
    (folder / 'model.ckpt-4.index').write_text('')
    model_card.write_card(str(folder), CARD)
    (folder / 'dataset.json').write_text(json.dumps({'format': 1, 'classes': list(classes), 'counts': {'train': 8},
                                                     'shards': {'train': 1}}))
    return str(folder)


def test_a_resumed_training_takes_its_settings_from_the_card(tmp_path):
    folder = _trained(tmp_path)
    data, model = model_card.settle_for_training(folder, DataConfig(data_dir=folder), ModelConfig(), chosen=())
    assert (data.image_size, model.width) == (107, 0.25)
    with pytest.raises(FlagError, match='--image_size=299, but the model in .* has 107'):
        model_card.settle_for_training(folder, DataConfig(data_dir=folder), ModelConfig(), chosen=('image_size',))


@pytest.mark.parametrize('classes', [('daisy', 'tulip'), ('rose', 'daisy'), ('daisy',)])
def test_a_resume_on_other_classes_is_refused_and_changes_nothing(tmp_path, classes):
    folder = _trained(tmp_path, classes)
    before = (tmp_path / 'model.json').read_bytes()
    with pytest.raises(UserError, match='with --fine_tune --pretrained_model_checkpoint_path='):
        model_card.settle_for_training(folder, DataConfig(data_dir=folder), ModelConfig(), chosen=())
    assert (tmp_path / 'model.json').read_bytes() == before


def test_a_training_without_a_checkpoint_starts_new(tmp_path):
    folder, settings = _trained(tmp_path, ('other',)), (DataConfig(image_size=200), ModelConfig())
    (tmp_path / 'model.ckpt-4.index').unlink()
    assert model_card.settle_for_training(folder, *settings) == settings
    assert model_card.settle_for_training('', *settings) == settings


@pytest.mark.parametrize('change', [{'classes': 'ab'}, {'classes': [1, 2]}, {'width': 'wide'}, {'width': None},
                                    {'image_size': 'Infinity'}, {'image_size': []}])
def test_wrong_types_are_told(tmp_path, change):
    model_card.write_card(str(tmp_path), CARD)
    fields = json.loads((tmp_path / 'model.json').read_text()) | change
    (tmp_path / 'model.json').write_text(json.dumps(fields))
    with pytest.raises(UserError, match='model.json is damaged'):
        model_card.read_card(str(tmp_path))
