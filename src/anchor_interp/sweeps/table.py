"""The table of a sweep: one row per run, derived from the run folders.

``table.parquet`` holds the columns of :mod:`anchor_interp.sweeps.columns`, a column such as
``task.held_out`` for a field of a task that is not among them, and a user's measures
(:func:`anchor_interp.runs.measurements.column_measure`). What a run lacks is null;
:mod:`anchor_interp.sweeps.measuring` takes measures that are missing. Remove it to rebuild it.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.schema import checked_path
from anchor_interp.runs.phase import Phase
from anchor_interp.sweeps.columns import STATES, State
from anchor_interp.sweeps.folder import MAX_TABLE_BYTES, SweepFolder
from anchor_interp.sweeps.settings import TableRow
from anchor_interp.sweeps.table_files import DAMAGES, from_csv, from_parquet


def read_table(path: str | Path) -> list[TableRow]:
    """The rows of a sweep folder, or of a Parquet or CSV table.

    Raises:
        StoreError: the table is missing or damaged; ConfigError if the path is not a table.
    """
    path = checked_path(path, "the path of the table")
    if path.is_dir():
        return SweepFolder(path).rows()
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(
            f"{path} is not a table; expected a sweep folder, a .parquet or a .csv file"
        )
    data = files.read_bytes(path, limit=MAX_TABLE_BYTES)
    with raising(StoreError, f"{path} is damaged: ", "; write it again", of=DAMAGES):
        is_csv = path.suffix == ".csv"
        rows = from_csv(data.decode()) if is_csv else from_parquet(data, older=True)[0]
    return list(rows)


def counts(rows: Iterable[TableRow]) -> dict[State, int]:
    """How many runs are in each state that occurs."""
    number = Counter(row["status"] for row in rows)
    return {state: number[state] for state in STATES if number[state]}


def phases(rows: Iterable[TableRow]) -> dict[str, int]:
    """How many finished runs are in each phase."""
    number = Counter(row["phase"] for row in rows if row["phase"] is not None)
    return {phase: number[phase] for phase in get_args(Phase) if number[phase]}
