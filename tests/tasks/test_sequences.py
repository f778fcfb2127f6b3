"""Sequences: functions of (seed, stream, index), meaning, disjoint splits, speed and size."""

import re
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tasks import tasks
from refusals import assert_refused
from small_models import FEW_KEYS

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.counterfactuals import contrast_pairs, replace_keys
from anchor_interp.tasks.functions import ROLES
from anchor_interp.tasks.hashing import batch_indices, epoch_order, hash_counter, stream_key
from anchor_interp.tasks.sequences import (
    Sequences,
    aligned_sequences,
    assemble,
    draw,
    draw_noise,
    position_roles,
    sample,
)

NEURIPS = TASKS["neurips"]


def identities(sequences: Sequences) -> set[tuple[int, int, int]]:
    columns = (sequences.pair, sequences.key, sequences.position)
    return set(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=25)
@given(tasks(), st.integers(0, 2**63 - 1))
def test_training_and_test_sequences_are_disjoint(task: AnchorTask, seed: int) -> None:
    train, test = sample(task, "train", 400, seed=seed), sample(task, "id", 400, seed=seed)
    assert not identities(train) & identities(test)
    unseen = {index for index, pair in enumerate(task.pairs) if pair in task.unseen}
    assert not unseen & set(train.pair.tolist())
    if task.unseen:
        assert set(sample(task, "ood", 100, seed=seed).pair.tolist()) <= unseen


@settings(max_examples=25)
@given(tasks(), st.integers(0, 1000))
def test_every_column_describes_its_sequence(task: AnchorTask, seed: int) -> None:
    drawn = draw(task, task.pairs, "all", 200, seed=seed, stream="check")
    row = np.arange(len(drawn))
    assert (drawn.tokens[row, drawn.position] == drawn.key).all()
    anchors = np.stack([drawn.tokens[row, drawn.position + i] for i in (1, 2)], 1)
    assert (anchors == np.array(task.pairs)[drawn.pair]).all()
    noise = drawn.tokens.copy()
    for i in (0, 1, 2):
        noise[row, drawn.position + i] = task.key_min
    assert task.key_min <= noise.min() <= noise.max() <= task.key_max
    for index in np.unique(drawn.pair):
        pair, mine = task.pairs[index], drawn.pair == index
        assert (drawn.targets[mine] == task.target(pair, drawn.key[mine].astype(np.int64))).all()
        assert {ROLES[role] for role in drawn.role[mine]} == {task.role(pair)}


def test_the_every_position_rule_bans_noise_from_test_positions() -> None:
    task = AnchorTask(split="every-position")
    places = np.arange(task.length)
    train = sample(task, "train", 5000, seed=0).tokens
    numbers = train >= task.key_min
    assert not ((train % task.length == places) & numbers).any()
    free = sample(AnchorTask(split="key"), "train", 5000, seed=0).tokens
    assert ((free % task.length == places) & (free >= task.key_min)).any()


def test_sequences_depend_on_seed_stream_and_index_alone() -> None:
    few, many = sample(NEURIPS, "train", 1000, seed=5), sample(NEURIPS, "train", 70_000, seed=5)
    np.testing.assert_array_equal(few.tokens, many.tokens[:1000])
    np.testing.assert_array_equal(few.targets, many.targets[:1000])
    assert not np.array_equal(few.tokens, sample(NEURIPS, "train", 1000, seed=1).tokens)
    other = draw(NEURIPS, NEURIPS.seen, "train", 1000, seed=5, stream="other").tokens
    assert not np.array_equal(few.tokens, other)


def test_the_generator_is_pinned() -> None:
    """A change here makes every stored run irreproducible: raise GENERATOR too."""
    drawn = sample(NEURIPS, "train", 100_000, seed=1)
    assert drawn.tokens[0].tolist() == [67, 47, 68, 54, 3, 2, 71, 59, 86]
    assert int(drawn.tokens.astype(np.int64).sum()) == 42_152_397
    # SplitMix64's published first outputs for seed 1234567
    outputs = hash_counter(np.uint64(1234567), np.arange(3, dtype=np.uint64))
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_many_draws_are_uniform_small_and_take_seconds() -> None:
    began = time.process_time()
    drawn = sample(NEURIPS, "train", 900_000, seed=2)
    assert time.process_time() - began < 5
    arrays = (drawn.tokens, drawn.targets, drawn.key, drawn.position, drawn.pair, drawn.role)
    assert sum(array.nbytes for array in arrays) == 900_000 * (9 + 5)
    for column, n in ((drawn.pair, 15), (drawn.position, 7)):
        counts = np.bincount(column)
        counts = counts[counts > 0]
        assert len(counts) == n
        expected = len(drawn) / n
        assert np.abs(counts - expected).max() < 6 * np.sqrt(expected) + 0.02 * expected
    noise = drawn.tokens[drawn.position < 6][:, 8]
    counts = np.bincount(noise, minlength=100)[20:]
    assert np.abs(counts / counts.mean() - 1).max() < 6 / np.sqrt(counts.mean())
    tracemalloc.start()
    sample(NEURIPS, "train", 300_000, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6  # 64-bit tokens alone would take 21.6 MB


def test_replacing_keys_changes_only_the_keys() -> None:
    drawn = sample(NEURIPS, "ood", 500, seed=0)
    other = replace_keys(NEURIPS, drawn, seed=0)
    changed = other != drawn.tokens
    assert (changed.sum(1) == 1).all()
    assert changed[np.arange(500), drawn.position].all()
    assert other.min() >= 3
    assert other.max() <= 99


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 30))
def test_batches_pass_through_epochs_without_a_gap(n: int, batch: int, start: int) -> None:
    steps = range(start, start + 3 * (n // batch + 1))
    found = np.concatenate([batch_indices(step, batch, n, seed=4) for step in steps])
    first = start * batch
    for offset, index in enumerate(found):
        epoch, place = divmod(first + offset, n)
        assert index == epoch_order(n, epoch, seed=4)[place]


def test_epochs_are_different_permutations() -> None:
    orders = [epoch_order(1000, epoch, seed=0) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(1000))
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], epoch_order(1000, 0, seed=1))


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (3, [3]),
        (-1, [49]),
        (np.int64(7), [7]),
        (slice(2, 9, 3), [2, 5, 8]),
        ([4, 4, 0], [4, 4, 0]),
        (np.arange(50) % 25 == 1, [1, 26]),
        ((np.arange(50) == 9).tolist(), [9]),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.arange(50) == 8, [8]),
        (slice(0), []),
        ([], []),
    ],
)
def test_an_index_gives_whole_sequences(index: Any, rows: list[int]) -> None:
    drawn = sample(NEURIPS, "id", 50, seed=1)
    found = drawn[index]
    for name in ("tokens", "targets", "key", "position", "pair", "role"):
        np.testing.assert_array_equal(getattr(found, name), getattr(drawn, name)[rows])
    assert found.provenance == drawn.provenance | {"kept": len(rows)}


def test_indices_that_are_none_are_refused_and_iteration_ends() -> None:
    drawn = sample(NEURIPS, "id", 5, seed=1)
    assert [one.tokens[0].tolist() for one in drawn] == drawn.tokens.tolist()
    for wrong in (5, -6, [0, 5], np.ones(4, bool), "key", 1.5):
        with pytest.raises(IndexError):
            drawn[wrong]


def test_where_keeps_the_sequences_of_these_pairs() -> None:
    drawn = draw(NEURIPS, NEURIPS.pairs, "all", 3_000, seed=0, stream="x")
    anchors = [NEURIPS.pairs[index] for index in drawn.pair]
    is_pair = np.array([pair == (3, 4) for pair in anchors])
    np.testing.assert_array_equal(drawn.where(pair=(3, 4)).tokens, drawn.tokens[is_pair])
    mirrored = np.array([set(pair) == {3, 4} for pair in anchors])
    both = drawn.where(pair=[(3, 4), (4, 3)])
    np.testing.assert_array_equal(both.tokens, drawn.tokens[mirrored])
    assert len(drawn[~mirrored].where(pair=(3, 4))) == 0  # drawn, but none is left


def test_assembled_sequences_hold_the_given_parts() -> None:
    pairs, keys, positions = np.array([11, 0, 14]), np.array([20, 99, 50]), np.array([0, 6, 3])
    noise = np.full((3, 9), 77)
    found = assemble(NEURIPS, noise, pairs, keys, positions)
    for row, (index, key, at) in enumerate(zip(pairs, keys, positions, strict=True)):
        pair = NEURIPS.pairs[index]
        expected = noise[row].copy()
        expected[at : at + 3] = key, *pair
        assert found.tokens[row].tolist() == expected.tolist()
        assert found.targets[row] == NEURIPS.target(pair, np.array([key]))[0]
        assert ROLES[found.role[row]] == NEURIPS.role(pair)
    drawn = draw(NEURIPS, NEURIPS.seen, "train", 20, seed=4, stream="x")
    columns = (column.astype(np.int64) for column in (drawn.pair, drawn.key, drawn.position))
    anew = draw_noise(NEURIPS, 20, keys="train", seed=4, stream="x")
    assert (assemble(NEURIPS, anew, *columns).tokens == drawn.tokens).all()


@pytest.mark.parametrize(("changes", "message"), [
    ({"targets": np.zeros(2, np.uint8)}, "the length of targets is 2; expected at least 3"),
    ({"tokens": np.full((3, 9), 300)}, "array [n, length] of integers from 0 to 255"),
    ({"key": np.array([1, -1, 2])}, "expected an array [n] of integers from 0 to 255"),
    ({"key": np.zeros(3)}, "array of float64, shape (3,); expected an array [n] of integers"),
    ({"tokens": np.zeros(3, np.uint8)}, "expected an array [n, length]"),
    ({"pair": [0, 1, [2]]}, "expected an array [n]"),
])  # fmt: skip
def test_sequences_by_hand_are_checked_when_made(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = sample(NEURIPS, "train", 3, seed=0)
    assert_refused(lambda: Sequences(**vars(drawn) | changes), re.escape(message), monkeypatch)
    wide = Sequences(**vars(drawn) | {"tokens": drawn.tokens.astype(int)})
    assert wide.tokens.dtype == np.uint8


OOD = sample(NEURIPS, "ood", 5, seed=1)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: sample(NEURIPS, cast(Any, "trian"), 1, seed=0), "split is 'trian'; expected .*did yo"),
    (lambda: sample(NEURIPS, "train", -1, seed=0), "n is -1"),
    (lambda: sample(AnchorTask(), "ood", 1, seed=0), "no pair to draw from"),
    (lambda: stream_key(-1, "x"), "seed is -1"),
    (lambda: draw(NEURIPS, [(9, 9)], "all", 1, seed=0, stream="x"), r"\(9, 9\) is not made"),
    *((lambda wrong=wrong: OOD.where(pair=wrong), "^pair is ")
      for wrong in (3, "34", (3, 4.5))),
    *((lambda some=some: some.where(pair=[(4, 3), (3, 44)]),
       r"pair \(3,44\) is not among the pairs drawn \(\(4,3\)\)") for some in (OOD, OOD[:0])),
])  # fmt: skip
def test_wrong_requests_are_refused(
    call: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(call, message, monkeypatch)


def test_where_takes_a_pair_that_came_by_exchange() -> None:
    clean, corrupted = contrast_pairs(NEURIPS, "order", 100, seed=0)
    n = len(clean.where(pair=(3, 4)))
    assert len(corrupted.where(pair=(4, 3))) == n > 0


def test_roles_of_positions() -> None:
    noise = "noise"
    assert position_roles(9, 1) == (noise, "key", "first", "second", *[noise] * 4, "last")
    assert position_roles(9, 6) == (*[noise] * 6, "key", "first", "second")


@pytest.mark.parametrize("position", [0, 2, 6])
def test_all_keys_stand_at_the_position(position: int) -> None:
    pairs = ((1, 2), (3, 4))
    found = aligned_sequences(FEW_KEYS, position, 40, seed=3, pairs=pairs, keys="test")
    assert len(found) == len(found.tokens) == 40
    assert (found.position == position).all()
    assert (found.tokens[:, position] == found.key).all()
    anchors = found.tokens[:, position + 1 : position + 3]
    assert {tuple(pair) for pair in anchors.tolist()} == set(pairs)
    assert (found.key % 9 == position).all()  # what a test key is
    fewer = aligned_sequences(FEW_KEYS, position, 7, seed=3, pairs=pairs, keys="test")
    assert (fewer.tokens == found.tokens[:7]).all()
    others = aligned_sequences(FEW_KEYS, position, 40, seed=4, pairs=pairs, keys="test")
    assert (others.tokens != found.tokens).any()


def test_a_position_without_keys_is_refused() -> None:
    task = AnchorTask(key_min=20, key_max=21, unseen=())  # test keys stand at 2 and 3 alone
    assert len(aligned_sequences(task, 2, 3, seed=0, keys="test"))
    with pytest.raises(ConfigError, match="no test key stands at position 4; choose another"):
        aligned_sequences(task, 4, 3, seed=0, keys="test")
    with pytest.raises(ConfigError, match="no all key stands at position 7"):
        aligned_sequences(task, 7, 3, seed=0)
    with pytest.raises(ConfigError, match="no pair to draw from"):
        aligned_sequences(FEW_KEYS, 2, 3, seed=0, pairs=[])
