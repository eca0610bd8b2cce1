"""Export: the logits of evaluation from bytes and from floats, in a process that has none of our code."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.config import DataConfig, EvalConfig, ExportConfig, ModelConfig
from inception_mg.data.dataset_info import shard_paths
from inception_mg.data.example import parse_example
from inception_mg.data.input_pipeline import evaluation_dataset
from inception_mg.errors import FlagError, UserError
from inception_mg.evaluation.evaluate import evaluate
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.serving import export as exporting
from inception_mg.weights.checkpoints import Restorer

v1 = tf.compat.v1


class Reference:
    """What evaluation computes for the 9 validation images: its logits, their images and the encoded files."""

    def __init__(self, data_dir: str, checkpoint: str):
        paths = shard_paths(data_dir, 'validation')
        self.encoded = [parse_example(tf.constant(record)).encoded.numpy()
                        for path in paths for record in tf.data.TFRecordDataset(path).as_numpy_iterator()]
        with tf.Graph().as_default(), v1.Session() as session:
            batches = v1.data.make_initializable_iterator(
                evaluation_dataset(paths, image_size=75, batch_size=9, num_preprocess_threads=1))
            images, labels, _ = batches.get_next()
            with v1.variable_scope('', use_resource=True):
                logits = inception_v3(images, 4, Layers(False, width=0.05)).logits
            session.run(batches.initializer)
            Restorer(v1.global_variables(), True, '').restore(session, checkpoint)
            self.images, self.labels, self.logits = session.run([images, labels, logits])

    def agree(self, logits, rows=slice(None), tolerance: float = 1e-5) -> bool:
        """Whether the logits are those of evaluation; those of different images differ by far more."""
        assert 100 * tolerance < np.ptp(self.logits, axis=0).max() < 100
        difference = np.abs(np.asarray(logits) - self.logits[rows]).max()
        print(f'difference {difference:.2g}, range {np.ptp(self.logits, axis=0).max():.2g}')
        return difference < tolerance


@pytest.fixture(scope='module')
def reference(three_classes, small_model) -> Reference:
    return Reference(three_classes, f'{small_model}/model.ckpt-6')


def export(train_dir: str, export_dir, chosen=(), data=None, model=None, **config) -> list[str]:
    lines: list[str] = []
    exporting.export(data or DataConfig(), model or ModelConfig(),
                     ExportConfig(checkpoint_dir=train_dir, export_dir=str(export_dir), **config), lines.append, chosen)
    return lines


@pytest.fixture
def saved_model(small_export) -> pathlib.Path:
    return pathlib.Path(small_export)


FRESH = '''
import json, sys
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
folder, given = sys.argv[1], np.load(sys.argv[2])
encoded = [given[f'encoded_{k}'].tobytes() for k in range(9)]
model = tf.saved_model.load(folder)
by_bytes, by_images = model.signatures['serving_default'], model.signatures['images']
out = by_bytes(image_bytes=tf.constant(encoded))
found = {'seven': by_bytes(image_bytes=tf.constant(encoded[:7]))['logits'], 'one': by_bytes(
    image_bytes=tf.constant(encoded[:1]))['logits'], 'images': by_images(images=tf.constant(given['images']))['logits'],
    'unit': model.signatures['unit_images'](unit_images=tf.constant((given['images'] + 1) / 2))['logits'],
    'classes': out['classes'], 'scores': out['scores'], 'probabilities': out['probabilities']}
found = {name: value.numpy() for name, value in found.items()}
found['classes'] = found['classes'].astype(str)
labels = model.asset_paths[0].asset_path.numpy().decode()
with tf.Graph().as_default(), v1.Session() as session:
    loaded = v1.saved_model.load(session, ['serve'], folder)
    signature = loaded.signature_def['serving_default']
    found['v1'] = session.run(signature.outputs['logits'].name, {signature.inputs['image_bytes'].name: encoded})
np.savez(sys.argv[3], labels=open(labels, encoding='utf-8').read(), ours='inception_mg' in sys.modules,
         **found)
'''


def test_a_fresh_process_without_our_code_gets_the_logits_of_evaluation(saved_model, reference, tmp_path):
    given, found = tmp_path / 'given.npz', tmp_path / 'found.npz'
    np.savez(given, images=reference.images, **{f'encoded_{k}': np.frombuffer(data, np.uint8)
                                                for k, data in enumerate(reference.encoded)})
    moved = shutil.copytree(saved_model, tmp_path / 'moved')
    subprocess.run([sys.executable, '-I', '-c', FRESH, str(moved), str(given), str(found)], check=True, timeout=240,
                   cwd=tmp_path, capture_output=True, text=True)
    result = np.load(found)
    assert not result['ours']
    assert reference.agree(result['v1']) and reference.agree(result['images']) and reference.agree(result['unit'])
    assert reference.agree(result['one'], slice(1)) and reference.agree(result['seven'], slice(7))
    assert str(result['labels']) == 'background\nblue\ngreen\nred\n'
    names = np.array(['background', 'blue', 'green', 'red'])
    best = np.argsort(-result['probabilities'], axis=1)[:, :3]
    assert (result['classes'] == names[best]).all()
    assert np.allclose(result['scores'], np.take_along_axis(result['probabilities'], best, axis=1))
    assert np.allclose(result['probabilities'].sum(axis=1), 1, atol=1e-5)


def test_no_devices_no_training_no_auxiliary_head(saved_model):
    from tensorflow.core.protobuf import saved_model_pb2
    proto = saved_model_pb2.SavedModel.FromString((saved_model / 'saved_model.pb').read_bytes())
    graph_def = proto.meta_graphs[0].graph_def
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    assert not {node.device for node in nodes} - {''}
    words = ('gradient', 'RMSProp', 'aux_logits', 'L2Loss', 'dropout', 'TruncatedNormal', 'IteratorGetNext')
    assert not [node.name for node in nodes if any(word in node.name or word in node.op for word in words)]
    assert not [node.op for node in nodes if node.op.startswith(('Random', 'Apply', 'ResourceApply'))]
    assert sorted(os.listdir(saved_model)) == ['assets', 'model.json', 'saved_model.pb', 'variables']


def test_the_reference_is_what_evaluation_counts(reference, small_model, three_classes, tmp_path):
    scores = evaluate(DataConfig(data_dir=three_classes), ModelConfig(), EvalConfig(
        checkpoint_dir=small_model, eval_dir=str(tmp_path)), lambda line: None, chosen=())
    assert (reference.logits.argmax(axis=1) == reference.labels).sum() == scores.first


def picture(mode: str, file_format: str, size=(90, 66)) -> bytes:
    import io

    from PIL import Image
    pixels = np.random.RandomState(3).randint(0, 255, (size[1], size[0], 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, file_format)
    return buffer.getvalue()


def test_formats_and_sizes_in_one_batch(small_model, saved_model):
    """JPEG, PNG, GIF and BMP of different sizes; lossless ones of the same pixels agree."""
    files = [picture('RGB', 'PNG'), picture('RGB', 'BMP'), picture('L', 'PNG'), picture('L', 'GIF'),
             picture('RGB', 'JPEG', (300, 200)), picture('CMYK', 'JPEG', (75, 75)), picture('L', 'JPEG', (20, 400))]
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ['serve'], str(saved_model))
        signature = loaded.signature_def['serving_default']
        fed, fetched = signature.inputs['image_bytes'].name, signature.outputs['probabilities'].name
        probabilities = session.run(fetched, {fed: files})
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(fetched, {fed: [b'no image']})
    assert np.allclose(probabilities[0], probabilities[1], atol=1e-6)
    assert np.allclose(probabilities[2], probabilities[3], atol=1e-6)


@pytest.mark.filterwarnings('ignore:.*Interpreter is deprecated')
def test_tflite(small_model, reference, tmp_path):
    export(small_model, tmp_path / 'lite', format='tflite')
    assert sorted(os.listdir(tmp_path / 'lite')) == ['labels.txt', 'model.json', 'model.tflite']
    interpreter = tf.lite.Interpreter(str(tmp_path / 'lite' / 'model.tflite'))
    assert list(interpreter.get_signature_list()) == ['images']
    run = interpreter.get_signature_runner('images')
    for count in (7, 1):
        assert reference.agree(run(images=reference.images[:count])['logits'], slice(count), tolerance=1e-4)


def test_frozen_graph(small_model, reference, tmp_path):
    export(small_model, tmp_path / 'frozen', format='frozen_graph')
    graph_def = v1.GraphDef.FromString((tmp_path / 'frozen' / 'frozen_graph.pb').read_bytes())
    assert not [node.op for node in graph_def.node if 'Var' in node.op or node.device]
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(graph_def, name='')
        assert reference.agree(session.run('output_logits:0', {'image_bytes:0': reference.encoded}))
        assert reference.agree(session.run('output_logits:0', {'images:0': reference.images[:1]}), slice(1))
        assert session.run('classes:0', {'image_bytes:0': reference.encoded[:2]}).shape == (2, 3)


def test_a_full_folder_is_refused_and_a_failure_leaves_nothing(small_model, three_classes, two_classes, tmp_path):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'file').write_text('mine')
    with pytest.raises(UserError, match='--export_dir=.*mine is not empty'):
        export(small_model, tmp_path / 'mine')
    with pytest.raises(FlagError, match='--width=1, but the model in .* has 0.05'):
        export(small_model, tmp_path / 'new', chosen=('width',))
    with pytest.raises(UserError, match='has 2 classes, the model in .* has 3'):
        export(small_model, tmp_path / 'new', data=DataConfig(data_dir=two_classes))
    with pytest.raises(UserError, match='--checkpoint_dir=.*: no checkpoint'):
        export(str(tmp_path), tmp_path / 'new')
    bare = tmp_path / 'bare'  # A small_model of before there was a model.json.
    bare.mkdir()
    for path in pathlib.Path(small_model).glob('model.ckpt-6*'):
        (bare / path.name).write_bytes(path.read_bytes())
    with pytest.raises(FlagError, match='has no model.json: name the classes by --data_dir'):
        export(f'{bare}/model.ckpt-6', tmp_path / 'new')
    with pytest.raises(UserError, match='has conv0/.*a model of width 1 with 3 classes was expected'):
        export(f'{bare}/model.ckpt-6', tmp_path / 'new', data=DataConfig(data_dir=three_classes, image_size=75))
    assert sorted(os.listdir(tmp_path)) == ['bare', 'mine'] and os.listdir(tmp_path / 'mine') == ['file']


def test_the_card_goes_with_the_model(saved_model):
    card = json.loads((saved_model / 'model.json').read_text())
    assert card['classes'] == ['blue', 'green', 'red'] and card['image_size'] == 75 and card['width'] == 0.05
