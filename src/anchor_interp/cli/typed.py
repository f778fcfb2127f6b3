"""What is typed on a command line: ``NAME=VALUE,VALUE`` for axes and for conditions."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import is_there
from anchor_interp._util.schema import check_name, shown
from anchor_interp.runs.presets import RUNS
from anchor_interp.sweeps.spec import SWEEPS, Loader, Sweep, parse_sweep, read_sweep


def named_values(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read ``NAME=VALUE`` or ``NAME=VALUE,VALUE``; values as in a sweep file."""
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, _, listed = map(str.strip, text.partition("="))
        parts = [part.strip() for part in listed.split(",")]
        if not name or not all(parts):
            raise ConfigError(f"{shown(text)} is not NAME=VALUE,VALUE, such as gamma=0.3,0.5")
        if name in values:
            raise ConfigError(f"{name} is given twice; give it once, as {name}=VALUE,VALUE")
        values[name] = list(map(_value, parts))
    return values


def _value(text: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def typed_sweep(start: str, changes: Sequence[str], *, seeds: int | None = None) -> Sweep:
    """Make a sweep from a command line; ConfigError names what cannot be used.

    Args:
        start: a sweep file, the name of one that comes along, or of a preset.
        changes: for a preset: ``gamma=0.3,0.5`` is an axis, ``steps=2000`` applies to all runs.
        seeds: how many seeds a combination has, counted from 0; by default the preset's own.
    """
    file = SWEEPS.get(start)
    is_path = Path(start).suffix or os.sep in start or is_there(Path(start))
    if is_path and start not in RUNS and file is None:
        file = Path(start)
    if file is not None:
        if changes or seeds is not None:
            first = changes[0] if changes else "seeds"
            raise ConfigError(f"{first} changes a preset, and {start} is a file; edit {file}")
        return read_sweep(file)
    check_name(start, [*RUNS, *SWEEPS], "no preset or sweep")
    parts = (change.partition("=") for change in changes)
    values = named_values(
        name.replace("-", "_") + "=" * bool(eq) + rest for name, eq, rest in parts
    )
    values = {name: [None if v == "none" else v for v in some] for name, some in values.items()}
    own_seeds: Any = values.pop("seed", None)
    if own_seeds and seeds is not None:
        raise ConfigError("seed=... and seeds both name seeds; use one of them")
    if own_seeds is None:
        own_seeds = [RUNS[start].seed] if seeds is None else seeds
    fixed = {name: several[0] for name, several in values.items() if len(several) == 1}
    axes = {name: several for name, several in values.items() if len(several) > 1}
    return parse_sweep({"preset": start, "set": fixed, "axes": axes, "seeds": own_seeds})
