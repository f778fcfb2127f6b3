"""The quickstart end to end on short runs: workers, table, picture, interruption."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_process_engine import Here
from short import SHORT

from anchor_interp._util import progress
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.progress import Progress, describe, format_seconds, reporting
from anchor_interp.cli import quickstart as module
from anchor_interp.cli.quickstart import print_table, train_phases
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import QUICKSTART
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder
from anchor_interp.sweeps.engine import each_alone
from anchor_interp.sweeps.local import LocalEngine

SMALL = {
    name: override(config, **SHORT | {"steps": 5, "eval_every": 5})
    for name, config in QUICKSTART.items()
}


def test_quickstart_trains_prints_draws_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "QUICKSTART", SMALL)
    monkeypatch.setattr("anchor_interp.sweeps.local.LocalEngine", lambda *_: Here())
    asked: list[tuple[Path, list[str]]] = []
    reports: list[Path] = []  # a page of three runs takes half a minute, and has its own tests
    monkeypatch.setattr(
        "anchor_interp.pages.report.write_report", lambda _, path, ask: reports.append(path / ask)
    )
    monkeypatch.setattr("anchor_interp.analysis.ask_data.to_ask", list)  # takes seconds a run
    monkeypatch.setattr(
        "anchor_interp.pages.ask_page.write_ask", lambda names, path: asked.append((path, names))
    )
    runs = train_phases(tmp_path / "out", seed=3, workers=1, device="cpu")
    assert list(runs) == ["memorizing", "symmetric", "inferential"]
    assert all(run.config.seed == 3 and run.steps[-1] == 5 for run in runs.values())
    picture = tmp_path / "out/answers.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    print_table(runs)
    shown = capsys.readouterr().out
    for run in runs.values():
        assert f"checkpoints: {run.folder.path / 'checkpoints'}" in shown
    assert "undertrained" in shown

    before = [(run.folder.path / "result.json").stat().st_mtime_ns for run in runs.values()]
    again = train_phases(tmp_path / "out", seed=3, workers=1, device="cpu")
    assert before == [
        (run.folder.path / "result.json").stat().st_mtime_ns for run in again.values()
    ]
    assert reports == [tmp_path / "out/report.html/ask.html"] * 2
    names = ["A: undertrained", "B: undertrained", "C: undertrained"]
    assert asked == [(tmp_path / "out/ask.html", names)] * 2


@pytest.mark.slow
def test_a_worker_continues_after_a_failed_run_and_its_messages_reach_the_log(
    tmp_path: Path,
    finished_run: Run,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)
    configs = {"bad": SMALL["memorizing"], "run": finished_run.config}
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/thesis.tex").write_text("precious")
    shutil.copytree(finished_run.folder.path, tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    shutil.rmtree(tmp_path / "run/checkpoints/00000040")  # the only one to go on from
    sizes = dict.fromkeys(configs, (40, 32))
    with caplog.at_level(logging.INFO, "anchor_interp"), reporting(sizes) as meters:
        engine = LocalEngine(workers=1, device="cpu")
        ended = engine.run(each_alone(configs), tmp_path, meters.__getitem__)
        results = {result.name: result for result in ended}
    assert "run: step 40/40" in capsys.readouterr().err
    assert isinstance(results["bad"].error, StoreError)
    assert results["run"].error is None
    assert RunFolder(tmp_path / "run").result() is not None
    assert f"{tmp_path / 'run'}: continuing at step 0 of 40" in caplog.messages
    assert not [record for record in caplog.records if record.levelno < logging.INFO]


def test_a_missing_device_starts_no_worker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device is 'nonsense'"):
        LocalEngine(device="nonsense").run(iter(()), tmp_path, lambda _: Progress())
    assert not list(tmp_path.iterdir())


SCRIPT = """
from pathlib import Path
import anchor_interp
from anchor_interp._util.progress import Progress
from anchor_interp.sweeps.engine import each_alone
from anchor_interp.sweeps.local import LocalEngine
print("once")
config = anchor_interp.preset("tiny", **{short})
jobs = each_alone({{"a": config}})
for result in LocalEngine(device="cpu").run(jobs, Path("runs"), lambda _: Progress()):
    print(result.error)
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard_around_its_workers(tmp_path: Path) -> None:
    """Workers do not import the script that starts them."""
    (tmp_path / "script.py").write_text(SCRIPT.format(short=SHORT))
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.stderr) == ("once\nNone\n", "")
    assert RunFolder(tmp_path / "runs/a").result() is not None


def is_locked(folder: RunFolder) -> bool:
    return (folder.path / ".lock.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 1), (signal.SIGKILL, 2)])
def test_workers_do_not_outlive_their_driver(
    tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    """When the driver ends, its workers checkpoint and leave."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "anchor_interp", "quickstart", "--out", str(out)]
    options = ["--device", "cpu", "--workers", str(workers)]
    with open(tmp_path / "errors", "w") as errors:
        child = subprocess.Popen([*command, *options], stderr=errors)
    folders = [RunFolder(out / name) for name in ("memorizing", "symmetric")[:workers]]
    deadline = time.monotonic() + 120
    while not all(len(f.metrics()) > 1 for f in folders) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(child.pid, number)
    child.wait(timeout=60)
    while any(map(is_locked, folders)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for folder in folders:
        assert not is_locked(folder)
        assert folder.steps()[-1] > 0  # checkpointed where it stopped
        assert folder.result() is None
    assert child.returncode == (-number if number == signal.SIGKILL else 130)
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_progress_texts() -> None:
    assert describe({"step": 1, "loss": 0.5, "ood_accuracy": 1}) == "loss 0.500 OOD 1.00"
    assert [format_seconds(s) for s in (5, 65, 3725)] == ["0m05s", "1m05s", "1h02m"]
