"""Our training step against the plain loop on the same HookedTransformer, interleaved, one thread.

The plain loop is what a user of TransformerLens writes: ``model(tokens)``, cross-entropy on the
last position, AdamW, gradient clipping. Both loops take turns within one process, so that a noisy
machine slows both; each ratio is a median over the turns. The share of the core's matrix-product
rate counts only the products that our step executes, forward and backward, and divides the time
they would take alone, at the same shapes, by the time of the step:

* ``share_of_torch_mm``: against ``torch.mm``, PyTorch's ordinary product;
* ``share_of_fastest``: against the fastest product on this machine, which in float32 on a CPU with
  AVX-512 is oneDNN's (see :mod:`anchor_interp.models.fast_linear`).

``look_share`` is the time of one look at whether the fast path may be taken
(:func:`anchor_interp.models.forward.takes_fast_path`), over that of our step. Evaluations and
interventions look at every forward pass, a training once; the aim is below 0.01.

Given ``--released-code`` and a checkout of the papers' released code, our step is measured against
that code's own instead (see :mod:`released`): in float32 and in bfloat16, each against the same
released model in float32, which is the only precision it has.

    python benchmarks/train_step.py --json
    python benchmarks/train_step.py --cases tiny paper-1head --turns 5
    python benchmarks/train_step.py --released-code complexity_control --batches 512
    python benchmarks/train_step.py --table docs/evidence/train_step.json
"""

import argparse
import functools
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from anchor_interp.models import fast_linear
from anchor_interp.models.forward import takes_fast_path
from anchor_interp.models.shapes import MODELS
from anchor_interp.models.transformer import build_model
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import Objective, TrainState, train_step
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.schedule import learning_rate
from measuring import Row, answer, machine, number, of_range, ratio, seconds, table
from released import REPOSITORY, ReleasedCode, ReleasedStep, equivalent


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


def measure(chosen: Case, turns: int) -> Row:
    """Time both loops in turns; all times in seconds per step."""
    config, cpu = chosen.config, torch.device("cpu")
    objective = make_objective(config, cpu)
    state = TrainState.fresh(config, cpu)
    our_step = stepper(state, objective)
    plain = build_model(config.model, config.init, seed=config.seed)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=config.train.weight_decay)

    def plain_step(step: int) -> None:
        batch = objective.parts(step)[0]
        optimizer.param_groups[0]["lr"] = learning_rate(config.train, step)
        loss = F.cross_entropy(plain(batch.tokens)[:, -1], batch.targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.train.clip or float("inf"))
        optimizer.step()

    shapes = executed_products(config)
    times: dict[str, list[float]] = {
        name: [] for name in ("ours", "plain", "mm", "fastest", "look")
    }
    for turn in range(turns + 1):
        n = chosen.steps_per_turn
        found = {
            "ours": seconds(our_step, n),
            "plain": seconds(plain_step, n),
            "mm": products_alone(shapes, config, torch.mm),
            "fastest": products_alone(shapes, config, fastest_product(config)),
            "look": seconds(lambda _: takes_fast_path(state.model), 200),
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
        "look_share": ratio(times["look"], times["ours"]),
    }


_LEFT_OUT = ", without bf16 on a CPU that lacks its instructions"

RELEASED_AIMS = {"float32": 1.8, "bf16": 4.0}
"""What our step is meant to reach against the released code's, by our precision."""


def measure_released(
    code: ReleasedCode, batch_size: int, precisions: Sequence[str], turns: int
) -> list[Row]:
    """Time our step in each precision and the released one in turns: a row for each precision."""
    cpu, n = torch.device("cpu"), max(1, 1024 // batch_size)
    configs = {name: equivalent(batch_size, name) for name in precisions}
    released = ReleasedStep(code, equivalent(batch_size, "float32"))
    objective = make_objective(equivalent(batch_size, "float32"), cpu)
    batches = [objective.parts(step)[0] for step in range(n)]
    ours = {name: stepper(TrainState.fresh(c, cpu), objective) for name, c in configs.items()}
    times: dict[str, list[float]] = {name: [] for name in ("released", "loader", *ours)}
    for turn in range(turns + 1):
        found = {name: seconds(step, n) for name, step in ours.items()}
        found["released"] = seconds(lambda _: released.train(batches), 1) / n
        found["loader"] = seconds(lambda _: released.draw_batches(objective.training, n), 1) / n
        if turn:  # the first turn warms up
            for name, value in found.items():
                times[name].append(value)
    return [
        {
            "case": f"paper-1head shape, batch {batch_size}, {precision}",
            "batch": batch_size,
            "precision": precision,
            "released_precision": "float32",
            "parameters": released.parameters,
            "released_outputs": released.outputs,
            "ratio": ratio(times["released"], times[precision]),
            "aim": RELEASED_AIMS[precision],
            "met": ratio(times["released"], times[precision])["median"] >= RELEASED_AIMS[precision],
            "step_ms": 1e3 * statistics.median(times[precision]),
            "released_step_ms": 1e3 * statistics.median(times["released"]),
            "released_loader_ms": 1e3 * statistics.median(times["loader"]),
        }
        for precision in precisions
    ]


def stepper(state: TrainState, objective: Objective) -> Callable[[int], object]:
    """A training under way: each call takes its next step."""
    return lambda _: train_step(state, objective)


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
    timer: Callable[[], float] = time.perf_counter,
) -> float:
    """Time that the products of one step take by themselves, operands ready."""
    dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
    total = 0.0
    for (m, k, n), count in shapes.items():
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        once = functools.partial(product, a, b)
        once()
        total += count * min(timeit.repeat(once, timer=timer, number=1, repeat=3))
    return total


def fastest_product(config: RunConfig) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """OneDNN in float32 where the fast path takes it, else ``torch.mm``."""
    if config.train.precision == "float32" and not fast_linear.onednn_fault():
        return lambda a, b: fast_linear._product(a, b.mT, None, "none")
    return torch.mm


def tables(found: Row) -> dict[str, str]:
    """The JSON as one table, of the plain loop or of the released code."""
    if "released_code" in found:
        head = ["batch", "our precision", "ours", "released", "ratio", "aim", "its data loader"]
        lines = [
            [
                str(row["batch"]), row["precision"], f"{number(row['step_ms'], 3)} ms",
                f"{number(row['released_step_ms'], 3)} ms", of_range(row["ratio"]),
                str(row["aim"]), f"{number(row['released_loader_ms'])} ms",
            ]
            for row in found["cases"]
        ]  # fmt: skip
        return {"cases": table(head, lines)}
    ends = ("low", "high")
    head = ["case", "ours", "plain loop", "ratio", "of `torch.mm`", "of the fastest product"]
    lines = [
        [
            f"`{row['case']}`", f"{number(row['step_ms'], 3)} ms",
            f"{number(row['plain_step_ms'], 3)} ms",
            of_range({"median": row["ratio"]} | dict(zip(ends, row["ratio_range"], strict=True))),
            f"{row['share_of_torch_mm']:.2f}", f"{row['share_of_fastest']:.2f}",
        ]
        for row in found["cases"]
    ]  # fmt: skip
    return {"cases": table(head, lines)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen cases and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as a table")
    parser.add_argument("--cases", nargs="+", choices=CASES, help=f"all unless given{_LEFT_OUT}")
    parser.add_argument("--turns", type=int, default=7, help="interleaved turns per case")
    parser.add_argument(
        "--without-onednn", action="store_true", help="use PyTorch's own float32 products"
    )
    parser.add_argument(
        "--released-code",
        type=Path,
        metavar="PATH",
        help=f"a checkout of {REPOSITORY} to measure against instead of the plain loop",
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[512, 2048], help="with PATH")
    parser.add_argument(
        "--precisions", nargs="+", choices=RELEASED_AIMS, help=f"with PATH; both{_LEFT_OUT}"
    )
    options = parser.parse_args(arguments)
    if options.turns < 1 or min(options.batches) < 1:
        parser.error("--turns and --batches expect numbers from 1")
    answer(parser, options, measured, tables)


def worth_it(precisions: Mapping[str, str]) -> list[str]:
    """Names whose precision this CPU has instructions for; without, bf16 takes 10 times as long."""
    bf16 = machine()["bf16"]
    return [name for name, precision in precisions.items() if bf16 or precision != "bf16"]


def measured(options: argparse.Namespace) -> Row:
    """What the command line asks for, as one JSON object."""
    code = options.released_code and ReleasedCode.load(options.released_code)
    if options.without_onednn:
        fast_linear.onednn_fault = functools.cache(lambda: "left to PyTorch")
    torch.set_num_threads(1)
    found: Row = {"schema": 1, "machine": machine(), "cases": []}
    if not found["machine"]["bf16"]:
        found["left_out"] = "bf16, which this CPU has no instructions for, unless it is asked for"
    cases = options.cases or worth_it({name: c.config.train.precision for name, c in CASES.items()})
    precisions = options.precisions or worth_it({name: name for name in RELEASED_AIMS})
    for name in [] if code else cases:
        print(f"measuring {name} ...", file=sys.stderr)
        found["cases"].append(measure(CASES[name], options.turns))
    for batch_size in options.batches if code else []:
        print(f"measuring batches of {batch_size} ...", file=sys.stderr)
        found["cases"] += measure_released(code, batch_size, precisions, options.turns)
    if code:
        found["released_code"] = {
            "repository": REPOSITORY,
            "commit": code.commit,
            "step": "its forward, loss, clipping, AdamW and scheduler, batches ready made",
            "differs": "its keys and values come from inputs without LayerNorm; its AdamW is not "
            "fused; it forms the logits of all positions",
            "not_installed": list(code.stand_ins),
        }
    return found


if __name__ == "__main__":
    main()
