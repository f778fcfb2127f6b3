"""Fingerprints and verdicts: on models of known mechanism, and without unseen pairs."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process_engine import Here
from short import SHORT
from small_models import FEW_KEYS, small_exact

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis import fingerprint as fingerprints
from anchor_interp.analysis.fingerprint import (
    fingerprint,
    fingerprint_model,
    keep_fingerprint,
    seen_pairs_only,
)
from anchor_interp.analysis.mechanism import NUMBERS, Fingerprint, kept_fingerprint
from anchor_interp.analysis.verdict import VerdictThresholds, verdict
from anchor_interp.cli.main import main
from anchor_interp.models.exact import Mechanism
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table import read_table

MECHANISMS: tuple[Mechanism, ...] = ("symmetric", "inferential", "lookup")


@pytest.fixture(scope="module")
def taken() -> dict[str, Fingerprint]:
    """Fingerprints of exact models with a few keys, and of one trained model."""
    found = {"memorizing": fingerprint("tiny/memorizing/1")}
    for name in MECHANISMS:
        found[name] = fingerprint_model(small_exact(name, "post"), FEW_KEYS)
    return found


def test_fingerprints_tell_known_mechanisms_apart(taken: dict[str, Fingerprint]) -> None:
    symmetric, inferential = taken["symmetric"], taken["inferential"]
    lookup, memorizing = taken["lookup"], taken["memorizing"]
    assert (symmetric.route_symmetric or 0) > 0.9 > (symmetric.route_inferential or 0)
    assert (inferential.route_inferential or 0) > 0.9 > (inferential.route_symmetric or 0)
    assert (lookup.route_gathered or 0) > 0.9
    assert (inferential.value or 0) > 0.5 > 0.1 > (symmetric.value or 0)
    assert (symmetric.order_first or 0) < 1e-3 < 0.03 < (lookup.order_first or 0)
    for exact in (symmetric, inferential, lookup):
        assert exact.noise_share == pytest.approx(0, abs=1e-6)
        assert exact.rank_share is None
        assert exact.distance is None  # never trained
    assert (memorizing.noise_share or 0) > 0.5
    assert (memorizing.distance or 0) > 0


def test_numbers_are_finite_or_none_and_survive_json(taken: dict[str, Fingerprint]) -> None:
    for found in taken.values():
        assert from_dict(Fingerprint, to_dict(found)) == found
        for name in NUMBERS:
            value = getattr(found, name)
            assert value is None or np.isfinite(value), name


@pytest.mark.parametrize("unseen", [((3, 4), (4, 3)), ((1, 2), (2, 1), (3, 4), (4, 3))])
def test_no_unseen_pair_is_run(
    unseen: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test looks at the model's input itself, without :func:`seen_pairs_only`."""
    task = replace(FEW_KEYS, unseen=unseen)
    config = ai.preset("tiny", **SHORT)
    model, given = ai.build_model(config.model, config.init, seed=0), set()
    original = model.embed.forward

    def watched(tokens: torch.Tensor) -> torch.Tensor:
        for first, second in task.pairs:
            if bool(((tokens[:, :-1] == first) & (tokens[:, 1:] == second)).any()):
                given.add((first, second))
        return original(tokens)

    monkeypatch.setattr(model.embed, "forward", watched)
    assert fingerprint_model(model, task).value is not None
    assert given == set(task.seen)


def test_seen_pairs_only_refuses_an_unseen_pair_and_is_removed_afterwards() -> None:
    model = small_exact("symmetric", "post")
    unseen = torch.from_numpy(ai.sample(FEW_KEYS, "ood", 4, seed=0).tokens).long()
    with pytest.raises(AssertionError, match="unseen pair"), seen_pairs_only(model, FEW_KEYS):
        model(unseen)
    model(unseen)


def test_another_seed_changes_little(taken: dict[str, Fingerprint]) -> None:
    again = fingerprint_model(small_exact("inferential", "post"), FEW_KEYS, seed=3)
    assert again.value == pytest.approx(taken["inferential"].value, abs=0.1)
    assert again.seed == 3


def test_a_model_of_one_layer_has_no_routes() -> None:
    task = ai.AnchorTask(anchors=(ai.Anchor(1, ai.Affine(add=5)), ai.Anchor(2, ai.Affine(add=1))))
    config = ai.preset("tiny", task=task, n_layers=1)
    model = ai.build_model(config.model, config.init, seed=0)
    found = fingerprint_model(model, task)
    assert found.route_symmetric is None
    assert found.run_id is None


def test_a_model_in_place_of_a_run_is_refused() -> None:
    model: Any = small_exact("symmetric", "post")
    nothing: Any = None
    with pytest.raises(ConfigError, match="run is a model; fingerprint_model measures one"):
        fingerprint(model)
    with pytest.raises(ConfigError, match="task"):
        fingerprint_model(model, nothing)


def test_a_kept_fingerprint_is_measured_again_if_it_is_damaged(
    finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished_run.folder.path, tmp_path / "run")
    run = ai.load(tmp_path / "run")
    name = ai.run_id(run.config)
    assert kept_fingerprint(run.folder.path, name, run.step) is None
    first = keep_fingerprint(run)
    measured: list[Run] = []

    def again(of: Run) -> Fingerprint:
        measured.append(of)
        return first

    monkeypatch.setattr(fingerprints, "fingerprint", again)
    assert keep_fingerprint(run) == first
    assert not measured  # read, not measured
    path = run.folder.path / "measurements.json"
    for damage in (path.read_text()[:-20], path.read_text().replace(name, "another-run")):
        path.write_text(damage)
        assert kept_fingerprint(run.folder.path, name, run.step) is None
        assert keep_fingerprint(run) == first == kept_fingerprint(run.folder.path, name, run.step)
    assert [one.step for one in measured] == [run.step] * 2
    assert kept_fingerprint(run.folder.path, name, run.step - 1) is None  # of another checkpoint


def test_the_table_of_a_sweep_has_fingerprints_if_asked(
    finished_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Sweep((Grid(finished_run.config, {"gamma": (0.9,)}),))
    folder = sweep(one, tmp_path, engine=Here(), quiet=True)
    assert {row["noise_share"] for row in read_table(tmp_path)} == {None}
    assert main(["table", str(tmp_path), "--mechanism", "--csv", "--quiet"]) == 0
    assert "noise_share" in capsys.readouterr().out
    for row in read_table(tmp_path):
        kept = kept_fingerprint(folder.runs / row["run_id"], row["run_id"], row["steps"])
        assert kept is not None
        twice = ("stable_rank", "condensation")  # measured by the run's own evaluation as well
        assert [row[name] for name in NUMBERS if name not in twice] == [
            getattr(kept, name) for name in NUMBERS if name not in twice
        ]
        assert row["noise_share"] is not None
        assert row["stable_rank"] == pytest.approx(kept.stable_rank, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"noise_share": 0.11, "composed": 1.0}, "memorizing"),
        ({"noise_share": 0.10, "composed": 0.5, "value": 0.15}, "inferential"),
        ({"composed": 1.0, "value": 0.14, "order_first": 0.03}, "symmetric"),
        ({"composed": 1.0, "value": 0.14, "order_first": 0.04}, "composite"),
        ({"composed": 1.0, "value": 0.0, "order_first": None}, "other"),
        ({"composed": 1.0, "value": None, "order_first": None}, "other"),
        ({"composed": 0.49, "commutes": 0.82}, "symmetric"),
        ({"composed": 0.49, "commutes": 0.81}, "composite"),
        ({"composed": 0.0, "commutes": 0.0, "mirrored": 0.5}, "symmetric"),
        ({"composed": 0.0, "commutes": 1.0, "mirrored": 0.49}, "composite"),
        ({"composed": 0.0, "commutes": None}, "other"),
        ({"composed": None}, "other"),
        ({"noise_share": None}, "other"),
    ],
)
def test_the_rule_of_the_verdict(changes: dict[str, float | None], phase: str) -> None:
    numbers: dict[str, float | None] = dict.fromkeys(NUMBERS)
    numbers |= {"noise_share": 0.0, "composed": 0.0, "commutes": 0.0} | changes
    about = {"run_id": None, "step": None, "seed": 0}
    found = verdict(from_dict(Fingerprint, about | numbers))
    assert found.phase == phase
    named = [name for name, value in changes.items() if value is not None]
    assert phase == "other" or any(name in found.reason for name in named)


@pytest.mark.parametrize("recipe", ["composite", "inferential", "neurips-symmetric"])
def test_the_verdict_on_a_specimen_is_its_phase(recipe: str) -> None:
    run = ai.load(f"tiny/{recipe}/1")
    assert verdict(fingerprint(run)).phase == run.phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [("inferential", "inferential"), ("symmetric", "symmetric"), ("lookup", "composite")],
)
def test_the_verdict_on_an_exact_model(
    name: str, phase: str, taken: dict[str, Fingerprint]
) -> None:
    """All three answer every sequence correctly: behaviour cannot tell them apart."""
    assert verdict(taken[name]).phase == phase


def test_an_exact_run_has_a_fingerprint_without_a_run_id() -> None:
    run = ai.load("exact/symmetric")
    found = fingerprint(replace(run, config=replace(run.config, task=FEW_KEYS)))
    assert found.run_id is None
    assert verdict(found).phase == "symmetric"


def test_thresholds_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"thresholds.composed is 2"):
        VerdictThresholds(composed=2)
