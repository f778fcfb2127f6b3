"""x @ W + b for the fast path: oneDNN in float32 on AMD's CPUs with AVX-512, PyTorch elsewhere.

PyTorch multiplies float32 matrices with MKL. On an AMD EPYC with AVX-512, oneDNN, which PyTorch
ships for convolutions and bfloat16, is 2.3 times as fast at the same full float32 precision
(relative error 2e-7); on an Intel Xeon MKL is faster, by up to three times for wide products. The
operator that reaches oneDNN has no derivative; this module supplies it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from anchor_interp._util.environment import cpu_model


def linear(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_in d_out"],
    bias: Float[Tensor, " d_out"] | None = None,
    *,
    relu: bool = False,
) -> Float[Tensor, "*batch d_out"]:
    """Compute x @ weight + bias over the last dimension, once differentiable with oneDNN."""
    rows = x.flatten(0, -2)
    takes_onednn = (
        rows.dtype == weight.dtype == torch.float32
        and rows.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()  # vmap has no rule for the operator
        and not onednn_fault()
    )
    if takes_onednn:
        apply: Callable[..., Tensor] = _OneDNNLinear.apply
        out = apply(rows, weight, bias, relu)
    else:
        out = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
        out = out.relu_() if relu else out  # a product's derivative does not need its output
    return out.view(*x.shape[:-1], weight.shape[1])


@functools.cache
def onednn_fault() -> str:
    """Why products are left to PyTorch; empty if oneDNN's agree with PyTorch's and are taken."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "the CPU or PyTorch's build has no AVX-512"
    if "Intel" in cpu_model():
        return "MKL is faster on Intel's processors"
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this PyTorch lacks oneDNN's operator"
    try:
        return "" if _agrees_with_pytorch() else "oneDNN's products differ from PyTorch's"
    except (RuntimeError, TypeError) as error:  # the operator is private and may change
        return f"oneDNN's operator fails: {str(error).splitlines()[0]}"


@torch.inference_mode(False)
@torch.enable_grad()
def _agrees_with_pytorch() -> bool:
    """Compare a product and its derivatives, computed both ways."""

    def some(*shape: int) -> Tensor:
        numbers = torch.arange(math.prod(shape), dtype=torch.float32, device="cpu")
        return numbers.sin().view(shape).requires_grad_()

    x, weight, bias = some(3, 5), some(5, 7), some(7)
    apply: Callable[..., Tensor] = _OneDNNLinear.apply
    both = apply(x, weight, bias, True), torch.addmm(bias, x, weight).relu()
    ours, expected = (
        (out, *torch.autograd.grad(out.square().sum(), [x, weight, bias])) for out in both
    )
    return all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(ours, expected, strict=True))


class _OneDNNLinear(torch.autograd.Function):
    """The operator with its derivative: three products of the same kind."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        out = _product(x, weight.mT, bias, "relu" if relu else "none")
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        if out is not None:
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            _product(grad, weight) if needs_x else None,
            _weight_gradient(x, grad) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
            None,
        )


def _weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """x.T @ grad; the operator copies its transposed first operand, so that is the smaller one."""
    swapped = x.shape[1] > grad.shape[1]
    return _product(grad.mT, x.mT).mT if swapped else _product(x.mT, grad.mT)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, after: str = "none") -> Tensor:
    """Compute x @ weight.T + bias; ``after`` is "none" or "relu"."""
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        weight = weight.contiguous()  # oneDNN's code for other strides is 100 times slower
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, after, [], "")
    return out
