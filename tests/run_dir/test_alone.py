"""Two trainings in one train_dir: the second is kept out, and no longer than the first lives."""

import errno
import fcntl
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import pytest
from conftest import ROOT

from inception_mg.errors import EXIT_RETRY, UserError
from inception_mg.run_dir import alone, run_state
from inception_mg.run_dir.alone import LOCK_FILE, alone_in

HOLDS = """
import os, subprocess, sys, time
from inception_mg.run_dir.alone import alone_in
with alone_in(sys.argv[1]):
    if sys.argv[2] == 'forks':
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
            os._exit(0)
    if sys.argv[2] == 'starts':
        child = subprocess.Popen(['sleep', '60'])
        print(child.pid, flush=True)
    if sys.argv[2] == 'holds':
        print('held', flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """holder(how): another process that trains in tmp_path, and the first line that it wrote."""
    processes = []

    def start(how: str) -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen([sys.executable, '-c', HOLDS, str(tmp_path), how], stdout=subprocess.PIPE, text=True,
                                   cwd=ROOT)
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_second_is_refused_in_one_line_before_it_wrote_anything(tmp_path, holder):
    process, _ = holder('holds')
    before = files(tmp_path)
    assert list(before) == [LOCK_FILE]
    lines: list[str] = []
    with pytest.raises(UserError) as error, alone_in(str(tmp_path), EXIT_RETRY, lines.append, patience=0.2):
        raise AssertionError('two trainings')
    assert f'process {process.pid} on {socket.gethostname()}, since 2' in str(error.value)
    assert '--train_dir' in str(error.value) and '\n' not in str(error.value) and error.value.exit_code == EXIT_RETRY
    assert len(lines) == 1 and 'waiting 0.2 s' in lines[0]
    assert files(tmp_path) == before


def test_what_announces_a_training_takes_the_lock_first(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(run_state, 'alone_in', functools.partial(alone_in, patience=0))
    run_state.write_state(str(tmp_path), run_state.OVER)
    holder('holds')
    before = files(tmp_path)
    with pytest.raises(UserError, match='trains in') as error, run_state.announced(str(tmp_path)):
        raise AssertionError('two trainings')
    assert error.value.exit_code == 1 and files(tmp_path) == before


@pytest.mark.parametrize('how', ['holds', 'forks', 'starts'])
def test_after_a_kill_a_new_start_works_at_once(tmp_path, holder, how):
    """Also while a child lives on that the one who was killed had forked, or started."""
    process, line = holder(how)
    with pytest.raises(UserError), alone_in(str(tmp_path), say=print, patience=0):
        raise AssertionError('two trainings')
    process.kill()
    process.wait()
    try:
        if how != 'holds':
            os.kill(int(line), 0)  # It is there.
        with alone_in(str(tmp_path), say=pytest.fail, patience=0):
            assert json.loads((tmp_path / LOCK_FILE).read_text())['pid'] == os.getpid()
    finally:
        if how != 'holds':
            os.kill(int(line), signal.SIGKILL)


def test_one_that_is_just_ending_is_waited_for(tmp_path, holder):
    process, _ = holder('holds')
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        process.kill()

    with alone_in(str(tmp_path), say=say, patience=30):
        pass
    assert len(lines) == 1 and f'process {process.pid} on ' in lines[0]


def test_the_file_stays_and_is_empty_after_an_orderly_end(tmp_path):
    with alone_in(str(tmp_path), say=pytest.fail):
        inode = (tmp_path / LOCK_FILE).stat().st_ino
        with pytest.raises(UserError, match=f'process {os.getpid()} on'), alone_in(str(tmp_path), patience=0):
            raise AssertionError('two trainings')  # In one process, too.
    assert (tmp_path / LOCK_FILE).read_text() == '' and (tmp_path / LOCK_FILE).stat().st_ino == inode
    with alone_in(str(tmp_path), say=pytest.fail, patience=0):
        pass


@pytest.mark.parametrize('text', ['', '[', '{"pid": 3}', '{"pid": "x", "host": 1, "since": 2}', '[' * 100000, '\xff'])
def test_what_cannot_be_read_does_not_name_a_holder(tmp_path, text):
    path = tmp_path / LOCK_FILE
    path.write_text(text, encoding='latin-1')
    with path.open('rb') as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match='^another process trains in'), alone_in(str(tmp_path), patience=0):
            raise AssertionError('two trainings')


@pytest.mark.parametrize('number', [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF])
def test_without_locks_it_goes_on_with_one_note(tmp_path, monkeypatch, number):
    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(alone.fcntl, 'flock', flock)
    lines: list[str] = []
    with alone_in(str(tmp_path), say=lines.append):
        pass
    assert len(lines) == 1 and f'training.lock cannot be locked ({os.strerror(number)})' in lines[0]
    with pytest.raises(OSError, match='of the training'), alone_in(str(tmp_path), say=lines.append):
        raise OSError('of the training')  # Is not taken for one of the lock.
    assert len(lines) == 2


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(UserError, match=r'cannot write .*training.lock: Is a directory'), alone_in(str(tmp_path)):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can be two users')
def test_a_file_of_somebody_else_is_locked_all_the_same():
    """As in a folder of a group: the first of them made it, and others may only read it."""
    with tempfile.TemporaryDirectory() as folder:  # Below no folder that is root's alone, as tmp_path is.
        os.chmod(folder, 0o777)
        with alone_in(folder):
            pass
        os.seteuid(65534)
        try:
            with alone_in(folder, say=pytest.fail, patience=0):
                with pytest.raises(UserError, match='another process trains'), alone_in(folder, patience=0):
                    raise AssertionError('two trainings')
        finally:
            os.seteuid(0)
