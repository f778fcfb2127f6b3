"""What a sweep trains: grids of configurations, written in Python or YAML.

A :class:`Sweep` is a list of :class:`Grid`. A grid starts at a preset or a configuration, changes
fields by name (as :func:`anchor_interp.runs.config.override` does) and multiplies axes::

    schema: 1
    grids:
      - preset: tiny                             # or config: a file such as RUN/config.json
        set: {steps: 3000}                       # the same for all runs
        axes: {gamma: [0.3, 0.5], weight_decay: [0.01, 0.1]}   # every combination
        zip: [{lr: [0.001, 0.002], steps: [4000, 2000]}]       # these move together
        seeds: 3                                 # 0, 1, 2; or a list

The anchors of a task change in the same way: ``anchors``, ``overrides`` and ``unseen`` are fields
(``examples/own_anchors.yaml``), and ``task`` is a whole task, by its name or its fields.

A run is its configuration: grids that ask for the same one share it, and a new value on an axis
does not change the names (:func:`anchor_interp.runs.config.run_id`) of the other runs. Values that
differ in the last digit are one value: 0.6000000000000001 is 0.6.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import yaml

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.files import read_bytes
from anchor_interp._util.rounding import decimal
from anchor_interp._util.schema import checked, checked_path, from_dict, shown, to_dict
from anchor_interp.runs.config import RunConfig, TrainConfig, override, read_config, run_id
from anchor_interp.runs.presets import preset
from anchor_interp.tasks.catalog import named_task
from anchor_interp.tasks.task import Task

SCHEMA = 1  # of a sweep file
MAX_BYTES = 1 << 24  # of a sweep file that is read or written
MAX_RUNS = 1_000_000  # more is a mistake in an axis
Axes = Mapping[str, tuple[Any, ...]]
"""Values by field name."""
_SPELLED = {
    "anchors": "[{token: 1, function: {add: 5}}, ...]",
    "overrides": "[{pair: [3, 4], function: {add: -6}}, ...]",
    "unseen": "[[3, 4], ...]",
    "schedule": "[[1000, 0.001, 1.0], ...]",
}
"""How a file gives the fields that are neither numbers nor names."""

_TAG = "tag:yaml.org,2002:"
_NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*)$",
    "float": r"[-+]?(([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$",
}
"""How a file writes numbers: as in YAML 1.1 and JSON, 1e-3 too. What YAML 1.1 counts in sixties
(1:5 is 65) or in eights (0100 is 64) is a text, as is a date."""


def _resolvers(before: Mapping[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    """What plain texts stand for, by their first characters."""
    ours = {_TAG + name for name in (*_NUMBERS, "timestamp")}
    kept = {c: [each for each in known if each[0] not in ours] for c, known in before.items()}
    numbers = [(_TAG + name, re.compile(form)) for name, form in _NUMBERS.items()]
    return kept | {c: [*kept.get(c, ()), *numbers] for c in "-+.0123456789"}


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, in C where PyYAML has it, which refuses a name that occurs twice."""

    yaml_implicit_resolvers: Any = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: Any) -> None:
        """Look at the names of an object once, before it takes those that it merges."""
        names = () if id(node) in self._checked else [name for name, _ in node.value]
        self._checked.add(id(node))
        texts: set[str] = set()
        for name in (n for n in names if n.tag != f"{_TAG}merge"):
            text = str(self.construct_object(name, deep=True))
            if text in texts:
                twice = f"the name {shown(text)} occurs twice in one object; keep one"
                raise yaml.constructor.ConstructorError(None, None, twice, name.start_mark)
            texts.add(text)
        super().flatten_mapping(node)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes so that :class:`Loader` reads the same."""

    yaml_implicit_resolvers: Any = Loader.yaml_implicit_resolvers


def written(plain: Any) -> str:
    """Plain values as a sweep file."""
    flow: dict[str, Any] = {"width": 100, "default_flow_style": None}
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, **flow)
    return text


@dataclass(frozen=True)
class Grid:
    """Configurations around one start."""

    start: RunConfig
    """What all runs share; seeds and axes change it."""
    axes: Axes = field(default_factory=dict)
    """Fields whose values are combined each with each; the last one runs fastest."""
    together: tuple[Axes, ...] = ()
    """Groups of fields that move together; the fields of a group have equally many values."""
    seeds: tuple[int, ...] = (0,)
    exact: bool = field(default=False, repr=False, compare=False)
    """Whether values differ that differ in the last digit, as in a folder of an earlier version."""

    def __post_init__(self) -> None:
        checked(self.start, RunConfig, "start")
        object.__setattr__(self, "axes", _frozen(self.axes, "axes", self.start, self.exact))
        frozen = (_frozen(g, "zip", self.start, self.exact, once=False) for g in self.together)
        groups = tuple(frozen)
        object.__setattr__(self, "together", groups)
        for group in groups:
            if len({len(values) for values in group.values()}) != 1:
                lengths = ", ".join(f"{name} has {len(values)}" for name, values in group.items())
                raise ConfigError(f"zip has fields of different lengths, or none ({lengths})")
        object.__setattr__(self, "seeds", checked(self.seeds, tuple[int, ...], "seeds"))
        checked(len(self.seeds), int, "the number of seeds", low=1)
        times = Counter((*self.axes, *itertools.chain(*groups), "seed"))
        if twice := sorted(name for name in times if times[name] > 1):
            raise ConfigError(f"{twice[0]} is on two axes; keep one of them")

    def _groups(self) -> list[Axes]:
        """All groups of fields that move together; an axis is a group of one."""
        return [*({name: values} for name, values in self.axes.items()), *self.together]

    def __len__(self) -> int:
        sizes = (len(next(iter(group.values()))) for group in self._groups())
        return math.prod(sizes) * len(self.seeds)

    def configs(self) -> Iterator[RunConfig]:
        """Every configuration, seeds running fastest; ConfigError if a field refuses a value."""
        groups = self._groups()
        names = list(itertools.chain(*groups))
        for chosen in itertools.product(*(zip(*group.values(), strict=True) for group in groups)):
            values = itertools.chain(*chosen)
            config = override(self.start, **dict(zip(names, values, strict=True)))
            for seed in self.seeds:
                yield config if seed == config.seed else override(config, seed=seed)


@dataclass(frozen=True)
class Sweep:
    """Several grids, in the order in which their runs start; a run they share is trained once."""

    grids: tuple[Grid, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "grids", checked(self.grids, tuple[Grid, ...], "grids"))
        checked(sum(map(len, self.grids)), int, "the number of runs", low=1, high=MAX_RUNS)

    def configs(self) -> dict[str, RunConfig]:
        """Every configuration once, by its :func:`run_id`, in order."""
        configs: dict[str, RunConfig] = {}
        for config in itertools.chain(*(grid.configs() for grid in self.grids)):
            configs.setdefault(run_id(config), config)
        return configs


SWEEPS: Mapping[str, Path] = MappingProxyType(
    {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
)
"""The files of the papers' phase diagrams by name, at three scales: over gamma and weight decay
(``tiny-decay``; nine of its runs: ``tiny-grid``), and over gamma and depth (``tiny-depth``)."""


def read_sweep(path: str | Path, *, exact: bool = False) -> Sweep:
    """Read a sweep from a YAML or JSON file; ConfigError names what is invalid in it.

    ``exact`` is that of :class:`Grid`.
    """
    path = checked_path(path, "the path of the sweep")
    try:
        text = read_bytes(path, limit=MAX_BYTES).decode("utf-8-sig")
        return parse_sweep(yaml.load(text, Loader), folder=path.parent, exact=exact)
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError, ConfigError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"cannot read the sweep {path}: {reason}") from error


def parse_sweep(data: Any, *, folder: Path = Path(), exact: bool = False) -> Sweep:
    """Make a sweep from the plain values of a file, or of a single grid; see :func:`read_sweep`.

    Paths of configurations are relative to ``folder``.
    """
    if not data or not isinstance(data, Mapping):
        raise ConfigError(f"the sweep is {shown(data)}; expected grids, or entries of one grid")
    if "grids" not in data:
        grid = {name: value for name, value in data.items() if name != "schema"}
        data = {"schema": data.get("schema", SCHEMA), "grids": [grid]}
    grids = from_dict(_SweepEntries, data).grids
    numbered = enumerate(grids, 1)
    return Sweep(tuple(_grid(entries, f"grid {n}", folder, exact) for n, entries in numbered))


def plain_sweep(sweep: Sweep) -> dict[str, Any]:
    """A sweep as plain values for :func:`parse_sweep`, every start written out in full."""
    grids = [{"config": grid.start, "axes": grid.axes, "zip": grid.together, "seeds": grid.seeds}
             for grid in sweep.grids]  # fmt: skip
    return {"schema": SCHEMA, "grids": to_dict(grids)}


@dataclass(frozen=True)
class _SweepEntries:
    """The entries of a sweep file."""

    grids: tuple[Any, ...]
    schema: int = SCHEMA


@dataclass(frozen=True)
class _GridEntries:
    """The entries of a grid in a sweep file."""

    preset: str | None = None
    config: Any = None
    """A path, or all fields of a configuration."""
    set: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    zip: tuple[dict[str, Any], ...] = ()
    seeds: int | tuple[int, ...] | None = None


def _grid(data: Any, where: str, folder: Path, exact: bool) -> Grid:
    entries = from_dict(_GridEntries, data, where)
    if entries.preset is not None and entries.config is not None:
        raise ConfigError(f"{where} has a preset and a config; use one of them")
    if isinstance(entries.config, Mapping):
        start = from_dict(RunConfig, entries.config)
    elif entries.config is not None:
        start = read_config(folder / checked_path(entries.config, f"{where}.config"))
    else:
        start = preset(entries.preset or "tiny")
    with raising(ConfigError, f"{where}: "):
        seeds = (start.seed,) if entries.seeds is None else entries.seeds
        if isinstance(seeds, int):
            seeds = tuple(range(checked(seeds, int, "seeds", low=1, high=MAX_RUNS)))
        changes = {name: _entry(name, decimal(v), start) for name, v in entries.set.items()}
        start = override(start, **changes)
        grid: Grid = Grid(start, entries.axes, entries.zip, seeds, exact)
    return grid


def _frozen(axes: Any, where: str, start: RunConfig, exact: bool, *, once: bool = True) -> Axes:
    """Axes that cannot be changed; with ``once``, without repeated values."""
    frozen = {}
    for name, values in checked(axes, Mapping, where).items():
        is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
        if not (is_list or getattr(values, "ndim", 0) == 1) or not len(values):
            expected = "expected a list of one or more values"
            raise ConfigError(f"{where}.{name} is {shown(values)}; {expected}")
        given = [_entry(name, value if exact else decimal(value), start) for value in values]
        frozen[name] = tuple(v for i, v in enumerate(given) if not once or v not in given[:i])
    return MappingProxyType(frozen)


def _entry(name: str, value: Any, start: RunConfig) -> Any:
    """A field's value: a whole task and the fields of :data:`_SPELLED` from plain values."""
    if name == "task" and isinstance(value, str):
        return named_task(value)
    if name == "task" and isinstance(value, Mapping):
        return from_dict(Task, value, "task")
    hints = {**get_type_hints(type(start.task)), **get_type_hints(TrainConfig)}
    if name not in _SPELLED or name not in hints or isinstance(value, tuple):
        return value
    how = f"; in a sweep file write {_SPELLED[name]}, and an axis as a list of these"
    with raising(ConfigError, "", how):
        own: Any = from_dict(hints[name], value, name)
    return own
