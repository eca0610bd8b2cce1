"""A checkpoint to a model for serving: a SavedModel, a TFLite file, or a GraphDef with the weights inside.

The graph is our own, in inference mode and without device names; values are taken from the checkpoint by name. It
reads images as evaluation does:

    image_bytes [n] -> decode, centre crop, resize -> images [n, size, size, 3] -> network -> logits, probabilities
                                                                                            -> classes, scores
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import DataConfig, ExportConfig, ModelConfig
from inception_mg.data.dataset_info import LABELS_FILE, read_dataset_info
from inception_mg.data.distortions import resize_for_evaluation
from inception_mg.errors import FlagError, UserError
from inception_mg.files import exists, is_folder, link_or_copy, make_folder, names_in, whole, write_text
from inception_mg.model.layers import Layers
from inception_mg.model.networks import network
from inception_mg.paths import scheme_of
from inception_mg.run_dir import model_card
from inception_mg.weights import checkpoints

v1 = tf.compat.v1
Say = Callable[[str], None]
TOP_K = 5
IMAGES_SIGNATURE = 'images'  # The other one, for encoded images, is the default one of serving.


class ServingGraph(NamedTuple):
    """image_bytes: string [n], fed with encoded images of any size; images: float32 [n, size, size, 3] in [-1, 1],
    fed instead of them; of a model that takes something else (image_bytes is None) its inputs. logits, probabilities:
    float32 [n, outputs]. classes, scores: the names (string) and probabilities of the k most probable outputs, [n, k].
    variables: all of the model's."""

    image_bytes: tf.Tensor | None
    images: tf.Tensor
    logits: tf.Tensor
    probabilities: tf.Tensor
    classes: tf.Tensor
    scores: tf.Tensor
    variables: list[tf.Variable]

    def outputs(self, *names: str) -> dict[str, tf.Tensor]:
        """Name -> tensor."""
        return {name: getattr(self, name) for name in names}


def export(data: DataConfig, model: ModelConfig, config: ExportConfig, say: Say = print,
           chosen: Collection[str] = model_card.SETTINGS) -> str:
    """Writes config.export_dir from the newest checkpoint (or the one that is named) and returns that folder.

    The folder appears when it is complete, with labels.txt (a name per output, the background first) and
    model.json. data: only data_dir, where the classes are from when the checkpoint has no model.json, and image_size
    are used; of model the width. chosen: the settings that the user gave. Raises UserError for what the user can mend.
    """
    checkpoint = checkpoints.find_checkpoint(config.checkpoint_dir, 'checkpoint_dir')
    card = card_for(data, model, config.checkpoint_dir, chosen)
    k = min(TOP_K, len(card.classes))
    remedy = (f'a model of width {card.width:g} with {len(card.classes)} classes was expected; give the --width, '
              '--image_size and --data_dir that it was trained with')
    with new_folder(config.export_dir, 'export_dir') as folder:
        with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
            serving = build_serving_graph(card, k)
            checkpoints.Restorer(serving.variables, config.use_averages, remedy).restore(session, checkpoint)
            _WRITERS[config.format](folder, session, serving, card.labels)
        if config.format == 'tflite':
            convert_to_tflite(folder)
        model_card.write_card(folder, card)
    step = checkpoints.step_of(checkpoint)
    say(f'exported   {checkpoint} (step {step}, {"moving averages" if config.use_averages else "raw weights"}), '
        f'{len(card.classes)} classes, {card.image_size} x {card.image_size}')
    for line in _HOW_TO_USE[config.format]:
        say(f'           {line.format(folder=config.export_dir)}')
    return config.export_dir


def export_any(checkpoint_dir: str, export_dir: str, inputs: tf.TensorSpec,
               logits_for: Callable[[tf.Tensor], tf.Tensor], labels: Sequence[str], say: Say = print) -> str:
    """Writes a SavedModel of any model from the averages of its newest checkpoint; returns export_dir.

    inputs: shape and dtype of a batch. logits_for(inputs): float32 [n, outputs] with fixed statistics. labels: the name
    of each output. Raises UserError for what the user can mend.
    """
    checkpoint = checkpoints.find_checkpoint(checkpoint_dir, 'train_dir')
    with new_folder(export_dir, 'export_dir') as folder:
        with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
            serving = build_plain_serving_graph(inputs, logits_for, labels)
            checkpoints.Restorer(serving.variables, True, 'it is of another model').restore(session, checkpoint)
            write_saved_model(folder, session, serving, labels)
    say(f'exported   {checkpoint} (step {checkpoints.step_of(checkpoint)}, moving averages): {export_dir}')
    return export_dir


def card_for(data: DataConfig, model: ModelConfig, checkpoint: str, chosen: Collection[str]) -> model_card.ModelCard:
    """The card of the model to export: that of the checkpoint's folder, or one made of the flags and the data set."""
    folder = model_card.folder_of(checkpoint)
    card = model_card.read_card(folder)
    settled = model_card.settle(card, folder, data, model, chosen)
    if card is None:
        if not data.data_dir:
            raise FlagError(f'{folder} has no {model_card.CARD_FILE}: name the classes by --data_dir, the folder with '
                            'dataset.json, and give the --width and --image_size of the training')
        card = model_card.make_card(*settled, read_dataset_info(data.data_dir).classes)
    elif data.data_dir:
        model_card.check_classes(card, folder, read_dataset_info(data.data_dir).classes, data.data_dir)
    return card


def build_serving_graph(card: model_card.ModelCard, k: int) -> ServingGraph:
    """Builds the inference graph for images in any of the formats of tf.io.decode_image (JPEG, PNG, GIF, BMP, and
    what else it takes); runs nothing. k: the number of classes named."""
    size = card.image_size

    def read(encoded: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return resize_for_evaluation(tf.ensure_shape(image, [None, None, 3]), size)

    image_bytes = v1.placeholder(tf.string, [None], 'image_bytes')
    with tf.name_scope('read_images'):
        read_images = tf.map_fn(read, image_bytes, fn_output_signature=tf.TensorSpec([size, size, 3], tf.float32))
    # One network for both signatures: who feeds the images does not make them be read.
    images = v1.placeholder_with_default(read_images, [None, size, size, 3], 'images')

    def logits_for(inputs: tf.Tensor) -> tf.Tensor:
        layers = Layers(is_training=False, width=card.width, weight_decay=None)
        return network(card.model).build(inputs, len(card.labels), layers, ModelConfig(), aux_head=False).logits

    return _serving(image_bytes, images, logits_for, card.labels, k)


def build_plain_serving_graph(inputs: tf.TensorSpec, logits_for: Callable[[tf.Tensor], tf.Tensor],
                              labels: Sequence[str]) -> ServingGraph:
    """The same for any model: `inputs`, of which the first dimension is the batch, to logits; runs nothing."""
    fed = v1.placeholder(inputs.dtype, [None, *inputs.shape[1:]], 'images')
    return _serving(None, fed, logits_for, labels, min(TOP_K, len(labels)))


def _serving(image_bytes: tf.Tensor | None, images: tf.Tensor, logits_for: Callable[[tf.Tensor], tf.Tensor],
             labels: Sequence[str], k: int) -> ServingGraph:
    with v1.variable_scope(v1.get_variable_scope(), use_resource=True, custom_getter=_without_chance):
        logits = logits_for(images)
    variables = v1.global_variables()
    probabilities = tf.nn.softmax(logits, name='probabilities')
    scores, indices = tf.math.top_k(probabilities, k, name='scores')
    classes = tf.gather(tf.constant(labels, name='labels'), indices, name='classes')
    return ServingGraph(image_bytes, images, tf.identity(logits, 'output_logits'), probabilities, classes, scores,
                        variables)


def _without_chance(getter, name: str, *args, **options) -> tf.Variable:
    """Makes variables that begin at zero: their values come from the checkpoint, so the graph for serving need not hold
    operations that draw initial ones."""
    return getter(name, *args, **{**options, 'initializer': v1.zeros_initializer()})


@contextlib.contextmanager
def new_folder(path: str, flag: str) -> Iterator[str]:
    """Yields a folder beside `path` that becomes `path` when all went well, and goes when not.

    Of a remote path it is on this machine, and is copied there. Raises UserError naming the flag if `path` is there
    already, unless it is an empty folder.
    """
    path = whole(path)
    if exists(path) and (not is_folder(path) or names_in(path)):
        raise UserError(f'--{flag}={path} is not empty: name a new folder')
    if scheme_of(path):
        with tempfile.TemporaryDirectory() as temporary:
            yield temporary
            _upload(temporary, path, flag)
        return
    temporary = os.path.join(os.path.dirname(path), f'.{os.path.basename(path)}.{os.getpid()}')
    try:
        os.makedirs(temporary)
        yield temporary
        os.rename(temporary, path)  # Over an empty folder, but over nothing else.
    except OSError as error:
        raise UserError(f'--{flag}={path}: {error.strerror}') from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _upload(folder: str, target: str, flag: str) -> None:
    """Copies what is in a folder; saved_model.pb last, which makes a folder a model for who looks."""
    below = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    try:
        for path in sorted(below, key=lambda path: (path.endswith('.pb'), path)):
            there = os.path.join(target, os.path.relpath(path, folder))
            make_folder(os.path.dirname(there))
            link_or_copy(path, there)
    except OSError as error:
        raise UserError(f'--{flag}={target}: {error.strerror}') from None


def write_saved_model(folder: str, session: v1.Session, serving: ServingGraph, labels: Sequence[str]) -> None:
    """Writes a SavedModel with the tag 'serve' and labels.txt among its assets.

    The signature 'serving_default' takes image_bytes (or images, where there are none), 'images' takes images; both
    give classes, scores, probabilities and logits.
    """
    outputs = serving.outputs('classes', 'scores', 'probabilities', 'logits')
    first = 'images' if serving.image_bytes is None else 'image_bytes'
    with _labels_asset(folder, labels) as asset:
        _save(folder, session, {v1.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY:
                                _signature(serving.outputs(first), outputs),
                                IMAGES_SIGNATURE: _signature(serving.outputs('images'), outputs)}, [asset])


def write_for_tflite(folder: str, session: v1.Session, serving: ServingGraph, labels: Sequence[str]) -> None:
    """Writes the SavedModel that convert_to_tflite takes. Its one signature, 'images', gives probabilities and logits:
    TFLite has no decoder of images."""
    _save(os.path.join(folder, 'saved'), session, {IMAGES_SIGNATURE: _signature(
        serving.outputs('images'), serving.outputs('probabilities', 'logits'))})
    _write_labels(folder, labels)


def convert_to_tflite(folder: str) -> None:
    """Puts model.tflite, float32, in place of what write_for_tflite wrote. For outside of any tf.Graph: inside of one,
    TensorFlow takes its old converter, which loses the signature."""
    saved = os.path.join(folder, 'saved')
    model_v = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=[IMAGES_SIGNATURE]).convert()
    with open(os.path.join(folder, 'model.tflite'), 'wb') as file:
        file.write(model_v)
    shutil.rmtree(saved)


def write_frozen_graph(folder: str, session: v1.Session, serving: ServingGraph, labels: Sequence[str]) -> None:
    """Writes frozen_graph.pb, a GraphDef: feed image_bytes:0 or images:0, fetch classes:0, scores:0, probabilities:0 or
    output_logits:0."""
    names = [tensor.op.name for tensor in serving.outputs('classes', 'scores', 'probabilities', 'logits').values()]
    graph_def = v1.graph_util.convert_variables_to_constants(session, session.graph_def, names)
    with open(os.path.join(folder, 'frozen_graph.pb'), 'wb') as file:
        file.write(graph_def.SerializeToString())
    _write_labels(folder, labels)


_WRITERS = {'saved_model': write_saved_model, 'tflite': write_for_tflite, 'frozen_graph': write_frozen_graph}
_HOW_TO_USE = {
    'saved_model': ['{folder}: python scripts/classify.py {folder} IMAGE_OR_FOLDER...'],
    'tflite': ['{folder}/model.tflite: takes images that were cropped, resized and scaled to [-1, 1] before'],
    'frozen_graph': ['{folder}/frozen_graph.pb: feed image_bytes:0 or images:0, fetch classes:0, scores:0, '
                     'probabilities:0 or output_logits:0']}


def _signature(inputs: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor]):
    info = v1.saved_model.build_tensor_info
    return v1.saved_model.build_signature_def(
        {name: info(tensor) for name, tensor in inputs.items()},
        {name: info(tensor) for name, tensor in outputs.items()},
        v1.saved_model.PREDICT_METHOD_NAME)


def _save(folder: str, session: v1.Session, signatures: dict, assets: Sequence[tf.Tensor] = ()) -> None:
    # The builder wants to make the folder itself; ours holds other files too.
    made = os.path.join(folder, 'made')
    builder = v1.saved_model.Builder(made)
    builder.add_meta_graph_and_variables(session, [v1.saved_model.SERVING], signatures, list(assets),
                                         clear_devices=True)
    builder.save()
    for name in os.listdir(made):
        os.rename(os.path.join(made, name), os.path.join(folder, name))
    os.rmdir(made)


@contextlib.contextmanager
def _labels_asset(folder: str, labels: Sequence[str]) -> Iterator[tf.Tensor]:
    """Within, a file that the builder copies into the assets; its tensor holds the path."""
    _write_labels(folder, labels)
    path = os.path.join(folder, LABELS_FILE)
    with tf.name_scope('assets'):
        yield tf.constant(path)
    os.remove(path)


def _write_labels(folder: str, labels: Sequence[str]) -> None:
    write_text(os.path.join(folder, LABELS_FILE), '\n'.join(labels) + '\n')
