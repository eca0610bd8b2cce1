"""A checkpoint to a model for serving: a SavedModel, or a GraphDef; and, in files of their own, TFLite, ONNX and Keras.

The graph is our own, in inference mode and without device names; values are taken from the checkpoint by name, and are
in it as constants, with batch normalisation folded into the weights. It reads images as evaluation does:

    examples [n] -> image_bytes [n] -> decode, centre crop, resize -> unit_images [n, size, size, 3] in [0, 1]
                 -> images, the same in [-1, 1] -> network -> logits, probabilities -> classes, scores
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
from inception_mg.data.distortions import resize_to_unit_range, to_model_range
from inception_mg.errors import FlagError, UserError
from inception_mg.files import exists, is_folder, link_or_copy, make_folder, names_in, whole, write_text
from inception_mg.model.networks import network
from inception_mg.paths import scheme_of
from inception_mg.run_dir import model_card
from inception_mg.serving import precision, reading
from inception_mg.weights import checkpoints
from inception_mg.weights.folding import CheckpointValues, FoldedLayers, Values

v1 = tf.compat.v1
Say = Callable[[str], None]
TOP_K = 5
ENCODED = 'image/encoded'  # As in the records.
# The default signature of serving takes encoded images.
IMAGES_SIGNATURE, UNIT_IMAGES_SIGNATURE, CLASSIFY_SIGNATURE = 'images', 'unit_images', 'classify'
INPUTS = {'-1,1': 'images', '0,1': 'unit_images'}  # --input_range -> the tensor that is the input.


class ServingGraph(NamedTuple):
    """examples: string [n], fed with serialized tf.Example that have image/encoded, as the Classify call of TensorFlow
    Serving sends them. image_bytes: string [n], encoded images of any size. unit_images: float32 [n, size, size, 3] in
    [0, 1]. images: the same in [-1, 1], or what another model takes. Any one of the four is fed; None: comes before
    the graph's first input. logits, probabilities: float32 [n, outputs]. classes, scores: the names (string) and
    probabilities of the k most probable outputs, [n, k]. variables: all of the model's; none where they are constants.
    """

    examples: tf.Tensor | None
    image_bytes: tf.Tensor | None
    unit_images: tf.Tensor | None
    images: tf.Tensor
    logits: tf.Tensor
    probabilities: tf.Tensor
    classes: tf.Tensor
    scores: tf.Tensor
    variables: list[tf.Variable]

    def outputs(self, *names: str) -> dict[str, tf.Tensor]:
        """Name -> tensor."""
        return {name: getattr(self, name) for name in names}


class Job(NamedTuple):
    """What a writer of a format works on. data_dir: records to compare on, or ''; say: takes lines for the user."""

    card: model_card.ModelCard
    values: Values
    config: ExportConfig
    data_dir: str
    say: Say

    @property
    def k(self) -> int:
        """The number of classes named."""
        return min(TOP_K, len(self.card.classes))

    @property
    def input(self) -> str:
        """The tensor that takes float images."""
        return INPUTS[self.config.input_range]

    def compare(self, name: str, predict: precision.Predict) -> None:
        """Says precision@1 of float32 and of what is exported on the same validation images, if there are any."""
        if self.data_dir:
            with folded_network(self.card, self.values) as reference:
                self.say(precision.compare({'float32': reference, name: predict}, self.data_dir, self.card,
                                           self.config.num_examples))


def export(data: DataConfig, model: ModelConfig, config: ExportConfig, say: Say = print,
           chosen: Collection[str] = model_card.SETTINGS) -> str:
    """Writes config.export_dir from the newest checkpoint (or the one that is named) and returns that folder.

    The folder appears when it is complete, with labels.txt (a name per output, the background first) and
    model.json. data: only data_dir, where the classes are from when the checkpoint has no model.json, and whose
    validation images tell what another dtype or quantization costs, and image_size are used; of model the width.
    chosen: the settings that the user gave. Raises UserError for what the user can mend.
    """
    checkpoint = checkpoints.find_checkpoint(config.checkpoint_dir, 'checkpoint_dir')
    card = card_for(data, model, config.checkpoint_dir, chosen)
    if config.quantize == 'int8' and not data.data_dir:
        raise FlagError('--quantize=int8 needs --data_dir: images of its training set show the range of every value')
    remedy = (f'a model of width {card.width:g} with {len(card.classes)} classes was expected; give the --width, '
              '--image_size and --data_dir that it was trained with')
    values = CheckpointValues(checkpoint, config.use_averages, remedy)
    lines: list[str] = []
    with new_folder(config.export_dir, 'export_dir') as folder:
        usage = _writer(config.format)(folder, Job(card, values, config, data.data_dir, lines.append))
        model_card.write_card(folder, card)
    step = checkpoints.step_of(checkpoint)
    say(f'exported   {checkpoint} (step {step}, {"moving averages" if config.use_averages else "raw weights"}), '
        f'{len(card.classes)} classes, {card.image_size} x {card.image_size}')
    for line in [*lines, *(f'           {line.format(folder=config.export_dir)}' for line in usage)]:
        say(line)
    return config.export_dir


def _writer(name: str) -> Callable[[str, Job], Sequence[str]]:
    """What writes that format, and returns lines on its use. Each is imported when it is wanted."""
    if name == 'tflite':
        from inception_mg.serving.tflite import write_tflite as write
    elif name == 'onnx':
        from inception_mg.serving.onnx_model import write_onnx as write
    elif name == 'keras':
        from inception_mg.serving.keras_model import write_keras as write
    else:
        write = {'saved_model': export_saved_model, 'frozen_graph': export_frozen_graph}[name]
    return write


def export_saved_model(folder: str, job: Job) -> Sequence[str]:
    """Writes a SavedModel that computes in config.compute_dtype; see write_saved_model."""
    with serving_session(job.card, job.k, job.values, job.config.compute_dtype) as (session, serving):
        write_saved_model(folder, session, serving, job.card.labels)
        if job.config.compute_dtype != 'float32':
            job.compare(job.config.compute_dtype, _predict(session, serving))
    return ('{folder}: python scripts/classify.py {folder} IMAGE_OR_FOLDER...',)


def export_frozen_graph(folder: str, job: Job) -> Sequence[str]:
    """Writes frozen_graph.pb; see write_frozen_graph."""
    with serving_session(job.card, job.k, job.values, job.config.compute_dtype) as (session, serving):
        write_frozen_graph(folder, session, serving, job.card.labels)
        if job.config.compute_dtype != 'float32':
            job.compare(job.config.compute_dtype, _predict(session, serving))
    return ('{folder}/frozen_graph.pb: feed image_bytes:0, images:0 ([-1, 1]) or unit_images:0 ([0, 1]), fetch '
            'classes:0, scores:0, probabilities:0 or output_logits:0',)


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


@contextlib.contextmanager
def serving_session(card: model_card.ModelCard, k: int, values: Values, compute_dtype: str = 'float32',
                    begin: str = 'image_bytes') -> Iterator[tuple[v1.Session, ServingGraph]]:
    """Within, the serving graph in a session on CPUs."""
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
        yield session, build_serving_graph(card, k, values, compute_dtype, begin)


@contextlib.contextmanager
def folded_network(card: model_card.ModelCard, values: Values) -> Iterator[precision.Predict]:
    """Within, the network in float32, to be called."""
    graph = tf.Graph()
    with graph.as_default():
        serving = build_serving_graph(card, 1, values, begin='images')
    with v1.Session(graph=graph, config=v1.ConfigProto(device_count={'GPU': 0})) as session:
        yield _predict(session, serving)


def _predict(session: v1.Session, serving: ServingGraph) -> precision.Predict:
    return lambda images_v: session.run(serving.logits, {serving.images: images_v})


def build_serving_graph(card: model_card.ModelCard, k: int, values: Values, compute_dtype: str = 'float32',
                        begin: str = 'image_bytes') -> ServingGraph:
    """Builds the inference graph with its values inside; runs nothing.

    k: the number of classes named. begin: the first input, which decides how much there is before the network:
    'image_bytes' (see reading.py for the formats), 'unit_images' or 'images'.
    """
    size, examples, image_bytes, unit_images = card.image_size, None, None, None
    shape = [None, size, size, 3]
    if begin == 'image_bytes':
        examples = v1.placeholder(tf.string, [None], 'examples')
        parsed = tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
        image_bytes = v1.placeholder_with_default(parsed[ENCODED], [None], 'image_bytes')
        with tf.name_scope('read_images'):
            read = tf.map_fn(lambda encoded: resize_to_unit_range(reading.decode(encoded), size), image_bytes,
                             fn_output_signature=tf.TensorSpec(shape[1:], tf.float32))
        # One network for all signatures: who feeds the images does not make them be read.
        unit_images = v1.placeholder_with_default(read, shape, 'unit_images')
        images = v1.placeholder_with_default(to_model_range(unit_images), shape, 'images')
    elif begin == 'unit_images':
        unit_images = v1.placeholder(tf.float32, shape, 'unit_images')
        images = to_model_range(unit_images)
    else:
        images = v1.placeholder(tf.float32, shape, 'images')

    def logits_for(inputs: tf.Tensor) -> tf.Tensor:
        layers = FoldedLayers(False, tf.as_dtype(compute_dtype), card.width, weight_decay=None, values=values)
        return network(card.model).build(inputs, len(card.labels), layers, ModelConfig(), aux_head=False).logits

    return _serving((examples, image_bytes, unit_images, images), logits_for, card.labels, k)


def build_plain_serving_graph(inputs: tf.TensorSpec, logits_for: Callable[[tf.Tensor], tf.Tensor],
                              labels: Sequence[str]) -> ServingGraph:
    """The same for any model: `inputs`, of which the first dimension is the batch, to logits; runs nothing."""
    fed = v1.placeholder(inputs.dtype, [None, *inputs.shape[1:]], 'images')
    return _serving((None, None, None, fed), logits_for, labels, min(TOP_K, len(labels)))


def _serving(inputs: Sequence[tf.Tensor | None], logits_for: Callable[[tf.Tensor], tf.Tensor], labels: Sequence[str],
             k: int) -> ServingGraph:
    with v1.variable_scope(v1.get_variable_scope(), use_resource=True, custom_getter=_without_chance):
        logits = logits_for(inputs[-1])
    variables = v1.global_variables()
    probabilities = tf.nn.softmax(logits, name='probabilities')
    scores, indices = tf.math.top_k(probabilities, k, name='scores')
    classes = tf.gather(tf.constant(labels, name='labels'), indices, name='classes')
    return ServingGraph(*inputs, tf.identity(logits, 'output_logits'), probabilities, classes, scores, variables)


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

    The signature 'serving_default' takes image_bytes (or images, where there are none), 'images' takes images, and
    'unit_images', where there are any, unit_images; all give classes, scores, probabilities and logits. 'classify' is
    for TensorFlow Serving's Classify call: tf.Example with image/encoded -> classes, scores.
    """
    outputs = serving.outputs('classes', 'scores', 'probabilities', 'logits')
    first = 'images' if serving.image_bytes is None else 'image_bytes'
    signatures = {v1.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: first, IMAGES_SIGNATURE: 'images'}
    if serving.unit_images is not None:
        signatures[UNIT_IMAGES_SIGNATURE] = 'unit_images'
    made = {name: signature(serving.outputs(taken), outputs) for name, taken in signatures.items()}
    if serving.examples is not None:
        made[CLASSIFY_SIGNATURE] = signature({v1.saved_model.CLASSIFY_INPUTS: serving.examples},
                                             serving.outputs('classes', 'scores'), v1.saved_model.CLASSIFY_METHOD_NAME)
    with _labels_asset(folder, labels) as asset:
        save(folder, session, made, [asset])


def write_frozen_graph(folder: str, session: v1.Session, serving: ServingGraph, labels: Sequence[str]) -> None:
    """Writes frozen_graph.pb, a GraphDef: feed image_bytes:0, unit_images:0 or images:0, fetch classes:0, scores:0,
    probabilities:0 or output_logits:0."""
    names = [tensor.op.name for tensor in serving.outputs('classes', 'scores', 'probabilities', 'logits').values()]
    graph_def = v1.graph_util.extract_sub_graph(session.graph_def, names)
    with open(os.path.join(folder, 'frozen_graph.pb'), 'wb') as file:
        file.write(graph_def.SerializeToString())
    write_labels(folder, labels)


def signature(inputs: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor],
              method: str = v1.saved_model.PREDICT_METHOD_NAME):
    """What a SavedModel says of a way to call it: names -> tensors."""
    info = v1.saved_model.build_tensor_info
    return v1.saved_model.build_signature_def(
        {name: info(tensor) for name, tensor in inputs.items()},
        {name: info(tensor) for name, tensor in outputs.items()},
        method)


def save(folder: str, session: v1.Session, signatures: dict, assets: Sequence[tf.Tensor] = ()) -> None:
    """Writes the session's graph as a SavedModel into a folder that is there."""
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
    write_labels(folder, labels)
    path = os.path.join(folder, LABELS_FILE)
    with tf.name_scope('assets'):
        yield tf.constant(path)
    os.remove(path)


def write_labels(folder: str, labels: Sequence[str]) -> None:
    """Writes labels.txt: a name per output."""
    write_text(os.path.join(folder, LABELS_FILE), '\n'.join(labels) + '\n')
