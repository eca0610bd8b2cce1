"""A model for TFLite (LiteRT): float32, or with smaller weights, or in 8-bit integers throughout."""

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from inception_mg.serving import precision
from inception_mg.serving.export import IMAGES_SIGNATURE, Job, save, serving_session, signature, write_labels

CALIBRATION_IMAGES = 100  # Of the training set; they show the range of every activation.
FILE = 'model.tflite'


def write_tflite(folder: str, job: Job) -> Sequence[str]:
    """Writes model.tflite and labels.txt. Its one signature, 'images', takes images or unit_images, by --input_range,
    and gives probabilities and logits, all float32 whatever is inside: TFLite has no decoder of images.

    --quantize: 'dynamic' keeps weights in 8 bits and computes with them in float32 or, where there are kernels, in 8
    bits; 'float16' keeps them in 16; 'int8' also has every activation in 8 bits, by the ranges that training images
    show. Raises UserError without these.
    """
    with tempfile.TemporaryDirectory(dir=folder) as saved:
        with serving_session(job.card, 1, job.values, begin=job.input) as (session, serving):
            save(saved, session, {IMAGES_SIGNATURE: signature(serving.outputs(job.input), serving.outputs(
                'probabilities', 'logits'))})
        # Outside of any tf.Graph: inside of one, TensorFlow takes its old converter, which loses the signature.
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # Of its own parts.
            model_v = _converter(saved, job).convert()
    path = os.path.join(folder, FILE)
    with open(path, 'wb') as file:
        file.write(model_v)
    write_labels(folder, job.card.labels)
    if job.config.quantize:
        job.compare(job.config.quantize, predictor(path, job.input))
    size = job.card.image_size
    return (f'{{folder}}/{FILE}: takes upright RGB images, their central 87.5 % resized bilinearly to {size} x {size} '
            f'and scaled to [{job.config.input_range.replace(",", ", ")}] (docs/serving.md has the lines)',)


def predictor(path: str, input_name: str) -> precision.Predict:
    """Runs model.tflite; takes images in [-1, 1] whatever the file wants."""
    runner = interpreter(path).get_signature_runner(IMAGES_SIGNATURE)
    scale = (lambda images_v: (images_v + 1) / 2) if input_name == 'unit_images' else lambda images_v: images_v
    return lambda images_v: runner(**{input_name: scale(images_v)})['logits']


def interpreter(path: str):
    """LiteRT's interpreter where that package is installed, else TensorFlow's own, which is the same."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        Interpreter = tf.lite.Interpreter
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # That the one in TensorFlow moves to that package.
        return Interpreter(path, num_threads=os.cpu_count())


def _converter(saved: str, job: Job) -> tf.lite.TFLiteConverter:
    converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=[IMAGES_SIGNATURE])
    if job.config.quantize:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if job.config.quantize == 'float16':
        converter.target_spec.supported_types = [tf.float16]
    if job.config.quantize == 'int8':
        converter.representative_dataset = lambda: _calibration(job)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return converter


def _calibration(job: Job) -> Iterator[dict[str, np.ndarray]]:
    for images_v, _ in precision.images_of(job.data_dir, 'train', job.card, CALIBRATION_IMAGES, batch_size=1):
        yield {job.input: (images_v + 1) / 2 if job.input == 'unit_images' else images_v}
