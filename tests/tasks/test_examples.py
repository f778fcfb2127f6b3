"""Examples of any task: where they are answered, and what does not fit together."""

import logging
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import assert_refused
from small_models import FEW_KEYS, random_model

import anchor_interp as ai
from anchor_interp.tasks.examples import as_examples, warn_once

TOKENS = [[1, 2, 3, 0], [4, 5, 0, 0], [0, 0, 1, 2]]


def test_positions_are_counted_within_the_padding() -> None:
    padded = ai.Examples(TOKENS, [1, 2, 3], places={"verb": -2, "start": [0, 0, 2]}, padding=0)
    assert padded.at.tolist() == [2, 1, 3] == padded.positions("last").tolist()
    assert padded.positions("verb").tolist() == [1, 0, 2] == padded.positions(-2).tolist()
    assert padded.positions("start").tolist() == [0, 0, 2]
    assert padded.inside.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]]
    assert ai.Examples(TOKENS).at.tolist() == [3, 3, 3]  # without a padding token all are read


def test_an_index_takes_every_column() -> None:
    answers, wrong, names = [1, 2, 3], [4, 5, 6], list("xyz")
    made = ai.Examples(torch.tensor(TOKENS), answers, wrong, at=[0, 1, 2], labels={"a": names})
    for index, rows in ((1, [1]), (slice(1, 3), [1, 2]), ([True, False, True], [0, 2])):
        some = made[index]
        assert some.tokens.tolist() == [TOKENS[row] for row in rows]
        assert some.at.tolist() == rows
        assert some.answers is not None
        assert some.wrong is not None
        assert (some.wrong - some.answers).tolist() == [3] * len(rows)
        assert some.labels["a"].tolist() == [names[row] for row in rows]


def test_anchor_sequences_are_examples() -> None:
    """They read as examples made by hand do, and keep a byte a token."""
    sequences = ai.sample(FEW_KEYS, "id", 30, seed=0)
    key = sequences.position.astype(int)
    by_hand = ai.Examples(
        sequences.tokens,
        sequences.targets,
        labels={"key": sequences.key, "position": key},
        places={"key": key, "first": key + 1, "second": key + 2},
    )
    for some, same in ((sequences, by_hand), (sequences[4:9], by_hand[4:9])):
        assert as_examples(some) is some
        for place in ("key", "first", "second", "last"):
            assert np.array_equal(some.positions(place), same.positions(place))
        for name in ("at", "each_at", "each_answer", "answers", "inside", "names"):
            assert np.array_equal(getattr(some, name), getattr(same, name))
        assert all((some.labels[name] == same.labels[name]).all() for name in same.labels)
        assert some.wrong is some.attention_mask is some.padding is None
        assert (some.until(9).tokens == same.until(9).tokens).all()
    prompts = FEW_KEYS.examples("id", 30, seed=0).prompts()
    assert (prompts.tokens == sequences.tokens).all()
    assert prompts.answers is not None
    assert np.array_equal(prompts.answers, sequences.targets)
    assert (prompts.at == sequences.at).all()
    arrays = [value for value in vars(sequences).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == 30 * (FEW_KEYS.length + 5)


def test_targets_of_sequences_are_explained_where_they_are_asked_for() -> None:
    sequences = ai.sample(FEW_KEYS, "id", 30, seed=0)
    assert sequences.explained == (None, None)
    right, wrong = sequences.examples().explained
    assert np.array_equal(cast(Any, right), sequences.targets)
    assert wrong is None


def test_positions_are_noise_beside_a_key_right_before_both_anchors_alone() -> None:
    for second, rest in ((2, "noise"), (3, "2")):
        examples = ai.Examples([[1, 2, 3, 4, 5]], places={"key": 0, "first": 1, "second": second})
        assert set(examples.names) == {"key", "first", "second", rest, "last"}


@pytest.mark.parametrize("layout", ["post", "pre"])
def test_logits_are_read_where_the_answer_stands(layout: Any) -> None:
    """On the fast path and through TransformerLens, at every position of every row."""
    model, tokens = random_model(layout), torch.arange(36).reshape(4, 9)
    whole = model(tokens)
    at = np.array([0, 8, 3, 5])
    for attached in (False, True):
        if attached:
            model.add_hook("blocks.0.hook_resid_pre", lambda tensor, **_: tensor)
        logits = ai.last_logits(model, ai.Examples(tokens, at=at))
        torch.testing.assert_close(logits, whole[range(4), at], atol=1e-12, rtol=0)


def test_columns_of_a_table_are_labels() -> None:
    table = pd.DataFrame({"colour": ["red", "blue", "red"], "size": [1, 2, 3]})
    examples = ai.Examples(TOKENS, labels=table)
    assert {name: values.tolist() for name, values in examples.labels.items()} == {
        "colour": ["red", "blue", "red"],
        "size": [1, 2, 3],
    }


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: ai.Examples([[1, 2], [3]]), "integers; are its rows of one length"),
    (lambda: ai.Examples(torch.zeros(2, 3).bfloat16()), "tokens is not an array of integers"),
    (lambda: ai.Examples(TOKENS)[:0], r"shape \(0, 4\).*at least one"),
    (lambda: ai.Examples([]), r"shape \(0,\).*at least one"),
    (lambda: ai.Examples(cast(Any, [[0.5, 1]])), "float64; expected integers"),
    (lambda: ai.Examples(TOKENS, [1, 2]), r"answers has shape \(2,\); expected 3 values"),
    (lambda: ai.Examples(TOKENS, labels={"a": [1]}), r"a has shape \(1,\); expected 3 values"),
    (lambda: ai.Examples(TOKENS, labels={"a": TOKENS}), r"a has shape \(3, 4\); expected 3"),
    (lambda: ai.Examples(TOKENS, places=cast(Any, {3: 3})), "name of a label or place is 3"),
    (lambda: ai.Examples(TOKENS, labels=cast(Any, FEW_KEYS)), "labels .*; expected a Mapping or"),
    (lambda: ai.Examples(TOKENS, places=cast(Any, ["a"])), "places is .*; expected a Mapping or"),
    (lambda: ai.Examples(TOKENS, at=4), "at is 4 in row 0, which has 4 tokens from position 0"),
    (lambda: ai.Examples(TOKENS, at=[2, 2, 2], padding=0),
     r"in row 1, which has 2 tokens from position \d on; the rest is padding"),
    (lambda: ai.Examples(TOKENS, np.ones((3, 2), int)),
     r"answers has shape \(3, 2\); expected \(3, 1\), one for each position in at"),
    (lambda: ai.Examples([[1, 2], [0, 0]], padding=0), "row 1, which has 0 tokens"),
    (lambda: ai.Examples([[0, 5, 6, 7], [0, 5, 0, 0]], padding=0),
     "row 1 begins and ends with 0; is it padding or a token.*attention_mask"),
    (lambda: ai.Examples(TOKENS, attention_mask=[[1, 1, 1]]),
     r"attention_mask is .*; expected 1 \(a token\) or 0 \(padding\) in shape \(3, 4\)"),
    *((lambda mask=mask: ai.Examples([[1, 2]], attention_mask=mask),
       "attention_mask is .*; expected 1") for mask in ([[1, 2]], [["a", "b"]])),
    (lambda: ai.Examples([[1, 2]], attention_mask=[[0, 0]]), "row 0, which has 0 tokens"),
    (lambda: ai.Examples([[1, 2, 3]], at=1, attention_mask=[[1, 0, 1]]),
     "at is 1 in row 0, which has 2 tokens from position 0 on; the rest is padding"),
    (lambda: ai.Examples(TOKENS, places={"verb": 9}), "verb is 9 in row 0"),
    (lambda: ai.Examples(TOKENS, places={"verb": 1}).positions("vreb"), "did you mean 'verb'"),
    (lambda: ai.last_logits(random_model(), ai.Examples([[120]])), "expected 0 to 119"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    make: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(make, message, monkeypatch)


def test_a_mask_says_which_tokens_are_padding() -> None:
    """Token 0 begins and ends every sentence, and fills the rows."""
    tokens = [[0, 5, 0, 0], [0, 5, 6, 0], [0, 0, 6, 0]]
    mask = [[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]]
    for given in (mask, np.array(mask, bool), torch.tensor(mask)):
        for padding in (None, 0):
            made = ai.Examples(
                tokens, places={"bos": [0, 0, 1], "eos": -1}, padding=padding, attention_mask=given
            )
            assert made.at.tolist() == [2, 3, 3] == made.positions("eos").tolist()
            assert made.inside.tolist() == np.array(mask, bool).tolist()
            some = made[1:].until(4)
            assert np.array_equal(some.inside, made.inside[1:])
            assert some.attention_mask is not None
            assert np.array_equal(some.attention_mask, made.inside[1:])
    assert ai.Examples(TOKENS, padding=0)[:2].attention_mask is None
    assert ai.Examples(TOKENS, padding=0)[:2].inside.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    middle = ai.Examples([[1, 2, 3, 4]], places={"a": -1, "b": 1}, attention_mask=[[0, 1, 0, 1]])
    places = middle.at, middle.positions("a"), middle.positions("b")
    assert [each.tolist() for each in places] == [[3], [3], [1]]


def test_padding_that_may_be_an_end_token_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        ai.Examples([[5, 6, 0], [6, 7, 8]], padding=0)[:1]
        ai.Examples([[5, 6, 0], [6, 0, 0]], padding=0, attention_mask=[[1, 1, 1], [1, 1, 0]])
        assert not caplog.records
        for _ in range(2):
            assert ai.Examples([[5, 6, 0], [6, 0, 0]], padding=0).at.tolist() == [1, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "every row ends with 0, which counts as padding; if it is also a token, say where: "
        "Examples(..., attention_mask=...)"
    ]


def test_an_answer_where_it_is_read_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    ai.Examples(tokens := np.array([[5, 6, 7], [6, 7, 8]]), [7, 8], at=1)
    ai.Examples(tokens, [7, 7])
    assert not caplog.records
    for _ in range(2):
        ai.Examples(tokens, [7, 8])
    (message,) = caplog.messages
    assert message.endswith("where a model predicts the next token, at is one too large")


def test_labels_do_not_overflow() -> None:
    made = ai.Examples([[1, 2]], labels={"a": np.array([250], np.uint8)})
    assert (made.labels["a"] + made.labels["a"]).tolist() == [500]


def test_examples_end_at_a_position() -> None:
    made = ai.Examples(
        TOKENS, [1, 2, 3], at=[1, 1, 2], places={"a": 0, "b": 3}, labels={"c": [1, 2, 3]}
    )
    cut = made.until(3)
    assert cut.tokens.tolist() == [row[:3] for row in TOKENS]
    assert cut.at.tolist() == [1, 1, 2]
    assert cut.places.keys() == {"a"}
    assert cut.labels["c"].tolist() == [1, 2, 3]
