"""Files that a user asks for: whole, where they were asked for, and never in place of a run's."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from anchor_interp._util.errors import AnchorInterpError, StoreError
from anchor_interp._util.files import write_output
from anchor_interp.analysis.findings import gather
from anchor_interp.pages.report import write_report
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.train import train


@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "metrics.jsonl", "checkpoints/00000040/state.json"]
)
def test_files_of_a_run_are_not_replaced(finished_run: Run, name: str) -> None:
    before = (finished_run.folder.path / name).read_bytes()
    with pytest.raises(StoreError, match=r"is a file of the run .*; name another"):
        finished_run.export(finished_run.folder.path / name)
    with pytest.raises(StoreError, match=r"is a file of the run .*; name another"):
        write_report(gather([finished_run.folder.path]), finished_run.folder.path / name)
    assert (finished_run.folder.path / name).read_bytes() == before


def test_another_name_in_a_run_folder_is_fine(finished_run: Run) -> None:
    written = finished_run.export(finished_run.folder.path / "weights.safetensors")
    written.unlink()


@pytest.mark.parametrize(
    ("make", "message"),
    [(os.mkfifo, "is a FIFO; name a file"), (Path.mkdir, "is a folder; name a file")],
)
def test_what_is_no_file_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "out")
    with pytest.raises(StoreError, match=message):
        write_output(tmp_path / "out", b"x")
    with pytest.raises(StoreError, match="is a device; name a file"):
        write_output(Path("/dev/null"), b"x")


def test_links_are_followed_and_neighbours_left_alone(tmp_path: Path) -> None:
    neighbour = tmp_path / ".out.partial"
    neighbour.write_bytes(b"mine")
    (tmp_path / "out").symlink_to(tmp_path / "target")
    write_output(tmp_path / "out", b"x")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"
    assert neighbour.read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 3


def test_names_as_long_as_the_system_allows(tmp_path: Path) -> None:
    write_output(tmp_path / ("x" * 255), b"x")
    with pytest.raises(StoreError, match="File name too long"):
        write_output(tmp_path / ("x" * 256), b"x")


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda p: (p / "weights.safetensors").unlink()])
def test_a_done_run_without_its_final_checkpoint_is_not_taken_for_done(
    tmp_path: Path, finished_run: Run, damage: Callable[[Path], object]
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run.folder.path, path)
    damage(path / "checkpoints/00000040")
    for read in (lambda: gather([path]), lambda: train(finished_run.config, path, quiet=True)):
        with pytest.raises(AnchorInterpError, match=r"result\.json|does not exist"):
            read()


def test_arguments_of_other_types_are_refused(tmp_path: Path, finished_run: Run) -> None:
    with pytest.raises(AnchorInterpError, match="path is 3; expected a path"):
        finished_run.export(3)  # type: ignore[arg-type]
    with pytest.raises(AnchorInterpError, match="no run to report on"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(AnchorInterpError, match="step is '40'; expected an integer"):
        load(finished_run.folder.path, step="40")  # type: ignore[arg-type]
