"""What a model reads: tokens, where each sequence is answered, and which tokens are padding.

All analyses run :class:`Rows`, so that no attention mask is lost on the way to the model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from anchor_interp.models.number_checks import check_weights
from anchor_interp.models.transformer import HookedTransformer, Inputs, check_causal, token_rows
from anchor_interp.models.transformer_lens import is_bridge
from anchor_interp.tasks.examples import Examples, warn_once


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences on a model's device."""

    tokens: Int64[Tensor, "n pos"]
    at: Int64[Tensor, "n *k"] | None = None
    """Where each is answered, once or k times; None if all are at the last position."""
    attention_mask: Int64[Tensor, "n pos"] | None = None
    """1 for a token, 0 for padding; None without padding, or if the model reads it."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> "Rows":
        """Some of the rows."""
        parts = self.tokens, self.at, self.attention_mask
        some: list[Any] = [None if part is None else part[index] for part in parts]
        return Rows(*some)

    def through(self, model: HookedTransformer, *, stop_at_layer: int | None = None) -> Tensor:
        """The logits at all positions, or the stream before a layer, by the model's own forward."""
        given = {"attention_mask": self.attention_mask, "stop_at_layer": stop_at_layer}
        out: Tensor = model(self.tokens, **{n: v for n, v in given.items() if v is not None})
        return out


def model_rows(model: HookedTransformer, inputs: Inputs | Rows) -> Rows:
    """Sequences, examples or token indices as the model takes them.

    Raises:
        ConfigError: as :func:`anchor_interp.models.transformer.token_rows`, or an attention mask
            for a model that is not causal, in which TransformerLens ignores it.
    """
    if isinstance(inputs, Rows):
        return inputs
    tokens = token_rows(model, inputs)
    if not isinstance(inputs, Examples):
        return Rows(tokens)
    several = inputs.each_at.shape[1] > 1
    at, mask = inputs.each_at if several else inputs.at, inputs.attention_mask
    pads_left = getattr(getattr(model, "tokenizer", None), "padding_side", None) == "left"
    if mask is not None and not is_bridge(model):
        check_causal(model)
    if mask is None and not pads_left and not inputs.inside[:, 0].all():
        warn_of_padding(inputs.padding)
    given = mask is not None and (pads_left or not mask.all())
    return Rows(
        tokens,
        None if (at == tokens.shape[1] - 1).all() else torch.from_numpy(at).to(tokens.device),
        torch.from_numpy(mask).to(tokens) if mask is not None and given else None,
    )


def finite_rows(model: HookedTransformer, inputs: Inputs | Rows) -> Rows:
    """:func:`model_rows`, or a ConfigError if a weight is not finite."""
    rows = model_rows(model, inputs)
    check_weights(model)
    return rows


def warn_of_padding(padding: int | None) -> None:
    """Warn once of each padding token that a model reads before an answer."""
    what = "padding %s is before the answers, and the model reads it like any token; mask it"
    warn_once(f"{what}: Examples(..., attention_mask=...)", padding)
