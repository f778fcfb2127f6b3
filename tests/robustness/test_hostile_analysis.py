"""Models and examples of which instruments would tell a wrong number without a word."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import assert_refused
from small_models import FEW_KEYS, random_model, small_exact
from torch import Tensor, nn

import anchor_interp as ai
from anchor_interp._util.errors import HookError
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.interchange import random_subspace
from anchor_interp.interventions.patching import PatchResult
from anchor_interp.models.transformer_lens import HookedTransformer

PAIRS = ai.contrast_pairs(FEW_KEYS, "key", 12, seed=0)
METRIC = ai.logit_difference(*PAIRS)


def changed(change: Callable[[Any], object]) -> Any:
    """A copy of an inferential model with a change."""
    model = copy.deepcopy(small_exact("inferential", "pre"))
    change(model)
    return model


def hooked(name: str) -> Any:
    """A model with an activation doubled by a hook."""
    return changed(lambda m: m.add_hook(name, lambda value, **_: 2 * value))


def examples(masked: bool, pads: bool = True) -> ai.Examples:
    """Rows with one padding token before the text, or none."""
    tokens = np.array([[99 if pads else 3, 5, 7, 9], [4, 6, 8, 10]])
    mask = np.ones_like(tokens, bool)
    mask[0, 0] = not pads
    given: dict[str, Any] = {"attention_mask": mask} if masked else {"padding": 99}
    return ai.Examples(tokens, np.array([1, 2]), np.array([2, 1]), **given)


class Cold(HookedTransformer):
    """Its logits are a quarter of the usual ones."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See the class."""
        return super().forward(*args, **kwargs) * 0.25


def half_asleep() -> nn.Module:
    """A model in eval mode with a part in training mode."""
    model = nn.Sequential(nn.Embedding(200, 8), nn.Dropout(0.5)).eval()
    model[1].train()
    return model


def scaled_subspace() -> Any:
    """Columns of length 2."""
    found = random_subspace(small_exact("inferential", "pre").cfg.d_model, 3, seed=0)
    found.basis[:] *= 2
    return found


def sets_of_edges(measure: Callable[[ai.EdgeAblation], Any]) -> Any:
    """What a bench of two layers says."""
    model = small_exact("inferential", "pre")
    return measure(ai.EdgeAblation(model, ai.aligned_sequences(FEW_KEYS, 2, 6, seed=0)))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "z": (lambda: ai.route_scores(hooked("blocks.0.attn.hook_z"), FEW_KEYS),
          "layer 0 does not write the sum over its edges"),
    "stream": (lambda: ai.edge_attribution(hooked("blocks.1.hook_resid_post"), *PAIRS, METRIC),
               "a hook on blocks.1.hook_resid_post is between the stream and"),
    "half": (lambda: ai.edge_attribution(changed(lambda m: m.bfloat16()), *PAIRS, METRIC),
             "the model is in torch.bfloat16; expected"),
    "copies": (lambda: ai.edge_attribution(
        changed(lambda m: setattr(m.cfg, "use_attn_in", True)), *PAIRS, METRIC),
        "cfg.use_attn_in is between the stream and its readers; turn it off"),
    "one of many": (lambda: ai.patch(
        model := small_exact("inferential", "pre"), *PAIRS, ai.site_grid(model, ["resid_post"]),
        ai.kl_divergence(model, PAIRS[0][:1])), "the metric is of 1 examples, 12 are patched"),
    "one mask": (lambda: ai.patch(model := random_model("pre"), examples(True), examples(False),
                                  ai.site_grid(model, ["resid_post"]),
                                  ai.logit_difference(examples(True))),
                 "'masked padding' is elsewhere in"),
    "same": (lambda: ai.EdgeAblation(random_model("pre"), ai.Examples(
        np.array([[3, 5], [4, 6]]), np.array([1, 2]), np.array([1, 2]))),
        "right and wrong are the same in all 2 examples"),
    "subspace": (lambda: ai.interchange(
        small_exact("inferential", "pre"), ai.interchange_pairs(FEW_KEYS, 20, seed=0),
        ai.Site("resid_post", 0, "first"), subspace=scaled_subspace()), "not orthonormal"),
    "dropout": (lambda: ai.last_logits(
        changed(lambda m: m.unembed.add_module("drop", nn.Dropout(0.5).train())), PAIRS[0]),
        "unembed.drop drops numbers at random; call model.eval"),
    "dropout inside": (lambda: ai.last_logits(half_asleep(), PAIRS[0]), "1 drops numbers"),
    "few outputs": (lambda: ai.evaluate(nn.Embedding(200, 5).eval(), FEW_KEYS, n=5),
                    "the model has 5 outputs, from 0; an answer of the task is "),
    "few colours": (lambda: ai.answer_map(nn.Embedding(200, 5).eval(), FEW_KEYS),
                    "the model has 5 outputs"),
    "a pair twice": (lambda: ai.answer_map(small_exact("symmetric", "pre"), FEW_KEYS,
                                           pairs=[(3, 4), (1, 2), (3, 4)]), "each pair once"),
    "set of one": (lambda: sets_of_edges(lambda bench: bench.measure(bench.reachable)),
                   r"sets are bool \(2, 1, 9, 9\); expected bool \(n, \*\(2, 1, 9, 9\)\)"),
    "set of numbers": (lambda: sets_of_edges(lambda bench: bench.faithfulness(
        torch.ones(1, *bench.reachable.shape))), "sets are float32 "),
    "no set": (lambda: sets_of_edges(lambda bench: bench.measure(bench.reachable[None][:0])),
               r"sets are bool \(0, 2, 1, 9, 9\); expected .*, at least one"),
    "one layer twice": (lambda: ai.patch(
        changed(lambda m: m.blocks.__setitem__(1, m.blocks[0])), *PAIRS,
        [ai.Site("resid_post", 0, "key")], METRIC),
        "layers share blocks.0.*; copy.deepcopy one"),
    "one attention twice": (lambda: ai.attribute_logits(
        changed(lambda m: setattr(m.blocks[1], "attn", m.blocks[0].attn)), PAIRS[0]),
        "layers share blocks.0.attn"),
    "other outputs": (lambda: ai.kl_divergence(
        small_exact("symmetric", "pre"), PAIRS[0])(torch.zeros(12, 7)),
        "the metric is of 42 output tokens, 7 are patched; make it of these"),
    "several columns": (lambda: ai.effect([{"x": 1, "y": 2}], of=["x"], on="y"),  # type: ignore[arg-type]
                        r"column is \['x'\]; expected one of "),
    "a number for columns": (lambda: ai.effect([{"x": 1, "y": 2}], of="x", on="y",
                                               within=3),  # type: ignore[arg-type]
                             "column is 3; expected one of "),
    "no conditions": (lambda: ai.effect([{"x": 1, "y": 2}], of="x", on="y",
                                        where="x"),  # type: ignore[arg-type]
                      "where is 'x'; expected a Mapping"),
    "loss beside logits": (lambda: ai.evaluate(lambda t: (Positions()(t), None), FEW_KEYS, n=5),
                           r"expected logits .*: of several .*, such as lambda tokens: model\(tok"),
    "hidden dropout": (lambda: ai.answer_map(
        lambda t: nn.functional.dropout(Positions()(t) + 1), FEW_KEYS),
        "row 0 by itself has another answer: other rows, padding or chance"),
    "mean over rows": (lambda: ai.last_logits(
        lambda t: Positions()(t) + t[:, -1].double().mean() * torch.arange(20), PAIRS[0]),
        "row 0 by itself has another answer"),
    "positions first": (lambda: ai.last_logits(
        lambda t: Positions()(t).transpose(0, 1), np.array([[1, 2], [3, 4]])),
        r"gives .* shape \(2, 1, 20\); expected logits \(1, 2, 'd_vocab'\)"),
    "mean over rows, masked words": (lambda: ai.last_logits(
        lambda t: torch.cat([Positions()(t), torch.full((*t.shape, 9), -1e9)], -1)
        + t[:, -1].double().mean() * torch.arange(29), PAIRS[0]),
        "row 0 by itself has another answer: .* higher precision if it is autocast"),
    "mask ignored": (lambda: ai.last_logits(lambda t, **_: Positions()(t), examples(True)),
                     "row 0 by itself has another answer"),
    "another start": (lambda: ai.evaluate(
        small_exact("symmetric", "pre"), FEW_KEYS, initial=random_model("pre"), n=5),
        "initial has a matrix of shape .* expected the same model before training"),
    "NaN": (lambda: ai.last_logits(
        changed(lambda m: m.blocks[0].attn.W_K.data[0, 0].fill_(torch.nan)), PAIRS[0]),
        "blocks.0.attn.W_K holds .* not finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_instrument_refuses(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(*REFUSED[case], monkeypatch)


def test_hooks_that_leave_the_sum_over_edges_are_taken() -> None:
    for name in ("hook_v", "hook_pattern"):
        model = hooked(f"blocks.0.attn.{name}")
        aligned = ai.aligned_sequences(FEW_KEYS, 2, 12, seed=0)
        bench = ai.EdgeAblation(model, aligned, references=aligned)
        assert bench.nothing == pytest.approx(bench.full, abs=1e-4)


def test_a_forward_pass_of_a_subclass_acts_in_estimates() -> None:
    model: Any = changed(lambda m: setattr(m, "__class__", Cold))
    sites = ai.site_grid(model, ["resid_post"])
    estimate, patched = (
        measure(model, *PAIRS, sites, METRIC) for measure in (ai.attribution_patch, ai.patch)
    )
    np.testing.assert_allclose(estimate.clean, patched.clean, rtol=1e-5)
    np.testing.assert_allclose(estimate.corrupted, patched.corrupted, rtol=1e-5)


def test_an_interval_needs_a_difference_and_two_examples() -> None:
    model = small_exact("inferential", "pre")
    sites = ai.site_grid(model, ["resid_post"])
    same = ai.patch(model, PAIRS[0], PAIRS[0], sites, METRIC)
    with pytest.raises(ai.ConfigError, match="nothing to recover"):
        same.interval()
    one = PAIRS.clean[:1], PAIRS.corrupted[:1]
    found: PatchResult = ai.patch(model, *one, sites, ai.logit_difference(*one))
    assert np.isnan(found.interval()).all()
    assert not np.isnan(found.recovery()).any()


def test_an_answer_that_is_also_the_wrong_one_does_not_count() -> None:
    model, tokens = random_model("pre"), np.array([[3, 5], [4, 6], [7, 8]])
    some = ai.Examples(tokens, np.array([1, 2, 3]), np.array([4, 2, 5]))
    rest = ai.Examples(tokens[::2], np.array([1, 3]), np.array([4, 5]))
    both = (ai.EdgeAblation(model, each, references=each) for each in (some, rest))
    one, other = (bench.full[1] for bench in both)
    assert one == pytest.approx(other)


def test_sets_of_edges_may_be_tensors() -> None:
    def both(bench: ai.EdgeAblation) -> Any:
        sets = bench.reachable[None]
        return bench.measure(sets), bench.measure(torch.from_numpy(sets))

    np.testing.assert_array_equal(*sets_of_edges(both))


def test_the_phase_of_an_edited_run_is_not_the_stored_one() -> None:
    run: Any = ai.load("tiny/inferential/1")
    assert not run.is_edited
    assert run.judged()[1] == run.decision
    with run.transformer.hooks([("unembed.hook_in", lambda value, **_: 0 * value)]):
        assert run.is_edited
    run.transformer.cfg.use_attn_result = True
    assert not run.is_edited
    run.transformer.unembed.W_U.data *= -1
    assert run.is_edited
    assert run.judged(n=20)[1].phase == "undertrained"
    half: Any = ai.load("tiny/inferential/1")
    half.transformer.bfloat16()
    assert not half.is_edited
    exact = ai.load("exact/symmetric")
    assert not exact.transformer.training
    assert not exact.is_edited


CODE: dict[str, Callable[[Any], object]] = {
    "forward": lambda m: setattr(m.blocks[1], "forward", lambda x, **_: x),
    "activation": lambda m: setattr(m.blocks[0].mlp, "act_fn", torch.tanh),
    "scale": lambda m: setattr(m.blocks[0].attn, "attn_scale", 1.0),
    "epsilon": lambda m: setattr(m.ln_final, "eps", 1.0),
    "class": lambda m: setattr(m, "__class__", Cold),
    "cfg.n_ctx": lambda m: setattr(m.cfg, "n_ctx", 9),
    "cfg.use_attn_scale": lambda m: setattr(m.cfg, "use_attn_scale", False),
    "cfg.act_fn": lambda m: setattr(m.cfg, "act_fn", "relu"),
    "cfg.attention_dir": lambda m: setattr(m.cfg, "attention_dir", "bidirectional"),
    "cfg.normalization_type": lambda m: setattr(m.cfg, "normalization_type", None),
}


@pytest.mark.parametrize("change", CODE.values(), ids=CODE)
def test_a_run_with_other_code_is_edited(change: Callable[[Any], object]) -> None:
    run: Any = ai.load("tiny/inferential/1")
    change(run.transformer)
    assert run.is_edited


def test_names_and_copies_edit_nothing() -> None:
    run: Any = ai.load("tiny/inferential/1")
    run.evaluate(n=10)  # which keeps a snapshot of the model's code
    assert not copy.deepcopy(run).is_edited
    run.transformer.cfg.model_name, run.transformer.note = "mine", print
    assert not run.is_edited


def test_a_hook_outside_of_shared_layers_is_recorded() -> None:
    model: Any = copy.deepcopy(ai.load("tiny/inferential/1").transformer)
    model.blocks[1].ln1 = model.blocks[0].ln1
    model.setup()
    tokens = torch.tensor([[1, 4, 99, 3, 4, 20, 21, 22, 23]])
    assert set(activations(model, tokens, ["hook_embed"])) == {"hook_embed"}
    with pytest.raises(HookError, match="layers share"):
        activations(model, tokens, ["blocks.0.ln1.hook_scale"])


def test_a_called_model_may_take_whole_batches_alone() -> None:
    weights = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))

    def model(tokens: Tensor) -> Tensor:
        assert len(tokens) == 2
        return weights[tokens]

    tokens = np.array([[3, 4, 5], [6, 7, 8]])
    assert torch.equal(ai.last_logits(model, tokens), weights[[5, 8]])


class Positions(nn.Module):
    """A model whose logits are the positions that its tokens get."""

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, position_ids: Any = None
    ) -> Tensor:
        """tokens: [batch, pos]."""
        del attention_mask
        own = torch.arange(tokens.shape[1]).expand(tokens.shape)
        return nn.functional.one_hot(own if position_ids is None else position_ids, 20).float()


def test_positions_of_a_called_model_do_not_depend_on_its_neighbours() -> None:
    tokens = np.array([[3, 4, 5, 6], [3, 4, 5, 6]])
    hole, left = [True, False, True, True], [False, True, True, True]
    both = ai.Examples(tokens, attention_mask=np.array([hole, left]))
    alone = ai.Examples(tokens[:1], attention_mask=np.array([hole]))
    assert ai.last_logits(Positions().eval(), both).argmax(-1).tolist() == [2, 2]
    assert ai.last_logits(Positions().eval(), alone).argmax(-1).tolist() == [2]


def test_conditions_of_an_effect_may_be_an_array() -> None:
    rows = [{"run_id": f"{i}", "x": 1.0 * i, "s": i % 3, "y": i % 2} for i in range(40)]
    given: Any
    for given in ([0, 1], np.array([0, 1]), np.array([0.0, 1.0]), range(2)):
        assert ai.effect(rows, of="x", on="y", where={"s": given}).n == 27


@pytest.mark.parametrize("share", [float("nan"), 98.0, -0.5])
def test_a_phase_follows_from_shares(share: float) -> None:
    found = ai.evaluate(small_exact("inferential", "pre"), FEW_KEYS, n=5)
    for name in ("train_accuracy", "id_accuracy", "ood_accuracy", "condensation"):
        with pytest.raises(ai.ConfigError, match=f"{name} is .*; expected a number from 0 to 1"):
            replace(found, **dict[str, Any]({name: share}))


@pytest.mark.parametrize(
    ("one", "other"), [(1234567.0, 1234568.0), (None, "default"), (1, "1"), ("a", "a, b")]
)
def test_strata_that_print_alike_stay_apart(one: Any, other: Any) -> None:
    rows = [
        {"run_id": f"{i}", "gamma": i % 6 / 10, "x": i % 6 + 50.0 * (i // 6), "s": one, "t": "b, c"}
        for i in range(12)
    ]
    rows = [row | ({"s": other, "t": "c"} if i >= 6 else {}) for i, row in enumerate(rows)]
    found = ai.effect(rows, of="x", on="gamma", within=("s", "t"), least=0.3)
    assert [each.n for each in found.strata.values()] == [6, 6]
    assert found.found is not None
    assert found.found.effect == pytest.approx(1)
