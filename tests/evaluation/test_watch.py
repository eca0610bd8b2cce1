"""The evaluator beside a training: each new checkpoint, those that vanish, the best one, and STOP.

The network is replaced by a table of scores where only the watching is tested.
"""

import errno
import json
import os
import pathlib
import shutil
import threading
import time

import pytest
import tensorflow as tf
from trained_model import MODEL, train

from inception_mg import files
from inception_mg.config import DataConfig, EvalConfig, ModelConfig
from inception_mg.errors import UserError
from inception_mg.evaluation import evaluate as evaluation
from inception_mg.evaluation import watch as evaluator
from inception_mg.evaluation.per_class import Confusion
from inception_mg.files import append_line, write_text
from inception_mg.model.metrics import Scores
from inception_mg.report import plots
from inception_mg.run_dir import run_state
from inception_mg.weights.checkpoints import newest_checkpoint, step_of

v1 = tf.compat.v1


def save(train_dir: pathlib.Path, *steps: int) -> None:
    """Writes checkpoints that hold a step and nothing else, and the state file that lists them."""
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.get_variable('global_step', [], tf.int64, use_resource=True)
        saver = v1.train.Saver([step], save_relative_paths=True, max_to_keep=0)
        saver.recover_last_checkpoints(evaluator.checkpoints_in(str(train_dir)))
        for number in steps:
            session.run(step.assign(number))
            saver.save(session, str(train_dir / 'model.ckpt'), number, write_meta_graph=False)


class TableOfScores:
    """In place of evaluate.Evaluation: the right images of each step, out of 9 (or as many as could be read)."""

    images = 9
    right = {1: 3, 2: 6, 3: 5, 4: 6, 5: 2, 6: 7}

    def __init__(self, setup):
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def score(self, checkpoint: str) -> evaluation.Outcome:
        step = step_of(checkpoint)
        return evaluation.Outcome(step, Scores(self.images, self.right[step], self.images, 2), Confusion(4))


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(evaluator, 'Evaluation', TableOfScores)
    monkeypatch.setattr(plots, 'available', lambda: False)
    monkeypatch.setattr(evaluator, '_LOOK_SECS', 0.05)
    monkeypatch.setattr(evaluator, '_GRACE_SECS', 0.2)


def watch(data_dir: str, train_dir: pathlib.Path, lines: list[str], **config) -> None:
    evaluator.watch(DataConfig(data_dir=data_dir), ModelConfig(),
                    EvalConfig(checkpoint_dir=str(train_dir), **{'eval_interval_secs': 0.05, **config}), lines.append)


def steps_in(eval_dir: pathlib.Path) -> list[int]:
    return [json.loads(line)['step'] for line in (eval_dir / 'results.jsonl').read_text().splitlines()]


def test_it_ends_with_the_training_and_keeps_the_best(table, three_classes, tmp_path):
    """Each checkpoint that comes is evaluated once; the best one is kept, also when the training deletes it."""
    save(tmp_path, 1)
    run_state.write_state(str(tmp_path), run_state.RUNNING)
    lines: list[str] = []
    thread = threading.Thread(target=watch, args=(three_classes, tmp_path, lines))
    thread.start()
    for number in (2, 3, 4, 5):
        wait_for(lambda before=f'step {number - 1}: precision': before in '\n'.join(lines))
        save(tmp_path, number)
    run_state.write_state(str(tmp_path), run_state.OVER)
    thread.join(30)
    assert not thread.is_alive() and 'is over' in lines[-1]
    assert steps_in(tmp_path / 'eval') == [1, 2, 3, 4, 5]
    best = tmp_path / 'eval' / 'best'
    assert sorted(os.listdir(best)) == ['best.json', 'checkpoint', 'model.ckpt-2.data-00000-of-00001',
                                        'model.ckpt-2.index']
    for path in tmp_path.glob('model.ckpt-*'):
        path.unlink()
    assert step_of(newest_checkpoint(str(best))) == 2
    assert json.loads((best / 'best.json').read_text())['precision@1'] == pytest.approx(6 / 9, abs=1e-5)
    save(tmp_path, 6)
    watch(three_classes, tmp_path, lines)  # A later life of the evaluator.
    assert step_of(newest_checkpoint(str(best))) == 6 and len(list(best.glob('model.ckpt-*'))) == 2


def test_started_together_with_a_training_that_goes_on(table, three_classes, tmp_path, monkeypatch):
    """The end of an earlier life of the training is not its end."""
    monkeypatch.setattr(evaluator, '_GRACE_SECS', 1000.0)
    save(tmp_path, 1)
    run_state.write_state(str(tmp_path), run_state.OVER)
    lines: list[str] = []
    thread = threading.Thread(target=watch, args=(three_classes, tmp_path, lines), kwargs={'eval_interval_secs': 600})
    thread.start()
    wait_for(lambda: 'step 1: precision' in '\n'.join(lines))
    assert 'was over already; it has 1000 s to go on' in lines[0]
    with run_state.announced(str(tmp_path)), run_state.recording(str(tmp_path)):
        time.sleep(0.5)  # Ten looks.
        save(tmp_path, 2)
    thread.join(30)
    assert not thread.is_alive() and lines[-1].endswith('is over: so is its evaluation')
    assert steps_in(tmp_path / 'eval') == [1, 2]


def wait_for(condition, limit: float = 30.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_of_the_checkpoints_that_are_there_the_newest_counts(table, three_classes, tmp_path):
    save(tmp_path, 1, 2, 3)
    run_state.write_state(str(tmp_path), run_state.OVER)
    watch(three_classes, tmp_path, [], keep_best=False)
    assert steps_in(tmp_path / 'eval') == [3] and not (tmp_path / 'eval' / 'best').exists()


@pytest.mark.parametrize('keep_best', [True, False])
def test_a_checkpoint_that_is_deleted_under_it(table, three_classes, tmp_path, monkeypatch, keep_best):
    """Deleted after it was seen and before it is opened."""
    save(tmp_path, 2)
    run_state.write_state(str(tmp_path), run_state.OVER)
    lines: list[str] = []
    monkeypatch.setattr(evaluator.Watcher, 'evaluate', deleting(evaluator.Watcher.evaluate, tmp_path))
    watch(three_classes, tmp_path, lines, keep_best=keep_best)
    assert any('model.ckpt-2 was deleted' in line for line in lines) and 'is over' in lines[-1]
    assert not (tmp_path / 'eval' / 'results.jsonl').exists()


def deleting(method, folder: pathlib.Path):
    """The method, called after all checkpoints of the folder were deleted."""
    def called(self, checkpoint):
        for path in folder.glob('model.ckpt-*'):
            path.unlink()
        return method(self, checkpoint)
    return called


def test_a_held_checkpoint_outlives_its_deletion_or_is_refused(tmp_path):
    save(tmp_path, 4)
    best = evaluator.BestCheckpoint(str(tmp_path / 'best'))
    held = best.hold(str(tmp_path / 'model.ckpt-4'))
    for path in tmp_path.glob('model.ckpt-*'):
        path.unlink()
    assert step_of(held) == 4
    with pytest.raises(FileNotFoundError):
        best.hold(str(tmp_path / 'model.ckpt-4'))
    save(tmp_path, 5)
    (tmp_path / 'model.ckpt-5.data-00000-of-00001').unlink()  # Half deleted.
    with pytest.raises(FileNotFoundError):
        best.hold(str(tmp_path / 'model.ckpt-5'))


def test_no_gain_asks_the_training_to_end_once(table, three_classes, tmp_path):
    run_state.write_state(str(tmp_path), run_state.RUNNING)
    lines: list[str] = []
    for number in (1, 2, 3, 4):
        save(tmp_path, number)
        run_state.write_state(str(tmp_path), run_state.OVER)
        watch(three_classes, tmp_path, lines, stop_after_no_gain=2)  # A life each: the history is in results.jsonl.
        assert bool(run_state.stop_request(str(tmp_path))) == (number == 4)
    assert run_state.stop_request(str(tmp_path)) == (
        'no gain in precision@1 over 2 checkpoints: 0.6667 at step 2, 0.6667 at step 4')
    assert sum('asked the training to end' in line for line in lines) == 1


def test_results_of_a_training_begun_anew_replace_the_old():
    history = evaluator.History([])
    for step, value in ((10, 0.5), (20, 0.9), (30, 0.8), (40, 0.7)):
        history.add({'step': step, 'precision@1': value, 'images': 9})
    assert history.best()['step'] == 20 and history.without_gain() == 2
    history.add({'step': 10, 'precision@1': 0.4, 'images': 9})
    assert history.best()['step'] == 10 and history.without_gain() == 0 and history.precisions() == {10: 0.4}


def test_training_that_is_over_without_a_checkpoint(table, three_classes, tmp_path):
    run_state.write_state(str(tmp_path), run_state.OVER)
    with pytest.raises(UserError, match='no checkpoint is there'):
        watch(three_classes, tmp_path, [])


def test_a_real_training_ends_by_stop_and_the_evaluator_after_it(three_classes, tmp_path):
    """Training and evaluator side by side: STOP ends the one with a checkpoint, and its end the other."""
    lines: list[str] = []
    said: list[str] = []
    settings = EvalConfig(checkpoint_dir=str(tmp_path), eval_interval_secs=0.1, stop_after_no_gain=1)
    thread = threading.Thread(target=evaluator.watch, args=(
        DataConfig(batch_size=9), ModelConfig(), settings, lines.append, ()))
    thread.start()
    signal_name = train(three_classes, str(tmp_path), max_steps=100000, say=said.append, save_interval_secs=0.5,
                        max_checkpoints_to_keep=2)
    thread.join(60)
    assert not thread.is_alive() and signal_name == ''
    assert 'is over' in lines[-1] and any('asked the training to end' in line for line in lines)
    assert any('STOP: no gain in precision@1' in line and 'saving and ending' in line for line in said)
    # The checkpoint of the last step may have been due just before STOP was seen.
    assert run_state.is_over(str(tmp_path)) and any(line.startswith('saved ') for line in said[-2:])
    best = str(tmp_path / 'eval' / 'best')
    kept = evaluation.evaluate(DataConfig(batch_size=9), ModelConfig(), EvalConfig(
        checkpoint_dir=best, run_once=True, eval_dir=str(tmp_path / 'again')), lines.append, chosen=())
    assert kept.precision_at_1 == pytest.approx(
        max(json.loads(line)['precision@1'] for line in (tmp_path / 'eval' / 'results.jsonl').read_text().splitlines()),
        abs=1e-5)
    if plots.available():
        assert (tmp_path / 'eval' / 'precision.png').read_bytes().startswith(b'\x89PNG')
    with pytest.raises(UserError, match='STOP asks training to end .*: delete that file to go on'):
        train(three_classes, str(tmp_path), max_steps=3)
    shutil.rmtree(tmp_path / 'again')
    assert MODEL.width == json.loads((tmp_path / 'model.json').read_text())['width']


GOOD = {'subset': 'validation', 'averages': True, 'images': 9, 'step': 3, 'precision@1': 0.5}
NO_RESULTS = {
    'empty': b'', 'cut': b'{"step": 3, "subset": "valid', 'garbage': b'\x00\xff\xfe{]', 'a list': b'[1, 2]',
    'null': b'null', 'text': b'"step"', 'deep': b'[' * 100_000, 'not UTF-8': b'{"step": 3, "subset": "\xe9"}',
    'another version': json.dumps({'format': 9, 'best': GOOD}).encode(),
    'not a number': json.dumps(GOOD | {'precision@1': float('nan')}).encode(),
    **{f'{name} is {value}': json.dumps(GOOD | {name: value}).encode() for name, value in (
        ('step', '3'), ('step', None), ('step', True), ('step', -1), ('precision@1', '0.5'), ('precision@1', 7.0),
        ('images', []), ('subset', {}), ('averages', 1))}}


@pytest.mark.parametrize('text', NO_RESULTS.values(), ids=NO_RESULTS)
def test_a_state_file_that_holds_none_is_read_as_none(text, tmp_path):
    """results.jsonl beside good lines, best.json, training.json: no traceback, and nothing that is wrong counts."""
    assert evaluator.result_of(text) is None
    good = evaluator.result_of(json.dumps(GOOD).encode())
    assert good == GOOD | {'images_declared': 9}  # A line of an earlier version.
    for name in ('training.json', 'results.jsonl'):
        (tmp_path / name).write_bytes(text + b'\n' + json.dumps(GOOD).encode() if name == 'results.jsonl' else text)
    assert not run_state.is_over(str(tmp_path))
    lines: list[str] = []
    assert evaluator.History.read(str(tmp_path), setup_of(9), lines.append).best() == good
    assert lines == ([f'{tmp_path}/results.jsonl: 1 of 2 lines are no results, and do not count'] if text else [])


def setup_of(images: int) -> evaluation.Setup:
    return evaluation.Setup(EvalConfig(), None, None, ['background', 'a'], 1, images, 4, '', '', '')


def test_a_best_file_that_is_lost_costs_no_best_checkpoint(table, three_classes, tmp_path):
    """results.jsonl still knows how good it is; without that too, a line says that another one takes its place."""
    best, lines = tmp_path / 'eval' / 'best', []
    run_state.write_state(str(tmp_path), run_state.OVER)
    for step in (2, 3):  # Right: 6, then 5.
        save(tmp_path, step)
        watch(three_classes, tmp_path, lines)
        (best / 'best.json').write_bytes(b'{"step"')
    assert step_of(newest_checkpoint(str(best))) == 2 and not any('does not tell' in line for line in lines)
    (tmp_path / 'eval' / 'results.jsonl').unlink()
    save(tmp_path, 5)
    watch(three_classes, tmp_path, lines)
    assert step_of(newest_checkpoint(str(best))) == 5
    assert sum('best.json does not tell how good model.ckpt-2 is' in line for line in lines) == 1


def test_a_cut_last_line_keeps_to_itself(tmp_path):
    path = tmp_path / 'results.jsonl'
    append_line(str(path), 'one')
    path.write_bytes(path.read_bytes() + b'{"cut')
    append_line(str(path), 'été')
    append_line(str(path), 'three')
    assert path.read_text(encoding='utf-8') == 'one\n{"cut\nété\nthree\n'


def test_of_a_line_that_does_not_fit_nothing_stays(tmp_path, monkeypatch):
    """The disk takes three bytes of it; and of a whole file, one that is renamed when it is whole."""
    path = tmp_path / 'results.jsonl'
    path.write_text('one\n')
    file = FullDisk(open(path, 'ab+', buffering=0), 3)
    monkeypatch.setattr(files, 'open', lambda *args, **kwargs: file, raising=False)
    with pytest.raises(UserError, match='results.jsonl: No space left on device'):
        append_line(str(path), 'two, which is long')
    assert path.read_text() == 'one\n' and file.closed
    monkeypatch.setattr(files, 'open', lambda *args, **kwargs: FullDisk(open(*args, **kwargs), 0), raising=False)
    with pytest.raises(UserError, match='No space left on device'):
        write_text(str(path), 'anew')
    assert path.read_text() == 'one\n' and os.listdir(tmp_path) == ['results.jsonl']


class FullDisk:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file, room: int):
        self._file, self._room = file, room

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, data):
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written, self._room = self._file.write(data[:self._room]), 0
        return written


def test_a_restart_remembers_results_of_fewer_images_than_declared(table, three_classes, tmp_path, monkeypatch):
    """Two of nine images cannot be read: said, kept in the result, and compared with results of as many."""
    monkeypatch.setattr(TableOfScores, 'images', 7)
    lines: list[str] = []
    for step in (2, 3, 4):
        save(tmp_path, step)
        run_state.write_state(str(tmp_path), run_state.OVER)
        watch(three_classes, tmp_path, lines, stop_after_no_gain=2)
        assert bool(run_state.stop_request(str(tmp_path))) == (step == 4)
    result = json.loads((tmp_path / 'eval' / 'results.jsonl').read_text().splitlines()[-1])
    assert (result['images'], result['images_declared']) == (7, 9)
    assert sum('2 of the 9 images are missing' in line for line in lines) == 3
    history = evaluator.History.read(str(tmp_path / 'eval'), setup_of(9))
    assert list(history.precisions()) == [2, 3, 4]
    history.add(GOOD | {'step': 5})  # All nine again.
    assert list(history.precisions()) == [5]
    assert evaluator.History.read(str(tmp_path / 'eval'), setup_of(7)).precisions() == {}


@pytest.mark.parametrize('taken', ['best', 'precision.png', 'results.jsonl', 'report', 'STOP', 'best/best.json'])
def test_where_a_folder_or_a_file_is_in_the_way_the_results_stand(table, three_classes, tmp_path, monkeypatch, taken):
    """Each is lost by itself, with one line, whatever the number of checkpoints; nothing is left lying about."""
    monkeypatch.setattr(plots, 'available', lambda: taken == 'precision.png')
    eval_dir = tmp_path / 'eval'
    eval_dir.mkdir()
    if taken in ('best', 'report'):
        (eval_dir / taken).write_text('mine')
    else:
        (tmp_path / taken if taken == 'STOP' else eval_dir / taken).mkdir(parents=True)
    assert_results_stand(three_classes, tmp_path, IN_THE_WAY[taken])
    left = {path.name for path in tmp_path.rglob('*')} - {taken, 'eval', 'best', 'report'}
    assert not [name for name in left if name.startswith('.')] and 'held' not in left
    if taken == 'best/best.json':
        assert not list((eval_dir / 'best').glob('model.ckpt-*'))  # Which nobody would find, and nobody delete.


IN_THE_WAY = {'best': 'the best checkpoint is not kept', 'precision.png': 'precision.png is not kept',
              'results.jsonl': 'the results are not kept', 'report': 'report is not kept',
              'STOP': 'the request to end the training is not kept',
              'best/best.json': 'the best checkpoint is not kept'}


def assert_results_stand(records: str, train_dir: pathlib.Path, words: str) -> None:
    """Three checkpoints, of which the second is better and the third is not, are evaluated; `words` are said once."""
    lines: list[str] = []
    save(train_dir, 3)
    run_state.write_state(str(train_dir), run_state.RUNNING)
    thread = threading.Thread(target=watch, args=(records, train_dir, lines), kwargs={
        'report_dir': str(train_dir / 'eval' / 'report'), 'stop_after_no_gain': 1})
    thread.start()
    for step in (3, 4):
        wait_for(lambda step=step: not thread.is_alive() or any(f'step {step}: precision' in line for line in lines))
        save(train_dir, step + 1)
    run_state.write_state(str(train_dir), run_state.OVER)
    thread.join(30)
    assert not thread.is_alive() and 'is over' in lines[-1], lines
    assert [line.split(':')[0] for line in lines if line.startswith('step ')] == ['step 3', 'step 4', 'step 5']
    assert [json.loads(line)['step'] for line in lines if line.startswith('{')] == [3, 4, 5]
    assert sum(words in line for line in lines) == 1, lines


@pytest.mark.parametrize('what', ['link', 'copy', 'picture', 'summary', 'text'])
def test_on_a_full_disk_the_results_stand(table, three_classes, tmp_path, monkeypatch, what):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    owner, name, words = {
        'link': (os, 'makedirs', 'the best checkpoint is not kept: the disk is full'),
        'copy': (shutil, 'copyfile', 'the best checkpoint is not kept: the disk is full'),
        'picture': (plots, 'save', 'precision.png is not kept: the disk is full'),
        'summary': (evaluation.v1.summary.FileWriter, 'flush', f'the summary in {tmp_path}/eval is not kept: the disk'),
        'text': (files, 'open', 'the results are not kept: cannot write in')}[what]
    (tmp_path / 'eval' / 'report').mkdir(parents=True)
    if what == 'copy':
        monkeypatch.setattr(os, 'link', full)
    monkeypatch.setattr(plots, 'available', lambda: what == 'picture')
    if what == 'link':
        real = os.makedirs
        monkeypatch.setattr(os, 'makedirs', lambda path, *a, **k: full() if '.held' in path else real(path, *a, **k))
    elif what == 'text':
        monkeypatch.setattr(files, 'open', lambda path, *a, **k: full() if path.endswith('results.jsonl') else
                            open(path, *a, **k), raising=False)
    else:
        monkeypatch.setattr(owner, name, full)
    assert_results_stand(three_classes, tmp_path, words)
    assert not (tmp_path / 'eval' / 'best' / '.held').exists()
