"""What a sweep trains: grids of configurations, written in Python, YAML or flags.

A :class:`Sweep` is a list of :class:`Grid`; a grid starts at a preset or configuration, changes
fields by their own names (as :func:`anchor_interp.config.override` does) and multiplies axes::

    schema: 1
    grids:
      - preset: tiny
        set: {steps: 3000}                       # the same for all
        axes: {gamma: [0.3, 0.5], weight_decay: [0.01, 0.1]}   # every combination
        zip: [{lr: [0.001, 0.002], steps: [4000, 2000]}]       # these move together
        seeds: 3                                 # 0, 1, 2; or a list

A run is its configuration: two grids that ask for the same one share it, and a value added to an
axis leaves the others' names (:func:`anchor_interp.config.run_id`) as they are.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from anchor_interp.config import MAX_CONFIG_BYTES, RunConfig, override, read_config, run_id
from anchor_interp.errors import ConfigError
from anchor_interp.files import read_bytes
from anchor_interp.presets import preset
from anchor_interp.schema import checked, checked_path, shown, suggestion
from anchor_interp.task import named_task

SCHEMA = 1
"""Schema number of a sweep's file."""

MAX_RUNS = 1_000_000
"""Most runs of a sweep; more is a slip of an axis."""

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
        groups = tuple(_frozen(group, "zip") for group in self.together)
        object.__setattr__(self, "together", groups)
        for group in groups:
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
        zipped = [len(next(iter(group.values()))) for group in self.together if group]
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
            if isinstance(changes.get("task"), str):
                changes["task"] = named_task(changes["task"])
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


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep from a YAML (or JSON) file.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or says something that is not allowed.
    """
    path = checked_path(path, "the path of the sweep")
    try:
        text = read_bytes(path, limit=MAX_CONFIG_BYTES).decode("utf-8-sig")
        return parse_sweep(yaml.safe_load(text), folder=path.parent)
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
    whole = (
        _known(data, ("schema", "grids"), "the sweep") if _has_grids(data) else {"grids": [data]}
    )
    if whole.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(
            f"schema is {shown(whole['schema'])}; this version of anchor-interp reads {SCHEMA}"
        )
    grids = whole["grids"]
    if not isinstance(grids, list):
        raise ConfigError(f"grids is {shown(grids)}; expected a list of grids")
    return Sweep(tuple(_grid(entry, f"grid {n}", folder) for n, entry in enumerate(grids, 1)))


def _has_grids(data: Any) -> bool:
    return isinstance(data, dict) and "grids" in data


def _grid(data: Any, where: str, folder: Path) -> Grid:
    entry = _known(data, ("preset", "config", "set", "axes", "zip", "seeds"), where)
    if "preset" in entry and "config" in entry:
        raise ConfigError(f"{where} has a preset and a config; use one of them")
    if "config" in entry:
        start = read_config(folder / checked_path(entry["config"], f"{where}.config"))
    else:
        start = preset(entry.get("preset", "tiny"))
    changes = dict(_mapping(entry.get("set", {}), f"{where}.set"))
    if isinstance(changes.get("task"), str):
        changes["task"] = named_task(changes["task"])
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


def _frozen(axes: Any, where: str) -> Axes:
    found = {}
    for name, values in _mapping(axes, where).items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ConfigError(
                f"{where}.{name} is {shown(values)}; expected a list of one or more values"
            )
        found[name] = tuple(dict.fromkeys(values))
    return MappingProxyType(found)


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
