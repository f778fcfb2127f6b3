"""Each sentence of an analysis comes out as the known mechanism is, and otherwise as well."""

from dataclasses import replace
from math import nan
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, small_exact

import anchor_interp as ai
from anchor_interp.analysis import conclusions as say
from anchor_interp.analysis.attention import SequenceAttention, attention_examples
from anchor_interp.analysis.circuits import CircuitScores, Performance
from anchor_interp.analysis.fingerprint_numbers import NUMBERS, Fingerprint
from anchor_interp.analysis.mask_leakage import mask_leakages
from anchor_interp.analysis.parts import Patched
from anchor_interp.analysis.routes import RouteScores, route_scores
from anchor_interp.analysis.sensitivity import order_influence
from anchor_interp.analysis.similarity import value_similarity
from anchor_interp.analysis.verdict import Verdict
from anchor_interp.behaviour.phase import Decision
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import PatchResult, patch
from anchor_interp.interventions.sites import Site, site_grid
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.complexity import complexity
from anchor_interp.models.exact import MECHANISMS, Mechanism
from anchor_interp.tasks.counterfactuals import contrast_pairs, interchange_pairs

NOTHING: dict[str, Any] = dict.fromkeys(NUMBERS)
BLANK = Fingerprint(run_id=None, step=None, seed=0, **NOTHING)


class Said(NamedTuple):
    """The sentences about one exact model."""

    flow: str | None
    masks: str | None
    patching: str | None
    representations: str | None
    complexity: str | None
    attention: str | None


@pytest.fixture(scope="module")
def said() -> dict[Mechanism, Said]:
    return {mechanism: _said(mechanism) for mechanism in MECHANISMS}


@torch.no_grad()
def _said(mechanism: Mechanism) -> Said:
    model = small_exact(mechanism, "post")
    leaks = mask_leakages(Subject(model, FEW_KEYS))
    patches = []
    for contrast in ("key", "first", "second"):
        pairs = contrast_pairs(FEW_KEYS, contrast, 20, seed=0)
        sites = site_grid(model, ["resid_pre"])
        patches.append(Patched(contrast, patch(model, *pairs, sites, logit_difference(*pairs))))
    state = Site("resid_post", 0, "first")
    exchanged = interchange(model, interchange_pairs(FEW_KEYS, 20, seed=0), state)
    order = order_influence(model, FEW_KEYS, pairs=FEW_KEYS.seen, n=60, state="X_ao", layer=0)
    return Said(
        say.conclude_flow(route_scores(model, FEW_KEYS, n=20)),
        say.conclude_masks(leaks),
        say.conclude_patching(patches, [exchanged]),
        say.conclude_representations(
            [value_similarity(model, FEW_KEYS, state="OV")],
            replace(BLANK, order_first=order.ratio),
        ),
        say.conclude_complexity(complexity(model)),
        say.conclude_attention(attention_examples(Subject(model, FEW_KEYS))),
    )


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("symmetric", Said(
            "The model takes both anchors to the last position first, then the key.",
            "The last position reads the key and both anchors itself.",
            "Before layer 1, the key is at its own position and both anchors are at the last "
            "position. No state at the first anchor acts as g(x; a1).",
            "At the first anchor, states of equal g(x; a1) are no more parallel than those of "
            "near misses. After attention of layer 0 the last position holds the pair without its "
            "order.",
            "W_Q of layer 0 uses few directions: stable rank 1.0, of random weights",
            "the first anchor in layer 0 and the key in layer 1.",
        )),
        ("inferential", Said(
            "The model takes the key to both anchors first, then both to the last position.",
            "The last position reads both anchors itself and gets the key from other positions.",
            "Before layer 1, the key is at the first anchor and both anchors are at their own "
            "positions. The state at the first anchor after layer 0 acts as g(x; a1).",
            "At the first anchor, states of equal g(x; a1) are more parallel than those of near "
            "misses. After attention of layer 0 the last position does not hold the pair.",
            "uses few directions: stable rank 1.0,",
            "itself in layer 0 and the first anchor in layer 1.",
        )),
        ("lookup", Said(
            "The model gathers key and first anchor at the second anchor, then takes that to the "
            "last position.",
            "The last position reads the second anchor itself and gets the key and the first "
            "anchor from other positions.",
            "Before layer 1, the key and the first anchor are at the second anchor. The second "
            "anchor is at its own position. No state at the first anchor acts as g(x; a1).",
            "states of equal g(x; a1) are no more parallel than those of near misses.",
            "uses many directions: stable rank 9.0,",
            "noise in layer 0 and the second anchor in layer 1.",
        )),
    ],
)  # fmt: skip
def test_a_sentence_follows_from_the_mechanism(
    said: dict[Mechanism, Said], mechanism: Mechanism, words: Said
) -> None:
    for sentence, expected in zip(said[mechanism], words, strict=True):
        assert sentence is not None
        assert expected is not None
        assert expected in sentence
        assert sentence.endswith(".")
        assert all(len(part.split()) <= 20 for part in sentence.split(". "))


def circuit(size: int, faithfulness: float) -> CircuitScores:
    scores = ("full", "nothing", "faithfulness", "remaining", "incompleteness")
    alike: dict[str, Any] = dict.fromkeys(scores, Performance(faithfulness, faithfulness))
    return CircuitScores(size=size, n_edges=54, ablation="resample", minimality=(), **alike)


WEAK = RouteScores(symmetric=0.1, inferential=0.4, gathered=-0.2, n=(), details=())
NO_ROUTE = RouteScores(symmetric=nan, inferential=nan, gathered=nan, n=(), details=(), reason="few")
ONE, EARLY = Decision("symmetric", ""), Decision("undertrained", "")
SAME, OTHER, PART = (Verdict(phase, "") for phase in ("symmetric", "composite", "mixture"))
ORDERED = replace(BLANK, order_first=0.5)
PATTERNS = np.zeros((1, 1, 2, 2))
EXAMPLE = SequenceAttention("test", ("a", "b"), ("x", "y"), ("x", "z"), PATTERNS)
ANSWERED = SequenceAttention("", ("a", "b"), ("x",), ("x",), PATTERNS)


@pytest.mark.parametrize(("sentence", "words"), [
    (say.conclude_representations([], ORDERED), "last position holds the pair with its order"),
    (say.conclude_flow(WEAK), "No route is dominant"),
    (say.conclude_flow(None), None),
    (say.conclude_flow(NO_ROUTE), None),
    (say.conclude_circuit(circuit(6, 0.9)), "6 of 54 edges are enough for the answers."),
    (say.conclude_circuit(circuit(44, 0.9)), "no small circuit: the answers need 44 of 54 edges."),
    (say.conclude_circuit(circuit(3, 0.3)), "The 3 of 54 edges that pruning keeps are not enough."),
    (say.conclude_circuit(circuit(6, 0.9), finished=False), "pruning was cut short, so fewer may"),
    (say.conclude_phase(ONE, SAME), "mechanism agree: the model is symmetric."),
    (say.conclude_phase(ONE, OTHER), "disagree: symmetric by its answers, composite by its mech"),
    (say.conclude_phase(ONE, PART), "the model is symmetric; by its mechanism it is a mixture."),
    (say.conclude_phase(EARLY, OTHER), "is undertrained"),
    (say.conclude_phase(None, OTHER), "By its mechanism the model is composite."),
    (say.conclude_phase(None, None), None),
    (say.conclude_predictions([EXAMPLE, EXAMPLE]), "predicts 2 of the 4 tokens to predict."),
    (say.conclude_predictions([ANSWERED]), "The model predicts 1 of the 1 answers shown."),
])  # fmt: skip
def test_a_sentence_follows_from_the_numbers(sentence: str | None, words: str | None) -> None:
    assert (sentence is None) == (words is None)
    assert words is None or words in (sentence or "")


def test_a_cut_edge_that_the_answer_needs_is_read_by_the_last_position() -> None:
    """The gathered answer leaves the second anchor's position: without its edge nothing is left."""
    leaks = mask_leakages(Subject.of_run(ai.load("tiny/composite/1")))
    direct: dict[str, Any] = {leak.place: leak for leak in leaks if leak.paths == "direct"}
    second, key = direct["second"], direct["key"]
    assert abs(second.effect) < 0.1 < 0.8 < key.effect < 1
    assert second.accuracy < 0.5 < 0.8 < key.accuracy
    assert key.unmasked == 1
    assert second.leak > 0.5  # logits change, though not as the answer asks
    sentence = say.conclude_masks([second, key]) or ""
    assert "reads the second anchor itself and gets the key from other positions" in sentence


def test_a_token_without_a_measurable_effect_has_no_share() -> None:
    """With pairs of equal anchors alone, no other anchor can stand in an anchor's place."""
    unseen = tuple(pair for pair in FEW_KEYS.pairs if pair[0] != pair[1])
    task = replace(FEW_KEYS, unseen=unseen, overrides=())
    leaks = mask_leakages(Subject(small_exact("inferential", "post"), task))
    assert all((entry.effect is None) is (entry.place != "key") for entry in leaks)
    sentence = say.conclude_masks(leaks) or ""
    assert "The right answer does not measurably depend on the " in sentence
    assert "reads the first anchor" not in sentence


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"first": 0.52, "second": 0.46, "last": 0.1},
         "the key is at the first anchor and the second anchor."),
        ({"key": 0.2, "last": 0.1}, "the key is at no position."),
        ({"last": 0.3, "key": float("nan")}, "the key is partly at the last position."),
        ({"last": 0.1, "key": 0.9}, "the key is at its own position."),
    ],
)  # fmt: skip
def test_every_place_that_holds_a_token_is_named(shares: dict[str, float], said: str) -> None:
    sites = site_grid(small_exact("symmetric", "post"), ["resid_pre"])
    known = np.array([shares.get(str(site.position), 0.0) for site in sites])[:, None]
    result = PatchResult(sites, "denoise", np.repeat(known, 20, 1), np.ones(20), np.zeros(20))
    sentence = say.conclude_patching([Patched("key", result)], [])
    assert sentence == f"Before layer 1, {said}"


def test_what_is_similar_need_not_be_used() -> None:
    model = small_exact("inferential", "post")
    values = [value_similarity(model, FEW_KEYS, state="OV")]
    state = Site("resid_post", 0, "first")
    used = interchange(model, interchange_pairs(FEW_KEYS, 20, seed=0), state)
    for share, patched, alike in (
        (1.0, "layer 0 acts as g(x; a1).", "near misses."),
        (0.16, "which is not held there alone.", "A state there partly acts as g(x; a1)."),
        (0.01, "No state at the first anchor acts as g(x; a1).", "similar does not mean used."),
    ):
        one = replace(used, counterfactual=share)
        assert (say.conclude_representations(values, None, [one]) or "").endswith(alike)
        assert (say.conclude_patching([], [one]) or "").endswith(patched)


def test_attention_is_told_only_where_all_examples_agree() -> None:
    run = ai.load("tiny/inferential/1")
    told = attention_examples(Subject(run.model, run.config.anchor_task))
    start, (unseen, seen) = "The last position attends most to", told
    assert say.conclude_attention([unseen]) == (
        f"{start} the second anchor in layer 0 and the first anchor in layer 1."
    )
    assert say.conclude_attention([seen]) == f"{start} the first anchor in layers 0 and 1."
    assert say.conclude_attention(told) == f"{start} the first anchor in layer 1."
    disagreeing = [replace(one, patterns=one.patterns[:1]) for one in told]
    assert say.conclude_attention(disagreeing) is None
