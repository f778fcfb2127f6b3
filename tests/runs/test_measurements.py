"""Measurements kept in a run folder: what is returned, what is measured again, what is refused."""

import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process_engine import Here

from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    StoreError,
    UnknownSchemaError,
)
from anchor_interp._util.progress import Progress
from anchor_interp.runs.measurements import (
    FILE,
    Measure,
    column_measure,
    keep,
    kept,
    lacking,
    measure_run,
)
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.engine import Job, RunResult
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep


def norm(run: Run) -> dict[str, float]:
    return {"norm": float(run.model.embed.W_E.detach().norm()), "step": run.step}


def broken(run: Run) -> None:
    raise ZeroDivisionError("no such number")


def nothing(run: Run) -> None:
    return None


def not_finite(run: Run) -> float:
    return float("nan")


NORM = Measure("norm", f"{__name__}:norm")


@pytest.fixture
def run(finished_run: Run, tmp_path: Path) -> Run:
    shutil.copytree(finished_run.folder.path, tmp_path / "run")
    return load(tmp_path / "run")


def test_a_file_is_not_mistaken_for_another_module_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function of the first file would be measured under the name of the second."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder, name in (("a", "own_norms"), ("b", "own_norms"), ("b", "statistics")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.py").write_text(f"def mean(run): return {folder!r}")
    first = f"{tmp_path}/a/own_norms.py"
    no_run: Any = None
    assert column_measure(f"{first}:mean").resolve()(no_run) == "a"
    for name, taken in (("own_norms", first), ("statistics", statistics.__file__)):
        other = f"{tmp_path}/b/{name}.py"
        with pytest.raises(ConfigError, match=f"module {name} is {taken}, not {other}"):
            column_measure(f"{other}:mean")


def test_a_value_is_kept_with_its_version_step_and_weights(run: Run) -> None:
    first, last = run.steps[0], run.steps[-1]
    both = Measure("norm", NORM.function, steps=(last, first))
    assert lacking(run.folder.path, [both]) == [(both, last), (both, first)]
    measure_run(run.folder.path, [both])
    assert kept(run.folder.path, NORM, last) == norm(run)
    assert kept(run.folder.path, NORM, first) == norm(run.at(first))
    assert lacking(run.folder.path, [both, NORM]) == []
    newer = Measure("norm", NORM.function, version=2)
    assert lacking(run.folder.path, [newer]) == [(newer, last)]
    measure_run(run.folder.path, [newer])
    assert kept(run.folder.path, NORM, last) is None  # a newer value replaces it
    assert kept(run.folder.path, NORM, first) is not None
    state = run.folder.path / "checkpoints" / f"{last:08d}" / "state.json"
    state.write_text(state.read_text().replace('"sha256": "', '"sha256": "0'))
    assert kept(run.folder.path, newer, last) is None


def test_a_kept_value_is_not_measured_again(run: Run) -> None:
    keep(run, NORM, {"norm": -1.0})
    measure_run(run.folder.path, [NORM])
    assert kept(run.folder.path, NORM, run.step) == {"norm": -1.0}


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}'])
def test_a_damaged_file_is_refused_and_stays(run: Run, text: str) -> None:
    (run.folder.path / FILE).write_text(text)
    refusal = rf"{FILE} is damaged: .*; restore it or remove it"
    with pytest.raises(StoreError, match=refusal):
        kept(run.folder.path, NORM, run.step)
    with pytest.raises(StoreError, match=refusal):
        keep(run, NORM, 1.0)
    assert (run.folder.path / FILE).read_text() == text


def test_a_file_of_another_version_is_not_replaced(run: Run) -> None:
    path, text = run.folder.path / FILE, '{"schema": 2, "measurements": []}'
    path.write_text(text)
    with pytest.raises(UnknownSchemaError, match=r"has schema 2; .* use the version that wrote it"):
        measure_run(run.folder.path, [NORM])
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            broken,
            r"run at step 40 failed in test_measurements.py:\d+ .ZeroDivisionError: no such number",
        ),
        (nothing, "nothing returned None"),
        (not_finite, "not_finite returned nan for .*; expected a JSON value"),
    ],
)
def test_what_cannot_be_kept_is_refused(run: Run, function: Any, words: str) -> None:
    measure = Measure(function.__name__, f"{__name__}:{function.__name__}")
    with pytest.raises(AnchorInterpError, match=words):
        measure_run(run.folder.path, [measure])
    assert not (run.folder.path / FILE).exists()


def test_an_unknown_function_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="cannot import the measure norm"):
        Measure("norm", "norm").resolve()
    with pytest.raises(ConfigError, match=r"measure nowhere\.at:all .*; expected module:f"):
        measure_run(run.folder.path, [Measure("norm", "nowhere.at:all")])
    with pytest.raises(StoreError, match="no checkpoint at step 3"):
        measure_run(run.folder.path, [Measure("norm", NORM.function, steps=(3,))])


@pytest.mark.slow
def test_a_worker_process_trains_and_measures(run: Run) -> None:
    name, folder = run.folder.path.name, run.folder.path.parent
    wrong = Measure("wrong", f"{__name__}:broken")
    jobs = iter([Job({name: run.config}, (NORM, wrong))])
    (result,) = LocalEngine(workers=1, device="cpu").run(jobs, folder, lambda _: Progress())
    assert isinstance(result, RunResult)
    assert kept(run.folder.path, NORM, run.step) == norm(run)
    assert "wrong of" in str(result.error)
    assert "ZeroDivisionError" in str(result.error)


def test_a_sweep_measures_what_its_runs_lack(run: Run, tmp_path: Path) -> None:
    two = Sweep((Grid(run.config, {"gamma": (0.5, 0.9)}),))
    first, second = two.configs()
    engine = Here()
    folder = sweep(two, tmp_path / "sweep", engine=engine, measures={first: [NORM]}, quiet=True)
    assert kept(folder.runs / first, NORM, run.step) is not None
    assert kept(folder.runs / second, NORM, run.step) is None
    trained = (folder.runs / second / "result.json").read_bytes()
    engine.done.clear()
    sweep(two, folder.path, engine=engine, measures=[NORM], quiet=True)
    assert engine.done == [second]  # the first lacks nothing
    assert kept(folder.runs / second, NORM, run.step) is not None
    assert (folder.runs / second / "result.json").read_bytes() == trained
