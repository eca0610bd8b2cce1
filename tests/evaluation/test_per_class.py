"""The report: scores of each class by hand, files that can be read back, and no picture without matplotlib."""

import csv
import json
import math
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from inception_mg.errors import UserError
from inception_mg.evaluation import per_class as eval_report
from inception_mg.report import plots

LABELS = ['background', 'a', 'b', 'c']
#            guesses: background a  b  c
MATRIX = np.array([[0, 0, 0, 0],
                   [1, 5, 2, 0],   # a
                   [0, 3, 1, 0],   # b
                   [0, 0, 0, 0]])  # c has no image
CONFUSION = eval_report.Confusion(4)
CONFUSION.add(*np.repeat(np.indices((4, 4)).reshape(2, 16), MATRIX.ravel(), axis=1))
RESULT = {'step': 7, 'precision@1': 0.5}


def test_scores_of_each_class():
    a, b, c = eval_report.class_scores(CONFUSION, LABELS)
    assert (a.name, a.images, a.guesses, a.right) == ('a', 8, 8, 5) and a.precision == a.recall == 5 / 8
    assert b.recall == 1 / 4 and b.precision == 1 / 3
    assert c.images == 0 and math.isnan(c.precision) and math.isnan(c.recall)


def test_confused_pairs_and_table():
    pairs = eval_report.most_confused(CONFUSION, LABELS)
    assert pairs == [('b', 'a', 3), ('a', 'b', 2), ('a', 'background', 1)]
    assert eval_report.most_confused(CONFUSION, LABELS, 1) == pairs[:1]
    lines = eval_report.table(eval_report.class_scores(CONFUSION, LABELS), pairs)
    assert [line.split()[0] for line in lines[1:4]] == ['c', 'b', 'a'] and '3 x b taken for a' in lines
    many = eval_report.table([eval_report.ClassScore(f'n{i}', 2, 2, 1) for i in range(100)], [])
    assert len(many) == 32 and many[-1] == 'and 70 classes with a better recall'


def test_files(tmp_path):
    lines: list[str] = []
    eval_report.write_report(str(tmp_path / 'r'), CONFUSION, LABELS, RESULT, lines.append)
    rows = list(csv.reader((tmp_path / 'r' / 'per_class.csv').open()))
    assert rows[1] == ['a', '8', '8', '5', '0.625', '0.625'] and rows[3] == ['c', '0', '0', '0', '', '']
    rows = list(csv.reader((tmp_path / 'r' / 'confusion_matrix.csv').open()))
    assert rows[0] == ['class', *LABELS] and rows[1] == ['a', '1', '5', '2', '0']
    report = json.loads((tmp_path / 'r' / 'report.json').read_text())
    assert report['step'] == 7 and report['classes'][2]['precision'] is None
    assert report['confused'][0] == {'name': 'b', 'taken_for': 'a', 'images': 3}
    names = {'per_class.csv', 'confusion_matrix.csv', 'report.json', 'confusion_matrix.png'}
    if plots.available():
        assert Image.open(tmp_path / 'r' / 'confusion_matrix.png').format == 'PNG'
    assert {path.name for path in (tmp_path / 'r').iterdir()} == names - (
        set() if plots.available() else {'confusion_matrix.png'})


def test_without_matplotlib_a_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, 'available', lambda: False)
    lines: list[str] = []
    eval_report.write_report(str(tmp_path), CONFUSION, LABELS, RESULT, lines.append)
    assert 'matplotlib is not installed' in lines[0] and not (tmp_path / 'confusion_matrix.png').exists()


def test_counts_are_those_of_a_matrix_whatever_the_batches():
    random = np.random.RandomState(1)
    labels, guesses = random.randint(0, 7, (2, 300)).astype(np.int32)
    dense, sparse = np.zeros([7, 7], np.int64), eval_report.Confusion(7)
    np.add.at(dense, (labels, guesses), 1)
    for batch in np.array_split(np.arange(300), 11):
        sparse.add(labels[batch], guesses[batch])
    sparse.add(labels[:0], guesses[:0])
    assert (sparse.matrix() == dense).all()
    assert (sparse.scores() == np.stack([dense.sum(1), dense.sum(0), dense.diagonal()], axis=1)).all()
    with pytest.raises(UserError, match='the label 7; the outputs of the model are 0 to 6'):
        sparse.add(np.array([1, 7]), np.array([1, 1]))
    with pytest.raises(UserError, match='the label -1'):
        sparse.add(np.array([1, -1]), np.array([1, 1]))


def test_21842_outputs_take_megabytes_and_the_report_has_the_worst_pairs(tmp_path):
    """As a matrix, the counts of all classes of ImageNet would be 3.8 GB, and the table of them a gigabyte."""
    outputs, random = 21842, np.random.RandomState(1)
    lines: list[str] = []
    tracemalloc.start()
    try:
        confusion = eval_report.Confusion(outputs)
        for _ in range(200):
            confusion.add(random.randint(1, outputs, 100), random.randint(0, outputs, 100))
        confusion.add(np.full(5, 21841), np.full(5, 3))
        eval_report.write_report(str(tmp_path), confusion, [f'n{k}' for k in range(outputs)], RESULT, lines.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    assert {path.name for path in tmp_path.iterdir()} == {'per_class.csv', 'confused_pairs.csv', 'report.json'}
    rows = list(csv.reader((tmp_path / 'confused_pairs.csv').open()))
    assert rows[:2] == [['name', 'taken_for', 'images'], ['n21841', 'n3', '5']] and len(rows) == 1001
    assert any('left out: 21841 classes are more than 1000; confused_pairs.csv has the 1000 worst' in line
               for line in lines)
    assert len(json.loads((tmp_path / 'report.json').read_text())['classes']) == 21841


def test_guesses_agree_with_hits_also_for_ties_and_nan():
    import tensorflow as tf

    from inception_mg.model import metrics
    logits = tf.constant([[0, 1, 3, 2], [0, 5, 5, 1], [0, math.nan, 1, 2], [9, 0, 0, 0]], tf.float32)
    labels = tf.constant([2, 2, 3, 1])
    assert metrics.build_guesses(logits, labels).numpy().tolist() == [2, 2, 0, 0]
    assert metrics.build_hits(logits, labels, 2).first.numpy() == 2
