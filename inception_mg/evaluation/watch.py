"""The evaluator that runs beside a training: each new checkpoint, the best one kept, and a reason to stop.

It shares nothing with the training but the folder: it reads checkpoints, and asks the training to end by a file.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import tensorflow as tf

from inception_mg.config import DataConfig, EvalConfig, ModelConfig
from inception_mg.errors import UserError
from inception_mg.evaluation.evaluate import RESULTS_FILE, Evaluation, Results, Setup, set_up
from inception_mg.files import (
    link_or_copy,
    make_folder,
    names_in,
    read_bytes,
    remove,
    remove_tree,
    replace,
    write_text,
)
from inception_mg.reasons import reason_of
from inception_mg.report import plots
from inception_mg.run_dir import model_card, run_state
from inception_mg.weights import checkpoints

v1 = tf.compat.v1
Say = Callable[[str], None]
BEST_FILE = 'best.json'
_OF_RESULT = {'subset': str, 'averages': bool, 'images': int, 'images_declared': int, 'step': int,
              'precision@1': float}  # What is read of a result, with the types that JSON gives.
_LOOK_SECS = 1.0  # How often a wait looks whether training is over.
_GRACE_SECS = 30.0  # That it was over before the evaluator began counts after so long: it may be about to go on.


def watch(data: DataConfig, model: ModelConfig, config: EvalConfig, say: Say = print,
          chosen: Collection[str] = model_card.SETTINGS) -> None:
    """Evaluates the newest checkpoint and each later one until training says that it is over.

    Results go where those of `evaluate` go, and precision.png into eval_dir. Checkpoints that are deleted before
    they were looked at are passed over. chosen: the settings that the user gave; the others are taken from the
    model.json of the training. Raises UserError for what the user can mend.
    """
    is_over = _Over(config, say)
    wait_for_checkpoint(config, is_over, say)
    setup = set_up(data, model, config, chosen)
    with Results(setup, say) as results, Evaluation(setup) as evaluation:
        watcher = Watcher(setup, evaluation, results, say)
        watcher.passed.update(checkpoints_in(config.checkpoint_dir)[:-1])  # Old ones; after this, each new one.
        while True:
            over = is_over()  # Asked first: its last checkpoint was there before.
            fresh = [path for path in checkpoints_in(config.checkpoint_dir) if path not in watcher.passed]
            for checkpoint in fresh:
                watcher.evaluate(checkpoint)
            if over and not fresh:
                say(f'training in {config.checkpoint_dir} is over: so is its evaluation')
                return
            if not fresh:
                _wait(config, is_over)


def wait_for_checkpoint(config: EvalConfig, is_over: Callable[[], bool], say: Say) -> None:
    """Returns when there is a checkpoint; UserError if training is over without one."""
    told = False
    while not checkpoints_in(config.checkpoint_dir):
        if is_over():
            raise UserError(f'--checkpoint_dir={config.checkpoint_dir}: training is over, and no checkpoint is there')
        if not told:
            say(f'no checkpoint in {config.checkpoint_dir} yet; looking again every {config.eval_interval_secs:g} s')
            told = True
        _wait(config, is_over)


def checkpoints_in(directory: str) -> list[str]:
    """The path prefixes of the checkpoints in a folder that are whole, oldest first: those that its state file lists,
    or all model.ckpt-N if it lists none.

    Beside a training that goes on, a listed one may be gone by the time that it is opened.
    """
    names = [os.path.basename(path) for path in checkpoints.listed_checkpoints(directory)[1]]
    paths = [os.path.join(directory, name) for name in dict.fromkeys(names)]
    paths = paths or checkpoints.numbered_checkpoints(directory)[::-1]
    return [path for path in paths if not checkpoints.fault_of(path)]


def _wait(config: EvalConfig, is_over: Callable[[], bool]) -> None:
    """Waits for eval_interval_secs, or until training is over."""
    end = time.monotonic() + config.eval_interval_secs
    while (left := end - time.monotonic()) > 0 and not is_over():
        time.sleep(min(left, _LOOK_SECS))


class _Over:
    """Whether training is over: at once if it was seen to end, and after _GRACE_SECS if it had ended before."""

    def __init__(self, config: EvalConfig, say: Say):
        self._directory, self._end = config.checkpoint_dir, time.monotonic() + _GRACE_SECS
        self._old = run_state.is_over(self._directory)
        if self._old:
            say(f'training in {self._directory} was over already; it has {_GRACE_SECS:g} s to go on')

    def __call__(self) -> bool:
        over = run_state.is_over(self._directory)
        self._old &= over
        return over and (not self._old or time.monotonic() >= self._end)


class CheckpointGoneError(FileNotFoundError):
    """A checkpoint was deleted by the training before it was held."""


class Watcher:
    """What the evaluator knows between two checkpoints. passed: those that need no look any more."""

    def __init__(self, setup: Setup, evaluation: Evaluation, results: Results, say: Say):
        self._config, self._evaluation, self._results, self._say = setup.config, evaluation, results, say
        self._history = History.read(results.eval_dir, setup, say)
        self._best = BestCheckpoint(os.path.join(results.eval_dir, 'best'), say) if setup.config.keep_best else None
        self._asked = False
        self.passed: set[str] = set()

    def evaluate(self, checkpoint: str) -> None:
        """Evaluates one checkpoint, with all that follows from its result; says so if it has been deleted."""
        self.passed.add(checkpoint)
        started = time.monotonic()
        try:
            held = self._hold(checkpoint)
            outcome = self._evaluation.score(held)
        except CheckpointGoneError:
            self._say(f'{checkpoint} was deleted before it could be evaluated')
            return
        except UserError:
            if held != checkpoint or v1.train.checkpoint_exists(checkpoint):
                raise
            self._say(f'{checkpoint} was deleted while it was evaluated')
            return
        result = self._results.publish(checkpoint, outcome, time.monotonic() - started)
        if held != checkpoint:
            self._keep(held, result)
        self._history.add(result)
        if plots.available():
            picture = os.path.join(self._results.eval_dir, 'precision.png')
            with self._losing(picture):
                plots.draw_precision(self._history.precisions(), f'{self._config.subset} images', picture)
        with self._losing('the request to end the training'):
            self._stop_without_gain(result)
            if 0 < self._config.stop_at_precision <= result['precision@1']:
                self._ask_to_end(f'precision@1 of {result["precision@1"]:.4f} at step {result["step"]}, asked for '
                                 f'--stop_at_precision={self._config.stop_at_precision:g}')

    def _hold(self, checkpoint: str) -> str:
        """The held checkpoint; the checkpoint where it is, if none is to be kept, or none can be."""
        with self._losing('the best checkpoint'):
            return self._best.hold(checkpoint) if self._best else checkpoint
        return checkpoint

    def _keep(self, held: str, result: dict) -> None:
        with self._losing('the best checkpoint'):
            if self._best.keep_if_better(held, result, model_card.folder_of(self._config.checkpoint_dir),
                                         self._history.precisions()):
                self._say(f'best so far: kept in {self._best.folder}')

    @contextlib.contextmanager
    def _losing(self, what: str) -> Iterator[None]:
        """Says once why something cannot be written, and goes on: the results stand without it."""
        try:
            yield
        except CheckpointGoneError:
            raise
        except (UserError, OSError, tf.errors.OpError) as error:
            self._results.say_lost(error, what)

    def _stop_without_gain(self, result: dict) -> None:
        count, limit = self._history.without_gain(), self._config.stop_after_no_gain
        if not limit or count < limit:
            return
        best = self._history.best()
        self._ask_to_end(f'no gain in precision@1 over {count} checkpoints: {best["precision@1"]:.4f} at step '
                         f'{best["step"]}, {result["precision@1"]:.4f} at step {result["step"]}')

    def _ask_to_end(self, why: str) -> None:
        if self._asked:
            return
        run_state.request_stop(self._config.checkpoint_dir, why)
        self._asked = True
        self._say(f'{why}: asked the training to end by {self._config.checkpoint_dir}/{run_state.STOP_FILE}')


class History:
    """The results on the same images, in the order of their steps. Where some images could not be read, the same are
    those of which as many were seen."""

    def __init__(self, results: list[dict]):
        self._results = results

    @classmethod
    def read(cls, eval_dir: str, setup: Setup, say: Say = print) -> 'History':
        """What results.jsonl has of earlier lives of an evaluator; `say` is told how many lines are no results."""
        path = os.path.join(eval_dir, RESULTS_FILE)
        same = {'subset': setup.config.subset, 'averages': setup.config.use_averages, 'images_declared': setup.images}
        history = cls([])
        try:
            lines = [line for line in read_bytes(path).splitlines(keepends=True) if line.strip()]
        except FileNotFoundError:
            return history
        except OSError as error:
            say(f'earlier results do not count: cannot read {path}: {reason_of(error)}')
            return history
        results = [result_of(line) for line in lines]
        for result in filter(None, results):
            if all(result[name] == value for name, value in same.items()):
                history.add(result)
        if bad := results.count(None):
            say(f'{path}: {bad} of {len(lines)} lines are no results, and do not count')
        return history

    def add(self, result: dict) -> None:
        """Adds the result of a checkpoint; results of later steps are of a training that was begun anew."""
        self._results = [old for old in self._results if old['step'] < result['step']
                         and old['images'] == result['images']] + [result]

    def best(self) -> dict:
        """The first result with the greatest precision@1."""
        return max(self._results, key=lambda result: result['precision@1'])

    def without_gain(self) -> int:
        """How many results there are since the best one."""
        return len(self._results) - 1 - self._results.index(self.best())

    def precisions(self) -> dict[int, float]:
        """Step -> precision@1."""
        return {result['step']: result['precision@1'] for result in self._results}


def result_of(text: bytes) -> dict | None:
    """The result that a line of results.jsonl or best.json holds; None if it is none, or one of another kind.

    Earlier versions did not say images_declared: they are taken to have seen all of them.
    """
    try:
        read = {'images_declared': None, **json.loads(text)}
    except (ValueError, TypeError, RecursionError):  # Of these is UnicodeDecodeError, too.
        return None
    if read['images_declared'] is None:
        read['images_declared'] = read.get('images')
    if any(type(read.get(name)) is not kind for name, kind in _OF_RESULT.items()) or not (
            0 <= read['precision@1'] <= 1 and read['step'] >= 0):
        return None
    return {name: read[name] for name in _OF_RESULT}


class BestCheckpoint:
    """A folder with a copy of the best checkpoint, from which evaluation, export and fine-tuning can start.

    A checkpoint is held (linked, or copied onto another file system) before it is evaluated, so that it is whole and
    stays whatever the training deletes. `checkpoint` is the last file to be written, under a temporary name.
    """

    def __init__(self, folder: str, say: Say = print):
        self.folder, self._held, self._say = folder, os.path.join(folder, '.held'), say
        remove_tree(self._held)  # Left by an evaluator that was killed.

    def hold(self, checkpoint: str) -> str:
        """Returns the path prefix of the held checkpoint; CheckpointGoneError if it is gone, or going, OSError where it
        cannot be held."""
        remove_tree(self._held)
        folder, name = os.path.split(checkpoint)
        try:
            shards = [os.path.join(folder, one) for one in names_in(folder or '.') if one.startswith(f'{name}.data-')]
            make_folder(self._held)
            for path in [f'{checkpoint}.index', *(shards or [f'{checkpoint}.data'])]:
                _link_or_copy(path, os.path.join(self._held, os.path.basename(path)))
        except OSError:
            remove_tree(self._held)
            raise
        return os.path.join(self._held, os.path.basename(checkpoint))

    def keep_if_better(self, held: str, result: dict, train_dir: str, known: Mapping[int, float]) -> bool:
        """Puts the held checkpoint in place of the best one if its precision@1 is greater.

        A best one of a later step is of a training that was begun anew, and does not count. known: step -> precision@1,
        for a best one whose best.json is lost. Raises OSError, UserError or a TensorFlow error where it cannot be
        written; then the best one before is as it was.
        """
        try:
            before = self._read(known)
            if before and before['step'] < result['step'] and before['precision@1'] >= result['precision@1']:
                return False
            self._replace(os.path.basename(held), result, train_dir)
            return True
        finally:
            remove_tree(self._held)

    def _replace(self, name: str, result: dict, train_dir: str) -> None:
        before = self._name()
        old = {os.path.join(self.folder, one) for one in names_in(self.folder)
               if one.startswith('model.ckpt-') and not one.startswith(f'{name}.')}
        new = [os.path.join(self.folder, path) for path in sorted(names_in(self._held))]
        try:
            for path in new:
                replace(os.path.join(self._held, os.path.basename(path)), path)
            if card := model_card.read_card(train_dir):
                model_card.write_card(self.folder, card)
            write_text(os.path.join(self.folder, BEST_FILE), json.dumps(result, indent=1) + '\n')
            checkpoints.name_newest(self.folder, name)
        except (OSError, UserError, tf.errors.OpError):
            if name != before:
                _remove(new)
            raise
        _remove(old)

    def _name(self) -> str:
        """Of the checkpoint that is in the folder; '' without one."""
        named = checkpoints.listed_checkpoints(self.folder)[0]
        return os.path.basename(named or next(iter(checkpoints.numbered_checkpoints(self.folder)), ''))

    def _read(self, known: Mapping[int, float]) -> dict | None:
        """Step and precision@1 of the checkpoint in the folder, by best.json or by what is known of its step."""
        name, path = self._name(), os.path.join(self.folder, BEST_FILE)
        if not (step := re.fullmatch(r'model\.ckpt-(\d+)', name)):
            return None
        try:
            result = result_of(read_bytes(path))
        except OSError:
            result = None
        if result and result['step'] == int(step[1]):
            return result
        if int(step[1]) in known:
            return {'step': int(step[1]), 'precision@1': known[int(step[1])]}
        self._say(f'{path} does not tell how good {name} is: another one takes its place')
        return None


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            remove(path)


def _link_or_copy(path: str, target: str) -> None:
    try:
        link_or_copy(path, target)
    except FileNotFoundError:
        raise CheckpointGoneError(f'{path} is gone') from None
