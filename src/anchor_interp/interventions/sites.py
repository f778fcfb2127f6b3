"""Places in a model: an activation of a layer at a position, and the paths between them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked
from anchor_interp.models.transformer import HookedTransformer, check_model
from anchor_interp.tasks.examples import Examples, Integers
from anchor_interp.tasks.sequences import Place

Activation = Literal[
    "resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "post", "mlp_out",
    "resid_post",
]  # fmt: skip
"""TransformerLens's short name of an activation, in the order in which a layer computes them;
``post`` is the MLP's neurons."""
Position = str | int
"""A place of the examples by its name, ``last`` (where the answer is read), ``all``, or a 0-based
position of all examples (negative: from the end). ``other``, in anchor sequences also ``noise``, is
every position without a name."""
PLACES: tuple[Place, ...] = get_args(Place)
_ORDER: tuple[Activation, ...] = get_args(Activation)
_PER_HEAD = ("q", "k", "v", "z", "pattern")
_RECEIVERS = ("q", "k", "v", "post")
_OWNERS = dict.fromkeys(_PER_HEAD, "attn.") | {"post": "mlp."}


@dataclass(frozen=True)
class Site:
    """An activation of a 0-based layer at a position, for one head or all."""

    activation: Activation
    layer: int = dataclasses.field(metadata={"low": 0})
    position: Position = "all"
    """The position; the query position of a ``pattern``."""
    head: int | None = bounded(None, low=0)
    """0-based head of q, k, v, z or pattern; None for all heads at once."""
    key_position: Position = "all"
    """The key position of a ``pattern``, for one edge instead of the whole row."""

    def __post_init__(self) -> None:
        check_fields(self, "site")
        if self.head is not None and self.activation not in _PER_HEAD:
            raise ConfigError(f"{self} has a head; only {', '.join(_PER_HEAD)} have heads")
        if self.key_position != "all" and self.activation != "pattern":
            raise ConfigError(f"{self} has a key position; only a pattern has one")

    @property
    def hook(self) -> str:
        """TransformerLens's name of the hook."""
        return f"blocks.{self.layer}.{_OWNERS.get(self.activation, '')}hook_{self.activation}"

    @property
    def depth(self) -> tuple[int, int]:
        """The order of computation: a smaller depth comes earlier."""
        return self.layer, _ORDER.index(self.activation)

    def __str__(self) -> str:
        head = "" if self.head is None else f"H{self.head}"
        edge = "" if self.key_position == "all" else f" <- {self.key_position}"
        return f"{self.activation} L{self.layer}{head} {self.position}{edge}"


@dataclass(frozen=True)
class Connection:
    """A path from a sender to later receivers along the residual stream alone."""

    sender: Site
    """z, attn_out, mlp_out or the stream itself; ``Site("resid_pre", 0, ...)`` is the embedding."""
    receivers: tuple[Site, ...] | Literal["logits"] = "logits"
    """q, k or v of heads, or ``post`` for what an MLP reads; several act together."""

    def __post_init__(self) -> None:
        check_fields(self, "connection")
        if self.sender.activation in (*_RECEIVERS, "pattern"):
            raise ConfigError(f"the sender {self.sender} does not write to the residual stream")
        late = (r.activation in _RECEIVERS and r.depth >= self.sender.depth for r in self.receiving)
        if self.receivers == () or not all(late):
            raise ConfigError(f"not all receivers in {self} read the stream after the sender")

    @property
    def receiving(self) -> tuple[Site, ...]:
        """The receivers that are sites; none if the change goes to the logits."""
        return () if self.receivers == "logits" else self.receivers

    def __str__(self) -> str:
        return f"{self.sender} -> {', '.join(map(str, self.receiving)) or 'logits'}"


def site_grid(
    model: HookedTransformer,
    names: Sequence[Activation],
    *,
    positions: Position | Sequence[Position] | Examples = PLACES,
) -> tuple[Site, ...]:
    """Every site of some activations, in the order activation, layer, position, head.

    The positions are by default those of anchor sequences. Of examples they are the places, or if
    there are none all positions up to the last answer that lie in no padding.
    """
    check_model(model)
    if isinstance(positions, Examples):
        columns = np.flatnonzero(positions.inside[:, : positions.at.max() + 1].all(0)).tolist()
        positions = [*positions.places, "last"] if positions.places or not columns else columns
    positions = [positions] if isinstance(positions, str | int) else positions
    return tuple(
        Site(name, layer, position, head)
        for name in checked(names, tuple[Activation, ...], "names")
        for layer in range(model.cfg.n_layers)
        for position in positions
        for head in (range(heads_of(model, name)) if name in _PER_HEAD else (None,))
    )


def check_sites(model: HookedTransformer, sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites; ConfigError if there are none, or the model lacks the layer or head of one."""
    given: tuple[Site, ...] = checked(sites, tuple[Site, ...], "sites")
    checked(len(given), int, "the number of sites", low=1)
    for site in given:
        n_heads = heads_of(model, site.activation)
        if site.layer >= model.cfg.n_layers or (site.head or 0) >= n_heads:
            has = f"{model.cfg.n_layers} layers and {n_heads} heads for {site.activation}"
            raise ConfigError(f"the site {site} is not in the model, which has {has}")
    return given


def check_path(connection: Connection, examples: Examples) -> None:
    """ConfigError if a receiver is never at its sender's position: the stream stays at its own."""
    sites = (connection.sender, *connection.receiving)
    sent, *received = (position_mask(examples, site.position) for site in sites)
    if not all((sent & at).any() for at in received):
        raise ConfigError(f"a receiver in {connection} is at another position than the sender")


def site_mask(site: Site, examples: Examples, shape: Sequence[int]) -> Bool[Tensor, "n ..."]:
    """Where a site lies in its activation.

    ``shape`` is the activation's: (n, pos, d), (n, pos, head, d), or (n, head, query, key) of a
    pattern. The mask has the same dimensions with d = 1. Raises ConfigError for a position that the
    examples do not have.
    """
    at = torch.from_numpy(position_mask(examples, site.position))
    if site.activation not in _PER_HEAD:
        return at[:, :, None]
    heads = torch.arange(shape[1 if site.activation == "pattern" else 2], device="cpu")
    chosen = heads >= 0 if site.head is None else heads == site.head
    if site.activation == "pattern":
        key = torch.from_numpy(position_mask(examples, site.key_position))
        return chosen[:, None, None] & at[:, None, :, None] & key[:, None, None, :]
    return at[:, :, None, None] & chosen[:, None]


def position_mask(examples: Examples, position: Position | Integers) -> Bool[np.ndarray, "n pos"]:
    """Where a position, or one of each example, lies."""
    chosen: Bool[np.ndarray, "n pos"] = np.ones(examples.tokens.shape, np.bool_)
    column = np.arange(chosen.shape[1])
    if isinstance(position, str) and position in ("noise", "other"):
        named = (*examples.each_at.T, *examples.places.values())
        chosen = examples.inside & ~np.logical_or.reduce([column == x[:, None] for x in named])
    elif not isinstance(position, str) or position != "all":
        chosen = column == examples.positions(position)[:, None]
    return chosen


def heads_of(model: HookedTransformer, name: Activation) -> int:
    """How many heads an activation has: keys and values of grouped queries fewer."""
    ungrouped = getattr(model.cfg, "ungroup_grouped_query_attention", False)
    grouped = name in ("k", "v") and not (ungrouped and isinstance(model, HookedTransformer))
    return (model.cfg.n_key_value_heads if grouped else None) or model.cfg.n_heads
