"""Hooks that cannot fail silently: every intervention and every measurement goes through here.

TransformerLens accepts a hook that never fires, lets a hook return a tensor of another shape that
happens to broadcast, and returns cached activations that a later hook may still change.
:func:`hooked` and :func:`activations` prevent all three, under TransformerLens's names of hooks.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anchor_interp._util.errors import HookError
from anchor_interp._util.schema import shown, suggestion
from anchor_interp.models.inputs import Rows, model_rows
from anchor_interp.models.transformer import HookedTransformer, Inputs, has_hooks
from anchor_interp.models.transformer_lens import asked_once, is_bridge

Edit = Callable[[Tensor], Tensor]
"""Takes an activation and returns its replacement, of the same shape, dtype and device."""
_GATES = {
    "hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Hooks that every model has but that fire only with a setting of its config."""
_LOGITS = 1 << 26
"""Most logits of one forward pass, over sequences and positions."""


@contextlib.contextmanager
def hooked(model: HookedTransformer, edits: Mapping[str, Edit]) -> Iterator[None]:
    """Edit activations in every forward pass within the ``with`` block.

    Blocks nest; of two edits of one activation the outer one acts first. They are removed when the
    block ends, also after an exception.

    Raises:
        HookError: the model does not have a hook; an edit changed the shape, dtype or device; or,
            at the end of the block, a hook did not fire.
    """
    _check_hooks(model, edits)
    fired: set[str] = set()
    deaf = _deaf_to_patterns(model) if any(map(_is_pattern, edits)) else False

    def checking(name: str, edit: Edit) -> Callable[..., Tensor]:
        def hook(activation: Tensor, **_: Any) -> Tensor:  # TransformerLens names the hook point
            fired.add(name)
            edited = edit(activation)
            returned, expected = _kind(edited), _kind(activation)
            if returned != expected:
                raise HookError(f"the edit of {name} returned {returned}; expected {expected}")
            if deaf and _is_pattern(name) and (edited is not activation or edited.requires_grad):
                without = f"an edit of {name} has no effect in this TransformerBridge"
                raise HookError(f"{without}; edit hook_z, or take a HookedTransformer")
            return edited

        return hook

    hooks: list[Any] = [(name, checking(name, edit)) for name, edit in edits.items()]
    if is_bridge(model):
        hooks.sort(key=lambda each: each[0].endswith("hook_resid_mid"))  # after what it reads
        hooks = [pair for each in hooks for pair in _reaching_the_stream(*each)]
    with model.hooks(fwd_hooks=hooks):
        yield
    missed = [name for name in edits if name not in fired]
    if missed:
        raise HookError(f"the hook {missed[0]} did not fire; run the model within the block")


def _is_pattern(name: str) -> bool:
    return name.endswith("attn.hook_pattern")


def _reaching_the_stream(name: str, hook: Callable[..., Tensor]) -> list[tuple[str, Any]]:
    """The hooks of an edit in a TransformerBridge.

    Its ``hook_resid_mid`` is the input of the second LayerNorm alone: an edit there misses what
    goes on to ``hook_resid_post``. So ``hook_attn_out`` is replaced, also to have gradients.
    """
    block, _, last = name.rpartition(".")
    if last != "hook_resid_mid":
        return [(name, hook)]
    before: list[Tensor] = []

    def change(attn_out: Tensor, **_: Any) -> Tensor | None:
        edited = hook(middle := before[0] + attn_out)
        return None if edited is middle and not edited.requires_grad else edited - before[0]

    def keep(resid_pre: Tensor, **_: Any) -> None:
        before[:] = [resid_pre]

    return [(f"{block}.hook_resid_pre", keep), (f"{block}.hook_attn_out", change)]


@asked_once
@torch.no_grad()
def _deaf_to_patterns(bridge: Any) -> bool:
    """Whether edits of attention patterns miss what heads write: without a pattern z is 0."""
    wrote: list[Tensor] = []
    hooks: list[Any] = []
    for layer in range(bridge.cfg.n_layers):
        attn = f"blocks.{layer}.attn."
        hooks.append((f"{attn}hook_pattern", lambda pattern, **_: pattern * 0))
        hooks.append((f"{attn}hook_z", lambda z, **_: wrote.append(z.abs().amax())))
    with bridge.hooks(fwd_hooks=hooks):
        bridge(torch.zeros(1, 2, dtype=torch.int64, device=bridge.embed.W_E.device))
    return any(z > 0 for z in wrote)


def activations(
    model: HookedTransformer,
    tokens: Inputs | Rows,
    names: Sequence[str],
    *,
    batch: int | None = None,
) -> dict[str, Tensor]:
    """Copies of the activations at some hooks, by name, without gradients.

    Of a hook that fires more than once in a forward pass, as ``ln1`` does for queries, keys and
    values, it is the last one, as in ``run_with_cache``. Other hooks attached to the model act.
    ``batch`` is the number of sequences per forward pass; if None 4,096, or fewer if their logits
    at all positions would exceed 2^26 numbers.

    Raises:
        HookError: the model does not have a hook, or a hook does not fire.
        ConfigError: ``tokens`` are not sequences or token indices of the model.
    """
    rows, names = model_rows(model, tokens), list(names)
    if batch is None:
        batch = min(4096, max(1, _LOGITS // (rows.tokens.shape[1] * model.cfg.d_vocab_out)))
    recorded: dict[str, Tensor] = {}
    passes: list[dict[str, Tensor]] = []
    layers = [int(name.split(".")[1]) for name in names if name.startswith("blocks.")]
    to_the_end = not layers or len(layers) < len(names) or has_hooks(model)  # which must fire
    stop = None if to_the_end else max(layers) + 1
    with torch.no_grad(), hooked(model, recording(names, recorded)):
        for start in range(0, max(len(rows), 1), batch):
            rows[start : start + batch].through(model, stop_at_layer=stop)
            passes.append(recorded.copy())
    return {name: torch.cat([each[name] for each in passes]) for name in names}


def recording(names: Iterable[str], into: dict[str, Tensor]) -> dict[str, Edit]:
    """Edits that change nothing and keep a copy of each hook's last activation by name."""

    def record(name: str) -> Edit:
        def keep(activation: Tensor) -> Tensor:
            into[name] = activation.detach().clone()
            return activation

        return keep

    return {name: record(name) for name in names}


def _check_hooks(model: HookedTransformer, names: Iterable[str]) -> None:
    """Raise a HookError for a hook that the model lacks, that cannot fire or has two layers."""
    parts = () if is_bridge(model) else [part for block in model.blocks for part in block.modules()]
    twice = {part for part, n in Counter(parts).items() if n > 1}
    for name in names:
        if name not in model.hook_dict:
            close = suggestion(str(name), model.hook_dict)
            raise HookError(f"the model has no hook {shown(name)}{close}; see model.hook_dict")
        if model.hook_dict[name] in twice:
            raise HookError(f"layers share {name}; copy.deepcopy one, and call model.setup()")
        if model.cfg.attn_only and name.endswith((".hook_mlp_in", ".hook_mlp_out")):
            raise HookError(f"{name} never fires: the model has attention only, no MLPs")
        gate = _GATES.get(name.rpartition(".")[2])
        if gate is not None and not getattr(model.cfg, gate):
            raise HookError(f"{name} fires only with model.cfg.{gate}; set it first")
        if gate == "use_attn_in" and model.cfg.use_split_qkv_input:  # which takes its place
            without = "acts only without model.cfg.use_split_qkv_input"
            raise HookError(f"{name} {without}; unset it first")


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return shown(value)
    return f"{tuple(value.shape)} {value.dtype} on {value.device}"
