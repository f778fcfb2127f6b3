"""Training and measuring what a study lacks, and its table.

:func:`gather` is resumable at any point: runs are those of a sweep folder, measurements are files
of their own, and a row that an earlier table already has needs neither.

A study's table is a CSV file, one row a run: the columns of a sweep's table
(:data:`anchor_interp.sweep.table.COLUMNS`) that any of its runs fills, what is said of its task,
and what was measured. Numbers are written out in full, so that what is computed from a table is
the same on every machine.
"""

import csv
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchor_interp import files
from anchor_interp.config import RunConfig, run_id
from anchor_interp.errors import ConfigError, StoreError
from anchor_interp.papers.measures import kept
from anchor_interp.papers.studies import STUDIES, Study, broken_groups, study, study_sweep
from anchor_interp.progress import reporting_all
from anchor_interp.schema import checked_path
from anchor_interp.sweep.driver import sweep
from anchor_interp.sweep.estimate import Estimate, estimate
from anchor_interp.sweep.folder import SweepFolder
from anchor_interp.sweep.job import Engine
from anchor_interp.sweep.local import LocalEngine, available_cores
from anchor_interp.sweep.spec import Grid, Sweep
from anchor_interp.sweep.table import CIRCUMSTANCES, COLUMNS, read_table
from anchor_interp.task import AnchorTask

Row = dict[str, Any]

_KEPT_CIRCUMSTANCES = ("seconds", "machine", "cpu", "torch")
_LIMIT = 1 << 28
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What is to be done for some studies before they can be judged."""

    runs: int
    """Runs of all of them, each counted once."""
    known: int
    """Runs whose rows are in earlier tables."""
    training: Estimate
    """What is left to be trained, and what it takes."""


def plan(
    names: Sequence[str],
    scale: str,
    out: Path,
    *,
    tables: Path | None = None,
    workers: int | None = None,
) -> Plan:
    """What :func:`gather` would do for these studies.

    Raises:
        ConfigError: an unknown study or scale.
    """
    configs, known = _wanted(names, scale, tables)
    todo = {name: config for name, config in configs.items() if name not in known}
    count = available_cores() if workers is None else workers
    cost = estimate(todo, SweepFolder(out), workers=count)
    return Plan(len(configs), len(configs) - len(todo), cost)


def gather(
    names: Sequence[str],
    scale: str,
    out: str | Path,
    *,
    tables: str | Path | None = None,
    engine: Engine | None = None,
    quiet: bool = False,
) -> dict[str, list[Row]]:
    """The tables of some studies; what is missing is trained and measured first.

    Args:
        names: the studies.
        scale: tiny, small or paper.
        out: the folder of the runs: one for all studies, which share what they have in common.
        tables: folder of the tables, which are read if they are there and written anew; the folder
            ``tables`` in ``out`` if None. Rows of finished runs in it are taken as they are.
        engine: where runs are trained; worker processes on this machine if None.
        quiet: no progress on standard error.

    Returns:
        Rows by study, in the order in which the study lists its runs. The tables are written too,
        and for a study with ``checkpoints`` another one, of its runs' mechanism all along.

    Raises:
        ConfigError: an unknown study or scale, or a device that cannot be used.
        StoreError: a folder that cannot be used, or a damaged table.
    """
    folder = checked_path(out, "out")
    place = folder / "tables" if tables is None else checked_path(tables, "tables")
    configs, known = _wanted(names, scale, place)
    todo = {name: config for name, config in configs.items() if name not in known}
    found: dict[str, Row] = {}
    if todo:
        grids = tuple(Grid(config, seeds=(config.seed,)) for config in todo.values())
        sweep(Sweep(grids), folder, engine=engine, quiet=quiet)
        found = {row["run_id"]: row for row in read_table(folder)}
    done = {name for name in todo if found[name]["status"] == "done"}
    jobs = _jobs(names, scale, folder, done)
    _measure(folder, jobs, engine, quiet)
    gathered = {}
    for name in names:
        rows = [
            known[run] if run in known else _row(found[run], config, folder, study(name))
            for run, config in study_sweep(name, scale).configs().items()
        ]
        _write(place / f"{name}.csv", rows)
        gathered[name] = rows
        if study(name).checkpoints:
            _write_checkpoints(place, name, scale, folder, rows)
    return gathered


def read_tables(folder: str | Path, names: Sequence[str] = tuple(STUDIES)) -> dict[str, list[Row]]:
    """The tables of a folder; studies without one are left out.

    Raises:
        StoreError: a damaged table.
        ConfigError: no folder.
    """
    place = checked_path(folder, "tables")
    if not place.is_dir():
        raise ConfigError(f"{place} is no folder; expected the folder of the studies' tables")
    return {
        name: read_study(place / f"{name}.csv")
        for name in names
        if (place / f"{name}.csv").is_file()
    }


def read_study(path: str | Path) -> list[Row]:
    """The rows of one study's table.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    path = checked_path(path, "path")
    text = files.read_bytes(path, limit=_LIMIT).decode()
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        columns = list(reader.fieldnames or ())
        if missing := {"run_id", "status", "phase", "censored", "seed"} - set(columns):
            raise ValueError(f"it lacks the column {sorted(missing)[0]}")
        return [{name: _parsed(name, row[name]) for name in columns} for row in reader]
    except (ValueError, LookupError, csv.Error) as error:
        raise StoreError(f"{path} is damaged: {error}; remove it to have it made anew") from error


def _parsed(name: str, text: str | None) -> Any:
    if text is None:
        raise ValueError("a line is too short")
    if text == "":
        return None
    kind = COLUMNS.get(name, "text" if name in ("broken", "offsets") else "number")
    if kind == "truth":
        return {"True": True, "False": False}[text]
    return {"text": str, "integer": int, "number": float}[kind](text)


def _wanted(
    names: Sequence[str], scale: str, tables: Path | None
) -> tuple[dict[str, RunConfig], dict[str, Row]]:
    """The runs of some studies, and the rows of those that a table already has."""
    configs: dict[str, RunConfig] = {}
    known: dict[str, Row] = {}
    for name in names:
        mine = study_sweep(name, scale).configs()
        configs |= mine
        path = None if tables is None else tables / f"{name}.csv"
        if path is not None and path.is_file():
            rows = {row["run_id"]: row for row in read_study(path)}
            known |= {
                run: rows[run] for run in mine if run in rows and rows[run]["status"] == "done"
            }
    return configs, known


def _jobs(
    names: Sequence[str], scale: str, folder: Path, done: set[str]
) -> list[tuple[str, str, int | None]]:
    """What is left to be measured."""
    jobs: dict[tuple[str, str, int | None], None] = {}
    for name in names:
        of = study(name)
        for run, config in study_sweep(name, scale).configs().items():
            if run in done:
                jobs |= dict.fromkeys((measure, run, None) for measure in of.measures)
                if of.checkpoints:
                    jobs |= dict.fromkeys(("mechanism", run, step) for step in _between(config))
    return [job for job in jobs if kept(folder, *job) is None]


def _between(config: RunConfig) -> list[int]:
    """Checkpoints between the first and the last, each twice as late as the one before."""
    steps, step = [], config.train.checkpoint_every
    while step < config.train.steps:
        steps.append(step)
        step *= 2
    return steps


def _measure(
    folder: Path, jobs: Sequence[tuple[str, str, int | None]], engine: Engine | None, quiet: bool
) -> None:
    """Measure in processes of their own, as many as train."""
    if not jobs:
        return
    count = (
        engine.workers if isinstance(engine, LocalEngine) and engine.workers else available_cores()
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "anchor_interp.papers.measures", str(folder)]
    workers = []
    with reporting_all(len(jobs), len(jobs), quiet=quiet) as progress:
        progress.begin(0, 0)
        try:
            for first in range(min(count, len(jobs))):
                worker = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                )
                workers.append(worker)
                assert worker.stdin is not None
                json.dump(list(jobs[first::count]), worker.stdin)
                worker.stdin.close()
            lock = threading.Lock()

            def follow(worker: "subprocess.Popen[str]") -> None:
                assert worker.stdout is not None
                for line in worker.stdout:
                    with lock:
                        progress.end(line.strip(), 1)

            threads = [threading.Thread(target=follow, args=(worker,)) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.terminate()
                worker.wait()
    if missing := [job for job in jobs if kept(folder, *job) is None]:
        _LOGGER.warning(
            "%d of %d measurements are missing, %s of %s among them; give the command again",
            len(missing),
            len(jobs),
            missing[0][0],
            missing[0][1],
        )


def _row(row: Row, config: RunConfig, folder: Path, of: Study) -> Row:
    """A run's row with what is said of its task and what was measured."""
    out = {name: value for name, value in row.items() if name not in CIRCUMSTANCES}
    out |= {name: row[name] for name in _KEPT_CIRCUMSTANCES}
    out |= task_columns(config.task)
    for measure in of.measures:
        out |= kept(folder, measure, run_id(config)) or {}
    return out


def task_columns(task: AnchorTask) -> Row:
    """What a table says of a task: how many groups break the rule, which, and the anchors."""
    broken = broken_groups(task)
    return {
        "complexity": len(broken),
        "broken": " ".join(f"{a}{b}" for a, b in broken) or None,
        "offsets": " ".join(str(anchor.function) for anchor in task.anchors),
    }


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table with the columns that any row fills."""
    names = dict.fromkeys(name for row in rows for name in row)
    needed = {"run_id", "status", "phase", "censored", "seed"}
    columns = [
        name for name in names if name in needed or any(row.get(name) is not None for row in rows)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text.getvalue())


def checkpoints_table(tables: str | Path, name: str) -> Path:
    """Where the mechanism along a study's checkpoints is."""
    return Path(tables) / f"{name}-checkpoints.csv"


def _write_checkpoints(
    place: Path, name: str, scale: str, folder: Path, rows: Sequence[Row]
) -> None:
    """The mechanism at every checkpoint between, beside what became of the run."""
    path = checkpoints_table(place, name)
    configs = study_sweep(name, scale).configs()
    about = (
        "run_id",
        "status",
        "phase",
        "censored",
        "seed",
        "task",
        "gamma",
        "weight_decay",
        "n_layers",
    )
    before = (
        {(row["run_id"], row["at_step"]): row for row in read_study(path)} if path.is_file() else {}
    )
    found = []
    for row in rows:
        for step in _between(configs[row["run_id"]]):
            numbers = kept(folder, "mechanism", row["run_id"], step)
            if numbers is not None:
                found.append({key: row[key] for key in about} | {"at_step": step} | numbers)
            elif (row["run_id"], float(step)) in before:
                found.append(before[row["run_id"], float(step)])
    _write(path, found)
