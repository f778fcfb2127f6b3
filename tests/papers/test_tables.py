"""Reading a study's table: what it needs, and what is refused."""

import csv
from pathlib import Path

import pytest

from anchor_interp._util.errors import ConfigError, StoreError
from papers import studies, wide
from papers.rows import Row
from papers.tables import read_tables

TABLES = Path(__file__).parents[2] / "experiments" / "tables" / "tiny"
A_ROW = {
    "run_id": "x", "status": "done", "phase": "other", "censored": "True", "seed": "1",
    "task": "neurips", "gamma": "0.5", "weight_decay": "0.1", "n_layers": "2", "steps": "40",
    "normalization": "post", "d_model": "16", "lr": "0.001", "n_sequences": "300",
    "id_accuracy": "0.5", "ood_accuracy": "0.1",
}  # fmt: skip
"""What a table needs to hold of a run, as text."""


def table_text(**changed: str | None) -> str:
    row = {name: value for name, value in (A_ROW | changed).items() if value is not None}
    return f"{','.join(row)}\n{','.join(row.values())}\n"


def test_a_row_with_the_needed_columns_is_enough(tmp_path: Path) -> None:
    (tmp_path / "decay.csv").write_text(table_text())
    (row,) = read_tables(tmp_path)["decay"]
    assert (row["run_id"], row["lr"], row["censored"]) == ("x", 0.001, True)


def test_a_field_of_a_task_is_a_number_or_a_text(tmp_path: Path) -> None:
    texts = {"task.holdout": "square", "task.n_numbers": "100", "task.reversed": "True"}
    (tmp_path / "decay.csv").write_text(table_text(**texts))
    (row,) = read_tables(tmp_path)["decay"]
    assert [row[name] for name in texts] == ["square", 100, True]


@pytest.mark.parametrize(("text", "message"), [
    ("", "lacks the column"),
    *((table_text(**{name: None}), f"lacks the column {name}") for name in [*A_ROW][:-1]),
    (table_text(censored="perhaps"), "conversion error to bool: invalid value 'perhaps'"),
    (table_text()[:-5] + "\n", "Expected 16 columns, got 15"),
    (table_text(seed="many"), "conversion error to int64: invalid value 'many'"),
    (table_text()[:-1] + ",2\n", "Expected 16 columns, got 17"),
    (table_text().replace("\n", ",seed\n", 1)[:-1] + ",2\n", "the column seed twice"),
    (table_text() + table_text().split("\n")[1] + "\n", "the run x is there twice"),
    (table_text(seed="1" * 400), "conversion error to int64: invalid value"),
])  # fmt: skip
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "decay.csv").write_text(text)
    with pytest.raises(StoreError, match=message):
        read_tables(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        read_tables(tmp_path / "nothing")


PARTLY_MEASURED = {"solutions"}  # the weights of five runs were lost before


def test_the_committed_tables_hold_every_run_of_their_studies(
    committed: dict[str, list[Row]],
) -> None:
    assert set(committed) <= {*studies.STUDIES, wide.STUDY}
    for name in studies.STUDIES.keys() & committed.keys():
        rows, planned = committed[name], list(studies.study_sweep(name, "tiny").configs())
        assert [row["run_id"] for row in rows] == planned
        assert {row["status"] for row in rows} <= {"done", "diverged"}


def test_no_committed_table_is_too_wide_to_read() -> None:
    for path in TABLES.glob("*.csv"):
        with open(path, encoding="utf-8") as file:
            assert len(next(csv.reader(file))) < 130
