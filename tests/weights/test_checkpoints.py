"""Which checkpoint is the newest whole one: with a state file that is lost, and files that are missing or cut."""

import os

import numpy as np
import pytest
import tensorflow as tf
from trained_model import write_checkpoint

from inception_mg.errors import UserError
from inception_mg.weights.checkpoints import (
    Restorer,
    check_shapes,
    fault_of,
    find_checkpoint,
    names_to_restore,
    newest_checkpoint,
    step_is_float,
    step_of,
)

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


def test_nothing_is_said_of_the_newest(folder):
    assert _newest(folder) == ('model.ckpt-10', [])


def test_one_of_the_first_format_is_whole(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable('x', [3], initializer=v1.ones_initializer())
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver(write_version=v1.train.SaverDef.V1).save(session, str(tmp_path / 'old'), 3)
    assert not fault_of(path) and fault_of(str(tmp_path / 'old-4'))


def test_the_step(folder, tmp_path):
    assert step_of(os.path.join(folder, 'model.ckpt-4')) == -1  # It has none.
    path = write_checkpoint(str(tmp_path), {'x': np.ones(3, np.float32)}, 17)
    assert step_of(path) == 17 and not step_is_float(path)
    path = str(tmp_path / 'of_2016')
    tf.raw_ops.SaveV2(prefix=path, tensor_names=['global_step'], shape_and_slices=[''], tensors=[tf.constant(17.)])
    assert step_of(path) == 17 and step_is_float(path)


@pytest.fixture
def averaged(tmp_path) -> str:
    """A checkpoint of a weight 1, its average 2, and a weight of the auxiliary head."""
    average = '/ExponentialMovingAverage'
    return write_checkpoint(str(tmp_path), {
        'w': np.full(3, 1, np.float32), f'w{average}': np.full(3, 2, np.float32),
        'aux_logits/w': np.ones(5, np.float32), f'aux_logits/w{average}': np.ones(5, np.float32)})


@pytest.mark.parametrize('use_averages, value', [(True, 2), (False, 1)])
def test_a_restorer_takes_averages_or_weights_without_the_auxiliary_head(averaged, use_averages, value):
    with tf.Graph().as_default(), v1.Session() as session:
        w, aux = v1.get_variable('w', [3]), v1.get_variable('aux_logits/w', [7])  # Its size follows from the images'.
        restorer = Restorer([w, aux], use_averages, 'do so')
        for _ in range(2):  # The second time with the same operations.
            restorer.restore(session, averaged)
            size = len(session.graph.get_operations())
            assert session.run(w).tolist() == [value] * 3
        assert len(session.graph.get_operations()) == size
        assert list(names_to_restore(averaged, [w, aux], use_averages).values()) == [w]


def test_what_does_not_fit_is_named(averaged):
    with tf.Graph().as_default(), v1.Session() as session:
        w, other = v1.get_variable('w', [4]), v1.get_variable('other', [3])
        with pytest.raises(UserError, match=r'has w with shape \[3\], this model with \[4\]: do so'):
            check_shapes(averaged, {'w': w}, 'do so')
        with pytest.raises(UserError, match='lacks 1 of 2 variables, the first is no_such: do so'):
            check_shapes(averaged, {'w': other, 'no_such': other}, 'do so')
        with pytest.raises(UserError, match='has no moving averages'):
            Restorer([other], True, 'do so').restore(session, averaged)
