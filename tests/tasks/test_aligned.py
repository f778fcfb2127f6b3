"""Aligned sequences and the roles of their positions."""

import pytest
from small_models import FEW_KEYS

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import aligned_sequences, position_roles


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
