"""Sweep folders on disk: what was asked for, the runs, and their errors.

::

    SWEEP/  spec.yaml               every grid that was asked for so far
            .lock                   held while spec.yaml or the table is written
            runs/<run_id>/          run folders (see anchor_interp.runs.store)
            failures/<run_id>.json  the error of a run that did not end
            table.parquet           derived: remove it to rebuild it

The state of a run is what its folder shows: a result means done, a lock that is held means running.
The table has a row for each run, with the columns of :mod:`anchor_interp.sweeps.columns`, a column
such as ``task.held_out`` for a field of a task that is not among them, and a user's measures
(:func:`anchor_interp.runs.measurements.column_measure`). What a run lacks is null;
:func:`anchor_interp.sweeps.sweep.measure_runs` takes measures that are missing. A row is reused
while the files of its run that it was made from stay the same.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from anchor_interp._util import errors, files
from anchor_interp._util.errors import AnchorInterpError, ConfigError, StoreError, raising
from anchor_interp._util.lock import Lock, NoLocksError, is_held
from anchor_interp._util.schema import checked_path, digest
from anchor_interp.behaviour.phase import Phase
from anchor_interp.sweeps.columns import COLUMNS, RunStatus, TableRow, aligned
from anchor_interp.sweeps.rows import planned_row, updated_row
from anchor_interp.sweeps.spec import MAX_BYTES, Grid, Sweep, plain_sweep, read_sweep, written
from anchor_interp.sweeps.table_files import DAMAGES, from_csv, from_parquet, to_parquet

if TYPE_CHECKING:
    import pandas

SCHEMA = 1  # of failures
MAX_TABLE_BYTES = 1 << 30
ENDED: frozenset[RunStatus] = frozenset(("done", "diverged"))
"""States of runs that are not trained any more."""
_PATIENCE_SECONDS = 60.0
_OURS = frozenset(("spec.yaml", "runs", "failures", "table.parquet"))


@dataclass(frozen=True)
class Failure:
    """Why a run did not end: the name of the error's class and its message."""

    kind: str
    message: str


@dataclass(frozen=True)
class SweepFolder:
    """The files of one sweep."""

    path: Path

    @property
    def runs(self) -> Path:
        """Where the run folders are."""
        return self.path / "runs"

    @property
    def spec_file(self) -> Path:
        """The file that says what was asked for."""
        return self.path / "spec.yaml"

    def spec(self) -> Sweep:
        """Everything that was asked for; StoreError if this is not a sweep folder."""
        return read_sweep(sweep_folder(self.path).spec_file, exact=True)

    def resumed(self, sweep: Sweep) -> Sweep:
        """A sweep with this folder's grids in place of those that are equal up to the last digit.

        So the runs of a folder that holds 0.6000000000000001 are resumed, not trained again at 0.6.
        """
        before = self.spec().grids if files.is_there(self.spec_file) else ()
        known = [(Grid(each.start, each.axes, each.together, each.seeds), each) for each in before]
        kept = (next((own for short, own in known if short == g), g) for g in sweep.grids)
        return Sweep(tuple(kept))

    def extend(self, sweep: Sweep) -> Sweep:
        """Add a sweep to what was asked for, and return all of it; creates a missing folder.

        StoreError if the folder holds something else, cannot be written, or is locked.
        """
        with self._writing():
            foreign = {name for name in _names(self.path) if not name.startswith(".")} - _OURS
            if foreign and not files.is_there(self.spec_file):
                text = f"{self.path} is not a sweep folder but holds {min(foreign)!r}"
                raise StoreError(f"{text}; give the sweep a folder of its own")
            self.runs.mkdir(parents=True, exist_ok=True)
            (self.path / "failures").mkdir(exist_ok=True)
            with self.locked():
                grids = self.spec().grids if files.is_there(self.spec_file) else ()
                new = [grid for grid in sweep.grids if grid not in grids]
                whole = Sweep((*grids, *new))
                if new:
                    files.write_text(self.spec_file, _yaml(whole))
                return whole

    def table(self) -> "pandas.DataFrame":
        """The :meth:`rows` as a DataFrame."""
        import pandas

        rows = self.rows()
        return pandas.DataFrame(rows, columns=list(rows[0] if rows else COLUMNS))

    def rows(self) -> list[TableRow]:
        """One row for every run of the sweep, in order and up to date."""
        return self._rows(self._spec_digest())

    def write_table(self) -> list[TableRow]:
        """Bring ``table.parquet`` up to date and return its rows."""
        spec = self._spec_digest()
        with self._writing(), self.locked(needed=False):
            rows = self._rows(spec)  # locked: an older table must not replace a newer one
            files.write_output(self.path / "table.parquet", to_parquet(rows, spec=spec))
        return rows

    def state(self, name: str) -> RunStatus:
        """What a run's folder shows."""
        run = self.runs / name
        if files.is_there(run / "result.json"):
            return "done"
        if is_held(run / ".lock"):
            return "running"
        if failure := self.failure(name):
            return "diverged" if failure.kind == errors.DivergedError.__name__ else "failed"
        return "begun" if files.is_there(run / "config.json") else "missing"

    def states(self, names: Iterable[str]) -> dict[str, RunStatus]:
        """The states of several runs; runs without a folder or an error cost nothing."""
        there = {*_names(self.runs), *(name[:-5] for name in _names(self.path / "failures"))}
        return {name: self.state(name) if name in there else "missing" for name in names}

    def failure(self, name: str) -> Failure | None:
        """Why a run did not end; None if it did or was never tried."""
        path = self._failure_file(name)
        if not files.is_there(path):
            return None
        with contextlib.suppress(StoreError, LookupError, TypeError):
            data = files.read_json(path)
            return Failure(str(data["kind"]), str(data["message"]))
        return Failure("StoreError", f"{path} is damaged; remove it")

    def note_failure(self, name: str, error: AnchorInterpError) -> None:
        """Keep a run's error; StoreError if it cannot be written."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        record = {"schema": SCHEMA, "run_id": name, "kind": type(error).__name__}
        record |= {"message": str(error), "when": when}
        with self._writing():
            files.write_json(self._failure_file(name), record)

    def forget_failure(self, name: str) -> None:
        """Remove the error of a run, if there is one."""
        with contextlib.suppress(OSError):
            self._failure_file(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, *, needed: bool = True) -> Iterator[None]:
        """Hold the lock of ``spec.yaml`` and the table; LockedError if another has it a minute.

        Where the file system has no locks, go on without one that is not ``needed``.
        """
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(Lock.acquire(self.path / ".lock", patience=_PATIENCE_SECONDS))
            except NoLocksError:
                if needed:
                    raise
            yield

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        """StoreError if the file system refuses something."""
        return raising(StoreError, f"cannot write to the sweep folder {self.path}: ", of=OSError)

    def _failure_file(self, name: str) -> Path:
        return self.path / "failures" / f"{name}.json"

    def _spec_digest(self) -> str:
        """A digest of ``spec.yaml``."""
        data = files.read_bytes(sweep_folder(self.path).spec_file, limit=MAX_BYTES)
        return digest(data.decode("utf-8", "replace"))

    def _rows(self, spec: str) -> list[TableRow]:
        """The rows. The digest is read before them, so it is never newer than they are."""
        before = self._table_rows(spec)
        if before is None:
            before = aligned([planned_row(*run) for run in self.spec().configs().items()])
        rows = []
        states = self.states(row["run_id"] for row in before)
        for row, (name, state) in zip(before, states.items(), strict=True):
            failure = self.failure(name) if state in ("diverged", "failed") else None
            error = failure.message if failure else None
            rows.append(updated_row(row, self.runs / name, state, error))
        same = all(row.keys() == rows[0].keys() for row in rows)
        return rows if same else aligned(rows)  # some have other measures

    def _table_rows(self, spec: str) -> list[TableRow] | None:
        """The rows of the existing table, if it has all columns and this spec."""
        with contextlib.suppress(StoreError, *DAMAGES):  # a missing or damaged one is rebuilt
            data = files.read_bytes(self.path / "table.parquet", limit=MAX_TABLE_BYTES)
            rows, of_spec = from_parquet(data)
            return rows if of_spec == spec else None
        return None


def read_table(path: str | Path, *, whole: bool = True) -> list[TableRow]:
    """The rows of a sweep folder, or of a Parquet or CSV table, which has all columns if whole.

    Raises:
        StoreError: the table is missing or not a sweep's; ConfigError if the path is not a table.
    """
    path = checked_path(path, "the path of the table")
    if path.is_dir():
        return SweepFolder(path).rows()
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"{path} is not a sweep folder, a .parquet or a .csv file")
    data = files.read_bytes(path, limit=MAX_TABLE_BYTES)
    what_to_do = "; write one with anchor-interp table SWEEP --csv > FILE"
    with raising(StoreError, f"{path} is not a sweep's table: ", what_to_do, of=DAMAGES):
        is_csv = path.suffix == ".csv"
        rows = from_csv(data.decode(), whole=whole) if is_csv else from_parquet(data)[0]
    return list(rows)


def counts(rows: Iterable[TableRow]) -> dict[RunStatus, int]:
    """How many runs are in each state that occurs."""
    number = Counter(row["status"] for row in rows)
    return {state: number[state] for state in get_args(RunStatus) if number[state]}


def phases(rows: Iterable[TableRow]) -> dict[str, int]:
    """How many finished runs are in each phase."""
    number = Counter(row["phase"] for row in rows if row["phase"] is not None)
    return {phase: number[phase] for phase in get_args(Phase) if number[phase]}


def _yaml(sweep: Sweep) -> str:
    """The text of ``spec.yaml``; ConfigError if it could not be read again."""
    text = written(plain_sweep(sweep))
    if len(text) > MAX_BYTES:
        text = f"spec.yaml would exceed {MAX_BYTES:,} bytes"
        raise ConfigError(f"{text}; give each part its own folder")
    return text


def new_folder(path: str | Path) -> SweepFolder:
    """The sweep folder that a sweep goes to; StoreError if it is a file or a run's folder."""
    return SweepFolder(files.output_folder(checked_path(path, "out"), "the sweep", "run"))


def sweep_folder(path: str | Path) -> SweepFolder:
    """The sweep folder at a path; StoreError if there is none."""
    folder = SweepFolder(checked_path(path, "the path of the sweep"))
    if not files.is_there(folder.spec_file):
        raise StoreError(f"{folder.path} is not a sweep folder: it has no spec.yaml")
    return folder


def _names(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(path)
    return []
