"""What long work says on stderr: a progress bar, or a line now and then where stderr is no terminal."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import tqdm

_Item = TypeVar('_Item')
_SECONDS_BETWEEN_LINES = 30


def printable(text: str) -> str:
    """Returns a text, such as a file's name, that takes one line and any terminal or file can show."""
    return ''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in text)


def note(text: str) -> None:
    """Prints one line on stderr without tearing a progress bar."""
    tqdm.tqdm.write(printable(text), file=sys.stderr)


def progress(items: Iterable[_Item], total: int, name: str, unit: str) -> Iterator[_Item]:
    """Yields the items while showing how many are done, how fast, and the time left."""
    on_terminal = sys.stderr.isatty()
    start = last = time.monotonic()
    with tqdm.tqdm(total=total, desc=name, unit=f' {unit}', disable=not on_terminal) as bar:
        for done, item in enumerate(items, start=1):
            yield item
            bar.update()
            now = time.monotonic()
            if not on_terminal and now - last > _SECONDS_BETWEEN_LINES:
                last = now
                note(tqdm.tqdm.format_meter(done, total, now - start, prefix=name, unit=f' {unit}', ncols=0))
