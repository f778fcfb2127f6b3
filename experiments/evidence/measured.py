"""What the experiments on runs share: the runs, what was measured of each, tables and pages."""

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
from anchor_interp.runs.run import Run, load
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

    def others(self, head: Sequence[str], cells: Callable[[Row], Sequence[str]]) -> str:
        """The table of the other runs, which stand in no other one."""
        lines = [
            [row["recipe"], str(row["seed"]), row["phase"], *cells(row)]
            for row in self.rows
            if not row["reached"]
        ]
        if not lines:
            return "Every run reached its recipe's phase."
        text = table(["recipe", "seed", "phase", *head], lines)
        return f"Runs that did not reach their recipe's phase, in no number above:\n\n{text}"

    def count(self, recipe: str) -> str:
        """How many runs of a recipe reached its phase, as text."""
        total = sum(row["recipe"] == recipe for row in self.rows)
        return f"{len(self.used[recipe])} of {total}"

    def tell(self, name: str, **parts: object) -> None:
        """Tell of these runs."""
        seeds = sorted({row["seed"] for row in self.rows})
        tell(name, {"runs": self.rows}, first=seeds[0], last=seeds[-1], **parts)


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
        report(Measured(_measure_recipes(name, asked.runs, asked.seeds)))
    except AnchorInterpError as error:
        raise SystemExit(f"{name}: {error}") from error


def _measure_recipes(name: str, runs: Path, seeds: Sequence[int]) -> list[Row]:
    """What ``NAME.measure`` says of every finished run; missing seeds are named and left out."""
    measure = Measure(name, f"{name}:measure")
    rows = []
    for recipe in RECIPES:
        there = [seed for seed in seeds if (runs / str(seed) / recipe / "result.json").exists()]
        if missing := sorted(set(seeds) - set(there)):
            say(f"{name}: no run of {recipe} with seed {missing}")
        if not there:
            raise StoreError(
                f"{runs} holds no finished run of {recipe}; train it with "
                "experiments/recipes.py judge"
            )
        for seed in there:
            run = load(runs / str(seed) / recipe)
            if kept(run.folder.path, measure, run.step) is None:
                say(f"{name}: {recipe}, seed {seed}")
                measure_run(run.folder.path, [measure])
            reached = run.phase == MARGINS[recipe].phase
            row: Row = {"recipe": recipe, "seed": seed, "phase": run.phase, "reached": reached}
            rows.append(row | dict(kept(run.folder.path, measure, run.step) or {}))
    return rows


def runs_folder(description: str) -> Path:
    """The folder that ``--runs`` names on the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=Path, required=True, help="folder of run folders")
    folder: Path = parser.parse_args().runs
    return folder


def finished(folder: Path) -> list[Path]:
    """The folders of the finished runs in a folder."""
    found = [result.parent for result in sorted(folder.glob("*/result.json"))]
    if not found:
        raise SystemExit(f"{folder} holds no finished run; expected run folders in it")
    return found


def mixtures(folder: Path) -> list[Run]:
    """The fitted runs in a folder whose accuracy on unseen pairs is 0.1 to 0.9."""
    runs = map(load, finished(folder))
    fitted = [run for run in runs if run.phase not in ("undertrained", "memorizing")]
    mixed = [run for run in fitted if 0.1 <= (run.evaluation.ood_accuracy or 0.0) <= 0.9]
    if not mixed:
        raise SystemExit(
            f"{folder} holds no fitted run whose accuracy on unseen pairs is 0.1 to 0.9"
        )
    return mixed


def say(text: str) -> None:
    """A line of progress."""
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


def tell(name: str, data: Any, **parts: object) -> None:
    """Write ``reports/NAME.md`` with these parts as ``docs/evidence/NAME.md``; print the data."""
    template = (Path(__file__).parent / "reports" / f"{name}.md").read_text(encoding="utf-8")
    write_text(EVIDENCE / f"{name}.md", template.format(**parts).rstrip() + "\n")
    print(json.dumps(data, indent=1))
