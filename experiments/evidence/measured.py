"""What the measurements share: runs, command line, tables and pages."""

import argparse
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import StoreError
from anchor_interp._util.files import write_text
from anchor_interp.runs.measurements import Measure, kept, measure_run
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.run import Run, load
from claim_effects import Row, Rows
from common import exit_code, say, table
from evidence.margins import FRESH_SEEDS, MARGINS

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def main() -> None:
    """Measure what the command line names, print it, and write its page."""
    parser = argparse.ArgumentParser("evidence", description="Measure runs for docs/evidence.")
    parser.add_argument("name", help="a module of evidence that has a measure")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipes"), help="folder of runs")
    asked = parser.parse_args()
    module = importlib.import_module(f"evidence.{asked.name}")

    def work() -> None:
        if hasattr(module, "runs"):
            rows = [about | module.measure(run) for about, run in module.runs(asked.runs)]
        else:
            rows = _of_recipes(asked.name, asked.runs, getattr(module, "SEEDS", FRESH_SEEDS))
        parts: dict[str, Any] = module.report(rows)
        tell(asked.name, parts.pop("data", {"runs": rows}), **parts)

    raise SystemExit(exit_code(asked.name, work))


def _of_recipes(name: str, folder: Path, seeds: Sequence[int]) -> list[Row]:
    """What is measured of every finished run of the recipes, which keeps it; it resumes."""
    measure, rows = Measure(name, f"evidence.{name}:measure"), []
    for recipe in RECIPES:
        there = [seed for seed in seeds if (folder / str(seed) / recipe / "result.json").exists()]
        if missing := sorted(set(seeds) - set(there)):
            say(f"{name}: no run of {recipe} with seed {missing}")
        if not there:
            raise StoreError(f"{folder} holds no finished run of {recipe}; train it with "
                             "PYTHONPATH=experiments python -m evidence.recipes judge")  # fmt: skip
        for seed in there:
            run = load(folder / str(seed) / recipe)
            if kept(run.folder.path, measure, run.step) is None:
                say(f"{name}: {recipe}, seed {seed}")
                measure_run(run.folder.path, [measure])
            reached = run.phase == MARGINS[recipe].phase
            row: Row = {"recipe": recipe, "seed": seed, "phase": run.phase, "reached": reached}
            rows.append(row | dict(kept(run.folder.path, measure, run.step) or {}))
    return rows


def used(rows: Rows) -> dict[str, list[Row]]:
    """The runs that reached their recipe's phase, by recipe."""
    recipes = dict.fromkeys(row["recipe"] for row in rows)
    return {r: [row for row in rows if row["recipe"] == r and row["reached"]] for r in recipes}


def count(rows: Rows, recipe: str) -> str:
    """How many runs of a recipe reached its phase, as text."""
    return f"{len(used(rows)[recipe])} of {sum(row['recipe'] == recipe for row in rows)}"


def others(rows: Rows, head: Sequence[str], cells: Callable[[Row], Sequence[str]]) -> str:
    """The table of the runs that did not reach their phase, which stand in no other one."""
    lines = [[row["recipe"], str(row["seed"]), row["phase"], *cells(row)]
             for row in rows if not row["reached"]]  # fmt: skip
    if not lines:
        return "Every run reached its recipe's phase."
    text = table(["recipe", "seed", "phase", *head], lines)
    return f"Runs that did not reach their recipe's phase, in no number above:\n\n{text}"


def ends(rows: Rows) -> dict[str, int]:
    """The first and the last seed of some runs."""
    seeds = sorted({row["seed"] for row in rows})
    return {"first": seeds[0], "last": seeds[-1]}


def finished(folder: Path) -> Iterator[tuple[Row, Run]]:
    """The finished runs in a folder, with their names and phases."""
    found = [result.parent for result in sorted(folder.glob("*/result.json"))]
    if not found:
        raise StoreError(f"{folder} holds no finished run; expected run folders in it")
    for path in found:
        say(path.name)
        yield {"run": path.name, "phase": (run := load(path)).phase}, run


def mixtures(folder: Path) -> Iterator[tuple[Row, Run]]:
    """The fitted runs in a folder whose accuracy on unseen pairs is 0.1 to 0.9."""
    for about, run in finished(folder):
        fitted = run.phase not in ("undertrained", "memorizing")
        if fitted and 0.1 <= (run.evaluation.ood_accuracy or 0.0) <= 0.9:
            yield about, run


def tell(name: str, data: Any, **parts: object) -> None:
    """Write ``reports/NAME.md`` with these parts as ``docs/evidence/NAME.md``; print the data."""
    template = (Path(__file__).parent / "reports" / f"{name}.md").read_text(encoding="utf-8")
    write_text(EVIDENCE / f"{name}.md", template.format(**parts).rstrip() + "\n")
    print(json.dumps(data, indent=1))
