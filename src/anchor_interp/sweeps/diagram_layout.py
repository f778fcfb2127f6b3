"""How the settings that vary between runs become the axes and facets of phase diagrams."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown
from anchor_interp.sweeps.cells import seed_of
from anchor_interp.sweeps.columns import (
    PREFERRED,
    TableRow,
    check_column,
    follows,
    group,
    is_missing,
    settings_of,
    sort_key,
    values_of,
    word,
)

MAX_DIAGRAMS = 6  # side by side


@dataclass(frozen=True)
class Layout:
    """What each setting that varies is for."""

    x: str
    y: str | None
    """None if only one setting varies."""
    best: tuple[str, ...]
    """Each seed counts with its best accuracy over their values."""
    facets: tuple[str, ...]
    """Every combination of their values has a diagram of its own."""
    following: tuple[str, ...]
    """The other settings fix their values."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The horizontal axis and, if there is one, the vertical."""
        return (self.x, self.y) if self.y else (self.x,)

    def n_choices(self, rows: Sequence[TableRow]) -> dict[str, int]:
        """From how many values of each ``best`` setting the best is taken, at most."""
        place = [*self.axes, *self.facets, "seed"]
        counts = {
            name: max(len(values_of(same, name)) for _, same in group(rows, place))
            for name in self.best
        }
        if fixed := [name for name, most in counts.items() if most == 1]:
            expected = "expected a setting that varies within the cells and is not an axis"
            raise ConfigError(f"best_over is {shown(fixed[0])}; {expected}")
        return counts


def choose_layout(
    rows: Sequence[TableRow], x: str | None, y: str | None, best: tuple[str, ...]
) -> Layout:
    """The layout of these rows with the axes that are given; see :func:`phase_diagrams`."""
    columns = settings_of(rows)
    for name in best:
        check_column(name, "best_over", columns)
        if any(is_missing(row.get("seed")) for row in rows):
            raise ConfigError("best_over takes the best of each seed; expected a seed in every row")
    varying = [name for name in columns if len(values_of(rows, name)) > 1]
    x, y = _axes(rows, x, y, columns, [name for name in varying if name not in best])
    axes = [name for name in (x, y) if name]
    others = [name for name in varying if name not in (*axes, *best)]
    facets: list[str] = []
    for name in sorted(others, key=lambda name: name not in PREFERRED):
        if not follows(rows, name, [*axes, *facets]):
            facets.append(name)
    n_diagrams = len(group(rows, facets))
    if n_diagrams > MAX_DIAGRAMS:
        name, value = facets[0], word(values_of(rows, facets[0])[0])
        raise ConfigError(
            f"besides {' and '.join(axes)} these settings vary: {', '.join(facets)}, which makes "
            f"{n_diagrams} diagrams; expected at most {MAX_DIAGRAMS}: keep some runs with where, "
            f"such as {name}={value}, or take the best over it with best_over={name}"
        )
    following = tuple(name for name in others if name not in facets)
    return Layout(x, y, best, tuple(facets), following)


def slots_of(rows: Sequence[TableRow], layout: Layout) -> list[int]:
    """The place of each run in its cell; a seed has the same place in every cell.

    Rows that differ only in what the diagram does not know stand side by side.
    """
    times: Counter[tuple[object, ...]] = Counter()
    keys: list[tuple[object, ...]] = []
    for row in rows:
        key = (seed_of(row), *sort_key(row, layout.best))
        in_cell = (*sort_key(row, (*layout.axes, *layout.facets)), key)
        keys.append((*key, times[in_cell]))
        times[in_cell] += 1
    slots = {key: slot for slot, key in enumerate(sorted(set(keys)))}
    return [slots[key] for key in keys]


def _axes(
    rows: Sequence[TableRow], x: str | None, y: str | None, columns: list[str], varying: list[str]
) -> tuple[str, str | None]:
    """The axes: those that are given, else settings that vary."""
    known = columns + ["total_decay"] * any("total_decay" in row for row in rows)
    for name, what in ((x, "x"), (y, "y")):
        if name is not None:
            check_column(name, what, known)
    if x is not None and x == y:
        raise ConfigError(f"x and y are both {shown(x)}; expected two settings")
    order = dict.fromkeys((*PREFERRED, *varying))
    free = [name for name in order if name in varying and name not in (x, y)]
    if x is None:
        x, y = (free.pop(0), y) if free else (y, None)
    if x is None:
        raise ConfigError("no setting varies between the runs; name an axis with x")
    if y is None:  # a setting that follows x would fill only a diagonal of cells
        y = next((name for name in free if not follows(rows, name, [x])), None)
    return x, y
