"""Hooks that are sure to act: every intervention and every measurement goes through here.

TransformerLens accepts the name of a hook that will never fire, lets a hook return a tensor of
another shape that happens to broadcast, and hands out cached activations that a later hook may
still change. :func:`hooked` and :func:`activations` exclude all three. Both know hooks by their
TransformerLens names (``utils.get_act_name``) alone, such as ``blocks.0.attn.hook_pattern``.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from anchor_interp._util.errors import HookError
from anchor_interp._util.schema import checked, shown, suggestion
from anchor_interp.models.transformer import HookedTransformer, token_rows

Edit = Callable[[Tensor], Tensor]
"""An activation in, the activation to go on with out: of the same shape, dtype and device."""


_GATES = {
    "hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Hooks that exist in every model and fire only with a setting of its config."""


_LOGITS = 1 << 26
"""Logits of one forward pass at most, over sequences and positions."""


@contextlib.contextmanager
def hooked(model: HookedTransformer, edits: Mapping[str, Edit]) -> Iterator[None]:
    """Edit activations in every forward pass within the ``with`` block.

    Contexts nest: of two edits of one activation the outer one acts first. They act under
    ``run_with_cache`` (which then sees the edited activation) and under gradients, and are gone
    when the block ends, however it ends.

    Args:
        model: any HookedTransformer.
        edits: what to do, by the name of the hook.

    Raises:
        HookError: a hook that the model does not have or that its settings keep from firing; an
            edit that returned anything but a tensor of its input's shape, dtype and device; or,
            at the end of the block, a hook that no forward pass reached.
        ConfigError: no model.
    """
    check_hooks(model, list(edits))
    fired: set[str] = set()

    def checking(name: str, edit: Edit) -> Callable[..., Tensor]:
        def hook(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001 (passed by name)
            fired.add(name)
            edited: Any = edit(activation)
            if not isinstance(edited, Tensor) or _kind(edited) != _kind(activation):
                found = _kind(edited) if isinstance(edited, Tensor) else shown(edited)
                raise HookError(
                    f"the edit of {name} returned {found}; expected {_kind(activation)}, the "
                    "shape, dtype and device of what it was given"
                )
            return edited

        return hook

    with model.hooks(fwd_hooks=[(name, checking(name, edit)) for name, edit in edits.items()]):
        yield
    missed = [name for name in edits if name not in fired]
    if missed:
        raise HookError(
            f"the hook {missed[0]} did not fire: no forward pass reached it; run the model within "
            "the block, through every layer that is edited"
        )


def activations(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch pos"] | np.ndarray,
    names: Sequence[str],
    *,
    batch: int | None = None,
) -> dict[str, Tensor]:
    """What the named hooks see, as copies that nothing changes later; without gradients.

    Args:
        model: any HookedTransformer; hooks attached to it act.
        tokens: token indices (n, pos).
        names: names of hooks.
        batch: sequences per forward pass; if None 4,096, or fewer of a large vocabulary, so that
            the logits of all positions stay within 2^26 numbers (256 MB in float32).

    Returns:
        One tensor a name, its first dimension the n sequences.

    Raises:
        HookError: a hook that the model does not have or that does not fire.
        ConfigError: no model, or no token indices.
    """
    names = list(names)
    check_hooks(model, names)
    rows = token_rows(model, tokens)
    if batch is None:
        batch = min(4096, max(1, _LOGITS // (rows.shape[1] * model.cfg.d_vocab_out)))
    kept: dict[str, list[Tensor]] = {name: [] for name in names}

    def keeping(name: str) -> Edit:
        def keep(activation: Tensor) -> Tensor:
            kept[name].append(activation.detach().clone())
            return activation

        return keep

    with torch.no_grad(), hooked(model, {name: keeping(name) for name in names}):
        for start in range(0, max(len(rows), 1), batch):
            model(rows[start : start + batch])
    return {name: torch.cat(parts) for name, parts in kept.items()}


def check_hooks(model: HookedTransformer, names: Sequence[str]) -> None:
    """Refuse names of hooks that the model does not have or that its settings keep silent.

    Raises:
        HookError: names the hook, and what to do.
        ConfigError: no model.
    """
    checked(model, HookedTransformer, "model")
    for name in names:
        if checked(name, str, "the hook's name") not in model.hook_dict:
            raise HookError(
                f"the model has no hook {shown(name)}{suggestion(name, model.hook_dict)}; "
                "model.hook_dict lists them"
            )
        if model.cfg.attn_only and name.endswith((".hook_mlp_in", ".hook_mlp_out")):
            raise HookError(f"{name} never fires: the model has attention only, no MLPs")
        gate = _GATES.get(name.rpartition(".")[2])
        if gate is not None and not getattr(model.cfg, gate):
            raise HookError(f"{name} fires only with model.cfg.{gate}; set it first")


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
