"""Instruments on examples without anchors, answered anywhere.

In a causal model nothing behind the answer matters: each example alone, cut off there, must give
the same numbers as all of them padded together.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from refusals import assert_refused
from small_models import LAYOUTS, random_model
from torch import Tensor

import anchor_interp as ai
from anchor_interp._util.schema import to_dict
from anchor_interp.analysis.logit_attribution import logit_lens
from anchor_interp.analysis.parts import aligned_examples, find_twins
from anchor_interp.behaviour.evaluation import accuracy
from anchor_interp.interventions.ablation_bench import EdgeAblation
from anchor_interp.interventions.interchange import _Exchange, random_subspace, renamed_answers
from anchor_interp.interventions.masks import no_edges
from anchor_interp.interventions.patching import PatchResult
from anchor_interp.interventions.sites import position_mask
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.pages.analysis_page import render_analysis, write_analysis
from anchor_interp.tasks.counterfactuals import InterchangePairs

pytestmark = pytest.mark.usefixtures("no_gradients")
N, PAD = 5, 119
RIGHT, WRONG = np.arange(20, 25), np.arange(30, 35)
AT, VERB = np.array([8, 3, 5, 4, 6]), np.array([2, 1, 3, 0, 5])


def sentences(seed: int, answers: np.ndarray) -> ai.Examples:
    tokens = np.random.default_rng(seed).integers(0, 100, (N, 9))
    tokens[np.arange(9) > AT[:, None]] = PAD
    other = RIGHT + WRONG - answers
    labels = {"a": answers}
    places = {"verb": VERB}
    return ai.Examples(tokens, answers, other, places=places, labels=labels, padding=PAD)


CLEAN, CORRUPTED = sentences(0, RIGHT), sentences(1, WRONG)


def alone(examples: ai.Examples, row: int) -> ai.Examples:
    """One example, cut off where it is answered."""
    one = examples[row]
    assert one.answers is not None
    tokens = one.tokens[:, : AT[row] + 1]
    return ai.Examples(tokens, one.answers, one.wrong, places=one.places, labels=one.labels)


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return random_model(request.param, n_layers=2)


def test_places_of_the_clean_examples_are_those_of_both() -> None:
    sites = (ai.Site("resid_pre", 1, "verb"), ai.Site("resid_pre", 1, "noise"))
    unnamed = ai.Examples(CORRUPTED.tokens, WRONG, at=AT)
    assert np.array_equal(
        patch_of(unnamed, sites=sites).values, patch_of(CORRUPTED, sites=sites).values
    )


def test_masks_hide_a_position_a_place_or_a_token(model: HookedTransformer) -> None:
    verbs = np.arange(9) == VERB[:, None]
    edges = no_edges(model, 9, N) | torch.from_numpy(verbs)[:, None, None]
    with ai.mask_edges(model, edges & ~torch.eye(9, dtype=torch.bool)):
        expected = ai.last_logits(model, CLEAN)
    for hides in ("verb", VERB, verbs, torch.from_numpy(verbs)):
        with ai.mask_position(model, CLEAN, hides):
            hidden = ai.last_logits(model, CLEAN)
        torch.testing.assert_close(hidden, expected, atol=1e-12, rtol=0)
    other = ai.Examples(np.where(verbs, 7, CLEAN.tokens), at=AT)
    with ai.mask_position(model, CLEAN, "verb", renormalise=True):
        torch.testing.assert_close(ai.last_logits(model, CLEAN), ai.last_logits(model, other))
    direct = ai.mask_position(model, CLEAN, "verb", paths="direct")
    with direct:
        assert (ai.last_logits(model, CLEAN) - hidden).abs().max() > 1e-6


def test_masked_noise_does_not_matter(model: HookedTransformer) -> None:
    named = (np.arange(9) == VERB[:, None]) | (np.arange(9) == AT[:, None])
    other = ai.Examples(np.where(named, CLEAN.tokens, CORRUPTED.tokens), at=AT)
    with ai.mask_position(model, CLEAN, "noise", renormalise=True):
        torch.testing.assert_close(ai.last_logits(model, CLEAN), ai.last_logits(model, other))
    assert (ai.last_logits(model, CLEAN) - ai.last_logits(model, other)).abs().max() > 1e-3


def test_edges_are_ablated_before_the_answer(model: HookedTransformer) -> None:
    tokens, others = CLEAN.tokens, CORRUPTED.tokens
    read = ai.Examples(tokens, at=4, places={"verb": 1, "end": 4})
    for way in ("zero", "mean", "resample"):
        given: dict[str, Any] = {} if way == "zero" else {"references": others}
        bench = EdgeAblation(model, read, way, **given)
        cut_references: dict[str, Any] = {} if way == "zero" else {"references": others[:, :5]}
        cut = EdgeAblation(model, tokens[:, :5], way, **cut_references)
        assert bench.roles == ("0", "verb", "2", "3", "end", *"5678")
        assert np.array_equal(bench.reachable[..., :5, :5], cut.reachable)
        assert bench.reachable.sum() == cut.reachable.sum()
        np.testing.assert_allclose([bench.full, bench.nothing], [cut.full, cut.nothing], atol=1e-12)


def sums(seed: int) -> ai.Examples:
    """Two numbers, and their sum modulo 7, asked at the end."""
    a, b = np.random.default_rng(seed).integers(0, 7, (2, 40))
    tokens = np.stack([a, b, np.full(40, 9)], 1)
    return ai.Examples(tokens, (a + b) % 7, labels={"a": a, "b": b}, places={"a": 0, "b": 1})


def add(labels: Any) -> np.ndarray:
    total: np.ndarray = (labels["a"] + labels["b"]) % 7
    return total


def test_exchanging_a_token_gives_the_answer_of_the_other_sequence() -> None:
    """The embedding of a alone: the run is that of (a', b), whatever the model."""
    model = random_model(n_layers=2)
    base, source = sums(0), sums(1)
    pairs = ai.exchange_label(base, source, "a", add)
    a, b, other = base.labels["a"], base.labels["b"], source.labels["a"]
    kept = (other != a) & (base.labels["b"] != source.labels["b"])
    assert pairs.left_out == (~kept).sum()
    assert (pairs.counterfactual == ((other + b) % 7)[kept]).all()
    result = ai.interchange(model, pairs, ai.Site("resid_pre", 0, "a"))
    moved = base.tokens[kept].copy()
    moved[:, 0] = other[kept]
    assert (result.answers == ai.last_logits(model, moved).argmax(-1).numpy()).all()
    assert result.counterfactual == (result.answers == pairs.counterfactual).mean()
    assert result.anchor_moved is None
    whole = random_subspace(16, 16, seed=0)
    along = ai.interchange(model, pairs, ai.Site("resid_pre", 0, "a"), subspace=whole)
    assert (along.answers == result.answers).all()
    assert result.to_frame()["label"].tolist() == ["a"]
    renamed = renamed_answers(np.arange(7), pairs, seed=0)
    spread = replace(pairs, counterfactual=pairs.counterfactual * 10**15 - 3)
    likewise = renamed_answers(np.arange(7) * 10**15 - 3, spread, seed=0).counterfactual
    assert (likewise == renamed.counterfactual * 10**15 - 3).all()


@pytest.mark.parametrize("n", [2, 3, 5, 106])
def test_arbitrary_labels_are_not_the_labels_themselves(n: int) -> None:
    """Of two answers every other permutation leaves both as they are, which controls nothing."""
    tokens, answers = np.arange(2 * n).reshape(n, 2), np.arange(n)
    base = ai.Examples(tokens, answers)
    pairs = InterchangePairs(base, base, answers)
    for seed in range(8):
        renamed = renamed_answers(range(n), pairs, seed=seed).counterfactual
        assert sorted(renamed) == [*range(n)]
        assert (renamed == answers).mean() <= 0.1
    with pytest.raises(ai.ConfigError, match="1 answer cannot be renamed; give all"):
        renamed_answers([0], InterchangePairs(base[:1], base[:1], answers[:1]), seed=0)


def twelve(places: Any = None) -> ai.Examples:
    """Six examples with the verb at 1 and six with it elsewhere, all answers different."""
    tokens = np.random.default_rng(0).integers(0, 100, (12, 9))
    verbs = [1] * 6 + [0, 2, 3, 4, 5, 6] if places is None else places
    return ai.Examples(tokens, np.arange(12), np.full(12, 50), places={"verb": verbs})


def test_the_page_says_how_many_are_patched_and_nothing_of_anchors() -> None:
    model, some = random_model(n_layers=1), twelve()
    logits = ai.last_logits(model, torch.from_numpy(some.tokens))
    own = logits.argmax(-1).numpy()
    assert some.answers is not None
    for i, row in enumerate(logits):
        some.answers[i] = int(row.argmax())
        logits[:, some.answers[i]] = -torch.inf  # every answer once
    taught = ai.Examples(some.tokens, np.where(np.arange(12) < 9, own, own + 1))
    analysis = ai.analyze_model(model, some, training=taught, quiet=True)
    page = render_analysis(analysis, [])
    assert analysis.examples is not None
    patches: Any = analysis.examples.patches
    assert len(patches.clean) == 5  # a cycle through the six leaves their group once
    for text in (page, repr(analysis)):
        assert "rightly, 0.75 of those in training; patched: 5 of 12 examples" in text
    assert "instead of the wrong one that it is given with" in page
    assert not re.search("the twin's\\. They|papers'|split given|L0 noise", page)
    assert {site.position for site in patches.sites} == {0, *range(2, 8), "verb", "last"}
    with pytest.raises(ai.ConfigError, match="have last and verb at the same positions"):
        ai.analyze_model(random_model(n_layers=1), twelve([*range(9), 0, 0, 0])[:9])


def test_an_example_whose_wrong_answer_is_right_is_not_patched(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 100, (12, 4))
    examples = ai.Examples(tokens, np.arange(12), np.arange(12) // 2 * 2)
    _, _, answers = find_twins(examples, seed=0)
    assert sorted(answers.tolist()) == [[i, i - 1] for i in range(1, 12, 2)]
    analysis = ai.analyze_model(random_model(n_layers=1), examples, quiet=True)
    parts: Any = analysis.examples
    write_analysis(replace(analysis, examples=replace(parts, agreement=np.nan)), tmp_path)
    told = json.loads((tmp_path / "analysis.json").read_text())["examples"]
    assert told["agreement"] is None
    assert told["accuracy"] == parts.accuracy


def test_a_circuit_is_of_examples_whose_places_are_the_most_frequent() -> None:
    verbs, at = [1, 2, 1, 2, 2, 2], [4, 4, 4, 5, 4, 4]
    tokens = np.arange(36).reshape(6, 6)
    examples = ai.Examples(tokens, np.arange(6), at=at, places={"verb": verbs, "end": 5})
    aligned = aligned_examples(examples)
    assert np.array_equal(aligned.tokens, tokens[[1, 4, 5], :5])
    assert aligned.places.keys() == {"verb"}
    assert aligned.names == ("0", "1", "verb", "3", "last")
    with pytest.raises(ai.ConfigError, match=r"examples\.positions\('verb'\) == 1"):
        EdgeAblation(random_model(), examples[examples.at == 4])


def test_a_circuit_is_judged_on_no_copy_of_what_it_was_pruned_on() -> None:
    tokens = np.random.default_rng(0).integers(0, 100, (6, 5))[[0, 1, 2, 0, 3, 4, 1, 5]]
    tokens[3, 4] += 1  # behind the answer
    answers = [0, 1, 2, 0, 3, 4, 9, 5]
    aligned = aligned_examples(ai.Examples(tokens, answers, at=3))
    assert np.array_equal(aligned.tokens, tokens[[0, 1, 2, 4, 5, 6, 7], :4])


def test_the_order_of_examples_changes_nothing() -> None:
    model = random_model(n_layers=1)
    tokens = np.random.default_rng(0).integers(0, 100, (30, 6))[np.arange(36) % 30]
    answers = ai.last_logits(model, torch.from_numpy(tokens)).argmax(-1).numpy()
    found = []
    for order in (np.arange(36), np.arange(36)[::-1], np.random.default_rng(1).permutation(36)):
        analysis = ai.analyze_model(model, ai.Examples(tokens[order], answers[order]), quiet=True)
        assert analysis.examples is not None
        assert analysis.examples.circuit is not None
        found.append(json.dumps(to_dict(analysis.examples)))  # NaN equals itself
    assert found[0] == found[1] == found[2]


def test_copies_of_examples_change_nothing() -> None:
    """No residual edge is judged on a copy of what it was found on."""
    model = random_model(n_layers=1)
    tokens = np.random.default_rng(0).integers(0, 100, (12, 6))
    answers = ai.last_logits(model, torch.from_numpy(tokens)).argmax(-1).numpy()
    found = []
    for n in (1, 4):
        given = ai.Examples(tokens.repeat(n, 0), answers.repeat(n))
        analysis = ai.analyze_model(model, given, quiet=True)
        assert analysis.examples is not None
        assert analysis.examples.n == 12 * n
        found.append(json.dumps(to_dict(dataclasses.replace(analysis.examples, n=0))))
    assert found[0] == found[1]


def test_a_metric_without_a_value_in_a_patched_run_is_refused(model: HookedTransformer) -> None:
    """It has a value in both unpatched runs: left out, sites would be means of other examples."""
    sites, metric = ai.site_grid(model, ["mlp_out"], positions="last"), ai.logit_difference(CLEAN)
    plain = ai.patch(model, CLEAN, CORRUPTED, sites, metric)
    known = torch.from_numpy(np.stack([plain.clean, plain.corrupted]))
    known[:, 0] = torch.nan

    def unpatched(logits: Any) -> Any:
        value = metric(logits)
        return torch.where((value - known).abs().amin(0) > 1e-12, torch.nan, value)

    with pytest.raises(
        ai.ConfigError, match=r"NaN in patched runs alone, first at mlp_out L0 last"
    ):
        ai.patch(model, CLEAN, CORRUPTED, sites, unpatched)


def test_a_search_in_few_pairs_takes_them_all() -> None:
    pairs, site = ai.exchange_label(sums(0), sums(1), "a", add), ai.Site("resid_post", 0, "a")
    n = len(pairs.counterfactual)
    one, other = (
        ai.learn_subspace(
            random_model(), pairs, site, 2, seed=0, steps=3, batch_size=size, quiet=True
        ).losses
        for size in (n, 10 * n)
    )
    assert np.array_equal(one, other)


def test_a_grid_has_the_positions_of_the_examples() -> None:
    grid = [ai.site_grid(random_model(n_layers=1), ["z"], positions=x) for x in (CLEAN, sums(0))]
    assert [list(dict.fromkeys(s.position for s in sites)) for sites in grid] == [
        ["verb", "last"], ["a", "b", "last"]
    ]  # fmt: skip
    plain = ai.site_grid(random_model(), ["mlp_out"], positions=ai.Examples(CLEAN.tokens, at=3))
    assert [site.position for site in plain] == [0, 1, 2, 3] * 3
    padded = ai.Examples([[0, 0, 3, 4], [8, 5, 6, 7]], padding=0)
    in_all = ai.site_grid(random_model(n_layers=1), ["mlp_out"], positions=padded)
    assert [site.position for site in in_all] == [2, 3]
    nowhere = ai.Examples([[0, 0, 3], [4, 0, 0]], padding=0)
    fallback = ai.site_grid(random_model(n_layers=1), ["mlp_out"], positions=nowhere)
    assert [site.position for site in fallback] == ["last"]


def test_an_answer_that_copies_the_label_is_exchanged() -> None:
    """The counterfactual is the source's answer in every row, and differs from the base's."""
    base, source = (
        ai.Examples(x.tokens, x.labels["a"], labels=x.labels, places=x.places)
        for x in (sums(0), sums(1))
    )
    pairs = ai.exchange_label(base, source, "a", lambda labels: labels["a"])
    apart = base.labels["a"] != source.labels["a"]
    assert (pairs.counterfactual == source.labels["a"][apart]).all()
    assert pairs.left_out == (~apart).sum() > 0
    result = ai.interchange(random_model(), pairs, ai.Site("resid_pre", 0, "all"))
    assert result.source == result.counterfactual
    assert not {"anchor_moved", "key_moved"} & set(result.to_frame())


@pytest.mark.parametrize(("make", "message"), [
    (lambda: ai.exchange_label(CLEAN, CLEAN, "a", lambda x: x["a"]),
     "exchanging 'a' changes no answer; choose other sources"),
    (lambda: ai.exchange_label(sums(0), sums(1), "a", lambda x: x["a"]),
     r"answer makes \d of the labels of row \d+, answered by \d$"),
    (lambda: ai.exchange_label(CLEAN, sums(1), "a", lambda x: x["a"]),
     "5 base examples have 40 sources"),
    (lambda: patch_of(ai.Examples(CORRUPTED.tokens, WRONG)),
     "'last' is elsewhere in 4 of 5 corrupted examples"),
    (lambda: ai.mask_position(random_model(), CLEAN, "all"), "hide positions before it"),
    (lambda: ai.mask_position(random_model(), CLEAN, 7), "position is 7 in row 1"),
    (lambda: patch_of(CORRUPTED, sites=ai.site_grid(random_model(), ["z"])),
     r"called 'key'; known: verb, last; key, .* name yours \(site_grid: positions="),
    (lambda: renamed_answers(cast(Any, 7), exchanged(), seed=0),
     r"task, or all its answers \(range\(n\)\), has shape \(\)"),
    (lambda: renamed_answers([1, 2], exchanged(), seed=0), "not among those to rename: give"),
    (lambda: accuracy(random_model(), cast(Any, CLEAN)), "sequences is Examples: .* a Sequences"),
    (lambda: patch_of(ai.Examples(CORRUPTED.tokens, WRONG + 90, at=AT)),
     "answers run from 120 to 124; the model's output tokens are 0 to 119"),
    (lambda: ai.interchange(random_model(), exchanged(plus=120), ai.Site("z", 0)),
     "answers run from 120 to 126; the model's output tokens are 0 to 119"),
    (lambda: ai.last_logits(random_model(), ai.Examples([[1]], [1], [-2])), "run from -2 to"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(
    make: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(make, message, monkeypatch)


def exchanged(plus: int = 0) -> Any:
    pairs = ai.exchange_label(sums(0), sums(1), "a", add)
    return replace(pairs, counterfactual=pairs.counterfactual + plus)


def patch_of(corrupted: ai.Examples, metric: Any = None, sites: Any = None) -> PatchResult:
    metric = ai.log_prob(CLEAN) if metric is None else metric
    return ai.patch(random_model(), CLEAN, corrupted, sites or [ai.Site("z", 0, "last")], metric)


def moving(seed: int) -> ai.Examples:
    """Two marked tokens whose places differ from row to row, answered at different ends."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 100, (12, 9))
    first, second = rng.integers(0, 4, 12), rng.integers(4, 7, 12)
    places = {"a": first, "b": second}
    return ai.Examples(tokens, rng.integers(0, 100, 12), at=rng.integers(7, 9, 12), places=places)


def by_hand(model: HookedTransformer, pairs: InterchangePairs, sites: list[ai.Site]) -> np.ndarray:
    """Row by row: record the source's vectors, and set the base's to them."""
    answers = []
    for base, source in ((pairs.base[i], pairs.source[i]) for i in range(len(pairs.base))):
        _, cache = model.run_with_cache(torch.from_numpy(source.tokens))
        hooks = []
        for site in sites:
            vector = cache[site.hook][0, source.places[site.position][0]]
            place = base.places[site.position][0]

            def put(x: Tensor, hook: Any, place: int = place, vector: Tensor = vector) -> Tensor:
                x[0, place] = vector
                return x

            hooks.append((site.hook, put))
        logits = model.run_with_hooks(torch.from_numpy(base.tokens), fwd_hooks=cast(Any, hooks))
        answers.append(logits[0, base.at[0]].argmax().item())
    return np.array(answers)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_sites_move_together_from_the_places_of_each_source(layout: Any) -> None:
    model = random_model(layout)
    pairs = InterchangePairs(moving(0), moving(1), np.arange(12))
    for sites in (
        [ai.Site("resid_post", 0, "a")],
        [ai.Site("resid_pre", 1, "a"), ai.Site("resid_pre", 1, "b")],
        [ai.Site("resid_post", 0, "b"), ai.Site("mlp_out", 2, "a"), ai.Site("attn_out", 1, "a")],
    ):
        found = ai.interchange(model, pairs, sites)
        assert np.array_equal(found.answers, by_hand(model, pairs, sites)), sites
        assert found.site == sites[0]
        assert found.also == tuple(sites[1:])
        whole = random_subspace(16 * len(sites), 16 * len(sites), seed=0)
        along = ai.interchange(model, pairs, sites, subspace=whole)
        assert np.array_equal(along.answers, found.answers)
    assert found.to_frame()["site"][0] == "resid_post L0 b and mlp_out L2 a and attn_out L1 a"


def test_one_direction_over_two_places_moves_both() -> None:
    """Half of a joint direction lies in each site: neither alone has the projection of both."""
    model = random_model("pre")
    pairs = InterchangePairs(moving(0), moving(1), np.arange(12))
    sites = [ai.Site("resid_post", 0, "a"), ai.Site("resid_post", 0, "b")]
    direction = np.full((32, 1), 32**-0.5)
    exchange = _Exchange(Subject(model), pairs, sites, 8)
    logits = exchange.run(np.arange(12), torch.from_numpy(direction), 8)
    for row in range(12):
        base, source = pairs.base[row], pairs.source[row]
        states = [model.run_with_cache(torch.from_numpy(x.tokens))[1][sites[0].hook][0]
                  for x in (base, source)]  # fmt: skip
        own, other = (
            torch.cat([state[x.places[name][0]] for name in "ab"])
            for state, x in zip(states, (base, source), strict=True)
        )
        moved = own + (other - own).mean()

        def put(x: Tensor, hook: Any, base: Any = base, moved: Tensor = moved) -> Tensor:
            x[0, base.places["a"][0]], x[0, base.places["b"][0]] = moved[:16], moved[16:]
            return x

        expected = model.run_with_hooks(
            torch.from_numpy(base.tokens), fwd_hooks=[(sites[0].hook, put)]
        )[0, base.at[0]]
        torch.testing.assert_close(logits[row], expected)
    found = ai.learn_subspace(model, pairs, sites, 2, seed=0, steps=3, quiet=True)
    assert found.basis.shape == (32, 2)


def test_sites_that_overlap_or_differ_in_size_are_refused() -> None:
    model, pairs = random_model(), InterchangePairs(moving(0), moving(1), np.arange(12))
    twice = [ai.Site("z", 0, "a"), ai.Site("z", 0, "a", head=1)]
    with pytest.raises(ai.ConfigError, match=r"sites of blocks.0.attn.hook_z overlap"):
        ai.interchange(model, pairs, twice)
    short = ai.Examples(moving(1).tokens[:, :8], at=7, places=moving(1).places)
    with pytest.raises(ai.ConfigError, match="resid_post L0 all has 128 to 144 numbers"):
        ai.interchange(
            model, InterchangePairs(moving(0), short, np.arange(12)), ai.Site("resid_post", 0)
        )


@pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
def test_heads_and_mlps_do_not_ask_where_places_are(ablation: Any) -> None:
    """They are ablated at all positions, so names of places change nothing."""
    tokens = np.random.default_rng(0).integers(0, 100, (6, 7))
    named = ai.Examples(tokens, places={"verb": [1, 2, 3, 1, 2, 3]})
    model = random_model(n_layers=2)
    benches = [EdgeAblation(model, x, ablation, parts="heads and MLPs")
               for x in (named, ai.Examples(tokens))]  # fmt: skip
    assert np.array_equal(benches[0].nothing, benches[1].nothing)
    assert benches[0].n_parts == 2 * (2 + 1)
    with pytest.raises(ai.ConfigError, match="'verb' is at 3 positions"):
        EdgeAblation(model, named, ablation)


TWICE: dict[str, Any] = {"answers": [[7, 8], [9, 9], [3, 4]], "wrong": [[8, 7], [9, 5], [3, 4]]}
PLACES_OF_ANSWERS = np.array([[2, 5], [1, 6], [0, 4]])


def answered_twice(seed: int) -> ai.Examples:
    tokens = np.random.default_rng(seed).integers(0, 100, (3, 7))
    return ai.Examples(tokens, **TWICE, at=PLACES_OF_ANSWERS, places={"verb": [0, 1, 0]})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("over", ["mean", "sum"])
def test_metrics_take_several_answers_of_a_row_together(layout: Any, over: Any) -> None:
    """Against the hooks and softmax of one row and answer after the other."""
    model, clean, corrupted = random_model(layout), answered_twice(0), answered_twice(1)
    site = ai.Site("resid_pre", 1, "verb")
    makers: dict[str, Any] = {"log_prob": ai.log_prob, "difference": ai.logit_difference,
                              "rank": ai.rank}  # fmt: skip
    found = {
        name: ai.patch(model, clean, corrupted, [site], make(clean, over=over)).values[0]
        for name, make in makers.items()
    }
    found["kl"] = ai.patch(
        model, clean, corrupted, [site], ai.kl_divergence(model, clean, over=over)
    ).values[0]
    together = np.mean if over == "mean" else np.sum
    for row in range(3):
        _, cache = model.run_with_cache(torch.from_numpy(clean.tokens[row : row + 1]))
        verb = clean.places["verb"][row]

        def put(x: Tensor, hook: Any, verb: int = verb, cache: Any = cache) -> Tensor:
            x[:, verb] = cache[hook.name][:, verb]
            return x

        logits = model.run_with_hooks(
            torch.from_numpy(corrupted.tokens[row : row + 1]), fwd_hooks=[(site.hook, put)]
        )[0, PLACES_OF_ANSWERS[row]]
        own = model(torch.from_numpy(clean.tokens[row : row + 1]))[0, PLACES_OF_ANSWERS[row]]
        right, wrong = TWICE["answers"][row], TWICE["wrong"][row]
        each = logits.log_softmax(-1)
        by_hand = {
            "log_prob": [each[k, right[k]].item() for k in (0, 1)],
            "difference": [(logits[k, right[k]] - logits[k, wrong[k]]).item()
                           for k in (0, 1) if right[k] != wrong[k]],
            "rank": [-(logits[k] > logits[k, right[k]]).sum().item() for k in (0, 1)],
            "kl": [(own[k].softmax(-1) * (each[k] - own[k].log_softmax(-1))).sum().item()
                   for k in (0, 1)],
        }  # fmt: skip
        for name, values in by_hand.items():
            expected = together(values) if values else np.nan
            np.testing.assert_allclose(found[name][row], expected, atol=1e-10, err_msg=name)


def test_attribution_takes_several_answers_of_a_row() -> None:
    """A small difference: the estimate is the effect of patching, to its second order."""
    model, clean = random_model("pre"), answered_twice(0)
    tokens = clean.tokens.copy()
    tokens[:, 0] = (tokens[:, 0] + 1) % 100
    close = ai.Examples(tokens, **TWICE, at=PLACES_OF_ANSWERS, places=clean.places)
    with torch.no_grad():
        model.W_E[:] = model.W_E[:1] + 1e-4 * (model.W_E - model.W_E[:1])
    sites, metric = ai.site_grid(model, ["z", "mlp_out"], positions="all"), ai.log_prob(clean)
    exact, estimated = (
        way(model, clean, close, sites, metric) for way in (ai.patch, ai.attribution_patch)
    )
    effect = exact.values - exact.corrupted
    assert np.abs(effect).max() > 1e-7
    np.testing.assert_allclose(estimated.values - exact.corrupted, effect, rtol=1e-2, atol=1e-9)


def test_what_takes_one_answer_refuses_several() -> None:
    model, twice = random_model(), answered_twice(0)
    for take in (
        lambda: EdgeAblation(model, twice, "zero"),
        lambda: InterchangePairs(twice, twice, np.arange(3)).to_frame(),
        lambda: ai.attribute_logits(model, twice),
        lambda: logit_lens(model, twice),
        lambda: ai.attribute_logits(model, twice, np.array([[7], [9], [3]])),
        lambda: EdgeAblation(model, ai.Examples(twice.tokens, at=[[2, 5]] * 3)),
        twice.dataset,
    ):
        with pytest.raises(ai.ConfigError, match=r"2 answers each; expected one here|'last' is at"):
            cast(Callable[[], Any], take)()
    with pytest.raises(ai.ConfigError, match="wrong has shape"):
        ai.Examples(twice.tokens, TWICE["answers"], [1, 2, 3], at=PLACES_OF_ANSWERS)
    assert repr(twice[1:]).startswith("Examples: 2 of 7 tokens")
    assert twice.to_frame()["answer"].tolist() == ["7 8", "9 9", "3 4"]
    every = ai.last_logits(model, twice)
    assert every.shape == (3, 2, 120)
    torch.testing.assert_close(ai.last_logits(lambda tokens: model(tokens), twice), every)


def test_no_mask_hides_a_place_where_one_of_several_answers_is_read() -> None:
    model, twice = random_model(), answered_twice(0)
    with (
        pytest.raises(ai.ConfigError, match="no attention mask hides"),
        ai.mask_position(model, twice, [2, 1, 0]),
    ):
        pass
    noise = position_mask(twice, "noise")
    assert not noise[np.arange(3)[:, None], PLACES_OF_ANSWERS].any()


def test_edges_of_the_mean_are_the_mean_of_the_edges_of_each_answer() -> None:
    """Scores are linear in the metric: two answers together are both one after the other."""
    model, clean, corrupted = random_model("pre", n_layers=2), answered_twice(0), answered_twice(1)
    together = ai.edge_attribution(model, clean, corrupted, ai.log_prob(clean), steps=2)
    each = []
    for k in (0, 1):
        one, other = (
            ai.Examples(x.tokens, np.array(TWICE["answers"])[:, k], at=PLACES_OF_ANSWERS[:, k])
            for x in (clean, corrupted)
        )
        each.append(ai.edge_attribution(model, one, other, ai.log_prob(one), steps=2).scores)
    np.testing.assert_allclose(together.scores, np.mean(each, 0), atol=1e-12)
