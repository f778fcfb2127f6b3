"""The attention edges that the hand-set models of ``anchor_interp.models.exact`` need."""

import torch

from anchor_interp.models.exact import Mechanism
from anchor_interp.models.transformer import Edges
from anchor_interp.tasks.sequences import Place, Sequences

_ROUTES: dict[Mechanism, tuple[tuple[int, Place, Place], ...]] = {
    "symmetric": ((0, "last", "first"), (0, "last", "second"), (1, "last", "key")),
    "inferential": ((0, "first", "key"), (0, "second", "key"), (1, "last", "first"),
                    (1, "last", "second")),
    "lookup": ((0, "second", "key"), (0, "second", "first"), (1, "last", "second")),
}  # fmt: skip
"""(layer, query, key) of every edge."""


def exact_edges(mechanism: Mechanism, sequences: Sequences) -> Edges:
    """The attention edges that a mechanism needs in every sequence, with a batch of n.

    In the inferential model the edge from the key to the second anchor carries the key's position
    only: the model needs the edge, but another key on it changes nothing.
    """
    n, length = sequences.tokens.shape
    edges = torch.zeros(2, n, 1, length, length, dtype=torch.bool)
    row = torch.arange(n)
    for layer, query, key in _ROUTES[mechanism]:
        receiver = torch.from_numpy(sequences.positions(query))
        edges[layer, row, 0, receiver, torch.from_numpy(sequences.positions(key))] = True
    return edges
