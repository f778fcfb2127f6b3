"""Composed states: what models of a known mechanism answer to them, and what is never run."""

from dataclasses import replace

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
    inferential = composition(small_exact("inferential", layout), FEW_KEYS)
    assert inferential.pairs == FEW_KEYS.unseen
    assert inferential.composed == 1
    assert inferential.commutes == 1
    assert inferential.recomposed == 1
    assert inferential.mirrored is None  # this task has no symmetric target


def test_tables_of_pairs_do_neither(layout: Normalization) -> None:
    """On a task with an exception: the symmetric table passes it on, the ordered one does not."""
    neurips = ai.TASKS["neurips"]
    task = replace(FEW_KEYS, overrides=neurips.overrides, unseen=neurips.unseen)
    symmetric = composition(exact_model("symmetric", task, normalization=layout), task)
    assert (symmetric.composed, symmetric.mirrored, symmetric.commutes) == (0, 1, 1)
    lookup = composition(exact_model("lookup", task, normalization=layout), task)
    assert (lookup.mirrored, lookup.commutes) == (0, 0)


def test_seen_pairs_can_be_asked_for_and_no_unseen_one_is_run() -> None:
    model = small_exact("inferential", "post")
    with seen_pairs_only(model, FEW_KEYS):
        found = composition(model, FEW_KEYS, pairs=[(1, 2), (3, 4)], n=20)
    assert found.pairs == ((1, 2), (3, 4))
    assert found.composed == 1
    assert composition(model, FEW_KEYS, n=20, seed=1) == composition(model, FEW_KEYS, n=20, seed=1)


def test_the_other_orders_target_is_told_where_there_is_one() -> None:
    task = ai.TASKS["neurips"]
    run = ai.load("tiny/neurips-symmetric/2")
    assert (composition(run.model, task).mirrored or 0) > 0.9


def test_bad_input() -> None:
    model = random_model()
    task = ai.TASKS["complexity-control"]
    with pytest.raises(ConfigError, match=r"layer is 3; expected at most 2"):
        composition(model, task, layer=3)
    with pytest.raises(ConfigError, match="holds none out"):
        composition(model, ai.AnchorTask())
    with pytest.raises(ConfigError, match=r"\(5, 1\)"):
        composition(model, task, pairs=[(5, 1)])
    with pytest.raises(ConfigError, match="pairs is 5; expected a list"):
        composition(model, task, pairs=5)  # type: ignore[arg-type]
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


def test_hooks_are_gone_afterwards() -> None:
    model = small_exact("symmetric", "pre")
    tokens = torch.from_numpy(ai.sample(FEW_KEYS, "id", 4, seed=0).tokens).long()
    before = model(tokens)
    composition(model, FEW_KEYS, n=10)
    assert torch.equal(model(tokens), before)
