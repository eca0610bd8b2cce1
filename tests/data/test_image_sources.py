"""A share of one folder for validation, lists of images, and archives of classes."""

import io
import os
import tarfile

import pytest
import tensorflow as tf
from PIL import Image

from inception_mg import checks, config
from inception_mg.data import archives, dataset_builder, dataset_info, image_list, sources
from inception_mg.errors import FlagError, UserError


def _build(output, **settings):
    settings = {'train_shards': 1, 'validation_shards': 1, 'num_threads': 1} | settings
    build = config.BuildConfig(output_directory=str(output), **{
        name: str(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()})
    checks.check_build(build)
    return dataset_builder.build_dataset(build)


def _records(output) -> dict[str, set[tuple[int, str, str]]]:
    """{subset: (label, class, file) of each record}."""
    found = {}
    for subset in dataset_info.read_dataset_info(str(output)).counts:
        found[subset] = set()
        for serialized in tf.data.TFRecordDataset(dataset_info.shard_paths(str(output), subset)).as_numpy_iterator():
            feature = tf.train.Example.FromString(serialized).features.feature
            found[subset].add((feature['image/class/label'].int64_list.value[0],
                               feature['image/class/text'].bytes_list.value[0].decode(),
                               feature['image/filename'].bytes_list.value[0].decode()))
    return found


@pytest.fixture
def photos(tmp_path):
    """30 images of rose and 30 of tulip, and a licence, as flower_photos has them."""
    jpeg = io.BytesIO()
    Image.new('RGB', (8, 8), (200, 80, 120)).save(jpeg, 'JPEG')
    for name in ('rose', 'tulip'):
        (tmp_path / 'photos' / name).mkdir(parents=True)
        for number in range(30):
            (tmp_path / 'photos' / name / f'{name}{number}.jpg').write_bytes(jpeg.getvalue())
    (tmp_path / 'photos/LICENSE.txt').write_text('CC-BY')
    return tmp_path / 'photos'


def test_a_share_becomes_the_validation_set_and_added_images_move_no_others(photos, tmp_path, capsys):
    _build(tmp_path / 'a', train_directory=photos, validation_split=.2)
    before = _records(tmp_path / 'a')
    assert len(before['train'] | before['validation']) == 60 and not before['train'] & before['validation']
    assert 5 <= len(before['validation']) <= 20 and {text for _, text, _ in before['validation']} == {'rose', 'tulip'}
    assert 'files beside the class folders are ignored: 1' in capsys.readouterr().err
    for number in range(30, 60):
        os.link(photos / 'rose/rose0.jpg', photos / f'rose/new{number}.jpg')
    (photos / 'tulip/tulip0.jpg').unlink()
    photos.rename(tmp_path / 'elsewhere')
    _build(tmp_path / 'b', train_directory=tmp_path / 'elsewhere', validation_split=.2)
    after = _records(tmp_path / 'b')
    for subset in before:
        assert {row for row in after[subset] if 'new' not in row[2]} == {
            row for row in before[subset] if row[2] != 'tulip0.jpg'}
    assert any('new' in row[2] for row in after['validation'])


def test_the_share_is_the_one_asked_for():
    for share in (.05, .15, .5):
        chosen = sum(sources.in_validation(f'rose/{number}.jpg', share) for number in range(4000))
        assert abs(chosen / 4000 - share) < .03
    assert sources.in_validation('rose/été.jpg', .5) == sources.in_validation('rose/e\u0301te\u0301.jpg', .5)
    assert all(sources.in_validation(str(number), .5) for number in range(200) if
               sources.in_validation(str(number), .2))  # A larger share keeps all of a smaller one.


@pytest.mark.parametrize('mode', ['w', 'w:gz', 'w:xz'])
@pytest.mark.parametrize('top', ['flower_photos/', './flower_photos/', ''])
def test_an_archive_gives_the_records_of_its_folder(photos, tmp_path, mode, top):
    with tarfile.open(tmp_path / 'photos.tgz', mode) as archive:
        for path in reversed(sorted(photos.rglob('*'))):
            archive.add(path, f'{top}{path.relative_to(photos)}', recursive=False)
        archive.add(photos / 'LICENSE.txt', f'{top}rose/._rose1.jpg')  # As macOS packs.
        archive.add(photos / 'LICENSE.txt', f'__MACOSX/{top}rose/rose1.jpg')
    _build(tmp_path / 'folder', train_directory=photos, validation_split=.2)
    _build(tmp_path / 'archive', train_directory=tmp_path / 'photos.tgz', validation_split=.2,
           num_threads=2 if top + mode == 'w' else 1)
    assert sorted(os.listdir(tmp_path / 'archive')) == sorted(os.listdir(tmp_path / 'folder'))  # No copy is left.
    for path in (tmp_path / 'folder').iterdir():
        assert path.read_bytes() == (tmp_path / 'archive' / path.name).read_bytes()


@pytest.mark.parametrize('mode', ['w', 'w:gz', 'w:bz2', 'w:xz'])
def test_a_tar_that_is_cut_anywhere_is_refused(photos, tmp_path, mode):
    path = tmp_path / 'photos.tar'
    with tarfile.open(path, mode) as archive:
        archive.add(photos, 'photos')
    whole = path.read_bytes()
    end = len(whole) if mode != 'w' else len(whole.rstrip(b'\0'))
    for size in (*range(600, end, end // 7), end // 1024 * 512, end - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match='photos.tar is damaged or cut off|is empty'):
            _build(tmp_path / 'out', train_directory=path, validation_split=.2)
    with pytest.raises(UserError, match='damaged or cut off'):
        list(archives.contents_of(str(path), 'nothing'))
    assert not os.path.exists(tmp_path / 'out') or not os.listdir(tmp_path / 'out')


def test_what_is_no_archive(photos, tmp_path):
    for content, kind in ((b'PK\x03\x04' + bytes(99), 'ZIP'), (b'<html>', 'HTML'), (b'', 'empty'), (b'x,y', 'text')):
        (tmp_path / 'photos.tgz').write_bytes(content)
        with pytest.raises(UserError, match=f'photos.tgz is no tar but {kind}'):
            _build(tmp_path / 'out', train_directory=tmp_path / 'photos.tgz')


def _list(tmp_path, text: str, **settings):
    (tmp_path / 'list.csv').write_text(text, encoding='utf-8')
    return _build(tmp_path / 'out', image_list=tmp_path / 'list.csv', **settings)


@pytest.mark.parametrize('text', [
    'photos/rose/rose1.jpg,red rose,train\nphotos/tulip/tulip1.jpg,tulip,train\nphotos/rose/rose2.jpg,red rose,val\n',
    '\ufeffpath,label,split\r\nphotos/rose/rose1.jpg,red rose,train\r\nphotos/tulip/tulip1.jpg,tulip,Training\r\n'
    'photos/rose/rose2.jpg,red rose,validation\r\n',
    'id;split;class;filename\n1;train;red rose;photos/rose/rose1.jpg\n2;train;tulip;./photos/tulip/tulip1.jpg\n\n'
    '3;valid; red rose ;photos//rose/rose2.jpg\n',
    '"{0}/photos/rose/rose1.jpg","red rose",train\n{0}/photos/tulip/tulip1.jpg,tulip,train\n'
    '{0}/photos/rose/rose2.jpg,red rose,validation\n'])
def test_lists_as_people_write_them(photos, tmp_path, text):
    _list(tmp_path, text.format(tmp_path))
    assert _records(tmp_path / 'out') == {
        'train': {(1, 'red rose', 'rose1.jpg'), (2, 'tulip', 'tulip1.jpg')},
        'validation': {(1, 'red rose', 'rose2.jpg')}}


def test_a_list_without_splits(photos, tmp_path):
    text = ''.join(f'{path.relative_to(tmp_path)},{path.parent.name}\n' for path in photos.glob('*/*.jpg'))
    _list(tmp_path, text, validation_split=.2)
    records = _records(tmp_path / 'out')
    assert 5 <= len(records['validation']) <= 20 and len(records['train'] | records['validation']) == 60
    for name in os.listdir(tmp_path / 'out'):
        (tmp_path / 'out' / name).unlink()
    (tmp_path / 'labels').write_text('tulip\nrose\n')
    _list(tmp_path, text, labels_file=tmp_path / 'labels')
    assert {row[:2] for row in _records(tmp_path / 'out')['train']} == {(1, 'tulip'), (2, 'rose')}


@pytest.mark.parametrize('text, message', [
    ('photos/rose/rose1.jpg,rose\nphotos/rose/gone.jpg,rose\n', 'list.csv, line 2: .*gone.jpg: No such file'),
    ('path,label\nphotos/rose/rose1.jpg,rose\n./photos/rose/rose1.jpg,tulip\n', 'line 3: .* is listed in line 2 too'),
    ('photos/rose/rose1.jpg,rose,test\n', "line 1: the split 'test' is unknown: write train or validation"),
    ('photos/rose/rose1.jpg,rose,\n', "line 1: the split '' is unknown"),
    ('photos/rose/rose1.jpg,\n', 'line 1: the label is empty'), (',rose\n', 'line 1: the path is empty'),
    ('photos/rose,rose\n', 'line 1: .*photos/rose is no file'),
    ('photos/rose/rose1.jpg\n', 'line 1: 1 columns'), ('path,colour\na,b\n', 'no column is called label'),
    ('photos/rose/rose1.jpg,rose\nphotos/rose/rose2.jpg,a,b\n', 'line 2: 3 columns instead of 2'),
    ('path,label\nphotos/rose/rose1.jpg\n', 'line 2: 1 columns, where 2 are needed'),
    ('', 'list.csv is empty'), ('path,label\n', 'has a header and no image'), ('a\0,b\n', 'is no text'),
    ('photos/rose/rose1.jpg,rose\nphotos/rose/rose2.jpg,rose\n', "has one label only, 'rose'"),
    ('photos/rose/rose1.jpg,"a\nb"\n', 'cannot be a class name')])
def test_lists_that_are_refused_in_one_line(photos, tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        _list(tmp_path, text)
    assert '\n' not in str(caught.value) and not (tmp_path / 'out').exists()


def test_other_wrong_lists(photos, tmp_path):
    with pytest.raises(UserError, match='cannot read --image_list=.*gone.csv: No such file'):
        image_list.read_image_list(str(tmp_path / 'gone.csv'))
    (tmp_path / 'list.csv').write_bytes('path,label\nä,b\n'.encode('utf-16'))
    with pytest.raises(UserError, match='is not UTF-8'):
        image_list.read_image_list(str(tmp_path / 'list.csv'))
    rows = 'photos/rose/rose1.jpg,rose,train\nphotos/tulip/tulip1.jpg,tulip,validation\n'
    with pytest.raises(UserError, match='has a column of splits: leave --validation_split out'):
        _list(tmp_path, rows, validation_split=.1)
    with pytest.raises(UserError, match='gives no image of validation'):
        _list(tmp_path, rows.replace(',train', '').replace(',validation', ''), validation_split=1e-9)


@pytest.mark.parametrize('settings, message', [
    ({'validation_split': 1.}, 'validation_split=1.0 is no share'), ({'validation_split': -.1}, 'is no share'),
    ({'validation_split': .1, 'validation_directory': 'b'}, 'leave --validation_directory out'),
    ({'validation_split': .1, 'validation_directory': 'b', 'train_directory': ''}, 'leave --validation_directory out'),
    ({'image_list': 'a.csv'}, '--image_list and a folder')])
def test_flags_that_do_not_go_together(settings, message):
    with pytest.raises(FlagError, match=message):
        checks.check_build(config.BuildConfig(**{'train_directory': 'a', 'output_directory': 'o'} | settings))
