"""What the experiments on the recipes share: their runs, what was measured of each, and tables."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from anchor_interp._util.errors import AnchorInterpError, StoreError
from anchor_interp._util.files import write_text
from anchor_interp.runs.measurements import Measure, kept, measure_run
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.run import load
from anchor_interp.sweeps.effects import LEVEL
from margins import FRESH_SEEDS, MARGINS
from papers.rows import Row, Rows

EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence"


@dataclass(frozen=True)
class Measured:
    """The recipes' runs with what was measured: recipe, seed, phase, whether it is the recipe's."""

    rows: Rows

    @cached_property
    def used(self) -> dict[str, list[Row]]:
        """The runs that reached their recipe's phase, by recipe."""
        recipes = dict.fromkeys(row["recipe"] for row in self.rows)
        return {r: [row for row in self.rows if row["recipe"] == r and row["reached"]]
                for r in recipes}  # fmt: skip

    @property
    def missed(self) -> list[Row]:
        """The other runs."""
        return [row for row in self.rows if not row["reached"]]

    @property
    def seeds(self) -> list[int]:
        """All seeds, ascending."""
        return sorted({row["seed"] for row in self.rows})

    def others(self, table: str) -> str:
        """The table of the missed runs, which stand in no other one."""
        if not self.missed:
            return "Every run reached its recipe's phase."
        return f"Runs that did not reach their recipe's phase, in no number above:\n\n{table}"

    def count(self, recipe: str) -> str:
        """How many runs of a recipe reached its phase, as text."""
        total = sum(row["recipe"] == recipe for row in self.rows)
        return f"{len(self.used[recipe])} of {total}"


def experiment(
    name: str, report: Callable[[Measured], None], seeds: Sequence[int] = FRESH_SEEDS
) -> None:
    """Parse the command line, measure the recipes' runs with ``NAME.measure``, and report.

    The runs come from ``python experiments/recipes.py judge`` and keep what was measured.
    """
    parser = argparse.ArgumentParser(description=f"{name} of the recipes' runs.")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    asked = parser.parse_args()
    try:
        report(Measured(measure_recipes(name, asked.runs, asked.seeds)))
    except AnchorInterpError as error:
        raise SystemExit(f"{name}: {error}") from error


def measure_recipes(
    name: str, runs: Path, seeds: Sequence[int], recipes: Sequence[str] = tuple(RECIPES)
) -> list[Row]:
    """What ``NAME.measure`` says of every finished run; missing seeds are named and left out."""
    measure = Measure(name, f"{name}:measure")
    rows = []
    for recipe in recipes:
        there = [seed for seed in seeds if (runs / str(seed) / recipe / "result.json").exists()]
        if missing := sorted(set(seeds) - set(there)):
            _say(f"{name}: no run of {recipe} with seed {missing}")
        if not there:
            raise StoreError(
                f"{runs} holds no finished run of {recipe}; train it with "
                "experiments/recipes.py judge"
            )
        for seed in there:
            run = load(runs / str(seed) / recipe)
            if kept(run.folder.path, measure, run.step) is None:
                _say(f"{name}: {recipe}, seed {seed}")
                measure_run(run.folder.path, [measure])
            reached = run.phase == MARGINS[recipe].phase
            row: Row = {"recipe": recipe, "seed": seed, "phase": run.phase, "reached": reached}
            rows.append(row | dict(kept(run.folder.path, measure, run.step) or {}))
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range as text, ``0.79 (0.59-0.83)``; the value alone if all print alike."""
    if not values:
        return ""
    low, middle, high = (f"{f(values):z.{digits}f}" for f in (min, median, max))
    return middle if low == high else f"{middle} ({low}-{high})"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in escaped)


def tell(name: str, data: Any, text: str) -> None:
    """The table as ``docs/evidence/NAME.md``, the data as JSON on standard output."""
    write_text(EVIDENCE / f"{name}.md", text)
    print(json.dumps(data, indent=1))


def tell_filled(name: str, data: Any, found: Measured, **parts: object) -> None:
    """Tell what the template ``reports/NAME.md`` says with these parts."""
    template = (Path(__file__).parent / "reports" / f"{name}.md").read_text(encoding="utf-8")
    ends = {"first": found.seeds[0], "last": found.seeds[-1]}
    text = template.format(**ends, level=LEVEL, **parts)
    tell(name, data, text.rstrip() + "\n")
