"""What is trained, and its tables.

A *study* is a set of runs with what is measured of each. Its table is a CSV file with a row a run:
the columns of a sweep's table (:data:`anchor_interp.sweeps.columns.COLUMNS`), what is said of its
task, and what was measured. Numbers are written in full, so that what is computed from a table is
the same on every machine.
"""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from anchor_interp import AnchorTask, Run, RunConfig, Task
from anchor_interp._util import files
from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.runs.config import override as override  # what studies are made of
from anchor_interp.runs.measurements import Measure
from anchor_interp.runs.presets import preset as preset
from anchor_interp.runs.schedule import last_step
from anchor_interp.sweeps.columns import CIRCUMSTANCES, COLUMNS, Kind
from anchor_interp.sweeps.engine import Engine
from anchor_interp.sweeps.folder import SweepFolder, read_table
from anchor_interp.sweeps.spec import SWEEPS, Sweep, read_sweep
from anchor_interp.sweeps.spec import Grid as Grid
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table_files import read_csv
from anchor_interp.tasks.functions import Pair
from claim_effects import Row, Rows
from claims import scripts
from measures import MEASURES, numbers

TABLES = Path(__file__).parent / "tables"
# What columns hold beside those of a sweep's table. A field of a task, such as ``task.holdout``, is
# what all its values can be read as; all others hold numbers.
_TEXTS = ("broken", "offsets", "scale", "measured", "predicts", "weights")
_KINDS: Mapping[str, Kind] = {"complexity": "int64", **dict.fromkeys(_TEXTS, "string")}
# Columns that every table has; that of a U-Net's runs lacks some of the others.
_WRITTEN = frozenset((
    "run_id", "status", "censored", "seed", "task", "gamma", "weight_decay", "steps", "phase",
    "normalization", "n_layers",
))  # fmt: skip
_NEEDED = _WRITTEN | {"d_model", "lr", "n_sequences", "id_accuracy"}
_NOT_OF_A_UNET = frozenset(("normalization", "n_layers", "d_model", "id_accuracy"))
_FIRST = ("censored", "phase", "run_id", "seed", "status")  # columns that a table begins with
_KEPT_CIRCUMSTANCES = ("seconds", "machine", "cpu", "torch")
_LIMIT = 1 << 28


@dataclass(frozen=True)
class Study:
    """Runs that are trained and measured together."""

    title: str  # what is varied, in a few words
    grids: Callable[[], Sequence[Grid]]
    measures: tuple[str, ...] = ()  # what is measured of each run, beside its evaluation
    folder: str = "tiny"  # where its table stands in the folder of tables
    read: Callable[[Path], list[Row]] = lambda path: read_study(path)
    train: Callable[[Path, Path, str], None] | None = None
    """How its runs are trained into a folder and their table is written, if not as a sweep."""

    def sweep(self) -> Sweep:
        """All its runs, in the order of training."""
        return Sweep(tuple(self.grids()))

    def table(self, tables: Path, name: str) -> Path:
        """Where the table of this study stands in a folder of tables."""
        return tables / self.folder / f"{name}.csv"

    def measured(self, row: Row) -> bool:
        """Whether a row has every number that the study measures."""
        return set(self.measures) <= _measured(row)


class Data(Mapping[str, list[Row]]):
    """The rows of every study, read when they are asked for, and runs to look into."""

    def __init__(self, tables: Path = TABLES, own: Sequence[Run] = ()) -> None:
        self.tables, self.own = tables, own  # runs of the user, in place of the packaged models
        self._paths = {name: study.table(tables, name) for name, study in known().items()}
        self._read: dict[str, list[Row]] = {}

    def __getitem__(self, name: str) -> list[Row]:
        if name not in self._read:
            if not (name in self._paths and self._paths[name].is_file()):
                raise KeyError(name)
            self._read[name] = known()[name].read(self._paths[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, path in self._paths.items() if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def rows(self, *names: str) -> list[Row]:
        """The rows of some studies that a figure needs."""
        if missing := [name for name in names if name not in self]:
            raise ConfigError(
                f"{self.tables} has no table of the study {missing[0]}; run this with --train"
            )
        return [row for name in names for row in self[name]]


@cache
def known() -> dict[str, Study]:
    """The studies of all scripts, by name."""
    from random_settings import RUNS

    runs = (RUNS, *(getattr(script, "RUNS", {}) for script in scripts().values()))
    return {name: study for of in runs for name, study in of.items()}


def train(
    names: Iterable[str], out: Path, tables: Path, engine: Engine, *, quiet: bool = False
) -> list[str]:
    """Train and measure what the tables of some studies lack, and write them.

    It can be stopped and resumed at any point: runs and what is measured of them stand in a sweep
    folder. The row of a finished run stays, unless the run ends once more with all the numbers that
    the row has, and more. Returns runs that failed or lack a number that this device could make.
    """
    asked = {name: known()[name] for name in names}
    for name, of in asked.items():
        if of.train is not None:
            of.train(out, of.table(tables, name), engine.device)
    wanted = [_Wanted(name, of, tables) for name, of in asked.items() if of.train is None]
    measures: dict[str, list[Measure]] = {}
    configs: dict[str, RunConfig] = {}
    for one in wanted:
        for run, config in one.todo(engine.device).items():
            configs[run] = config
            mine = measures.setdefault(run, [])
            mine += [MEASURES[m] for m in one.study.measures if MEASURES[m] not in mine]
    folder, found = SweepFolder(out / "sweep"), dict[str, Row]()
    if configs:
        each = Sweep(tuple(Grid(config, seeds=(config.seed,)) for config in configs.values()))
        sweep(each, folder.path, engine=engine, measures=measures, quiet=quiet)
        found = {row["run_id"]: row for row in read_table(folder.path)}
    lacking = []
    for one in wanted:
        for run in one.todo(engine.device).keys() & found.keys():
            one.add(_row(found[run], one.configs[run], folder, one.study))
        rows = [one.rows[run] for run in one.configs if run in one.rows]
        if rows:
            write_rows(one.path, rows)
        left = one.todo(engine.device)
        lacking += [run for run, row in one.rows.items()
                    if run in left and row["status"] in ("failed", "done")]  # fmt: skip
    return lacking


class _Wanted:
    """One study's runs, and what its table has of them."""

    def __init__(self, name: str, of: Study, tables: Path) -> None:
        self.study, self.configs, self.path = of, of.sweep().configs(), of.table(tables, name)
        rows = of.read(self.path) if self.path.is_file() else []
        if other := [row["run_id"] for row in rows if row["run_id"] not in self.configs]:
            raise StoreError(
                f"{self.path} has {len(other)} runs that are not of the study {name}, such as "
                f"{other[0]}; remove these lines, or name another folder for the tables"
            )
        self.rows = {row["run_id"]: row for row in rows}

    def todo(self, device: str) -> dict[str, RunConfig]:
        """The runs without a row that has every number, as far as a device can train them."""
        there = {run for run, row in self.rows.items()
                 if row["status"] == "done" and self.study.measured(row)}  # fmt: skip
        todo = {run: config for run, config in self.configs.items() if run not in there}
        if resolve_device(device).type == "cuda":
            return todo
        return {run: one for run, one in todo.items() if one.train.precision != "tf32"}

    def add(self, row: Row) -> None:
        """Take the row of a run that has ended."""
        old = self.rows.get(row["run_id"])
        richer = row["status"] == "done" and _measured(row) > _measured(old or {})
        if old is None or old["status"] != "done" or richer:
            self.rows[row["run_id"]] = row


def _measured(row: Row) -> set[str]:
    return set((row.get("measured") or "").split())


def _row(row: Row, config: RunConfig, folder: SweepFolder, of: Study) -> Row:
    """A run's row with what is said of its task and what was measured."""
    out = {name: value for name, value in row.items() if name not in CIRCUMSTANCES}
    out |= {name: row[name] for name in _KEPT_CIRCUMSTANCES} | task_columns(config.task)
    last = last_step(config.train.steps, row["fitted_step"])
    found = {name: numbers(folder.runs / row["run_id"], name, last) for name in of.measures}
    out["measured"] = " ".join(name for name, kept in found.items() if kept is not None) or None
    return out | {name: n for values in found.values() for name, n in (values or {}).items()}


def diagram(name: str, n_seeds: int) -> list[Grid]:
    """What a phase diagram of the package trains, with more seeds than the papers' three."""
    grids = read_sweep(SWEEPS[name]).grids
    return [replace(g, seeds=tuple(range(g.seeds[0], g.seeds[0] + n_seeds))) for g in grids]


def task_columns(task: Task) -> Row:
    """What a table says of anchors: how many groups break the rule, which, and their functions."""
    if not isinstance(task, AnchorTask):
        return {}
    broken = broken_groups(task)
    return {
        "complexity": len(broken),
        "broken": " ".join(f"{a}{b}" for a, b in broken) or None,
        "offsets": " ".join(str(anchor.function) for anchor in task.anchors),
    }


def broken_groups(task: AnchorTask) -> tuple[Pair, ...]:
    """The unordered pairs, as (a, b) with a < b, that break the rule alike in both orders.

    Their number is the task's inferential complexity (NeurIPS paper, section 6), called reasoning
    complexity in the complexity-control paper (section VIII).
    """
    return tuple(
        (a, b)
        for a, b in itertools.combinations(sorted(task.tokens), 2)
        if (one := task.override((a, b))) is not None and one == task.override((b, a))
    )


def write_rows(path: Path, rows: Rows) -> None:
    """Write a table with the columns that any row fills."""
    filled = {name for row in rows for name, value in row.items() if value is not None} | _WRITTEN
    names = dict.fromkeys([*_FIRST, *(name for row in rows for name in row), *sorted(_WRITTEN)])
    write_csv(path, rows, [name for name in names if name in filled])


def write_csv(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    """Write these columns of some rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_output(path, text.getvalue().encode())


def read_study(path: Path) -> list[Row]:
    """The rows of one study's table."""
    data = files.read_bytes(path, limit=_LIMIT)
    try:
        text = data.decode("utf-8-sig")  # as spreadsheets write it
        columns = next(csv.reader(io.StringIO(text)), [])
        needed = _NEEDED - _NOT_OF_A_UNET if "model.n_features" in columns else _NEEDED
        if missing := needed - set(columns):
            raise ValueError(f"it lacks the column {sorted(missing)[0]}")
        kinds = {name: COLUMNS.get(name) or _KINDS.get(name, "double")
                 for name in columns if not name.startswith(("task.", "model."))}  # fmt: skip
        rows: list[Row] = read_csv(text, kinds).to_pylist()
        if twice := [run for run, n in Counter(row["run_id"] for row in rows).items() if n > 1]:
            raise ValueError(f"the run {twice[0]} is there twice")
        return rows
    except (ValueError, csv.Error) as error:
        raise StoreError(
            f"{path} is damaged: {error}; restore it, or remove it to have its runs trained anew"
        ) from error
