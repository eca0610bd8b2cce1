"""The report: scores of each class by hand, files that can be read back, and no picture without matplotlib."""

import csv
import json
import math

import numpy as np
from PIL import Image

from inception_mg.evaluation import per_class as eval_report
from inception_mg.report import plots

LABELS = ['background', 'a', 'b', 'c']
#            guesses: background a  b  c
CONFUSION = np.array([[0, 0, 0, 0],
                      [1, 5, 2, 0],   # a
                      [0, 3, 1, 0],   # b
                      [0, 0, 0, 0]])  # c has no image
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


def test_guesses_agree_with_hits_also_for_ties_and_nan():
    import tensorflow as tf

    from inception_mg.model import metrics
    logits = tf.constant([[0, 1, 3, 2], [0, 5, 5, 1], [0, math.nan, 1, 2], [9, 0, 0, 0]], tf.float32)
    labels = tf.constant([2, 2, 3, 1])
    assert metrics.build_guesses(logits, labels).numpy().tolist() == [2, 2, 0, 0]
    assert metrics.build_hits(logits, labels, 2).first.numpy() == 2
