"""A study's table: a CSV file with one row a run.

Its columns are those of a sweep's table (:data:`anchor_interp.sweeps.columns.COLUMNS`) that any of
its runs fills, what is said of its task, and what was measured. Numbers are written in full, so
that what is computed from a table is the same on every machine.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.sweeps.columns import COLUMNS, Kind
from anchor_interp.sweeps.table_files import read_csv

from . import wide
from .rows import Row
from .studies import STUDIES

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

_LIMIT = 1 << 28


def existing_folder(path: Path) -> Path:
    """A folder of tables."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; expected the folder of the studies' tables")
    return path


def read_tables(
    folder: Path, names: Sequence[str] = tuple(STUDIES), *, scale: str | None = None
) -> dict[str, list[Row]]:
    """The tables of a folder by study; studies without one are left out."""
    paths = {name: existing_folder(folder) / f"{name}.csv" for name in names}
    found = {name: read_study(path) for name, path in paths.items() if path.is_file()}
    for name, rows in found.items():
        check_scale(rows, scale, paths[name])
    if (curves := wide.curves_table(folder)).is_file() and set(names) >= set(STUDIES):
        found[wide.STUDY] = wide.witnesses(wide.read_curves(curves))
    return found


def check_scale(rows: Sequence[Row], scale: str | None, path: Path) -> None:
    """Refuse a table of another scale."""
    other = next((row["scale"] for row in rows if row.get("scale") not in (None, scale)), None)
    if other is not None and scale is not None:
        raise StoreError(
            f"{path} is of the scale {other}, not {scale}; name another folder for the tables"
        )


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a table with the columns that any row fills."""
    filled = {name for row in rows for name, value in row.items() if value is not None} | _WRITTEN
    names = dict.fromkeys([*_FIRST, *(name for row in rows for name in row), *sorted(_WRITTEN)])
    columns = [name for name in names if name in filled]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
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
        if twice := [name for name, n in Counter(columns).items() if n > 1]:
            raise ValueError(f"it has the column {twice[0]} twice")
        kinds = {name: _kind(name) for name in columns if not name.startswith(("task.", "model."))}
        rows: list[Row] = read_csv(text, kinds).to_pylist()
        if twice := [run for run, n in Counter(row["run_id"] for row in rows).items() if n > 1]:
            raise ValueError(f"the run {twice[0]} is there twice")
        return rows
    except (ValueError, csv.Error) as error:
        raise StoreError(
            f"{path} is damaged: {error}; restore it, or remove it to have its runs trained anew"
        ) from error


def _kind(name: str) -> Kind:
    """What a column holds that is not a task's own field."""
    return COLUMNS.get(name) or _KINDS.get(name, "double")
