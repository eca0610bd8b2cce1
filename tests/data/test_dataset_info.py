"""dataset.json, and which files are a whole set of shards."""

import subprocess
import sys

import pytest
from conftest import ROOT

from inception_mg.data import dataset_info
from inception_mg.errors import UserError

_INFO = dataset_info.DatasetInfo(('daisy', 'Käfer, "rot"'), {'train': 7}, {'train': 2})


def _touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(b'')


def test_written_and_read(tmp_path):
    dataset_info.write_dataset_info(str(tmp_path), _INFO)
    assert dataset_info.read_dataset_info(str(tmp_path)) == _INFO
    assert [path.name for path in tmp_path.iterdir()] == ['dataset.json']


def test_label_zero_is_the_background():
    assert _INFO.num_outputs == 3
    assert [_INFO.class_name(label) for label in range(3)] == ['background', 'daisy', 'Käfer, "rot"']
    for label in (-1, 3):
        with pytest.raises(IndexError):
            _INFO.class_name(label)


def test_a_subset_that_is_not_there():
    assert _INFO.num_images('train') == 7
    with pytest.raises(UserError, match='no validation images, only: train'):
        _INFO.num_images('validation')


def test_no_dataset_json_says_what_is_there_and_what_to_run(tmp_path):
    with pytest.raises(UserError, match='is empty'):
        dataset_info.read_dataset_info(str(tmp_path))
    _touch(tmp_path, 'train-00000-of-00001')
    with pytest.raises(UserError, match=r'dataset.json.*train-00000-of-00001.*build_image_data.*--describe'):
        dataset_info.read_dataset_info(str(tmp_path))
    with pytest.raises(UserError, match='/nope is not there'):
        dataset_info.read_dataset_info('/nope')


def test_records_of_each_shard():
    assert list(_INFO.records_of('train', 2)) == [4, 3]  # Dealt in turn.
    uneven = dataset_info.DatasetInfo(('daisy',), {'train': 7}, {'train': 2}, shard_records={'train': (1, 6)})
    assert list(uneven.records_of('train', 2)) == [1, 6] and list(uneven.records_of('train', 3)) == [3, 2, 2]


@pytest.mark.parametrize('text', [
    '', '[]', '{"classes": ["a"]}', '{"classes": 3, "counts": {}, "shards": {}}',
    *('{"classes": ["a"], "counts": {"train": 3}, "shards": {"train": 2}, "shard_records": {"train": ' + numbers + '}}'
      for numbers in ('[1, 1]', '[3]', '[4, -1]', '3', '["1", 2]'))])
def test_a_damaged_dataset_json(tmp_path, text):
    (tmp_path / 'dataset.json').write_text(text)
    with pytest.raises(UserError, match='is damaged.*--describe'):
        dataset_info.read_dataset_info(str(tmp_path))


def test_whole_set_is_found_sorted(tmp_path):
    names = [f'train-0000{shard}-of-00003' for shard in range(3)]
    _touch(tmp_path, *reversed(names), 'validation-00000-of-00001', 'train-00000-of-00003.tmp',
           'my-train-00000-of-00009')
    assert dataset_info.shard_paths(str(tmp_path), 'train') == [str(tmp_path / name) for name in names]


def test_no_shard_names_the_pattern_and_what_was_found(tmp_path):
    with pytest.raises(UserError, match=r'/nope/train-\?{5}-of-\?{5} \(/nope is not there\)'):
        dataset_info.shard_paths('/nope', 'train')
    with pytest.raises(UserError, match='is empty'):
        dataset_info.shard_paths(str(tmp_path), 'train')
    _touch(tmp_path, *(f'{letter}.jpg' for letter in 'abcdefgh'))
    with pytest.raises(UserError, match='holds a.jpg, b.jpg, c.jpg, d.jpg, e.jpg and 3 more'):
        dataset_info.shard_paths(str(tmp_path), 'train')
    with pytest.raises(UserError, match='is not a folder'):
        dataset_info.shard_paths(str(tmp_path / 'a.jpg'), 'train')


@pytest.mark.parametrize('names, message', [
    (['train-00000-of-00003', 'train-00002-of-00003'], '1 of 3 shards missing: train-00001-of-00003'),
    (['train-00000-of-00001', 'train-00000-of-00002', 'train-00001-of-00002'], 'mixed.*of 1, 2'),
    (['train-00000-of-00001', 'train-00001-of-00001'], 'beyond the last: train-00001-of-00001'),
])
def test_a_set_that_is_not_whole(tmp_path, names, message):
    _touch(tmp_path, *names)
    with pytest.raises(UserError, match=message):
        dataset_info.shard_paths(str(tmp_path), 'train')


@pytest.mark.parametrize('module', ['dataset_info', 'images', 'class_folders'])
def test_imports_no_tensorflow(module):
    code = f'import sys, inception_mg.data.{module}; sys.exit("tensorflow" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT, timeout=60).returncode == 0
