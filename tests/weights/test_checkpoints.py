"""Which checkpoint is the newest whole one: with a state file that is lost, and files that are missing or cut."""

import os

import pytest
import tensorflow as tf

from inception_mg.errors import UserError
from inception_mg.weights.checkpoints import fault_of, find_checkpoint, newest_checkpoint

v1 = tf.compat.v1


@pytest.fixture
def folder(tmp_path) -> str:
    """model.ckpt-2, -4 and -10 of one small variable."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable('x', [100], use_resource=True)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(max_to_keep=None, save_relative_paths=True)
        for step in (2, 4, 10):
            saver.save(session, str(tmp_path / 'model.ckpt'), step, write_meta_graph=False)
    return str(tmp_path)


def _newest(folder: str) -> tuple[str, list[str]]:
    lines: list[str] = []
    return os.path.basename(newest_checkpoint(folder, lines.append) or ''), lines


@pytest.mark.parametrize('state', [None, b'', b'\xff\x00garbage', b'model_checkpoint_path: "model.ck', b'{"a": 1}'])
def test_without_its_state_file(folder, state):
    path = os.path.join(folder, 'checkpoint')
    os.unlink(path)
    if state is not None:
        with open(path, 'wb') as file:
            file.write(state)
    name, lines = _newest(folder)
    assert name == 'model.ckpt-10'  # By number, not by letters.
    assert len(lines) == 1 and path in lines[0] and 'taking model.ckpt-10' in lines[0]


@pytest.mark.parametrize('file, size, why', [
    ('model.ckpt-10.index', None, '.index is missing'), ('model.ckpt-10.data-00000-of-00001', None, '0 of its files'),
    ('model.ckpt-10.index', 20, '.index is cut or damaged'), ('model.ckpt-10.index', 0, '.index is cut or damaged'),
    ('model.ckpt-10.data-00000-of-00001', 399, '399 of 400 bytes')])
def test_half_a_checkpoint_is_passed_over(folder, file, size, why):
    path = os.path.join(folder, file)
    os.unlink(path) if size is None else os.truncate(path, size)
    name, lines = _newest(folder)
    assert name == 'model.ckpt-4' and why in ' '.join(lines)
    with pytest.raises(UserError, match='--f=.*model.ckpt-10 is not whole'):
        find_checkpoint(os.path.join(folder, 'model.ckpt-10'), 'f')


def test_nothing_whole_is_no_new_training(folder):
    for step in (2, 4, 10):
        os.unlink(os.path.join(folder, f'model.ckpt-{step}.index'))
    with pytest.raises(UserError, match='no model.ckpt-N in .* is whole'):
        newest_checkpoint(folder)
    os.unlink(os.path.join(folder, 'checkpoint'))
    with pytest.raises(UserError, match='no model.ckpt-N in .* is whole'):
        newest_checkpoint(folder)


def test_a_folder_without_any_starts_new(tmp_path):
    assert newest_checkpoint(str(tmp_path)) is None
    assert newest_checkpoint(str(tmp_path / 'nowhere')) is None
    (tmp_path / 'checkpoint').write_text('')
    assert newest_checkpoint(str(tmp_path)) is None


def test_an_older_one_that_is_named_is_taken_and_the_newer_one_is_told(folder):
    with open(os.path.join(folder, 'checkpoint'), 'w') as file:
        file.write('model_checkpoint_path: "model.ckpt-4"')
    name, lines = _newest(folder)
    assert name == 'model.ckpt-4' and 'model.ckpt-10 is newer than model.ckpt-4' in lines[0]


@pytest.mark.parametrize('name', ['model.ckpt-4', 'model.ckpt-4.index', 'model.ckpt-4.data-00000-of-00001'])
def test_it_is_found_by_any_of_its_files(folder, name):
    assert find_checkpoint(os.path.join(folder, name), 'f') == os.path.join(folder, 'model.ckpt-4')
    assert find_checkpoint(os.path.join(folder, 'checkpoint'), 'f') == os.path.join(folder, 'model.ckpt-10')
    assert not fault_of(os.path.join(folder, 'model.ckpt-4'))
