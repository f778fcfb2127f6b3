"""Results say what they hold: short text, a small escaped table, a DataFrame."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from small_models import FEW_KEYS, small_exact

import anchor_interp as ai
from anchor_interp._util.readable import Readable
from anchor_interp.analysis.circuits import Circuit, score_circuit
from anchor_interp.analysis.fingerprint_numbers import NUMBERS
from anchor_interp.analysis.logit_attribution import attribute_logits, logit_lens
from anchor_interp.analysis.rivals import compare_circuit
from anchor_interp.analysis.routes import ROUTES, route_edges, route_scores
from anchor_interp.analysis.similarity import value_similarity
from anchor_interp.interventions.interchange import interchange, random_subspace
from anchor_interp.interventions.patching import PatchResult, patch
from anchor_interp.tasks.sequences import aligned_sequences, position_roles

MODEL = small_exact("inferential", "post")


@functools.cache
def patched() -> PatchResult:
    pairs = ai.contrast_pairs(FEW_KEYS, "key", 30, seed=0)
    sites = [
        ai.Site("resid_pre", 0, "key"),
        ai.Site("resid_pre", 1, "key"),
        ai.Site("resid_pre", 1),
    ]
    return patch(MODEL, *pairs, sites, ai.logit_difference(*pairs))


@functools.cache
def results() -> dict[str, Readable]:
    site = ai.Site("resid_post", 0, "first")
    edges = route_edges(MODEL, ROUTES["inferential"], 9, 2)
    circuit = Circuit(edges, position_roles(9, 2))
    run = ai.load("tiny/inferential/1")
    pre = run.transformer, ai.sample(run.config.anchor_task, "id", 20, seed=0)
    bench = ai.EdgeAblation(MODEL, aligned_sequences(FEW_KEYS, 2, 30, seed=0))
    pair = ai.contrast_pairs(FEW_KEYS, "key", 20, seed=0)
    residual = ai.edge_attribution(MODEL, *pair, ai.logit_difference(*pair), steps=8)
    return {
        "Run": run,
        "ExactRun": ai.load("exact/lookup"),
        "Evaluation": ai.evaluate(MODEL, FEW_KEYS, n=20),
        "PatchResult": patched(),
        "Similarity": value_similarity(MODEL, FEW_KEYS, n_contexts=2),
        "Complexity": ai.complexity(MODEL),
        "Circuit": circuit,
        "CircuitScores": score_circuit(bench, circuit),
        "CircuitComparison": compare_circuit(bench, circuit, n_random=20),
        "EdgeAblation": bench,
        "EdgeAttribution": residual,
        "CircuitCurve": score_circuit(
            ai.EdgeAblation(MODEL, pair.clean, references=pair.corrupted, parts="residual edges"),
            [residual.circuit(n) for n in (5, 23)],
            n_random=3,
        ),
        "RouteScores": route_scores(MODEL, FEW_KEYS, n=50),
        "ContrastPairs": ai.contrast_pairs(FEW_KEYS, "key", 500, seed=0),
        "Fingerprint": ai.fingerprint_model(MODEL, FEW_KEYS, max_seconds=0.01, quiet=True),
        "InterchangeResult": interchange(MODEL, ai.interchange_pairs(FEW_KEYS, 50, seed=0), site),
        "InterchangePairs": ai.interchange_pairs(FEW_KEYS, 50, seed=0),
        "Subspace": random_subspace(MODEL.cfg.d_model, 4, seed=0),
        "Sequences": ai.sample(FEW_KEYS, "id", 50, seed=0),
        "LogitLens": logit_lens(*pre),
        "Attribution": attribute_logits(*pre),
        "Analysis": ai.analyze_model(MODEL),
    }


def test_the_text_is_short_and_the_table_small() -> None:
    for name, result in results().items():
        lines = repr(result).splitlines()
        assert lines[0].startswith(f"{name}: ")
        assert len(lines) <= 3, name
        assert max(map(len, lines)) <= 320, name
        page = result._repr_html_()
        assert page.startswith(f"<pre>{name}: ")
        assert page.count("<tr") <= 11, name  # the head and ten rows
        assert len(page) < 12_000, name


def test_the_numbers_are_those_of_the_result() -> None:
    found = results()
    assert "inferential (ID 1.00, OOD 1.00 >= 0.5)" in repr(found["Evaluation"])
    assert "after the embedding: recovery 1.00 at resid_pre L1 all, " in repr(found["PatchResult"])
    assert "4 edges of 2 layers\nL0H0: first <- key" in repr(found["Circuit"])
    assert "counterfactual 1.00" in repr(found["InterchangeResult"])
    assert "4 of 54 edges, resample" in repr(found["CircuitScores"])
    assert "faithfulness 1.00 and 1.00, remaining 0.00" in repr(found["CircuitScores"])
    assert "by accuracy 1.00\nbest of 20 random" in repr(found["CircuitComparison"])
    assert "inferential route 1.00" in repr(found["CircuitComparison"])
    assert "in 30 sequences of 9 tokens; 54 edges" in repr(found["EdgeAblation"])
    assert "the model's own answers: 1.00" in repr(found["EdgeAblation"])
    assert "inferential 1.00" in repr(found["RouteScores"])
    assert "500 pairs that differ in key, 0 left out; in 0 both" in repr(found["ContrastPairs"])
    assert f" of {len(NUMBERS)} numbers" in repr(found["Fingerprint"])
    assert "tiny/inferential/1 at step" in repr(found["Run"])


def test_tables_have_one_row_each() -> None:
    found: Any = results()
    assert patched().recovery().tolist() == pytest.approx([1, 0, 1], abs=1e-3)
    pairs = found["Evaluation"].to_frame()
    assert pairs["pair"].tolist() == list(FEW_KEYS.pairs)
    ranks = found["Complexity"].to_frame()
    wanted = [
        entry.stable_rank for entry in (*found["Complexity"].heads, *found["Complexity"].matrices)
    ]
    assert ranks["stable_rank"].tolist() == pytest.approx(wanted, nan_ok=True)
    edges = found["Circuit"].to_frame()
    index = edges[["layer", "head", "query", "key"]].to_numpy()
    np.testing.assert_array_equal(index, np.argwhere(found["Circuit"].edges))
    scores = found["CircuitScores"].to_frame()
    assert scores["edge"].tolist() == list(found["Circuit"].names)
    rivals = found["CircuitComparison"].to_frame()
    assert rivals["size"].tolist()[:3] == [4, 4, 4]  # the circuit, random ones, the rollout
    assert rivals["accuracy"][0] == found["CircuitComparison"].faithfulness.accuracy
    assert found["EdgeAblation"].to_frame()["accuracy"][0] == 1
    legs = found["RouteScores"].to_frame()
    assert legs.query("route == 'inferential'")["effect"].min() == found["RouteScores"].inferential
    attributed = found["EdgeAttribution"].to_frame()
    assert attributed["score"].abs().is_monotonic_decreasing
    assert len(attributed) == 23
    curve = found["CircuitCurve"].to_frame()
    assert curve["size"].tolist() == [5, 23]
    assert curve["accuracy"].tolist() == [1, 1]
    assert curve["accuracy_random"].isna().tolist() == [False, True]  # of all 23 there is one set
    clean, corrupted = found["ContrastPairs"]  # a tuple of two still
    twins = found["ContrastPairs"].to_frame()
    assert twins["clean_target"].tolist() == clean.targets.tolist()
    assert [list(map(int, row.split())) for row in twins["corrupted"]] == corrupted.tokens.tolist()
    numbers = found["Fingerprint"].to_frame().set_index("number")["value"]
    assert numbers["key_share"] == found["Fingerprint"].key_share
    frame, drawn = found["Sequences"].to_frame(), found["Sequences"]
    assert frame["pair"].tolist() == [FEW_KEYS.pairs[i] for i in drawn.pair]
    assert frame["target"].tolist() == drawn.targets.tolist()
    assert (frame["target"] - frame["key"]).min() < 0  # plain integers, not bytes that wrap
    exchanged = found["InterchangePairs"].to_frame()
    assert exchanged["counterfactual"].tolist() == found["InterchangePairs"].counterfactual.tolist()
    assert found["LogitLens"].to_frame()["final_answer"].iloc[-1] == 1
    parts = found["Attribution"].to_frame()
    assert parts["component"].tolist() == list(found["Attribution"].components)
    alone = dataclasses.replace(
        found["Attribution"], logits=found["Attribution"].logits[:, :, :2]
    ).to_frame()
    np.testing.assert_allclose(alone["answer_1"], found["Attribution"].logits[:, :, 1].mean(1))
    assert list(parts) == ["component", "spread_of_answers"]
    assert found["Analysis"].to_frame()["section"].tolist() == ["complexity", "left out"]
    similar, items = found["Similarity"].to_frame(), len(found["Similarity"].keys)
    assert len(similar) == items * (items - 1) // 2
    equal = similar[
        (similar["value"] == similar["other_value"])
        & (similar["anchors"] != similar["other_anchors"])
    ]
    assert equal["centred"].min() > 0.9  # set by hand to be parallel, but for the mean over keys
    assert found["InterchangeResult"].to_frame()["counterfactual"].tolist() == [1.0]
    metrics = found["Run"].to_frame()
    assert metrics["step"].tolist() == [row["step"] for row in found["Run"].metrics]


def test_no_markup_of_a_name_reaches_the_page() -> None:
    roles: Any = ("<script>", "key", "first")
    page = Circuit(np.ones((1, 1, 3, 3), bool), roles)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
