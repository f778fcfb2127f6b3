"""A sweep's table as CSV, Parquet and JSON, and back.

Arrow reads and writes the values; :mod:`anchor_interp.sweeps.columns` says which columns there are.
Arrow gets no threads: one that is alive at exit can abort the process (apache/arrow#34314).
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from anchor_interp.sweeps.columns import COLUMNS, Kind, TableRow, columns_of, with_own

if TYPE_CHECKING:
    import pyarrow

SCHEMA = 1  # of a table
_MISSING = ["", "NaN", "nan"]
DAMAGES = (ValueError, LookupError, OSError, TypeError, NotImplementedError)
"""What reading a damaged table raises."""


def to_json(rows: Sequence[TableRow]) -> str:
    """A table as one JSON object."""
    return json.dumps({"schema": SCHEMA, "runs": list(rows)})


def to_csv(rows: Sequence[TableRow]) -> str:
    """A table as CSV; a missing value is an empty field."""
    import pandas

    table = pandas.DataFrame(rows, columns=list(columns_of(rows)), dtype=object)
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text


def from_csv(text: str, *, whole: bool = True) -> list[TableRow]:
    """Read the rows of :func:`to_csv`; if not ``whole``, of a file that may lack columns.

    The flag ``censored`` of such a file may be a text.
    """
    if whole:
        return _rows(read_csv(text, COLUMNS))
    kinds = {name: kind for name, kind in COLUMNS.items() if name != "censored"}
    return list(read_csv(text, kinds).to_pylist())


def read_csv(text: str, kinds: Mapping[str, Kind]) -> "pyarrow.Table":
    """The columns of a CSV file, in which a field that is empty or NaN is null.

    Arrow infers what a column holds that ``kinds`` does not name. ValueError if a line is too long
    or too short, a field does not fit its column, or a column occurs twice.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    data = text.encode()
    table = arrow_csv.read_csv(
        pa.BufferReader(data),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1),
        arrow_csv.ParseOptions(newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict(kinds), null_values=_MISSING, strings_can_be_null=True
        ),
    )
    names = table.column_names
    for name in (name for place, name in enumerate(names) if name in names[:place]):
        raise ValueError(f"the column {name!r} occurs twice; keep one")
    return table


def to_parquet(rows: Sequence[TableRow], *, spec: str = "") -> bytes:
    """A table as the contents of a Parquet file, with the digest of its ``spec.yaml``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(columns_of(rows)).with_metadata({"schema": str(SCHEMA), "spec": spec})
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(list(rows), schema=schema)
    pq.write_table(table, sink, write_page_checksum=True)
    return bytes(sink.getvalue())


def from_parquet(data: bytes) -> tuple[list[TableRow], str]:
    """Read the rows and the digest of :func:`to_parquet`.

    One of :data:`DAMAGES` if it is not a table, has another schema or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    table = file.read(use_threads=False)
    about = table.schema.metadata or {}
    if about.get(b"schema") != str(SCHEMA).encode():
        raise ValueError(f"schema {about.get(b'schema')!r:.40}, this version reads {SCHEMA}")
    return _rows(table), about.get(b"spec", b"").decode()


def _rows(table: "pyarrow.Table") -> list[TableRow]:
    """The rows of a table that was read, with its columns in order."""
    import pyarrow as pa

    kinds: dict[Any, Kind] = {pa.type_for_alias(kind): kind for kind in get_args(Kind)}
    own = {f.name: kinds.get(f.type, "string") for f in table.schema if f.name not in COLUMNS}
    schema = _schema(with_own(own))
    if missing := [name for name in schema.names if name not in table.column_names]:
        raise ValueError(f"it lacks the column {missing[0]}")
    rows: list[TableRow] = table.select(schema.names).cast(schema).to_pylist()
    return rows


def _schema(columns: Mapping[str, Kind]) -> "pyarrow.Schema":
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
