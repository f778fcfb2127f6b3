"""Trains and measures what the studies lack, and writes their tables.

:func:`gather` can be stopped and resumed at any point: runs and what is measured of them stand in a
sweep folder, and a run whose row an earlier table has needs neither.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import StoreError
from anchor_interp.runs.config import RunConfig, last_step
from anchor_interp.runs.measurements import Measure, lacking
from anchor_interp.sweeps.columns import CIRCUMSTANCES
from anchor_interp.sweeps.engine import Engine
from anchor_interp.sweeps.estimate import Estimate, estimate
from anchor_interp.sweeps.folder import SweepFolder, read_table
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.tasks.task import Task
from measures import MEASURES, SECONDS, numbers

from .rows import Row
from .studies import Study, broken_groups, study, study_sweep
from .tables import check_scale, read_study, write_rows

_KEPT_CIRCUMSTANCES = ("seconds", "machine", "cpu", "torch")
_LOGGER = logging.getLogger("anchor_interp.papers")


@dataclass(frozen=True)
class Plan:
    """What some studies still need before they can be judged."""

    runs: int  # runs of all of them, each counted once
    known: int  # runs whose rows are in earlier tables
    training: Estimate
    measuring: float  # seconds that measuring takes after training, roughly


def plan(
    names: Sequence[str],
    scale: str,
    out: Path,
    *,
    tables: Path,
    workers: int | None = None,
    device: str = "auto",
) -> Plan:
    """What :func:`gather` would do for these studies."""
    wanted = [_wanted(name, scale, tables) for name in names]
    runs = {run for of in wanted for run in of.configs}
    todo = _todo(wanted, device)
    folder = SweepFolder(out / "sweep")
    count = LocalEngine(workers, device).slots()
    cost = estimate(todo, folder, workers=count, device=device)
    left = {
        (name, run, step)
        for of in wanted
        for run in of.todo.keys() & todo.keys()
        for name in of.study.measures
        for _, step in lacking(folder.runs / run, (MEASURES[name],))
    }
    known = len(runs - {run for of in wanted for run in of.todo})
    return Plan(len(runs), known, cost, sum(SECONDS[n] for n, *_ in left) / count)


def gather(
    names: Sequence[str],
    scale: str,
    out: Path,
    *,
    tables: Path,
    engine: Engine | None = None,
    quiet: bool = False,
) -> dict[str, list[Row]]:
    """The rows of some studies, in each study's order; what is missing is trained and measured.

    ``tables`` is the folder of the tables, which are read and written anew. The row of a finished
    run stays, unless the run ends once more with all the numbers that the row has.
    """
    folder = SweepFolder(out / "sweep")
    wanted = [_wanted(name, scale, tables) for name in names]
    found: dict[str, Row] = {}
    if todo := _todo(wanted, "auto" if engine is None else engine.device):
        measures: dict[str, list[Measure]] = {run: [] for run in todo}
        for of in wanted:
            for run in of.todo.keys() & todo.keys():
                new = map(MEASURES.__getitem__, of.study.measures)
                measures[run] += [measure for measure in new if measure not in measures[run]]
        every = _grouped(todo.values())
        sweep(every, folder.path, engine=engine, measures=measures, quiet=quiet)
        found = {row["run_id"]: row for row in read_table(folder.path)}
    gathered = {}
    tables.mkdir(parents=True, exist_ok=True)
    for of in wanted:
        rows = dict(of.rows)
        for run in of.todo.keys() & found.keys():
            row, old = _row(found[run], of.configs[run], folder, of, scale), rows.get(run)
            richer = row["status"] == "done" and _measured(row) >= _measured(old or {})
            if old is None or old["status"] != "done" or richer:
                rows[run] = row
        gathered[of.name] = [rows[run] for run in of.configs if run in rows]
        if rows:
            write_rows(tables / f"{of.name}.csv", gathered[of.name])
    return gathered


def unfinished(gathered: Mapping[str, Sequence[Row]], device: str) -> list[str]:
    """Runs that failed, or lack a number that their study measures and this device could make."""
    return [
        row["run_id"]
        for name, rows in gathered.items()
        for row in rows
        if row["status"] == "failed"
        or (row["status"] == "done" and not _is_measured(row, study(name)))
        if _is_trained_on(device, row["precision"])
    ]


@dataclass(frozen=True)
class _Wanted:
    """One study's runs, and what its tables have of them."""

    name: str
    study: Study
    configs: dict[str, RunConfig]
    rows: dict[str, Row]  # those of the earlier table

    @property
    def todo(self) -> dict[str, RunConfig]:
        """The runs without a row that has every number that the study measures."""
        rows = {run: row for run, row in self.rows.items() if row["status"] == "done"}
        measured = {run for run, row in rows.items() if _is_measured(row, self.study)}
        return {run: config for run, config in self.configs.items() if run not in measured}


def _todo(wanted: Iterable[_Wanted], device: str) -> dict[str, RunConfig]:
    """What a device can train of all that is to be done; says how many runs it cannot."""
    every = {run: config for of in wanted for run, config in of.todo.items()}
    todo = {run: one for run, one in every.items() if _is_trained_on(device, one.train.precision)}
    if gpu := len(every) - len(todo):
        _LOGGER.info("%d runs need a CUDA GPU and are not trained", gpu)
    return todo


def _is_trained_on(device: str, precision: str) -> bool:
    return precision != "tf32" or resolve_device(device).type == "cuda"


def _wanted(name: str, scale: str, tables: Path) -> _Wanted:
    configs, found = study_sweep(name, scale).configs(), study(name)
    earlier: dict[str, Row] = {}
    if (path := tables / f"{name}.csv").is_file():
        rows = read_study(path)
        check_scale(rows, scale, path)
        if other := [row["run_id"] for row in rows if row["run_id"] not in configs]:
            raise StoreError(
                f"{path} has {len(other)} runs that are not of the study {name} at the scale "
                f"{scale}, such as {other[0]}; remove these lines, or name another folder for "
                "the tables"
            )
        earlier = {row["run_id"]: row for row in rows}
    ended = [row for row in earlier.values() if row["status"] == "done"]
    if lack := sum(not _is_measured(row, found) for row in ended):
        text = "%d of %d finished runs in the table of %s lack numbers that it measures"
        _LOGGER.info(text, lack, len(ended), name)
    return _Wanted(name, found, configs, earlier)


def _is_measured(row: Row, of: Study) -> bool:
    return set(of.measures) <= _measured(row)


def _measured(row: Row) -> set[str]:
    return set((row.get("measured") or "").split())


def _grouped(configs: Iterable[RunConfig]) -> Sweep:
    """The sweep of some runs: a grid for those that only differ in their seeds.

    Fewer seeds are another grid, so a folder's ``spec.yaml`` can name a run more than once.
    """
    seeds: dict[RunConfig, list[int]] = {}
    for config in configs:
        seeds.setdefault(replace(config, seed=0), []).append(config.seed)
    return Sweep(tuple(Grid(config, seeds=tuple(found)) for config, found in seeds.items()))


def _row(row: Row, config: RunConfig, folder: SweepFolder, of: _Wanted, scale: str) -> Row:
    """A run's row with what is said of its task and what was measured."""
    out = {name: value for name, value in row.items() if name not in CIRCUMSTANCES}
    out |= {name: row[name] for name in _KEPT_CIRCUMSTANCES}
    out |= {"scale": scale} | task_columns(config.task)
    run = folder.runs / row["run_id"]
    last = last_step(config.train.steps, row["fitted_step"])
    found = {name: numbers(run, name, last) for name in of.study.measures}
    out["measured"] = " ".join(name for name, kept in found.items() if kept is not None) or None
    return out | {
        name: number for values in found.values() for name, number in (values or {}).items()
    }


def task_columns(task: Task) -> Row:
    """What a table says of anchors: how many groups break the rule, which, and their functions."""
    if task.anchored is None:
        return {}
    task = task.anchored
    broken = broken_groups(task)
    return {
        "complexity": len(broken),
        "broken": " ".join(f"{a}{b}" for a, b in broken) or None,
        "offsets": " ".join(str(anchor.function) for anchor in task.anchors),
    }
