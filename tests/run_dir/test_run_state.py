"""STOP and training.json: what training and evaluator tell each other."""

import pytest

from inception_mg.errors import UserError
from inception_mg.run_dir import run_state


def test_a_stop_is_read_with_its_reason(tmp_path):
    assert run_state.stop_request(str(tmp_path)) == ''
    run_state.refuse_stopped(str(tmp_path))
    run_state.request_stop(str(tmp_path), 'no gain')
    assert run_state.stop_request(str(tmp_path)) == 'no gain'
    with pytest.raises(UserError, match=r'STOP asks training to end \(no gain\): delete that file'):
        run_state.refuse_stopped(str(tmp_path))
    (tmp_path / 'STOP').write_text('')  # By `touch`.
    assert run_state.stop_request(str(tmp_path)) == 'no reason given'
    assert [path.name for path in tmp_path.iterdir()] == ['STOP']


def test_a_training_is_over_after_a_clean_end_only(tmp_path):
    folder = str(tmp_path)
    assert not run_state.is_over(folder)
    with run_state.recording(folder):
        assert not run_state.is_over(folder)
    assert run_state.is_over(folder)
    with pytest.raises(ZeroDivisionError), run_state.recording(folder):
        raise ZeroDivisionError
    assert not run_state.is_over(folder)
    with run_state.recording(folder, interrupted=lambda: True):
        pass
    assert not run_state.is_over(folder)
    (tmp_path / 'training.json').write_text('[')
    assert not run_state.is_over(folder)


def test_a_training_that_is_refused_before_it_began_changes_nothing(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(UserError), run_state.announced(folder):
        assert run_state.read_state(folder) == run_state.RUNNING
        raise UserError('of another width')
    assert run_state.read_state(folder) == run_state.INTERRUPTED
    for state in (run_state.OVER, run_state.INTERRUPTED, run_state.RUNNING):
        run_state.write_state(folder, state)
        with pytest.raises(UserError), run_state.announced(folder):
            assert run_state.read_state(folder) == run_state.RUNNING
            raise UserError('of another width')
        assert run_state.read_state(folder) == state
    run_state.write_state(folder, run_state.OVER)
    with pytest.raises(UserError), run_state.announced(folder), run_state.recording(folder):
        raise UserError('a bad record')  # This one had begun.
    assert run_state.read_state(folder) == run_state.INTERRUPTED
    with run_state.announced(folder), run_state.recording(folder):
        pass
    assert run_state.is_over(folder)
