"""metrics.jsonl: the figures of a training, one line of JSON at each status line, over all its lives."""

import json
import math
import os
import time

from inception_mg.errors import UserError
from inception_mg.files import append_line
from inception_mg.paths import scheme_of

METRICS_FILE = 'metrics.jsonl'


class MetricsLog:
    """Appends to DIRECTORY/metrics.jsonl. Lines are whole: what a kill cut off is taken away before the next one.

    A life that begins at an earlier step than the last line (as after a lost ps) writes those steps again: of equal
    steps the last line counts.
    """

    def __init__(self, directory: str):
        self._path, self._whole = os.path.join(directory, METRICS_FILE), False

    def write(self, step_v: int, values: dict[str, float]) -> None:
        """A line: step, time (seconds since 1970), values; null for a value that is not finite. UserError if it cannot
        be written."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({'step': step_v, 'time': round(time.time(), 3), **finite}, allow_nan=False)
        if not self._whole:
            self._whole = True
            self._cut()
        append_line(self._path, line)

    def _cut(self) -> None:
        """Takes away what follows the last end of a line. (Elsewhere than on this machine nothing is cut: files are
        written whole there.)"""
        if scheme_of(self._path) or not os.path.isfile(self._path):
            return
        try:
            with open(self._path, 'r+b') as file:
                begin = max(0, file.seek(0, os.SEEK_END) - 2 ** 20)
                file.seek(begin)
                file.truncate(begin + file.read().rfind(b'\n') + 1)
        except OSError as error:
            raise UserError(f'cannot write {self._path}: {error.strerror}') from None
