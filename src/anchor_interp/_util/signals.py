"""SIGINT and SIGTERM (Ctrl-C): how training is asked to stop, and how a second signal stops it."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from anchor_interp._util.errors import InterruptedRunError

PATIENCE_SECONDS = 2.0
"""A second signal after this many seconds stops the process at once."""


class StopRequest:
    """Tells a loop, which asks between two steps, whether SIGINT or SIGTERM has arrived."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._at_once: str | None = None

    def __call__(self) -> bool:
        """Whether a signal has arrived."""
        return self._first is not None

    @contextlib.contextmanager
    def at_once(self, message: str) -> Iterator[None]:
        """Raise InterruptedRunError at once on a signal inside this block, which must not write."""
        self._at_once = message
        try:
            if self():
                raise InterruptedRunError(message)
            yield
        finally:
            self._at_once = None

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._first is None:
            self._first = time.monotonic()
            if self._at_once is not None:
                raise InterruptedRunError(self._at_once)
        # One Ctrl-C can arrive twice, from the terminal and from the parent. A later second one
        # means that the user does not want to wait for the loop.
        elif time.monotonic() - self._first > PATIENCE_SECONDS:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Collect SIGINT and SIGTERM in a :class:`StopRequest` inside the block.

    A second signal more than two seconds later raises KeyboardInterrupt. Outside the main thread,
    where Python cannot handle signals, the request never reports one. A signal whose handler was
    set from C keeps it, as Python could not set it back.
    """
    request = StopRequest()
    with _handling(request.note):
        yield request


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt inside the block (main thread only)."""
    return _handling(signal.default_int_handler)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    ours = {number: earlier for number, earlier in before.items() if earlier is not None}
    try:
        with contextlib.suppress(ValueError):  # raised outside the main thread
            for number in ours:
                signal.signal(number, handler)
        yield
    finally:
        with contextlib.suppress(ValueError):
            for number, earlier in ours.items():
                signal.signal(number, earlier)
