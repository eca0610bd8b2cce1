"""Records of TensorFlow Datasets, described and read with the right labels; and ours read by it.

tests/training/test_remote_paths.py trains on them, evaluates and exports.
"""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from tfds_shapes import LEVELS

from inception_mg.config import DataConfig
from inception_mg.data import damage, tfds_files
from inception_mg.data.dataset_describe import describe_dataset
from inception_mg.data.dataset_info import RecordKeys, read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import evaluation_dataset, training_dataset
from inception_mg.errors import UserError

WRITTEN = ROOT / 'tests' / 'data' / 'tfds_shapes'  # By tfds 4.9; see tests/tfds_shapes.py.
LEVEL_OF = {label: level / 127.5 - 1 for label, level in enumerate(LEVELS.values(), start=1)}


@pytest.fixture(scope='module')
def shapes(tmp_path_factory) -> str:
    """A copy with dataset.json. Nobody writes in it."""
    folder = str(tmp_path_factory.mktemp('tfds') / 'shapes')
    shutil.copytree(WRITTEN, folder)
    describe_dataset(folder)
    return folder


def _values(dataset: tf.data.Dataset, batches: int = 0) -> list:
    found = []
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    with tf.compat.v1.Session() as session:
        try:
            while not batches or len(found) < batches:
                found.append(session.run(batch))
        except tf.errors.OutOfRangeError:
            assert not batches
    return found


def _check(images, labels, about: float = 0.02) -> None:
    for image, label in zip(images, labels, strict=True):
        assert abs(image.mean() - LEVEL_OF[int(label)]) < about


def test_it_is_described(shapes):
    info = read_dataset_info(shapes)
    assert info.classes == tuple(LEVELS) and info.records == RecordKeys('image', 'label', '', 'file_name', 0)
    assert (info.counts, info.shards) == ({'train': 12, 'validation': 6}, {'train': 2, 'validation': 2})
    assert [os.path.basename(path) for path in shard_paths(shapes, info.stem('validation'))] == [
        'shapes-test.tfrecord-00000-of-00002', 'shapes-test.tfrecord-00001-of-00002']


@pytest.mark.parametrize('readers', [1, 2, 3])
def test_images_and_labels_belong_together(shapes, readers):
    info = read_dataset_info(shapes)
    paths = shard_paths(shapes, info.stem('train'))
    data = DataConfig(image_size=75, distort=False, num_readers=2, data_seed=1)
    seen = []
    for reader in range(readers):
        with tf.Graph().as_default():
            dataset = training_dataset(paths, 12, data=data, batch_size=2, first_shard=reader, num_shards=readers,
                                       num_classes=3, keys=info.records)
            for images, labels in _values(dataset, 6 // readers):
                _check(images, labels)
                seen += labels.tolist()
    assert sorted(seen) == [1] * 4 + [2] * 4 + [3] * 4


def test_they_are_distorted_for_training(shapes):
    info = read_dataset_info(shapes)
    with tf.Graph().as_default():
        (images, labels), = _values(training_dataset(
            shard_paths(shapes, info.stem('train')), 12, data=DataConfig(image_size=75, data_seed=3), batch_size=12,
            num_classes=3, keys=info.records), 1)
    means = [np.mean([image.mean() for image, own in zip(images, labels, strict=True) if own == label])
             for label in (1, 3, 2)]
    assert means == sorted(means) and images.std() > 0.1


def _written(path, *labelled) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in labelled:
            fields = {'image': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                      'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString())


def test_what_is_wrong_is_named_as_it_is_in_the_records(shapes, tmp_path):
    folder = tmp_path / 'copy'
    shutil.copytree(shapes, folder)
    info = read_dataset_info(str(folder))
    path = str(folder / 'shapes-train.tfrecord-00000-of-00002')

    def failure() -> str:
        with tf.Graph().as_default(), pytest.raises(tf.errors.OpError) as caught:
            _values(evaluation_dataset([path], image_size=75, batch_size=1, num_preprocess_threads=1, num_classes=3,
                                       keys=info.records))
        return str(damage.explain_input_error(caught.value, [path], info.records))

    png = (np.zeros((9, 9, 1), np.uint8),)
    _written(path, (tf.io.encode_png(png[0]).numpy(), 3))
    assert 'record 0 has label 3, but dataset.json beside it names 0 to 2' in failure()
    _written(path, (tf.io.encode_png(png[0]).numpy(), -1))
    assert 'record 0 has label -1' in failure()
    _written(path, (b'II*\0' + bytes(99), 0))
    assert f'{path}: record 0 holds no JPEG, PNG, GIF, BMP or WebP: it is TIFF' in failure()
    _written(path, (b'', 7))
    with pytest.raises(UserError, match='names 3 classes, labels 0 to 2, but a record has label 7'):
        describe_dataset(str(folder))
    _written(path, (b'', -1))
    with pytest.raises(UserError, match='record 0 has no label of 0 to'):
        describe_dataset(str(folder))


def test_folders_that_cannot_be_read_say_why(tmp_path):
    (tmp_path / 'mnist' / '3.0.1').mkdir(parents=True)
    with pytest.raises(UserError, match=r'name one, such as .*mnist/3\.0\.1'):
        describe_dataset(str(tmp_path / 'mnist'))
    folder = tmp_path / 'odd'
    shutil.copytree(WRITTEN, folder)
    features = json.loads((folder / 'features.json').read_text())
    for change, words in (({'label': None}, 'has 0 fields of kind ClassLabel'), ({'image': None, 'left': 'image',
                          'right': 'image'}, r'has 2 fields of kind Image \(left, right\)')):
        inner = dict(features['featuresDict']['features'])
        inner |= {name: inner[like] for name, like in change.items() if like}
        inner = {name: one for name, one in inner.items() if change.get(name, 'kept')}
        (folder / 'features.json').write_text(json.dumps(features | {'featuresDict': {'features': inner}}))
        with pytest.raises(UserError, match=words):
            describe_dataset(str(folder))
    (folder / 'features.json').write_text('[')
    with pytest.raises(UserError, match='features.json is damaged'):
        describe_dataset(str(folder))
    (folder / 'features.json').unlink()  # Of an old tfds: the usual names.
    assert describe_dataset(str(folder)).classes == tuple(LEVELS)
    for path in folder.glob('*.tfrecord*'):
        path.unlink()
    (folder / 'features.json').write_text('{}')
    (folder / 'dataset_info.json').write_text('{"fileFormat": "array_record"}')
    with pytest.raises(UserError, match='of the format array_record'):
        describe_dataset(str(folder))


def test_a_nested_field_is_found():
    inner = {'featuresDict': {'features': {'b': {'pythonClassName': 'x.Image', 'image': {}}}}}
    assert list(tfds_files._flat({'featuresDict': {'features': {'a': inner, 'c': {}}}})) == ['a/b', 'c']


def test_the_files_for_tfds_say_what_is_in_ours(three_classes, tmp_path):
    folder = tmp_path / 'records'
    shutil.copytree(three_classes, folder)
    describe_dataset(str(folder))
    splits = {split['name']: split for split in json.loads((folder / 'dataset_info.json').read_text())['splits']}
    assert splits['train']['shardLengths'] == ['12', '12'] and splits['validation']['shardLengths'] == ['9']
    names = (folder / 'image.class.label.labels.txt').read_text().split()
    assert names == ['background', *read_dataset_info(str(folder)).classes]
    assert describe_dataset(str(folder)).records == RecordKeys()  # Ours stay ours.


BY_TFDS = """
import sys, tensorflow_datasets as tfds
for split in ('train', 'validation'):
    for image, label in tfds.builder_from_directory(sys.argv[1]).as_dataset(split=split, as_supervised=True):
        print(split, int(label), image.shape, *image.numpy().mean(axis=(0, 1)).round().astype(int))
print(tfds.builder_from_directory(sys.argv[1]).info.features['image/class/label'].names)
"""


def test_tfds_reads_ours_and_we_read_what_it_writes(three_classes, tmp_path):
    """With the package itself, in a process of its own; INCEPTION_TFDS_PYTHON names a Python that has it."""
    python = os.environ.get('INCEPTION_TFDS_PYTHON', sys.executable)
    if subprocess.run([python, '-c', 'import tensorflow_datasets'], capture_output=True).returncode:
        pytest.skip('tensorflow-datasets is not installed')
    folder = tmp_path / 'records'
    shutil.copytree(three_classes, folder)
    describe_dataset(str(folder))
    said = subprocess.run([python, '-c', BY_TFDS, str(folder)], capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    assert lines[-1] == "['background', 'blue', 'green', 'red']"
    assert [sum(line.startswith(split) for line in lines) for split in ('train', 'validation')] == [24, 9]
    strongest = {1: 2, 2: 1, 3: 0}  # Label -> channel.
    for line in lines[:-1]:
        words = line.replace('(', '').replace(')', '').replace(',', '').split()
        channels = [int(word) for word in words[-3:]]
        assert channels.index(max(channels)) == strongest[int(words[1])]
    theirs = subprocess.run([python, str(ROOT / 'tests' / 'tfds_shapes.py'), str(tmp_path / 'theirs')],
                            capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert describe_dataset(theirs) == describe_dataset(str(shutil.copytree(WRITTEN, tmp_path / 'copy')))
