"""What a sweep trains: grids of configurations, written in Python, YAML or flags.

A :class:`Sweep` is a list of :class:`Grid`; a grid starts at a preset or configuration, changes
fields by their own names (as :func:`anchor_interp.runs.config.override` does) and multiplies axes::

    schema: 1
    grids:
      - preset: tiny                             # or config: a file such as RUN/config.json
        set: {steps: 3000}                       # the same for all
        axes: {gamma: [0.3, 0.5], weight_decay: [0.01, 0.1]}   # every combination
        zip: [{lr: [0.001, 0.002], steps: [4000, 2000]}]       # these move together
        seeds: 3                                 # 0, 1, 2; or a list

A run is its configuration: two grids that ask for the same one share it, and a value added to an
axis leaves the others' names (:func:`anchor_interp.runs.config.run_id`) as they are.
"""

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import is_there, read_bytes
from anchor_interp._util.schema import checked, checked_path, from_dict, shown, suggestion, to_dict
from anchor_interp.runs.config import RunConfig, override, read_config, run_id
from anchor_interp.runs.presets import RUNS, preset
from anchor_interp.tasks.anchor import AnchorTask, named_task

SCHEMA = 1
"""Schema number of a sweep's file."""


MAX_BYTES = 1 << 24
"""Largest sweep's file that is read or written."""


MAX_RUNS = 1_000_000
"""Most runs of a sweep; more is a slip of an axis."""


_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
"""The safe loader, in C where PyYAML has it, to which 1e-3 is a number, as it is to JSON."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


Axes = Mapping[str, tuple[Any, ...]]
"""Values by field name."""


@dataclass(frozen=True)
class Grid:
    """Configurations around one start."""

    start: RunConfig
    """What every run has in common; seeds and axes change it."""
    axes: Axes = field(default_factory=dict)
    """Fields whose values are combined each with each; the last one runs fastest."""
    together: tuple[Axes, ...] = ()
    """Groups of fields that move together: all of a group have as many values."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of every combination."""

    def __post_init__(self) -> None:
        checked(self.start, RunConfig, "start")
        object.__setattr__(self, "axes", _frozen(self.axes, "axes"))
        groups = tuple(_frozen(group, "zip", once=False) for group in self.together)
        object.__setattr__(self, "together", groups)
        for group in groups:
            if not group:
                raise ConfigError("zip has a group without fields; give it some or leave it out")
            if len({len(values) for values in group.values()}) > 1:
                lengths = ", ".join(f"{name} has {len(values)}" for name, values in group.items())
                raise ConfigError(f"zipped axes have different lengths ({lengths})")
        object.__setattr__(self, "seeds", checked(self.seeds, tuple[int, ...], "seeds"))
        named = [*self.axes, *itertools.chain(*groups), "seed"]
        if twice := {name for name in named if named.count(name) > 1}:
            raise ConfigError(f"{sorted(twice)[0]} is on two axes; give it to one of them")
        if not self.seeds:
            raise ConfigError("seeds is empty; give at least one")

    def __len__(self) -> int:
        lengths = [len(values) for values in self.axes.values()]
        zipped = [len(next(iter(group.values()))) for group in self.together]
        return math.prod([*lengths, *zipped, len(self.seeds)])

    def configs(self) -> Iterator[RunConfig]:
        """Every configuration, seeds running fastest.

        Raises:
            ConfigError: a field that there is not, or a value that it does not allow.
        """
        choices = [[{name: value} for value in values] for name, values in self.axes.items()]
        for group in self.together:
            rows = zip(*group.values(), strict=True)
            choices.append([dict(zip(group, row, strict=True)) for row in rows])
        for chosen in itertools.product(*choices):
            changes = {name: value for part in chosen for name, value in part.items()}
            config = override(self.start, **changes)
            for seed in self.seeds:
                yield config if seed == config.seed else override(config, seed=seed)


@dataclass(frozen=True)
class Sweep:
    """Several grids; what they share is trained once."""

    grids: tuple[Grid, ...]
    """The grids, in the order in which their runs are started."""

    def __post_init__(self) -> None:
        if not self.grids:
            raise ConfigError("a sweep needs at least one grid")
        if (n := sum(map(len, self.grids))) > MAX_RUNS:
            raise ConfigError(f"the sweep has {n:,} runs; expected at most {MAX_RUNS:,}")

    def configs(self) -> dict[str, RunConfig]:
        """Every configuration once, by its :func:`run_id`, in order."""
        found: dict[str, RunConfig] = {}
        for grid in self.grids:
            for config in grid.configs():
                found.setdefault(run_id(config), config)
        return found


SWEEPS: Mapping[str, Path] = MappingProxyType(
    {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
)
"""The files of the papers' phase diagrams, by name: at three scales, of gamma and weight decay
(``tiny-decay``) and of gamma and depth (``tiny-depth``)."""


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep from a YAML (or JSON) file.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or says something that is not allowed.
    """
    path = checked_path(path, "the path of the sweep")
    try:
        text = read_bytes(path, limit=MAX_BYTES).decode("utf-8-sig")
        return parse_sweep(yaml.load(text, _Loader), folder=path.parent)
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the sweep {path}: it is no UTF-8 text") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"cannot read the sweep {path}: {' '.join(str(error).split())}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_sweep(data: Any, *, folder: Path = Path()) -> Sweep:
    """A sweep from plain values, as YAML gives them.

    Args:
        data: the whole file, or one grid alone.
        folder: what the path of a configuration starts from.

    Raises:
        ConfigError: names the entry and what is expected.
    """
    if not data or not isinstance(data, Mapping):
        raise ConfigError(f"the sweep is {shown(data)}; expected grids, or the entries of one grid")
    if "grids" in data:
        whole = _known(data, ("schema", "grids"), "the sweep")
    else:
        alone = {name: value for name, value in data.items() if name != "schema"}
        whole = {"schema": data.get("schema", SCHEMA), "grids": [alone]}
    if whole.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(
            f"schema is {shown(whole['schema'])}; this version of anchor-interp reads {SCHEMA}"
        )
    grids = whole["grids"]
    if not isinstance(grids, list):
        raise ConfigError(f"grids is {shown(grids)}; expected a list of grids")
    return Sweep(tuple(_grid(entry, f"grid {n}", folder) for n, entry in enumerate(grids, 1)))


def typed_sweep(start: str, changes: Sequence[str], *, seeds: int | None = None) -> Sweep:
    """A sweep as a command line gives it: a file, or a preset with its axes.

    Args:
        start: a sweep's file, the name of one of :data:`SWEEPS`, or the name of a preset.
        changes: of a preset: ``gamma=0.3,0.5`` is an axis, ``steps=2000`` the same for all.
        seeds: how many seeds a combination has, counted from 0; the preset's own if None.

    Raises:
        ConfigError: names what cannot be used.
    """
    file = SWEEPS.get(start)  # before a file of that name, as a preset is
    if (
        file is None
        and start not in RUNS
        and (is_there(Path(start)) or Path(start).suffix or os.sep in start)
    ):
        file = Path(start)
    if file is not None:
        if changes or seeds is not None:
            instead = f"copy {file} and edit that" if start in SWEEPS else "edit the file"
            raise ConfigError(
                f"{changes[0] if changes else 'seeds'} changes a preset, and {start} is a file; "
                f"{instead}"
            )
        return read_sweep(file)
    if start not in RUNS:
        known = [*RUNS, *SWEEPS]
        raise ConfigError(
            f"no preset or sweep is called {shown(start)}{suggestion(start, known)}; known: "
            f"{', '.join(known)}"
        )
    grid: dict[str, Any] = {"preset": start, "set": {}, "axes": {}}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name or not text:
            raise ConfigError(f"{shown(change)} is no axis; expected one like gamma=0.3,0.5")
        name = name.replace("-", "_")
        if name in grid["set"] or name in grid["axes"]:
            raise ConfigError(f"{name} is given twice; keep one")
        parts = text.split(",")
        if not all(part.strip() for part in parts):
            raise ConfigError(f"{shown(change)} has an empty value; expected {name}=VALUE,VALUE")
        values = [_from_text(part) for part in parts]
        if len(values) == 1:
            grid["set"][name] = values[0]
        else:
            grid["axes"][name] = values
    given = grid["axes"].pop("seed", None) or grid["set"].pop("seed", None)
    if given is not None and seeds is not None:
        raise ConfigError(f"seed={shown(given)} and seeds={seeds} both name seeds; use one of them")
    if seeds is not None:
        grid["seeds"] = seeds
    elif given is not None:
        grid["seeds"] = given if isinstance(given, list) else [given]
    return parse_sweep(grid)


def _from_text(text: str) -> Any:
    """A value as YAML reads it."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text


def to_plain(sweep: Sweep) -> dict[str, Any]:
    """A sweep as plain values that :func:`parse_sweep` reads, every start written out in full."""
    grids = [
        {
            "config": to_dict(grid.start),
            "axes": to_dict(grid.axes),
            "zip": to_dict(grid.together),
            "seeds": list(grid.seeds),
        }
        for grid in sweep.grids
    ]
    return {"schema": SCHEMA, "grids": grids}


def _grid(data: Any, where: str, folder: Path) -> Grid:
    entry = _known(data, ("preset", "config", "set", "axes", "zip", "seeds"), where)
    if "preset" in entry and "config" in entry:
        raise ConfigError(f"{where} has a preset and a config; use one of them")
    if isinstance(entry.get("config"), Mapping):
        start = from_dict(RunConfig, entry["config"])
    elif "config" in entry:
        start = read_config(folder / checked_path(entry["config"], f"{where}.config"))
    else:
        start = preset(entry.get("preset", "tiny"))
    given = _mapping(entry.get("set", {}), f"{where}.set")
    changes = dict(given)
    if "task" in changes:
        changes["task"] = _task(changes["task"])
    groups = entry.get("zip", [])
    if not isinstance(groups, list):
        raise ConfigError(f"{where}.zip is {shown(groups)}; expected a list of groups of axes")
    try:
        return Grid(
            override(start, **changes),
            _mapping(entry.get("axes", {}), f"{where}.axes"),
            tuple(_mapping(group, f"{where}.zip") for group in groups),
            _seeds(entry.get("seeds", [start.seed])),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and not isinstance(given, bool):
        return tuple(range(checked(given, int, "seeds", low=1, high=MAX_RUNS)))
    seeds: tuple[int, ...] = checked(given, tuple[int, ...], "seeds")
    return seeds


def _frozen(axes: Any, where: str, *, once: bool = True) -> Axes:
    """Axes that cannot be changed, each value of an axis once if asked for."""
    found = {}
    for name, values in _mapping(axes, where).items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ConfigError(
                f"{where}.{name} is {shown(values)}; expected a list of one or more values"
            )
        try:
            given = [_task(value) if name == "task" else value for value in values]
            different = dict.fromkeys(given)
            found[name] = tuple(different if once else given)
        except TypeError as error:  # without a hash: a list or a mapping
            raise ConfigError(
                f"{where}.{name} is {shown(values)}; expected numbers, names or tasks"
            ) from error
    return MappingProxyType(found)


def _task(given: Any) -> Any:
    """A task from its name or its entries."""
    if isinstance(given, str):
        return named_task(given)
    return from_dict(AnchorTask, given) if isinstance(given, Mapping) else given


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
        raise ConfigError(f"{where} is {shown(data)}; expected names of fields with their values")
    return data


def _known(data: Any, names: Sequence[str], where: str) -> Mapping[str, Any]:
    entry = _mapping(data, where)
    for name in entry:
        if name not in names:
            expected = ", ".join(names)
            raise ConfigError(
                f"{where} has no entry {shown(name)}{suggestion(name, names)}; known: {expected}"
            )
    return entry
