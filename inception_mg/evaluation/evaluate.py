"""Evaluation: precision@1 and recall@5 of a checkpoint on every image of a data set, each once."""

import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import DataConfig, EvalConfig, ModelConfig
from inception_mg.data.damage import explain_input_error
from inception_mg.data.dataset_info import read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import evaluation_dataset
from inception_mg.data.progress import progress
from inception_mg.errors import FlagError, UserError
from inception_mg.evaluation import per_class
from inception_mg.files import append_line, check_writable
from inception_mg.model import metrics
from inception_mg.model.networks import network
from inception_mg.reasons import reason_of
from inception_mg.run_dir import model_card
from inception_mg.weights import checkpoints
from inception_mg.weights.folding import CheckpointValues, FoldedLayers, Values

v1 = tf.compat.v1
Say = Callable[[str], None]
RESULTS_FILE = 'results.jsonl'


class Setup(NamedTuple):
    """What is evaluated on which examples.

    dataset_for(): batches of (inputs, labels int32 [n]), each example once. logits_for(inputs): float32 [n, outputs],
    with fixed statistics; or folded_for(inputs, values), the same with a checkpoint's values inside, in a graph of its
    own for each checkpoint, which is faster. outputs: the name of each. classes: how many of them are classes. images:
    how many examples count; batch_size: of a full batch. source, title: the examples and the model, on the screen.
    remedy: the end of the line that says that a checkpoint does not fit. explain(error): whether the examples are to
    blame for it.
    """

    config: EvalConfig
    dataset_for: Callable[[], tf.data.Dataset]
    logits_for: Callable[[tf.Tensor], tf.Tensor] | None
    outputs: Sequence[str]
    classes: int
    images: int
    batch_size: int
    source: str
    title: str
    remedy: str
    explain: Callable[[Exception], UserError | None] = lambda error: None
    folded_for: Callable[[tf.Tensor, Values], tf.Tensor] | None = None

    @property
    def k(self) -> int:
        """The number of guesses of recall@k."""
        return metrics.recall_k(self.classes)


class EvalGraph(NamedTuple):
    """hits: of one batch. labels, guesses: int32 [n] of its images. start_input: goes back to the first
    image. variables: all of the model's, with the batch-norm statistics; none where it is folded."""

    hits: metrics.Hits
    labels: tf.Tensor
    guesses: tf.Tensor
    start_input: tf.Operation
    variables: list[tf.Variable]


class Outcome(NamedTuple):
    """Of one checkpoint. confusion: its images by their class and guess."""

    step: int
    scores: metrics.Scores
    confusion: per_class.Confusion


def evaluate(data: DataConfig, model: ModelConfig, config: EvalConfig, say: Say = print,
             chosen: Collection[str] = model_card.SETTINGS) -> metrics.Scores:
    """Evaluates the newest checkpoint once.

    Results go to the screen, to summaries and results.jsonl in eval_dir, and as a line of JSON to
    `say`. chosen: the settings that the user gave; the others are taken from the checkpoint's model.json. Raises
    UserError for what the user can mend: no checkpoint, no averages, other classes.
    """
    checkpoints.find_checkpoint(config.checkpoint_dir, 'checkpoint_dir')  # Before the images are looked for.
    return evaluate_once(set_up(data, model, config, chosen), say)


def evaluate_once(setup: Setup, say: Say = print) -> metrics.Scores:
    """The same of any setup."""
    checkpoint = checkpoints.find_checkpoint(setup.config.checkpoint_dir, 'checkpoint_dir')
    with Results(setup, say) as results, Evaluation(setup) as evaluation:
        started = time.monotonic()
        outcome = evaluation.score(checkpoint)
        results.publish(checkpoint, outcome, time.monotonic() - started)
    return outcome.scores


def set_up(data: DataConfig, model: ModelConfig, config: EvalConfig,
           chosen: Collection[str] = model_card.SETTINGS) -> Setup:
    """Brings the settings together with the model's card and the data set's description.

    Raises UserError where they do not fit, or something is missing.
    """
    folder = model_card.folder_of(config.checkpoint_dir)
    card = model_card.read_card(folder)
    data, model = model_card.settle(card, folder, data, model, chosen)
    if not data.data_dir:
        raise FlagError('--data_dir is empty: name the folder with the shards and dataset.json')
    info = read_dataset_info(data.data_dir)
    paths = shard_paths(data.data_dir, info.stem(config.subset))
    model_card.check_classes(card, folder, info.classes, data.data_dir)
    images = info.num_images(config.subset)
    images = min(images, config.num_examples) if config.num_examples else images

    def dataset_for() -> tf.data.Dataset:
        dataset = evaluation_dataset(paths, image_size=data.image_size, batch_size=data.batch_size,
                                     num_preprocess_threads=data.num_preprocess_threads,
                                     num_examples=config.num_examples, skip_damaged_records=data.skip_damaged_records,
                                     num_classes=len(info.classes), num_records=images, keys=info.records)
        return dataset.map(lambda inputs, labels, filename: (inputs, labels))

    def folded_for(inputs: tf.Tensor, values: Values) -> tf.Tensor:
        layers = FoldedLayers(False, tf.as_dtype(model.compute_dtype), model.width, weight_decay=None, values=values)
        return network(model.model).build(inputs, info.num_outputs, layers, model, aux_head=False).logits

    return Setup(config, dataset_for, None, [info.class_name(label) for label in range(info.num_outputs)],
                 len(info.classes), images, data.batch_size,
                 source=f'{data.data_dir}: {images} {config.subset} images of {len(info.classes)} classes',
                 title=f'{network(model.model).title}, width {model.width:g}, {data.image_size} x {data.image_size}',
                 remedy=f'the data set in {data.data_dir} has {len(info.classes)} classes; give the --data_dir, '
                        '--width and --image_size that the model was trained with',
                 explain=lambda error: explain_input_error(error, paths, info.records), folded_for=folded_for)


class Evaluation:
    """The network with fixed statistics over the images of a data set, in a session of its own.

    Scores one checkpoint after another; a context manager.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self._session: v1.Session | None = None

    def __enter__(self) -> 'Evaluation':
        return self

    def __exit__(self, *error) -> None:
        if self._session:
            self._session.close()

    def _open(self, checkpoint: str) -> None:
        """A session with the checkpoint's values: in its variables, or, folded, in a graph of its own."""
        setup, values = self._setup, None
        if setup.folded_for:
            values = CheckpointValues(checkpoint, setup.config.use_averages, setup.remedy)
        if not self._session or values:
            self.__exit__()
            with tf.Graph().as_default() as graph:
                self._graph = build_eval_graph(setup, values)
                self._restorer = checkpoints.Restorer(self._graph.variables, setup.config.use_averages, setup.remedy)
            # Beside a training on the same GPU: no more of its memory than this needs.
            self._session = v1.Session(graph=graph, config=v1.ConfigProto(
                allow_soft_placement=True, gpu_options=v1.GPUOptions(allow_growth=True)))
        if not values:
            self._restorer.restore(self._session, checkpoint)

    def score(self, checkpoint: str) -> Outcome:
        """Evaluates a checkpoint, named by its path prefix, on every image.

        Raises UserError if the checkpoint does not fit, or the images are not those of dataset.json.
        """
        self._open(checkpoint)
        setup, graph, run = self._setup, self._graph, self._session.run
        step_v = checkpoints.step_of(checkpoint)
        run(graph.start_input)
        totals, confusion = [0, 0, 0], per_class.Confusion(len(setup.outputs))
        batches = -(-setup.images // setup.batch_size)
        try:
            for _ in progress(range(batches), batches, 'evaluate', 'batch'):
                hits_v, labels_v, guesses_v = run([graph.hits, graph.labels, graph.guesses])
                totals = [total + int(hit) for total, hit in zip(totals, hits_v, strict=True)]
                confusion.add(labels_v, guesses_v)
            run(graph.hits)
            raise UserError(f'{setup.source}: there are more images than dataset.json says: write it anew with '
                            'scripts/build_image_data.py --describe')
        except tf.errors.OutOfRangeError:
            return Outcome(step_v, metrics.Scores(*totals, setup.k), confusion)
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            raise setup.explain(error) or error from error


def count_examples(dataset_for: Callable[[], tf.data.Dataset]) -> int:
    """How many examples a data set of batches (inputs, labels) has, by going through it once; UserError for one without
    end."""
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={'GPU': 0})) as session:
        dataset = dataset_for()
        if session.run(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise UserError('the validation examples have no end: each must come once (leave out repeat)')
        sizes = dataset.map(lambda inputs, labels: tf.size(labels, tf.int64))
        total = sizes.reduce(tf.constant(0, tf.int64), lambda count, size: count + size)
        return int(session.run(total))


def build_eval_graph(setup: Setup, values: Values | None = None) -> EvalGraph:
    """Builds the network with fixed statistics over the examples, with variables, or with the values folded into it;
    runs nothing."""
    with tf.device('/device:CPU:0'):
        iterator = v1.data.make_initializable_iterator(setup.dataset_for())
        inputs, labels = iterator.get_next()
    with v1.variable_scope(v1.get_variable_scope(), use_resource=True):
        logits = setup.folded_for(inputs, values) if values else setup.logits_for(inputs)
    return EvalGraph(metrics.build_hits(logits, labels, setup.k), labels, metrics.build_guesses(logits, labels),
                     iterator.initializer, v1.global_variables())


class Results:
    """Where results go: the screen, eval_dir with summaries and results.jsonl, and the report; a context manager."""

    def __init__(self, setup: Setup, say: Say):
        config = setup.config
        self._setup, self._say = setup, say
        self._said: set[str] = set()
        self.eval_dir = config.eval_dir or os.path.join(model_card.folder_of(config.checkpoint_dir), 'eval')
        self._writer = self._open_writer()
        say(f'data       {setup.source}')
        say(f'model      {setup.title}')
        say(f'weights    {"moving averages" if config.use_averages else "raw weights"} from {config.checkpoint_dir}')
        say(f'eval_dir   {self.eval_dir}')
        if setup.k < metrics.RECALL_AT:
            say(f'recall@{setup.k} instead of recall@{metrics.RECALL_AT}: {metrics.RECALL_AT} guesses among '
                f'{setup.classes} classes could hardly miss')

    def _open_writer(self) -> v1.summary.FileWriter | None:
        """Of eval_dir; None, with a line, where that is the default and cannot be written in: a result that is on the
        screen is worth more than none. UserError where --eval_dir was given."""
        try:
            check_writable(self.eval_dir)
            with tf.Graph().as_default():  # This FileWriter refuses to be made outside of one.
                return v1.summary.FileWriter(self.eval_dir)
        except (OSError, tf.errors.OpError) as error:
            if self._setup.config.eval_dir:
                raise UserError(f'--eval_dir={self.eval_dir}: {reason_of(error)}') from None
            self._lost(reason_of(error))
            return None

    def _lost(self, why: str) -> None:
        self._say_once(f'the results are not kept: cannot write in {self.eval_dir}: {why}; --eval_dir=DIR names '
                       'another folder')

    def say_lost(self, error: Exception, what: str) -> None:
        """Says once that something beside a result could not be kept, and why: the result itself stands."""
        self._say_once(f'{what} is not kept: {reason_of(error)}')

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._say(line)
        self._said.add(line)

    def __enter__(self) -> 'Results':
        return self

    def __exit__(self, *error) -> None:
        if self._writer:
            try:
                self._writer.close()
            except (OSError, tf.errors.OpError) as lost:
                self.say_lost(lost, f'the summary in {self.eval_dir}')

    def publish(self, checkpoint: str, outcome: Outcome, seconds: float) -> dict:
        """Says and writes the outcome of one checkpoint; returns what results.jsonl has of it."""
        scores, config, recall = outcome.scores, self._setup.config, f'recall@{outcome.scores.k}'
        result = {'checkpoint': checkpoint, 'step': outcome.step, 'subset': config.subset,
                  'images': scores.images, 'images_declared': self._setup.images,
                  'precision@1': round(scores.precision_at_1, 6),
                  recall: round(scores.recall_at_k, 6), 'averages': config.use_averages, 'seconds': round(seconds, 1)}
        if config.report_dir:
            try:
                per_class.write_report(config.report_dir, outcome.confusion, self._setup.outputs, result, self._say)
            except (UserError, OSError) as error:
                self.say_lost(error, f'the report in --report_dir={config.report_dir}')
        self._say(f'step {result["step"]}: precision@1 = {scores.precision_at_1:.4f} ({scores.first} of '
                  f'{scores.images}), {recall} = {scores.recall_at_k:.4f}, {seconds:.1f} s')
        if scores.images < self._setup.images:
            self._say(f'{self._setup.images - scores.images} of the {self._setup.images} images are missing: '
                      'dataset.json counts more than could be read (scripts/build_image_data.py --describe lists them)')
        guesses = outcome.confusion.scores()[:, 1].nonzero()[0]
        if len(guesses) == 1 and scores.images > 1:
            self._say(f'every image is taken for {self._setup.outputs[guesses[0]]!r}: trained for too few steps, or '
                      '--batch_norm_decay and --moving_average_decay were too high for them (see docs/robustness.md)')
        line = json.dumps(result)
        if self._writer:
            self._keep(line, result, recall)
        self._say(line)
        return result

    def _keep(self, line: str, result: dict, recall: str) -> None:
        """Adds a result to results.jsonl and to the summaries; says so where it cannot, for the result stands."""
        try:
            append_line(os.path.join(self.eval_dir, RESULTS_FILE), line)
        except UserError as error:
            self._lost(reason_of(error))
        values = [v1.Summary.Value(tag=tag, simple_value=result[tag]) for tag in ('precision@1', recall)]
        try:
            self._writer.add_summary(v1.Summary(value=values), result['step'])
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            self.say_lost(error, f'the summary in {self.eval_dir}')
