"""Maps of answers, on models whose function is known and on shares made by hand."""

from typing import Any

import numpy as np
import pytest

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.behaviour.answer_map import answer_map
from anchor_interp.behaviour.answer_map_numbers import AnswerMap
from anchor_interp.runs.measurements import column_measure
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.sequences import draw


def hand_map(right: np.ndarray, n: int) -> AnswerMap:
    """A map with these shares of the rule, [pair key position]; nothing else is a function."""
    pairs = ((3, 4), (4, 3))[: len(right)]
    keys = np.arange(20, 20 + right.shape[1])
    return AnswerMap(pairs, ("rule", "none"), keys, n, np.stack([right, 1 - right], -1))


def test_exact_models_apply_one_function_everywhere() -> None:
    task = TASKS["neurips"]
    symmetric = answer_map(ai.exact_model("symmetric", task), task, n=2)
    assert symmetric.pairs == ((4, 3),)
    assert symmetric.cells["other order"] == 1
    assert symmetric.sentence == (
        "answers as for the other order on 100 % of cells, follows the rule on 0 %"
    )
    assert symmetric.mixture == {"rule": 0, "other order": 1, "none": 0, "borrowed": 0}
    pairs = ((1, 2), (2, 1), (3, 4), (4, 3))
    assert symmetric.functions[:2] == ("rule", "other order")
    assert "(2, 4): x - 7" in symmetric.functions  # of (4, 2) too, named by the first
    assert "(3, 4): x - 6" not in symmetric.functions  # for (4, 3) this is the symmetric target
    everywhere = answer_map(ai.exact_model("symmetric", task), task, pairs=pairs, n=2)
    assert everywhere.cells["exception"] == pytest.approx(1 / 4)  # (3, 4): x - 6
    assert everywhere.cells["rule"] == pytest.approx(2 / 4)


def test_a_rule_that_a_seen_pair_has_is_named_with_it() -> None:
    """x + 1 to x + 4: 2 + 3 = 1 + 4, so no answer to (2, 3) tells the rule from (1, 4)."""
    anchors = tuple(ai.Anchor(token, ai.Affine(token)) for token in (1, 2, 3, 4))
    task = ai.AnchorTask(anchors=anchors, unseen=((2, 3), (3, 2)), key_max=31)
    found = answer_map(ai.exact_model("inferential", task), task, n=2)
    assert found.functions[0] == "rule or (1, 4): x + 5"
    assert "rule" not in found.cells
    assert found.sentence == "follows the rule or answers as for (1, 4) on 100 % of cells"
    assert found.mixture == {
        "rule": 0, "rule or borrowed": 1, "other order": 0, "none": 0, "borrowed": 0,
    }  # fmt: skip
    apart = answer_map(ai.exact_model("inferential", task), task, pairs=((4, 4),), n=2)
    assert apart.functions[0] == "rule"


def test_shares_agree_with_answers_counted_by_hand() -> None:
    run = ai.load("tiny/composite/1")
    found = answer_map(run, pairs=((3, 4),), n=50)
    sequences = draw(run.config.anchor_task, ((3, 4),), "all", 4_000, seed=5, stream="by-hand")
    answers = ai.last_logits(run.transformer, sequences).argmax(-1).numpy()
    shift = answers - sequences.key.astype(int)
    for name, offset in (("rule", -10), ("(4, 4): x - 16", -16), ("(3, 3): x - 4", -4)):
        share = found.shares[..., found.functions.index(name)].mean()
        assert share == pytest.approx((shift == offset).mean(), abs=0.03)


def test_a_pair_has_one_map_whatever_else_is_asked() -> None:
    run = ai.load("tiny/memorizing/1")
    every = answer_map(run, pairs=run.config.anchor_task.pairs, n=2)
    for pair in ((4, 3), (1, 2)):
        alone = answer_map(run, pairs=(pair,), n=2)
        shares = every.shares[every.pairs.index(pair)]
        rule = every.functions.index("rule"), alone.functions.index("rule")
        none = every.functions.index("none"), alone.functions.index("none")
        for one, other in (rule, none):
            np.testing.assert_array_equal(shares[..., one], alone.shares[0, ..., other])


def test_parts_of_the_variance_add_up() -> None:
    """Answers that hang on the key alone, on the pair alone, and on chance."""
    of_key, of_pair, found = np.zeros((1, 80, 7)), np.zeros((2, 80, 7)), list[Any]()
    of_key[:, ::2] = of_pair[0] = 1
    of_chance = np.random.default_rng(0).binomial(10, 0.4, (2, 80, 7)) / 10
    for shares in (of_key, of_pair, of_chance):
        found.append(hand_map(shares, 10).explained)
    parts = [[each.key, each.position, each.cell, each.pair, each.noise] for each in found]
    assert parts[0] == pytest.approx([1, 0, 1, 0, 0], abs=1e-9)
    assert parts[1] == pytest.approx([0, 0, 0, 1, 0], abs=1e-9)
    assert parts[2] == pytest.approx([0, 0, 0, 0, 1], abs=0.03)
    assert sum(parts[2][2:]) == pytest.approx(1)


def test_a_cell_without_a_majority_holds_nothing() -> None:
    right = np.full((1, 4, 3), 0.5)
    right[0, 0] = 0.4
    one = hand_map(right, 10)
    shares = one.shares * [1, 0.4]  # the rest scatters
    found = AnswerMap(one.pairs, ("rule", "none"), one.keys, 10, shares).cells
    assert found == {"rule": 0.75, "none": 0.25}


def test_a_mixture_is_told_by_its_shares_and_becomes_columns() -> None:
    names = ("rule", "(2, 4): x - 7", "(4, 4): x - 16", "none")
    shares = np.zeros((1, 10, 10, len(names)))
    for column, name in zip(range(10), (0, 0, 0, 0, 0, 1, 1, 2, 2, 3), strict=True):
        shares[:, column, :, name] = 1
    one = AnswerMap(((3, 4),), names, np.arange(10), 2, shares)
    assert one.sentence == (
        "follows the rule on 50 % of cells, answers as for (2, 4) on 20 %, (4, 4) on 20 %, "
        "applies no function on 10 %"
    )
    assert one.mixture == pytest.approx(
        {"rule": 0.5, "other order": 0, "none": 0.1, "borrowed": 0.4}
    )
    run = ai.load("exact/inferential")
    assert column_measure("anchor_interp.behaviour.answer_map:mixture")(run)["rule"] == 1
    frame = answer_map(run, n=2).to_frame()
    assert len(frame) == 2 * 80 * 7
    assert set(frame["function"]) == {"rule"}
    nowhere: Any = TASKS["reasoning-complexity-0"]
    for model, task, n, message in (
        (run, None, 1, "n is 1"),
        (run.transformer, nowhere, 2, "no unseen pair"),
        (run.transformer, None, 2, "is None; expected an AnchorTask"),
    ):
        with pytest.raises(ConfigError, match=message):
            answer_map(model, task, n=n)
