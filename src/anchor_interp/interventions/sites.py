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
from anchor_interp._util.schema import bounded, check_fields, checked, shown
from anchor_interp.models.transformer import HookedTransformer, Inputs, check_model
from anchor_interp.tasks.sequences import Place, Sequences, places

Activation = Literal[
    "resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "post", "mlp_out",
    "resid_post",
]  # fmt: skip
"""TransformerLens's short name of an activation, in the order in which a layer computes them;
``post`` is the MLP's neurons."""
Position = Place | Literal["noise", "all"] | int
"""A place by its meaning, or a position of all sequences (negative: from the end). ``noise`` is
every position except the key, the anchors and the last one."""
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
            raise ConfigError(
                f"site.head is {self.head}, but {self.activation} has no heads; only "
                f"{', '.join(_PER_HEAD)} do"
            )
        if self.key_position != "all" and self.activation != "pattern":
            position = f"site.key_position is {shown(self.key_position)}"
            raise ConfigError(f"{position}; only a pattern has one, {self.activation} does not")

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
            raise ConfigError(
                f"connection.sender is {self.sender}; expected z, attn_out, mlp_out or a resid, "
                "which write to the residual stream"
            )
        if self.receivers == ():
            raise ConfigError("connection.receivers is empty; name sites or give 'logits'")
        for receiver in self.receiving:
            if receiver.activation not in _RECEIVERS:
                raise ConfigError(
                    f"connection.receivers holds {receiver}; expected q, k, v or post, which read "
                    "the residual stream alone"
                )
            if receiver.depth < self.sender.depth:
                order = f"the receiver {receiver} is computed before the sender {self.sender}"
                raise ConfigError(f"{order}; give a later receiver")
            if _elsewhere(self.sender.position, receiver.position):
                raise ConfigError(
                    f"the receiver {receiver} is at another position than the sender "
                    f"{self.sender}, and the residual stream stays at its position; give k or v at "
                    "the sender's position for what attention takes from there"
                )

    @property
    def receiving(self) -> tuple[Site, ...]:
        """The receivers that are sites; none if the change goes to the logits."""
        return () if self.receivers == "logits" else self.receivers

    def __str__(self) -> str:
        return f"{self.sender} -> {', '.join(map(str, self.receiving)) or 'logits'}"


def _elsewhere(one: Position, other: Position) -> bool:
    """Whether two names can never mean the same position.

    An index may be any role's position; -1 is the last, and the second anchor can be the last.
    """
    if isinstance(one, int) and isinstance(other, int):
        return one != other and (one < 0) == (other < 0)
    one, other = ("last" if each == -1 else each for each in (one, other))
    if isinstance(one, int) or isinstance(other, int) or "all" in (one, other):
        return False
    return one != other and {one, other} != {"second", "last"}


def site_grid(
    model: HookedTransformer,
    names: Sequence[Activation],
    *,
    positions: Sequence[Position] = PLACES,
) -> tuple[Site, ...]:
    """Every site of some activations, in the order activation, layer, position, head."""
    check_model(model)
    return tuple(
        Site(name, layer, position, head)
        for name in checked(names, tuple[Activation, ...], "names")
        for layer in range(model.cfg.n_layers)
        for position in positions
        for head in (range(_n_heads(model, name)) if name in _PER_HEAD else (None,))
    )


def check_sites(model: HookedTransformer, sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites; raises ConfigError if the model does not have the layer or head of one."""
    if isinstance(sites, Site):
        raise ConfigError(f"sites is one Site, {sites}; expected several: put it in a list")
    given: tuple[Site, ...] = checked(sites, tuple[Site, ...], "sites")
    if not given:
        raise ConfigError("sites is empty; name at least one Site, or take site_grid")
    for site in given:
        n_heads = _n_heads(model, site.activation)
        if site.layer >= model.cfg.n_layers or (site.head or 0) >= n_heads:
            raise ConfigError(
                f"the site {site} is not in the model, which has {model.cfg.n_layers} layers and "
                f"{n_heads} heads for {site.activation}"
            )
    return given


def site_mask(site: Site, inputs: Inputs, shape: Sequence[int]) -> Bool[Tensor, "n ..."]:
    """Where a site lies in its activation.

    ``shape`` is the activation's: (n, pos, d), (n, pos, head, d), or (n, head, query, key) of a
    pattern. The mask has the same dimensions with d = 1. Token indices have no places by meaning
    but ``last``.

    Raises:
        ConfigError: token indices without the place, or a position outside the sequences.
    """
    at = _at(inputs, site.position)
    if site.activation not in _PER_HEAD:
        return at[:, :, None]
    heads = torch.arange(shape[1 if site.activation == "pattern" else 2])
    chosen = heads >= 0 if site.head is None else heads == site.head
    if site.activation == "pattern":
        key = _at(inputs, site.key_position)
        return chosen[:, None, None] & at[:, None, :, None] & key[:, None, None, :]
    return at[:, :, None, None] & chosen[:, None]


def _at(inputs: Inputs, position: Position) -> Bool[Tensor, "n pos"]:
    n, length = (inputs.tokens if isinstance(inputs, Sequences) else inputs).shape
    column = np.arange(length)
    if isinstance(position, int):
        if not -length <= position < length:
            allowed = f"{-length} to {length - 1}"
            raise ConfigError(f"position {position} is not among the {length}; expected {allowed}")
        chosen = column == position % length
    elif position == "all":
        chosen = column >= 0
    elif position == "last":
        chosen = column == length - 1
    elif not isinstance(inputs, Sequences):
        expected = "token indices have positions by number, 'last' and 'all'"
        raise ConfigError(f"position {position!r} needs Sequences of a task; {expected}")
    elif position == "noise":
        taken = [column == places(inputs, place)[:, None] for place in PLACES]
        chosen = ~np.logical_or.reduce(taken)
    else:
        chosen = column == places(inputs, position)[:, None]
    return torch.from_numpy(np.broadcast_to(chosen, (n, length)).copy())


def _n_heads(model: HookedTransformer, name: Activation) -> int:
    grouped = model.cfg.n_key_value_heads if name in ("k", "v") else None
    return grouped or model.cfg.n_heads
