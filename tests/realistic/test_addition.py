"""Addition: the paper's counts, every sum as text, no pair in two splits."""

from typing import Any, Literal

import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp.realistic.addition import TASKS, Addition
from anchor_interp.tasks.contract import draw_examples

Spelling = Literal["numbers", "digits", "reversed"]
SPELLINGS: tuple[Spelling, ...] = ("numbers", "digits", "reversed")


def pairs(task: Addition, split: str, n: int | None = None, seed: int = 0) -> list[tuple[int, int]]:
    """The operands of n examples, or of as many as the split has."""
    size = {s.name: s.size for s in task.splits}[split] if n is None else n
    assert size is not None
    a, b = task.operands(draw_examples(task, split, size, seed=seed))
    return list(zip(a.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize("name", ["addition", "addition-random"])
def test_no_pair_is_in_two_splits_at_full_size(name: str) -> None:
    task = TASKS[name]
    counts = np.zeros((3, 1_000, 1_000), np.int64)
    for found, split in zip(counts, task.splits, strict=False):
        assert split.size is not None
        a, b = task.operands(draw_examples(task, split.name, split.size, seed=7))
        np.add.at(found, (a, b), 1)
        assert found.sum() == split.size
    assert (counts.sum(0) == 1).all()  # every pair of 0 to 999, once
    expected = [958_599, 1_000, 40_401] if name == "addition" else [959_599, 40_401, 0]
    assert counts.sum((1, 2)).tolist() == expected


@pytest.mark.parametrize("holdout", ["square", "random"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_seed_brings_a_held_out_pair_into_training(
    spelling: Spelling, holdout: Literal["square", "random"]
) -> None:
    task = Addition(largest=49, held_out=200, tokens=spelling, holdout=holdout)
    test = {pair for split in task.splits[1:] for pair in pairs(task, split.name)}
    train = {*pairs(task, "train")}
    sizes = {s.name: s.size for s in task.splits}
    if holdout == "square":
        assert sizes == {"train": 2_179, "id": 200, "ood": 121}
        assert all(20 <= min(pair) <= max(pair) <= 30 for pair in pairs(task, "ood"))
        assert all(min(pair) < 20 or max(pair) > 30 for pair in pairs(task, "id"))
    else:
        assert sizes == {"train": 2_379, "id": 121}
        assert any(min(pair) < 20 or max(pair) > 30 for pair in test)
    assert not train & test
    assert len(train) + len(test) == 2_500
    for seed in range(1, 20):
        assert {*pairs(task, "train", seed=seed)} == train


def test_a_random_holdout_is_spread_over_the_plane() -> None:
    a, b = np.array(pairs(TASKS["addition-random"], "id")).T // 100
    found = np.bincount(10 * a + b, minlength=100)
    chi2 = ((found - 404.01) ** 2 / 404.01).sum()
    assert chi2 < 150  # 99 degrees of freedom: less in 99.9 % of draws


@pytest.mark.parametrize("largest", [9, 49, 59])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_sum_survives_the_round_trip(spelling: Spelling, largest: int) -> None:
    task = Addition(largest=largest, held_out=5, tokens=spelling)
    width = {9: (1, 2), 49: (2, 2), 59: (2, 3)}[largest]

    def written(number: int, digits: int) -> str:
        if spelling == "numbers":
            return str(number)
        text = str(number).zfill(digits)
        return " ".join(text if spelling == "digits" else reversed(text))

    seen = 0
    for split in task.splits:
        assert split.size is not None
        found = draw_examples(task, split.name, split.size, seed=3)
        for row, (a, b) in zip(found.tokens, pairs(task, split.name, seed=3), strict=True):
            text = task.decode(row)
            prompt = f"{written(a, width[0])} + {written(b, width[0])} ="
            end = "" if spelling == "numbers" else " ."
            assert text == f"{prompt} {written(a + b, width[1])}{end}"
            assert task.encode(text) == tuple(row)
            seen += 1
    assert seen == (largest + 1) ** 2


@pytest.mark.parametrize(
    ("spelling", "text", "n_tokens", "n_read"),
    [
        ("numbers", "417 + 580 = 997", 2_001, 1_002),
        ("digits", "4 1 7 + 5 8 0 = 0 9 9 7 .", 13, 12),
        ("reversed", "7 1 4 + 0 8 5 = 7 9 9 0 .", 13, 12),
    ],
)
def test_the_answer_alone_is_predicted(
    spelling: Spelling, text: str, n_tokens: int, n_read: int
) -> None:
    task = Addition(tokens=spelling)
    found = task.sums(np.array([417, 3]), np.array([580, 999]))
    assert task.decode(found.tokens[0]) == text
    _, _, answer = text.partition("= ")
    assert task.decode(found.answers()[0]) == answer
    assert found.mask.sum(1).tolist() == [len(answer.split())] * 2
    assert found.mask[:, -1].all()
    assert found.lengths.tolist() == [task.length + 1] * 2
    assert (task.n_tokens, task.n_input_tokens) == (n_tokens, n_read)
    drawn = draw_examples(task, "train", 5_000, seed=0)
    assert drawn.inputs.max() == n_read - 1
    assert task.score(found, found.answers()).all()
    assert task.answers_last == (spelling == "numbers")


def test_aspects_are_the_operands_and_the_carries() -> None:
    def carries(a: int, b: int) -> int:
        found = carry = 0
        while a or b:
            carry = int(a % 10 + b % 10 + carry > 9)
            found, a, b = found + carry, a // 10, b // 10
        return found

    for spelling in SPELLINGS:
        task = Addition(tokens=spelling)
        drawn = draw_examples(task, "train", 3_000, seed=1)
        found = task.aspects(drawn)
        assert list(zip(found["a"], found["b"], strict=True)) == pairs(task, "train", 3_000, seed=1)
        expected = [carries(int(a), int(b)) for a, b in zip(found["a"], found["b"], strict=True)]
        assert found["carries"] == expected
        assert {*expected} == {0, 1, 2, 3}
        assert task.aspects(drawn.rows(slice(7)))["carries"] == expected[:7]


@pytest.mark.parametrize(("fields", "message"), [
    ({"largest": 0}, "task.largest is 0; expected at least 1"),
    ({"holdout": "sqare"}, "task.holdout is 'sqare'; expected .* 'random' .did you mean"),
    ({"tokens": "words"}, "task.tokens is 'words'; expected one of 'numbers', 'digits'"),
    ({"square_from": 1.5}, "task.square_from is 1.5; expected at most 1"),
    ({"square_from": 0.7}, "square_from is 0.7 and square_to 0.6; expected a square of some"),
    *(({"square_from": end, "square_to": 1}, "a square of some operands, not of none or all")
      for end in (0, 1)),
    ({"largest": 9, "held_out": 91}, "task.held_out is 91; expected at most 90"),
])  # fmt: skip
def test_fields_that_leave_no_task_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Addition(**fields)


def test_the_smallest_tasks_that_are_allowed() -> None:
    assert [s.size for s in Addition(largest=9, held_out=90).splits] == [1, 90, 9]
    assert [s.size for s in Addition(largest=1, held_out=0).splits] == [3, 1]
    assert [s.size for s in Addition(largest=1, holdout="random").splits] == [3, 1]
