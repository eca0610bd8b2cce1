"""The other formats: Keras, ONNX and quantized TFLite give the logits of evaluation, each run by its own program."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from inception_mg import checks
from inception_mg.config import DataConfig, ExportConfig, ModelConfig
from inception_mg.errors import FlagError, UserError
from inception_mg.run_dir.model_card import ModelCard, write_card
from inception_mg.serving import precision
from inception_mg.serving.export import CheckpointValues, export, folded_network
from inception_mg.serving.tflite import interpreter, predictor
from inception_mg.weights.checkpoints import AVERAGE
from inception_mg.weights.keras_weights import BACKGROUND_BIAS, read_keras

v1 = tf.compat.v1
CARD = ModelCard(0.05, 75, ('blue', 'green', 'red'), 'float32', '')


@pytest.fixture(scope='module')
def truth(three_classes, small_model) -> tuple[np.ndarray, np.ndarray]:
    """The 9 validation images and their logits in float32."""
    images_v, _ = next(precision.images_of(three_classes, 'validation', CARD, 9))
    with folded_network(CARD, CheckpointValues(f'{small_model}/model.ckpt-6', True, '')) as predict:
        return images_v, predict(images_v)


def made(train_dir: str, folder: pathlib.Path, data_dir: str = '', **config) -> list[str]:
    lines: list[str] = []
    settings = ExportConfig(checkpoint_dir=train_dir, export_dir=str(folder), **config)
    checks.check_export(settings)
    export(DataConfig(data_dir=data_dir), ModelConfig(), settings, lines.append, chosen=())
    return lines


def compared(lines: list[str]) -> dict[str, str]:
    """name -> precision of the line that compares."""
    line, = (line for line in lines if line.startswith('precision'))
    assert 'on 9 validation images' in line
    return dict(re.findall(r'(\w+) (\d\.\d{4})', line))


def far(found: np.ndarray, logits: np.ndarray) -> float:
    """How far apart, as a share of how far the logits of different images are apart."""
    return float(np.abs(found - logits).max() / np.ptp(logits, axis=0).max())


@pytest.mark.parametrize('kind, furthest', [('dynamic', 0.1), ('float16', 0.02), ('int8', 0.5)])
def test_quantized_tflite(small_model, three_classes, truth, tmp_path, kind, furthest):
    lines = made(small_model, tmp_path / kind, three_classes, format='tflite', quantize=kind, input_range='0,1')
    assert set(compared(lines)) == {'float32', kind}
    path = str(tmp_path / kind / 'model.tflite')
    found = far(predictor(path, 'unit_images')(truth[0]), truth[1])
    print(f'{kind}: {found:.3g}')
    assert 0 < found < furthest
    types = {str(np.dtype(each['dtype'])) for each in interpreter(path).get_tensor_details() if len(each['shape']) == 4}
    assert {'dynamic': 'int8', 'float16': 'float16', 'int8': 'int8'}[kind] in types


def test_bfloat16_in_a_saved_model(small_model, three_classes, truth, tmp_path):
    lines = made(small_model, tmp_path / 'half', three_classes, compute_dtype='bfloat16')
    assert set(compared(lines)) == {'float32', 'bfloat16'}
    run = tf.saved_model.load(str(tmp_path / 'half')).signatures['images']
    logits = run(images=tf.constant(truth[0]))['logits']
    assert logits.dtype == tf.float32 and 1e-4 < far(logits.numpy(), truth[1]) < 0.6  # A random model: small spread.


def test_keras_and_back(small_model, truth, tmp_path):
    import keras
    made(small_model, tmp_path / 'keras', format='keras')
    model = keras.saving.load_model(tmp_path / 'keras' / 'model.keras')
    probabilities = model.predict(truth[0], verbose=0)
    want = np.exp(truth[1]) / np.exp(truth[1]).sum(axis=1, keepdims=True)
    model.layers[-1].activation = keras.activations.linear
    assert far(model(truth[0], training=False).numpy(), truth[1]) < 1e-4 and np.allclose(probabilities, want, atol=1e-5)
    assert (tmp_path / 'keras' / 'labels.txt').read_text() == 'background\nblue\ngreen\nred\n'
    back = read_keras(str(tmp_path / 'keras' / 'model.keras'))
    values = CheckpointValues(f'{small_model}/model.ckpt-6', True, '')
    assert len(back.values) == 378 and not back.unknown
    for name, value in back.values.items():
        np.testing.assert_array_equal(value, values(name, value.shape), name)


def test_a_background_that_keras_never_had_is_left_out_again(small_model, truth, tmp_path):
    from trained_model import write_checkpoint
    reader = tf.train.load_checkpoint(f'{small_model}/model.ckpt-6')
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != 'global_step'}
    for name in values:
        if name.startswith('logits/logits/'):
            values[name][..., 0] = BACKGROUND_BIAS if 'biases' in name else 0
    write_checkpoint(str(tmp_path), values)
    write_card(str(tmp_path), CARD)
    made(str(tmp_path), tmp_path / 'keras', format='keras')
    assert (tmp_path / 'keras' / 'labels.txt').read_text() == 'blue\ngreen\nred\n'
    back = read_keras(str(tmp_path / 'keras' / 'model.keras')).values
    for leaf in ('weights', 'biases'):
        name = f'logits/logits/{leaf}'
        np.testing.assert_array_equal(back[name], values[name + AVERAGE])


def test_onnx(small_model, truth, tmp_path):
    pytest.importorskip('tf2onnx', reason='tf2onnx makes the file, and is a package of its own')
    runtime = pytest.importorskip('onnxruntime', reason='onnxruntime runs the file, and is a package of its own')
    for given, scaled in (('-1,1', truth[0]), ('0,1', (truth[0] + 1) / 2)):
        made(small_model, tmp_path / given, format='onnx', input_range=given)
        session = runtime.InferenceSession(tmp_path / given / 'model.onnx')
        name, = (each.name for each in session.get_inputs())
        assert name == ('images' if given == '-1,1' else 'unit_images')
        for count in (9, 1):
            logits = session.run(['logits'], {name: scaled[:count]})[0]
            assert np.abs(logits - truth[1][:count]).max() < 1e-4 * np.ptp(truth[1], axis=0).max()


def test_what_does_not_go_together(small_model, tmp_path):
    with pytest.raises(FlagError, match='--quantize=int8 needs --data_dir'):
        made(small_model, tmp_path / 'x', format='tflite', quantize='int8')
    with pytest.raises(FlagError, match='--quantize=int8 is for --format=tflite, not saved_model'):
        made(small_model, tmp_path / 'x', quantize='int8')
    with pytest.raises(FlagError, match='--compute_dtype=bfloat16 is for --format=saved_model or frozen_graph'):
        made(small_model, tmp_path / 'x', format='onnx', compute_dtype='bfloat16')
    assert not (tmp_path / 'x').exists()


def test_the_resnet_of_keras_is_another(small_model, tmp_path):
    from inception_mg.serving.keras_model import write_keras
    job = type('Job', (), {'card': ModelCard(1.0, 224, ('a',), 'float32', '', 'resnet_v1_50')})
    with pytest.raises(UserError, match='the ResNet50 of Keras halves the grid in the first 1 x 1'):
        write_keras(str(tmp_path), job)
