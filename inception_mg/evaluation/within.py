"""Evaluation within a training process, between its steps: one GPU holds one process."""

import contextlib
from collections.abc import Callable

import tensorflow as tf

from inception_mg.evaluation.evaluate import Evaluation, Results, Setup
from inception_mg.evaluation.watch import Watcher
from inception_mg.weights.checkpoints import newest_checkpoint

v1 = tf.compat.v1


class EvaluateHook(v1.train.SessionRunHook):
    """Evaluates the newest checkpoint after every `every_steps` steps of this process, and at its end, as an evaluator
    beside it would; after the hook that saves at those steps. The training's session waits meanwhile, and so do
    synchronous workers for their chief's gradient; asynchronous ones do not.

    set_up: called at the first evaluation, when model.json is there.
    """

    def __init__(self, train_dir: str, set_up: Callable[[], Setup], every_steps: int,
                 say: Callable[[str], None] = print):
        self._train_dir, self._set_up, self._every, self._say = train_dir, set_up, every_steps, say
        self._runs, self._watcher, self._open = 0, None, contextlib.ExitStack()

    def after_run(self, run_context, run_values):
        self._runs += 1
        if self._runs % self._every == 0:
            self._evaluate()

    def end(self, session):
        self._evaluate()
        self._open.close()

    def _evaluate(self) -> None:
        checkpoint = newest_checkpoint(self._train_dir)
        if not self._watcher:
            setup = self._set_up()
            self._watcher = Watcher(setup, self._open.enter_context(Evaluation(setup)),
                                    self._open.enter_context(Results(setup, self._say)), self._say)
        if checkpoint and checkpoint not in self._watcher.passed:
            self._watcher.evaluate(checkpoint)
