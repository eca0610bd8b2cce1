"""Whose checkpoints are in a train_dir, and which of them are deleted. Files that look like checkpoints will do."""

import json
import pathlib

import pytest

from inception_mg.errors import UserError
from inception_mg.run_dir.written import LIST_FILE, Written


def put(folder: pathlib.Path, step: int, text: str = '', parts: int = 1) -> str:
    """Writes model.ckpt-`step` as TensorFlow does; returns its name."""
    name = f'model.ckpt-{step}'
    for part in range(parts):
        (folder / f'{name}.data-{part:05}-of-{parts:05}').write_text('values')
    (folder / f'{name}.index').write_text(text or f'index of {step}')
    return name


def save(job: Written, folder: pathlib.Path, step: int, text: str = '') -> list[str]:
    job.begin(f'model.ckpt-{step}')
    names = job.end(put(folder, step, text))
    job.prune()
    return names


def steps(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.stem.removeprefix('model.ckpt-')) for path in folder.glob('*.index'))


def life(folder: pathlib.Path, most: int, newest: int | None, *saved: int) -> None:
    job = Written.of_job(str(folder), most, None if newest is None else str(folder / f'model.ckpt-{newest}'))
    for step in saved:
        save(job, folder, step)


def test_all_lives_together_keep_as_many_as_one(tmp_path):
    life(tmp_path, 3, None, 1, 2)
    for step in range(2, 12):
        life(tmp_path, 3, step, step + 1)
        assert len(list(tmp_path.glob('model.ckpt-*'))) == 2 * min(3, step + 1)
    assert steps(tmp_path) == [10, 11, 12]


def test_fewer_than_before_are_kept_when_it_is_asked_for_and_all_with_0(tmp_path):
    life(tmp_path, 0, None, *range(1, 9))
    assert steps(tmp_path) == [*range(1, 9)]
    life(tmp_path, 2, 8, 9)
    assert steps(tmp_path) == [8, 9]
    life(tmp_path, 0, 9, 10, 11)
    assert steps(tmp_path) == [8, 9, 10, 11]


def test_it_says_which_are_kept_before_the_others_are_deleted(tmp_path):
    job = Written.of_job(str(tmp_path), 2, None)
    assert save(job, tmp_path, 1) == ['model.ckpt-1']
    assert save(job, tmp_path, 2) == ['model.ckpt-1', 'model.ckpt-2']
    job.begin('model.ckpt-3')
    assert job.end(put(tmp_path, 3)) == ['model.ckpt-2', 'model.ckpt-3']
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize('newest', [None, 1])
def test_what_somebody_else_left_is_never_touched(tmp_path, newest):
    for step in (7, 70):
        put(tmp_path, step, 'of a stranger', parts=2)
    (tmp_path / 'model.ckpt-8.data-00000-of-00001').write_text('half of a stranger')
    if newest:
        life(tmp_path, 2, None, 1)
    life(tmp_path, 2, newest, *range(2, 7), 9)
    assert steps(tmp_path) == [6, 7, 9, 70]
    assert len(list(tmp_path.glob('model.ckpt-*'))) == 2 + 3 + 2 + 3 + 1


def test_a_start_from_somebody_elses_begins_a_list_of_its_own(tmp_path):
    """The checkpoints of the job before are then those of another."""
    life(tmp_path, 2, None, 1, 2)
    put(tmp_path, 5)
    life(tmp_path, 2, 5, 6, 7, 8)
    assert steps(tmp_path) == [1, 2, 5, 7, 8]


def test_one_that_was_replaced_is_no_longer_ours(tmp_path):
    life(tmp_path, 2, None, 1, 2)
    put(tmp_path, 1, 'of a stranger')
    life(tmp_path, 2, 2, 3, 4)
    assert steps(tmp_path) == [1, 3, 4]
    put(tmp_path, 4, 'of a stranger')
    life(tmp_path, 2, 4, 5, 6, 7)  # It is gone on from: so it begins a job.
    assert steps(tmp_path) == [1, 3, 4, 6, 7]


def test_a_training_that_went_back_writes_over_its_own(tmp_path):
    life(tmp_path, 3, None, 10, 20, 30)
    job = Written.of_job(str(tmp_path), 3, str(tmp_path / 'model.ckpt-10'))
    assert save(job, tmp_path, 20, 'again') == ['model.ckpt-10', 'model.ckpt-30', 'model.ckpt-20']
    save(job, tmp_path, 25)
    assert steps(tmp_path) == [20, 25, 30]


def test_names_are_no_patterns(tmp_path):
    mine, other = tmp_path / 'a[b]*', tmp_path / 'ab'
    for folder in (mine, other):
        folder.mkdir()
    put(other, 1)
    for name in ('model.ckpt-11', 'model.ckpt-1x', 'xmodel.ckpt-1'):
        (mine / f'{name}.data-00000-of-00001').write_text('another')
    life(mine, 1, None, 1, 2)
    assert steps(mine) == [2] and steps(other) == [1]
    assert len(list(mine.iterdir())) == 3 + 2 + 1


def killed_in_a_save(folder: pathlib.Path, step: int, *files: str) -> None:
    """A life that begins anew or at the newest, and ends within its save, when `files` are there."""
    newest = max(steps(folder), default=None)
    Written.of_job(str(folder), 2, newest and str(folder / f'model.ckpt-{newest}')).begin(f'model.ckpt-{step}')
    for file in files:
        (folder / f'model.ckpt-{step}.{file}').write_text(f'of {step}')


TEMPORARY = ('data-00000-of-00001.tempstate123', 'index.tempstate99')


@pytest.mark.parametrize('first', [True, False])
@pytest.mark.parametrize('files', [
    (), TEMPORARY[:1], TEMPORARY, ('data-00000-of-00001', TEMPORARY[1]), ('data-00000-of-00001',)])
def test_what_a_kill_within_a_save_leaves_is_removed_by_the_next(tmp_path, files, first):
    if not first:
        life(tmp_path, 2, None, 1)
    for step in (5, 5, 6):
        killed_in_a_save(tmp_path, step, *files)
    newest = None if first else 1
    life(tmp_path, 2, newest, 7)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith('model.ckpt')} == {
        f'model.ckpt-{step}.{kind}' for step in ([7] if first else [1, 7]) for kind in ('index', 'data-00000-of-00001')}


@pytest.mark.parametrize('first', [True, False])
def test_one_that_was_whole_when_the_kill_came_is_ours(tmp_path, first):
    if not first:
        life(tmp_path, 2, None, 1)
    killed_in_a_save(tmp_path, 5, 'data-00000-of-00001', 'index')
    life(tmp_path, 2, 5, 6, 7)
    assert steps(tmp_path) == [6, 7]


def test_one_that_was_whole_but_not_gone_on_from_is_ours_too(tmp_path):
    """TensorFlow's state file did not name it yet."""
    life(tmp_path, 2, None, 1)
    killed_in_a_save(tmp_path, 5, 'data-00000-of-00001', 'index')
    life(tmp_path, 2, 1, 4, 6)
    assert steps(tmp_path) == [4, 6]


def test_a_stranger_that_a_killed_save_would_have_replaced_stays(tmp_path):
    life(tmp_path, 2, None, 1)
    put(tmp_path, 5, 'of a stranger')
    (tmp_path / 'model.ckpt-6.data-00000-of-00001').write_text('half of a stranger')
    for step in (5, 6):
        Written.of_job(str(tmp_path), 2, str(tmp_path / 'model.ckpt-1')).begin(f'model.ckpt-{step}')
    life(tmp_path, 2, 1, 7, 8, 9)
    assert steps(tmp_path) == [5, 8, 9] and (tmp_path / 'model.ckpt-6.data-00000-of-00001').exists()


def test_what_cannot_be_deleted_is_tried_again(tmp_path, monkeypatch):
    job = Written.of_job(str(tmp_path), 1, None)
    save(job, tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr('os.remove', lambda path: (_ for _ in ()).throw(PermissionError(13, 'no')))
        save(job, tmp_path, 2)
    assert steps(tmp_path) == [1, 2]
    life(tmp_path, 1, 2, 3)
    assert steps(tmp_path) == [3]


@pytest.mark.parametrize('text', [
    '', '[', '[]', '{}', '[' * 100_000, '{"checkpoints": []}', '{"checkpoints": {"a": "b"}, "begun": null}',
    '{"checkpoints": {"model.ckpt-1": 3}, "begun": null}', '{"checkpoints": {}, "begun": ["model.ckpt-1"]}',
    '{"checkpoints": {}, "begun": ["../model.ckpt-1", ""]}', '{"checkpoints": {}, "begun": 7}', '\xff'])
def test_without_a_readable_list_nothing_is_known_to_be_ours(tmp_path, text):
    life(tmp_path, 1, None, 1)
    (tmp_path / LIST_FILE).write_text(text, encoding='latin-1')
    life(tmp_path, 1, 1, 2, 3)
    assert steps(tmp_path) == [1, 3]
    assert list(json.loads((tmp_path / LIST_FILE).read_text())['checkpoints']) == ['model.ckpt-3']


def test_a_list_that_cannot_be_written_is_said(tmp_path):
    job = Written.of_job(str(tmp_path / 'gone'), 1, None)
    with pytest.raises(UserError, match='cannot write .*checkpoints.json'):
        job.begin('model.ckpt-1')
