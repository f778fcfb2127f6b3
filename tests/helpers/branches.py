"""Whether what a hook holds has the gradient of its own branch."""

from typing import Any

import torch
from torch import Tensor

STEP = 1e-6


def assert_own_branches(model: Any, tokens: Tensor) -> set[str]:
    """The gradient of every hook's tensors against finite differences; the hooks that fire.

    A hook that adds to what it holds changes all that reads it through this hook, and nothing else.
    So does a module's backward hook see it.
    """
    generator = torch.Generator().manual_seed(2)
    kept: dict[str, list[Tensor]] = {name: [] for name in model.hook_dict}
    passed: dict[str, list[Tensor]] = {name: [] for name in model.hook_dict}
    weights = torch.randn(model.cfg.d_vocab_out, generator=generator, dtype=torch.float64)

    def measure(hooks: Any, backward: Any = ()) -> Tensor:
        with model.hooks(fwd_hooks=list(hooks), bwd_hooks=list(backward)):
            total: Tensor = (model(tokens)[:, -1] * weights).square().sum()
            if backward:
                torch.autograd.backward(total)
        return total

    def keep(name: str) -> Any:
        return lambda value, **_: kept[name].append(value)

    total = measure((name, keep(name)) for name in kept)
    fired = [name for name, values in kept.items() if values]
    flat = [value for name in fired for value in kept[name]]
    gradients = torch.autograd.grad(total, flat, allow_unused=True)
    at = {id(value): gradient for value, gradient in zip(flat, gradients, strict=True)}

    def see(name: str) -> Any:
        return lambda gradient, **_: passed[name].append(gradient.clone())

    def move(directions: list[Tensor], step: float) -> Any:
        left = list(directions)

        def add(value: Tensor, **_: Any) -> Tensor:
            return value + step * left.pop(0)

        return add

    measure((), [(name, see(name)) for name in fired])
    for name in fired:
        directions = [
            torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in kept[name]
        ]

        ends = [measure([(name, move(directions, step))]).item() for step in (STEP, -STEP)]
        slope = (ends[0] - ends[1]) / (2 * STEP)
        pairs = zip(kept[name], directions, strict=True)
        own = sum(float((at[id(v)] * d).sum()) for v, d in pairs if at[id(v)] is not None)
        torch.testing.assert_close(own, slope, rtol=1e-5, atol=1e-5, msg=f"{name}: {own}, {slope}")
        if passed[name]:
            through = sum(
                float((g * d).sum()) for g, d in zip(passed[name][::-1], directions, strict=True)
            )
            torch.testing.assert_close(own, through, msg=f"of {name}")
    return set(fired)
