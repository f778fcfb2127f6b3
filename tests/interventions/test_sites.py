"""Sites and connections: where they are, and which do not exist."""

from typing import Any

import pytest
import torch
from small_models import FEW_KEYS, random_model
from twins import twins

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.sites import (
    Activation,
    Connection,
    Position,
    Site,
    check_sites,
    site_mask,
)
from anchor_interp.tasks.examples import Examples, as_examples
from anchor_interp.tasks.sequences import draw


def test_places_by_meaning() -> None:
    sequences = draw(FEW_KEYS, FEW_KEYS.seen, "all", 60, seed=3, stream="places")

    def at(position: Position) -> list[list[int]]:
        mask = site_mask(Site("resid_pre", 0, position), sequences.examples(), (60, 9, 16))[:, :, 0]
        return [row.nonzero()[:, 0].tolist() for row in mask]

    starts = sequences.position.tolist()
    assert at("key") == [[p] for p in starts]
    assert at("first") == [[p + 1] for p in starts]
    assert at("second") == [[p + 2] for p in starts]
    assert at("last") == at(8) == at(-1) == [[8]] * 60
    assert at("noise") == [[i for i in range(8) if not p <= i <= p + 2] for p in starts]
    assert at("all") == [[*range(9)]] * 60
    assert at(-9) == [[0]] * 60


def test_the_masks_of_heads_partition_the_mask_of_all_heads() -> None:
    clean = twins().clean.examples()
    names: list[Activation] = ["q", "k", "v", "z", "pattern"]
    for name in names:
        shape = (12, 2, 9, 9) if name == "pattern" else (12, 9, 2, 5)
        one, two = (site_mask(Site(name, 0, "first", head), clean, shape) for head in (0, 1))
        whole = site_mask(Site(name, 0, "first"), clean, shape)
        assert not (one & two).any()
        assert torch.equal(one | two, whole.expand_as(one))


def test_a_pattern_has_rows_and_edges() -> None:
    clean = twins(n=3).clean.examples()
    shape = (3, 2, 9, 9)
    row = site_mask(Site("pattern", 0, "last", 1), clean, shape)
    edge = site_mask(Site("pattern", 0, "last", 1, "key"), clean, shape)
    for i, p in enumerate(clean.places["key"].tolist()):
        assert row.expand(shape)[i].nonzero().tolist() == [[1, 8, j] for j in range(9)]
        assert edge.expand(shape)[i].nonzero().tolist() == [[1, 8, p]]


def test_texts() -> None:
    first = Site("resid_pre", 0, "key")
    readers = (Site("q", 0, "key"), Site("pattern", 1, "last", 1, "key"))
    assert str(Connection(first)) == "resid_pre L0 key -> logits"
    assert str(Connection(first, readers[:1])) == "resid_pre L0 key -> q L0 key"
    assert str(readers[1]) == "pattern L1H1 last <- key"


def masked(position: Position, examples: Examples | None = None) -> object:
    return site_mask(Site("z", 0, position), examples or twins().clean.examples(), (12, 9, 2, 5))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Site("resid_pre", 0, head=0), "resid_pre L0H0 all has a head; only q, k"),
    (lambda: Site("z", 0, key_position="key"), "has a key position; only a pattern has one"),
    (lambda: Site("z", -1), "layer"),
    (lambda: Connection(Site("v", 0)), "the sender v L0 all does not write"),
    (lambda: Connection(Site("z", 0), ()), "not all receivers in .* read"),
    (lambda: Connection(Site("z", 0), (Site("attn_out", 1),)), "not all receivers in"),
    (lambda: Connection(Site("z", 1), (Site("v", 0),)), "read the stream after the sender"),
    (lambda: check_sites(random_model(), [Site("z", 3)]), "3 layers"),
    (lambda: check_sites(random_model(), [Site("z", 0, head=2)]), "2 heads for z"),
    (lambda: masked("frist"), r"did you mean 'first'\?"),
    (lambda: masked("key", as_examples(twins().clean.tokens)), "called 'key'; known: last"),
])  # fmt: skip
def test_sites_that_do_not_exist_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
