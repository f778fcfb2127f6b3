"""Our training step against the plain loop on the same HookedTransformer, interleaved, one thread.

The plain loop is what a user of TransformerLens writes: ``model(tokens)``, cross-entropy on the
last position, AdamW, gradient clipping. Both loops take turns within one process, so that a noisy
machine slows both; each ratio is a median over the turns. The share of the core's matrix-product
rate counts only the products that our step executes, forward and backward, and divides the time
they would take alone, at the same shapes, by the time of the step:

* ``share_of_torch_mm``: against ``torch.mm``, PyTorch's ordinary product;
* ``share_of_fastest``: against the fastest product on this machine, which in float32 on a CPU with
  AVX-512 is oneDNN's (see :mod:`anchor_interp.linear`).

    python benchmarks/train_step.py --json
    python benchmarks/train_step.py --cases tiny paper-1head --turns 5
"""

import argparse
import functools
import json
import os
import platform
import statistics
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from anchor_interp import linear
from anchor_interp.config import RunConfig, override
from anchor_interp.environment import cpu_model
from anchor_interp.model import build_model
from anchor_interp.presets import MODELS, RUNS
from anchor_interp.training import AnchorObjective, TrainState, learning_rate, train_step


@dataclass(frozen=True)
class Case:
    """One row of the benchmark."""

    name: str
    config: RunConfig
    steps_per_turn: int
    aim: float
    share_aim: float


def case(
    name: str, shape: str, batch_size: int, precision: str, steps: int, aim: float, share: float = 0
) -> Case:
    """A named model shape at a batch size and precision."""
    train = {"batch_size": batch_size, "precision": precision}
    config = override(RUNS["tiny"], **vars(MODELS[shape]), **train)
    return Case(name, config, steps, aim, share)


CASES = {
    c.name: c
    for c in (
        case("tiny", "tiny", 256, "float32", 20, 2.2),
        case("paper-1head", "paper-1head", 512, "float32", 3, 2.0, 0.75),
        case("paper-1head-bf16", "paper-1head", 512, "bf16", 4, 4.5),
    )
}
"""Aims: what the step is meant to reach against the plain loop, and of the core's product rate."""


def measure(chosen: Case, turns: int) -> dict[str, Any]:
    """Time both loops in turns; all times in seconds per step."""
    config, cpu = chosen.config, torch.device("cpu")
    objective = AnchorObjective(config, cpu)
    ours = TrainState.fresh(config, cpu)
    plain = build_model(config.model, config.init, seed=config.seed)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=config.train.weight_decay)

    def plain_step(step: int) -> None:
        batch = objective.batch(step)
        optimizer.param_groups[0]["lr"] = learning_rate(config.train, step)
        loss = F.cross_entropy(plain(batch.tokens)[:, -1], batch.targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.train.clip or float("inf"))
        optimizer.step()

    shapes = executed_products(config)
    times: dict[str, list[float]] = {name: [] for name in ("ours", "plain", "mm", "fastest")}
    for turn in range(turns + 1):
        n = chosen.steps_per_turn
        found = {
            "ours": seconds(lambda _: train_step(ours, objective), n),
            "plain": seconds(plain_step, n),
            "mm": products_alone(shapes, config, torch.mm),
            "fastest": products_alone(shapes, config, fastest_product(config)),
        }
        if turn:  # the first turn warms up
            for name, value in found.items():
                times[name].append(value)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = [p / o for p, o in zip(times["plain"], times["ours"], strict=True)]
    flops = sum(2 * m * k * n * count for (m, k, n), count in shapes.items())
    return {
        "case": chosen.name,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "aim": chosen.aim,
        "share_aim": chosen.share_aim,
        "met": statistics.median(ratios) >= chosen.aim
        and median["fastest"] / median["ours"] >= chosen.share_aim,
        "step_ms": 1e3 * median["ours"],
        "plain_step_ms": 1e3 * median["plain"],
        "sequences_per_second": config.train.batch_size / median["ours"],
        "gflop_executed": flops / 1e9,
        "gflops": flops / median["ours"] / 1e9,
        "share_of_torch_mm": median["mm"] / median["ours"],
        "share_of_fastest": median["fastest"] / median["ours"],
    }


def seconds(step: Callable[[int], object], n: int) -> float:
    """Mean time of n calls."""
    began = time.perf_counter()
    for i in range(n):
        step(i)
    return (time.perf_counter() - began) / n


def executed_products(config: RunConfig) -> dict[tuple[int, int, int], int]:
    """(m, k, n) of every matrix product m x k @ k x n of our step, with its count.

    Left out, and so counted as overhead: attention scores and their sums over values, which are
    under 1 % of the operations.
    """
    shape, batch = config.model, config.train.batch_size
    heads = shape.n_heads * shape.d_head
    places = batch * config.task.length
    table = config.task.n_input_tokens * config.task.length
    n_tokens = config.task.n_input_tokens
    forward: list[tuple[int, int, int]] = []
    for layer in range(shape.n_layers):
        if layer == shape.n_layers - 1:
            forward += [(batch, shape.d_model, heads)] * 4  # q, its way through W_K, W_V, W_O
            forward += [(batch, shape.d_model, shape.d_mlp), (batch, shape.d_mlp, shape.d_model)]
            continue
        rows = table if layer == 0 and n_tokens < batch else places
        forward += [(rows, shape.d_model, 3 * heads), (places, heads, shape.d_model)]
        forward += [(places, shape.d_model, shape.d_mlp), (places, shape.d_mlp, shape.d_model)]
    forward.append((batch, shape.d_model, shape.d_vocab))
    executed: dict[tuple[int, int, int], int] = {}
    for m, k, n in forward:
        for product in ((m, k, n), (m, n, k), (k, m, n)):  # forward, input's and weight's gradient
            executed[product] = executed.get(product, 0) + 1
    return executed


def products_alone(
    shapes: dict[tuple[int, int, int], int],
    config: RunConfig,
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> float:
    """Time that the products of one step take by themselves, operands ready."""
    dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
    total = 0.0
    for (m, k, n), count in shapes.items():
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        once = functools.partial(product, a, b)
        once()
        total += count * min(timeit.repeat(once, number=1, repeat=3))
    return total


def fastest_product(config: RunConfig) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """OneDNN in float32 where the fast path takes it, else ``torch.mm``."""
    if config.train.precision == "float32" and linear.has_onednn_avx512():
        return lambda a, b: linear._product(a, b.mT, None, "none")
    return torch.mm


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "bf16": torch.cpu._is_avx512_bf16_supported(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Measure the chosen cases and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--turns", type=int, default=7, help="interleaved turns per case")
    parser.add_argument(
        "--without-onednn", action="store_true", help="use PyTorch's own float32 products"
    )
    options = parser.parse_args()
    if options.without_onednn:
        linear.has_onednn_avx512 = functools.cache(lambda: False)
    torch.set_num_threads(1)
    rows = []
    for name in options.cases:
        print(f"measuring {name} ...", file=sys.stderr)
        rows.append(measure(CASES[name], options.turns))
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "cases": rows}, indent=1))
        return
    print("case                ratio   aim       ms  plain ms  of mm  of best")
    for row in rows:
        print(
            f"{row['case']:<18} {row['ratio']:6.2f} {row['aim']:5.1f} {row['step_ms']:8.1f} "
            f"{row['plain_step_ms']:9.1f} {row['share_of_torch_mm']:6.2f} "
            f"{row['share_of_fastest']:8.2f}"
        )


if __name__ == "__main__":
    main()
