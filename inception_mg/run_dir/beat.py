"""Who trains in a train_dir on a file system without locks, such as gs://. Standard library only.

The writer of the folder writes into training.beat who it is and a number that grows. Who comes later and finds such a
file waits to see whether the number grows: then somebody trains there; if not, that one was killed. Of two that begin
at the same moment both may see no beat: the one whose name is not in the file when the other has written ends. So a
second training is kept out by waiting, not for certain, and the holder is told if its file says another name.
"""

import contextlib
import datetime
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from inception_mg.errors import UserError
from inception_mg.files import read_text, remove, write_text

BEAT_FILE = 'training.beat'
PERIOD = 5.0  # Seconds from beat to beat.
MISSED = 4  # Beats that do not come from one who lives.


@contextlib.contextmanager
def held(train_dir: str, exit_code: int, say: Callable[[str], None], period: float) -> Iterator[None]:
    """Within, no other process trains in train_dir, as far as can be seen by beats `period` seconds apart.

    Raises UserError as alone_in does.
    """
    beat = _Beat(os.path.join(train_dir, BEAT_FILE), say)
    say(f'{train_dir} knows no locks: a second training is kept out by {BEAT_FILE} in it, written every {period:g} s')
    _wait_for(beat, train_dir, exit_code, say, period)
    stop = threading.Event()
    thread = threading.Thread(target=beat.go_on, args=(stop, period), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(2 * period)
        beat.end()


def _wait_for(beat: '_Beat', train_dir: str, exit_code: int, say: Callable[[str], None], period: float) -> None:
    before = beat.read()
    if before:
        say(f'{_name(before)} trained in {train_dir}: waiting {MISSED * period:g} s to see whether it still does')
    end = time.monotonic() + MISSED * period
    while before and time.monotonic() < end:
        time.sleep(period / 4)
        now = beat.read()
        if not now:
            break
        if now != before:
            raise _taken(now, train_dir, exit_code)
    beat.write()
    time.sleep(period / 4)  # Who saw no beat either has written by now.
    if (now := beat.read()).get('token') != beat.token:
        raise _taken(now, train_dir, exit_code)


def _taken(found: dict, train_dir: str, exit_code: int) -> UserError:
    return UserError(f'{_name(found)} trains in {train_dir}, and two would mix their checkpoints: end that one, or '
                     'give another --train_dir', exit_code)


def _name(found: dict) -> str:
    return f'process {found.get("pid")!s:.20} on {found.get("host")!s:.100}, since {found.get("since")!s:.40},'


class _Beat:
    """The file, and what this process writes into it."""

    def __init__(self, path: str, say: Callable[[str], None]):
        self.token = uuid.uuid4().hex
        self._path, self._say, self._count, self._told = path, say, 0, False
        self._since = datetime.datetime.now().astimezone().isoformat(' ', 'seconds')

    def read(self) -> dict:
        """What the file says; {} where it is not there, or says nothing."""
        try:
            found = json.loads(read_text(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self) -> None:
        self._count += 1
        write_text(self._path, json.dumps({'pid': os.getpid(), 'host': socket.gethostname(), 'since': self._since,
                                           'token': self.token, 'beat': self._count}) + '\n')

    def go_on(self, stop: threading.Event, period: float) -> None:
        """Beats until `stop`; says once if somebody else took the folder, and beats no more."""
        while not stop.wait(period):
            found = self.read()
            if found and found.get('token') != self.token:
                self._say(f'warning: {_name(found)} has begun to train in {os.path.dirname(self._path)}, too: end one')
                return
            with contextlib.suppress(UserError):  # A network that fails for a moment.
                self.write()

    def end(self) -> None:
        if self.read().get('token') == self.token:
            with contextlib.suppress(OSError):
                remove(self._path)
