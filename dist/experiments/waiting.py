"""Emulated work: operations that wait by the clock, where this machine has too few devices to compute."""

import threading
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

Pause = Callable[[], None]


class Busy:
    """A device or a link that serves one at a time: `hold` keeps it for some seconds, in the order of arrival.

    It is kept on paper: whoever comes is told when it is free, and waits until its own time is over. So a thread that
    this machine wakes late does not keep the next one from its turn.
    """

    def __init__(self):
        self._lock, self._free = threading.Lock(), 0.0

    def hold(self, seconds: float) -> tuple[float, float]:
        """Waits for its turn and then `seconds`; returns when it began and when it ended (time.monotonic)."""
        with self._lock:
            begun = max(self._free, time.monotonic())
            self._free = ended = begun + seconds
        time.sleep(max(0.0, ended - time.monotonic()))
        return begun, ended


def build_wait(tensor: tf.Tensor, pause: Pause) -> tf.Tensor:
    """Returns `tensor` as it is, but only after pause() was called, on the enclosing device and in this process.

    What needs the result waits; reads of variables, which do not, are made before, as in a step that computes.
    A Server runs it only in the process that built the graph. Each pause in progress takes a thread of the
    session's: see threads().
    """
    def call() -> np.float32:
        pause()
        return np.float32(0)

    with tf.control_dependencies([tensor]):
        waited = tf.numpy_function(call, [], tf.float32)
    with tf.control_dependencies([waited]):
        return tf.identity(tensor)


def threads(config: tf.compat.v1.ConfigProto, count: int) -> tf.compat.v1.ConfigProto:
    """Returns `config` changed so that `count` operations can wait at the same time."""
    config.inter_op_parallelism_threads = count
    config.intra_op_parallelism_threads = 1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def step_seconds(seconds: float, chance: float = 0.0, factor: float = 1.0, seed: int = 0) -> Callable[[], float]:
    """Draws the seconds of a step: `seconds`, or with probability `chance` `factor` times as many."""
    random = np.random.RandomState(seed)
    return lambda: seconds * (factor if random.uniform() < chance else 1.0)
