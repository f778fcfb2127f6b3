"""A sweep's table as CSV, Parquet and JSON, and back."""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anchor_interp._util.schema import shown
from anchor_interp.sweeps.columns import ADDED, COLUMNS, Kind, check_columns, columns_of, with_own
from anchor_interp.sweeps.settings import TableRow

SCHEMA = 1  # of a table


def to_csv(found: Sequence[TableRow]) -> str:
    """A table as CSV; a missing value is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(found), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def from_csv(text: str) -> list[TableRow]:
    """Read the rows of :func:`to_csv`; a column that an older table lacks is empty.

    A further column holds numbers if all its values can be read as such.

    Raises:
        ValueError: the table lacks a column, or a field does not fit its column.
    """
    reader = csv.DictReader(io.StringIO(text), strict=True)
    names = list(reader.fieldnames or ())
    check_columns([*names, *(name for name in ADDED if name not in names)])
    lines = list(reader)
    own = {n: kind_of_texts([line[n] for line in lines]) for n in names if n not in COLUMNS}
    columns = with_own(own).items()
    return [{name: parsed(name, line.get(name) or "", kind) for name, kind in columns}
            for line in lines]  # fmt: skip


def parsed(name: str, text: str, kind: Kind) -> Any:
    """The value of a CSV field, None if it is empty; ValueError if it does not fit its column."""
    truths = {"True": True, "False": False}
    read: Mapping[Kind, Callable[[str], Any]] = {"text": str, "integer": int, "number": float}
    try:
        return None if text == "" else read.get(kind, truths.__getitem__)(text)
    except (ValueError, LookupError):
        expected = "True or False" if kind == "truth" else "a number"
        raise ValueError(f"{name} is {shown(text)}; expected {expected}") from None


def kind_of_texts(texts: Iterable[str]) -> Kind:
    """The first kind that can read all texts of a CSV column."""
    given = [text for text in texts if text]
    kinds: tuple[Kind, ...] = ("integer", "number", "truth")
    for kind in kinds if given else ():
        with contextlib.suppress(ValueError):
            for text in given:
                parsed("", text, kind)
            return kind
    return "text"


def to_parquet(found: Sequence[TableRow], *, spec: str = "") -> bytes:
    """A table as the contents of a Parquet file, with the digest of its ``spec.yaml``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _parquet_schema(columns_of(found))
    schema = schema.with_metadata({"schema": str(SCHEMA), "spec": spec})
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(list(found), schema=schema)
    pq.write_table(table, sink, write_page_checksum=True)
    return bytes(sink.getvalue())


def from_parquet(data: bytes, *, older: bool = False) -> tuple[list[TableRow], str]:
    """Read the rows and the digest of :func:`to_parquet`; ``older`` adds columns lacking in them.

    Raises:
        ValueError: the data is damaged or not a table, has another schema or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # an Arrow thread that is alive at exit can abort the process (apache/arrow#34314)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, TypeError) as error:
        raise ValueError(str(error)) from error
    about = table.schema.metadata or {}
    if about.get(b"schema") != str(SCHEMA).encode():
        raise ValueError(f"schema {about.get(b'schema')!r:.40}, this version reads {SCHEMA}")
    types = {kind: name for name, kind in _parquet_types().items()}
    fields_of = {entry.name: types.get(entry.type, "text") for entry in table.schema}
    wanted = _parquet_schema(with_own({n: k for n, k in fields_of.items() if n not in COLUMNS}))
    for name in set(ADDED) - set(table.column_names) if older else ():
        entry = wanted.field(name)
        table = table.append_column(entry, pa.nulls(table.num_rows, entry.type))
    check_columns(table.column_names)
    table = table.select(wanted.names)  # in our order
    if not table.schema.equals(wanted):
        raise ValueError("its columns hold values of other types")
    return table.to_pylist(), about.get(b"spec", b"").decode()


def _parquet_schema(columns: Mapping[str, Kind]) -> Any:
    import pyarrow as pa

    types = _parquet_types()
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _parquet_types() -> dict[Kind, Any]:
    import pyarrow as pa

    return {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}


def to_json(found: Sequence[TableRow]) -> str:
    """A table as one JSON object."""
    return json.dumps({"schema": SCHEMA, "runs": list(found)})
