"""Folders of images become shards that hold each readable image once, under the right label."""

import os
import unicodedata

import pytest
import tensorflow as tf
from PIL import Image

from inception_mg import checks, config
from inception_mg.data import dataset_builder, dataset_info
from inception_mg.errors import FlagError, UserError


def _image(path, width=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (width, 8), (width * 7 % 256, 80, 120)).save(path, 'PNG')


def _photos(directory, **classes):
    """Makes the given number of little images per class; returns the directory."""
    for name, number in classes.items():
        (directory / name).mkdir(parents=True)
        for image in range(number):
            _image(directory / name / f'{name}{image}.png', 8 + image)
    return directory


def _build(train='', output='', **settings):
    settings = {'train_shards': 1, 'validation_shards': 1, 'num_threads': 1, 'allow_one_class': True} | settings
    build = config.BuildConfig(train_directory=str(train), output_directory=str(output), **{
        name: str(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()})
    checks.check_build(build)
    return dataset_builder.build_dataset(build)


def _shard(path) -> list[tuple[int, str, str]]:
    """Returns (label, text, file name) of each record of a shard."""
    records = []
    for serialized in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        feature = tf.train.Example.FromString(serialized).features.feature
        records.append((feature['image/class/label'].int64_list.value[0],
                        feature['image/class/text'].bytes_list.value[0].decode(),
                        feature['image/filename'].bytes_list.value[0].decode()))
    return records


def _records(output, subset='train') -> list[tuple[int, str, str]]:
    return [record for path in dataset_info.shard_paths(str(output), subset) for record in _shard(path)]


def _names(folder):
    return sorted(os.listdir(folder))


def test_labels_start_at_one_and_are_written_beside_the_records(tmp_path):
    train = _photos(tmp_path / 'photos', e=2, d=2, c=2, b=2, a=2)
    _build(train, tmp_path / 'out')
    records = _records(tmp_path / 'out')
    assert {(label, text) for label, text, _ in records} == set(enumerate('abcde', start=1))
    assert all(text == name[0] for _, text, name in records)
    assert (tmp_path / 'out/labels.txt').read_text() == 'a\nb\nc\nd\ne\n'
    info = dataset_info.read_dataset_info(str(tmp_path / 'out'))
    assert info == dataset_info.DatasetInfo(tuple('abcde'), {'train': 10}, {'train': 1})
    assert info.num_outputs == 6


def test_shards_differ_by_one_at_most_and_do_not_depend_on_the_processes(tmp_path):
    train = _photos(tmp_path / 'photos', cat=9, dog=8)
    for shards, threads in ((1, 2), (2, 3), (7, 5)):
        contents = []
        for processes in (1, threads):
            output = tmp_path / f'{shards}-{processes}'
            report, = _build(train, output, train_shards=shards, num_threads=processes)
            paths = dataset_info.shard_paths(str(output), 'train')
            sizes = [len(_shard(path)) for path in paths]
            assert len(sizes) == shards and max(sizes) - min(sizes) <= 1
            assert sum(sizes) == report.images == 17 and len(set(_records(output))) == 17
            assert report.bytes == sum(map(os.path.getsize, paths))
            contents.append([open(path, 'rb').read() for path in paths])
        assert contents[0] == contents[1]


def test_images_are_shuffled_the_same_way_each_time(tmp_path):
    train = _photos(tmp_path / 'photos', cat=10, dog=10)
    _build(train, tmp_path / 'a')
    _build(train, tmp_path / 'b')
    labels = [label for label, _, _ in _records(tmp_path / 'a')]
    assert labels != sorted(labels)
    assert _records(tmp_path / 'a') == _records(tmp_path / 'b')


def test_three_bad_files_are_named_and_skipped_and_the_rest_is_written(tmp_path, capsys):
    train = _photos(tmp_path / 'photos', cat=10, dog=7)
    whole = (train / 'cat/cat0.png').read_bytes()
    (train / 'cat/cut.jpg').write_bytes(whole[:-30])
    (train / 'dog/empty.jpg').write_bytes(b'')
    (train / 'dog/notes.jpg').write_bytes(b'not a photo')
    report, = _build(train, tmp_path / 'out', train_shards=3, num_threads=2)
    assert report.images == len(_records(tmp_path / 'out')) == 17
    assert {os.path.basename(path) for path, _ in report.skipped} == {'cut.jpg', 'empty.jpg', 'notes.jpg'}
    said = capsys.readouterr().err
    for path, reason in report.skipped:
        assert f'skipped {path}: {reason}' in said
    sizes = [len(_shard(path)) for path in dataset_info.shard_paths(str(tmp_path / 'out'), 'train')]
    assert sorted(sizes) == [5, 6, 6]
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')).counts == {'train': 17}


def test_fail_mode_names_the_file_and_puts_nothing_in_place(tmp_path):
    train = _photos(tmp_path / 'photos', cat=5)
    (train / 'cat/bad.jpg').write_bytes(b'')
    with pytest.raises(UserError, match='cat/bad.jpg: the file is empty'):
        _build(train, tmp_path / 'out', on_bad_image='fail', num_threads=2)
    assert _names(tmp_path / 'out') == []


def test_too_few_readable_images_put_nothing_in_place(tmp_path):
    train = _photos(tmp_path / 'photos', cat=2)
    (train / 'cat/bad.jpg').write_bytes(b'')
    with pytest.raises(UserError, match='of 3 files.*only 2.*--train_shards=3'):
        _build(train, tmp_path / 'out', train_shards=3)
    (tmp_path / 'none/cat').mkdir(parents=True)
    (tmp_path / 'none/cat/a.jpg').write_bytes(b'text')
    with pytest.raises(UserError, match='only 0'):
        _build(tmp_path / 'none', tmp_path / 'out')
    assert _names(tmp_path / 'out') == []


@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError('No space left on device')])
def test_interrupted_while_renaming_leaves_nothing(tmp_path, monkeypatch, error):
    train = _photos(tmp_path / 'photos', cat=5)
    rename = os.rename

    def rename_once(source, target):
        if target.endswith('train-00001-of-00002'):
            raise error
        rename(source, target)

    monkeypatch.setattr(os, 'rename', rename_once)
    with pytest.raises(UserError if isinstance(error, OSError) else error):
        _build(train, tmp_path / 'out', train_shards=2)
    assert _names(tmp_path / 'out') == []


def test_more_shards_than_images(tmp_path):
    with pytest.raises(UserError, match='--train_shards=9 is more than the 4 files'):
        _build(_photos(tmp_path / 'photos', cat=4), tmp_path / 'out', train_shards=9)
    assert not (tmp_path / 'out').exists()


def test_both_directories_share_the_classes(tmp_path, capsys):
    train = _photos(tmp_path / 'train', ant=3, bee=3, cow=3)
    validation = _photos(tmp_path / 'validation', bee=1, cow=2)
    reports = _build(train, tmp_path / 'out', validation_directory=validation)
    assert [(report.subset, report.images, report.classes) for report in reports] == [
        ('train', 9, 3), ('validation', 3, 2)]
    assert {record[:2] for record in _records(tmp_path / 'out', 'validation')} == {(2, 'bee'), (3, 'cow')}
    assert "warning: validation: no image of 'ant'" in capsys.readouterr().err


def test_an_unknown_class_in_validation(tmp_path):
    train = _photos(tmp_path / 'train', ant=3)
    validation = _photos(tmp_path / 'validation', ant=1, ants=2)
    labels = tmp_path / 'labels'
    labels.write_text('ant\n')
    for settings in ({}, {'labels_file': labels}):
        with pytest.raises(UserError, match="--validation_directory=.*'ants'.*none of the 1 classes"):
            _build(train, tmp_path / 'out', validation_directory=validation, **settings)


def test_only_validation(tmp_path):
    _build('', tmp_path / 'out', validation_directory=_photos(tmp_path / 'photos', ant=3))
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')).counts == {'validation': 3}


def test_validation_added_later_keeps_the_labels_of_training(tmp_path):
    _build(_photos(tmp_path / 'train', ant=3, bee=3), tmp_path / 'out')
    _build('', tmp_path / 'out', validation_directory=_photos(tmp_path / 'validation', bee=2))
    assert {record[0] for record in _records(tmp_path / 'out', 'validation')} == {2}
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')) == dataset_info.DatasetInfo(
        ('ant', 'bee'), {'train': 6, 'validation': 2}, {'train': 1, 'validation': 1})


def test_nothing_is_overwritten(tmp_path):
    train, output = _photos(tmp_path / 'train', ant=3), tmp_path / 'out'
    _build(train, output)
    before = {name: (output / name).read_bytes() for name in _names(output)}
    with pytest.raises(UserError, match='already holds train-00000-of-00001'):
        _build(train, output, train_shards=2)
    with pytest.raises(UserError, match="dataset.json lists other classes .*'ant' there and 'bee' here"):
        _build('', output, validation_directory=_photos(tmp_path / 'other', bee=1),
               labels_file=_labels(tmp_path, b'bee'))
    assert {name: (output / name).read_bytes() for name in _names(output)} == before
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine/labels.txt').write_text('zebra\n')
    with pytest.raises(UserError, match='labels.txt lists other classes'):
        _build(train, tmp_path / 'mine')
    (tmp_path / 'mine/labels.txt').write_text('ant\r\n\r\n')  # The user's own list of the same classes stays.
    _build(train, tmp_path / 'mine')
    assert (tmp_path / 'mine/labels.txt').read_bytes() == b'ant\r\n\r\n'


def _labels(tmp_path, content: bytes):
    path = tmp_path / 'labels_file'
    path.write_bytes(content)
    return path


@pytest.mark.parametrize('content', [
    b'cow\nant\n', b'cow\nant', b'\xef\xbb\xbfcow\r\nant\r\n', b'\n cow  \n\n\tant\n\n', b'cow\rant\r',
    b'background\ncow\nant\n'])
def test_labels_files_as_people_write_them(tmp_path, content, capsys):
    train = _photos(tmp_path / 'train', ant=2, bee=2, cow=2)
    _build(train, tmp_path / 'out', labels_file=_labels(tmp_path, content))
    assert {record[:2] for record in _records(tmp_path / 'out')} == {(1, 'cow'), (2, 'ant')}
    said = capsys.readouterr().err
    assert "ignored: 'bee'" in said
    assert ('is label 0' in said) == content.startswith(b'background')


@pytest.mark.parametrize('content, message', [
    (b'ant\nbee\nant\n', "names 'ant' more than once"),
    (b'ant\nwolf\n', "names 'wolf', but .* has no such folder"),
    (b'\n\n', 'names no class'),
    ('ant\n'.encode('utf-16'), 'is not UTF-8'),
])
def test_labels_files_that_are_refused(tmp_path, content, message):
    train = _photos(tmp_path / 'train', ant=2, bee=2)
    with pytest.raises(UserError, match=message):
        _build(train, tmp_path / 'out', labels_file=_labels(tmp_path, content))
    with pytest.raises(UserError, match='cannot read the labels file'):
        _build(train, tmp_path / 'out', labels_file=tmp_path / 'gone')


def test_background_is_a_class_if_it_has_a_folder(tmp_path):
    train = _photos(tmp_path / 'train', background=2, cow=2)
    _build(train, tmp_path / 'out', labels_file=_labels(tmp_path, b'background\ncow\n'))
    assert {record[:2] for record in _records(tmp_path / 'out')} == {(1, 'background'), (2, 'cow')}


def test_odd_class_names(tmp_path):
    names = ['two words', 'Äpfel', '猫', 'v1.0', 'x.png', 'train-00000-of-00002', 'say "hi"', 'a,b',
             "it's", '#1', '%s{0}']
    for name in names:
        _image(tmp_path / 'train' / name / 'photo.png')
    for source in ('', _labels(tmp_path, '\n'.join(names).encode())):
        output = tmp_path / f'out{bool(source)}'
        _build(tmp_path / 'train', output, labels_file=source)
        expected = names if source else sorted(names)
        assert {record[:2] for record in _records(output)} == set(enumerate(expected, start=1))
        assert (output / 'labels.txt').read_text(encoding='utf-8').split('\n')[:-1] == expected
        assert dataset_info.read_dataset_info(str(output)).classes == tuple(expected)


def test_accents_taken_apart_in_folder_names_match_the_file(tmp_path):
    _image(tmp_path / 'train' / unicodedata.normalize('NFD', 'Äpfel') / 'a.png')
    _build(tmp_path / 'train', tmp_path / 'out', labels_file=_labels(tmp_path, 'Äpfel'.encode()))
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')).classes == ('Äpfel',)


@pytest.mark.parametrize('name', ['two\nlines', os.fsdecode(b'latin-\xe9')])
def test_folder_names_that_no_labels_file_can_hold(tmp_path, name):
    _image(tmp_path / 'train' / name / 'a.png')
    with pytest.raises(UserError, match='cannot be a class name'):
        _build(tmp_path / 'train', tmp_path / 'out')


def test_an_empty_folder_is_a_class_only_if_a_labels_file_says_so(tmp_path, capsys):
    train = _photos(tmp_path / 'train', ant=2, bee=0, cow=2)
    validation = _photos(tmp_path / 'validation', ant=1, eel=0)
    _build(train, tmp_path / 'without', validation_directory=validation)
    assert {record[:2] for record in _records(tmp_path / 'without')} == {(1, 'ant'), (2, 'cow')}
    assert "empty folders are no classes: 'bee'" in capsys.readouterr().err
    _build(train, tmp_path / 'out', labels_file=_labels(tmp_path, b'ant\nbee\ncow\n'))
    assert {record[:2] for record in _records(tmp_path / 'out')} == {(1, 'ant'), (3, 'cow')}
    assert "no image of 'bee'" in capsys.readouterr().err
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')).num_outputs == 4


def test_what_is_taken_from_a_class_folder(tmp_path):
    train = _photos(tmp_path / 'train', ant=1)
    _image(train / 'ant/2019/summer/deep.png')
    _image(train / 'ant/photo-without-suffix')
    _image(train / 'ant' / os.fsdecode(b'latin-\xe9.png'))
    for hidden in ('.DS_Store', 'Thumbs.db', '._ant0.png'):
        (train / 'ant' / hidden).write_bytes(b'junk')
    _image(train / '.hidden/a.png')
    _image(tmp_path / 'elsewhere/linked.png')
    (train / 'ant/link').symlink_to(tmp_path / 'elsewhere')
    (train / 'ant/loop').symlink_to(train / 'ant')
    (train / 'bee').symlink_to(tmp_path / 'elsewhere')
    report, = _build(train, tmp_path / 'out')
    assert report.skipped == ()
    assert report.images == 6
    assert dataset_info.read_dataset_info(str(tmp_path / 'out')).classes == ('ant', 'bee')


def test_directories_that_do_not_fit(tmp_path, capsys):
    photos = _photos(tmp_path / 'photos', ant=2)
    (tmp_path / 'file').write_bytes(b'')
    with pytest.raises(UserError, match='--train_directory=/nope: there is no such folder'):
        _build('/nope', tmp_path / 'out')
    with pytest.raises(UserError, match='lies inside --train_directory'):
        _build(photos, photos / 'records')
    with pytest.raises(UserError, match='lies inside --train_directory'):
        _build(photos, tmp_path / 'out', validation_directory=photos / 'ant')
    with pytest.raises(UserError, match='holds no folder: put the images of each class'):
        _build(photos / 'ant', tmp_path / 'out')
    with pytest.raises(UserError, match='holds no file in any folder'):
        _build(_photos(tmp_path / 'empty', ant=0), tmp_path / 'out')
    with pytest.raises(UserError, match='cannot write to --output_directory'):
        _build(photos, photos.parent / 'file/out')
    _build(photos, tmp_path / 'out', validation_directory=photos)
    assert 'are the same folder' in capsys.readouterr().err


@pytest.mark.parametrize('settings, flag', [
    ({'train_shards': 0}, 'train_shards'), ({'validation_shards': 100000}, 'validation_shards'),
    ({'num_threads': 0}, 'num_threads'), ({'jpeg_quality': 101}, 'jpeg_quality'),
    ({'on_bad_image': 'cry'}, 'on_bad_image'), ({'train_directory': ''}, 'train_directory'),
    ({'output_directory': ''}, 'output_directory')])
def test_settings_out_of_range(settings, flag):
    checks.check_build(config.BuildConfig(train_directory='a', output_directory='b'))
    with pytest.raises(FlagError, match=f'--{flag}'):
        checks.check_build(config.BuildConfig(**{'train_directory': 'a', 'output_directory': 'b'} | settings))


@pytest.mark.parametrize('folder', ['lost+found', '$Recycle.Bin', '@eaDir', 'System Volume Information',
                                    '#recycle', 'FOUND.000'])
def test_folders_of_systems_are_no_classes_and_named(tmp_path, capsys, folder):
    train = _photos(tmp_path / 'train', ant=1, bee=1)
    for place in (train, train / 'ant'):
        _image(place / folder / 'thumb.png')
    report, = _build(train, tmp_path / 'out')
    assert report.images == 2 and dataset_info.read_dataset_info(str(tmp_path / 'out')).classes == ('ant', 'bee')
    said = capsys.readouterr().err
    assert repr(str(train / folder)) in said and repr(str(train / 'ant' / folder)) in said
    labels = _labels(tmp_path, f'ant\n{folder}\n'.encode())  # Somebody's class may be called so.
    assert _build(train, tmp_path / 'named', labels_file=labels)[0].classes == 2


def test_layouts_that_are_one_folder_off_are_refused(tmp_path):
    one = _photos(tmp_path / 'all/photos', ant=1, bee=1).parent
    with pytest.raises(UserError, match="one class only, 'photos', which holds only folders .'ant', 'bee'"):
        _build(one, tmp_path / 'out', allow_one_class=False)
    with pytest.raises(UserError, match='one class only.*--allow_one_class'):
        _build(_photos(tmp_path / 'single', ant=2), tmp_path / 'out', allow_one_class=False)
    _photos(tmp_path / 'all/more', ant=1)
    with pytest.raises(UserError, match="'more', 'photos' holds only folders .*--allow_nested_folders"):
        _build(one, tmp_path / 'out')
    assert _build(one, tmp_path / 'out', allow_nested_folders=True)[0].images == 3


def test_links_that_lead_nowhere_or_round_are_counted(tmp_path, capsys):
    train = _photos(tmp_path / 'train', ant=1, bee=1)
    (train / 'ant/self').symlink_to('self')
    (train / 'one').symlink_to(train / 'two')
    (train / 'two').symlink_to(train / 'one')
    for number in range(12):  # Each leads to all: every path through them would be 12! folders.
        (train / f'ant/ring{number}').mkdir()
        for other in range(12):
            (train / f'ant/ring{number}/to{other}').symlink_to(train / f'ant/ring{other}')
    os.mkfifo(train / 'bee/pipe')
    _image(train / 'bee/two\nlines.png')
    report, = _build(train, tmp_path / 'out')
    assert report.images == 3 and report.kinds == '1 link, 1 not a file' or report.kinds == '1 not a file, 1 link'
    assert 'files beside the class folders are ignored: 2' in capsys.readouterr().err
