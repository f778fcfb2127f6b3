"""Files that a user asks for: written whole, at the place named, never over a run's files."""

from pathlib import Path

import pytest

from anchor_interp._util.errors import AnchorInterpError, StoreError
from anchor_interp._util.files import write_output
from anchor_interp.analysis.report_data import gather
from anchor_interp.pages.report import write_report
from anchor_interp.runs.run import Run


def test_files_of_a_run_are_not_overwritten(finished_run: Run) -> None:
    findings = gather([finished_run.folder.path])
    for name in ("config.json", "result.json", "metrics.jsonl", "checkpoints/00000040/state.json"):
        path = finished_run.folder.path / name
        before = path.read_bytes()
        with pytest.raises(StoreError, match=r"is a file of the run .*; name another"):
            finished_run.export(path)
        with pytest.raises(StoreError, match=r"is a file of the run .*; name another"):
            write_report(findings, path)
        assert path.read_bytes() == before
    finished_run.export(finished_run.folder.path / "weights.safetensors").unlink()  # another name
    with pytest.raises(AnchorInterpError, match="no run to report on"):
        write_report([], finished_run.folder.path / "report.html")


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder; name a file"):
        write_output(tmp_path, b"x")
    with pytest.raises(StoreError, match="is not a regular file; name a file"):
        write_output(Path("/dev/null"), b"x")


def test_new_files_have_the_permissions_that_the_process_gives(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_output(tmp_path / "made" / "out", b"x")
    modes = {path.stat().st_mode for path in (tmp_path / "other", tmp_path / "made" / "out")}
    assert len(modes) == 1


def test_links_are_followed_and_other_files_kept(tmp_path: Path) -> None:
    neighbour = tmp_path / ".out.partial"
    neighbour.write_bytes(b"mine")
    (tmp_path / "out").symlink_to(tmp_path / "target")
    write_output(tmp_path / "out", b"x")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"
    assert neighbour.read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 3
    # names may be as long as the system allows
    write_output(tmp_path / ("x" * 255), b"x")
    with pytest.raises(StoreError, match="File name too long"):
        write_output(tmp_path / ("x" * 256), b"x")
