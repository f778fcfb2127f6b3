"""What every task of sequences does: how it draws, its text, and what a model is trained on."""

from typing import Any

import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp.realistic.addition import Addition
from anchor_interp.realistic.cogs import Cogs
from anchor_interp.realistic.prontoqa import Prontoqa
from anchor_interp.realistic.scan import Scan
from anchor_interp.tasks.contract import draw_examples
from anchor_interp.tasks.task import Task

SMALL: dict[str, Any] = {"largest": 49, "held_out": 200}
TASKS: dict[str, tuple[Task, str, str]] = {
    "scan": (Scan(), "ood", " -> "),
    "cogs": (Cogs(exposures=3), "structural", " -> "),
    "numbers": (Addition(**SMALL), "ood", " = "),
    "digits": (Addition(**SMALL, tokens="digits"), "ood", " = "),
    "reversed digits": (Addition(**SMALL, tokens="reversed"), "ood", " = "),
    "proofs": (Prontoqa(), "deeper", " . "),
    "no proofs": (Prontoqa(distribution="balanced", chain_of_thought=False), "deeper", " . "),
}
"""A task, one of its splits, and what ends a prompt."""


def rows(task: Task, split: str, n: int, seed: int) -> list[bytes]:
    """Examples without their padding."""
    drawn = draw_examples(task, split, n, seed=seed)
    return [row[:n].tobytes() for row, n in zip(drawn.tokens, drawn.lengths, strict=True)]


@pytest.mark.parametrize("name", TASKS)
def test_examples_depend_on_seed_and_index_alone(name: str) -> None:
    task, split, _ = TASKS[name]
    size = {each.name: each.size for each in task.splits}[split]
    many = rows(task, split, 2 * (size or 100), 3)
    assert rows(task, split, 50, 3) == many[:50]
    assert rows(task, split, 50, 4) != many[:50]
    if size is None:
        assert len({*many}) == 200
    else:  # the whole set, in another order
        assert {*many[:size]} == {*many[size:]}
        assert many[:size] != many[size:]


@pytest.mark.parametrize("name", TASKS)
def test_the_answer_alone_is_trained_on_and_text_survives_the_round_trip(name: str) -> None:
    task, _, separator = TASKS[name]
    drawn = draw_examples(task, "train", 200, seed=0)
    for row, mask, length in zip(drawn.tokens, drawn.mask, drawn.lengths, strict=True):
        text = task.decode(row[:length])
        assert list(task.encode(text)) == row[:length].tolist()
        assert not row[length:].any()
        (asked,) = np.split(np.flatnonzero(mask), np.flatnonzero(np.diff(np.flatnonzero(mask)) > 1))
        assert asked[-1] == length - 1
        prompt, answer = task.decode(row[: asked[0]]), task.decode(row[mask])
        assert f"{prompt} {answer}" == text
        assert f"{prompt} ".endswith(separator)
    with pytest.raises(ConfigError, match=f"'jmp' is not a word of the task {task.kind}"):
        task.encode("jmp")
