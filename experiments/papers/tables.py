"""Training and measuring what a study lacks, and its table.

:func:`gather` is resumable at any point: runs are those of a sweep folder, measurements are files
of their own, and a row that an earlier table already has needs neither.

A study's table is a CSV file, one row a run: the columns of a sweep's table
(:data:`anchor_interp.sweeps.table.COLUMNS`) that any of its runs fills, what is said of its task,
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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.progress import reporting_all
from anchor_interp._util.schema import checked_path, shown
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.phase import Phase
from anchor_interp.sweeps.engine import Engine
from anchor_interp.sweeps.estimate import Estimate, estimate
from anchor_interp.sweeps.folder import STATES, SweepFolder
from anchor_interp.sweeps.local import LocalEngine, available_cores
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table import CIRCUMSTANCES, COLUMNS, Kind, parsed, read_table
from anchor_interp.tasks.anchor import TASKS, AnchorTask

from .measures import SECONDS, kept
from .studies import STUDIES, Measure, Study, broken_groups, study, study_sweep

Row = dict[str, Any]


_KINDS: Mapping[str, Kind] = {
    "complexity": "integer",
    **dict.fromkeys(("broken", "offsets", "scale", "measured", "behaviour"), "text"),
}
"""What columns hold beside a sweep's; all others hold numbers."""


_FILLED = frozenset(
    ("run_id", "status", "censored", "seed", "task", "gamma", "weight_decay", "n_layers", "steps")
)
"""Columns in which every row has a value."""


_NEEDED = _FILLED | {"phase", "normalization"}
"""Columns that every table has."""


_FIRST = ("censored", "phase", "run_id", "seed", "status")
"""Columns that a table begins with; a row's own order follows."""


_OF_A_RUN = frozenset(("d_model", "lr", "n_sequences", "id_accuracy"))
"""Columns that it has as well unless its rows are checkpoints."""


_NAMES: Mapping[str, Sequence[str]] = {
    "status": STATES,
    "phase": get_args(Phase),
    "behaviour": get_args(Phase),
}


_SHARES = frozenset(
    ("commutativity", "key_dependence", "composed", "commutes", "mirrored", "recomposed")
)
"""Columns that hold shares of one, beside accuracies and areas under a curve."""


_POSITIVE = frozenset(("n_layers", "lr", "at_step", "at_number", "stable_rank_at_init"))
"""Columns that hold numbers above 0, beside steps to something."""


_NOT_NEGATIVE = frozenset(("seed", "gamma", "weight_decay", "final_loss", "seconds"))


_LARGEST = 1e100
"""What every number stays below."""


_ALONG: tuple[Measure, ...] = ("mechanism", "behaviour")
"""What is measured at checkpoints between the first and the last."""


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
    measuring: float
    """About how many seconds measuring takes after that."""


def plan(
    names: Sequence[str],
    scale: str,
    out: Path,
    *,
    tables: Path | None = None,
    workers: int | None = None,
    device: str = "auto",
) -> Plan:
    """What :func:`gather` would do for these studies.

    Raises:
        ConfigError: an unknown study or scale.
    """
    wanted = _wanted(names, scale, tables)
    configs = {run: config for of in wanted for run, config in of.configs.items()}
    count = LocalEngine(workers, device).slots()
    todo = {run: config for of in wanted for run, config in of.todo().items()}
    cost = estimate(todo, SweepFolder(out / "sweep"), workers=count, device=device)
    jobs = [job for of in wanted for job in _jobs(of, set(of.todo()))]
    left = sum(SECONDS[job[0]] for job in jobs if kept(out, *job) is None)
    return Plan(len(configs), len(configs) - len(todo), cost, left / count)


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
            ``tables`` in ``out`` if None. Rows of finished runs in it are taken as they are, unless
            a number that the study measures is missing, at the end or at a checkpoint.
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
    wanted = _wanted(names, scale, place)
    todo = {run: config for of in wanted for run, config in of.todo().items()}
    found: dict[str, Row] = {}
    if todo:
        sweep(_grouped(todo.values()), folder / "sweep", engine=engine, quiet=quiet)
        found = {row["run_id"]: row for row in read_table(folder / "sweep")}
    done = {run for run in todo if found[run]["status"] == "done"}
    jobs = dict.fromkeys(job for of in wanted for job in _jobs(of, done))
    _measure(folder, [job for job in jobs if kept(folder, *job) is None], engine, quiet)
    gathered = {}
    for of in wanted:
        rows = [
            of.known[run] if run in of.known else _row(found[run], config, folder, of, scale)
            for run, config in of.configs.items()
        ]
        if lost := [row for row in rows if row["status"] != "done" and row["run_id"] in of.ended]:
            _LOGGER.warning(
                "%d runs of %s that had ended could not be trained anew, such as %s; what their "
                "table says of them is kept",
                len(lost),
                of.name,
                lost[0]["run_id"],
            )
            kept_rows = {row["run_id"]: of.ended[row["run_id"]] for row in lost}
            rows = [kept_rows.get(row["run_id"], row) for row in rows]
        _write(place / f"{of.name}.csv", rows)
        gathered[of.name] = rows
        if of.study.checkpoints:
            _write_checkpoints(checkpoints_table(place, of.name), of, folder, rows)
    return gathered


def _grouped(configs: Iterable[RunConfig]) -> Sweep:
    """The sweep of some runs: a grid for those that only differ in their seeds.

    Fewer seeds are another grid, so that a folder's ``spec.yaml`` can name a run more than once.
    """
    seeds: dict[RunConfig, list[int]] = {}
    for config in configs:
        seeds.setdefault(replace(config, seed=0), []).append(config.seed)
    return Sweep(tuple(Grid(config, seeds=tuple(found)) for config, found in seeds.items()))


def tables_folder(out: Path, tables: Path | None) -> Path:
    """Where the tables are: in a folder that was named and is there, or beside the runs.

    Raises:
        ConfigError: the folder that was named is none.
    """
    if tables is None:
        return out / "tables"
    if not tables.is_dir():
        raise ConfigError(f"{tables} is no folder; expected the folder of the studies' tables")
    return tables


def unfinished(gathered: Mapping[str, Sequence[Row]]) -> list[str]:
    """Runs that failed, or that lack a number which their study measures."""
    return [
        row["run_id"]
        for name, rows in gathered.items()
        for row in rows
        if row["status"] == "failed"
        or (
            row["status"] == "done"
            and not set(study(name).measures) <= set((row.get("measured") or "").split())
        )
    ]


def read_tables(
    folder: str | Path, names: Sequence[str] = tuple(STUDIES), *, scale: str | None = None
) -> dict[str, list[Row]]:
    """The tables of a folder; studies without one are left out.

    Args:
        folder: where they are.
        names: the studies.
        scale: refuse tables of another scale.

    Raises:
        StoreError: a damaged table, or one of another scale.
        ConfigError: no folder.
    """
    place = checked_path(folder, "tables")
    if not place.is_dir():
        raise ConfigError(f"{place} is no folder; expected the folder of the studies' tables")
    found = {}
    for name in names:
        path = place / f"{name}.csv"
        if path.is_file():
            found[name] = read_study(path)
            if scale is not None:
                check_scale(found[name], scale, path)
    return found


def read_study(path: str | Path) -> list[Row]:
    """The rows of one study's table.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    return _read(checked_path(path, "path"), _NEEDED | _OF_A_RUN, _row_of_a_run)


def _read(
    path: Path, needed: Set[str], row_of: Callable[[Mapping[str, Any], Sequence[str]], Row]
) -> list[Row]:
    """The rows of a table with these columns at least."""
    data = files.read_bytes(path, limit=_LIMIT)
    try:
        text = data.decode("utf-8-sig")  # as spreadsheets write it
        reader = csv.DictReader(io.StringIO(text), strict=True)
        columns = list(reader.fieldnames or ())
        if missing := needed - set(columns):
            raise ValueError(f"it lacks the column {sorted(missing)[0]}")
        if twice := [name for name, n in Counter(columns).items() if n > 1]:
            raise ValueError(f"it has the column {twice[0]} twice")
        rows = []
        for line in reader:
            try:
                rows.append(row_of(line, columns))
            except (ValueError, LookupError) as error:
                raise ValueError(f"line {reader.line_num}: {error}") from error
        found = Counter((row["run_id"], row.get("at_step")) for row in rows)
        if twice := [run for (run, _), n in found.items() if n > 1]:
            raise ValueError(f"the run {twice[0]} is there twice")
        return rows
    except (ValueError, LookupError, csv.Error) as error:
        raise StoreError(
            f"{path} is damaged: {error}; restore it, or remove it to have its runs trained anew"
        ) from error


def read_checkpoints(path: str | Path) -> list[Row]:
    """The rows of the mechanism along a study's checkpoints.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    rows = _read(checked_path(path, "path"), _NEEDED, _row_of)
    for row in rows:
        for name in ("at_step", "at_number"):
            if row.get(name) is None:
                raise StoreError(
                    f"{path} is damaged: the run {row['run_id']} lacks {name} in a row; "
                    "restore it, or remove it to have its runs trained anew"
                )
    return rows


def _row_of(line: Mapping[str, Any], columns: Sequence[str]) -> Row:
    if len(line) > len(columns):  # the reader's place for what is beyond the header
        raise ValueError("a line is too long")
    if None in line.values():
        raise ValueError("a line is too short")
    found = {}
    for name in columns:
        kind = COLUMNS.get(name) or _KINDS.get(name, "number")
        found[name] = parsed(name, line[name], kind)
        _check(name, found[name])
    if found["status"] == "done" and found["phase"] is None:
        raise ValueError("phase is empty, of a run that is done")
    return found


def _row_of_a_run(line: Mapping[str, Any], columns: Sequence[str]) -> Row:
    found = _row_of(line, columns)
    task = TASKS.get(found["task"])
    for name in ("id_accuracy", *(("ood_accuracy",) if task and task.unseen else ())):
        if found["status"] == "done" and found.get(name) is None:
            raise ValueError(f"{name} is empty, of a run that is done")
    return found


def _check(name: str, value: Any) -> None:
    """Refuse what no run of a study can have."""
    if value is None:
        if name in _FILLED:
            raise ValueError(f"{name} is empty")
    elif name in _NAMES:
        if value not in _NAMES[name]:
            raise ValueError(f"{name} is {shown(value)}; expected {', '.join(_NAMES[name])}")
    elif isinstance(value, int | float):
        if name in _SHARES or name.endswith("accuracy") or name.startswith("auroc"):
            fits, wanted = 0 <= value <= 1, "a share from 0 to 1"
        elif name in _POSITIVE or name.startswith(("steps", "late_pair")):
            fits, wanted = 0 < value < _LARGEST, "a number above 0"
        elif name in _NOT_NEGATIVE:
            fits, wanted = 0 <= value < _LARGEST, "a number of 0 or more"
        else:
            fits, wanted = abs(value) < _LARGEST, "a finite number"
        if not fits:
            raise ValueError(f"{name} is {shown(value)}; expected {wanted}")


@dataclass(frozen=True)
class _Wanted:
    """One study's runs, and the rows of those that its table already has."""

    name: str
    study: Study
    configs: dict[str, RunConfig]
    known: dict[str, Row]
    """Rows of finished runs with every number that the study measures, along the training too."""
    ended: dict[str, Row]
    """Rows of all finished runs."""
    along: dict[tuple[str, float], Row]
    """Rows of their checkpoints, by run and step."""

    def todo(self) -> dict[str, RunConfig]:
        """The runs without a row."""
        return {run: config for run, config in self.configs.items() if run not in self.known}


def _wanted(names: Sequence[str], scale: str, tables: Path | None) -> list[_Wanted]:
    """Raises StoreError where a table is of another scale."""
    wanted = []
    for name in names:
        configs, ended, along = study_sweep(name, scale).configs(), {}, {}
        checkpoints = study(name).checkpoints
        if tables is not None and checkpoints and checkpoints_table(tables, name).is_file():
            rows = read_checkpoints(checkpoints_table(tables, name))
            along = {(row["run_id"], row["at_step"]): row for row in rows}
        if tables is not None and (path := tables / f"{name}.csv").is_file():
            rows = read_study(path)
            check_scale(rows, scale, path)
            if other := [row["run_id"] for row in rows if row["run_id"] not in configs]:
                raise StoreError(
                    f"{path} has {len(other)} runs that are not of the study {name} at the scale "
                    f"{scale}, such as {other[0]}; remove these lines, or name another folder for "
                    "the tables"
                )
            ended = {row["run_id"]: row for row in rows if row["status"] == "done"}
        measures = set(study(name).measures)
        steps = {run: _between(configs[run]) if checkpoints else [] for run in ended}
        known = {
            run: row
            for run, row in ended.items()
            if measures <= set((row.get("measured") or "").split())
            and all((run, float(step)) in along for step in steps[run])
        }
        if lacking := len(ended) - len(known):
            _LOGGER.info(
                "%d of %d finished runs in the table of %s lack numbers that it measures",
                lacking,
                len(ended),
                name,
            )
        wanted.append(_Wanted(name, study(name), configs, known, ended, along))
    return wanted


def check_scale(rows: Sequence[Row], scale: str, path: Path) -> None:
    """Refuse a table of another scale.

    Raises:
        StoreError: names the table, its scale and what to do.
    """
    other = next((row["scale"] for row in rows if row.get("scale") not in (None, scale)), None)
    if other is not None:
        raise StoreError(
            f"{path} is of the scale {other}, not {scale}; name another folder for the tables"
        )


def _jobs(of: _Wanted, done: set[str]) -> list[tuple[str, str, int | None]]:
    """All that is to be measured of some runs of a study."""
    jobs: list[tuple[str, str, int | None]] = []
    for run, config in of.configs.items():
        if run in done:
            jobs += [(measure, run, None) for measure in of.study.measures]
            if of.study.checkpoints:
                jobs += [(measure, run, step) for step in _between(config) for measure in _ALONG]
    return jobs


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
    count = engine.slots() if isinstance(engine, LocalEngine) else available_cores()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "papers.measures", str(folder)]
    workers = []
    with reporting_all(len(jobs), len(jobs), what="measurements", quiet=quiet) as progress:
        progress.begin(0, 0)
        try:
            for first in range(min(count, len(jobs))):
                worker = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for this process, which ends them
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
                for pipe in (worker.stdin, worker.stdout):
                    if pipe is not None:
                        pipe.close()
    if missing := [job for job in jobs if kept(folder, *job) is None]:
        _LOGGER.warning(
            "%d of %d measurements are missing, %s of %s among them; give the command again",
            len(missing),
            len(jobs),
            missing[0][0],
            missing[0][1],
        )


def _row(row: Row, config: RunConfig, folder: Path, of: _Wanted, scale: str) -> Row:
    """A run's row with what is said of its task and what was measured."""
    out = {name: value for name, value in row.items() if name not in CIRCUMSTANCES}
    out |= {name: row[name] for name in _KEPT_CIRCUMSTANCES}
    out |= {"scale": scale} | task_columns(config.task)
    found = {measure: kept(folder, measure, row["run_id"]) for measure in of.study.measures}
    between = _between(config) if of.study.checkpoints else []
    lost = any(
        kept(folder, measure, row["run_id"], step) is None for step in between for measure in _ALONG
    )
    whole = [name for name, numbers in found.items() if numbers is not None and not lost]
    out["measured"] = " ".join(whole) or None
    for numbers in found.values():
        out |= numbers or {}
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
    names = dict.fromkeys([*_FIRST, *(name for row in rows for name in row), *sorted(_NEEDED)])
    columns = [
        name for name in names if name in _NEEDED or any(row.get(name) is not None for row in rows)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write the table {path}: {error}") from error
    files.write_output(path, text.getvalue().encode())


def checkpoints_table(tables: str | Path, name: str) -> Path:
    """Where the mechanism along a study's checkpoints is."""
    return Path(tables) / f"{name}-checkpoints.csv"


_ABOUT = (
    "run_id", "status", "phase", "censored", "seed", "task", "normalization", "gamma",
    "weight_decay", "n_layers", "steps",
)  # fmt: skip
"""What the table of checkpoints repeats of a run."""


def _write_checkpoints(path: Path, of: _Wanted, folder: Path, rows: Sequence[Row]) -> None:
    """The mechanism and the behaviour at every checkpoint between, beside what the run became."""
    found = []
    for row in rows:
        run = row["run_id"]
        for number, step in enumerate(_between(of.configs[run]), 1):
            numbers = kept(folder, "mechanism", run, step)
            then = kept(folder, "behaviour", run, step)
            if numbers is not None and then is not None:
                about = {key: row.get(key) for key in _ABOUT}
                about |= {"at_step": float(step), "at_number": float(number)}
                found.append(about | numbers | then)
            elif (run, float(step)) in of.along:
                found.append(of.along[run, float(step)])
    _write(path, found)
