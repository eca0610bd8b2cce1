"""The thread of a worker that beats, and that looks after the main thread while it sits in a call into TensorFlow.

When another machine stands still or vanishes without closing its connections, nothing can interrupt such a call, and no
signal handler runs until it returns.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from dist.verdict import BEAT_SECS

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Heartbeat:
    """Calls `beat` once a second, in a thread of its own, until `stop`."""

    def __init__(self, beat: Callable[[], None]):
        self._beat, self._over, self._thread = beat, threading.Event(), None

    def start(self) -> None:
        """Begins; has no effect a second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name='beat', daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends, after the beat in progress."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(15)

    def _run(self) -> None:
        while not self._over.is_set():
            self._beat()
            self._over.wait(BEAT_SECS)


class Calls:
    """How long the threads of this process have been in calls into TensorFlow."""

    def __init__(self):
        self._begun: dict[int, float] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Within, this thread is in a call."""
        self._begun[threading.get_ident()] = time.monotonic()
        try:
            yield
        finally:
            self._begun.pop(threading.get_ident(), None)

    def longest(self) -> float:
        """Seconds since the oldest call in progress began; 0 without any."""
        return max((time.monotonic() - begun for begun in list(self._begun.values())), default=0.0)


class Signals:
    """Notices SIGINT, SIGTERM and SIGHUP while the main thread is in a call that does not return to Python."""

    def __init__(self):
        self._pipe, self._since = -1, None

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Within, in the main thread, `age` knows of signals that have a handler."""
        self._pipe, write_end = os.pipe2(os.O_NONBLOCK)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            pipe, self._pipe = self._pipe, -1
            os.close(write_end)
            os.close(pipe)

    def age(self) -> float:
        """Seconds since the first of them was seen here; 0 if none came."""
        with contextlib.suppress(OSError):  # Nothing there, or no longer (or not) listening.
            if SIGNALS & set(os.read(self._pipe, 64)):
                self._since = self._since or time.monotonic()
        return time.monotonic() - self._since if self._since else 0.0
