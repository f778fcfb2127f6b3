"""Measurements of docs/evidence: whose runs they take."""

import sys
from pathlib import Path

import pytest

from evidence import measured


@pytest.mark.parametrize("name", ["cells", "nearby"])
def test_a_measurement_of_given_runs_asks_for_run_folders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for runs of the recipes."""
    monkeypatch.setattr(sys, "argv", ["evidence", name, "--runs", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        measured.main()
    assert left.value.code
    said = f"{name}: {tmp_path} holds no finished run; expected run folders in it\n"
    assert capsys.readouterr().err == said
