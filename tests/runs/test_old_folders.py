"""Folders and tables that earlier code wrote are read, by a process that knows nothing else.

``tests/data/old`` holds a run of every task and layout, a sweep whose ``table.parquet`` lacks
columns that came later, a table as CSV that lacks them as well, and the numbers of its diagram.
``expected.json`` is what the code that wrote the runs said of them.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from anchor_interp._util.schema import canonical_json
from anchor_interp.sweeps.columns import COLUMNS
from anchor_interp.sweeps.diagrams import phase_diagrams, plain_diagrams
from anchor_interp.sweeps.effects import effect
from anchor_interp.sweeps.folder import SweepFolder, read_table
from anchor_interp.sweeps.table_files import from_csv

OLD = Path(__file__).parents[1] / "data" / "old"
EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
LATER = ("censored", "fitted_step", "branch_step", "schedule", "until_accuracy", "weights",
         "key_dependence")  # fmt: skip


def facts(path: Path) -> dict[str, Any]:
    """What a run folder says, and the sum of its model's weights."""
    from anchor_interp._util.schema import digest
    from anchor_interp.runs.config import run_id
    from anchor_interp.runs.run import load

    run = load(path)
    return {
        "run_id": run_id(run.config),
        "kind": run.config.task.kind,
        "layout": run.config.model.normalization,
        "phase": run.phase,
        "reason": run.reason,
        "evaluation": digest(run.evaluation),
        "weights": round(sum(p.double().abs().sum().item() for p in run.model.parameters()), 6),
    }


def test_old_runs_open_in_a_process_of_their_own() -> None:
    done = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == EXPECTED["runs"]


def test_there_is_a_run_of_every_task_and_layout() -> None:
    runs = EXPECTED["runs"].values()
    kinds = {"AnchorTask", "scan", "cogs", "addition", "prontoqa", "corpus"}
    assert {run["kind"] for run in runs} == kinds
    layouts = {run["layout"] for run in runs if run["kind"] == "AnchorTask"}
    assert layouts == {"post", "pre"}


def test_an_old_sweep_gets_the_columns_that_it_lacks(tmp_path: Path) -> None:
    folder = SweepFolder(shutil.copytree(OLD / "sweep", tmp_path / "sweep"))
    rows = folder.rows()
    assert {row["run_id"]: row["phase"] for row in rows} == EXPECTED["sweep"]
    assert all(row.keys() == COLUMNS.keys() and row["status"] == "done" for row in rows)
    assert {row["censored"] for row in rows} == {True}  # two steps teach nothing
    folder.write_table()
    assert read_table(folder.path / "table.parquet") == rows


def test_an_old_table_is_compared_and_drawn() -> None:
    rows = from_csv((OLD / "table.csv").read_text(encoding="utf-8"), whole=False)
    assert not set(LATER) & rows[0].keys()
    answer = effect(OLD / "table.csv", of="id_accuracy", on="gamma", least=0)
    assert (answer.n, answer.found is not None) == (len(rows), True)
    decays = sorted({row["weight_decay"] for row in rows})[:3]
    diagrams = phase_diagrams(rows, maps="rank_share", where={"weight_decay": decays})
    stored = (OLD / "diagram.json").read_text(encoding="utf-8")
    assert canonical_json(plain_diagrams(diagrams)) == stored.rstrip("\n")


if __name__ == "__main__":
    print(json.dumps({run.name: facts(run) for run in (OLD / "runs").iterdir()}))
