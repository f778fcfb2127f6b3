"""The curves of figure 2 at the paper's width, as one row for each seed of a cell.

A row of the table is a run at a step. A seed at all its rates is one witness: what is best along
training is the largest value in any row and the best of the rates, each number by itself; what is
said of the end is that of runs that have fitted; ``first_`` is of the first rate alone. The
exception is learned at the first row whose training accuracy on (3, 4) is above one half.
"""

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from anchor_interp._util.files import read_bytes

from .effects import grouped
from .rows import Row, Rows

STUDY, TITLE = "figure2-wide", "gamma and depth at the paper's width"
# half the paper's rates by layers, the batch being a quarter of the paper's: the noise is equal
RATES: Mapping[int, tuple[float, ...]] = {
    2: (1.5e-4, 1e-4, 5e-5, 1.25e-4, 7.5e-5),
    3: (1.5e-4, 7.5e-5),
}
CELL = ("n_layers", "gamma")
# Seeds whose curves at the first rate were seen before a claim on that rate was written.
SEEN = (1002000, 1002001, 1002002, 1002100, 1002101, 1002102, 1002200, 1002300, 1002400)
_FITTED = 0.99  # training accuracy, twice
_LIMIT = 1 << 28


def curves_table(tables: Path) -> Path:
    """The table of the curves, beside the tables of a scale."""
    return tables.parent / "paper" / f"{STUDY}.csv"


def read_curves(path: Path) -> list[Row]:
    """Every row of the table: a run at a step."""
    text = read_bytes(path, limit=_LIMIT).decode()
    return [_numbers(line) for line in csv.DictReader(text.splitlines())]


def _numbers(line: Mapping[str, str]) -> Row:
    texts = ("run_id", "precision")
    return {name: text if name in texts else float(text) if text else None
            for name, text in line.items()}  # fmt: skip


def witnesses(rows: Rows) -> list[Row]:
    """One row for each depth, gamma and seed."""
    found = []
    for (depth, gamma, seed), mine in grouped(rows, (*CELL, "seed")).items():
        runs = [_run(curve) for curve in grouped(mine, ("run_id",)).values()]
        fitted = [run for run in runs if run["fitted"]]
        row: Row = {
            "run_id": f"{depth:g}-{gamma:g}-{int(seed)}", "status": "done", "censored": not fitted,
            "seed": int(seed), "n_layers": int(depth), "gamma": gamma, "task": "neurips",
            "normalization": "post", "phase": None, "rates": len(runs), "fitted": len(fitted),
        }  # fmt: skip
        for name in ("best_ood", "best_symmetric", "best_id"):
            row[name] = max(run[name] for run in runs)
        first = next((run for run in runs if run["lr"] == RATES[row["n_layers"]][0]), None)
        for name in ("best_ood", "best_symmetric"):
            row[f"first_{name}"] = None if first is None else first[name]
        for name in ("end_ood", "end_symmetric"):
            row[name] = max((run[name] for run in fitted), default=None)
        row["by_rule"] = sum(run["end_ood"] > 0.5 for run in fitted)
        row["by_other"] = sum(run["end_symmetric"] > 0.5 for run in fitted)
        row["end_ood_mean"] = mean(run["end_ood"] for run in fitted) if fitted else None
        for name, of in (("before", runs), ("gives_way", runs), ("comes_back", fitted)):
            values = [run[name] for run in of if run[name] is not None]
            row[name] = mean(values) if values else None
        found.append(row)
    return found


def _run(curve: Sequence[Row]) -> dict[str, Any]:
    """What a run's curve says."""
    curve = sorted(curve, key=lambda row: row["step"])
    full = [row["train"] >= _FITTED for row in curve]
    rule, symmetric = [row["x-10"] for row in curve], [row["x-6"] for row in curve]
    learned = next((i for i, row in enumerate(curve) if row["broken"] > 0.5), None)
    found: dict[str, Any] = {
        "lr": curve[0]["lr"],
        "fitted": any(a and b for a, b in itertools.pairwise(full)),
        "best_ood": max(rule),
        "best_symmetric": max(symmetric),
        "best_id": max(row["id"] for row in curve),
        "end_ood": rule[-1],
        "end_symmetric": symmetric[-1],
        "before": None,
        "gives_way": None,
        "comes_back": None,
    }
    if learned is not None:
        before, least = max(rule[:learned], default=0.0), min(rule[learned:])
        found |= {"before": before, "gives_way": before - least, "comes_back": rule[-1] - least}
    return found


def complete(rows: Rows) -> list[Row]:
    """The seeds all of whose rates are there."""
    return [row for row in rows if row["rates"] == len(RATES[row["n_layers"]])]


def unseen(rows: Rows) -> list[Row]:
    """The twelve seeds not seen before the claims on one rate were written; none before all end."""
    fresh = [row for row in rows if row["n_layers"] == 2 and row["seed"] not in SEEN]
    return fresh if len(fresh) >= 12 else []


def outside_zone(rows: Rows) -> list[Row]:
    """The rows without the shaded zone: cells whose best ID accuracy is below 0.9 on average."""
    cells = grouped(rows, CELL).values()
    return [row for cell in cells if mean(row["best_id"] for row in cell) >= 0.9 for row in cell]
