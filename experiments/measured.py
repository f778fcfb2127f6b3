"""What the experiments share: the runs of the recipes, measured once each, and tables of that."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from anchor_interp._util.errors import StoreError
from anchor_interp._util.files import read_json, write_json, write_text
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.run import Run, load
from recipes import MARGINS

EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence"
RUNS = Path("runs/recipes")
CACHE = Path(".cache")

Row = dict[str, Any]
"""Of a run: recipe, seed, phase, whether that is the recipe's, and what was measured."""


def each_run(
    name: str,
    measure: Callable[[Run], Row],
    seeds: Sequence[int],
    *,
    runs: Path = RUNS,
    recipes: Sequence[str] = tuple(RECIPES),
) -> Iterator[Row]:
    """Measure the recipes' runs one by one; what was measured of the same weights is kept.

    ``python experiments/recipes.py judge`` trains them. A seed that is missing is said and left
    out; the tables count what is there.

    Raises:
        StoreError: a recipe without any run.
    """
    for recipe in recipes:
        there = [seed for seed in seeds if (runs / str(seed) / recipe / "result.json").exists()]
        if missing := sorted(set(seeds) - set(there)):
            print(f"{name}: no run of {recipe} with seed {missing}", file=sys.stderr, flush=True)
        if not there:
            raise StoreError(
                f"{runs} holds no finished run of {recipe}; train it with "
                "experiments/recipes.py judge"
            )
        for seed in there:
            folder = runs / str(seed) / recipe
            run = load(folder)
            weights = read_json(folder / "checkpoints" / f"{run.step:08d}" / "state.json")["files"]
            kept = CACHE / name / f"{recipe}-{seed}.json"
            row = read_json(kept) if kept.exists() else {}
            if row.get("weights") != weights:
                print(f"{name}: {recipe}, seed {seed}", file=sys.stderr, flush=True)
                row = {"weights": weights, "measured": measure(run)}
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_json(kept, row)
            reached = run.phase == MARGINS[recipe].phase
            of_run = {"recipe": recipe, "seed": seed, "phase": run.phase, "reached": reached}
            yield of_run | row["measured"]


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
