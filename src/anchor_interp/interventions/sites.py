"""Places in a model: an activation of a layer at a position, and the paths between them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked, shown
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.sequences import Place, Sequences, places

Activation = Literal[
    "resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "post", "mlp_out",
    "resid_post",
]  # fmt: skip
"""TransformerLens's short name of an activation, in the order in which a layer computes them;
``post`` are the MLP's neurons."""


Position = Place | Literal["noise", "all"] | int
"""A place of each sequence by its meaning, or one position of all (negative: from the end).
``noise`` is every position that is neither key nor anchor nor the last."""


Inputs = Sequences | Integer[np.ndarray, "n pos"] | Integer[Tensor, "n pos"]
"""Sequences of a task, or token indices for a model without one, whose only place by meaning is
``last``."""


PLACES: tuple[Place, ...] = get_args(Place)


_ORDER: tuple[Activation, ...] = get_args(Activation)


_PER_HEAD = ("q", "k", "v", "z", "pattern")


_RECEIVERS = ("q", "k", "v", "post")


_OWNERS = dict.fromkeys(_PER_HEAD, "attn.") | {"post": "mlp."}


@dataclass(frozen=True)
class Site:
    """A place in the model: an activation of a layer at a position, for one head or all."""

    activation: Activation
    """What is replaced."""
    layer: int = dataclasses.field(metadata={"low": 0})
    """0-based layer."""
    position: Position = "all"
    """Where; of ``pattern`` the query position, so one row of the pattern."""
    head: int | None = bounded(None, low=0)
    """0-based head of q, k, v, z and pattern; None for all heads at once."""
    key_position: Position = "all"
    """Of ``pattern`` only: the position attended to, for one edge instead of the whole row."""

    def __post_init__(self) -> None:
        check_fields(self, "site")
        if self.head is not None and self.activation not in _PER_HEAD:
            raise ConfigError(
                f"site.head is {self.head}, but {self.activation} has no heads; only "
                f"{', '.join(_PER_HEAD)} have"
            )
        if self.key_position != "all" and self.activation != "pattern":
            raise ConfigError(
                f"site.key_position is {shown(self.key_position)}; only a pattern has one, "
                f"{self.activation} has not"
            )

    @property
    def hook(self) -> str:
        """TransformerLens's name of the hook."""
        return f"blocks.{self.layer}.{_OWNERS.get(self.activation, '')}hook_{self.activation}"

    @property
    def depth(self) -> tuple[int, int]:
        """Sites of a smaller depth are computed earlier."""
        return self.layer, _ORDER.index(self.activation)

    def __str__(self) -> str:
        head = "" if self.head is None else f".{self.head}"
        edge = "" if self.key_position == "all" else f" <- {self.key_position}"
        return f"{self.activation} {self.layer}{head} {self.position}{edge}"


@dataclass(frozen=True)
class Connection:
    """From a sender to receivers, along the residual stream and through nothing else."""

    sender: Site
    """A site whose output the stream carries on: z, attn_out, mlp_out or the stream itself, of
    which ``Site("resid_pre", 0, ...)`` is the embedding."""
    receivers: tuple[Site, ...] | Literal["logits"] = "logits"
    """q, k or v of heads, or ``post`` for what an MLP reads; together if there are several."""

    def __post_init__(self) -> None:
        check_fields(self, "connection")
        if self.sender.activation in (*_RECEIVERS, "pattern"):
            raise ConfigError(
                f"connection.sender is {self.sender}; expected z, attn_out, mlp_out or a resid, "
                "whose output the residual stream carries"
            )
        if self.receivers == ():
            raise ConfigError("connection.receivers is empty; name sites or give 'logits'")
        for receiver in () if self.receivers == "logits" else self.receivers:
            if receiver.activation not in _RECEIVERS:
                raise ConfigError(
                    f"connection.receivers holds {receiver}; expected q, k, v or post, which are "
                    "computed from the residual stream alone"
                )
            if receiver.depth < self.sender.depth:
                raise ConfigError(
                    f"the receiver {receiver} is computed before the sender {self.sender}; give "
                    "a receiver behind it"
                )

    def __str__(self) -> str:
        if self.receivers == "logits":
            return f"{self.sender} -> logits"
        return f"{self.sender} -> {', '.join(map(str, self.receivers))}"


def site_grid(
    model: HookedTransformer,
    names: Sequence[Activation],
    *,
    positions: Sequence[Position] = PLACES,
    key_positions: Sequence[Position] = ("all",),
) -> tuple[Site, ...]:
    """Every site of some activations: activation, then layer, position, head, key position.

    Args:
        model: any HookedTransformer.
        names: activations.
        positions: where.
        key_positions: of ``pattern``, the positions attended to, for single edges.

    Raises:
        ConfigError: an unknown activation or position.
    """
    checked(model, HookedTransformer, "model")
    return tuple(
        Site(name, layer, position, head, key_position)
        for name in checked(names, tuple[Activation, ...], "names")
        for layer in range(model.cfg.n_layers)
        for position in positions
        for head in (range(_n_heads(model, name)) if name in _PER_HEAD else (None,))
        for key_position in (key_positions if name == "pattern" else ("all",))
    )


def check_sites(model: HookedTransformer, sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites, if the model has them.

    Raises:
        ConfigError: no sites, or one whose layer or head the model does not have.
    """
    checked(model, HookedTransformer, "model")
    found: tuple[Site, ...] = checked(sites, tuple[Site, ...], "sites")
    for site in found:
        n_heads = _n_heads(model, site.activation)
        if site.layer >= model.cfg.n_layers or (site.head or 0) >= n_heads:
            raise ConfigError(
                f"the site {site} is not in the model, which has {model.cfg.n_layers} layers and "
                f"{n_heads} heads for {site.activation}"
            )
    return found


def site_mask(site: Site, inputs: Inputs, shape: Sequence[int]) -> Bool[Tensor, "n ..."]:
    """Where a site lies in its hook's activation.

    Args:
        site: the site.
        inputs: n sequences, which say where a place is.
        shape: shape of the activation, (n, pos, d), (n, pos, head, d) or, of a pattern, (n, head,
            query, key).

    Returns:
        True where the site is; (n, pos, 1), (n, pos, head, 1) or (n, head, query, key).

    Raises:
        ConfigError: a place by its meaning in token indices without one, or a position that the
            sequences do not have.
    """
    at = _at(inputs, site.position)
    if site.activation not in _PER_HEAD:
        return at[:, :, None]
    n_heads = shape[1 if site.activation == "pattern" else 2]
    heads = torch.ones(n_heads, dtype=torch.bool)
    if site.head is not None:
        heads = torch.arange(n_heads) == site.head
    if site.activation == "pattern":
        key = _at(inputs, site.key_position)
        return heads[:, None, None] & at[:, None, :, None] & key[:, None, None, :]
    return at[:, :, None, None] & heads[:, None]


def _at(inputs: Inputs, position: Position) -> Bool[Tensor, "n pos"]:
    tokens = inputs.tokens if isinstance(inputs, Sequences) else inputs
    n, length = tokens.shape
    column = np.arange(length)
    if isinstance(position, int):
        if not -length <= position < length:
            raise ConfigError(
                f"position {position} is not in sequences of {length} tokens; expected "
                f"{-length} to {length - 1}"
            )
        found = np.broadcast_to(column == position % length, (n, length))
    elif position == "all":
        found = np.ones((n, length), bool)
    elif position == "last":
        found = np.broadcast_to(column == length - 1, (n, length))
    elif not isinstance(inputs, Sequences):
        raise ConfigError(
            f"position {position!r} needs Sequences of a task; token indices have positions by "
            "number, 'last' and 'all'"
        )
    elif position == "noise":
        taken = [column == places(inputs, place)[:, None] for place in PLACES]
        found = ~np.logical_or.reduce(taken)
    else:
        found = column == places(inputs, position)[:, None]
    return torch.from_numpy(found.copy())


def _n_heads(model: HookedTransformer, name: Activation) -> int:
    grouped = model.cfg.n_key_value_heads if name in ("k", "v") else None
    return grouped or model.cfg.n_heads
