"""Conversion: a checkpoint that our programs take as their own, or nothing at all."""

import os

import foreign
import numpy as np
import pytest
import tensorflow as tf

from inception_mg import checks
from inception_mg.config import ConvertConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.weights.checkpoints import AVERAGE
from inception_mg.weights.convert import convert


def full_values(outputs: int = 6) -> dict[str, np.ndarray]:
    """Cheap values of full size under the names of 2016, for 5 classes."""
    values = {}
    for number, (name, shape) in enumerate(foreign.SHAPES.items()):
        shape = [*shape[:-1], outputs] if shape[-1] == 1001 else shape
        values[name] = np.full(shape, number / 400, np.float32)
    return values


@pytest.fixture(scope='module')
def no_aux(tmp_path_factory):
    """A checkpoint without the auxiliary head, and what converting it left and said."""
    folder = tmp_path_factory.mktemp('no_aux')
    values = {name: value for name, value in full_values().items() if 'aux_logits' not in name}
    source = foreign.write(folder / 'source', values | {'global_step': np.float32(9), 'x/Momentum': np.float32(0)})
    lines: list[str] = []
    prefix = convert(ConvertConfig(input=source, output_directory=str(folder / 'new' / 'out')), lines.append)
    return folder, values, prefix, lines


def test_all_names_are_there_raw_and_averaged(no_aux):
    folder, values, prefix, _ = no_aux
    assert tf.train.latest_checkpoint(str(folder / 'new' / 'out')) == prefix
    assert sorted(os.listdir(folder / 'new' / 'out')) == ['checkpoint', 'model.ckpt-0.data-00000-of-00001',
                                                          'model.ckpt-0.index']
    reader = tf.train.load_checkpoint(prefix)
    there = reader.get_variable_to_dtype_map()
    assert set(there) == {'global_step', *foreign.SHAPES, *[name + AVERAGE for name in foreign.SHAPES]}
    assert there['global_step'] == tf.int64 and reader.get_tensor('global_step') == 0
    for name, value in values.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
    for name in ('conv0/weights', 'aux_logits/Conv/weights'):
        np.testing.assert_array_equal(reader.get_tensor(name), reader.get_tensor(name + AVERAGE))
    # The head that was not there begins as a new one would: truncated normal of stddev 0.01, and zeros.
    assert reader.get_tensor('aux_logits/Conv/weights').std() == pytest.approx(0.01 * 0.88, rel=0.02)
    assert reader.get_tensor('aux_logits/FC/weights').shape == (768, 6)
    assert not reader.get_tensor('aux_logits/FC/biases').any()


def test_the_table(no_aux):
    text = '\n'.join(no_aux[3])
    assert 'names of the 2016 program' in text and '378  variables of the network, 6 outputs' in text
    assert '10  variables of the auxiliary head' in text and '2  names that are no weights' in text


def test_a_checkpoint_that_is_there_is_not_overwritten(no_aux):
    folder = no_aux[0]
    before = (folder / 'new' / 'out' / 'model.ckpt-0.index').read_bytes()
    with pytest.raises(UserError, match='has a checkpoint already'):
        convert(ConvertConfig(input=str(folder / 'source'), output_directory=str(folder / 'new' / 'out')))
    assert (folder / 'new' / 'out' / 'model.ckpt-0.index').read_bytes() == before


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path):
    values = full_values()
    values['conv1/weights'] = np.zeros([3, 3, 32, 16], np.float32)
    source = foreign.write(tmp_path / 'source', values)
    with pytest.raises(UserError, match=r'conv1/weights with shape \[3, 3, 32, 16\], this model with \[3, 3, 32, 32\]'):
        convert(ConvertConfig(input=source, output_directory=str(tmp_path / 'out')), print)
    assert not (tmp_path / 'out').exists()


def test_flags_are_checked():
    with pytest.raises(FlagError, match='--output_directory is empty'):
        checks.check_convert(ConvertConfig(input='x'))
    with pytest.raises(FlagError, match='--source=caffe must be one of auto, 2016, slim, keras'):
        checks.check_convert(ConvertConfig(input='x', output_directory='y', source='caffe'))
