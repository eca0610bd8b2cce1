"""Damaged bytes at every front door of the data: a good result, or one line; never a traceback, a hang, or a lost file.

A few seconds in the suite; FUZZ_CASES=5000 makes that many per door. The seed is fixed, so a case can be run again.
"""

import io
import json
import os
import random
import signal

import numpy as np
import pytest
import tensorflow as tf
from mutated import mutated
from PIL import Image

from inception_mg.config import BuildConfig, DataConfig
from inception_mg.data import damage, dataset_builder, dataset_describe, dataset_info, images, input_pipeline
from inception_mg.data.example import build_example
from inception_mg.errors import UserError

CASES = int(os.environ.get('FUZZ_CASES', 0))
SECONDS = 20  # One case takes milliseconds; what takes this long hangs.


@pytest.fixture(autouse=True)
def no_hang():
    def alarm(number, frame):
        raise AssertionError('a case hangs')

    before = signal.signal(signal.SIGALRM, alarm)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _picture() -> Image.Image:
    rows, columns = np.mgrid[0:64, 0:72]
    noise = np.random.RandomState(0).randint(0, 60, (64, 72))
    channels = [rows * 3 + noise, columns * 2 + noise, (rows + columns) + noise]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def _encoded() -> dict[str, bytes]:
    def save(picture, file_format, **options):
        buffer = io.BytesIO()
        picture.save(buffer, file_format, **options)
        return buffer.getvalue()

    picture = _picture()
    return {
        'jpeg': save(picture, 'JPEG'), 'progressive': save(picture, 'JPEG', progressive=True),
        'restarts': save(picture, 'JPEG', restart_marker_rows=1), 'grey': save(picture.convert('L'), 'JPEG'),
        'png': save(picture, 'PNG'), 'palette': save(picture.quantize(), 'PNG'),
        'bits': save(picture.convert('1'), 'PNG'),
        'gif': save(picture.quantize(), 'GIF'), 'bmp': save(picture, 'BMP'),
        'tiff': save(picture, 'TIFF', compression='tiff_lzw'),
        'fax': save(picture.convert('1'), 'TIFF', compression='group4'),
        'webp': save(picture, 'WEBP'), 'lossless': save(picture, 'WEBP', lossless=True)}


@pytest.mark.parametrize('kind', _encoded())
def test_a_damaged_image_is_a_picture_or_a_reason(kind):
    data, dice = _encoded()[kind], random.Random(kind)
    for _ in range(CASES // 13 or 40):
        mutant = mutated(data, dice)
        signal.alarm(SECONDS)
        try:
            jpeg = images.to_jpeg(mutant, 95)
        except images.BadImage as error:
            assert str(error) and '\n' not in str(error) and error.kind
            continue
        # TensorFlow must read what is let through.
        assert tf.io.decode_jpeg(jpeg.data, channels=3).shape == (jpeg.height, jpeg.width, 3)


@pytest.mark.parametrize('kind', _encoded())
def test_no_cut_file_passes_for_whole(kind):
    """Whatever end mark is put behind it: what is accepted has every pixel."""
    data, dice = _encoded()[kind], random.Random(kind)
    whole = images.to_jpeg(data, 95)
    end = {'png': b'\0\0\0\0IEND\xaeB`\x82', 'palette': b'\0\0\0\0IEND\xaeB`\x82', 'bits': b'\0\0\0\0IEND\xaeB`\x82',
           'gif': b'\0;'}.get(kind, b'\xff\xd9')
    for _ in range(CASES // 13 or 20):
        cut = data[:dice.randrange(len(data))] + dice.choice([end, b''])
        signal.alarm(SECONDS)
        try:
            jpeg = images.to_jpeg(cut, 95)
        except images.BadImage:
            continue
        pixels = [tf.io.decode_jpeg(each.data, channels=3).numpy() for each in (jpeg, whole)]
        assert np.array_equal(*pixels), f'{len(cut)} of {len(data)} bytes'


def test_no_file_is_lost(tmp_path):
    dice, number = random.Random(3), 0
    for name in ('ant', 'bee'):
        (tmp_path / 'photos' / name).mkdir(parents=True)
        for kind, data in _encoded().items():
            for mutant in (data, mutated(data, dice)):
                (tmp_path / 'photos' / name / f'{number}.{kind}').write_bytes(mutant)
                number += 1
    signal.alarm(SECONDS)
    report, = dataset_builder.build_dataset(BuildConfig(
        train_directory=str(tmp_path / 'photos'), output_directory=str(tmp_path / 'out'), num_threads=1))
    assert report.images + len(report.skipped) == number and len(report.skipped) > 0
    paths = dataset_info.shard_paths(str(tmp_path / 'out'), 'train')
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(input_pipeline.evaluation_dataset(
            paths, image_size=80, batch_size=1000, num_preprocess_threads=2, num_classes=2)).get_next()
        names = session.run(batch)[2].tolist()
    skipped = {os.path.basename(path).encode() for path, _ in report.skipped}
    assert len(names) == report.images and len({*names, *skipped}) == number


def test_damaged_shards_are_described_or_named(tmp_path, capsys):
    dice, path, jpeg = random.Random(4), tmp_path / 'train-00000-of-00001', _encoded()['jpeg']
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in (1, 2, 3):
            writer.write(build_example(jpeg, 64, 72, label, f'class {label}', f'{label}.jpg', boxes=[(.1, .1, .9, .9)]))
    whole = path.read_bytes()
    for case in range(CASES // 40 or 6):
        if case % 2:
            path.write_bytes(mutated(whole, dice))
        else:  # Whole by its checksums, and wrong inside.
            with tf.io.TFRecordWriter(str(path)) as writer:
                for record in (build_example(jpeg, 64, 72, 1, 'a', 'a.jpg', boxes=[(.1, .1, .9, .9)]), jpeg):
                    writer.write(mutated(record, dice))
        signal.alarm(SECONDS)
        (tmp_path / 'dataset.json').unlink(missing_ok=True)
        try:
            assert dataset_describe.describe_dataset(str(tmp_path)) == dataset_info.read_dataset_info(str(tmp_path))
        except UserError as error:
            assert str(path) in str(error) or str(tmp_path) in str(error)
            assert '\n' not in str(error) and not (tmp_path / 'dataset.json').exists()
        for skip in (False, True):
            _read(str(path), skip)


def _read(path: str, skip: bool) -> None:
    """Reads a shard once for training: to a batch, or to an error that names it."""
    data = DataConfig(image_size=80, num_preprocess_threads=1, num_readers=1, data_seed=1, skip_damaged_records=skip,
                      distort=False)  # It would be compiled for each case.
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            dataset = input_pipeline.training_dataset([path], 3, data=data, batch_size=3, num_classes=3)
            batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            images_v, labels_v = session.run(batch)
            assert np.isfinite(images_v).all() and labels_v.min() >= 0 and labels_v.max() <= 3
    except UserError as error:
        assert path in str(error)
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        assert not isinstance(error, tf.errors.OutOfRangeError)  # A session takes that for the end of training.
        explained = damage.explain_input_error(error, [path])
        assert explained and path in str(explained) and '\n' not in str(explained), str(error)


def test_a_damaged_dataset_json_is_read_or_named(tmp_path):
    dice, path = random.Random(5), tmp_path / 'dataset.json'
    info = dataset_info.DatasetInfo(('ant', 'Käfer'), {'train': 7}, {'train': 2})
    dataset_info.write_dataset_info(str(tmp_path), info)
    whole = path.read_bytes()
    odd = [None, True, 1.5, -1, 1e400, 'x', '', [], {}, [1], {'train': 'x'}, {'train': -1}, {'train': True}, ['\ud800'],
           '9' * 5000]
    texts = [json.dumps({**json.loads(whole), name: value}).encode()
             for name in ('classes', 'counts', 'shards', 'format') for value in odd]
    texts += [b'', b'\0' * 100, b'[' * 100000, b'{"a":' * 50000, b'\xff\xfe{\0', b'null', b'9' * 5000, b'<html>']
    texts += [mutated(whole, dice) for _ in range(CASES or 200)]
    for text in texts:
        path.write_bytes(text)
        signal.alarm(SECONDS)
        try:
            info = dataset_info.read_dataset_info(str(tmp_path))
        except UserError as error:
            assert str(path) in str(error) and '--describe' in str(error) and '\n' not in str(error)
            continue
        assert info.classes and all(isinstance(name, str) for name in info.classes)
        assert all(type(n) is int and n >= 0 for n in (*info.counts.values(), *info.shards.values()))
