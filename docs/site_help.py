"""The command line's own help, read back into commands and options."""

import contextlib
import io
import os
import re
from dataclasses import dataclass
from unittest import mock

from anchor_interp.cli import main as cli

WIDTH = 100
"""Columns asked for: more, and the help would put its boxes side by side."""


@dataclass(frozen=True)
class Option:
    """One flag or argument as ``--help`` lists it."""

    invocation: str
    """How it is written, such as ``--steps INT``."""
    text: str
    """What it does, default included."""


@dataclass(frozen=True)
class Group:
    """Options under one heading."""

    title: str
    """The heading."""
    text: str
    """What they have in common; may be empty."""
    options: tuple[Option, ...]
    """The options, in the order of the help."""


@dataclass(frozen=True)
class Command:
    """One command with everything that its help says."""

    name: str
    """The command's name; empty for the program itself."""
    usage: str
    """The usage line."""
    text: str
    """What it does."""
    groups: tuple[Group, ...]
    """Its options."""


def commands() -> tuple[Command, ...]:
    """The program and its commands, each read from its ``--help``."""
    program = read_command("")
    names = [
        option.invocation.removeprefix("• ")
        for group in program.groups
        for option in group.options
        if option.invocation.startswith("• ")
    ]
    return (program, *map(read_command, names))


def read_command(name: str) -> Command:
    """Read the help of one command."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    wide = {"COLUMNS": str(WIDTH), "NO_COLOR": ""}
    with (
        mock.patch.dict(os.environ, wide),
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        cli.main([*name.split(), "--help"])
    output.seek(0)
    text, *boxes = re.split(r"^╭─ ", output.read(), flags=re.MULTILINE)
    usage, _, about = text.partition("\n\n")
    usage = " ".join(usage.removeprefix("usage: ").split())
    return Command(name, usage, about.strip(), tuple(map(_group, boxes)))


def _group(box: str) -> Group:
    title, *lines = box.splitlines()
    lines = [re.sub(r"^│ |\s*│$", "", line) for line in lines if line.startswith("│")]
    rule = next((i for i, line in enumerate(lines) if re.fullmatch("─+", line)), None)
    about = [] if rule is None else lines[:rule]
    options: list[list[str]] = []
    for line in lines[len(about) + (rule is not None) :]:
        if re.match(r" {4,}", line) and options:
            options[-1].append(line.strip())
        else:
            options.append(re.split(r"\s{2,}", line.strip(), maxsplit=1))
    read = (Option(first, " ".join(text)) for first, *text in options if first != "(required)")
    return Group(re.sub(r" ─+╮$", "", title), " ".join(about), tuple(read))
