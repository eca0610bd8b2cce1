"""A model for ONNX, made by tf2onnx, which is a package of its own."""

import importlib.util
import logging
import os
from collections.abc import Sequence

import tensorflow as tf

from inception_mg.errors import UserError
from inception_mg.serving.export import Job, serving_session, write_labels

v1 = tf.compat.v1
OPSET = 17  # Of 2022: what is in use reads it.
OUTPUTS = ('probabilities', 'logits')


def write_onnx(folder: str, job: Job) -> Sequence[str]:
    """Writes model.onnx and labels.txt: images (or unit_images, by --input_range), float32 [n, size, size, 3], to
    probabilities and logits, float32 [n, outputs]. Raises UserError where tf2onnx is not installed."""
    if importlib.util.find_spec('tf2onnx') is None:
        raise UserError('--format=onnx needs tf2onnx, which is not installed: pip install tf2onnx onnxruntime')
    import tf2onnx
    logging.getLogger('tf2onnx').setLevel(logging.ERROR)
    with serving_session(job.card, 1, job.values, begin=job.input) as (session, serving):
        fed, found = serving.outputs(job.input), serving.outputs(*OUTPUTS)
        graph_def = v1.graph_util.extract_sub_graph(session.graph_def, [out.op.name for out in found.values()])
    names = {tensor.name: name for name, tensor in {**fed, **found}.items()}
    model, _ = tf2onnx.convert.from_graph_def(
        graph_def, input_names=[tensor.name for tensor in fed.values()],
        output_names=[tensor.name for tensor in found.values()], opset=OPSET, tensors_to_rename=names)
    with open(os.path.join(folder, 'model.onnx'), 'wb') as file:
        file.write(model.SerializeToString())
    write_labels(folder, job.card.labels)
    return (f'{{folder}}/model.onnx: {job.input} [n, {job.card.image_size}, {job.card.image_size}, 3] in '
            f'[{job.config.input_range.replace(",", ", ")}] -> probabilities, logits',)
