"""What an evaluation says beyond one number: scores of each class, and which classes are taken for which."""

import collections
import csv
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from inception_mg.errors import UserError
from inception_mg.files import make_folder, write_text
from inception_mg.report import plots

_ROWS_ON_SCREEN = 30
_PAIRS = 10
_PAIRS_IN_FILE = 1000
MOST_CLASSES = 1000  # A matrix of more is gigabytes that nobody reads.


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


class Confusion:
    """How many images of a class have which guess: only the pairs that occur, since 21,842 outputs squared are 4 GB."""

    def __init__(self, outputs: int):
        self._outputs, self._counts = outputs, collections.Counter()

    def add(self, labels: np.ndarray, guesses: np.ndarray) -> None:
        """Counts images by label and guess, int [n] each. UserError for a label that no output has."""
        if labels.size and not 0 <= labels.min() <= labels.max() < self._outputs:
            wrong = next(int(label) for label in labels if not 0 <= label < self._outputs)
            raise UserError(f'an example has the label {wrong}; the outputs of the model are 0 to {self._outputs - 1}')
        pairs, counts = np.unique(labels.astype(np.int64) * self._outputs + guesses, return_counts=True)
        self._counts.update(dict(zip(pairs.tolist(), counts.tolist(), strict=True)))

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels, guesses and numbers of images, int64 [pairs] each, by label and then by guess."""
        keys = np.array(sorted(self._counts), np.int64)
        counts = np.array([self._counts[key] for key in keys.tolist()], np.int64)
        return keys // self._outputs, keys % self._outputs, counts

    def scores(self) -> np.ndarray:
        """Images, guesses and right guesses of each class, int64 [outputs, 3]."""
        labels, guesses, counts = self.pairs()
        right = np.where(labels == guesses, counts, 0)
        return np.stack([np.bincount(by, weights, self._outputs).astype(np.int64) for by, weights in (
            (labels, counts), (guesses, counts), (labels, right))], axis=1)

    def matrix(self) -> np.ndarray:
        """int64 [outputs, outputs], label (row) by guess (column): for few outputs."""
        labels, guesses, counts = self.pairs()
        matrix = np.zeros([self._outputs] * 2, np.int64)
        matrix[labels, guesses] = counts
        return matrix


def class_scores(confusion: Confusion, labels: Sequence[str]) -> list[ClassScore]:
    """The scores of every class but the background, which no image has. labels: name of every output."""
    return [ClassScore(name, *score) for name, score in zip(labels, confusion.scores().tolist(), strict=True)][1:]


def most_confused(confusion: Confusion, labels: Sequence[str], count: int = _PAIRS) -> list[Pair]:
    """The pairs of different classes with the most images, at most `count` of them."""
    found, guesses, counts = confusion.pairs()
    wrong = (found != guesses).nonzero()[0]
    return [Pair(labels[found[k]], labels[guesses[k]], int(counts[k]))
            for k in wrong[np.argsort(-counts[wrong], kind='stable')][:count]]


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


def write_report(folder: str, confusion: Confusion, labels: Sequence[str], result: dict,
                 say: Callable[[str], None] = print) -> None:
    """Writes per_class.csv, confusion_matrix.csv, report.json and confusion_matrix.png, and says the table.

    For more than MOST_CLASSES there is no matrix but the worst pairs, confused_pairs.csv, and a line says so. result:
    what else report.json has of the evaluation. Without matplotlib a line says that the picture is missing. Raises
    UserError if the folder cannot be written.
    """
    scores, pairs = class_scores(confusion, labels), most_confused(confusion, labels)
    try:
        make_folder(folder)
    except OSError as error:
        raise UserError(f'--report_dir={folder}: {error.strerror}') from None
    write_text(os.path.join(folder, 'per_class.csv'), _csv(
        ['class', 'images', 'guesses', 'right', 'precision', 'recall'],
        [[*score, _number(score.precision), _number(score.recall)] for score in scores]))
    if few := len(scores) <= MOST_CLASSES:
        matrix = confusion.matrix()
        write_text(os.path.join(folder, 'confusion_matrix.csv'), _csv(
            ['class', *labels], [[name, *row] for name, row in zip(labels[1:], matrix[1:].tolist(), strict=True)]))
    else:
        worst = most_confused(confusion, labels, _PAIRS_IN_FILE)
        write_text(os.path.join(folder, 'confused_pairs.csv'), _csv(Pair._fields, worst))
        say(f'confusion_matrix.csv and .png are left out: {len(scores)} classes are more than {MOST_CLASSES}; '
            f'confused_pairs.csv has the {len(worst)} worst pairs')
    report = {**result, 'confused': [pair._asdict() for pair in pairs], 'classes': [
        {**score._asdict(), 'precision': _number(score.precision), 'recall': _number(score.recall)}
        for score in scores]}
    write_text(os.path.join(folder, 'report.json'), json.dumps(report, indent=1, ensure_ascii=False) + '\n')
    if few and plots.available():
        first = 0 if matrix[:, 0].any() else 1  # Guesses of the background are rare.
        plots.draw_confusion(matrix[1:, first:], labels, f'step {result["step"]}: precision@1 '
                             f'{result["precision@1"]:.4f}', os.path.join(folder, 'confusion_matrix.png'))
    elif few:
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
