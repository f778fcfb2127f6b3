"""The program: ``anchor-interp`` or ``python -m anchor_interp``.

Loading takes a second or two in which Python would answer Ctrl-C with a page of traceback, so this
module sees to signals before it loads anything.
"""

import io
import os
import signal
import sys
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: whoever has something to save handles the signals itself."""
    os.write(2, b"anchor-interp: interrupted; what was saved is kept\n")
    os._exit(130)


def main() -> int:
    """Run the command line; returns the exit code."""
    for number in _SIGNALS:
        signal.signal(number, _leave)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # closed by the caller: None
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold any byte
    from anchor_interp.cli.main import main as command_line

    code = command_line()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # it is done
    return code


if __name__ == "__main__":
    raise SystemExit(main())
