"""Clean and corrupted twins differ in one thing, and their columns describe their tokens."""

from typing import Any

import jaxtyping
import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.counterfactuals import (
    ContrastPairs,
    Perturbation,
    contrast_pairs,
    swap_anchors,
)
from anchor_interp.tasks.functions import Affine, Anchor
from anchor_interp.tasks.rules import Keys
from anchor_interp.tasks.sequences import Sequences

CONTROL, NEURIPS, REFLECTED = (
    TASKS[name] for name in ("complexity-control", "neurips", "non-commuting")
)
CHANGES: list[Perturbation] = ["key", "first", "second"]
KINDS: list[Perturbation] = [*CHANGES, "order", "noise"]
COLUMNS = ("tokens", "targets", "key", "position", "pair", "role")


def differing(twins: ContrastPairs) -> np.ndarray:
    """Whether clean and corrupted differ: [n, position]."""
    found: np.ndarray = np.not_equal(twins.clean.tokens, twins.corrupted.tokens)
    return found


def may_differ(sequences: Sequences, kind: Perturbation) -> np.ndarray:
    """Whether a perturbation may change a position: [n, position]."""
    column = np.arange(sequences.tokens.shape[1])
    key, first, second = (
        column == sequences.positions(place)[:, None] for place in ("key", "first", "second")
    )
    allowed: dict[Perturbation, np.ndarray] = {
        "key": key,
        "first": first,
        "second": second,
        "order": first | second,
        "noise": ~(key | first | second),
    }
    return allowed[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [CONTROL, NEURIPS, REFLECTED], ids=["C", "N", "reflected"])
def test_twins_differ_in_one_thing_only(task: AnchorTask, kind: Perturbation) -> None:
    twins = contrast_pairs(task, kind, 300, seed=3)
    differs, allowed = differing(twins), may_differ(twins.clean, kind)
    assert not (differs & ~allowed).any()
    if kind == "noise":
        assert differs.any(1).all()
        # one of 80 new tokens equals the old one
        assert differs[allowed].mean() > 0.95
    else:
        assert (differs == allowed).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [CONTROL, NEURIPS, REFLECTED], ids=["C", "N", "reflected"])
def test_columns_describe_the_tokens(task: AnchorTask, kind: Perturbation) -> None:
    """Targets follow from the tokens alone, by the papers' formulas."""
    add = {1: 5, 2: 1, 3: -2, 4: -8}
    for part in contrast_pairs(task, kind, 200, seed=4):
        for i in range(len(part)):
            p = int(part.position[i])
            x, a1, a2 = part.tokens[i, p : p + 3].tolist()
            assert (x, (a1, a2)) == (part.key[i], task.pairs[part.pair[i]])
            if task is CONTROL:
                assert part.targets[i] == x + add[a1] + add[a2]
            if task is NEURIPS:
                exception = (a1, a2) == (3, 4)
                assert part.targets[i] == (x - 6 if exception else x + add[a1] + add[a2])


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("task", [CONTROL, NEURIPS, REFLECTED], ids=["C", "N", "reflected"])
def test_a_perturbation_changes_the_answer_and_keeps_to_seen_pairs(
    task: AnchorTask, kind: Perturbation
) -> None:
    clean, corrupted = contrast_pairs(task, kind, 500, seed=5)
    assert (clean.targets != corrupted.targets).all()
    assert {task.pairs[i] for i in corrupted.pair} <= set(task.seen)
    of_unseen = contrast_pairs(NEURIPS, "first", 200, seed=5, pairs=[(4, 3)])
    assert {NEURIPS.pairs[i] for i in of_unseen.corrupted.pair} == {(1, 3), (2, 3), (3, 3)}


@pytest.mark.parametrize("keys", ["train", "test", "all"])
def test_a_changed_key_stays_on_its_side_of_the_split(keys: Keys) -> None:
    for part in contrast_pairs(CONTROL, "key", 500, seed=6, keys=keys):
        test = part.key % 9 == part.position
        assert test.mean() == pytest.approx({"train": 0, "test": 1, "all": 1 / 9}[keys], abs=0.05)


def test_all_other_keys_are_drawn_equally_often() -> None:
    clean, corrupted = contrast_pairs(CONTROL, "key", 8_000, seed=7)
    steps = (corrupted.key.astype(int) - clean.key) % 80
    counts = np.bincount(steps, minlength=80)
    assert counts[0] == 0
    assert counts[1:].min() > 50
    assert counts[1:].max() < 160


def test_order_exchanges_the_anchors() -> None:
    clean, corrupted = contrast_pairs(CONTROL, "order", 300, seed=8)
    assert (corrupted.tokens == swap_anchors(clean)).all()
    assert (corrupted.targets == clean.targets).all()
    one_way, other_way = contrast_pairs(REFLECTED, "order", 300, seed=8, pairs=[(3, 4)])
    apart = (one_way.targets.astype(int) - other_way.targets) % 80
    assert (np.minimum(apart, 80 - apart) == 16).all()  # this pair does not commute


@pytest.mark.parametrize("kind", KINDS)
def test_twins_are_reproducible_and_fewer_are_a_prefix_of_more(kind: Perturbation) -> None:
    more, fewer = (contrast_pairs(CONTROL, kind, n, seed=10) for n in (200, 60))
    other = contrast_pairs(CONTROL, kind, 60, seed=11)
    for ours, theirs, unlike in zip(more, fewer, other, strict=True):
        for column in COLUMNS:
            assert (getattr(ours, column)[:60] == getattr(theirs, column)).all()
        assert (theirs.tokens != unlike.tokens).any()
    assert fewer.corrupted.provenance["corrupted"] == kind


FOURS_MEET = AnchorTask(unseen=((1, 4), (2, 4), (3, 4)))
"""Only (4, 4) is seen with 4 as the second anchor, so its first anchor has no other."""


def test_one_sequence_without_a_twin_is_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert contrast_pairs(FOURS_MEET, "key", 100, seed=0).left_out == 0
    assert not caplog.text
    found = contrast_pairs(FOURS_MEET, "first", 100, seed=0)
    assert 0 < found.left_out < 30
    assert len(found.clean) == len(found.corrupted) == 100 - found.left_out
    lack = f"left out: {found.left_out} of 100 sequences have no twin that differs in first"
    assert lack in caplog.text
    assert not len(found.clean.where(pair=(4, 4)))
    assert (differing(found).sum(1) == 1).all()
    fewer = contrast_pairs(FOURS_MEET, "first", 50, seed=0)
    more = found.corrupted.tokens[: len(fewer.corrupted)]
    assert (fewer.corrupted.tokens == more).all()


def test_sequences_without_a_twin_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    same = AnchorTask(anchors=(Anchor(1, Affine(5)), Anchor(2, Affine(5))))
    bare = AnchorTask(length=3, unseen=((3, 4),))
    alone = AnchorTask(unseen=tuple(pair for pair in CONTROL.pairs if pair[0] != pair[1]))
    refused: list[tuple[AnchorTask, Perturbation, str]] = [
        (same, "first", "no twin that differs in first"),
        (same, "second", "no twin that differs in second"),
        (alone, "first", "20 of 20 sequences have no twin"),
        (bare, "noise", "3 tokens"),
    ]
    for task, kind, words in refused:
        with pytest.raises(ConfigError, match=words) as caught:
            contrast_pairs(task, kind, 20, seed=0)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="two equal anchors has no other order"):
        contrast_pairs(CONTROL, "order", 20, seed=0, pairs=[(1, 2), (2, 2)])
    wrong: Any = 5
    with pytest.raises(ConfigError, match="kind is 5"):
        contrast_pairs(CONTROL, wrong, 20, seed=0)
    with pytest.raises(ConfigError, match=r"\(1, 7\)"):
        contrast_pairs(CONTROL, "key", 20, seed=0, pairs=[(1, 7)])
    with pytest.raises(ConfigError, match="is 5; expected an AnchorTask"):
        contrast_pairs(wrong, "key", 20, seed=0)
