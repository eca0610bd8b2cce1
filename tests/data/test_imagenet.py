"""ImageNet as people have it becomes the records of 2016, whatever it comes from and however often a run is ended."""

import json
import os
import sys
import tarfile

import imagenet_world as world
import pytest
import tensorflow as tf

from inception_mg import checks, config
from inception_mg.data import dataset_info, imagenet_builder, imagenet_labels, unfinished
from inception_mg.data.example import parse_example
from inception_mg.errors import FlagError, UserError

pytest.importorskip('scipy', reason='the devkit is a file of MATLAB')


def _build(output, source='', **settings):
    settings = {'train_shards': 4, 'validation_shards': 2, 'num_threads': 1} | settings
    build = config.ImagenetConfig(source=str(source), output_directory=str(output), **{
        name: str(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()})
    checks.check_imagenet(build)
    return imagenet_builder.build_imagenet(build)


def _shards(output) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.glob('*-of-*'))}


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """A folder with the set in each layout, and the records of the tars; nobody writes in it."""
    folder = tmp_path_factory.mktemp('imagenet')
    for layout in (world.tars, world.tree, world.kaggle, world.of_2016):
        layout(folder / layout.__name__)
    _build(folder / 'records', folder / 'tars')
    return folder


def test_every_field_is_that_of_2016(made):
    seen = []
    for path in [path for subset in ('train', 'validation') for path in dataset_info.shard_paths(
            str(made / 'records'), subset)]:
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            features = tf.train.Example.FromString(serialized).features.feature
            fields = {name: list(getattr(value, value.WhichOneof('kind')).value) for name, value in features.items()}
            name = fields['image/filename'][0].decode().removesuffix('.JPEG')
            encoded, = fields.pop('image/encoded')
            assert fields == world.fields_2016(name)
            assert encoded == world.encoded_2016(name), name
            seen.append((os.path.basename(path)[:5], name))
            assert parse_example(serialized).bbox.shape[1] == len(world.BOXES.get(name, ((), ()))[1])
    assert sorted(seen) == sorted([('train', name) for name in world.TRAIN] + [('valid', name) for name in world.TRUTH])


def test_what_lies_beside_the_records(made):
    info = dataset_info.read_dataset_info(str(made / 'records'))
    assert info.counts == {'train': 48, 'validation': 6} and info.shards == {'train': 4, 'validation': 2}
    assert len(set(info.classes)) == 24 and info.classes[3] == f'crane ({world.SYNSETS[3]})'
    assert info.classes[0] == 'thing 0, Res 0'
    assert (made / 'records/labels.txt').read_text().splitlines() == list(info.classes)
    assert sorted(os.listdir(made / 'records')) == ['dataset.json', 'labels.txt', *sorted(_shards(made / 'records'))]


def test_shards_hold_many_classes(made):
    for path in dataset_info.shard_paths(str(made / 'records'), 'train'):
        labels = [tf.train.Example.FromString(one).features.feature['image/class/label'].int64_list.value[0]
                  for one in tf.data.TFRecordDataset(path).as_numpy_iterator()]
        assert len(labels) == 12 and len(set(labels)) > 6 and labels != sorted(labels)


@pytest.mark.parametrize('layout', ['tree', 'kaggle', 'of_2016'])
def test_other_layouts_give_the_same_records(made, layout, tmp_path, capsys):
    folder = made / layout
    if layout == 'of_2016':  # By the flags of 2016.
        _build(tmp_path / 'out', train_directory=folder / 'train', validation_directory=folder / 'validation',
               labels_file=folder / 'synsets.txt', imagenet_metadata_file=folder / 'metadata.txt',
               bounding_box_file=folder / 'boxes.csv', num_threads=2)
    else:
        _build(tmp_path / 'out', folder)
    assert _shards(tmp_path / 'out') == _shards(made / 'records')
    assert (tmp_path / 'out/dataset.json').read_bytes() == (made / 'records/dataset.json').read_bytes()
    said = capsys.readouterr().err
    assert 'note: train: 48 images, where ILSVRC2012 has 1281167' in said
    assert 'note: validation: 6 images, where ILSVRC2012 has 50000' in said
    if layout != 'of_2016':
        assert f'boxes: 8 for 6 images; {world.LEFT_OUT} left out' in said


@pytest.mark.parametrize('labels', ['2016', 'ground truth', 'devkit', 'folders of tars'])
def test_labels_from_other_files(made, labels, tmp_path):
    source = world.copy(made / 'tree', tmp_path / 'source')
    settings = {'only_subset': 'validation'}
    kit = source / 'ILSVRC2012_devkit_t12'
    if labels == '2016':
        (source / imagenet_labels.LABELS_2016).write_text(''.join(f'{synset}\n' for synset in world.TRUTH.values()))
    elif labels == 'ground truth':
        settings['validation_labels'] = kit / 'data/ILSVRC2012_validation_ground_truth.txt'
    elif labels == 'devkit':
        settings['validation_labels'] = kit.rename(tmp_path / 'kit')
    else:  # The outer tar unpacked, the inner ones not.
        settings = {}
        for file in (source / 'train').glob('*/*'):
            file.unlink()
        for folder in (source / 'train').iterdir():
            folder.rmdir()
        for name, content in world.inner_tars().items():
            (source / 'train' / name).write_bytes(content)
    _build(tmp_path / 'out', source, **settings)
    there = _shards(made / 'records')
    assert _shards(tmp_path / 'out') == {name: there[name] for name in there
                                         if not settings or name.startswith('validation')}


def test_a_run_that_was_ended_goes_on(made, tmp_path, monkeypatch, capsys):
    convert, asked = imagenet_builder.convert_files, []

    def dies(paths, **settings):
        asked.append(len(paths))
        for number, outcome in enumerate(convert(paths, **settings)):
            if number == 30 and len(asked) == 1:
                raise KeyboardInterrupt
            yield outcome

    monkeypatch.setattr(imagenet_builder, 'convert_files', dies)
    output = tmp_path / 'out'
    with pytest.raises(KeyboardInterrupt):
        _build(output, made / 'tars')
    folder = output / unfinished.FOLDER
    assert os.listdir(output) == [unfinished.FOLDER] and not dataset_info.existing_shards(str(output), 'train')
    assert dataset_info.existing_shards(str(folder), 'train') == ['train-00000-of-00004', 'train-00001-of-00004']
    assert (folder / 'train-00002-of-00004.part').exists()
    with open(folder / 'train-00001-of-00004', 'r+b') as shard:  # A power cut, and what it may leave.
        shard.truncate(shard.seek(0, os.SEEK_END) - 1)
    (folder / 'train-00003-of-00004').write_bytes(b'without a line in shards.jsonl')
    with open(folder / 'shards.jsonl', 'a') as rows:
        rows.write('{"name": "train-00003-')
    with pytest.raises(UserError, match='other files, labels, boxes or numbers of shards'):
        _build(output, made / 'tars', train_shards=3)
    _build(output, made / 'kaggle')  # The same set from elsewhere.
    assert asked[1:] == [36, 6] and 'going on: 1 of 4 shards are there' in capsys.readouterr().err
    assert _shards(output) == _shards(made / 'records') and not folder.exists()
    with pytest.raises(UserError, match='already holds train-00000-of-00004'):
        _build(output, made / 'tars')


def test_killed_while_shards_are_put_in_place(made, tmp_path, monkeypatch):
    output = tmp_path / 'out'
    rename = os.rename

    def once(source, target):
        if target.endswith('train-00002-of-00004'):
            monkeypatch.setattr(os, 'replace', lambda *paths: None)  # Killed: nothing is moved back.
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context():
        monkeypatch.setattr(os, 'rename', once)
        with pytest.raises(KeyboardInterrupt):
            _build(output, made / 'tars')
        monkeypatch.undo()
    assert list(_shards(output)) == ['train-00000-of-00004', 'train-00001-of-00004']
    monkeypatch.setattr(imagenet_builder, 'convert_files', lambda paths, **_: (one for one in paths))  # Of none.
    reports = _build(output, made / 'tars')
    assert _shards(output) == _shards(made / 'records') and [report.images for report in reports] == [48, 6]


def test_two_processes_at_once(made, tmp_path):
    with unfinished.open_folder(str(tmp_path), 'plan'):
        with pytest.raises(UserError, match='in use: another process'):
            _build(tmp_path, made / 'tars')


def test_unreadable_images_are_skipped_named_and_counted_after_going_on(made, tmp_path, monkeypatch, capsys):
    source = world.copy(made / 'kaggle', tmp_path / 'source')
    bad = source / 'ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_2.JPEG'
    bad.write_bytes(bad.read_bytes()[:-40])
    with pytest.raises(UserError, match='n01440764_2.JPEG: .*truncated'):
        _build(tmp_path / 'out', source, on_bad_image='fail')
    reports = _build(tmp_path / 'out', source)
    assert reports[0].images == 47 and [path for path, _ in reports[0].skipped] == [str(bad)]
    assert reports[0].kinds == '1 damaged JPEG' and f'skipped {bad}' in capsys.readouterr().err
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')).counts['train'] == 47


def _cut(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size * 2 // 3])


def _end(path):
    """Cut between two files."""
    with tarfile.open(path) as archive:
        third = archive.getmembers()[2]
    path.write_bytes(path.read_bytes()[:third.offset])


def _without(path):
    path.unlink()


def _lines(path, change):
    path.write_text(''.join(f'{line}\n' for line in change(path.read_text().splitlines())))


TRUTH_FILE = 'ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt'


@pytest.mark.parametrize('layout, change, message', [
    ('tars', lambda source: _cut(source / 'ILSVRC2012_img_train.tar'), 'img_train.tar is damaged or cut off'),
    ('tars', lambda source: _cut(source / 'ILSVRC2012_img_val.tar'), 'img_val.tar is damaged or cut off'),
    ('tars', lambda source: _cut(source / 'ILSVRC2012_devkit_t12.tar.gz'), 'devkit_t12.tar.gz is damaged or cut off'),
    ('tars', lambda source: _cut(source / 'ILSVRC2012_bbox_train_v2.tar.gz'), 'bbox_train_v2.tar.gz is damaged or cut'),
    ('tars', lambda source: (source / 'ILSVRC2012_img_train.tar').write_text('<html>login'), 'is no tar but HTML'),
    ('tars', lambda source: _without(source / 'ILSVRC2012_img_train.tar'), 'holds no train images.*--only_subset'),
    ('tars', lambda source: _without(source / 'ILSVRC2012_devkit_t12.tar.gz'), 'no file says the labels of'),
    ('tars', lambda source: _end(source / 'ILSVRC2012_img_val.tar'), 'img_val.tar is damaged or cut off .no end mark'),
    ('tree', lambda source: _lines(source / TRUTH_FILE, lambda lines: lines[:4]),
     r'has 4 lines, but there is an image ILSVRC2012_val_00000005'),
    ('tree', lambda source: _lines(source / TRUTH_FILE, lambda lines: [*lines[:2], '25', *lines[3:]]),
     'line 3 of the ground truth: 25 is none of the ILSVRC2012_IDs 1 to 24'),
    ('tree', lambda source: _lines(source / TRUTH_FILE, lambda lines: [*lines[:5], 'x']),
     'line 6 of the ground truth: x'),
    ('tree', lambda source: _cut(source / 'ILSVRC2012_devkit_t12/data/meta.mat'), 'meta.mat is damaged'),
    ('tree', lambda source: _without(source / 'ILSVRC2012_devkit_t12/data/meta.mat'), 'no file says the labels'),
    ('tree', lambda source: (source / 'train/n01440764').rename(source / 'train/n09999999'),
     "images of 'n09999999', which is none of the 24 synsets"),
    ('kaggle', lambda source: _lines(source / 'LOC_val_solution.csv', lambda lines: lines[:-2]),
     'LOC_val_solution.csv has no line for 2 of 6 validation images'),
    ('kaggle', lambda source: _lines(source / 'LOC_val_solution.csv', lambda lines: [*lines[:3], 'ILSVRC2012_val_1']),
     'LOC_val_solution.csv, line 4'),
    ('kaggle', lambda source: _lines(source / 'LOC_synset_mapping.txt', lambda lines: ['tench', *lines[1:]]),
     "LOC_synset_mapping.txt, line 1: 'tench'"),
    ('kaggle', lambda source: (source / 'imagenet_2012_bounding_boxes.csv').write_text('a.JPEG,1,2,3\n'),
     'imagenet_2012_bounding_boxes.csv, line 1'),
    ('kaggle', lambda source: (source / imagenet_labels.LABELS_2016).write_text('n01440764\ncat\n'),
     "synset_labels.txt, line 2: 'cat' is no synset"),
    ('kaggle', lambda source: (source / imagenet_labels.LABELS_2016).write_text('1\n2\n'),
     'holds ILSVRC2012_IDs, whose order only the meta.mat')])
def test_wrong_sources_are_one_line(made, layout, change, message, tmp_path):
    source = world.copy(made / layout, tmp_path / 'source')
    change(source)
    with pytest.raises(UserError, match=message) as caught:
        _build(tmp_path / 'out', source)
    assert '\n' not in str(caught.value) and not (tmp_path / 'out').exists()


def test_without_scipy(made, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'scipy.io', None)
    with pytest.raises(UserError, match='meta.mat is a file of MATLAB, and scipy.*pip install scipy, or put'):
        _build(tmp_path / 'out', made / 'tars')
    _build(tmp_path / 'out', made / 'kaggle')


def test_wrong_flags(made, tmp_path):
    for settings, message in [({'train_shards': 0}, '--train_shards=0'), ({'source': ''}, '--source is empty'),
                              ({'output_directory': ''}, '--output_directory'), ({'num_threads': 0}, '--num_threads')]:
        with pytest.raises(FlagError, match=message):
            checks.check_imagenet(config.ImagenetConfig(**{'source': 'a', 'output_directory': 'b'} | settings))
    for settings, message in [({'source': '/nope'}, '--source=/nope: there is no such folder'),
                              ({'bounding_box_file': '/nope.csv'}, '--bounding_box_file=/nope.csv'),
                              ({'validation_labels': '/nope'}, '--validation_labels=/nope'),
                              ({'train_directory': '/nope'}, '--train_directory=/nope'),
                              ({'train_shards': 99}, '--train_shards=99 is more than the 48 files')]:
        with pytest.raises(UserError, match=message):
            _build(tmp_path / 'out', **{'source': made / 'tree'} | settings)


def test_a_subset_of_the_synsets(made, tmp_path, capsys):
    (tmp_path / 'few.txt').write_text(f'{world.SYNSETS[5]}\n{world.SYNSETS[0]}\n')
    _build(tmp_path / 'out', made / 'kaggle', labels_file=tmp_path / 'few.txt', train_shards=1, validation_shards=1)
    info = json.loads((tmp_path / 'out/dataset.json').read_text())
    assert info['classes'] == ['thing 5, Res 5', 'thing 0, Res 0'] and info['counts'] == {'train': 4, 'validation': 3}
    assert 'does not name these synsets, their images are left out' in capsys.readouterr().err


