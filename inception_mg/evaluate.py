"""Evaluation: precision@1 and recall@5 of a checkpoint on every image of a data set, each once."""

import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import DataConfig, EvalConfig, ModelConfig
from inception_mg.data.dataset_info import DatasetInfo, read_dataset_info, shard_paths
from inception_mg.data.input_pipeline import evaluation_dataset, explain_input_error
from inception_mg.data.progress import progress
from inception_mg.errors import UserError
from inception_mg.model import checkpoints, metrics
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers

v1 = tf.compat.v1
Say = Callable[[str], None]


class EvalGraph(NamedTuple):
    """hits: of one batch. start_input: goes back to the first image. variables: all of the model's,
    with the batch-norm statistics."""

    hits: metrics.Hits
    start_input: tf.Operation
    variables: list[tf.Variable]


def evaluate(data: DataConfig, model: ModelConfig, config: EvalConfig, say: Say = print) -> metrics.Scores:
    """Evaluates the newest checkpoint: once, or whenever there is a newer one, for ever.

    Results go to the screen, to summaries and results.jsonl in eval_dir, and as a line of JSON to
    `say`. Raises UserError for what the user can mend: no checkpoint, no averages, other classes.
    """
    info, paths = read_dataset_info(data.data_dir), shard_paths(data.data_dir, config.subset)
    images = info.num_images(config.subset)
    images = min(images, config.num_examples) if config.num_examples else images
    k = metrics.recall_k(len(info.classes))
    eval_dir = config.eval_dir or os.path.join(config.checkpoint_dir, 'eval')
    os.makedirs(eval_dir, exist_ok=True)
    _say_start(say, data, config, info, images, k, eval_dir)
    with tf.Graph().as_default():
        graph = build_eval_graph(paths, data, model, info.num_outputs, config.num_examples, k)
        savers = _Savers(graph.variables, config.use_averages, data.data_dir, len(info.classes))
        writer = v1.summary.FileWriter(eval_dir)
        seen = ''
        with v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
            while True:
                checkpoint = _next_checkpoint(config, seen, say)
                if checkpoint:
                    started = time.monotonic()
                    try:
                        scores = _evaluate_once(session, graph, savers, checkpoint, images, data.batch_size, k, paths)
                    except UserError:
                        # Training may have replaced it meanwhile: then there is a newer one.
                        if config.run_once or v1.train.checkpoint_exists(checkpoint):
                            raise
                        continue
                    result = _result(checkpoint, scores, config, time.monotonic() - started)
                    _publish(result, scores, eval_dir, writer, say)
                    seen = checkpoint
                if config.run_once:
                    return scores
                time.sleep(config.eval_interval_secs)


def build_eval_graph(paths: list[str], data: DataConfig, model: ModelConfig, num_outputs: int,
                     num_examples: int, k: int) -> EvalGraph:
    """Builds the network with fixed statistics over the images of `paths`; runs nothing."""
    with tf.device('/device:CPU:0'):
        dataset = evaluation_dataset(paths, image_size=data.image_size, batch_size=data.batch_size,
                                     num_preprocess_threads=data.num_preprocess_threads, num_examples=num_examples,
                                     skip_damaged_records=data.skip_damaged_records)
        iterator = v1.data.make_initializable_iterator(dataset)
        images, labels, _ = iterator.get_next()
    layers = Layers(is_training=False, compute_dtype=tf.as_dtype(model.compute_dtype), width=model.width)
    with v1.variable_scope(v1.get_variable_scope(), use_resource=True):
        logits = inception_v3(images, num_outputs, layers).logits
    return EvalGraph(metrics.build_hits(logits, labels, k), iterator.initializer, v1.global_variables())


class _Savers:
    """Restores a checkpoint's averages, or raw weights, by name, after checking that they fit."""

    def __init__(self, variables: list[tf.Variable], use_averages: bool, data_dir: str, classes: int):
        self._variables, self._use_averages = variables, use_averages
        self._remedy = (f'the data set in {data_dir} has {classes} classes; give the --data_dir, --width and '
                        '--image_size that the model was trained with')
        self._saver: v1.train.Saver | None = None

    def restore(self, session: v1.Session, checkpoint: str) -> None:
        """Raises UserError where a variable is missing or has another shape."""
        names = checkpoints.names_to_restore(checkpoint, self._variables, self._use_averages)
        checkpoints.check_shapes(checkpoint, names, self._remedy)
        self._saver = self._saver or v1.train.Saver(names)
        try:
            self._saver.restore(session, checkpoint)
        except tf.errors.OpError as error:
            raise UserError(f'cannot restore {checkpoint}: {str(error).splitlines()[0]}') from error


def _evaluate_once(session: v1.Session, graph: EvalGraph, savers: _Savers, checkpoint: str, images: int,
                   batch_size: int, k: int, paths: list[str]) -> metrics.Scores:
    savers.restore(session, checkpoint)
    session.run(graph.start_input)
    totals = [0, 0, 0]
    try:
        for _ in progress(range(-(-images // batch_size)), -(-images // batch_size), 'evaluate', 'batch'):
            totals = [total + int(hits_v) for total, hits_v in zip(totals, session.run(graph.hits), strict=True)]
        session.run(graph.hits)
        raise UserError(f'{os.path.dirname(paths[0])}: more images than dataset.json says: write it anew with '
                        'scripts/build_image_data.py --describe')
    except tf.errors.OutOfRangeError:
        return metrics.Scores(*totals, k)
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise explain_input_error(error, paths) or error from error


def _next_checkpoint(config: EvalConfig, seen: str, say: Say) -> str | None:
    """The newest checkpoint, or None if it was seen; UserError without any when it should be there."""
    if config.run_once:
        return checkpoints.find_checkpoint(config.checkpoint_dir, 'checkpoint_dir')
    newest = checkpoints.newest_checkpoint(config.checkpoint_dir)
    if newest is None:
        say(f'no checkpoint in {config.checkpoint_dir} yet; looking again every {config.eval_interval_secs:g} s')
    return newest if newest != seen else None


def _result(checkpoint: str, scores: metrics.Scores, config: EvalConfig, seconds: float) -> dict:
    return {'checkpoint': checkpoint, 'step': checkpoints.step_of(checkpoint), 'subset': config.subset,
            'images': scores.images, 'precision@1': round(scores.precision_at_1, 6),
            f'recall@{scores.k}': round(scores.recall_at_k, 6), 'averages': config.use_averages,
            'seconds': round(seconds, 1)}


def _publish(result: dict, scores: metrics.Scores, eval_dir: str, writer: v1.summary.FileWriter, say: Say) -> None:
    say(f'step {result["step"]}: precision@1 = {scores.precision_at_1:.4f} ({scores.first} of {scores.images}), '
        f'recall@{scores.k} = {scores.recall_at_k:.4f}, {result["seconds"]:.1f} s')
    line = json.dumps(result)
    say(line)
    with open(os.path.join(eval_dir, 'results.jsonl'), 'a', encoding='utf-8') as file:
        file.write(line + '\n')
    values = [v1.Summary.Value(tag=tag, simple_value=result[tag]) for tag in ('precision@1', f'recall@{scores.k}')]
    writer.add_summary(v1.Summary(value=values), result['step'])
    writer.flush()


def _say_start(say: Say, data: DataConfig, config: EvalConfig, info: DatasetInfo, images: int, k: int,
               eval_dir: str) -> None:
    say(f'data       {data.data_dir}: {images} {config.subset} images of {len(info.classes)} classes')
    say(f'weights    {"moving averages" if config.use_averages else "raw weights"} from {config.checkpoint_dir}')
    say(f'eval_dir   {eval_dir}')
    if k < metrics.RECALL_AT:
        say(f'recall@{k} instead of recall@{metrics.RECALL_AT}: {metrics.RECALL_AT} guesses among '
            f'{len(info.classes)} classes could hardly miss')
