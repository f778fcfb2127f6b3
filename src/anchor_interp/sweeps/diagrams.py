"""Phase diagrams from the rows of a sweep's table: what stands in each cell, and along each axis.

A diagram has two axes, any two settings that vary, such as the initialisation rate and the weight
decay. A *cell* is a pair of their values with all its runs, one a seed. From the same cells come
the papers' pictures: accuracy over gamma x depth with the zone of poor ID accuracy (NeurIPS paper,
figure 2), phases over gamma x weight decay (complexity-control paper, figure 3B), the stable rank
of W_Q(1) (figure 5C), and the accuracies along gamma (figure 3A). :class:`DecayPanel` puts the same
runs on the axis of their *effective decay*, the sum of learning rate x weight decay over all
steps, on which short and long runs are comparable.

Every run of the table has its place. One that is done counts with the measurements of its last
checkpoint, also if it is undertrained (its phase then says so: what it would have reached is
unknown). One that diverged, failed, or is not done has no measurement: it is a mark of its own,
never a zero. A mean says over how many runs it is; its interval is Student's
(:func:`anchor_interp.analysis.statistics.mean_interval`), cut to the range of the measure. Nothing is
chosen by its result unless ``best_over`` asks for it, as the NeurIPS paper does over learning
rates.

This module imports neither torch nor matplotlib; :mod:`anchor_interp.pages.diagram_figures` draws.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown, suggestion
from anchor_interp.analysis.statistics import mean_interval
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.runs.config import TrainConfig
from anchor_interp.runs.phase import PAPER, Phase
from anchor_interp.tasks.anchor import AnchorTask

Row = Mapping[str, Any]
"""One run of a sweep's table, by the names of its columns."""


Value = str | int | float | bool | None
"""What a setting may be."""


Status = Literal["done", "diverged", "failed", "running", "begun", "missing"]
"""How a run stands: ``begun`` was interrupted, ``missing`` was asked for and not started."""


State = Literal[Phase, "diverged", "failed", "unfinished", "missing"]
"""What a diagram shows of a run: the phase of one that is done, else how it stands."""


STATES: dict[State, str] = {
    "undertrained": "U",
    "memorizing": "M",
    "composite": "C",
    "symmetric": "S",
    "inferential": "I",
    "other": "O",
    "diverged": "\N{MULTIPLICATION SIGN}",
    "failed": "!",
    "unfinished": "\N{HORIZONTAL ELLIPSIS}",
    "missing": "\N{EN DASH}",
}
"""Every state with the letter or mark that tells it without colour."""


PHASE_INDEX: dict[Phase, int] = {"memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3}
"""The complexity-control paper's number of a phase (section IV); the others have none."""


MEASURES: dict[str, tuple[str, float | None]] = {
    "train_accuracy": ("training accuracy", 1),
    "id_accuracy": ("ID accuracy", 1),
    "ood_accuracy": ("OOD accuracy", 1),
    "symmetric_accuracy": ("symmetric answers", 1),
    "commutativity": ("commutativity", 1),
    "stable_rank": ("stable rank of W_Q(1)", None),
    "stable_rank_ratio": ("stable rank / at initialisation", None),
}
"""What is averaged over seeds: column, words, and largest value; none is negative.
``stable_rank_ratio`` is computed, the others are columns."""


BEST_OF = ("train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy")
"""The measures of which ``best_over`` takes the best."""


LABELS = {
    "gamma": "initialisation rate \N{GREEK SMALL LETTER GAMMA}",
    "n_layers": "layers",
    "n_heads": "heads",
    "lr": "learning rate",
    "d_model": "width",
    "total_decay": "effective decay",
    "n_sequences": "training sequences",
}
"""Words for settings whose names say too little; the others are their names."""


MAX_DIAGRAMS = 6
"""Most diagrams side by side where further settings vary."""


_PREFERRED = ("gamma", "weight_decay", "n_layers", "lr", "steps", "n_sequences")


_DECAY = ("weight_decay", "lr", "steps", "lr_start", "lr_end", "warmup")
"""What total_decay is made of."""


_IDLE = ("schema", "log_every", "eval_every", "checkpoint_every")
"""Fields that change no result."""


_SETTINGS = tuple(
    dict.fromkeys(
        field.name
        for config in (AnchorTask, ModelConfig, InitConfig, TrainConfig)
        for field in dataclasses.fields(config)
        if field.name not in _IDLE
    )
)


@dataclass(frozen=True)
class RunMark:
    """One run in its cell."""

    run_id: str
    """The run's identity."""
    slot: int
    """Its place in the cell: runs of one seed stand at the same place in every cell."""
    seed: int
    """Its seed."""
    status: Status
    """How it stands."""
    phase: Phase | None
    """Its phase; None if it is not done."""
    state: State
    """Its phase, or how it stands if it is not done."""
    censored: bool
    """Whether what it would have reached is unknown: not done, diverged or undertrained."""
    reason: str
    """Why it has its phase, or what went wrong."""
    total_decay: float | None
    """Learning rate x weight decay, summed over its steps."""
    seconds: float | None
    """How long it took."""
    values: dict[str, float | None]
    """Its :data:`MEASURES`; None for what was not measured."""
    poor_id: bool
    """ID accuracy below 0.9."""
    poor_commutativity: bool
    """Commutativity below 0.7, on a task without a symmetric target: on one that has it a model
    that infers the rule does not commute either."""


@dataclass(frozen=True)
class Measured:
    """One measure over the runs of a cell."""

    values: dict[int, float | None]
    """By slot, or with ``best_over`` by seed; None for a run without a measurement."""
    n: int
    """How many have one."""
    mean: float | None
    """Their mean; None without any."""
    low: float | None
    """Lower end of Student's 95 % interval; None with fewer than two values."""
    high: float | None
    """Upper end."""


@dataclass(frozen=True)
class Cell:
    """All runs at one value of each axis."""

    number: int
    """Its number among the cells of all diagrams."""
    x: Value
    """Value of the horizontal axis."""
    y: Value
    """Value of the vertical axis; None without one."""
    runs: tuple[RunMark, ...]
    """Its runs by slot; also those that have nothing to show."""
    states: dict[State, int]
    """How many runs are in each state that occurs."""
    phase: Phase | None
    """The phase of more runs than any other; None if two have as many, or no run is done."""
    measures: dict[str, Measured]
    """The :data:`MEASURES` over its runs."""
    poor_id: bool
    """Mean ID accuracy below 0.9: the shaded zone."""
    poor_commutativity: bool
    """Mean commutativity below 0.7; see :attr:`RunMark.poor_commutativity`."""


@dataclass(frozen=True)
class Axis:
    """A setting that varies."""

    name: str
    """Its column."""
    label: str
    """Its name in words."""
    values: tuple[Value, ...]
    """Its values in order."""


@dataclass(frozen=True)
class Band:
    """Neighbouring columns of one row of cells that are in one state, or one that is mixed."""

    first: int
    """First column."""
    last: int
    """Last column."""
    states: dict[State, int]
    """Runs in each state that occurs; one state if there is more than one column."""


@dataclass(frozen=True)
class Diagram:
    """The cells over two axes, all other settings equal or following the axes."""

    facet: dict[str, Value]
    """What tells it from the other diagrams; empty if there is one."""
    x: Axis
    """Horizontal axis."""
    y: Axis | None
    """Vertical axis; None if one setting varies."""
    slots: int
    """Places in a cell."""
    seeds: tuple[int, ...]
    """The seeds in order."""
    cells: tuple[Cell, ...]
    """The cells that the sweep asks for, row by row, both axes rising."""

    def row(self, y: Value) -> list[Cell]:
        """The cells of one value of the vertical axis."""
        return [cell for cell in self.cells if cell.y == y]

    def bands(self, y: Value) -> list[Band]:
        """The states along the horizontal axis; columns that the sweep does not ask for part it."""
        found: list[Band] = []
        for cell in self.row(y):
            column = self.x.values.index(cell.x)
            last = found[-1] if found else None
            if last and last.last == column - 1 and len({*last.states, *cell.states}) == 1:
                states = dict(Counter(last.states) + Counter(cell.states))
                found[-1] = Band(last.first, column, states)
            else:
                found.append(Band(column, column, cell.states))
        return found


@dataclass(frozen=True)
class DecayPoint:
    """The runs of one cell that have one effective decay."""

    cell: int
    """The cell's number."""
    total_decay: float
    """Their effective decay."""
    runs: tuple[RunMark, ...]
    """The runs."""
    id: Measured
    """ID accuracy, every run by itself, also with ``best_over``."""
    ood: Measured
    """OOD accuracy, in the same way."""


@dataclass(frozen=True)
class DecaySeries:
    """Points that differ in weight decay alone."""

    settings: dict[str, Value]
    """Learning rate, steps and their kind, as far as they vary."""
    points: tuple[DecayPoint, ...]
    """Points, effective decay rising."""


@dataclass(frozen=True)
class DecayPanel:
    """Runs that differ in nothing but what makes up their effective decay, and seeds."""

    settings: dict[str, Value]
    """The settings of the panel that vary between panels."""
    series: tuple[DecaySeries, ...]
    """One for each learning rate and length."""


@dataclass(frozen=True)
class Diagrams:
    """All diagrams of a sweep's table."""

    diagrams: tuple[Diagram, ...]
    """One for each combination of the further settings that vary; else one."""
    decay: tuple[DecayPanel, ...]
    """The same runs over effective decay; empty if it does not vary."""
    where: dict[str, tuple[Value, ...]]
    """What rows were kept: column and values."""
    best_over: dict[str, int]
    """The settings over which the best was taken, with their numbers of values; empty if every
    run counts."""
    follows: dict[str, tuple[Value, ...]]
    """Settings that change with the axes: a cell has one value, but cells have several."""
    left_out: int
    """Rows that ``where`` left out."""
    schema: int = 1
    """Schema number."""

    @property
    def cells(self) -> list[Cell]:
        """The cells of all diagrams by number."""
        return [cell for diagram in self.diagrams for cell in diagram.cells]

    @property
    def runs(self) -> list[RunMark]:
        """The runs of all cells."""
        return [run for cell in self.cells for run in cell.runs]


def phase_diagrams(
    rows: Sequence[Row],
    *,
    x: str | None = None,
    y: str | None = None,
    where: Mapping[str, Any] | None = None,
    best_over: str | Sequence[str] = (),
) -> Diagrams:
    """The diagrams of a sweep's table.

    Args:
        rows: one run each, as :mod:`anchor_interp.sweeps.table` has them.
        x: the setting of the horizontal axis; by default gamma if it varies, else another that
            does.
        y: the setting of the vertical axis; by default weight decay, layers, learning rate, or
            another that varies.
        where: the rows to keep: a value, or a list of values, by column (see :func:`read_where`).
        best_over: settings such as ``lr``: of each seed the best accuracy over their values
            counts, each measure by itself (NeurIPS paper, figure 2). By default every run counts.

    Raises:
        ConfigError: no row, none that is done, a column that there is not, no setting that varies,
            or so many that vary besides the axes that there were more than
            :data:`MAX_DIAGRAMS` diagrams; or a row that no sweep writes.
    """
    rows = [checked(row, Mapping, f"rows[{i}]") for i, row in enumerate(rows)]
    if not rows:
        raise ConfigError("the table has no row; expected at least one run")
    kept, chosen = _kept(rows, where or {})
    varying = _varying(kept)
    best = _best_over((best_over,) if isinstance(best_over, str) else tuple(best_over), kept)
    x, y = _axes(kept, x, y, [name for name in varying if name not in best])
    if not any(row.get("status") == "done" for row in kept):
        states = Counter(str(row.get("status")) for row in kept)
        found = ", ".join(f"{n} {status}" for status, n in states.items())
        raise ConfigError(f"no run is done ({found}); a diagram needs at least one: run the sweep")
    axes = [name for name in (x, y) if name]
    inside = _varying_inside(kept, axes, [name for name in varying if name not in (*axes, *best)])
    grouped = _group(kept, inside)
    if len(grouped) > MAX_DIAGRAMS:
        raise ConfigError(_too_many(kept, inside, len(grouped), axes))
    slots = _slots(kept, [*axes, *inside], best)
    made: list[Diagram] = []
    placed: list[tuple[Row, int, RunMark]] = []
    for facet in _in_order(grouped):
        start = sum(len(diagram.cells) for diagram in made)
        cells = _cells(grouped[facet], x, y, slots, bool(best), start, placed)
        made.append(
            Diagram(
                facet=dict(zip(inside, facet, strict=True)),
                x=_axis(grouped[facet], x),
                y=_axis(grouped[facet], y) if y else None,
                slots=1 + max(slots.values()),
                seeds=tuple(sorted({_seed(row) for row in kept})),
                cells=cells,
            )
        )
    following = [name for name in varying if name not in (*axes, *best, *inside)]
    return Diagrams(
        diagrams=tuple(made),
        decay=_decay(placed, varying),
        where=chosen,
        best_over={name: _choices(kept, name, [*axes, *inside]) for name in best},
        follows={name: _values(kept, name) for name in following},
        left_out=len(rows) - len(kept),
    )


def read_where(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Conditions such as ``lr=0.001`` or ``gamma=0.5,0.6`` as :func:`phase_diagrams` takes them.

    A value is a number, ``true``, ``false``, ``null``, or a text.

    Raises:
        ConfigError: a condition without a column or a value, or a column twice.
    """
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not (name and equals and values.strip()):
            raise ConfigError(
                f"the condition is {shown(text)}; expected COLUMN=VALUE, such as lr=0.001, or "
                "COLUMN=VALUE,VALUE"
            )
        if name in found:
            raise ConfigError(f"two conditions on {name}; give one, as {name}=VALUE,VALUE")
        found[name] = tuple(_scalar(part.strip()) for part in values.split(","))
    return found


def label(name: str) -> str:
    """A setting in words."""
    return LABELS.get(name, name.replace("_", " "))


def word(value: Value) -> str:
    """A value of a setting as figures and tables show it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(settings: Mapping[str, Value]) -> str:
    """Settings with their values, such as ``learning rate 0.001, steps 4000``."""
    return ", ".join(f"{label(name)} {word(value)}" for name, value in settings.items())


def summary(found: Diagrams) -> Iterator[dict[str, Value]]:
    """One row a cell: its place, how many runs are in each state, and the means of its measures."""
    states = [state for state in STATES if any(state in cell.states for cell in found.cells)]
    for diagram in found.diagrams:
        for cell in diagram.cells:
            row: dict[str, Value] = dict(diagram.facet) | {diagram.x.name: cell.x}
            if diagram.y:
                row[diagram.y.name] = cell.y
            row |= {"phase": cell.phase, "runs": len(cell.runs)}
            row |= {state: cell.states.get(state, 0) for state in states}
            for name, measured in cell.measures.items():
                row |= {f"{name}_n": measured.n, name: measured.mean}
                row |= {f"{name}_low": measured.low, f"{name}_high": measured.high}
            yield row | {"poor_id": cell.poor_id, "poor_commutativity": cell.poor_commutativity}


def _scalar(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, list | dict) or not _finite(value) else value


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _kept(
    rows: Sequence[Row], where: Mapping[str, Any]
) -> tuple[list[Row], dict[str, tuple[Value, ...]]]:
    """The rows that all conditions allow, and the conditions."""
    chosen: dict[str, tuple[Value, ...]] = {}
    kept = list(rows)
    for name, wanted in where.items():
        values = tuple(wanted) if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)
        _check_column(rows, name, "where", sorted({str(column) for row in rows for column in row}))
        before, kept = kept, [row for row in kept if any(row.get(name) == v for v in values)]
        if not kept:
            there = ", ".join(map(word, _values(before, name)[:10]))
            raise ConfigError(
                f"no run has {name} {' or '.join(map(word, values))}; expected one of {there}"
            )
        chosen[name] = values
    return kept, chosen


def _check_column(rows: Sequence[Row], name: Any, what: str, known: Sequence[str]) -> None:
    if name not in known:
        name = checked(name, str, what)
        if any(name in row for row in rows):
            raise ConfigError(
                f"{what} is {shown(name)}, which is no setting; expected one of {', '.join(known)}"
            )
        raise ConfigError(
            f"{what} is {shown(name)}, and the table has no such column"
            f"{suggestion(name, known)}; expected one of {', '.join(known)}"
        )


def _settings(rows: Sequence[Row]) -> list[str]:
    """The columns that a run was told, as far as they hold plain values."""
    there = {name for row in rows for name in row}
    return [
        name
        for name in ("task", *_SETTINGS)
        if name in there and all(isinstance(row.get(name), Value) for row in rows)
    ]


def _values(rows: Sequence[Row], name: str) -> tuple[Value, ...]:
    """The values of a column in order."""
    return tuple(sorted({_plain(row.get(name)) for row in rows}, key=_rank))


def _plain(value: Value) -> Value:
    """A whole number as an integer, so that 1 and 1.0 are one value with one name."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _rank(value: Value) -> tuple[int, float, str]:
    """Order among values of any kind: none, numbers, texts."""
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")


def _varying(rows: Sequence[Row]) -> list[str]:
    return [name for name in _settings(rows) if len(_values(rows, name)) > 1]


def _axes(
    rows: Sequence[Row], x: str | None, y: str | None, varying: list[str]
) -> tuple[str, str | None]:
    known = [*_settings(rows), *(["total_decay"] if any("total_decay" in r for r in rows) else [])]
    for name, what in ((x, "x"), (y, "y")):
        if name is not None:
            _check_column(rows, name, what, known)
    if x is not None and x == y:
        raise ConfigError(f"x and y are both {shown(x)}; expected two settings")
    order = [name for name in dict.fromkeys((*_PREFERRED, *varying)) if name in varying]
    free = [name for name in order if name not in (x, y)]
    if x is None:
        if not free and y is None:
            raise ConfigError(
                "no setting varies between the runs, so a diagram has no axis; name one with x, or "
                "add values to the sweep"
            )
        x, y = (free.pop(0), y) if free else (y, None)
    assert x is not None, "it is given, the first that varies, or y"
    if y is None:  # one that moves together with x would leave all cells but a diagonal empty
        y = next((name for name in free if not _follows(rows, name, [x])), None)
    return x, y


def _best_over(names: tuple[str, ...], rows: Sequence[Row]) -> tuple[str, ...]:
    for name in names:
        _check_column(rows, name, "best_over", _settings(rows))
    return names


def _choices(rows: Sequence[Row], name: str, others: Sequence[str]) -> int:
    """Of how many values the best counts, in the place and seed that has the most.

    Raises:
        ConfigError: of one value only, or of an axis.
    """
    groups = _group(rows, [*others, "seed"]).values() if name not in others else ()
    most = max((len(_values(group, name)) for group in groups), default=1)
    if most == 1:
        raise ConfigError(
            f"best_over is {shown(name)}, of which every seed of a cell has one value; expected a "
            "setting that varies within the cells, and is no axis"
        )
    return most


def _follows(rows: Sequence[Row], name: str, others: Sequence[str]) -> bool:
    """Whether a setting has one value wherever the others have theirs."""
    groups = _group(rows, others)
    return all(len(_values(group, name)) == 1 for group in groups.values())


def _varying_inside(rows: Sequence[Row], axes: list[str], others: list[str]) -> list[str]:
    """The further settings that vary within a cell, without those that follow another of them."""
    found: list[str] = []
    inside = [name for name in others if not _follows(rows, name, axes)]
    for name in sorted(inside, key=lambda name: name not in _PREFERRED):
        if not _follows(rows, name, [*axes, *found]):
            found.append(name)
    return found


def _group(rows: Sequence[Row], names: Sequence[str]) -> dict[tuple[Value, ...], list[Row]]:
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_plain(row.get(name)) for name in names), []).append(row)
    return groups


def _too_many(rows: Sequence[Row], names: list[str], n: int, axes: list[str]) -> str:
    described = [
        f"{name} ({', '.join(map(word, values[:5]))}{', ...' if len(values) > 5 else ''})"
        for name in names
        for values in [_values(rows, name)]
    ]
    name = names[0]
    return (
        f"besides {' and '.join(axes)} these settings vary: {', '.join(described)}, which makes "
        f"{n} diagrams; expected at most {MAX_DIAGRAMS}: keep some runs with where, such as "
        f"{name}={word(_values(rows, name)[0])}, make {name} an axis with x or y, or take the best "
        f"over it with best_over={name}"
    )


def _axis(rows: Sequence[Row], name: str) -> Axis:
    return Axis(name, label(name), _values(rows, name))


Slots = dict[int, int]


def _slots(rows: Sequence[Row], place: Sequence[str], best: tuple[str, ...]) -> Slots:
    """Every row's place in its cell, by ``id``: the same seed, and value of ``best``, everywhere.

    Rows that differ in nothing that counts here stand beside each other.
    """
    keys: dict[int, tuple[Any, ...]] = {}
    times: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = (_seed(row), *(_rank(_plain(row.get(name))) for name in best))
        cell = (*(_plain(row.get(name)) for name in place), key)
        keys[id(row)] = (*key, times[cell])
        times[cell] += 1
    order = {key: slot for slot, key in enumerate(sorted(set(keys.values())))}
    return {row: order[key] for row, key in keys.items()}


def _cells(
    rows: Sequence[Row],
    x: str,
    y: str | None,
    slots: Slots,
    best: bool,
    start: int,
    placed: list[tuple[Row, int, RunMark]],
) -> tuple[Cell, ...]:
    groups = _group(rows, [name for name in (y, x) if name])
    cells: list[Cell] = []
    for key in _in_order(groups):
        number, marks = start + len(cells), []
        for row in sorted(groups[key], key=lambda row: slots[id(row)]):
            marks.append(_mark(row, slots[id(row)]))
            placed.append((row, number, marks[-1]))
        cells.append(_cell(number, key[-1], key[0] if y else None, tuple(marks), best))
    return tuple(cells)


def _seed(row: Row) -> int:
    return int(_number(row, "seed") or 0)


def _mark(row: Row, slot: int) -> RunMark:
    run_id = str(row.get("run_id"))
    status: Status = checked(row.get("status"), Status, f"status of run {run_id}")
    phase: Phase | None = None
    if status == "done":
        phase = checked(row.get("phase"), Phase, f"phase of run {run_id}")
    waiting: State = "unfinished" if status in ("running", "begun") else "missing"
    state: State = phase or (status if status in ("diverged", "failed") else waiting)
    values = dict.fromkeys(MEASURES) if status != "done" else _measures(row)
    seen, commuting = values["id_accuracy"], values["commutativity"]
    return RunMark(
        run_id=run_id,
        slot=slot,
        seed=_seed(row),
        status=status,
        phase=phase,
        state=state,
        censored=status != "done" or state == "undertrained",
        reason=str((row.get("reason") if status == "done" else row.get("error")) or ""),
        total_decay=_number(row, "total_decay"),
        seconds=_number(row, "seconds"),
        values=values,
        poor_id=seen is not None and seen < PAPER.id,
        poor_commutativity=commuting is not None
        and commuting < PAPER.commutativity
        and values["symmetric_accuracy"] is None,
    )


def _measures(row: Row) -> dict[str, float | None]:
    found = {name: _number(row, name) for name in MEASURES}
    now, before = found["stable_rank"], _number(row, "stable_rank_at_init")
    return found | {"stable_rank_ratio": now / before if now is not None and before else None}


def _number(row: Row, name: str) -> float | None:
    """A number of a row; None for one that is not there, as tables have it in several ways."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        raise ConfigError(f"run {row.get('run_id')} has {name} {shown(value)}; expected a number")
    return float(value) if math.isfinite(value) else None


def _cell(number: int, x: Value, y: Value, runs: tuple[RunMark, ...], best: bool) -> Cell:
    measures = {
        name: _measured(runs, name, _best if best and name in BEST_OF else _every)
        for name in MEASURES
    }
    phases = Counter(run.phase for run in runs if run.phase).most_common(2)
    ties = len(phases) == 2 and phases[0][1] == phases[1][1]
    seen, commuting = measures["id_accuracy"].mean, measures["commutativity"].mean
    states = Counter(run.state for run in runs)
    return Cell(
        number=number,
        x=x,
        y=y,
        runs=runs,
        states={state: states[state] for state in STATES if states[state]},
        phase=phases[0][0] if phases and not ties else None,
        measures=measures,
        poor_id=seen is not None and seen < PAPER.id,
        poor_commutativity=commuting is not None
        and commuting < PAPER.commutativity
        and not measures["symmetric_accuracy"].n,
    )


def _every(runs: Sequence[RunMark], name: str) -> dict[int, float | None]:
    return {run.slot: run.values[name] for run in runs}


def _best(runs: Sequence[RunMark], name: str) -> dict[int, float | None]:
    """The best value of each seed; None for a seed without a measured run."""
    found: dict[int, float | None] = {}
    for run in runs:
        value = run.values[name]
        before = found.setdefault(run.seed, None)
        found[run.seed] = max((v for v in (before, value) if v is not None), default=None)
    return found


def _measured(
    runs: Sequence[RunMark],
    name: str,
    choose: Callable[[Sequence[RunMark], str], dict[int, float | None]],
) -> Measured:
    values = choose(runs, name)
    there = [value for value in values.values() if value is not None]
    if len(there) < 2:
        return Measured(values, len(there), there[0] if there else None, None, None)
    low, high = mean_interval(there)
    largest = MEASURES[name][1]
    high = high if largest is None else min(high, largest)
    return Measured(values, len(there), math.fsum(there) / len(there), max(low, 0.0), high)


def _decay(
    placed: Sequence[tuple[Row, int, RunMark]], varying: Sequence[str]
) -> tuple[DecayPanel, ...]:
    """Panels of everything that does not make up the effective decay, series of what does."""
    known = [entry for entry in placed if entry[2].total_decay is not None]
    if len({entry[2].total_decay for entry in known}) < 2:
        return ()
    rows = [row for row, _, _ in known]
    outside = [name for name in varying if name not in _DECAY]
    outside = [name for i, name in enumerate(outside) if not _follows(rows, name, [*outside[:i]])]
    own = [name for name in varying if name in _DECAY and name != "weight_decay"]
    panels: dict[tuple[Value, ...], dict[tuple[Value, ...], dict[Any, list[RunMark]]]] = {}
    for row, number, mark in known:
        panel = panels.setdefault(tuple(_plain(row.get(name)) for name in outside), {})
        series = panel.setdefault(tuple(_plain(row.get(name)) for name in own), {})
        series.setdefault((mark.total_decay, number), []).append(mark)
    return tuple(
        DecayPanel(
            dict(zip(outside, key, strict=True)),
            tuple(
                DecaySeries(dict(zip(own, inner, strict=True)), tuple(_points(panels[key][inner])))
                for inner in _in_order(panels[key])
            ),
        )
        for key in _in_order(panels)
    )


def _in_order(keys: Mapping[tuple[Value, ...], Any]) -> list[tuple[Value, ...]]:
    return sorted(keys, key=lambda key: [_rank(value) for value in key])


def _points(groups: Mapping[tuple[float, int], list[RunMark]]) -> Iterator[DecayPoint]:
    for (total, number), marks in sorted(groups.items(), key=lambda item: item[0]):
        accuracies = (_measured(marks, name, _every) for name in ("id_accuracy", "ood_accuracy"))
        yield DecayPoint(number, total, tuple(marks), *accuracies)
