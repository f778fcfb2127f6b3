"""Which sequences the attention views show."""

import numpy as np
import pytest
from small_models import FEW_KEYS, small_exact

from anchor_interp.analysis import attention
from anchor_interp.interventions.subject import Subject
from anchor_interp.tasks.sequences import Sequences


def test_an_example_has_the_most_frequent_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_is_rare(_: object, sequences: Sequences) -> np.ndarray:
        answers = sequences.key.astype(int) + 5
        answers[0] += 1
        return answers

    monkeypatch.setattr(attention, "predict", first_is_rare)
    shown = attention.attention_examples(Subject(small_exact("symmetric", "post"), FEW_KEYS))
    assert [example.answer - example.tokens[example.position] for example in shown] == [5, 5]
    assert all(example.n_alike == example.n_drawn - 1 > 1 for example in shown)
