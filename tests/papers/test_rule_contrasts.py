"""The contrasts of one model."""

import json

import pytest

from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.sensitivity import sensitivity
from anchor_interp.analysis.similarity import (
    answer_similarity,
    block_similarity,
    value_similarity,
)
from anchor_interp.models.exact import exact_model
from anchor_interp.tasks.anchor import Affine, Anchor, AnchorTask
from papers.rule_contrasts import RuleContrasts, rule_contrasts

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
