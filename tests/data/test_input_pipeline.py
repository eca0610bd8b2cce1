"""Every record once per epoch and reader set, reproducible, and damage that is named or skipped."""

import gzip
import io
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from inception_mg.config import DataConfig
from inception_mg.data import damage, input_pipeline
from inception_mg.data.example import build_example
from inception_mg.data.parts import part_size
from inception_mg.errors import UserError

SIZE = 80


def _jpeg(level: int) -> bytes:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(tf.io.encode_jpeg(np.full((16, 20, 3), level, np.uint8), quality=100))


def _example(number: int, encoded: bytes | None = None) -> bytes:
    """Image i is of one colour, level i * 4, its label i."""
    encoded = _jpeg(number * 4) if encoded is None else encoded
    return build_example(encoded, 16, 20, number, f'class {number}', f'image{number}.jpg')


def _write(path, examples) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example)
    return str(path)


@pytest.fixture(scope='module')
def examples():
    return [_example(number) for number in range(22)]


def _shards(folder, examples, count: int) -> list[str]:
    return [_write(folder / f'train-{i:05d}-of-{count:05d}', examples[i::count]) for i in range(count)]


def _data(**values) -> DataConfig:
    values = {'image_size': SIZE, 'distort': False, 'data_seed': 5, 'num_preprocess_threads': 2,
              'num_readers': 2} | values
    return DataConfig(**values)


def _take(dataset, steps: int | None = None) -> list:
    """Runs a dataset for some steps, or to its end; called inside a graph."""
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    values = []
    with tf.compat.v1.Session() as session:
        try:
            while steps is None or len(values) < steps:
                values.append(session.run(batch))
        except tf.errors.OutOfRangeError:
            if steps is not None:
                raise
    return values


def _training(paths, count: int, steps: int, data: DataConfig, **kwargs) -> list:
    with tf.Graph().as_default():
        return _take(input_pipeline.training_dataset(paths, count, data=data, **kwargs), steps)


def _labels(batches) -> list[int]:
    return [int(label) for _, labels, *_ in batches for label in labels]


def _evaluation(paths, batch_size: int, **kwargs) -> list:
    with tf.Graph().as_default():
        return _take(input_pipeline.evaluation_dataset(
            paths, image_size=SIZE, batch_size=batch_size, num_preprocess_threads=4, **kwargs))


@pytest.mark.parametrize('readers,shards', [
    (1, 1), (1, 5), (2, 1), (2, 5), (3, 2), (3, 5), (4, 2), (4, 5), (7, 1), (7, 5)])
def test_in_every_epoch_each_image_is_seen_by_exactly_one_reader(tmp_path, examples, readers, shards):
    paths = _shards(tmp_path, examples, shards)
    epochs = [[], []]
    for reader in range(readers):
        count = part_size(22, reader, readers)
        assert 22 // readers <= count <= 22 // readers + 1
        seen = _labels(_training(paths, 22, 2 * count, _data(num_readers=1 + reader), batch_size=1,
                                 first_shard=reader, num_shards=readers))  # Readers may differ in num_readers.
        epochs[0] += seen[:count]
        epochs[1] += seen[count:]
    assert [sorted(epoch) for epoch in epochs] == [list(range(22))] * 2


@pytest.mark.parametrize('done', [3, 10, 11, 14])
def test_a_stream_goes_on_where_it_was(tmp_path, examples, done):
    paths = _shards(tmp_path, examples, 3)
    data = _data(batch_size=2, distort=True)
    whole, rest = _training(paths, 22, 17, data), _training(paths, 22, 17 - done, data, batches_done=done)
    for expected, found in zip(whole[done:], rest, strict=True):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_where_a_stream_begins_is_read_when_it_begins(tmp_path, examples):
    """A session that begins again in the same graph: with a seed it goes on, without one it has a new order."""
    paths = _shards(tmp_path, examples, 2)
    seen = {}
    for seed in (5, 0):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            step = tf.compat.v1.get_variable('step', initializer=tf.constant(0, tf.int64), use_resource=True)
            dataset = input_pipeline.training_dataset(paths, 22, data=_data(batch_size=11, data_seed=seed),
                                                      batches_done=step.read_value())
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            batch = iterator.get_next()
            seen[seed] = []
            for at in (0, 0, 1):
                session.run(step.assign(at) if at else step.initializer)
                session.run(iterator.initializer)
                seen[seed].append([session.run(batch)[1].tolist() for _ in range(2)])
    assert seen[5][0] == seen[5][1] and seen[5][2][0] == seen[5][0][1]
    assert sorted(sum(seen[0][2], [])) == list(range(22)) and seen[0][2] != seen[0][0]


def test_images_of_a_batch_differ_and_belong_to_their_labels(tmp_path, examples):
    for images, labels in _training(_shards(tmp_path, examples, 2), 22, 2, _data(batch_size=11)):
        assert images.shape == (11, SIZE, SIZE, 3) and images.dtype == np.float32
        assert len(set(labels)) == 11
        np.testing.assert_allclose(images.mean((1, 2, 3)), labels * 4 / 127.5 - 1, atol=0.01)


def test_shards_of_any_size_are_dealt_evenly_and_for_ever(tmp_path, examples):
    paths = [_write(tmp_path / 'train-00000-of-00002', examples[1:]), _write(tmp_path / 'train-00001-of-00002',
                                                                             examples[:1])]
    for reader, labels in ((0, set(range(1, 12))), (1, {0, *range(12, 22)})):
        batches = _training(paths, 22, 20, _data(batch_size=4), first_shard=reader, num_shards=2, counts=[21, 1])
        assert len(batches) == 20 and set(_labels(batches)) == labels


def test_batches_have_a_static_shape_and_cross_epochs(tmp_path, examples):
    paths = _shards(tmp_path, examples, 1)
    with tf.Graph().as_default():
        dataset = input_pipeline.training_dataset(paths, 0, data=_data(batch_size=8))
        assert dataset.element_spec[0].shape == (8, SIZE, SIZE, 3)
        assert dataset.element_spec[1] == tf.TensorSpec([8], tf.int32)
        labels = _labels(_take(dataset, 11))
    assert sorted(labels) == sorted(list(range(22)) * 4)


def test_a_seed_fixes_the_stream_whatever_the_threads(tmp_path, examples):
    paths = _shards(tmp_path, examples, 3)

    def stream(seed: int, threads: int) -> tuple:
        batches = _training(paths, 22, 4, _data(batch_size=11, data_seed=seed, distort=True,
                                               num_preprocess_threads=threads))
        return np.concatenate([images for images, _ in batches]), _labels(batches)

    images, labels = stream(1, 1)
    again, labels_again = stream(1, 4)
    assert labels == labels_again
    np.testing.assert_array_equal(images, again)
    assert labels[:22] != labels[22:]  # Shuffled anew in the second epoch.
    for other in (2, 0):
        others, other_labels = stream(other, 4)
        assert other_labels != labels
        assert not np.array_equal(others, images)


def test_distortions_differ_between_epochs_and_readers(tmp_path):
    gradient = np.tile(np.linspace(0, 255, 60, dtype=np.uint8)[:, None, None], (1, 60, 3))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        example = _example(1, session.run(tf.io.encode_jpeg(gradient)))
    paths = [_write(tmp_path / f's{i}', [example]) for i in range(2)]
    seen = [image.tobytes() for reader in range(2) for image, _ in _training(
        paths, 2, 4, _data(distort=True, batch_size=1), first_shard=reader, num_shards=2)]
    assert len(set(seen)) == 8


@pytest.mark.parametrize('batch_size', [1, 4, 10, 32])
def test_evaluation_sees_each_image_once(tmp_path, examples, batch_size):
    batches = _evaluation(_shards(tmp_path, examples[:10], 3), batch_size)
    names = [name for _, _, filenames in batches for name in filenames]
    assert sorted(names) == sorted(f'image{i}.jpg'.encode() for i in range(10))
    assert names == [f'image{label}.jpg'.encode() for label in _labels(batches)]
    assert [len(labels) for _, labels, _ in batches][:-1] == [batch_size] * (len(batches) - 1)


def test_evaluation_of_the_first_few(tmp_path, examples):
    paths = _shards(tmp_path, examples[:10], 3)
    assert _labels(_evaluation(paths, 4, num_examples=7)) == _labels(_evaluation(paths, 4))[:7]


def test_no_shards_or_only_empty_ones_are_refused(tmp_path, examples):
    with pytest.raises(UserError, match='--data_dir'):
        input_pipeline.training_dataset([], 0, data=_data())
    empty, full = _write(tmp_path / 'empty', []), _write(tmp_path / 'full', examples)
    with pytest.raises(UserError, match='empty.*reader 0 of 2'):
        input_pipeline.training_dataset([empty, full], 22, data=_data(), num_shards=2)
    with pytest.raises(UserError, match='3 records are not enough for 4 readers'):
        input_pipeline.training_dataset([full], 3, data=_data(), num_shards=4)
    assert len(_labels(_training([empty, full], 22, 2, _data(batch_size=11)))) == 22


def test_an_empty_shard_is_nobodys_part(tmp_path, examples):
    paths = [_write(tmp_path / 'empty', []), _write(tmp_path / 'full', examples[:2])]
    for reader in range(2):
        assert _labels(_training(paths, 2, 2, _data(batch_size=1), counts=[0, 2], first_shard=reader,
                                 num_shards=2)) == [reader] * 2


def _failure(paths, data: DataConfig, steps: int = 50) -> UserError:
    with pytest.raises((tf.errors.OpError, UnicodeDecodeError)) as caught:
        _training(paths, 22, steps, data)
    return damage.explain_input_error(caught.value, paths)


def _damage_shard(paths, shard: int, how: str) -> None:
    content = bytearray(open(paths[shard], 'rb').read())
    if how == 'cut':
        del content[-100:]
    else:
        content[len(content) // 2] ^= 255
    with open(paths[shard], 'wb') as file:
        file.write(content)


@pytest.mark.parametrize('how', ['cut', 'corrupt'])
def test_a_damaged_shard_is_named(tmp_path, examples, how):
    paths = _shards(tmp_path, examples, 4)
    _damage_shard(paths, 3, how)
    error = _failure(paths, _data(batch_size=2))
    assert isinstance(error, UserError)
    assert paths[3] in str(error) and 'record' in str(error) and '--skip_damaged_records' in str(error)
    assert '\n' not in str(error)


def test_a_missing_shard_is_named(tmp_path, examples):
    paths = _shards(tmp_path, examples, 2) + [str(tmp_path / 'gone')]
    assert str(tmp_path / 'gone') in str(_failure(paths, _data(batch_size=2)))
    with pytest.raises(UserError, match='gone'):
        input_pipeline.training_dataset(paths, 22, data=_data(skip_damaged_records=True))


def test_skipping_goes_on_after_a_damaged_shard(tmp_path, examples, capfd):
    paths = _shards(tmp_path, examples, 2)
    _damage_shard(paths, 1, 'cut')
    found, = damage.count_damage(paths)
    assert found.path == paths[1] and found.good_records == 10 and 'byte' in found.reason
    labels = _labels(_training(paths, 22, 6, _data(batch_size=7, skip_damaged_records=True)))
    assert sorted(labels) == sorted([i for i in range(22) if i != 21] * 2)
    report = capfd.readouterr().err
    assert f'1 damaged shard: {paths[1]}, skipped from record 10 on' in report


def _with_bad_images(folder, examples) -> list[str]:
    bad = [_example(20, b'not an image'), _example(21, _jpeg(0)[:-120])]
    return [_write(folder / 'good', examples[:10]), _write(folder / 'bad', examples[10:14] + bad)]


@pytest.mark.parametrize('distort', [True, False])
def test_an_undecodable_image_is_named(tmp_path, examples, distort):
    paths = _with_bad_images(tmp_path, examples)
    message = str(_failure(paths, _data(batch_size=2, distort=distort)))
    assert f'{paths[1]}: record 4 (image image20.jpg)' in message


def test_a_record_that_is_no_example_is_named(tmp_path, examples):
    paths = [_write(tmp_path / 'bad', examples[:3] + [b'\xff\xff\xff'])]
    assert f'{paths[0]}: record 3 is no tf.train.Example' in str(_failure(paths, _data(batch_size=2)))


@pytest.mark.parametrize('distort', [True, False])
def test_skipping_goes_on_after_undecodable_images(tmp_path, examples, capfd, distort):
    paths = _with_bad_images(tmp_path, examples)
    data = _data(batch_size=7, skip_damaged_records=True, distort=distort)
    assert sorted(_labels(_training(paths, 16, 4, data))) == sorted(list(range(14)) * 2)
    report = capfd.readouterr().err
    assert f'skipped record 4 of {paths[1]}: its image cannot be decoded' in report
    assert f'record 5 of {paths[1]}' in report and '(2 skipped so far)' in report
    assert sorted(_labels(_evaluation(paths, 4, skip_damaged_records=True))) == list(range(14))


def test_a_set_without_one_readable_image_ends(tmp_path):
    paths = [_write(tmp_path / 'bad', [_example(1, b'no image')] * 3)]
    message = str(_failure(paths, _data(batch_size=2, skip_damaged_records=True)))
    assert paths[0] in message


def test_a_set_without_one_whole_record_ends(tmp_path, examples):
    paths = [_write(tmp_path / 'bad', examples[:1])]
    _damage_shard(paths, 0, 'cut')
    with pytest.raises(UserError, match=f'{paths[0]}: not one readable record'):
        _training(paths, 22, 1, _data(batch_size=2, skip_damaged_records=True))
    with pytest.raises(UserError, match='not one readable record'):
        _evaluation(paths, 2, skip_damaged_records=True)


def test_errors_that_are_not_the_input_s_are_left_alone():
    assert damage.explain_input_error(ValueError('x'), []) is None
    error = tf.errors.InvalidArgumentError(None, None, 'Loss is not finite')
    assert damage.explain_input_error(error, []) is None


@pytest.mark.parametrize('label', [23, -3, 2**32 + 1])
@pytest.mark.parametrize('evaluates', [False, True])
def test_a_label_that_is_none_is_named_or_skipped(tmp_path, examples, capfd, label, evaluates):
    wrong = build_example(_jpeg(0), 16, 20, label, 'x', 'x.jpg')
    paths = [_write(tmp_path / 'été', [*examples[:4], wrong])]

    def read(skip: bool):
        if evaluates:
            return _evaluation(paths, 2, num_classes=22, skip_damaged_records=skip)
        return _training(paths, 5, 4, _data(batch_size=2, skip_damaged_records=skip), num_classes=22)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(False)
    message = str(damage.explain_input_error(caught.value, paths))
    assert message.startswith(f'{paths[0]}: record 4 has label ') and '1 to 22' in message
    assert set(_labels(read(True))) == {0, 1, 2, 3}
    assert f'skipped record 4 of {paths[0]}: its label is not one of dataset.json' in capfd.readouterr().err


def test_a_reader_whose_part_is_empty_fails_instead_of_ending(tmp_path, examples):
    paths = [_write(tmp_path / 'shard', examples[:1])]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:  # dataset.json counts one too many.
        _training(paths, 2, 1, _data(batch_size=1), first_shard=1, num_shards=2)
    assert 'not one readable record' in str(damage.explain_input_error(caught.value, paths))


def test_an_evaluation_without_one_image_fails_and_one_of_fewer_says_so(tmp_path, examples, capfd):
    bad = [_write(tmp_path / 'bad', [_example(1, b'no image')] * 3)]
    with pytest.raises(tf.errors.InvalidArgumentError, match='not one readable record'):
        _evaluation(bad, 2, skip_damaged_records=True)
    good = [_write(tmp_path / 'good', examples[:5])]
    assert len(_labels(_evaluation(good, 2, num_records=8))) == 5
    assert 'only 5 of 8 images' in capfd.readouterr().err
    _evaluation(good, 2, num_records=8, num_examples=5)
    assert 'only' not in capfd.readouterr().err


@pytest.mark.parametrize('content, kind', [
    (b'\x1f\x8b\x08', 'GZIP of something else'), (b'version https://git-lfs.github.com/spec/v1', 'Git LFS'),
    (b'PK\3\4abcd', 'ZIP'), (b'<!doctype html>', 'HTML')])
def test_a_file_that_is_no_shard_is_named_by_kind(tmp_path, examples, content, kind):
    paths = _shards(tmp_path, examples, 2)
    with open(paths[1], 'wb') as file:
        file.write(gzip.compress(b'a,b\n' * 9) if 'GZIP' in kind else content + bytes(50))
    for skip in (False, True):
        with pytest.raises(UserError, match=f'{paths[1]} is no shard of records but {kind}'):
            _training(paths, 22, 1, _data(batch_size=2, skip_damaged_records=skip))


@pytest.mark.parametrize('file_format', ['TIFF', 'PPM', 'AVIF'])
def test_an_image_of_a_kind_that_is_not_decoded_is_named(tmp_path, examples, file_format):
    paths = [_write(tmp_path / 'shard', [*examples[:2], _example(3, _saved(file_format))])]
    message = str(_failure(paths, _data(batch_size=3, distort=True)))
    assert message.startswith(f'{paths[0]}: record 2 (image image3.jpg) holds no JPEG, PNG, GIF, BMP or WebP: it is '
                              f'{file_format}: ')


def test_an_image_of_another_kind_that_is_cut_is_named(tmp_path, examples):
    paths = [_write(tmp_path / 'shard', [*examples[:2], _example(3, _saved('PNG')[:60])])]
    assert f'{paths[0]}: record 2 (image image3.jpg) holds no readable PNG' in str(_failure(paths, _data(batch_size=3)))


def _saved(file_format: str, mode: str = 'RGB', **options) -> bytes:
    buffer = io.BytesIO()
    pixels = np.zeros((16, 20, 3), np.uint8)
    pixels[:, 10:] = 200
    image = Image.fromarray(pixels)
    (image.quantize() if mode == 'P' else image.convert(mode)).save(buffer, file_format, **options)
    return buffer.getvalue()


def test_images_of_all_kinds_are_evaluated_and_trained_on(tmp_path):
    """Half black, half grey; lossless ones of the same pixels agree, and a JPEG nearly."""
    frames = [Image.new('RGB', (20, 16), 'red')]
    kinds = [('JPEG', 'RGB', {'quality': 100}), ('PNG', 'RGB', {}), ('PNG', 'L', {}), ('PNG', 'RGBA', {}),
             ('PNG', 'P', {}), ('GIF', 'P', {}), ('GIF', 'RGB', {'save_all': True, 'append_images': frames}),
             ('BMP', 'RGB', {}), ('BMP', 'L', {}), ('WEBP', 'RGB', {'lossless': True})]
    records = [_example(number, _saved(name, mode, **options)) for number, (name, mode, options) in enumerate(kinds)]
    paths = [_write(tmp_path / 'shard', records)]
    (images, labels, _), = _evaluation(paths, len(kinds))
    assert list(labels) == list(range(len(kinds)))
    for number, image in enumerate(images):
        assert abs(image - images[1]).max() < (0.01 if number else 0.15)
    assert images[0].min() < -0.95 and images[0].max() > 0.5
    (images, labels), = _training(paths, len(kinds), 1, _data(batch_size=len(kinds), distort=True))
    assert sorted(labels) == list(range(len(kinds))) and images.std() > 0.1 and abs(images).max() <= 1


def _compressed(path: str, compression: str) -> str:
    records = list(tf.compat.v1.io.tf_record_iterator(path))
    with tf.io.TFRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    return path


def test_compressed_shards_are_read_beside_others(tmp_path, examples):
    paths = _shards(tmp_path, examples, 3)
    kinds = ['', 'GZIP', 'ZLIB']
    for path, kind in zip(paths, kinds, strict=True):
        _compressed(path, kind) if kind else None
    assert damage.check_kinds(paths) == kinds
    assert sorted(_labels(_evaluation(paths, 5))) == list(range(22))
    assert sorted(_labels(_training(paths, 22, 11, _data(batch_size=2, skip_damaged_records=True)))) == list(range(22))


@pytest.mark.parametrize('compression', ['GZIP', 'ZLIB'])
def test_a_compressed_shard_that_is_cut_is_named(tmp_path, examples, compression):
    path = _compressed(_write(tmp_path / 'shard', examples), compression)
    whole = open(path, 'rb').read()
    with open(path, 'wb') as file:
        file.write(whole[:-len(whole) // 3])
    message = str(_failure([path], _data(batch_size=2)))
    assert re.search(rf'{path}: record \d+ is damaged \(truncated record at byte \d+\)', message)


def test_odd_boxes_are_no_crash(tmp_path):
    boxes = [[(.9, .9, .1, .1)], [(-1, 0, .5, 2)], [(float('nan'), 0, 1, 1)], [(2, 2, 3, 3)], [(.5, .5, .5, .5)]]
    records = [build_example(_jpeg(9), 16, 20, 1, 'x', f'{i}.jpg', boxes=each) for i, each in enumerate(boxes)]
    assert len(_training([_write(tmp_path / 'shard', records)], 5, 2, _data(batch_size=5, distort=True))) == 2
