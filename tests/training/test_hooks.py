"""A signal is heard once and ends the loop; the second one interrupts; who came before is put back."""

import os
import signal

import pytest

from inception_mg.training import hooks


@pytest.fixture(autouse=True)
def heard():
    """Each signal as a process in the foreground hears it, also where these tests run in the background."""
    before = {number: signal.getsignal(number) for number in hooks.SIGNALS}
    for number in hooks.SIGNALS:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize('number', hooks.SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_is_remembered_and_the_second_interrupts(number, capsys):
    before = {each: signal.getsignal(each) for each in hooks.SIGNALS}
    stopper = hooks.Stopper()
    with stopper.listening():
        assert stopper.signal_name == ''
        os.kill(os.getpid(), number)
        assert stopper.signal_name == number.name
        assert f'{number.name}: saving after this step' in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert {each: signal.getsignal(each) for each in hooks.SIGNALS} == before


def test_a_terminal_that_is_closed_does_not_matter_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As nohup leaves it to its child.
    stopper = hooks.Stopper()
    with stopper.listening():
        os.kill(os.getpid(), signal.SIGHUP)
        assert stopper.signal_name == '' and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_screen_that_is_gone_ends_nothing(monkeypatch):
    class Gone:
        def write(self, text):
            raise OSError(5, 'Input/output error')

        flush = write
    stopper = hooks.Stopper()
    monkeypatch.setattr(hooks.sys, 'stderr', Gone())
    with stopper.listening():
        os.kill(os.getpid(), signal.SIGHUP)
        assert stopper.signal_name == 'SIGHUP'
