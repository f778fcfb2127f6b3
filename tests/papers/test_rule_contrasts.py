"""The papers' claims: what is measured of one model, and how runs are judged."""

import dataclasses
import json
import math
from collections.abc import Sequence

import pytest

from anchor_interp._util.errors import ConfigError
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
from papers.rule_contrasts import CLAIMS, NUMBERS, Claim, RuleContrasts, judge, rule_contrasts

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
    assert len({(c.number, c.larger, c.smaller) for c in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.number in NUMBERS
        assert claim.larger != claim.smaller
        smaller = claim.smaller or claim.larger
        assert RECIPES[claim.larger].task == RECIPES[smaller].task


def runs(template: RuleContrasts, values: Sequence[float]) -> list[RuleContrasts]:
    """Runs that differ in the first contrast."""
    return [
        dataclasses.replace(template, value=dataclasses.replace(template.value, difference=value))
        for value in values
    ]


ABOVE = Claim("above zero", "", "value.difference", "a")
LARGER = Claim("a above b", "", "value.difference", "a", "b")
SMALLER = Claim("b above a", "", "value.difference", "b", "a")
UNKNOWN = Claim("c above a", "", "value.difference", "c", "a")


def test_runs_are_the_unit(inferential: RuleContrasts) -> None:
    large = runs(inferential, [0.5, 0.6, 0.55, 0.7, 0.65, 0.62])
    small = runs(inferential, [0.1, 0.2, 0.0, -0.1, 0.15])
    found = judge({"a": large, "b": small}, [ABOVE, LARGER, SMALLER, UNKNOWN])
    assert [verdict.claim for verdict in found] == [ABOVE, LARGER, SMALLER, UNKNOWN]
    p = [verdict.comparison.p_value for verdict in found[:3] if verdict.comparison]
    # every sign alike; the one division that separates, of all
    assert p == pytest.approx([2 / 2**6, 1 / math.comb(11, 5), 1 / math.comb(11, 5)])
    assert [v.holm for v in found] == pytest.approx([1 / 32, 3 / 462, 3 / 462, None])
    assert [v.outcome for v in found] == ["shown", "shown", "opposite", "too few runs"]
    comparison = found[1].comparison
    assert comparison is not None
    assert comparison.n == (6, 5)
    assert comparison.mean == pytest.approx(3.62 / 6 - 0.35 / 5)


def test_few_runs_show_nothing(inferential: RuleContrasts) -> None:
    large, small = runs(inferential, [0.5, 0.6]), runs(inferential, [0.0, 0.1, 0.2])
    (found,) = judge({"a": large, "b": small}, [LARGER])
    assert found.holm == pytest.approx(1 / 10)
    assert found.outcome == "too few runs"
    for too_few in ({"a": large}, {"a": large, "b": small[:1]}, {"b": small}):
        (found,) = judge(too_few, [LARGER])
        assert (found.comparison, found.outcome) == (None, "too few runs")


def test_more_claims_need_more(inferential: RuleContrasts) -> None:
    """Six runs suffice for one claim against zero, not for two."""
    large = runs(inferential, [0.5, 0.6, 0.55, 0.7, 0.65, 0.62])
    assert judge({"a": large}, [ABOVE])[0].outcome == "shown"
    assert judge({"a": large}, [ABOVE, ABOVE])[0].outcome == "too few runs"
    scattered = runs(inferential, [0.5, -0.6, 0.55, -0.7, 0.65, 0.62])
    assert judge({"a": scattered}, [ABOVE])[0].outcome == "not shown"


def test_numbers_that_are_not_there_are_refused(inferential: RuleContrasts) -> None:
    with pytest.raises(ConfigError, match=r"no number is called 'value\.size'"):
        judge({}, [dataclasses.replace(ABOVE, number="value.size")])
    lacking = dataclasses.replace(
        inferential, key_mask=dataclasses.replace(inferential.key_mask, order=None)
    )
    with pytest.raises(ConfigError, match=r"has no key_mask\.order"):
        judge({"a": [inferential, lacking]}, [dataclasses.replace(ABOVE, number="key_mask.order")])
