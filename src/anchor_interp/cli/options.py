"""Options that several commands share."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
"""A flag that takes no value and has no ``--no-`` form."""

Device = Annotated[str, Parameter(help="auto (a CUDA GPU if there is one), cpu, cuda, cuda:1, ...")]

Workers = Annotated[
    int | None,
    Parameter(help="Runs at a time on this machine; all usable cores if none, one on a GPU."),
]

RunName = Annotated[
    Path, Parameter(help="The run folder, or a name of the zoo such as tiny/inferential/1.")
]


@dataclass(frozen=True)
class Output:
    """What a command prints."""

    json: Switch = False
    """Print one JSON object on standard output and nothing else there."""
    quiet: Switch = False
    """Show warnings and errors only."""
    verbose: Switch = False
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


Outputs = Annotated[Output, Parameter(name="*", group=Group("Output", sort_key=9))]

PLAIN = Output()
"""The default of ``output`` in every command."""
