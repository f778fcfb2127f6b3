"""Fingerprints: what they say of models whose mechanism is known, and what they never look at."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from short import SHORT
from small import FEW_KEYS, Here, small_exact

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis import fingerprint as fingerprints
from anchor_interp.analysis.fingerprint import (
    NUMBERS,
    Fingerprint,
    fingerprint,
    fingerprint_model,
    keep_fingerprint,
    kept_fingerprint,
    seen_pairs_only,
)
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
    """Of models of a few keys with hand-set weights, and of one that was trained."""
    found = {"memorizing": fingerprint("tiny/memorizing/1")}
    for name in MECHANISMS:
        found[name] = fingerprint_model(small_exact(name, "post"), FEW_KEYS)
    return found


def test_models_of_a_known_mechanism(taken: dict[str, Fingerprint]) -> None:
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


def test_every_number_is_there_or_none_and_comes_back(taken: dict[str, Fingerprint]) -> None:
    for found in taken.values():
        assert from_dict(Fingerprint, to_dict(found)) == found
        for name in NUMBERS:
            value = getattr(found, name)
            assert value is None or np.isfinite(value), name


@pytest.mark.parametrize("unseen", [((3, 4), (4, 3)), ((1, 2), (2, 1), (3, 4), (4, 3))])
def test_no_unseen_pair_is_run(
    unseen: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model is given is looked at by the test itself, not by the package's watch."""
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


def test_the_watch_stops_an_unseen_pair_and_is_gone_afterwards() -> None:
    model = small_exact("symmetric", "post")
    unseen = torch.from_numpy(ai.sample(FEW_KEYS, "ood", 4, seed=0).tokens).long()
    with pytest.raises(AssertionError, match="unseen pair"), seen_pairs_only(model, FEW_KEYS):
        model(unseen)
    model(unseen)


def test_other_seeds_change_little(taken: dict[str, Fingerprint]) -> None:
    again = fingerprint_model(small_exact("inferential", "post"), FEW_KEYS, seed=3)
    assert again.value == pytest.approx(taken["inferential"].value, abs=0.1)
    assert again.seed == 3


def test_a_task_without_composition_has_no_such_numbers() -> None:
    task = ai.AnchorTask(anchors=(ai.Anchor(1, ai.Affine(add=5)), ai.Anchor(2, ai.Affine(add=1))))
    config = ai.preset("tiny", task=task, n_layers=1)
    model = ai.build_model(config.model, config.init, seed=0)
    found = fingerprint_model(model, task)
    assert found.route_symmetric is None  # one layer
    assert found.run_id is None
    with pytest.raises(ConfigError, match="run is a model; fingerprint_model measures one"):
        fingerprint(model)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="task"):
        fingerprint_model(model, None)  # type: ignore[arg-type]


def test_it_is_kept_and_made_anew_when_it_is_damaged(
    finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ai.train(finished_run.config, tmp_path / "run", quiet=True)
    name = ai.run_id(run.config)
    assert kept_fingerprint(run.path, name, run.step) is None
    first = keep_fingerprint(run)
    path = run.path / "measurements.json"
    path.write_text(path.read_text()[:-20])
    assert kept_fingerprint(run.path, name, run.step) is None
    assert keep_fingerprint(run) == first == kept_fingerprint(run.path, name, run.step)
    assert kept_fingerprint(run.path, name, run.step - 1) is None  # of another checkpoint
    path.write_text(path.read_text().replace(name, "another-run"))
    assert kept_fingerprint(run.path, name, run.step) is None
    assert keep_fingerprint(run) == first
    monkeypatch.setattr(fingerprints, "fingerprint", None)
    assert keep_fingerprint(run) == first  # read, not measured


def test_the_table_of_a_sweep_has_it_when_asked(
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
def test_the_verdicts_rule(changes: dict[str, float | None], phase: str) -> None:
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
def test_the_verdict_on_a_model_set_by_hand(
    name: str, phase: str, taken: dict[str, Fingerprint]
) -> None:
    """All three answer every sequence of this task rightly: behaviour cannot tell them apart."""
    assert verdict(taken[name]).phase == phase


def test_the_verdict_on_an_exact_model_of_all_keys() -> None:
    found = fingerprint("exact/symmetric")
    assert found.run_id is None
    assert verdict(found).phase == "symmetric"


def test_the_verdicts_own_lines_can_be_given() -> None:
    with pytest.raises(ConfigError, match=r"thresholds.composed is 2"):
        VerdictThresholds(composed=2)
