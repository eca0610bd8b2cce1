"""An exported model as TensorFlow Serving calls it: its signatures, and the bodies that docs/serving.md sends."""

import base64
import concurrent.futures
import json
import re
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

v1 = tf.compat.v1
PAGE = (ROOT / 'docs' / 'serving.md').read_text()


class Model:
    """The exported model in a session, called by signatures, as a server does."""

    def __init__(self, folder: str):
        self._session = v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            self.signatures = dict(v1.saved_model.load(self._session, ['serve'], folder).signature_def)

    def run(self, name: str, inputs: dict) -> dict[str, np.ndarray]:
        """Outputs by name."""
        signature = self.signatures[name]
        return self._session.run({key: info.name for key, info in signature.outputs.items()},
                                 {signature.inputs[key].name: value for key, value in inputs.items()})


@pytest.fixture(scope='module')
def model(small_export) -> Model:
    return Model(small_export)


@pytest.fixture(scope='module')
def photo(tmp_path_factory):
    """A folder with photo.jpg."""
    folder = tmp_path_factory.mktemp('photo')
    Image.fromarray(np.random.RandomState(1).randint(0, 255, (90, 120, 3)).astype(np.uint8)).save(folder / 'photo.jpg')
    return folder


def test_the_signatures(model, small_export):
    with open(f'{small_export}/saved_model.pb', 'rb') as file:
        found = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0].signature_def
    methods = {name: signature.method_name.rpartition('/')[2] for name, signature in found.items() if name[0] != '_'}
    assert methods == {'serving_default': 'predict', 'images': 'predict', 'unit_images': 'predict',
                       'classify': 'classify'}
    inputs = {name: [(key, tf.as_dtype(info.dtype).name) for key, info in found[name].inputs.items()]
              for name in methods}
    assert inputs == {'serving_default': [('image_bytes', 'string')], 'images': [('images', 'float32')],
                      'unit_images': [('unit_images', 'float32')], 'classify': [('inputs', 'string')]}
    # What Classify asks of a signature: strings and their scores, [n, k] both.
    assert {key: (tf.as_dtype(info.dtype).name, len(info.tensor_shape.dim))
            for key, info in found['classify'].outputs.items()} == {'classes': ('string', 2), 'scores': ('float32', 2)}


def bodies(folder) -> list[dict]:
    """What the page's commands write into body.json."""
    found = []
    for command in re.findall(r'^echo .* > body\.json$', PAGE, re.MULTILINE):
        subprocess.run(['bash', '-c', command], cwd=folder, check=True)
        found.append(json.loads((folder / 'body.json').read_text()))
    return found


def from_json(value):
    """TensorFlow Serving's rule for JSON: {"b64": text} stands for bytes."""
    return base64.b64decode(value['b64'], validate=True) if isinstance(value, dict) and set(value) == {'b64'} else value


def test_the_bodies_of_rest(model, photo):
    predict, classify = bodies(photo)
    assert set(predict) == {'instances'} and classify['signature_name'] == 'classify'
    rows = [{name: from_json(value) for name, value in row.items()} for row in predict['instances']]
    assert rows == [{'image_bytes': (photo / 'photo.jpg').read_bytes()}]
    found = model.run('serving_default', {name: [row[name] for row in rows] for name in rows[0]})
    examples = [tf.train.Example(features=tf.train.Features(feature={
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[from_json(value)]))
        for name, value in row.items()})).SerializeToString() for row in classify['examples']]
    classified = model.run('classify', {'inputs': examples})
    np.testing.assert_allclose(classified['scores'], found['scores'], rtol=1e-6)
    assert (classified['classes'] == found['classes']).all() and found['classes'].shape == (1, 3)


def test_the_lines_for_grpc(model, photo, monkeypatch, capsys):
    pytest.importorskip('tensorflow_serving', reason='tensorflow-serving-api has the protocol, a package of its own')
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Server(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            assert request.model_spec.name == 'flowers'
            found = model.run(request.model_spec.signature_name, {
                name: tf.make_ndarray(value) for name, value in request.inputs.items()})
            return predict_pb2.PredictResponse(outputs={
                name: tf.make_tensor_proto(value) for name, value in found.items()})

    lines, = re.findall(r'```python\n(import grpc.*?)```', PAGE, re.DOTALL)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port('127.0.0.1:0')
    server.start()
    monkeypatch.chdir(photo)
    exec(lines.replace('localhost:8500', f'127.0.0.1:{port}'), {})
    server.stop(None)
    want = model.run('serving_default', {'image_bytes': [(photo / 'photo.jpg').read_bytes()]})
    assert want['classes'][0, 0].decode() in capsys.readouterr().out


def test_the_lines_for_senders(model, photo, monkeypatch):
    """They give the model the pixels that it reads by itself."""
    monkeypatch.chdir(photo)
    names = {'tf': tf}
    image_lines, float_lines = re.findall(r'```python\n(import (?:io|numpy).*?)```', PAGE, re.DOTALL)
    exec(image_lines.replace('photo.webp', 'photo.jpg').replace("'JPEG', quality=95, subsampling=0", "'PNG'"), names)
    exec(float_lines.replace('size, (width, height) = 299', 'size, (width, height) = 75'), names)
    read = model.run('serving_default', {'image_bytes': [names['image_bytes']]})['logits']
    np.testing.assert_allclose(model.run('images', {'images': names['images'].numpy()})['logits'], read, atol=1e-5)
    np.testing.assert_allclose(model.run('unit_images', {'unit_images': names['unit'].numpy()[None]})['logits'], read,
                               atol=1e-5)
