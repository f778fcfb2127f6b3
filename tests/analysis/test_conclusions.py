"""Each sentence of an analysis comes out as the known mechanism is, and otherwise as well."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, small_exact

import anchor_interp as ai
from anchor_interp.analysis import conclusions as say
from anchor_interp.analysis.attention import SequenceAttention, attention_examples
from anchor_interp.analysis.circuits import CircuitScores, Performance
from anchor_interp.analysis.mask_leakage import mask_leakages
from anchor_interp.analysis.mechanism import NUMBERS, Fingerprint
from anchor_interp.analysis.probes import Patched
from anchor_interp.analysis.routes import RouteScores, route_scores
from anchor_interp.analysis.sensitivity import order_influence
from anchor_interp.analysis.similarity import value_similarity
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.patching import PatchResult, logit_difference, patch
from anchor_interp.interventions.sites import Site, site_grid
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.complexity import complexity
from anchor_interp.models.exact import MECHANISMS, Mechanism
from anchor_interp.runs.phase import Decision
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
        say.conclude_flow(route_scores(model, FEW_KEYS, n=20), None),
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
            "The model takes both anchors to the last position first, then the key: the symmetric "
            "route carries at least 1.00",
            "reads the key, the first anchor and the second anchor itself:",
            "the key is at its own position (recovery 1.00), the first anchor is at the last "
            "position (recovery 1.00) and the second anchor is at the last position (recovery "
            "1.00); no state at the first anchor acts as g(x; a1)",
            "are no more parallel than near misses (difference of the cosines 0.00, p = 1); after "
            "attention of layer 0 the last position holds the pair without its order",
            "uses few directions: its stable rank is 1.0,",
            "the first anchor in layer 0 (0.50) and the key in layer 1 (1.00)" ,
        )),
        ("inferential", Said(
            "takes the key to both anchors first, then both to the last position: the inferential "
            "route carries at least 1.00",
            "reads the first anchor and the second anchor itself and gets the key from other "
            "positions:",
            "the key is at the first anchor (recovery 1.00), the first anchor is at its own "
            "position (recovery 1.00) and the second anchor is at its own position (recovery "
            "1.00); the state at the first anchor after layer 0 acts as g(x; a1)",
            "are more parallel than near misses (difference of the cosines 1.07, p = 0.021); after "
            "attention of layer 0 the last position does not hold the pair",
            "uses few directions: its stable rank is 1.0,",
            "itself in layer 0 (1.00) and the first anchor in layer 1 (0.50)",
        )),
        ("lookup", Said(
            "The model gathers key and first anchor at the second anchor first, then takes that to "
            "the last position: the gathered route carries at least 1.00",
            "reads the second anchor itself and gets the key and the first anchor from other "
            "positions:",
            "the key is at the second anchor (recovery 1.00), the first anchor is at the second "
            "anchor (recovery 1.00) and the second anchor is at its own position (recovery 1.00); "
            "no state at the first anchor acts as g(x; a1)",
            "are no more parallel than near misses",
            "uses many directions: its stable rank is 9.0,",
            "to noise in layer 0 (1.00) and the second anchor in layer 1 (1.00)",
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


def test_a_pair_can_be_held_with_its_order() -> None:
    sentence = say.conclude_representations([], replace(BLANK, order_first=0.5))
    assert sentence is not None
    assert "the last position holds the pair with its order" in sentence


def test_no_route_and_no_circuit_need_be_enough() -> None:
    weak = RouteScores(symmetric=0.1, inferential=0.4, gathered=-0.2, n=(), details=())
    performance = Performance(0.3, 0.3)
    circuit = CircuitScores(
        size=3, n_edges=54, ablation="resample", minimality=(),
        **dict.fromkeys(("full", "nothing", "faithfulness", "remaining", "incompleteness"),
                        performance),
    )  # fmt: skip
    assert say.conclude_flow(weak, circuit) == (
        "No route is dominant: the inferential route carries at least 0.40 of every token's "
        "effect, the symmetric one 0.10 and the gathered one -0.20; 3 of 54 edges are not enough "
        "(faithfulness 0.30)."
    )
    cut = say.conclude_flow(None, circuit, finished=False)
    assert cut is not None
    assert cut.endswith("(faithfulness 0.30); pruning was cut short, so fewer may be.")
    assert say.conclude_flow(None, None) is None


def test_a_cut_edge_that_the_answer_needs_is_read_by_the_last_position() -> None:
    """The gathered answer leaves the second anchor's position: without its edge nothing is left."""
    model = ai.load("tiny/composite/1").model
    task = ai.load("tiny/composite/1").config.anchor_task
    leaks = {(entry.place, entry.paths): entry for entry in mask_leakages(Subject(model, task))}
    second, key = leaks["second", "direct"], leaks["key", "direct"]
    assert second.effect is not None
    assert key.effect is not None
    assert abs(second.effect) < 0.1 < 0.8 < key.effect < 1
    assert second.accuracy is not None
    assert key.accuracy is not None
    assert second.accuracy < 0.5 < 0.8 < key.accuracy
    assert key.unmasked == 1
    assert second.leak > 0.5  # logits change, though not as the answer asks
    sentence = say.conclude_masks([second, key])
    assert sentence is not None
    assert "reads the second anchor itself and gets the key from other positions" in sentence


@pytest.mark.parametrize("name", ["tiny/memorizing/1", "tiny/neurips-memorizing/2"])
def test_a_token_without_a_measurable_effect_has_no_share(name: str) -> None:
    run = ai.load(name)
    leaks = mask_leakages(Subject.of_run(run))
    assert {entry.place for entry in leaks} == {"key", "first", "second"}
    assert all(entry.effect is None for entry in leaks if entry.place == "first")
    assert all(entry.accuracy is not None and entry.leak >= 0 for entry in leaks)
    sentence = say.conclude_masks(leaks)
    assert sentence is not None
    assert "the right answer does not measurably depend on the first anchor" in sentence
    assert "reads the first anchor" not in sentence


def test_pairs_of_equal_anchors_leave_the_anchors_without_a_share() -> None:
    unseen = tuple(pair for pair in FEW_KEYS.pairs if pair[0] != pair[1])
    task = replace(FEW_KEYS, unseen=unseen, overrides=())
    leaks = mask_leakages(Subject(small_exact("inferential", "post"), task))
    assert all((entry.effect is None) is (entry.place != "key") for entry in leaks)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"first": 0.52, "second": 0.46, "last": 0.1},
         "the key is at the first anchor (recovery 0.52; 0.46 at the second anchor)."),
        ({"key": 0.2, "last": 0.1}, "the key is at no position (recovery 0.20 at most)."),
        ({"last": 0.3, "key": float("nan")},
         "the key is partly at the last position (recovery 0.30)."),
        ({"last": 0.3, "key": 0.9},
         "the key is at its own position (recovery 0.90; 0.30 at the last position)."),
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
    for share, warned in (
        (1.0, None),
        (0.16, ", and a state there partly acts as g(x; a1) (0.16 of the exchanges)"),
        (0.01, ", but no state there acts as g(x; a1): similar does not mean used"),
    ):
        one = replace(used, counterfactual=share)
        sentence = say.conclude_representations(values, None, [one])
        assert sentence is not None
        assert ("state there" in sentence) is (warned is not None)
        assert warned is None or warned in sentence
        patched = say.conclude_patching([], [one])
        assert patched is not None
        assert ("partly acts" in patched) is (share == 0.16)
        assert patched.startswith("No state") is (share == 0.01)


def test_behaviour_and_mechanism_agree_or_not() -> None:
    one, other, early = (Decision(p, "") for p in ("symmetric", "composite", "undertrained"))
    agreed = "Behaviour and mechanism agree: the model is symmetric."
    assert say.conclude_phase(one, one) == agreed
    assert say.conclude_phase(one, other) == (
        "Behaviour and mechanism disagree: symmetric by its answers, composite by its mechanism."
    )
    assert "is undertrained" in (say.conclude_phase(early, other) or "")
    assert say.conclude_phase(None, other) == "By its mechanism the model is composite."
    assert say.conclude_phase(None, None) is None


def test_right_tokens_are_counted() -> None:
    patterns = np.zeros((1, 1, 2, 2))
    example = SequenceAttention("test", ("a", "b"), ("x", "y"), ("x", "z"), patterns)
    assert say.conclude_predictions([example, example]) == (
        "The model predicts 2 of the 4 tokens to predict."
    )
