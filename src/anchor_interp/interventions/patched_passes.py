"""Forward passes with activations replaced, for patching, interchange and composition."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.hooks import Edit, hooked, recording
from anchor_interp.models.forward import answer_logits
from anchor_interp.models.inputs import Rows, model_rows
from anchor_interp.models.transformer import HookedTransformer, Inputs
from anchor_interp.tasks.functions import Pair

_REFUSED: ContextVar[frozenset[Pair] | None] = ContextVar("refused pairs", default=None)


@dataclass(frozen=True, eq=False)
class Replacement:
    """A value that replaces an activation in n sequences: where ``mask`` is True, or everywhere."""

    hook: str
    value: Float[Tensor, "n ..."]
    mask: Bool[Tensor, "n ..."] | None = None
    pairs: frozenset[Pair] | None = None
    """The ordered pairs of anchors that it brings together, if they are known."""


@contextlib.contextmanager
def refusing(pairs: Iterable[Pair]) -> Iterator[None]:
    """Within the ``with`` block, an intervention that makes one of these ordered pairs raises.

    So does a replaced activation of which nobody says what pairs it makes. Both raise an
    AssertionError.
    """
    token = _REFUSED.set(frozenset(pairs))
    try:
        yield
    finally:
        _REFUSED.reset(token)


def declare(pairs: Iterable[Pair] | None) -> None:
    """Say which ordered pairs an intervention makes; see :func:`refusing`."""
    refused = _REFUSED.get()
    if refused is None:
        return
    if pairs is None:
        raise AssertionError("a replaced activation does not say which pairs it makes")
    if made := refused.intersection(pairs):
        raise AssertionError(f"an intervention makes the refused pair {min(made)}")


def replaced_run(
    model: HookedTransformer,
    inputs: Inputs | Rows,
    replacements: Sequence[Replacement],
    *,
    record: Iterable[str] = (),
    batch_size: int,
) -> tuple[Float[Tensor, "n *k d_vocab"], dict[str, Tensor]]:
    """Logits of a run with activations replaced, and recorded activations.

    The logits are those where each is answered. Replacements apply in order, so the last of two at
    one place holds. Hooks attached to the model act. ``record`` names hooks. Raises HookError if
    the model does not have a hook or a value has the wrong shape.
    """
    for replacement in replacements:
        declare(replacement.pairs)
    rows, hooks = model_rows(model, inputs), list(record)
    logits: list[Tensor] = []
    passes: list[dict[str, Tensor]] = []
    for start in range(0, len(rows), batch_size):
        part = slice(start, start + batch_size)
        recorded: dict[str, Tensor] = {}
        edits = recording(hooks, recorded)
        for hook in dict.fromkeys(each.hook for each in replacements):
            edits[hook] = _replace([each for each in replacements if each.hook == hook], part)
        with hooked(model, edits):
            logits.append(answer_logits(model, rows[part]))
        passes.append(recorded)
    return torch.cat(logits), {hook: torch.cat([p[hook] for p in passes]) for hook in hooks}


def check_differentiable(model: HookedTransformer) -> None:
    """ConfigError if a model was made within ``torch.inference_mode``: it takes no gradients."""
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ConfigError("the model was made within torch.inference_mode; load it outside")


def _replace(replacements: Sequence[Replacement], rows: slice) -> Edit:
    def edit(activation: Tensor) -> Tensor:
        for each in replacements:
            value = each.value[rows]
            if each.mask is not None:
                value = torch.where(each.mask[rows], value, activation)
            activation = value
        return activation

    return edit
