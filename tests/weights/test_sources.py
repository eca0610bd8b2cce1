"""Weights of the three sources: the same logits from our network, and clear words for files that do not fit."""

import foreign
import golden
import numpy as np
import pytest
import tensorflow as tf

from inception_mg.errors import FlagError, UserError
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.weights import keras_weights, names
from inception_mg.weights.checkpoints import AVERAGE
from inception_mg.weights.sources import check_weights, open_weights

v1 = tf.compat.v1


class Network:
    """Our network of full width with 1001 outputs, for two images of 299 pixels."""

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.images = v1.placeholder(tf.float32, [2, 299, 299, 3])
            outputs = inception_v3(self.images, 1001, Layers(is_training=False))
            self._logits, self._aux_logits = outputs.logits, outputs.aux_logits
            self.fed = {v.op.name: v1.placeholder(tf.float32, v.shape) for v in v1.global_variables()}
            self._assign = {v.op.name: v.assign(self.fed[v.op.name], read_value=False) for v in v1.global_variables()}
            self._session = v1.Session()

    def logits(self, weights, images=None) -> tuple[np.ndarray, np.ndarray]:
        """Logits and auxiliary logits with these weights; where the file has no auxiliary head, zeros."""
        values = {name: weights.read(name) if name in weights.shapes else np.zeros(place.shape, np.float32)
                  for name, place in self.fed.items()}
        self._session.run(list(self._assign.values()), {self.fed[name]: value for name, value in values.items()})
        return self._session.run([self._logits, self._aux_logits],
                                 {self.images: golden.images() if images is None else images})


@pytest.fixture(scope='module')
def network():
    return Network()


def check_golden(network, weights):
    shapes = {name: place.shape.as_list() for name, place in network.fed.items()}
    check_weights(weights, shapes, 'mend it')
    for found, name in zip(network.logits(weights), ('eval_logits', 'eval_aux_logits'), strict=True):
        expected = golden.ARRAYS[name]
        assert np.abs(found - expected).max() <= 3e-6 * np.abs(expected).max()


def test_a_checkpoint_of_2016_gives_the_golden_logits(network, tmp_path):
    """All that the program saves: averages, slots, averages of losses, a step in float32. The averages count."""
    values = {}
    for name, shape in foreign.SHAPES.items():
        value = golden.value_for(name, shape)
        values |= {name: np.full_like(value, 7), name + AVERAGE: value}
        if not name.endswith(('moving_mean', 'moving_variance')):
            values |= {f'{name}/RMSProp': np.ones(1, np.float32), f'{name}/RMSProp_1': np.zeros(1, np.float32)}
        else:
            scope = name.rsplit('/', 1)[0]
            values |= {f'{scope}/{name}/biased': np.ones(1, np.float32),
                       f'{scope}/{name}/local_step': np.float32(1)}
    losses = ('tower_0/CrossEntropyLoss/value/avg', 'tower_0/aux_loss/value/avg', 'tower_0/total_loss/avg')
    values |= dict.fromkeys(losses, np.float32(1)) | {'global_step': np.float32(157585)}
    assert len(values) == 1556
    (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "/elsewhere/model.ckpt-157585"\n')
    foreign.write(tmp_path / 'model.ckpt-157585', values)
    weights = open_weights(str(tmp_path), 'input')
    assert (weights.source, weights.averages, len(weights.ignored)) == ('2016', 388, 1556 - 2 * 388)
    check_golden(network, weights)


def test_a_checkpoint_of_slim_gives_the_golden_logits(network, tmp_path):
    values = {'global_step': np.int64(3)}
    for slim, ours in foreign.slim_names().items():
        value = golden.value_for(ours, foreign.SHAPES[ours])
        values[slim] = value[None, None] if slim.endswith(('2b_1x1/weights', '1c_1x1/weights')) else value
    weights = open_weights(foreign.write(tmp_path / 'inception_v3.ckpt', values), 'input')
    assert (weights.source, weights.averages, weights.ignored) == ('slim', 0, ['global_step'])
    check_golden(network, weights)


@pytest.fixture(scope='module')
def keras_model(tmp_path_factory):
    """Keras's network with random weights and statistics, its logits for the images, and the folder of its files."""
    folder = tmp_path_factory.mktemp('keras')
    keras = pytest.importorskip('keras')
    keras.layers.Conv2D(1, 1)  # What was made before shifts the numbers in the names.
    model = keras.applications.InceptionV3(weights=None, classifier_activation=None)
    random = np.random.RandomState(5)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([0.3 * random.standard_normal(value.shape) if number < 2 else
                               0.5 + random.random_sample(value.shape) for number, value in
                               enumerate(layer.get_weights())])
    logits = np.asarray(model(golden.images(), training=False))
    model.save_weights(folder / 'new.weights.h5')
    model.save(folder / 'whole.keras')
    model.save(folder / 'old.h5')
    return folder, logits


@pytest.mark.parametrize('name', ['new.weights.h5', 'whole.keras', 'old.h5'])
def test_a_keras_model_gives_its_own_logits(network, keras_model, name):
    folder, expected = keras_model
    weights = open_weights(str(folder / name), 'input')
    assert weights.source == 'keras' and not weights.has_aux_head and len(weights.shapes) == 378
    found = network.logits(weights)[0]
    assert np.abs(expected).max() > 0.05
    assert np.abs(found[:, 1:] - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
    np.testing.assert_array_equal(found[:, 0], np.float32(keras_weights.BACKGROUND_BIAS))


def rewrite_keras(source, target, change) -> str:
    """A copy of an HDF5 file after change(file)."""
    import shutil

    import h5py
    shutil.copy(source, target)
    with h5py.File(target, 'r+') as file:
        change(file)
    return str(target)


def test_a_keras_file_without_a_head_or_with_two(keras_model, tmp_path):
    folder = keras_model[0]

    def behead(file):
        del file['layers/dense']

    headless = open_weights(rewrite_keras(folder / 'new.weights.h5', tmp_path / 'notop.weights.h5', behead), 'input')
    assert len(headless.shapes) == 376 and not headless.unknown
    with pytest.raises(UserError, match='lacks 2 of 2 variables, logits/logits/weights, logits/logits/biases: mend'):
        check_weights(headless, {'logits/logits/weights': [2048, 6], 'logits/logits/biases': [6]}, 'mend it')

    def second(file):
        file.copy('layers/dense', 'layers/dense_1')

    both = open_weights(rewrite_keras(folder / 'new.weights.h5', tmp_path / 'two.weights.h5', second), 'input')
    check_weights(both, {'conv0/weights': [3, 3, 3, 32]}, 'mend it')  # No head is wanted: none is in the way.
    with pytest.raises(UserError, match=r'does not have \(2\): layers/dense/vars, layers/dense_1/vars'):
        check_weights(both, {'logits/logits/weights': [2048, 1001]}, 'mend it')


def test_keras_files_of_another_network_are_refused(keras_model, tmp_path):
    folder = keras_model[0]

    def bias(file):
        file['layers/conv2d_3/vars/1'] = np.zeros(80, np.float32)

    weights = open_weights(rewrite_keras(folder / 'new.weights.h5', tmp_path / 'bias.weights.h5', bias), 'input')
    with pytest.raises(UserError, match=r'layers/conv2d_3/vars/bias'):
        check_weights(weights, {}, 'mend it')

    def fewer(file):
        del file['layers/conv2d_93']

    with pytest.raises(UserError, match='93 layers with a kernel, InceptionV3 in Keras has 94'):
        open_weights(rewrite_keras(folder / 'new.weights.h5', tmp_path / 'few.weights.h5', fewer), 'input')

    def epsilon(file):
        file.attrs['model_config'] = file.attrs['model_config'].replace('"epsilon": 0.001', '"epsilon": 0.002', 1)

    with pytest.raises(UserError, match='has epsilon 0.002, Inception v3 has 0.001'):
        open_weights(rewrite_keras(folder / 'old.h5', tmp_path / 'epsilon.h5', epsilon), 'input')
    (tmp_path / 'cut.h5').write_bytes((folder / 'old.h5').read_bytes()[:5000])
    with pytest.raises(UserError, match='cannot read .*cut.h5 as a Keras file'):
        open_weights(str(tmp_path / 'cut.h5'), 'input')


def test_misses_and_extras_are_listed_by_name(tmp_path):
    values = foreign.small_values()
    wanted = {name: list(value.shape) for name, value in values.items()}
    del values['mixed_8x8x2048b/branch_pool/Conv/weights'], values['conv0/BatchNorm/beta']
    weights = open_weights(foreign.write(tmp_path / 'few', values), 'input')
    with pytest.raises(UserError, match=r'lacks 2 of 388 variables, conv0/BatchNorm/beta, '
                                        r'mixed_8x8x2048b/branch_pool/Conv/weights: mend it'):
        check_weights(weights, wanted, 'mend it')
    values = foreign.small_values() | {'conv0/biases': np.zeros(1, np.float32)}
    weights = open_weights(foreign.write(tmp_path / 'biases', values), 'input')
    with pytest.raises(UserError, match=r'does not have \(1\): conv0/biases'):
        check_weights(weights, wanted, 'mend it')
    with pytest.raises(UserError, match=r'conv0/weights with shape \[1, 1, 1, 1\], this model with \[3, 3, 3, 32\]'):
        check_weights(weights, {'conv0/weights': [3, 3, 3, 32]}, 'mend it')


def test_factors_of_batch_normalisation(tmp_path):
    """The network has none: those that are all 1 change nothing, others would."""
    values = foreign.small_values()
    gamma = {'conv1/BatchNorm/gamma': np.ones(3, np.float32)}
    weights = open_weights(foreign.write(tmp_path / 'ones', values | gamma), 'input')
    assert not weights.unknown and '1 factors of batch normalisation' in weights.notes[0]
    gamma['conv1/BatchNorm/gamma'][1] = 2
    assert open_weights(foreign.write(tmp_path / 'two', values | gamma), 'input').unknown == list(gamma)


def test_files_that_are_not_there_or_not_ours(tmp_path):
    with pytest.raises(UserError, match='--input=.*nothing: no checkpoint there'):
        open_weights(str(tmp_path / 'nothing'), 'input')
    other = foreign.write(tmp_path / 'other', {'resnet/weights': np.zeros(1, np.float32)})
    with pytest.raises(UserError, match='no checkpoint of an Inception v3 .* it has resnet/weights'):
        open_weights(other, 'input')
    ours = foreign.write(tmp_path / 'ours', foreign.small_values())
    with pytest.raises(FlagError, match='--source=slim, but .* names of the 2016 program: use --source=2016'):
        open_weights(ours, 'input', 'slim')


def test_a_checkpoint_in_the_single_file_format_of_2016(tmp_path):
    """The released archives hold checkpoints of one file, without an index."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, initializer=value, use_resource=True)
                     for name, value in foreign.small_values().items()]
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(variables, write_version=v1.train.SaverDef.V1)
        saver.save(session, str(tmp_path / 'model.ckpt'), write_meta_graph=False)
    assert (tmp_path / 'model.ckpt').is_file()
    weights = open_weights(str(tmp_path / 'model.ckpt'), 'input')
    assert len(weights.shapes) == 388 and weights.read('conv0/weights').shape == (1, 1, 1, 1)


def test_the_auxiliary_convolution_of_slim_is_called_after_its_kernel():
    assert names.from_slim('InceptionV3/AuxLogits/Conv2d_2a_3x3/weights') == 'aux_logits/Conv/weights'
    assert names.from_slim('InceptionV3/Logits/Conv2d_1c_1x1/BatchNorm/beta') is None
    assert set(map(names.from_slim, foreign.slim_names())) == set(names.model_names())
