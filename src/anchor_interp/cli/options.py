"""Options that several commands share."""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import App, ArgumentCollection, Group, Parameter
from cyclopts.validators import MutuallyExclusive

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown

Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
"""A flag that takes no value and has no ``--no-`` form."""

Device = Annotated[str, Parameter(help="auto (a CUDA GPU if there is one), cpu, cuda, cuda:1, ...")]
_WORKERS = "Runs at a time on this machine; all usable cores if none, one on a GPU."
Workers = Annotated[int | None, Parameter(help=_WORKERS)]
_RUN = "The run folder, or a name of the zoo such as tiny/inferential/1."
RunName = Annotated[Path, Parameter(help=_RUN)]
_OUTPUT = Group("Output", sort_key=9)
_LEVEL = Annotated[Switch, Parameter(group=(_OUTPUT, Group(validator=MutuallyExclusive())))]


@dataclass(frozen=True)
class Output:
    """What a command prints."""

    json: Switch = False
    """Print one JSON object on standard output and nothing else there."""
    quiet: _LEVEL = False
    """Show warnings and errors only."""
    verbose: _LEVEL = False
    """Show details, and where an unexpected error came from."""

    @property
    def level(self) -> int:
        """The lowest level of the messages to show."""
        return logging.DEBUG if self.verbose else logging.WARNING if self.quiet else logging.INFO

    def show(self, facts: Any, *lines: str) -> None:
        """Print the facts as JSON if ``--json`` asks for it, else the lines."""
        print(json.dumps(facts) if self.json else "\n".join(lines))

    def show_pages(self, page: Path, numbers: Path, figures: int, *lines: str) -> None:
        """Print the numbers if ``--json`` asks for them, else the lines and what was written."""
        if self.json:
            print(numbers.read_text(encoding="utf-8"))
            return
        written = f"figures: {figures} files in {page.parent / 'figures'}"
        print(*lines, f"page: {page}", f"numbers: {numbers}", written, sep="\n")


Outputs = Annotated[Output, Parameter(name="*", group=_OUTPUT)]
PLAIN = Output()
"""The default of ``output`` in every command."""


def check_values(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse empty values, NUL characters and fractions for integers; read ``none`` as None."""
    for argument in arguments:
        hint = argument.resolved_hint
        kinds = get_args(next(iter(get_args(hint)), None)) or (hint,)  # of a list of tuples
        for place, token in enumerate(argument.tokens):
            name, value = token.keyword or argument.name, token.value
            if isinstance(token.implicit_value, bool):
                continue
            if type(None) in get_args(argument.hint) and value.lower() in ("none", "null"):
                argument.tokens[place] = token.evolve(implicit_value=None)
            elif not value or "\0" in value:
                raise ConfigError(f"{name} is {shown(value)}; expected a value")
            elif kinds[place % len(kinds)] is int and not re.fullmatch(r"[+-]?\d{1,40}", value):
                raise ConfigError(f"{name} is {shown(value)}; expected an integer")
