"""Classify: the probabilities of evaluation for files of every kind, and a name for each that cannot be read."""

import json
import os
import pathlib

import classify as program
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from inception_mg.config import BuildConfig, ClassifyConfig
from inception_mg.data.dataset_builder import build_dataset
from inception_mg.data.dataset_info import shard_paths
from inception_mg.data.input_pipeline import evaluation_dataset
from inception_mg.errors import FlagError, UserError
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.serving import classify as classifying
from inception_mg.weights.checkpoints import Restorer

v1 = tf.compat.v1


@pytest.fixture(scope='module')
def photographs(tmp_path_factory) -> pathlib.Path:
    """Files as cameras and the web have them, each in a form of its own, below a folder `blue`."""
    folder = tmp_path_factory.mktemp('photographs') / 'images' / 'blue'
    (folder / 'more').mkdir(parents=True)
    pixels = np.random.RandomState(5).randint(0, 255, (60, 90, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(folder / 'a.jpg')
    image.save(folder / 'b_turned.jpg', exif=turned)
    image.convert('CMYK').save(folder / 'c_cmyk.jpg')
    image.convert('RGBA').save(folder / 'd.png')
    image.save(folder / 'more' / 'e.webp', lossless=True)
    image.convert('L').save(folder / 'more' / 'f.gif')
    return folder


def evaluated(photographs: pathlib.Path, small_model: str, folder: pathlib.Path) -> dict[str, np.ndarray]:
    """File name -> probabilities, by records of the files and the graph of evaluation."""
    build_dataset(BuildConfig(validation_directory=str(photographs.parent), output_directory=str(folder),
                              validation_shards=1, num_threads=1, allow_one_class=True))
    with tf.Graph().as_default(), v1.Session() as session:
        batches = v1.data.make_initializable_iterator(evaluation_dataset(
            shard_paths(str(folder), 'validation'), image_size=75, batch_size=20, num_preprocess_threads=1))
        images, _, names = batches.get_next()
        with v1.variable_scope('', use_resource=True):
            probabilities = inception_v3(images, 4, Layers(False, width=0.05)).end_points['predictions']
        session.run(batches.initializer)
        Restorer(v1.global_variables(), True, '').restore(session, f'{small_model}/model.ckpt-6')
        names_v, probabilities_v = session.run([names, probabilities])
    return {os.path.basename(name.decode()): row for name, row in zip(names_v, probabilities_v, strict=True)}


def test_every_kind_of_file_gets_the_probabilities_of_its_record(small_export, photographs, small_model, tmp_path):
    expected = evaluated(photographs, small_model, tmp_path)
    found = classifying.find_files([str(photographs)])
    outcomes = list(classifying.classify(small_export, found.paths, ClassifyConfig(top_k=9, batch_size=4)))
    assert len(outcomes) == len(expected) == 6 and not found.missing
    labels = ['background', 'blue', 'green', 'red']
    for outcome in outcomes:
        want = expected[os.path.basename(outcome.path)]
        assert [guess.probability for guess in outcome.best] == pytest.approx(sorted(want, reverse=True), abs=1e-5)
        assert {guess.name: guess.probability for guess in outcome.best} == pytest.approx(
            dict(zip(labels, want.tolist(), strict=True)), abs=1e-5)
    a, turned = outcomes[0].best, outcomes[1].best
    assert a != turned  # The EXIF orientation counts.


def test_files_folders_and_patterns(photographs, monkeypatch):
    monkeypatch.chdir(photographs)
    assert classifying.find_files(['a.jpg', './a.jpg', 'a.jpg']).paths == ['a.jpg', './a.jpg']
    assert classifying.find_files(['more', '*.jpg']).paths == ['more/e.webp', 'more/f.gif', 'a.jpg', 'b_turned.jpg',
                                                               'c_cmyk.jpg']
    assert classifying.find_files(['**/*.gif']).paths == ['more/f.gif']
    missing = classifying.find_files(['x.jpg', '*.tiff']).missing
    assert [(each.path, each.error) for each in missing] == [('x.jpg', 'no such file or folder'),
                                                             ('*.tiff', 'matches no file')]
    (photographs / '[1].jpg').write_bytes((photographs / 'a.jpg').read_bytes())
    assert classifying.find_files(['[1].jpg']).paths == ['[1].jpg']
    (photographs / '[1].jpg').unlink()


@pytest.fixture
def shell(monkeypatch):
    """Runs scripts/classify.py's main with flags; returns its exit code."""
    def run(*arguments: str, **values) -> int:
        settings = ClassifyConfig(**values)
        monkeypatch.setattr(program.common, 'from_flags', lambda config: settings)
        return program.main(list(arguments))
    return run


def test_the_program(small_export, photographs, shell, capfd, tmp_path):
    (tmp_path / 'notes.txt').write_text('no image')
    (tmp_path / 'empty.jpg').write_bytes(b'')
    assert shell(small_export, str(photographs / 'a.jpg'), str(photographs / 'more'), top_k=2) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert len(lines) == 3 and lines[0].startswith(f'{photographs}/a.jpg: ') and lines[0].count(',') == 1
    assert shell(small_export, str(tmp_path), str(photographs / 'a.jpg'), 'nowhere.png', json=True, batch_size=2) == 3
    out, err = capfd.readouterr()
    found = {os.path.basename(each['file']): each for each in map(json.loads, out.splitlines())}
    assert len(found) == 4 and len(found['a.jpg']['classes']) == 4
    assert found['a.jpg']['classes'][0]['probability'] >= found['a.jpg']['classes'][1]['probability']
    assert 'not an image' in found['notes.txt']['error'] and 'is empty' in found['empty.jpg']['error']
    for words in ('notes.txt: not an image', 'empty.jpg: the file is empty', 'nowhere.png: no such file',
                  '3 of 4 could not be read'):
        assert words in err
    with pytest.raises(FlagError, match='and then images'):
        shell(small_export)


def test_what_is_no_model_is_named(small_model, tmp_path):
    with pytest.raises(FlagError, match='nowhere is not there: the first argument'):
        list(classifying.classify(str(tmp_path / 'nowhere'), [], ClassifyConfig()))
    with pytest.raises(FlagError, match=f'{small_model} holds no saved_model.pb'):
        list(classifying.classify(small_model, [], ClassifyConfig()))
    (tmp_path / 'assets').mkdir()
    (tmp_path / 'assets' / 'labels.txt').write_text('background\nx\n')
    (tmp_path / 'saved_model.pb').write_bytes(b'\xff\xff')
    with pytest.raises(UserError, match='cannot load the model in'):
        list(classifying.classify(str(tmp_path), ['x.jpg'], ClassifyConfig()))


def test_an_animation_is_its_first_frame(small_export, tmp_path):
    frames = [Image.new('RGB', (80, 80), colour) for colour in ('red', 'blue')]
    frames[0].save(tmp_path / 'still.gif')
    frames[0].save(tmp_path / 'moving.gif', save_all=True, append_images=frames[1:])
    still, moving = classifying.classify(small_export, [str(tmp_path / 'still.gif'), str(tmp_path / 'moving.gif')],
                                         ClassifyConfig())
    assert still.best == moving.best
