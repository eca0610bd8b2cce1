"""The files by which training and those who watch it talk: STOP and training.json. Standard library only.

A STOP file in the train_dir asks training to save and end; its first line says why. training.json says whether
training is running, was interrupted, or is over, so that an evaluator knows when nothing more will come.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator

from inception_mg.errors import EXIT_FAILED, UserError
from inception_mg.files import read_bytes, read_text, write_text
from inception_mg.paths import scheme_of
from inception_mg.run_dir.alone import alone_in
from inception_mg.version import VERSION

STOP_FILE = 'STOP'
STATE_FILE = 'training.json'
_STOP_LIMIT = 10_000  # Bytes of a reason.
RUNNING, INTERRUPTED, OVER = 'running', 'interrupted', 'over'


def request_stop(train_dir: str, why: str) -> None:
    """Asks the training in train_dir to save and end. UserError where the file cannot be written."""
    write_text(os.path.join(train_dir, STOP_FILE), why + '\n')


def stop_request(train_dir: str) -> str:
    """Why the training in train_dir should end, on one line; '' if nobody asks for it."""
    try:
        said = read_bytes(os.path.join(train_dir, STOP_FILE), _STOP_LIMIT).decode(errors='replace')
        return ' '.join(said.partition('\n')[0].split()) or 'no reason given'
    except FileNotFoundError:
        return ''
    except OSError as error:
        if scheme_of(train_dir):  # A network that fails for a moment asks for nothing.
            return ''
        return f'it cannot be read ({error.strerror})'


def refuse_stopped(train_dir: str) -> None:
    """Raises UserError if an earlier training in train_dir was asked to end, and still is."""
    if why := stop_request(train_dir):
        raise UserError(f'{os.path.join(train_dir, STOP_FILE)} asks training to end ({why}): delete that file to go on')


def write_state(train_dir: str, state: str) -> None:
    """Says _STOP_LIMIT = 10_000  # Bytes of a reason.
RUNNING, INTERRUPTED or OVER of the training in train_dir, and which version of this project trains."""
    write_text(os.path.join(train_dir, STATE_FILE), json.dumps({'state': state, 'version': VERSION}) + '\n')


def read_state(train_dir: str) -> str:
    """What training last said of itself; '' where the file is not there or not readable."""
    try:
        return str(json.loads(read_text(os.path.join(train_dir, STATE_FILE)))['state'])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ''


def is_over(train_dir: str) -> bool:
    """Whether training has said that it reached its end."""
    return read_state(train_dir) == OVER


@contextlib.contextmanager
def announced(train_dir: str, taken: int = EXIT_FAILED) -> Iterator[None]:
    """Within, training is running as far as others need to know, although it still gets ready; for around `recording`.

    One that is refused before it began leaves behind what was said before. Raises UserError with the exit code `taken`
    where another process trains in train_dir (see alone_in).
    """
    with alone_in(train_dir, taken):
        before = read_state(train_dir)
        write_state(train_dir, RUNNING)
        try:
            yield
        except BaseException:
            if read_state(train_dir) == RUNNING:
                with contextlib.suppress(UserError):
                    write_state(train_dir, before or INTERRUPTED)
            raise


@contextlib.contextmanager
def recording(train_dir: str, interrupted: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Within, training is running; after that it is over, or interrupted by an error or a signal.

    interrupted: whether a signal came. Who is killed leaves RUNNING behind, and is expected back.
    """
    write_state(train_dir, RUNNING)
    try:
        yield
    except BaseException:
        with contextlib.suppress(UserError):  # The error that ends the training is the one to be told.
            write_state(train_dir, INTERRUPTED)
        raise
    write_state(train_dir, INTERRUPTED if interrupted() else OVER)
