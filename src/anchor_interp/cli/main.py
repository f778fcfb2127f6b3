"""The command line. Each command is a typed function: its signature is its flags.

Data goes to standard output, progress and messages to standard error, one line each. Exit codes:
0 done, 1 runtime, 2 usage, 130 interrupted.
"""

import contextlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import cyclopts
from cyclopts import App, ArgumentCollection, CycloptsError

from anchor_interp import __version__
from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.schema import shown
from anchor_interp.cli.doctor import doctor
from anchor_interp.cli.options import PLAIN, check_values
from anchor_interp.tasks.registry import import_further_tasks

if TYPE_CHECKING:
    from rich.console import Console

_LEAST_WIDTH, _MOST_WIDTH = 20, 1000  # columns of help texts
_LOGGER = logging.getLogger("anchor_interp")
_LONGEST_WORD = 80  # longer words in a message about wrong usage are cut


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    with _messages():
        try:
            code = _run(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
        except KeyboardInterrupt:
            _LOGGER.error("interrupted; what was saved is kept")
            return 130
        except BrokenPipeError:
            _drop_unwritten_output()
            return 1
        except (AnchorInterpError, OSError) as error:
            _LOGGER.error(error)
            _drop_unwritten_output()
            return getattr(error, "exit_code", 1)
        except MemoryError as error:
            _LOGGER.error("out of memory: %s; ask for less at a time", error)
            return 1
        except Exception as error:
            _LOGGER.error("unexpected %s: %s; --verbose shows where", type(error).__name__, error)
            _LOGGER.debug("traceback", exc_info=True)
            return 1
    return code


def _drop_unwritten_output() -> None:
    """Drop what standard output cannot take, or Python fails again when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:  # the reader is gone, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_line(arguments: Sequence[str] = ("train",)) -> App:
    """The parser of all commands. ``train --preset`` in ``arguments`` sets the flags' defaults."""
    import_further_tasks()  # first: their presets are among the choices
    from anchor_interp.cli import inside, runs, sweeps
    from anchor_interp.cli.quickstart import quickstart

    app = App(
        "anchor-interp",
        help="Did this transformer memorize, learn a symmetric shortcut, or infer the rule?",
        version=__version__,
        version_format="plaintext",
        help_format="plaintext",
        console=_console(),
        config=check_values,
        default_parameter=cyclopts.Parameter(
            negative_iterable=(), json_dict=False, json_list=False
        ),
    )
    is_train = arguments and arguments[0] == "train"
    commands: list[Callable[..., int | None]] = [
        quickstart, runs.train_with_flags(arguments[1:]) if is_train else runs.train,
        runs.evaluate, runs.export, runs.report, inside.ask, inside.analyze, inside.verdict,
        sweeps.sweep, sweeps.status, sweeps.table, sweeps.diagram, sweeps.effect,
        runs.presets, doctor, completion,
    ]  # fmt: skip
    for place, command in enumerate(commands):
        app.command(command, sort_key=place)
    return app


def _console() -> "Console | None":
    """The console of help texts: rich never ends if there is no room for a column of help."""
    width = shutil.get_terminal_size().columns
    if width >= _LEAST_WIDTH and not os.environ.keys() & {"COLUMNS", "NO_COLOR"}:
        return None
    from rich.console import Console

    color_system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(width=min(max(width, _LEAST_WIDTH), _MOST_WIDTH), color_system=color_system)


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script that makes a shell complete commands, flags and values."""
    print(command_line().generate_completion(shell=shell))
    if shell == "zsh":  # so that the script can be sourced, not only installed as a file
        print("compdef _cyclopts_anchor-interp anchor-interp")


def _run(arguments: list[str]) -> int:
    """Do what the arguments ask for; returns the exit code."""
    try:
        app = command_line(arguments)
        if not arguments:
            commands = ", ".join(name for name in app if not name.startswith("-"))
            raise ConfigError(f"no command; expected one of {commands}; see anchor-interp --help")
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        is_command = not isinstance(error, cyclopts.UnknownCommandError)
        help_of = f"anchor-interp{f' {arguments[0]}' if is_command else ''} --help"
        raise ConfigError(f"{_explain(error)} See {help_of}.") from None
    output = bound.arguments.get("output", PLAIN)
    _LOGGER.setLevel(output.level)
    try:
        return command(*bound.args, **bound.kwargs) or 0
    except ConfigError as error:
        known = app[arguments[0]].assemble_argument_collection()
        raise ConfigError(_in_flags(str(error), known)) from error


def _explain(error: CycloptsError) -> str:
    """What is wrong with the arguments, in a sentence."""
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        return f"Unexpected argument {shown(error.unused_tokens[0])}."
    missing = error.argument
    is_absent = isinstance(error, cyclopts.MissingArgumentError) and error.keyword is None
    if is_absent and missing is not None and not missing.tokens:
        flag = f"{missing.name} " if missing.name.startswith("-") else ""
        about = missing.parameter.help or f"{flag}{missing.field_info.name.upper()}."
        return f"{missing.name} is missing. Expected: {about}"
    error.verbose = False
    return re.sub(rf"(\S{{{_LONGEST_WORD}}})\S+", r"\1...", str(error))


def _in_flags(message: str, arguments: ArgumentCollection) -> str:
    """A message about a configuration that calls fields as the command line does."""
    known = {a.field_info.name: a.name for a in arguments if a.name.startswith("--")}

    def spelled(match: re.Match[str]) -> str:
        return known.get(match[1], match[0])

    message = re.sub(r"^(?:[A-Za-z]\w*\.)?(\w+)(?= is )", spelled, message)
    return re.sub(r"(?<![\w./-])([a-z]+(?:_[a-z0-9]+)+)(?![\w./-])", spelled, message)


class _Messages(logging.Handler):
    """Prints messages as lines ``anchor-interp: ...`` on standard error and marks warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if record.levelno == logging.WARNING:
            text = f"warning: {text}"
        safe = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        with contextlib.suppress(OSError, ValueError):  # a full or closed stream stops no work
            print(f"anchor-interp: {safe}", file=sys.stderr, flush=True)
            if record.exc_info:
                print(logging.Formatter().formatException(record.exc_info), file=sys.stderr)


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Show what the package logs while a command runs."""
    handler, level = _Messages(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
