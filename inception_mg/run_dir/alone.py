"""Who trains in a train_dir trains there alone. Standard library only.

The writer of a train_dir locks its file training.lock for as long as it lives, and writes into it who it is. The lock
is the system's: it goes with the process, also by SIGKILL, so a new start works at once. The file stays. Who deletes a
lock file takes the name away from one that has opened it just now: that one then locks a file that nobody else finds,
and two would train. It is empty when a training has ended in order.
"""

import contextlib
import datetime
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator

from inception_mg.errors import EXIT_FAILED, UserError
from inception_mg.paths import scheme_of
from inception_mg.run_dir import beat

LOCK_FILE = 'training.lock'
PATIENCE = 5.0  # Seconds that a predecessor has to end, which may have been killed just now.


@contextlib.contextmanager
def alone_in(train_dir: str, exit_code: int = EXIT_FAILED, say: Callable[[str], None] = print,
             patience: float = PATIENCE) -> Iterator[None]:
    """Within, no other process trains in train_dir.

    Raises UserError, with exit_code, naming process and host of the one that does, and has written nothing then. Where
    the file system knows no locks it says so and goes on; a remote folder is held by a beat (run_dir/beat.py). A
    process that is forked within does not hold the lock.
    """
    if scheme_of(train_dir):
        with beat.held(train_dir, exit_code, say, beat.PERIOD):
            yield
        return
    path = os.path.join(train_dir, LOCK_FILE)
    with _opened(path) as file:
        os.register_at_fork(after_in_child=file.close)  # Harmless later: a closed file is closed.
        try:
            _wait_for(file, train_dir, exit_code, say, patience)
        except OSError as error:
            say(f'{path} cannot be locked ({error.strerror}): nothing keeps a second training out of this folder')
        _write(file, json.dumps({'pid': os.getpid(), 'host': socket.gethostname(), 'since': _now()}) + '\n')
        try:
            yield
        finally:
            _write(file, '')


def _opened(path: str):
    """The file, without a buffer; for reading alone where it is somebody else's. UserError where it cannot be had."""
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        try:
            return open(os.open(path, flags, 0o644), 'rb+' if flags & os.O_RDWR else 'rb', buffering=0)
        except PermissionError as error:
            refused = error
        except OSError as error:
            raise UserError(f'cannot write {path}: {error.strerror}') from None
    raise UserError(f'cannot open {path}: {refused.strerror}')


def _wait_for(file, train_dir: str, exit_code: int, say: Callable[[str], None], patience: float) -> None:
    """Returns with the lock. UserError if somebody holds it to the end of `patience`, OSError without locks."""
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        holder = _holder(file)
        if time.monotonic() >= deadline:
            raise UserError(f'{holder} trains in {train_dir}, and two would mix their checkpoints: end that one, or '
                            'give another --train_dir', exit_code)
        if not told:
            say(f'{holder} trains in {train_dir}: waiting {patience:g} s, in case it is just ending')
            told = True
        time.sleep(0.1)


def _holder(file) -> str:
    """What the file says of the process that holds it."""
    try:
        found = json.loads(os.pread(file.fileno(), 4096, 0))
        return f'process {int(found["pid"])} on {found["host"]!s:.100}, since {found["since"]!s:.40},'
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 'another process'


def _write(file, text: str) -> None:
    """Replaces what the file says. In place: another file would have another lock."""
    with contextlib.suppress(OSError, ValueError):  # A full disk, somebody else's file: the lock holds without it.
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), text.encode(), 0)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(' ', 'seconds')
