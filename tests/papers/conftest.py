"""The committed tables, and what they say, read once."""

from pathlib import Path

import pytest

from anchor_interp.sweeps.table import Row
from papers.page import Ledger, make_ledger
from papers.tables import checkpoints_table, read_checkpoints, read_tables

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "experiments" / "tables" / "tiny"


@pytest.fixture(scope="session")
def committed() -> dict[str, list[Row]]:
    """Rows by study; leave them as they are."""
    return read_tables(TABLES)


@pytest.fixture(scope="session")
def checkpoints() -> list[Row]:
    return read_checkpoints(checkpoints_table(TABLES, "phases"))


@pytest.fixture(scope="session")
def ledger(committed: dict[str, list[Row]], checkpoints: list[Row]) -> Ledger:
    return make_ledger("tiny", committed, checkpoints)
