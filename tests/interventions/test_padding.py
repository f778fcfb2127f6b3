"""Examples of several lengths, padded on the left or the right, with an attention mask.

Each example alone, without padding, must give the same numbers as all of them together. Models on
TransformerLens number the tokens that are not masked, so this holds for positions too.
"""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_models import LAYOUTS, lens_model, random_model
from versions import only_3

import anchor_interp as ai
from anchor_interp.analysis.attention import attention_patterns
from anchor_interp.analysis.flow import information_flow
from anchor_interp.analysis.logit_attribution import logit_lens
from anchor_interp.analysis.parts import aligned_examples, find_twins
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.patched_passes import Replacement, replaced_run
from anchor_interp.models.forward import fast_last_logits
from anchor_interp.models.inputs import Rows
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.counterfactuals import InterchangePairs
from anchor_interp.tasks.examples import warn_once

pytestmark = pytest.mark.usefixtures("no_gradients")
LENGTHS = np.array([9, 4, 6, 5, 3])
N, LONGEST = len(LENGTHS), 9
RIGHT, WRONG = np.arange(20, 25), np.arange(30, 35)
VERB = np.array([2, 1, 3, 0, 1])  # counted from the first token
ON_LEFT = np.array([True, True, False, False, True])


def sentences(
    on_left: np.ndarray = ON_LEFT, seed: int = 0, answers: np.ndarray = RIGHT, times: int = 1
) -> ai.Examples:
    """Token 0 is padding, and the first token of every sentence besides."""
    lengths, verb, n = np.tile(LENGTHS, times), np.tile(VERB, times), N * times
    shift = np.where(np.tile(on_left, times), LONGEST - lengths, 0)[:, None]
    place = np.arange(LONGEST) - shift
    mask = (place >= 0) & (place < lengths[:, None])
    tokens = np.random.default_rng(seed).integers(1, 100, (n, LONGEST)) * mask * (place != 0)
    right, wrong = np.tile(answers, times), np.tile(RIGHT + WRONG - answers, times)
    places = {"verb": verb + shift[:, 0]}
    return ai.Examples(tokens, right, wrong, places=places, attention_mask=mask)


def alone(examples: ai.Examples, row: int) -> ai.Examples:
    """One example without padding."""
    one = examples[row]
    kept = one.inside[0]
    places = {name: where - kept.argmax() for name, where in one.places.items()}
    return ai.Examples(one.tokens[:, kept], one.answers, one.wrong, places=places)


def rotary() -> HookedTransformer:
    return lens_model(
        n_heads=2, d_head=8, normalization_type="RMS", positional_embedding_type="rotary",
        rotary_dim=8, n_key_value_heads=1,
    )  # fmt: skip


@pytest.fixture(params=[*LAYOUTS, pytest.param("rotary", marks=only_3)])
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return rotary() if request.param == "rotary" else random_model(request.param, n_layers=2)


def answers_of(examples: ai.Examples) -> tuple[Any, Any]:
    return examples.answers, examples.wrong


def _patched(model: HookedTransformer, clean: ai.Examples, corrupted: ai.Examples) -> Any:
    names: Any = ["resid_pre", "k"]
    sites = ai.site_grid(model, names, positions=("verb", "last", "other", -2))
    metric = ai.logit_difference(*answers_of(clean))
    return ai.patch(model, clean, corrupted, sites, metric).values


def _paths(model: HookedTransformer, clean: ai.Examples, corrupted: ai.Examples) -> Any:
    paths = [
        ai.Connection(ai.Site("z", 0, "last")),
        ai.Connection(ai.Site("resid_pre", 0, "verb"), (ai.Site("v", 1, "verb"),)),
    ]
    return ai.path_patch(model, clean, corrupted, paths, ai.log_prob(clean)).values


def _estimated(model: HookedTransformer, clean: ai.Examples, corrupted: ai.Examples) -> Any:
    sites = ai.site_grid(model, ["attn_out"], positions=("verb", "last"))
    metric = ai.log_prob(clean)
    return ai.attribution_patch(model, clean, corrupted, sites, metric, steps=2).values


def _exchanged(model: HookedTransformer, clean: ai.Examples, corrupted: ai.Examples) -> Any:
    pairs = InterchangePairs(clean, corrupted, np.asarray(corrupted.answers))
    return ai.interchange(model, pairs, ai.Site("resid_mid", 1, "verb")).answers[None]


def _hidden(model: HookedTransformer, clean: ai.Examples, _: ai.Examples) -> Any:
    verbs = clean[clean.positions("verb") != clean.at]
    with ai.mask_position(model, verbs, "verb", renormalise=True):
        return ai.last_logits(model, verbs).T


def _replaced(model: HookedTransformer, clean: ai.Examples, _: ai.Examples) -> Any:
    halved = Replacement("blocks.1.hook_attn_out", torch.zeros(*clean.tokens.shape, 16).double())
    return replaced_run(model, clean, [halved], batch_size=2)[0].T


INSTRUMENTS: dict[str, Callable[[Any, ai.Examples, ai.Examples], Any]] = {
    "last_logits": lambda model, clean, _: ai.last_logits(model, clean).T,
    "predict": lambda model, clean, _: predict(model, clean)[None],
    "replaced_run": _replaced,
    "patch": _patched,
    "path_patch": _paths,
    "attribution_patch": _estimated,
    "interchange": _exchanged,
    "mask_position": _hidden,
    "logit_lens": lambda model, clean, _: np.moveaxis(logit_lens(model, clean).logits, 1, -1),
    "attribute_logits": lambda model, clean, _: np.moveaxis(
        ai.attribute_logits(model, clean).logits, 1, -1
    ),
}


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_an_instrument_says_of_padded_examples_what_it_says_of_each_alone(
    model: HookedTransformer, name: str
) -> None:
    clean, corrupted = sentences(), sentences(seed=1, answers=WRONG)
    together = np.asarray(INSTRUMENTS[name](model, clean, corrupted))
    each = [
        np.asarray(INSTRUMENTS[name](model, alone(clean, row), alone(corrupted, row)))
        for row in range(N)
    ]
    np.testing.assert_allclose(together, np.concatenate(each, -1), rtol=0, atol=1e-10)
    assert together.std() > 0


def test_an_ablated_edge_of_padded_examples_is_that_of_each_alone(
    model: HookedTransformer,
) -> None:
    examples = sentences()
    for row in range(N):
        whole, bare = examples[row], alone(examples, row)
        padded = ai.EdgeAblation(model, whole, "zero")
        cut = ai.EdgeAblation(model, bare, "zero")
        kept = np.flatnonzero(whole.inside[0])
        ablated = np.zeros((3, *padded.reachable.shape), np.bool_)
        ablated[0] = padded.reachable
        ablated[1, 0, :, kept[-1], kept[0]] = ablated[2, 1, :, kept[-1], kept[1]] = True
        inside = ablated[..., kept, :][..., kept]
        np.testing.assert_allclose(padded.measure(ablated), cut.measure(inside), atol=1e-10)
        assert np.array_equal(padded.reachable[..., kept, :][..., kept], cut.reachable)
        assert padded.reachable.sum() == cut.reachable.sum()  # no edge of padding is a part


def test_residual_edges_of_padded_examples_are_those_of_each_alone(
    model: HookedTransformer,
) -> None:
    clean, corrupted = sentences(), sentences(seed=1, answers=WRONG)
    for row in (1, 3):  # padded on the left and on the right
        scores, measured = list[Any](), list[Any]()
        for own, given in (
            (clean[row], corrupted[row]),
            (alone(clean, row), alone(corrupted, row)),
        ):
            scores.append(ai.edge_attribution(model, own, given, ai.log_prob(own)).scores)
            bench = ai.EdgeAblation(model, own, references=given, parts="residual edges")
            edges = np.argwhere(bench.reachable)[::7]
            cut = np.repeat(bench.reachable[None] & False, len(edges), axis=0)
            cut[np.arange(len(edges)), *edges.T] = True
            measured.append(bench.measure(cut))
        np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=1e-10)
        np.testing.assert_allclose(measured[0], measured[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("parts", [None, "edges", "heads and MLPs", "residual edges"])
def test_a_token_is_not_replaced_by_padding(parts: Any) -> None:
    """Sentences of two lengths end together; what padding holds means nothing."""
    model, tokens = random_model("pre"), np.random.default_rng(0).integers(1, 100, (4, 6))
    shorter = ai.Examples(tokens, RIGHT[:4], attention_mask=np.arange(6) > np.full((4, 1), 1))
    longer = ai.Examples(tokens[::-1], WRONG[:4], attention_mask=np.ones_like(tokens))
    both = ai.Examples(tokens, attention_mask=np.arange(6) >= np.arange(4)[:, None])

    def replace() -> None:
        if parts is not None:
            ai.EdgeAblation(model, shorter, references=longer, parts=parts)
        metric = ai.logit_difference(shorter, longer)
        ai.patch(model, shorter, longer, [ai.Site("resid_pre", 0)], metric)

    with pytest.raises(ai.ConfigError, match="masked padding"):
        replace()
    if parts in ("edges", "heads and MLPs"):
        with pytest.raises(ai.ConfigError, match="masked padding is elsewhere in some rows"):
            ai.EdgeAblation(model, both, parts=parts)


def test_padding_behind_the_answers_may_differ(model: HookedTransformer) -> None:
    tokens, at = np.random.default_rng(0).integers(1, 100, (4, 6)), np.full(4, 3)
    clean, corrupted = (
        ai.Examples(tokens[::step], answers[:4], at=at, attention_mask=np.arange(6) < ends)
        for step, answers, ends in (
            (1, RIGHT, np.full((4, 1), 4)),
            (-1, WRONG, [[5], [6], [4], [5]]),
        )
    )
    whole = ai.patch(model, clean, corrupted, [ai.Site("resid_pre", 0)], ai.log_prob(clean))
    np.testing.assert_allclose(whole.values[0], whole.clean, rtol=0, atol=1e-10)


def test_twins_and_aligned_examples_have_one_length() -> None:
    tokens = np.random.default_rng(0).integers(1, 100, (12, 6))
    lengths = np.repeat([4, 6], [8, 4])[:, None]
    mixed = ai.Examples(tokens, np.arange(12), attention_mask=np.arange(6) >= 6 - lengths)
    clean, corrupted, _ = find_twins(mixed, seed=0)
    assert np.array_equal(clean.inside, corrupted.inside)
    assert aligned_examples(mixed).inside.sum(1).tolist() == [4] * 8


def test_rows_that_all_differ_in_length_lose_patching_alone() -> None:
    tokens, model = np.random.default_rng(0).integers(1, 100, (8, 9)), random_model("pre")
    mask = np.arange(9) >= np.arange(8)[:, None]
    each = ai.Examples(tokens, np.arange(20, 28), attention_mask=mask)
    found = ai.analyze_model(model, each, quiet=True)
    assert "patching: 'masked padding' is elsewhere in" in " ".join(found.left_out)
    zero = ai.EdgeAblation(model, each, "zero", parts="edges")
    cut = np.ones((1, *zero.reachable.shape), bool) & zero.reachable
    cut[:, 0] = False
    alone = [ai.EdgeAblation(model, each[i : i + 1], "zero", parts="edges") for i in range(8)]
    expected = np.mean([own.measure(cut) for own in alone], 0)
    np.testing.assert_allclose(zero.measure(cut), expected, rtol=0, atol=1e-10)


def test_a_circuit_of_padded_examples_has_no_edge_of_padding() -> None:
    model = random_model("pre", n_layers=2, n_heads=1)
    tokens = np.random.default_rng(0).integers(1, 100, (6, 6))
    padded = ai.Examples(tokens, attention_mask=np.arange(6) > np.full((6, 1), 1))
    benches = [
        [ai.EdgeAblation(model, each, ablation) for each in (padded, ai.Examples(tokens[:, 2:]))]
        for ablation in ("zero", "mean", "resample")
    ]
    for pair in benches:
        circuit, expected = (ai.prune(bench, quiet=True) for bench in pair)
        assert np.array_equal(circuit.edges[..., 2:, 2:], expected.edges)
        assert circuit.size == expected.size > 0
        one, other = map(ai.score_circuit, pair, (circuit, expected))
        assert one.faithfulness.accuracy == other.faithfulness.accuracy


def test_attention_and_flow_are_those_of_each_alone(model: HookedTransformer) -> None:
    examples = sentences()
    names = ["blocks.0.attn.hook_pattern", "blocks.1.hook_resid_post"]
    found = activations(model, examples, names, batch=2)
    patterns = attention_patterns(model, examples)
    for row in range(N):
        bare, kept = alone(examples, row), np.flatnonzero(examples.inside[row])
        expected = activations(model, bare, names)
        attention = found[names[0]][row][:, kept][:, :, kept]
        torch.testing.assert_close(attention, expected[names[0]][0], atol=1e-10, rtol=0)
        stream = found[names[1]][row, kept]
        torch.testing.assert_close(stream, expected[names[1]][0], atol=1e-10, rtol=0)
        shown = attention_patterns(model, bare)
        np.testing.assert_allclose(
            patterns.patterns[:, row][..., kept, :][..., kept], shown.patterns[:, 0], atol=1e-6
        )
        assert patterns.answers[row] == shown.answers[0]
        flow, alone_flow = information_flow(model, examples[row]), information_flow(model, bare)
        assert np.array_equal(flow.outputs[:, kept], alone_flow.outputs)


def test_the_page_of_padded_examples_says_what_each_alone_does() -> None:
    model, examples = random_model("pre", n_layers=1), sentences(times=5)
    correct = [int(predict(model, alone(examples, row))[0]) for row in range(len(examples))]
    answers = np.where(np.arange(len(examples)) % 5 > 0, correct, -1 + np.array(correct))
    mask, places = examples.attention_mask, examples.places
    examples = ai.Examples(
        examples.tokens, answers, examples.wrong, places=places, attention_mask=mask
    )
    analysis: Any = ai.analyze_model(model, examples, quiet=True)
    assert analysis.examples.accuracy == 0.8
    for row, shown in enumerate(analysis.attention):
        bare = alone(examples, row)
        assert shown.words == tuple(map(str, bare.tokens[0].tolist()))
        expected = attention_patterns(model, bare).patterns[:, 0]
        np.testing.assert_allclose(shown.patterns, expected, atol=1e-6)


def test_a_mask_acts_beside_an_attached_hook() -> None:
    model, examples = random_model("post"), sentences(ON_LEFT | True)
    expected = ai.last_logits(model, examples)
    model.add_hook("blocks.0.hook_resid_pre", lambda tensor, **_: tensor)
    torch.testing.assert_close(ai.last_logits(model, examples), expected, atol=1e-12, rtol=0)


def test_a_full_mask_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = random_model("post"), np.arange(18).reshape(2, 9)
    whole = ai.Examples(tokens, attention_mask=np.ones_like(tokens))
    monkeypatch.delattr(Rows, "through")
    assert torch.equal(ai.last_logits(model, whole), fast_last_logits(model, torch.tensor(tokens)))


def test_unmasked_padding_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model("post", n_layers=1)
    tokens = [[7, 7, 1, 2], [3, 4, 5, 6]]
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        right = ai.Examples([row[::-1] for row in tokens], padding=7)
        ai.last_logits(model, right)  # nothing before the answer is padding
        ai.last_logits(
            model, ai.Examples(tokens, padding=7, attention_mask=np.not_equal(tokens, 7))
        )
        assert not caplog.records
        left = ai.Examples(tokens, padding=7)
        for _ in range(2):
            ai.last_logits(model, left)
            predict(model, left[:1])
    assert [record.getMessage() for record in caplog.records] == [
        "padding 7 is before the answers, and the model reads it like any token; mask it: "
        "Examples(..., attention_mask=...)"
    ]


@only_3
def test_a_mask_goes_before_that_of_a_tokenizer() -> None:
    """TransformerLens takes every padding token on the left for padding."""
    from types import SimpleNamespace

    model = copy.deepcopy(random_model("pre"))
    model.tokenizer = SimpleNamespace(
        padding_side="left", pad_token_id=0, bos_token_id=None, bos_token=None
    )
    examples, plain = sentences(ON_LEFT | True), random_model("pre")
    torch.testing.assert_close(ai.last_logits(model, examples), ai.last_logits(plain, examples))
    longest = examples[0]  # its first token is 0
    torch.testing.assert_close(ai.last_logits(model, longest), ai.last_logits(plain, longest))


@only_3
def test_a_mask_that_a_model_ignores_is_refused() -> None:
    model = copy.deepcopy(random_model("pre"))
    model.cfg.attention_dir = "bidirectional"
    with pytest.raises(ai.ConfigError, match="attention is bidirectional; expected causal"):
        ai.last_logits(model, sentences(ON_LEFT | True))
