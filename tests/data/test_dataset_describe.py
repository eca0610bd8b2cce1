"""dataset.json for records that another program wrote."""

import pytest
import tensorflow as tf

from inception_mg.data import dataset_describe, dataset_info
from inception_mg.data.example import build_example
from inception_mg.errors import UserError


def _write(path, *labelled):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label, text in labelled:
            writer.write(build_example(
                b'jpeg', 2, 3, label, text, 'a.jpg', synset='n1', boxes=[(0, 0, 1, 1)]))


def test_records_of_1000_classes(tmp_path):
    _write(tmp_path / 'train-00000-of-00002', *((label, f'name {label}') for label in range(1, 700)))
    _write(tmp_path / 'train-00001-of-00002', (1000, 'toilet tissue, toilet paper'), (1, 'name 1'))
    _write(tmp_path / 'validation-00000-of-00001', (700, 'crane'), (701, 'crane'))
    info = dataset_describe.describe_dataset(str(tmp_path))
    assert info == dataset_info.read_dataset_info(str(tmp_path))
    assert (info.counts, info.shards) == ({'train': 701, 'validation': 2}, {'train': 2, 'validation': 1})
    assert info.num_outputs == 1001
    assert [info.class_name(label) for label in (1, 700, 701, 702, 1000)] == [
        'name 1', 'crane', 'crane', 'class 702', 'toilet tissue, toilet paper']
    assert list(info.records_of('train', 2)) == [699, 2] and list(info.records_of('validation', 1)) == [2]


def test_labels_file_names_the_classes(tmp_path, capsys):
    _write(tmp_path / 'train-00000-of-00001', (1, 'dog'), (2, 'cat'))
    (tmp_path / 'labels.txt').write_text('dog\ncat\nfish\n')
    assert dataset_describe.describe_dataset(str(tmp_path)).classes == ('dog', 'cat', 'fish')
    assert 'warning' not in capsys.readouterr().err
    (tmp_path / 'labels.txt').write_text('0:dog\n1:cat\n')
    dataset_describe.describe_dataset(str(tmp_path))
    assert "calls label 1 '0:dog', a record calls it 'dog'" in capsys.readouterr().err
    (tmp_path / 'labels.txt').write_text('dog\n')
    with pytest.raises(UserError, match='names 1 classes, but a record has label 2'):
        dataset_describe.describe_dataset(str(tmp_path))


def test_label_zero_is_said_to_be_the_background(tmp_path, capsys):
    _write(tmp_path / 'train-00000-of-00001', (0, 'dog'), (1, 'cat'))
    assert dataset_describe.describe_dataset(str(tmp_path)).classes == ('cat',)
    assert 'label 0' in capsys.readouterr().err


def test_what_cannot_be_described_names_the_shard(tmp_path):
    with pytest.raises(UserError, match=r'no file matches .*train-\?'):
        dataset_describe.describe_dataset(str(tmp_path))
    path = tmp_path / 'train-00000-of-00001'
    _write(path)
    with pytest.raises(UserError, match='hold no record'):
        dataset_describe.describe_dataset(str(tmp_path))
    _write(path, *[(1, 'dog')] * 70, (-1, ''))
    with pytest.raises(UserError, match='train-00000-of-00001: record 70 has no image/class/label'):
        dataset_describe.describe_dataset(str(tmp_path))
    _write(path, *[(1, 'dog')] * 70)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match='train-00000-of-00001: record 69 is damaged'):
        dataset_describe.describe_dataset(str(tmp_path))
    assert not (tmp_path / 'dataset.json').exists()


def test_records_that_are_wrong_inside_are_named(tmp_path, capsys):
    path = tmp_path / 'train-00000-of-00001'
    _write(path, (1, 'dog'), (2**40, 'x'))
    with pytest.raises(UserError, match='record 1 has no image/class/label of 0 to 1000000'):
        dataset_describe.describe_dataset(str(tmp_path))
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(build_example(b'', 2, 3, 1, 'two\nlines', 'a', boxes=[(0, 0, 1, 1)]))
        writer.write(build_example(b'', 2, 3, 1, 'x', 'a', boxes=[(.8, 0, .2, 1)]))
    assert dataset_describe.describe_dataset(str(tmp_path)).classes == ('two lines',)
    assert f'1 records, the first record 1 of {path}, have boxes' in capsys.readouterr().err
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b'\xff\xff')
    with pytest.raises(UserError, match='record 0 is no tf.train.Example'):
        dataset_describe.describe_dataset(str(tmp_path))
