"""Any function of a model along training: of a run, and of a sweep's runs, kept as it goes."""

import importlib
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.interventions.subject import Subject
from anchor_interp.runs.measurements import FILE, kept_along
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import writing
from anchor_interp.sweeps.along import _named, of_model
from anchor_interp.sweeps.folder import SweepFolder
from anchor_interp.sweeps.spec import Grid, Sweep

calls: list[float] = []
stop_after = math.inf


def embedding_norm(model: Any) -> float:
    """Counts its calls; stops like Ctrl-C after some."""
    if len(calls) >= stop_after:
        raise KeyboardInterrupt
    norm: float = model.W_E.norm().item()
    calls.append(norm)
    return norm


@dataclass(frozen=True)
class Numbers:
    seed: int
    rank: float
    note: str = "left out"


def of_subject(subject: Subject) -> Numbers:
    assert subject.task is not None
    assert subject.initial is not None
    assert subject.trained_on is not None
    return Numbers(len(subject.trained_on), subject.model.W_E.norm().item())


@torch.no_grad()
def under_a_decorator(model: Any) -> float:
    norm: float = model.W_E.norm().item()
    return norm


def where_it_moved(subject: Subject) -> dict[str, float]:
    """How far the embedding is from its start, and the process that says so."""
    assert subject.initial is not None
    moved = (subject.model.W_E - subject.initial.W_E).norm().item()
    return {"per step": 1 / moved, "process": os.getpid()}


def of_a_model_called_subject(model: Any) -> float:
    norm: float = model.W_E.norm().item()
    return norm


class Probe:
    def measure(self, model: Any) -> float:
        norm: float = model.W_E.norm().item()
        return norm


@pytest.fixture
def finished_run(finished_run: Run, tmp_path: Path) -> Run:
    """A copy, since runs keep what is measured along them."""
    return ai.load(shutil.copytree(finished_run.folder.path, tmp_path / "short"))


@pytest.fixture
def swept(finished_run: Run, tmp_path: Path) -> SweepFolder:
    """A sweep of two runs, of which one is finished."""
    plan = Sweep((Grid(finished_run.config, {}, seeds=(finished_run.config.seed, 99)),))
    folder = SweepFolder(tmp_path / "sweep")
    folder.extend(plan)
    shutil.copytree(finished_run.folder.path, folder.runs / ai.run_id(finished_run.config))
    calls.clear()
    return folder


def test_a_run_has_a_row_for_each_checkpoint(finished_run: Run) -> None:
    """Against the weights as the files have them."""
    found = ai.along(finished_run, embedding_norm).to_frame()
    assert list(found.columns) == ["step", "value", "reason"]
    assert found["step"].tolist() == [0, 10, 20, 30, 40]
    for step, value in zip(found["step"], found["value"], strict=True):
        path = finished_run.folder.path / "checkpoints" / f"{step:08}" / "weights.safetensors"
        assert value == load_file(path)["embed.W_E"].norm().item()
    assert found["reason"].isna().all()


def test_a_hook_of_ones_own_is_a_measure(finished_run: Run) -> None:
    """What a measure gets is a model like any other: here the share of attention on itself."""
    tokens = torch.arange(20, 29)[None]

    def to_itself(model: Any) -> dict[str, float]:
        patterns = {}
        hooks = [
            (f"blocks.{layer}.attn.hook_pattern", lambda x, hook: patterns.update({hook.name: x}))
            for layer in (0, 1)
        ]
        model.run_with_hooks(tokens, fwd_hooks=hooks)
        diagonals = [x[0, 0].diagonal().mean().item() for x in patterns.values()]
        return dict(zip(("first", "second"), diagonals, strict=True))

    row = ai.along(finished_run, to_itself).rows[-1]
    _, cache = finished_run.model.run_with_cache(tokens)
    for layer, name in enumerate(("first", "second")):
        by_hand = torch.stack([cache["pattern", layer][0, 0, i, i] for i in range(9)]).mean()
        assert row[name] == pytest.approx(by_hand.item(), abs=1e-6)


def test_a_failure_is_nan_with_its_reason(finished_run: Run) -> None:
    initial = finished_run.at(0).model.W_E

    def distance(model: Any) -> dict[str, float]:
        if torch.equal(model.W_E, initial):
            raise ZeroDivisionError("no distance yet")
        far = (model.W_E - initial).norm().item()
        return {"far": far, "log": math.log(far) if far > 1 else math.nan}

    found = ai.along(finished_run, distance)
    first, *others = found.rows
    assert math.isnan(first["far"])
    assert first["reason"] == "ZeroDivisionError: no distance yet"
    assert all(row["far"] > 0 for row in others)
    assert [row["reason"] for row in others] == [
        "log: not finite" if row["far"] <= 1 else None for row in others
    ]
    assert "at 5 checkpoints of 1 runs" in repr(found)
    assert "expected numbers" in ai.along(finished_run, lambda _: "0.5").rows[0]["reason"]


def test_a_subject_knows_the_run(finished_run: Run) -> None:
    found = ai.along(finished_run, of_subject, subject=True).to_frame()
    assert list(found.columns) == ["step", "seed", "rank", "reason"]
    assert (found["seed"] == 300).all()


def test_a_run_keeps_what_a_named_function_gives(finished_run: Run) -> None:
    """Not of a lambda, a specimen, rounded weights or a folder that another writes."""
    run, path = finished_run, finished_run.folder.path
    ai.along(run, lambda _: 1.0)
    ai.along(ai.load(path, dtype=torch.bfloat16), embedding_norm)
    with writing(path, run.config):
        found = ai.along(run, embedding_norm)
    assert kept_along(path) == {}
    assert ai.along(run, embedding_norm).rows == found.rows
    assert kept_along(path) == {f"{__name__}:embedding_norm": found.rows}
    calls.clear()
    assert ai.along(run, embedding_norm).rows == found.rows
    assert len(calls) == len(run.steps)
    specimen = ai.load("tiny/inferential/1")
    ai.along(specimen, embedding_norm)
    assert not (specimen.folder.path / FILE).exists()


@pytest.mark.slow
@pytest.mark.timeout(900)  # workers start, on a busy machine
def test_two_workers_give_what_one_process_does(
    swept: SweepFolder, finished_run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    (other,) = [c for c in swept.spec().configs().values() if c != finished_run.config]
    ai.train(other, swept.runs / ai.run_id(other), device="cpu", quiet=True)
    found = ai.along(swept, where_it_moved, subject=True, workers=2, quiet=True)
    frame = found.to_frame()
    for name, rows in frame.groupby("run_id"):
        run = ai.load(swept.runs / name)
        one = ai.along(run, where_it_moved, subject=True).to_frame()
        assert rows["step"].tolist() == one["step"].tolist()
        assert rows["per step"].tolist()[1:] == one["per step"].tolist()[1:]
        assert rows["reason"].iloc[0] == "ZeroDivisionError: float division by zero"
    processes = set(frame["process"].dropna())
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert caplog.messages == []

    def inside(model: Any) -> float:
        return 1.0

    inside.__qualname__ = "embedding_norm"  # another function of this module
    with pytest.raises(ConfigError, match="expected a function at the top of a file"):
        ai.along(swept, inside, workers=2, quiet=True)


def test_a_sweep_goes_on_where_it_was_stopped(
    swept: SweepFolder, finished_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "stop_after", 2)
    with pytest.raises(KeyboardInterrupt):
        ai.along(swept, embedding_norm, quiet=True)
    monkeypatch.setitem(globals(), "stop_after", math.inf)
    found = ai.along(swept.path, embedding_norm, quiet=True)
    assert len(calls) == 5, "each checkpoint once"
    again = ai.along(swept, embedding_norm, quiet=True)
    assert len(calls) == 5
    assert again.rows == found.rows
    assert {row["run_id"] for row in found.rows} == {ai.run_id(finished_run.config)}
    one = ai.along(finished_run, embedding_norm)
    assert [row["value"] for row in found.rows] == [row["value"] for row in one.rows]


def test_what_failed_in_a_sweep_is_tried_again(
    swept: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "norm", lambda _: 1 / 0)
    failed = ai.along(swept, embedding_norm, quiet=True)
    assert {row["reason"] for row in failed.rows} == {"ZeroDivisionError: division by zero"}
    monkeypatch.undo()
    assert not any(row["reason"] for row in ai.along(swept, embedding_norm, quiet=True).rows)


def test_wrong_arguments_are_refused(swept: SweepFolder) -> None:
    with pytest.raises(ConfigError, match="expected a function at the top of a file"):
        ai.along(swept, lambda _: 1.0)
    with pytest.raises(StoreError, match="is not a sweep folder"):
        ai.along(swept.path / "nowhere", embedding_norm)


def test_what_is_kept_belongs_to_one_function(swept: SweepFolder) -> None:
    """A decorated function is known by its own file; a name decides nothing."""
    named = _named(under_a_decorator, "under_a_decorator", of_model)
    assert named.version == _named(embedding_norm, "embedding_norm", of_model).version
    of_a_model_called_subject.__qualname__ = "of_a_model_called_subject"
    found = ai.along(swept, of_a_model_called_subject, quiet=True).to_frame()
    assert found["value"].notna().all()
    with pytest.raises(ConfigError, match="expected a function at the top of a file"):
        ai.along(swept, Probe().measure)


def test_a_file_that_changed_after_it_was_loaded_keeps_nothing(
    swept: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old function would be kept under the new file."""
    file = tmp_path / "own_number.py"
    file.write_text("def number(model):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    number = importlib.import_module("own_number").number
    assert ai.along(swept, number, quiet=True).rows[0]["value"] == 1
    file.write_text("def number(model):\n    return 2.0\n")
    with pytest.raises(ConfigError, match="has changed since its function was measured"):
        ai.along(swept, number, quiet=True)


def test_a_number_takes_the_place_of_no_column(finished_run: Run) -> None:
    found = ai.along(finished_run, lambda _: {"step": 1.0}).to_frame()
    assert found["step"].tolist() == list(finished_run.steps)
    assert found["reason"].str.contains("called step, a column of every table").all()
