"""The contrasts of one model, and how claims about recipes are judged."""

import json
import math
from collections.abc import Sequence

import pytest

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.sensitivity import sensitivity
from anchor_interp.analysis.similarity import (
    answer_similarity,
    block_similarity,
    value_similarity,
)
from anchor_interp.models.exact import exact_model
from anchor_interp.runs.presets import RECIPES
from anchor_interp.tasks.anchor import Affine, Anchor, AnchorTask
from papers.effects import Recipes
from papers.judging import TOO_FEW, Family, Judgement, judge
from papers.rows import Row
from papers.rule_contrasts import CONTRASTS, NUMBERS, RuleContrasts, recipe_claim, rule_contrasts

SMALL = AnchorTask(
    anchors=tuple(Anchor(token, Affine(add)) for token, add in ((1, 5), (2, 1), (3, -2), (4, -8))),
    unseen=((3, 4), (4, 3)), key_min=20, key_max=39, length=7,
)  # fmt: skip


@pytest.fixture(scope="module")
def inferential() -> RuleContrasts:
    return rule_contrasts(exact_model("inferential", SMALL), SMALL, seed=1)


def test_the_numbers_are_those_of_the_analyses(inferential: RuleContrasts) -> None:
    model = exact_model("inferential", SMALL)
    assert inferential.value == value_similarity(model, SMALL, seed=1).contrast
    assert inferential.value_ov == value_similarity(model, SMALL, state="OV", seed=1).contrast
    assert inferential.answer == answer_similarity(model, SMALL, seed=1).contrast
    assert inferential.blocks == block_similarity(model, SMALL, seed=1).contrast
    whole = block_similarity(model, SMALL, renormalise=True, seed=1).contrast
    assert inferential.blocks_renormalised == whole
    before = block_similarity(model, SMALL, state="X_ao", seed=1).contrast
    assert inferential.blocks_before == before
    assert inferential.key_mask.n_ordered == 12
    every = key_mask_clusters(model, SMALL, pairs=SMALL.pairs, seed=1)
    assert inferential.key_mask_all.n_ordered == every.n_ordered == 16
    first = pair_clusters(model, SMALL, seed=1)
    assert inferential.first_layer.unordered == first.silhouette_unordered
    assert inferential.number("first_layer.order") == first.silhouette_order
    assert inferential.sensitivity[1] == sensitivity(model, SMALL, state="V", place="first", seed=1)
    assert [(one.state, one.layer) for one in inferential.sensitivity] == [
        ("logits", None),
        ("V", 1),
        ("X_ao", 1),
    ]


def test_a_composing_model_has_the_contrast(inferential: RuleContrasts) -> None:
    assert inferential.value.difference == pytest.approx(1, abs=0.1)
    assert inferential.value.p_value == 1 / 48
    assert inferential.blocks.difference == 0  # its logits say nothing without the second anchor
    # but with all of its attention on the first anchor they say what every second one would give
    assert inferential.blocks_renormalised.difference > 0.9
    assert inferential.blocks_renormalised.p_value == 1 / 48
    assert inferential.blocks_before.difference == pytest.approx(1, abs=0.1)


def test_results_survive_json(inferential: RuleContrasts) -> None:
    text = json.dumps(to_dict(inferential))
    assert from_dict(RuleContrasts, json.loads(text)) == inferential


def test_claims_are_of_recipes_on_one_task() -> None:
    effects = [claim.effect for claim in CONTRASTS.claims]
    assert len(set(effects)) == len(effects) == 17
    for effect in effects:
        assert isinstance(effect, Recipes)
        assert effect.number in NUMBERS
        assert effect.larger != effect.smaller
        smaller = effect.smaller or effect.larger
        assert RECIPES[effect.larger].task == RECIPES[smaller].task


def table(**values: Sequence[float | None]) -> dict[str, list[Row]]:
    """Runs of recipes with these values of one number."""
    return {
        "recipes": [
            {"run_id": f"{recipe}-{seed}", "seed": seed, "recipe": recipe, "number": value,
             "status": "done", "censored": False}
            for recipe, found in values.items()
            for seed, value in enumerate(found)
        ]
    }  # fmt: skip


def judged(rows: dict[str, list[Row]], *pairs: tuple[str, str | None]) -> list[Judgement]:
    claims = tuple(recipe_claim("", "", "", "number", *pair) for pair in pairs)
    return list(judge(Family(claims, "holm", fewest=2), rows).values())


ABOVE, LARGER, SMALLER, UNKNOWN = ("a", None), ("a", "b"), ("b", "a"), ("c", "a")
LARGE = (0.5, 0.6, 0.55, 0.7, 0.65, 0.62)


def test_runs_are_the_unit() -> None:
    rows = table(a=LARGE, b=(0.1, 0.2, 0.0, -0.1, 0.15))
    found = judged(rows, ABOVE, LARGER, SMALLER, UNKNOWN)
    p = [one.finding.p_value for one in found[:3] if one.finding]
    # every sign alike; the one division that separates, of all
    assert p == pytest.approx([2 / 2**6, 1 / math.comb(11, 5), 1 / math.comb(11, 5)])
    assert [one.q_value for one in found] == pytest.approx([1 / 32, 3 / 462, 3 / 462, None])
    assert [one.verdict for one in found] == [
        "supported", "supported", "reversed", "not answerable here"
    ]  # fmt: skip
    assert found[1].finding is not None
    assert found[1].finding.n == (6, 5)
    assert found[1].finding.effect == pytest.approx(3.62 / 6 - 0.35 / 5)


def test_few_runs_show_nothing() -> None:
    (found,) = judged(table(a=(0.5, 0.6), b=(0.0, 0.1, 0.2)), LARGER)
    assert found.q_value == pytest.approx(1 / 10)
    assert (found.verdict, found.reason) == ("not answerable here", TOO_FEW)
    for too_few in (table(a=(0.5, 0.6)), table(a=(0.5, 0.6), b=(0.0,)), table(b=(0.0, 0.1))):
        (found,) = judged(too_few, LARGER)
        assert (found.q_value, found.verdict) == (None, "not answerable here")


def test_more_claims_need_more_runs() -> None:
    """Six runs suffice for one claim against zero, not for two."""
    rows = table(a=LARGE, b=LARGE)
    assert judged(rows, ABOVE)[0].verdict == "supported"
    assert judged(rows, ABOVE, ("b", None))[0].reason == TOO_FEW
    scattered = table(a=(0.5, -0.6, 0.55, -0.7, 0.65, 0.62))
    found = judged(scattered, ABOVE)[0]
    assert (found.verdict, found.reason[:8]) == ("inconclusive", "p > 0.05")


def test_missing_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="a-1 has no number; leave the run out"):
        judged(table(a=(0.5, None, 0.6)), ABOVE)
    rows = table(a=LARGE)
    for row in rows["recipes"]:
        del row["number"]
    with pytest.raises(StoreError, match="needs the column number"):
        judged(rows, ABOVE)
