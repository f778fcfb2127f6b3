"""Composed states: the answers of models of a known mechanism."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import FEW_KEYS, LAYOUTS, random_model, small_exact

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.fingerprint import seen_pairs_only
from anchor_interp.interventions.composition import composition
from anchor_interp.models.exact import Normalization, exact_model
from papers.studies import arbitrary_task


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Normalization:
    found: Normalization = request.param
    return found


def test_a_model_of_the_rule_composes_what_it_never_saw(layout: Normalization) -> None:
    inferential = composition(small_exact("inferential", layout), FEW_KEYS, n=40)
    assert inferential.pairs == FEW_KEYS.unseen
    assert inferential.composed == 1
    assert inferential.commutes == 1
    assert inferential.recomposed == 1
    assert inferential.mirrored is None  # no other order has another target


def test_tables_of_pairs_do_not_compose(layout: Normalization) -> None:
    """The symmetric table answers the exception of the other order, the ordered table does not."""
    neurips = ai.TASKS["neurips"]
    task = replace(FEW_KEYS, overrides=neurips.overrides, unseen=neurips.unseen)
    symmetric = composition(exact_model("symmetric", task, normalization=layout), task, n=40)
    assert (symmetric.composed, symmetric.mirrored, symmetric.commutes) == (0, 1, 1)
    lookup = composition(exact_model("lookup", task, normalization=layout), task, n=40)
    assert (lookup.mirrored, lookup.commutes) == (0, 0)


def test_seen_pairs_are_composed_of_other_seen_ones() -> None:
    model = small_exact("inferential", "post")
    with seen_pairs_only(model, FEW_KEYS):
        found = composition(model, FEW_KEYS, pairs=[(1, 2), (3, 3)], n=20)
    assert found.pairs == ((1, 2), (3, 3))
    assert found.composed == 1
    one, again = (composition(model, FEW_KEYS, n=10, seed=1) for _ in range(2))
    assert one == again


def test_a_symmetric_run_gives_the_answer_of_the_other_order() -> None:
    task = ai.TASKS["neurips"]
    run = ai.load("tiny/neurips-symmetric/2")
    assert (composition(run.model, task, n=50).mirrored or 0) > 0.9


def test_bad_input() -> None:
    model, task = random_model(), ai.TASKS["complexity-control"]
    number: Any = 5
    with pytest.raises(ConfigError, match=r"layer is 3; expected at most 2"):
        composition(model, task, layer=3)
    with pytest.raises(ConfigError, match="has no unseen pair"):
        composition(model, ai.AnchorTask())
    with pytest.raises(ConfigError, match=r"\(5, 1\)"):
        composition(model, task, pairs=[(5, 1)])
    with pytest.raises(ConfigError, match="pairs is 5; expected a list"):
        composition(model, task, pairs=number)
    looking_ahead = random_model()
    looking_ahead.cfg.attention_dir = "bidirectional"
    with pytest.raises(ConfigError, match="attention is bidirectional"):
        composition(looking_ahead, task)
    with pytest.raises(ConfigError, match="n is 0"):
        composition(model, task, n=0)
    with pytest.raises(ConfigError, match="no seen pair of the task follows the rule"):
        composition(random_model(), arbitrary_task(0), pairs=[(1, 2)])
    alone = ai.AnchorTask(unseen=tuple((1, b) for b in (1, 2, 3, 4)))
    with pytest.raises(ConfigError, match=r"\(1, 1\) cannot be composed"):
        composition(model, alone)


def test_hooks_are_removed() -> None:
    model = small_exact("symmetric", "pre")
    tokens = torch.from_numpy(ai.sample(FEW_KEYS, "id", 4, seed=0).tokens).long()
    before = model(tokens)
    composition(model, FEW_KEYS, n=10)
    assert torch.equal(model(tokens), before)
