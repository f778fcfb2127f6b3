"""Fingerprints and verdicts: on models of known mechanism, and without unseen pairs."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process_engine import Here
from short import SHORT
from small_models import FEW_KEYS, small_exact

import anchor_interp as ai
from anchor_interp._util import progress
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis import fingerprint as module
from anchor_interp.analysis.fingerprint import fingerprint, fingerprint_model, seen_pairs_only
from anchor_interp.analysis.fingerprint_numbers import (
    FINGERPRINT,
    NUMBERS,
    Fingerprint,
    kept_fingerprint,
)
from anchor_interp.cli.main import main
from anchor_interp.interventions import virtual_anchors
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.patched_passes import Replacement, replaced_run
from anchor_interp.interventions.sites import Site
from anchor_interp.interventions.subject import subject_of
from anchor_interp.models.exact import MECHANISMS
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.measurements import measure_run
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.folder import read_table
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.tasks.counterfactuals import interchange_pairs
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import draw

Edits = list[tuple[torch.Tensor, str, torch.Tensor]]
ASKED = {"_routes", "_value", "order_first"}


@pytest.fixture(scope="module")
def taken() -> dict[str, Fingerprint]:
    """What is asked of exact models with a few keys, and of a trained model."""
    found = {"memorizing": fingerprint("tiny/memorizing/1", max_seconds=1e-9)}
    with pytest.MonkeyPatch.context() as patch:
        asked = [part for part in module._OF_SEEN_PAIRS if name_of(part) in ASKED]
        patch.setattr(module, "_OF_SEEN_PAIRS", asked)
        for name in MECHANISMS:
            found[name] = fingerprint_model(small_exact(name, "post"), FEW_KEYS)
    return found


def name_of(part: Any) -> str:
    """The function's name, or the number that it is for."""
    found: str = part.args[0] if isinstance(part, partial) else part.__name__
    return found


def test_fingerprints_tell_known_mechanisms_apart(taken: dict[str, Fingerprint]) -> None:
    symmetric, inferential = taken["symmetric"], taken["inferential"]
    lookup, memorizing = taken["lookup"], taken["memorizing"]
    assert (symmetric.route_symmetric or 0) > 0.9 > (symmetric.route_inferential or 0)
    assert (inferential.route_inferential or 0) > 0.9 > (inferential.route_symmetric or 0)
    assert (lookup.route_gathered or 0) > 0.9
    assert (inferential.value or 0) > 0.5 > 0.1 > (symmetric.value or 0)
    assert (symmetric.order_first or 0) < 1e-3 < 0.3 < (lookup.order_first or 0)
    for exact in (symmetric, inferential, lookup):
        assert exact.noise_share == pytest.approx(0, abs=1e-6)
        assert exact.rank_share is None
        assert exact.distance is None  # never trained
    assert (memorizing.noise_share or 0) > 0.5
    assert (memorizing.distance or 0) > 0


def test_a_budget_leaves_numbers_out_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    found = fingerprint_model(small_exact("symmetric", "post"), FEW_KEYS, max_seconds=1e-9)
    assert found.key_share is not None
    assert (found.value, found.order_first, found.virtual_rule) == (None, None, None)
    assert "max_seconds ended the fingerprint" in caplog.text
    with pytest.raises(ConfigError, match="max_seconds is 0"):
        fingerprint_model(small_exact("symmetric", "post"), FEW_KEYS, max_seconds=0)


def test_numbers_are_finite_or_none_and_survive_json(taken: dict[str, Fingerprint]) -> None:
    for found in taken.values():
        assert from_dict(Fingerprint, to_dict(found)) == found
        for name in NUMBERS:
            value = getattr(found, name)
            assert value is None or np.isfinite(value), name


def test_no_unseen_pair_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test looks at the model's input itself, without :func:`seen_pairs_only`."""
    task = replace(FEW_KEYS, unseen=((1, 2), (2, 1), (3, 4), (4, 3)))
    config = ai.preset("tiny", **SHORT)
    model, given = ai.build_model(config.model, config.init, seed=0), set()
    original = model.embed.forward

    def watched(tokens: torch.Tensor) -> torch.Tensor:
        for first, second in task.pairs:
            if bool(((tokens[:, :-1] == first) & (tokens[:, 1:] == second)).any()):
                given.add((first, second))
        return original(tokens)

    monkeypatch.setattr(model.embed, "forward", watched)
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)
    assert fingerprint_model(model, task).value is not None
    assert given == set(task.seen)
    lines = capsys.readouterr().err.splitlines()
    assert [lines[0], lines[-1]] == ["fingerprint: step 1/13", "fingerprint: step 13/13"]
    monkeypatch.setattr(module, "_OF_SEEN_PAIRS", module._OF_SEEN_PAIRS[:1])
    assert fingerprint_model(model, task, seed=3, quiet=True).seed == 3
    assert capsys.readouterr().err == ""


def test_seen_pairs_only_refuses_an_unseen_pair_and_is_removed_afterwards() -> None:
    model = small_exact("symmetric", "post")
    unseen = torch.from_numpy(ai.sample(FEW_KEYS, "ood", 4, seed=0).tokens).long()
    with pytest.raises(AssertionError, match="unseen pair"), seen_pairs_only(model, FEW_KEYS):
        model(unseen)
    model(unseen)


@pytest.mark.usefixtures("evidence_alone")
def test_a_task_may_show_one_order_of_a_pair_alone() -> None:
    """Nothing is composed of (4, 3), the other order of a seen pair that follows the rule."""
    task = replace(FEW_KEYS, unseen=((4, 3),))
    assert fingerprint_model(small_exact("inferential", "post"), task).virtual_rule == 0


def test_states_and_targets_of_an_unseen_pair_are_refused() -> None:
    """No sequence that is run here has an unseen pair."""
    model, site = small_exact("inferential", "post"), Site("resid_post", 0, "first")
    everything = replace(FEW_KEYS, unseen=())
    crossing = interchange_pairs(everything, 20, seed=0, pairs=[(1, 4), (3, 1)])
    assert crossing.made is not None
    assert (3, 4) in crossing.made
    rows = torch.from_numpy(ai.sample(FEW_KEYS, "id", 4, seed=0).tokens).long()
    undeclared = Replacement(site.hook, torch.zeros(4, FEW_KEYS.length, model.cfg.d_model))
    for run, words in (
        (lambda _: interchange(model, crossing, site), r"refused pair \(3, 4\)"),
        (lambda _: replaced_run(model, rows, [undeclared], batch_size=4), "does not say which"),
        (lambda seen: seen.composed((3, 4), seen.keys), r"target of the unseen pair \(3, 4\)"),
        (lambda seen: seen.target((4, 3), seen.keys), r"target of the unseen pair \(4, 3\)"),
    ):
        with seen_pairs_only(model, FEW_KEYS) as seen:
            assert seen.target((3, 3), seen.keys).tolist() == (seen.keys - 4).tolist()
            with pytest.raises(AssertionError, match=words):
                run(seen)
    assert interchange(model, crossing, site).counterfactual == 1  # outside of the block


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inferential", "composite", "neurips-symmetric"])
def test_no_state_is_that_of_an_unseen_pair(name: str) -> None:
    """Every state that an intervention puts into a trained model, against the unseen pairs' own."""
    run = ai.load(f"tiny/{name}/1")
    model, task = run.model, run.config.anchor_task
    with edited_states(model) as edits:
        fingerprint(run)
    states = [edit for edit in edits if not edit[1].endswith("pattern")]
    assert {name for _, name, _ in states} >= {
        "blocks.0.hook_resid_mid",
        "blocks.0.hook_resid_post",
    }
    assert min(distances_to_unseen(model, task, states)) > 0.5
    # the distance tells a state that is the unseen pair's own
    rows, hook = states[0][0], "blocks.0.hook_resid_mid"
    own = _of_pair(model, task, rows, hook, task.unseen[0])
    assert min(distances_to_unseen(model, task, [(rows, hook, own)])) < 1e-6


@contextlib.contextmanager
def edited_states(model: HookedTransformer) -> Iterator[Edits]:
    """The tokens, the hook and the new activation of every edit that changes something."""
    found: Edits = []
    running: list[torch.Tensor] = []
    original = model.hooks

    def hooks(fwd_hooks: list[tuple[str, Any]], **options: Any) -> Any:
        def watched(name: str, edit: Any) -> Any:
            def watch(activation: torch.Tensor, hook: Any) -> torch.Tensor:
                edited: torch.Tensor = edit(activation, hook=hook)
                if not torch.equal(edited, activation):
                    found.append((running[-1], name, edited.detach().clone()))
                return edited

            return watch

        return original(fwd_hooks=[(name, watched(name, e)) for name, e in fwd_hooks], **options)

    handle = model.embed.register_forward_pre_hook(lambda _, given: running.append(given[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_anchors, "takes_fast_path", lambda *_: False)  # it has no hooks
        patch.setattr(model, "hooks", hooks)
        yield found
    handle.remove()


def distances_to_unseen(model: HookedTransformer, task: ai.AnchorTask, edits: Edits) -> list[float]:
    """Squared distance of edited states to an unseen pair's own, over that of the nearest seen one.

    Each edit and unseen pair gives one number, over 20 sequences and all positions that know both
    anchors. Without a number is a state that does not tell the unseen pair from a seen one.
    """
    found, anchors, owned = [], torch.tensor(task.tokens), {}
    for given, name, edited in edits:
        tokens = given[:20]
        knows = torch.isin(tokens, anchors).cumsum(1) == 2
        of = name, tokens.numpy().tobytes()
        if of not in owned:
            owned[of] = {
                pair: _of_pair(model, task, tokens, name, pair)[knows] for pair in task.pairs
            }
        own = owned[of]
        for pair in task.unseen:
            near = min((own[seen] - own[pair]).square().sum() for seen in task.seen).item()
            if near > 1e-6 * own[pair].square().sum().item():
                found.append((edited[:20][knows] - own[pair]).square().sum().item() / near)
    return found


def _of_pair(
    model: HookedTransformer, task: ai.AnchorTask, rows: torch.Tensor, name: str, pair: Pair
) -> torch.Tensor:
    """The states of these sequences with another pair in the anchors' places."""
    other, is_anchor = rows.clone(), torch.isin(rows, torch.tensor(task.tokens))
    other[is_anchor] = torch.tensor(pair).repeat(len(rows))
    return activations(model, other, [name])[name]


@pytest.mark.usefixtures("evidence_alone")
def test_a_model_of_one_layer_has_no_routes() -> None:
    task = ai.AnchorTask(anchors=(ai.Anchor(1, ai.Affine(add=5)), ai.Anchor(2, ai.Affine(add=1))))
    config = ai.preset("tiny", task=task, n_layers=1)
    model = ai.build_model(config.model, config.init, seed=0)
    found = fingerprint_model(model, task)
    assert found.route_symmetric is None
    subject = subject_of(model, task, seed=0)
    assert module._value(subject) == module._interchange(subject) == {}
    assert found.run_id is None
    wrong: Any = model
    with pytest.raises(ConfigError, match="run is a model; fingerprint_model measures one"):
        fingerprint(wrong)


@pytest.mark.usefixtures("evidence_alone")
def test_the_memory_number_is_of_keys_that_training_has_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the split by key and position says, if the training data do not follow it."""
    monkeypatch.setattr(module, "_OF_SEEN_PAIRS", module._OF_SEEN_PAIRS[:1])
    run = ai.load("tiny/memorizing/1")
    task, model = run.config.anchor_task, run.transformer
    training = ai.sample(task, "train", 20_000, seed=run.config.seed)
    kept = fingerprint_model(model, task, training=training, quiet=True)
    assert (kept.memory or 0) > 0.9
    tested = ai.sample(task, "id", 10_000, seed=0)
    assert fingerprint_model(model, task, training=tested, quiet=True).memory is None
    other = draw(task, task.seen, "all", 10_000, seed=0, stream="other")
    first = fingerprint_model(model, task, training=other[other.position < 4], quiet=True).memory
    assert first is not None  # the key moves from one of the last positions to one of the first
    assert first != kept.memory


@pytest.mark.usefixtures("evidence_alone")
def test_a_run_keeps_the_fingerprint_of_its_checkpoint(finished_run: Run, tmp_path: Path) -> None:
    shutil.copytree(finished_run.folder.path, tmp_path / "run")
    run = ai.load(tmp_path / "run")
    assert kept_fingerprint(run.folder.path, run.step) is None
    measure_run(run.folder.path, [FINGERPRINT])
    kept = kept_fingerprint(run.folder.path, run.step)
    assert kept == fingerprint(run)
    assert kept_fingerprint(run.folder.path, run.step - 1) is None  # of another checkpoint
    file = run.folder.path / "measurements.json"
    content = json.loads(file.read_text())
    assert content["measurements"][0]["value"].pop("shape") == [2, 1, 16]  # as earlier versions
    file.write_text(json.dumps(content))
    assert kept_fingerprint(run.folder.path, run.step) == kept
    file.write_text(file.read_text().replace('"noise_share"', '"lost"'))
    with pytest.raises(StoreError, match=r"measurements\.json holds a damaged fingerprint; remove"):
        kept_fingerprint(run.folder.path, run.step)


@pytest.mark.usefixtures("evidence_alone")
def test_the_table_of_a_sweep_has_fingerprints_if_asked(
    finished_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Sweep((Grid(finished_run.config, {"gamma": (0.9,)}),))
    folder = sweep(one, tmp_path, engine=Here(), quiet=True)
    assert main(["table", str(tmp_path), "--mechanism", "--csv", "--quiet"]) == 0
    assert "noise_share" in capsys.readouterr().out
    (row,) = read_table(tmp_path)
    kept = kept_fingerprint(folder.runs / row["run_id"], row["steps"])
    assert kept is not None
    # the run's own evaluation measures these as well
    twice = {"train_accuracy", "seen_train_keys", "stable_rank", "condensation"}
    for name in set(NUMBERS) - twice:
        assert row[name] == getattr(kept, name), name
    assert row["noise_share"] is not None
    assert row["stable_rank"] == pytest.approx(kept.stable_rank, rel=1e-4)


def test_training_may_be_sequences_or_examples() -> None:
    model, few = small_exact("lookup", "post"), ai.sample(FEW_KEYS, "train", 5, seed=0)
    answers = ai.Dataset.of(few.tokens.tolist(), [[int(target)] for target in few.targets])
    one, two = (
        fingerprint_model(model, FEW_KEYS, training=each, max_seconds=1e-9)
        for each in (few, answers)
    )
    assert one == two
    assert one.train_accuracy == 1
    uneven = ai.Dataset.of([[1] * 9, [1] * 5], [[4], [4]])
    for ask in (fingerprint_model, ai.analyze_model):
        with pytest.raises(ConfigError, match="of 5 to 9 tokens before the answer"):
            ask(model, FEW_KEYS, training=uneven)


def test_an_exact_run_has_a_fingerprint_without_a_run_id() -> None:
    run = ai.load("exact/symmetric")
    run = replace(run, config=replace(run.config, task=FEW_KEYS))
    assert fingerprint(run, max_seconds=1e-9).run_id is None
