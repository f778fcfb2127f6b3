"""The errors that this package raises on purpose, one class per kind of cause.

A message names the value found, what was expected and what to do, on one line. The command line
prints it and exits with the class's exit code.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_LONGEST = 10_000  # a path has up to 4,096 characters and may stand in a message twice


class AnchorInterpError(Exception):
    """Base of all errors raised on purpose; exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """The message on one line: control characters of names and values are escaped."""
        escaped = (
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__()
        )
        text = "".join(escaped)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class ConfigError(AnchorInterpError, ValueError):
    """A value in a configuration, a call or a command line that cannot be used; exit code 2."""

    exit_code = 2


class HookError(ConfigError):
    """A hook that does not exist, did not fire, or returned another shape, dtype or device."""


class StoreError(AnchorInterpError):
    """A run folder or file that cannot be read or written as asked."""


class UnknownSchemaError(StoreError):
    """A file written by another version of this package."""


class LockedError(StoreError):
    """A run folder that another live process is writing."""


class OutOfMemoryError(AnchorInterpError):
    """The memory of the machine or the device is too small."""


class DivergedError(AnchorInterpError):
    """The loss or a gradient is not a finite number."""


class InterruptedRunError(AnchorInterpError):
    """A signal stopped the process; the last checkpoint stays and can be resumed; exit code 130."""

    exit_code = 130


@contextlib.contextmanager
def raising(
    kind: type[AnchorInterpError],
    before: str,
    after: str = "",
    *,
    of: type[Exception] | tuple[type[Exception], ...] = ConfigError,
) -> Iterator[None]:
    """Raise an error of these classes inside the block as one of ``kind``, with words around it."""
    try:
        yield
    except of as error:
        raise kind(f"{before}{error}{after}") from error


def error_of(act: Callable[..., object], *arguments: Any) -> AnchorInterpError | None:
    """Call a function and return its error; an interruption is raised."""
    try:
        act(*arguments)
    except InterruptedRunError:
        raise
    except AnchorInterpError as error:
        return error
    return None
