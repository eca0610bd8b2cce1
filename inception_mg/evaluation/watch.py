"""The evaluator that runs beside a training: each new checkpoint, the best one kept, and a reason to stop.

It shares nothing with the training but the folder: it reads checkpoints, and asks the training to end by a file.
"""

import contextlib
import glob
import json
import os
import shutil
import time
from collections.abc import Callable, Collection

import tensorflow as tf

from inception_mg.config import DataConfig, EvalConfig, ModelConfig
from inception_mg.errors import UserError
from inception_mg.evaluation.evaluate import RESULTS_FILE, Evaluation, Results, Setup, set_up
from inception_mg.files import write_text
from inception_mg.report import plots
from inception_mg.run_dir import model_card, run_state
from inception_mg.weights import checkpoints

v1 = tf.compat.v1
Say = Callable[[str], None]
BEST_FILE = 'best.json'
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
        watcher = _Watcher(setup, evaluation, results, say)
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


class _Watcher:
    """What the evaluator knows between two checkpoints. passed: those that need no look any more."""

    def __init__(self, setup: Setup, evaluation: Evaluation, results: Results, say: Say):
        self._config, self._evaluation, self._results, self._say = setup.config, evaluation, results, say
        self._history = History.read(results.eval_dir, setup)
        self._best = BestCheckpoint(os.path.join(results.eval_dir, 'best')) if setup.config.keep_best else None
        self._asked = False
        self.passed: set[str] = set()

    def evaluate(self, checkpoint: str) -> None:
        """Evaluates one checkpoint, with all that follows from its result; says so if it has been deleted."""
        self.passed.add(checkpoint)
        started = time.monotonic()
        try:
            held = self._best.hold(checkpoint) if self._best else checkpoint
            outcome = self._evaluation.score(held)
        except FileNotFoundError:
            self._say(f'{checkpoint} was deleted before it could be evaluated')
            return
        except UserError:
            if self._best or v1.train.checkpoint_exists(checkpoint):
                raise
            self._say(f'{checkpoint} was deleted while it was evaluated')
            return
        result = self._results.publish(checkpoint, outcome, time.monotonic() - started)
        self._history.add(result)
        if self._best:
            self._keep(held, result)
        if plots.available():
            plots.draw_precision(self._history.precisions(), f'{self._config.subset} images',
                                 os.path.join(self._results.eval_dir, 'precision.png'))
        self._stop_without_gain(result)

    def _keep(self, held: str, result: dict) -> None:
        if self._best.keep_if_better(held, result, model_card.folder_of(self._config.checkpoint_dir)):
            self._say(f'best so far: kept in {self._best.folder}')

    def _stop_without_gain(self, result: dict) -> None:
        count, limit = self._history.without_gain(), self._config.stop_after_no_gain
        if not limit or count < limit or self._asked:
            return
        best = self._history.best()
        why = (f'no gain in precision@1 over {count} checkpoints: {best["precision@1"]:.4f} at step {best["step"]}, '
               f'{result["precision@1"]:.4f} at step {result["step"]}')
        run_state.request_stop(self._config.checkpoint_dir, why)
        self._asked = True
        self._say(f'{why}: asked the training to end by {self._config.checkpoint_dir}/{run_state.STOP_FILE}')


class History:
    """The results on the same images, in the order of their steps."""

    def __init__(self, results: list[dict]):
        self._results = results

    @classmethod
    def read(cls, eval_dir: str, setup: Setup) -> 'History':
        """What results.jsonl has of earlier lives of an evaluator; lines that cannot be read don't count."""
        same = {'subset': setup.config.subset, 'averages': setup.config.use_averages, 'images': setup.images}
        history = cls([])
        try:
            with open(os.path.join(eval_dir, RESULTS_FILE), encoding='utf-8') as file:
                lines = file.readlines()
        except OSError:
            return history
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                result = json.loads(line)
                if all(result[name] == value for name, value in same.items()):
                    history.add({'step': int(result['step']), 'precision@1': float(result['precision@1'])})
        return history

    def add(self, result: dict) -> None:
        """Adds the result of a checkpoint; results of later steps are of a training that was begun anew."""
        self._results = [old for old in self._results if old['step'] < result['step']] + [result]

    def best(self) -> dict:
        """The first result with the greatest precision@1."""
        return max(self._results, key=lambda result: result['precision@1'])

    def without_gain(self) -> int:
        """How many results there are since the best one."""
        return len(self._results) - 1 - self._results.index(self.best())

    def precisions(self) -> dict[int, float]:
        """Step -> precision@1."""
        return {result['step']: result['precision@1'] for result in self._results}


class BestCheckpoint:
    """A folder with a copy of the best checkpoint, from which evaluation, export and fine-tuning can start.

    A checkpoint is held (linked, or copied onto another file system) before it is evaluated, so that it is whole and
    stays whatever the training deletes. `checkpoint` is the last file to be written, under a temporary name.
    """

    def __init__(self, folder: str):
        self.folder, self._held = folder, os.path.join(folder, '.held')
        shutil.rmtree(self._held, ignore_errors=True)  # Left by an evaluator that was killed.

    def hold(self, checkpoint: str) -> str:
        """Returns the path prefix of the held checkpoint; FileNotFoundError if it is gone, or going."""
        shutil.rmtree(self._held, ignore_errors=True)
        os.makedirs(self._held)
        shards = glob.glob(glob.escape(checkpoint) + '.data-*')
        for path in [f'{checkpoint}.index', *(shards or [f'{checkpoint}.data'])]:
            _link_or_copy(path, os.path.join(self._held, os.path.basename(path)))
        return os.path.join(self._held, os.path.basename(checkpoint))

    def keep_if_better(self, held: str, result: dict, train_dir: str) -> bool:
        """Puts the held checkpoint in place of the best one if its precision@1 is greater.

        A best one of a later step is of a training that was begun anew, and does not count.
        """
        before = self._read()
        if before and before['step'] < result['step'] and before['precision@1'] >= result['precision@1']:
            shutil.rmtree(self._held, ignore_errors=True)
            return False
        name = os.path.basename(held)
        old = {path for path in glob.glob(os.path.join(glob.escape(self.folder), 'model.ckpt-*'))
               if not os.path.basename(path).startswith(f'{name}.')}
        for path in sorted(os.listdir(self._held)):
            os.replace(os.path.join(self._held, path), os.path.join(self.folder, path))
        if card := model_card.read_card(train_dir):
            model_card.write_card(self.folder, card)
        write_text(os.path.join(self.folder, BEST_FILE), json.dumps(result, indent=1) + '\n')
        v1.train.update_checkpoint_state(self.folder, name)
        for path in old:
            with contextlib.suppress(OSError):
                os.remove(path)
        shutil.rmtree(self._held, ignore_errors=True)
        return True

    def _read(self) -> dict | None:
        try:
            with open(os.path.join(self.folder, BEST_FILE), encoding='utf-8') as file:
                result = json.load(file)
            return {'step': int(result['step']), 'precision@1': float(result['precision@1'])}
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _link_or_copy(path: str, target: str) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # Another file system, or one without links.
        try:
            shutil.copyfile(path, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UserError(f'cannot copy {path} to {target}: {error.strerror}') from None
