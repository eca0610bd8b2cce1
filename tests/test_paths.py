"""Paths given by flags: what they mean, and which are refused; and that every program reads them so."""

import dataclasses
import os

import pytest

from inception_mg import config, paths
from inception_mg.errors import FlagError


@pytest.mark.parametrize('letter', '*?[]{}\\')
@pytest.mark.parametrize('kind', [paths.FOLDER, paths.CHECKPOINT])
def test_a_pattern_is_refused(letter, kind, tmp_path):
    for path in (f'p/a{letter}', str(tmp_path / f'a{letter}b' / 'run')):
        with pytest.raises(FlagError, match='--train_dir=.* as a pattern') as caught:
            paths.settle('--train_dir', path, kind)
        assert caught.value.exit_code == 2 and '\n' not in str(caught.value)


def test_a_pattern_above_a_relative_path_is_refused(tmp_path, monkeypatch):
    (tmp_path / 'project [2]').mkdir()
    monkeypatch.chdir(tmp_path / 'project [2]')
    with pytest.raises(FlagError, match=r'--train_dir=run \(as .*project \[2\]/run\) holds \['):
        paths.settle('--train_dir', 'run')
    assert paths.settle('--data_dir', 'x[1]', paths.RECORDS) == 'x[1]'  # Listed by name: nothing is a pattern there.


@pytest.mark.parametrize('path', ['gs://b/run', 's3://b', 'hdfs://n/run', 'ram://x'])
@pytest.mark.parametrize('kind', [paths.FOLDER, paths.RECORDS, paths.CHECKPOINT, paths.FILE])
def test_a_scheme_is_refused_where_none_may_be(path, kind):
    with pytest.raises(FlagError, match=f'--f={path}: '):
        paths.settle('--f', path, kind)


@pytest.mark.parametrize('kind', [paths.FOLDER, paths.RECORDS, paths.CHECKPOINT])
def test_a_remote_path_keeps_its_scheme(kind):
    assert paths.settle('--f', 'GS://b/run//', kind, remote=True) == 'gs://b/run'
    assert paths.scheme_of('gs://b/run') == 'gs' and paths.scheme_of('/gs://b') == ''
    for path, words in (('gs://', 'name a folder in it'), ('gs:///', 'name a folder in it'),
                        ('gs:/b/run', 'write gs:// for a file system'), ('s3:/b', 'write s3://')):
        with pytest.raises(FlagError, match=words):
            paths.settle('--f', path, kind, remote=True)
    if kind != paths.RECORDS:
        with pytest.raises(FlagError, match='as a pattern'):
            paths.settle('--f', 'gs://b/run*', kind, remote=True)


def test_a_remote_checkpoint_by_any_of_its_files():
    for name in ('', '/checkpoint'):
        assert paths.settle('--f', f'gs://b/run{name}', paths.CHECKPOINT, remote=True) == 'gs://b/run'
    for name in ('.index', '.data-00000-of-00001', ''):
        assert paths.settle('--f', f'gs://b/model.ckpt-4{name}', paths.CHECKPOINT, remote=True) == 'gs://b/model.ckpt-4'


def test_file_urls_are_paths_of_this_machine(tmp_path):
    for path in (f'file://{tmp_path}/run', f'FILE://localhost{tmp_path}/run/'):
        assert paths.settle('--f', path) == str(tmp_path / 'run')
    for path in ('file://run', 'file://host/run'):
        with pytest.raises(FlagError, match='write file:///'):
            paths.settle('--f', path)


def test_home_and_slashes(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert paths.settle('--f', '~/run//') == str(tmp_path / 'run')
    assert paths.settle('--f', '~') == str(tmp_path)
    assert paths.settle('--f', './~/run') == './~/run'
    assert (paths.settle('--f', ''), paths.settle('--f', '/')) == ('', '/')
    with pytest.raises(FlagError, match='no such user'):
        paths.settle('--f', '~nobody-of-this-name/run')


@pytest.mark.parametrize('path', ['  ', 'a\nb', 'a\x00b', 'r\udce9'])
def test_names_that_cannot_be_written_down(path):
    with pytest.raises(FlagError) as caught:
        paths.settle('--f', path)
    str(caught.value).encode()


def test_a_file_where_a_folder_is_meant(tmp_path):
    (tmp_path / 'file').write_text('')
    (tmp_path / 'link').symlink_to(tmp_path / 'gone')
    (tmp_path / 'fine').symlink_to(tmp_path)
    for path, words in ((tmp_path / 'file', 'is a file'), (tmp_path / 'file' / 'run', 'file is a file'),
                        (tmp_path / 'link', 'is a link to .*gone, which is not there')):
        with pytest.raises(FlagError, match=words):
            paths.settle('--f', str(path))
    assert paths.settle('--f', str(tmp_path / 'fine')) == str(tmp_path / 'fine')
    with pytest.raises(FlagError, match='is a folder'):
        paths.settle('--f', str(tmp_path), paths.FILE)


@pytest.mark.parametrize('name', ['model.ckpt-4.index', 'model.ckpt-4.data-00000-of-00001', 'model.ckpt-4.meta',
                                  'model.ckpt-4/', 'model.ckpt-4'])
def test_a_checkpoint_by_any_of_its_files(name, tmp_path):
    (tmp_path / 'model.ckpt-4.index').write_text('')
    assert paths.settle('--f', f'{tmp_path}/{name}', paths.CHECKPOINT) == str(tmp_path / 'model.ckpt-4')


def test_the_state_file_stands_for_its_folder(tmp_path, monkeypatch):
    (tmp_path / 'checkpoint').write_text('')
    assert paths.settle('--f', str(tmp_path / 'checkpoint'), paths.CHECKPOINT) == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert paths.settle('--f', 'checkpoint', paths.CHECKPOINT) == '.'
    os.mkdir('x')
    os.mkdir('x/checkpoint')  # A folder of that name is one.
    assert paths.settle('--f', 'x/checkpoint', paths.CHECKPOINT) == 'x/checkpoint'


def test_every_flag_that_is_a_path_is_listed():
    names = {field.name for value in vars(config).values() if dataclasses.is_dataclass(value)
             for field in dataclasses.fields(value) if field.type is str}
    looks = {name for name in names if name.endswith(('_dir', 'directory', '_file', '_path', 'input', 'json', 'png'))}
    assert looks <= set(paths.FLAGS)
