"""Every error that this package raises on purpose, one class per kind of cause.

A message names the value found, what was expected and what to do. It is one line, whatever names
and values stand in it. The command line prints it and ends with the class's exit code.
"""

_LONGEST = 10_000
"""Longer messages are cut; a path has up to 4,096 characters and may stand in one twice."""


class AnchorInterpError(Exception):
    """Base of all errors raised on purpose; ends the command line with exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """The message on one line: what a file's name or contents hide in it is written out."""
        escaped = (
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__()
        )
        text = "".join(escaped)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class ConfigError(AnchorInterpError, ValueError):
    """A value in a configuration, a call or a command line that cannot be used."""

    exit_code = 2


class HookError(ConfigError):
    """A hook that does not exist, did not fire, or returned something else than it was given."""


class StoreError(AnchorInterpError):
    """A run folder that cannot be read or written as asked."""


class UnknownSchemaError(StoreError):
    """A file whose layout belongs to another version of this package."""


class LockedError(StoreError):
    """A run folder that another live process is writing."""


class OutOfMemoryError(AnchorInterpError):
    """The machine's or the device's memory did not suffice."""


class DivergedError(AnchorInterpError):
    """Training met a loss or a gradient that is not a finite number."""


class InterruptedRunError(AnchorInterpError):
    """A signal asked the process to stop; what was checkpointed stays and is resumed from."""

    exit_code = 130
