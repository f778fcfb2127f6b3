"""More runs for figure 7 (complexity-control paper): SCAN and addition, corner by corner.

``python experiments/complexity_control/fig7_runs.py OUT scan`` (or ``addition``) trains them and
writes ``OUT/scan-other-corners.csv`` (or ``addition-matched.csv``).
"""

import argparse
import itertools
from dataclasses import replace
from pathlib import Path

from anchor_interp.runs.config import override
from anchor_interp.runs.measurements import Measure
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep
from papers.section_7_runs import CORNERS, addition_judging, scan_fitted
from questions.curves import measured


def scan_other_corners() -> Sweep:
    """The two corners that ``scan-fitted`` lacks, on its seeds: one setting of each corner."""
    (grid,) = scan_fitted("tiny").grids
    other = {"gamma": (0.5, 0.8), "weight_decay": (0.1, 0.01)}
    return Sweep((replace(grid, together=(other,)),))


def addition_matched(first: int = 1065, n: int = 20) -> Sweep:
    """All four corners on addition with a held-out square, seed by seed, evaluated often."""
    start = addition_judging("tiny").grids[0].start
    start = override(start, steps=8_000, eval_every=100, checkpoint_every=8_000)
    corners = CORNERS["addition"].both
    return Sweep(tuple(Grid(start, corners, seeds=(seed,)) for seed in range(first, first + n)))


def matched(run: Run) -> dict[str, float | None]:
    """Accuracies at the second of two evaluations in a row with an ID accuracy of 0.999 or more.

    ``best_id_probe`` is the best of the 512 pairs along training. None if there are no such two.
    """
    curve = [row for row in run.metrics if "id_accuracy" in row]
    found: dict[str, float | None] = dict.fromkeys(("matched_step", "matched_id", "matched_ood"))
    for before, row in itertools.pairwise(curve):
        if min(before["id_accuracy"], row["id_accuracy"]) >= 0.999:
            names = ("step", "id_accuracy", "ood_accuracy")
            found = dict(zip(found, (float(row[name]) for name in names), strict=True))
            break
    return found | {"best_id_probe": max(float(row["id_accuracy"]) for row in curve)}


MATCHED = Measure("matched", "complexity_control.fig7_runs:matched")


def main() -> None:
    """Train the runs of a task and write their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("out", type=Path)
    add("task", choices=("scan", "addition"))
    add("--runs", type=Path, help="folder of the runs (OUT/TASK)")
    add("--device", default="cpu")
    add("--workers", type=int, default=1)
    add("--batch", type=int, default=1, help="addition: runs that train together; 0: all")
    add("--seeds", type=int, default=20, help="addition: how many seeds")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    folder, engine = asked.runs or asked.out / asked.task, LocalEngine(asked.workers, asked.device)
    if asked.task == "scan":
        measured(
            scan_other_corners(), folder, asked.out / "scan-other-corners.csv", engine, scale="tiny"
        )
    else:
        runs, table = addition_matched(n=asked.seeds), asked.out / "addition-matched.csv"
        measured(runs, folder, table, engine, MATCHED, scale="tiny", batch=asked.batch)


if __name__ == "__main__":
    main()
