"""keras.applications.InceptionV3 with a checkpoint's weights, as a .keras file.

Besides the benchmark's peers the only place where Keras is imported, and only when this is asked for.
"""

import os
from collections.abc import Sequence

import numpy as np

from inception_mg.errors import FlagError
from inception_mg.model.layers import Layers
from inception_mg.run_dir.model_card import ModelCard
from inception_mg.serving.export import Job, write_labels
from inception_mg.weights.folding import Values
from inception_mg.weights.keras_weights import BACKGROUND_BIAS, WITH_BACKGROUND
from inception_mg.weights.names import KERAS_ORDER

FILE = 'model.keras'


def write_keras(folder: str, job: Job) -> Sequence[str]:
    """Writes model.keras and labels.txt: images float32 [n, size, size, 3] in [-1, 1] -> probabilities.

    Output 0 is the background, as everywhere here, and the model's name says so, for convert_checkpoint.py. Where the
    weights came from Keras, whose model knows none, it is left out again. The auxiliary head has no place in that
    model. Raises FlagError for another network.
    """
    card = job.card
    if card.model != 'inception_v3':
        raise FlagError('--format=keras is for Inception v3: the ResNet50 of Keras halves the grid in the first 1 x 1 '
                        'convolution of a block and its convolutions have biases (v1), this one halves it in the 3 x 3 '
                        'and has none (v1.5), so the same weights would give other classes; take saved_model or onnx')
    depth, outputs = Layers(False, width=card.width).depth, len(card.labels)
    features = depth(320) + 4 * depth(384) + depth(192)  # Of the last block.
    weights = job.values('logits/logits/weights', [features, outputs])
    biases = job.values('logits/logits/biases', [outputs])
    from_keras = not weights[:, 0].any() and biases[0] == np.float32(BACKGROUND_BIAS)
    first = int(from_keras)
    model = make_model(card, outputs - first)
    fill(model, job.values, weights[:, first:], biases[first:])
    model.save(os.path.join(folder, FILE))
    write_labels(folder, card.labels[first:])
    return ('{folder}/model.keras: keras.saving.load_model(...).predict(images in [-1, 1]), as '
            'keras.applications.inception_v3.preprocess_input scales them',
            'outputs are the classes, as in Keras: the background was made for these programs and is left out'
            if from_keras else 'output 0 is the background, output k the k-th class, as in labels.txt')


def make_model(card: ModelCard, outputs: int):
    """The network of keras.applications for that image size, number of outputs and width, with any weights."""
    import keras
    model = keras.applications.InceptionV3(weights=None, input_shape=(card.image_size, card.image_size, 3),
                                           classes=outputs)
    settings = model.get_config()
    settings['name'] = 'inception_v3' if outputs < len(card.labels) else WITH_BACKGROUND
    for layer in settings['layers']:
        layer.pop('build_config', None)  # Shapes of width 1.
        if layer['class_name'] == 'Conv2D':
            layer['config']['filters'] = Layers(False, width=card.width).depth(layer['config']['filters'])
    return keras.Model.from_config(settings)


def fill(model, values: Values, head: np.ndarray, biases: np.ndarray) -> None:
    """Puts the values into the model's layers, which are in the order that Keras has made them in."""
    import keras
    kinds = {kind: [layer for layer in model.layers if isinstance(layer, kind)] for kind in (
        keras.layers.Conv2D, keras.layers.BatchNormalization, keras.layers.Dense)}
    convs, norms, (dense,) = kinds.values()
    for scope, conv, norm in zip(KERAS_ORDER, convs, norms, strict=True):
        kernel, = conv.get_weights()
        conv.set_weights([values(f'{scope}/weights', kernel.shape)])
        norm.set_weights([values(f'{scope}/BatchNorm/{leaf}', kernel.shape[-1:])
                          for leaf in ('beta', 'moving_mean', 'moving_variance')])
    dense.set_weights([head, biases])
