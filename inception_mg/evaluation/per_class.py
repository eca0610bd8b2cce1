"""What an evaluation says beyond one number: scores of each class, and which classes are taken for which."""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from inception_mg.errors import UserError
from inception_mg.files import write_text
from inception_mg.report import plots

_ROWS_ON_SCREEN = 30
_PAIRS = 10


class ClassScore(NamedTuple):
    """Of one class: its images, the images guessed to be of it, and the images where both hold."""

    name: str
    images: int
    guesses: int
    right: int

    @property
    def precision(self) -> float:
        """Share of the guesses that are right; nan without guesses."""
        return self.right / self.guesses if self.guesses else math.nan

    @property
    def recall(self) -> float:
        """Share of the images that are found; nan without images."""
        return self.right / self.images if self.images else math.nan


class Pair(NamedTuple):
    """So many images of one class that are taken for another."""

    name: str
    taken_for: str
    images: int


def class_scores(confusion: np.ndarray, labels: Sequence[str]) -> list[ClassScore]:
    """The scores of every class but the background, which no image has.

    confusion: int [outputs, outputs], images by label (row) and guess (column); labels: name of every output.
    """
    return [ClassScore(name, int(confusion[label].sum()), int(confusion[:, label].sum()), int(confusion[label, label]))
            for label, name in enumerate(labels) if label]


def most_confused(confusion: np.ndarray, labels: Sequence[str], count: int = _PAIRS) -> list[Pair]:
    """The pairs of different classes with the most images, at most `count` of them."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind='stable')[:count]
    rows, columns = np.unravel_index(order, wrong.shape)
    return [Pair(labels[row], labels[column], int(wrong[row, column]))
            for row, column in zip(rows, columns, strict=True) if wrong[row, column]]


def table(scores: Sequence[ClassScore], pairs: Sequence[Pair]) -> list[str]:
    """Lines for the screen: the classes, those found least often first, and the pairs."""
    shown = sorted(scores, key=lambda score: (-1 if math.isnan(score.recall) else score.recall))[:_ROWS_ON_SCREEN]
    wide = max(5, *(len(score.name) for score in shown)) if shown else 5
    lines = [f'{"class":<{wide}}  images  guesses   right  precision  recall']
    lines += [f'{score.name:<{wide}}  {score.images:6d}  {score.guesses:7d}  {score.right:6d}  {score.precision:9.4f}  '
              f'{score.recall:6.4f}' for score in shown]
    if len(scores) > len(shown):
        lines.append(f'and {len(scores) - len(shown)} classes with a better recall')
    return lines + [f'{pair.images} x {pair.name} taken for {pair.taken_for}' for pair in pairs]


def write_report(folder: str, confusion: np.ndarray, labels: Sequence[str], result: dict,
                 say: Callable[[str], None] = print) -> None:
    """Writes per_class.csv, confusion_matrix.csv, report.json and confusion_matrix.png, and says the table.

    result: what else report.json has of the evaluation. Without matplotlib a line says that the picture is missing.
    Raises UserError if the folder cannot be written.
    """
    scores, pairs = class_scores(confusion, labels), most_confused(confusion, labels)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UserError(f'--report_dir={folder}: {error.strerror}') from None
    write_text(os.path.join(folder, 'per_class.csv'), _csv(
        ['class', 'images', 'guesses', 'right', 'precision', 'recall'],
        [[*score, _number(score.precision), _number(score.recall)] for score in scores]))
    write_text(os.path.join(folder, 'confusion_matrix.csv'), _csv(
        ['class', *labels], [[name, *row] for name, row in zip(labels[1:], confusion[1:].tolist(), strict=True)]))
    report = {**result, 'confused': [pair._asdict() for pair in pairs], 'classes': [
        {**score._asdict(), 'precision': _number(score.precision), 'recall': _number(score.recall)}
        for score in scores]}
    write_text(os.path.join(folder, 'report.json'), json.dumps(report, indent=1, ensure_ascii=False) + '\n')
    if plots.available():
        first = 0 if confusion[:, 0].any() else 1  # Guesses of the background are rare.
        plots.draw_confusion(confusion[1:, first:], labels, f'step {result["step"]}: precision@1 '
                             f'{result["precision@1"]:.4f}', os.path.join(folder, 'confusion_matrix.png'))
    else:
        say('confusion_matrix.png is left out: matplotlib is not installed (pip install ".[demo]")')
    for line in table(scores, pairs):
        say(line)
    say(f'report     {folder}')


def _csv(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows([header, *rows])
    return text.getvalue()


def _number(value: float) -> float | None:
    """Rounded for a file; None, which JSON can hold, for nan."""
    return None if math.isnan(value) else round(value, 6)
