"""Signals: ours inside a block, afterwards those of the program."""

import os
import signal
import subprocess
import sys

import pytest

from anchor_interp._util.signals import interruptible, stop_signals

Patch = pytest.MonkeyPatch


def test_a_signal_is_noted_and_the_handler_of_the_program_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped()
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_set_from_c_are_left_alone(monkeypatch: Patch) -> None:
    """Python knows of such a handler, but can neither name it nor set it again."""
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == signal.SIGTERM else known(n))
    given: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, _: given.append(number))
    with stop_signals(), interruptible():
        pass
    assert set(given) == {signal.SIGINT}


def test_the_program_leaves_handlers_set_from_c_alone() -> None:
    code = (
        "import signal, sys; known = signal.getsignal; "
        "signal.getsignal = lambda n: None if n == signal.SIGTERM else known(n); "
        "sys.argv[1:] = ['--version']; import anchor_interp.__main__ as program; program.main(); "
        "assert known(signal.SIGTERM) is signal.SIG_DFL"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
