"""The program: ``anchor-interp`` or ``python -m anchor_interp``.

Loading takes a second, and until then Python would answer Ctrl-C with a traceback. So this module
handles signals before it loads anything.
"""

import io
import os
import signal
import sys
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: commands with something to save handle the signals themselves."""
    os.write(2, b"anchor-interp: interrupted; what was saved is kept\n")
    os._exit(130)


def main() -> int:
    """Run the command line; returns the exit code."""
    # OpenMP's idle threads spin by default: a busy neighbour then makes training 8 times slower.
    # OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    ours = [number for number in _SIGNALS if signal.getsignal(number) is not None]  # not set from C
    for number in ours:
        signal.signal(number, _leave)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if the caller closed it
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold any byte
    from anchor_interp.cli.main import main as command_line

    code = command_line()
    for number in ours:
        signal.signal(number, signal.SIG_IGN)  # nothing is left to interrupt
    return code


if __name__ == "__main__":
    raise SystemExit(main())
