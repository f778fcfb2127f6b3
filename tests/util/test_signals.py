"""Signals: ours inside a block, afterwards those of the program."""

import os
import signal
import sys
from collections.abc import Callable

import pytest

import anchor_interp.__main__ as program
from anchor_interp._util.signals import interruptible, stop_signals


def both() -> None:
    with stop_signals(), interruptible():
        pass


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


@pytest.mark.parametrize("act", [both, program.main])
def test_handlers_set_from_c_are_left_alone(
    act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python knows of such a handler, but can neither name it nor set it again."""
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == signal.SIGTERM else known(n))
    given: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, _: given.append(number))
    monkeypatch.setattr(sys, "argv", ["anchor-interp", "--version"])
    act()
    assert set(given) == {signal.SIGINT}
