"""Interchange interventions: the answers that known mechanisms predict, the subspace search."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import EACH_EXACT, FEW_KEYS, small_exact
from twins import subset

import anchor_interp
from anchor_interp._util.errors import ConfigError, DivergedError
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.interchange import (
    InterchangeResult,
    Subspace,
    interchange,
    learn_subspace,
    random_subspace,
    renamed_answers,
)
from anchor_interp.interventions.sites import Site
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization, exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.counterfactuals import InterchangePairs, interchange_pairs
from anchor_interp.tasks.functions import Pair

TASK = TASKS["complexity-control"]
ADD = {1: 5, 2: 1, 3: -2, 4: -8}
HALFWAY = Site("resid_post", 0, "first")


def few(task: AnchorTask, n: int) -> InterchangePairs:
    """Pairs whose second anchor is before the last position."""
    pairs = interchange_pairs(task, 2 * n, seed=1)
    keep = np.flatnonzero(pairs.base.position < 6)[:n]
    return InterchangePairs(
        subset(pairs.base, keep),
        subset(pairs.source, keep),
        pairs.counterfactual[keep],
        np.asarray(pairs.anchor_moved)[keep],
        np.asarray(pairs.key_moved)[keep],
    )


@pytest.fixture(scope="module")
def pairs() -> InterchangePairs:
    return few(TASK, 40)


@pytest.fixture(scope="module")
def narrow() -> InterchangePairs:
    return few(FEW_KEYS, 40)


# Pairs


@pytest.mark.parametrize("name", ["complexity-control", "neurips"])
def test_the_counterfactual_follows_from_the_tokens(name: str) -> None:
    """Computed sequence by sequence from the papers' offsets."""
    task = TASKS[name]
    found: Any = interchange_pairs(task, 400, seed=2)
    composing = [pair for pair in task.seen if task.role(pair) == "inferential"]
    made = set[Pair]()
    for i in range(400):
        p = int(found.base.position[i])
        x, a1, a2 = found.base.tokens[i, p : p + 3].tolist()
        x_, a1_, a2_ = found.source.tokens[i, p : p + 3].tolist()
        assert found.source.position[i] == p
        made |= {(a1, a2), (a1_, a2_), (a1_, a2), (a1, a2_)}
        value = x_ + ADD[a1_]
        assert found.counterfactual[i] == value + ADD[a2]
        assert found.anchor_moved[i] == x + ADD[a1_] + ADD[a2]
        base, source = found.base.targets[i], found.source.targets[i]
        assert (base, source) == (x + ADD[a1] + ADD[a2], value + ADD[a2_])
        assert found.key_moved[i] == x_ + ADD[a1] + ADD[a2]
        others = {base, source, found.anchor_moved[i], found.key_moved[i]}
        assert found.counterfactual[i] not in others
        # training composed the second anchor with this value
        assert any(20 <= value - ADD[first] <= 99 for first, second in composing if second == a2)
    assert made == set(found.made) == set(composing)  # all are trained on the rule


def test_an_unseen_pair_takes_part_if_it_is_asked_for() -> None:
    asked = interchange_pairs(TASK, 500, seed=0, pairs=[*TASK.seen, (3, 4)])
    assert set(asked.made or ()) == {*TASK.seen, (3, 4)}


def test_a_base_sequence_without_a_source_is_left_out_and_counted() -> None:
    fours_meet = AnchorTask(unseen=((1, 4), (2, 4), (3, 4)))
    found = interchange_pairs(fours_meet, 200, seed=0)
    n = len(found.base)
    assert 0 < found.left_out == 200 - n
    assert not len(found.base.where(pair=(4, 4)))
    assert len(found.source) == len(found.counterfactual) == len(np.asarray(found.key_moved)) == n
    assert (found.source.position == found.base.position).all()
    assert interchange_pairs(TASK, 200, seed=0).left_out == 0
    with pytest.raises(ConfigError, match=r"200 of 200 sequences have no source .*choose other"):
        interchange_pairs(fours_meet, 200, seed=0, pairs=[(4, 4)])


@pytest.mark.parametrize("keys", ["train", "test"])
def test_pairs_keep_to_their_side_of_the_split(keys: Any) -> None:
    found = interchange_pairs(TASK, 200, seed=3, keys=keys)
    for part in (found.base, found.source):
        assert ((part.key % 9 == part.position) == (keys == "test")).all()


def test_equal_arguments_give_equal_pairs_and_fewer_are_the_first_of_more() -> None:
    more, fewer, other = (
        interchange_pairs(TASK, n, seed=s) for n, s in ((90, 4), (30, 4), (30, 5))
    )
    assert np.array_equal(more.counterfactual[:30], fewer.counterfactual)
    assert np.array_equal(more.source.tokens[:30], fewer.source.tokens)
    assert np.array_equal(more.base.tokens[:30], fewer.base.tokens)
    assert not np.array_equal(fewer.source.tokens, other.source.tokens)


# Known mechanisms

OUTCOMES: dict[Mechanism, str] = {
    "inferential": "counterfactual",  # g(x; a1) stands there
    "symmetric": "base",  # nothing that it uses stands there
    "lookup": "base",
}


@EACH_EXACT
def test_only_composing_models_answer_the_counterfactual(
    mechanism: Mechanism, normalization: Normalization, narrow: InterchangePairs
) -> None:
    result = interchange(small_exact(mechanism, normalization), narrow, HALFWAY)
    shares = {name: getattr(result, name) for name in ("counterfactual", "base")}
    assert shares == {name: float(name == OUTCOMES[mechanism]) for name in shares}
    assert result.untouched == 1
    assert result.n == 40
    assert result.dimensions is None
    expected_answers = narrow.counterfactual if mechanism == "inferential" else narrow.base.targets
    assert np.array_equal(result.answers, expected_answers)
    assert (result.cross_entropy < 0.01) == (mechanism == "inferential")


def test_other_sites_carry_something_else(narrow: InterchangePairs) -> None:
    """The embeddings carry anchor and key, the last position carries the source's answer."""

    def result(mechanism: Mechanism, *site: Any) -> InterchangeResult:
        return interchange(small_exact(mechanism, "post"), narrow, Site(*site))

    assert result("inferential", "resid_pre", 0, "first").anchor_moved == 1
    for mechanism in MECHANISMS:
        assert result(mechanism, "resid_pre", 0, "key").key_moved == 1
    assert result("inferential", "resid_post", 1, "last").source == 1
    assert result("lookup", "resid_post", 0, "second").source == 1
    assert result("inferential", "mlp_out", 0, "first").counterfactual == 1


def test_an_interchange_with_itself_changes_nothing(narrow: InterchangePairs) -> None:
    model = small_exact("inferential", "post")
    itself = dataclasses.replace(narrow, source=narrow.base)
    for subspace in (None, random_subspace(model.cfg.d_model, 7, seed=0)):
        result = interchange(model, itself, HALFWAY, subspace=subspace)
        assert (result.base, result.untouched) == (1, 1)


def test_all_of_it_everywhere_is_the_source_in_half_precision(pairs: InterchangePairs) -> None:
    model = anchor_interp.load("tiny/inferential/1", dtype=torch.bfloat16).model
    site, itself = Site("resid_post", 0, "all"), dataclasses.replace(pairs, base=pairs.source)
    exchanged, own = (interchange(model, each, site) for each in (pairs, itself))
    assert exchanged.cross_entropy == own.cross_entropy


def test_batches_do_not_touch_each_other(pairs: InterchangePairs) -> None:
    model = anchor_interp.load("tiny/inferential/1", dtype=torch.float64).model
    results = [interchange(model, pairs, HALFWAY, batch_size=size) for size in (1, 7, 1000)]
    for result in results[1:]:
        assert np.array_equal(result.answers, results[0].answers)
        assert result.cross_entropy == pytest.approx(results[0].cross_entropy)
    assert 0 < results[0].counterfactual < 1


# Subspaces


def written(model: HookedTransformer, pairs: InterchangePairs) -> np.ndarray:
    """An orthonormal basis of the differences that the first MLP writes at the first anchor."""
    name, rows = "blocks.0.hook_mlp_out", np.arange(len(pairs.base))
    at = pairs.base.position.astype(np.int64) + 1
    both = [activations(model, s.tokens, [name])[name] for s in (pairs.base, pairs.source)]
    values = torch.cat([each[rows, at] for each in both]).double()
    _, singular, directions = torch.linalg.svd(values - values.mean(0), full_matrices=False)
    found: np.ndarray = directions[singular > 1e-3 * singular[0]].mT.numpy()
    return found


def test_the_wired_subspace_is_as_good_as_all_of_it(narrow: InterchangePairs) -> None:
    model = small_exact("inferential", "post", torch.float64)
    basis = written(model, narrow)
    width, k = basis.shape
    along = interchange(model, narrow, HALFWAY, subspace=Subspace(basis, np.empty(0)))
    assert (along.counterfactual, along.dimensions) == (1, k)
    at_random = interchange(model, narrow, HALFWAY, subspace=random_subspace(width, k, seed=0))
    assert at_random.counterfactual < 0.1
    rest = torch.linalg.svd(torch.from_numpy(basis), full_matrices=True)[0][:, k:]
    without = interchange(model, narrow, HALFWAY, subspace=Subspace(rest.numpy(), np.empty(0)))
    assert without.base == 1


def test_all_dimensions_are_the_plain_interchange(pairs: InterchangePairs) -> None:
    model = anchor_interp.load("tiny/inferential/1").model
    whole = random_subspace(model.cfg.d_model, model.cfg.d_model, seed=3)
    plain, along = (interchange(model, pairs, HALFWAY, subspace=s) for s in (None, whole))
    assert along.cross_entropy == pytest.approx(plain.cross_entropy, rel=1e-3)
    assert plain.cross_entropy != pytest.approx(interchange(
        model, pairs, HALFWAY, subspace=random_subspace(model.cfg.d_model, 4, seed=3)
    ).cross_entropy, rel=1e-3)  # fmt: skip


def test_random_subspaces_are_orthonormal_and_drawn_by_seed() -> None:
    one, again, other = (random_subspace(12, 5, seed=seed).basis for seed in (0, 0, 1))
    np.testing.assert_allclose(one.T @ one, np.eye(5), atol=1e-12)
    assert np.array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    state = torch.random.get_rng_state()
    random_subspace(12, 5, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.fixture(scope="module")
def searched() -> tuple[HookedTransformer, InterchangePairs]:
    model = anchor_interp.load("tiny/inferential/1").model
    return model, interchange_pairs(TASK, 1_000, seed=0, keys="train")


def search(model: HookedTransformer, fitted: InterchangePairs, **options: Any) -> Subspace:
    settings: dict[str, Any] = {"seed": 0, "lr": 0.02, "batch_size": 128, "quiet": True} | options
    return learn_subspace(model, fitted, HALFWAY, 16, **settings)


def test_a_search_leaves_the_model_unchanged_and_repeats(
    searched: tuple[HookedTransformer, InterchangePairs],
) -> None:
    model, fitted = searched
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    one, again, other = (search(model, fitted, steps=6, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.basis, again.basis)
    assert np.array_equal(one.losses, again.losses)
    assert not np.array_equal(one.losses, other.losses)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_search_takes_gradients_where_others_are_off(
    searched: tuple[HookedTransformer, InterchangePairs], without: Callable[[], Any]
) -> None:
    model, fitted = searched
    expected = search(model, fitted, steps=3)
    with without():
        found = search(model, fitted, steps=3)
    assert np.array_equal(found.basis, expected.basis)


def test_a_search_finds_the_directions_that_are_wired() -> None:
    """In a small inferential model the search finds the directions of the value.

    The last neurons of the exact models are far from their thresholds, where ReLU has no slope to
    follow. With softplus the answers are the same and the search has a gradient.
    """
    task = AnchorTask(key_min=20, key_max=31, length=5)
    model = exact_model("inferential", task)
    block: Any = model.blocks[1]
    block.mlp.act_fn, model.cfg.act_fn = torch.nn.functional.softplus, "softplus"
    fitted = interchange_pairs(task, 1_000, seed=0, keys="train")
    held_out = interchange_pairs(task, 200, seed=1, keys="test")
    found = learn_subspace(model, fitted, HALFWAY, 32, seed=0, steps=250, batch_size=64, quiet=True)
    learned = interchange(model, held_out, HALFWAY, subspace=found)
    assert learned.untouched == 1
    assert learned.counterfactual > 0.9
    assert found.losses[-20:].mean() < 0.5 * found.losses[:5].mean()
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(32), atol=1e-5)
    wired = written(model, fitted)
    assert wired.shape[1] == 24  # differences of 25 values
    drawn = [random_subspace(model.cfg.d_model, 32, seed=seed) for seed in range(20)]
    captured, *by_chance = (np.square(each.basis.T @ wired).sum() / 24 for each in (found, *drawn))
    assert np.mean(by_chance) == pytest.approx(32 / model.cfg.d_model, rel=0.1)
    assert captured > 2 * max(by_chance)
    at_random = interchange(model, held_out, HALFWAY, subspace=drawn[0])
    assert at_random.counterfactual < 0.2


def test_arbitrary_labels_rename_every_answer_alike(pairs: InterchangePairs) -> None:
    other = interchange_pairs(TASK, 300, seed=5)
    renamed = [renamed_answers(TASK, each, seed=3) for each in (pairs, other)]
    both = [np.concatenate([each.counterfactual for each in some])
            for some in ((pairs, other), renamed)]  # fmt: skip
    named = set(zip(*map(np.ndarray.tolist, both), strict=True))
    assert len(named) == len({answer for answer, _ in named}) == len({name for _, name in named})
    unlike = renamed_answers(TASK, other, seed=4).counterfactual
    assert (unlike != renamed[1].counterfactual).mean() > 0.8


def test_the_example_of_distributed_alignment_search_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands in the documentation, with a shorter search."""
    text = (Path(__file__).parents[2] / "docs/mechanism.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (block,) = (block for block in blocks if "learn_subspace" in block)
    short = functools.partial(learn_subspace, steps=2, quiet=True)
    monkeypatch.setattr(anchor_interp, "learn_subspace", short)
    names: dict[str, Any] = {}
    exec(block, names)
    shares = ("searched", "arbitrary labels", "an untrained model", "a random subspace")
    assert tuple(names["shares"]) == shares
    assert all(0 <= names["shares"][name] <= 1 for name in shares)


def test_a_search_ends_with_its_time_and_says_so(pairs: InterchangePairs) -> None:
    model = anchor_interp.load("tiny/symmetric/1").model
    options: dict[str, Any] = {"seed": 0, "batch_size": 16, "quiet": True}
    cut = learn_subspace(model, pairs, HALFWAY, 4, steps=5_000, max_seconds=0.05, **options)
    assert not cut.finished
    assert 1 <= len(cut.losses) < 5_000
    whole = learn_subspace(model, pairs, HALFWAY, 4, steps=len(cut.losses), **options)
    assert whole.finished
    assert np.array_equal(whole.basis, cut.basis)  # the best so far, not the start
    assert np.array_equal(whole.losses, cut.losses)


def test_a_diverging_search_stops_with_an_error(pairs: InterchangePairs) -> None:
    model = anchor_interp.load("tiny/symmetric/1", dtype=torch.float64).model

    def breaks(value: torch.Tensor, **_: Any) -> torch.Tensor:
        return value * torch.nan

    with model.hooks(fwd_hooks=[("blocks.1.hook_resid_post", breaks)]):
        with pytest.raises(DivergedError, match="loss is nan at step 1"):
            learn_subspace(model, pairs, HALFWAY, 4, seed=0, steps=3, quiet=True)
        with pytest.raises(ConfigError, match="the model's logits are not finite"):
            interchange(model, pairs, HALFWAY)


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch, pairs: InterchangePairs) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = anchor_interp.load("tiny/symmetric/1").model
    wide, array = random_subspace(20, 3, seed=0), cast(Any, np.eye(128))
    words = "subspace is an array of float64.*; expected a Subspace"
    refused(lambda: interchange(model, pairs, HALFWAY, subspace=array), words)
    words = "has 20 dimensions; expected 64"
    refused(lambda: interchange(model, pairs, HALFWAY, subspace=wide), words)
    refused(lambda: interchange(model, pairs, Site("z", 2, "first")), "2 layers")
    refused(lambda: interchange(model, pairs, HALFWAY, batch_size=0), "batch_size is 0")
    with torch.inference_mode():
        fixed = build_model(ModelConfig(d_model=16), InitConfig(), seed=0)
    refused(lambda: search(fixed, pairs), "made within torch.inference_mode.*load it outside")
    uneven = interchange_pairs(TASK, 60, seed=0)  # the second anchor is the last token of some
    refused(lambda: interchange(model, uneven, Site("z", 0, "noise")), "160 to 192 numbers")
    for name, value in {"steps": 0, "lr": 0.0, "dimensions": 129, "max_seconds": 0}.items():
        chosen: dict[str, Any] = {"dimensions": 2, "seed": 0, "quiet": True} | {name: value}
        refused(functools.partial(learn_subspace, model, pairs, HALFWAY, **chosen), f"{name} is")
    refused(
        lambda: interchange_pairs(TASKS["neurips"], 5, seed=0, pairs=[(3, 4)]), "no intermediate"
    )
    refused(lambda: interchange_pairs(TASK, 5, seed=0, pairs=[(1, 9)]), r"\(1, 9\)")
    refused(lambda: interchange_pairs(TASK, 5, seed=0, pairs=[]), "no pair to draw from")
    alone = AnchorTask(unseen=tuple(pair for pair in TASK.pairs if pair != (1, 1)))
    refused(
        lambda: interchange_pairs(alone, 5, seed=0, keys="test"), "5 of 5 sequences have no source"
    )
