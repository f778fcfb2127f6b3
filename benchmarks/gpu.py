"""Training on a GPU: one small run, the papers' width, batches of models, the paper's whole run.

* ``tiny``: steps of a recorded CUDA graph against the same steps without, in turns; and a whole
  run with its metrics, evaluations and checkpoints.
* ``wide``: updates of ``paper-1head`` (2 layers, width 400, batch 2,048) in each precision. The
  share of the card's rate divides the operations of the products that a step executes (see
  :mod:`train_step`) by its time, and that by the rate of a large product in the same precision. The
  loss curves start from the same weights and see the same batches.
* ``batches``: updates of several models at once, as one pass or one after another, in one graph.
* ``--paper FOLDER``: besides, the paper's 92,285 updates at gamma 0.8, stopped once in the middle
  and resumed. The same command goes on with what is there.

    python benchmarks/gpu.py --paper runs/paper --json
    python benchmarks/gpu.py --profile
    python benchmarks/gpu.py --device cpu --steps 1 --turns 1 --json
"""

import argparse
import contextlib
import functools
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import InterruptedRunError
from anchor_interp.runs import cuda_graph
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import draw_training, make_objective
from anchor_interp.runs.presets import RUNS, preset
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.train import train
from anchor_interp.sweeps.model_stack import Member, Stack
from batched import done
from measuring import Row, in_turns, machine, number, of_range, ratio, spread, table
from train_step import executed_products

PRECISIONS = ("bf16", "tf32", "float32")
PAPER = preset("paper-1head", gamma=0.8, precision="bf16", seed=1_100_000)
WIDE = override(PAPER, n_sequences=100_000, steps=1_000)
_SIDE = 8192  # of the square matrices by which the card's rate is measured


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Every step in the block is launched kernel by kernel."""
    before, cuda_graph.WARM_UP = cuda_graph.WARM_UP, sys.maxsize
    try:
        yield
    finally:
        cuda_graph.WARM_UP = before


@functools.cache
def training(task: Any, n: int, seed: int) -> Any:
    """A training set, drawn once."""
    return draw_training(override(RUNS["tiny"], task=task, n_sequences=n, seed=seed))


def drawn(config: RunConfig) -> Any:
    """The training set of a run."""
    return training(config.task, config.train.n_sequences, config.seed)


def stepping(config: RunConfig, device: torch.device, n: int) -> Callable[[], None]:
    """A fresh training: each call does its next n steps and waits for the device."""
    state, objective = (
        TrainState.fresh(config, device),
        make_objective(config, device, drawn(config)),
    )

    def steps() -> None:
        for _ in range(n):
            train_step(state, objective)

    return done(steps, device)


def milliseconds(times: list[float], n: int) -> Row:
    """Median and range of a step's time."""
    return spread([1e3 * value / n for value in times])


def tiny(device: torch.device, n: int, turns: int) -> Row:
    """One small run: recorded, unrecorded, and whole."""
    config = RUNS["tiny"]
    recorded, plain = stepping(config, device, n), stepping(config, device, n)
    times: dict[str, list[float]] = {"recorded": [], "plain": []}
    for turn in range(turns + 1):
        found = in_turns({"recorded": recorded}, 1)
        with unrecorded():
            found |= in_turns({"plain": plain}, 1)
        for name, value in found.items():
            times[name] += value if turn else []  # the first turn warms up
    whole = config if device.type == "cuda" else override(config, steps=n)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        train(whole, Path(folder) / "run", device=str(device), quiet=True)
        took = time.perf_counter() - began
    return {
        "recorded_ms": milliseconds(times["recorded"], n),
        "plain_ms": milliseconds(times["plain"], n),
        "ratio": ratio(times["plain"], times["recorded"]),
        "whole_run_seconds": took,
        "whole_run_ms_a_step": 1e3 * took / whole.train.steps,
    }


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Float32 products in TF32 in the block, if that is the precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rate(precision: str, device: torch.device, side: int) -> float:
    """Operations a second of a product of large square matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    n = 10 if device.type == "cuda" else 1
    with products_in(precision):
        product = done(lambda: [a @ b for _ in range(n)], device)
        times = in_turns({"product": product}, 4)["product"][1:]
    return 2 * side**3 * n / statistics.median(times)


def wide(device: torch.device, n: int, turns: int, side: int) -> list[Row]:
    """The papers' width at their batch, in each precision."""
    rows = []
    for precision in PRECISIONS:
        print(f"gpu: wide, {precision}", file=sys.stderr, flush=True)
        config = override(WIDE, precision=precision)
        step = stepping(config, device, n)
        times = in_turns({"ours": step}, turns + 1)["ours"][1:]
        flop = sum(2 * m * k * n * count for (m, k, n), count in executed_products(config).items())
        reached, card = flop * n / statistics.median(times), rate(precision, device, side)
        rows.append(
            {
                "precision": precision,
                "ms": milliseconds(times, n),
                "gflop_executed": flop / 1e9,
                "tflops": reached / 1e12,
                "card_tflops": card / 1e12,
                "share_of_card": reached / card,
                "losses": curve(config, device, 1_000 if device.type == "cuda" else 2),
            }
        )
    return rows


def curve(config: RunConfig, device: torch.device, steps: int) -> list[float]:
    """The loss at every 50th step from the first on."""
    state, objective = (
        TrainState.fresh(config, device),
        make_objective(config, device, drawn(config)),
    )
    losses = [train_step(state, objective).loss for _ in range(steps)]
    return [round(loss.item(), 5) for loss in losses[::50]]


def stack(config: RunConfig, n_models: int, device: torch.device, *, together: bool) -> Stack:
    """Models that differ in seed, gamma and weight decay."""
    found = []
    for index in range(n_models):
        own = {"gamma": 0.3 + 0.1 * (index % 7), "weight_decay": 0.1 * (index % 4)}
        one = override(config, seed=index % 3, **own)
        found.append(Member(one, TrainState.fresh(one, device), drawn(one)))
    return Stack(found, together=together)


def batches(device: torch.device, n: int, turns: int) -> list[Row]:
    """Updates of several models at once."""
    half = override(WIDE, batch_size=512)
    cases = [
        ("tiny", RUNS["tiny"], 64, "float32", True),
        ("tiny", RUNS["tiny"], 64, "float32", False),
    ]
    for precision in ("tf32", "bf16"):
        cases += [("wide", half, size, precision, True) for size in (1, 6, 12)]
        cases.append(("wide", half, 6, precision, False))
    rows = []
    for shape, config, size, precision, together in cases:
        print(f"gpu: {size} {shape}, {precision}, {together=}", file=sys.stderr, flush=True)
        models = stack(override(config, precision=precision), size, device, together=together)
        ways = {"ours": done(functools.partial(models.advance, n), device)}
        times = in_turns(ways, turns + 1)["ours"][1:]
        of_all = milliseconds(times, n)
        rows.append(
            {
                "shape": shape,
                "models": size,
                "batch": config.train.batch_size,
                "precision": precision,
                "together": together,
                "ms_of_all": of_all,
                "ms_a_run": of_all["median"] / size,
            }
        )
    return rows


def profile(device: torch.device) -> None:
    """Print the kernels of unrecorded steps by their time."""
    half = override(WIDE, batch_size=512)
    with unrecorded():
        for name, config, n_models in (
            ("wide, bf16", override(WIDE, precision="bf16"), 0),
            ("wide, TF32", override(WIDE, precision="tf32"), 0),
            ("6 wide, TF32", override(half, precision="tf32"), 6),
            ("6 wide, bf16", override(half, precision="bf16"), 6),
        ):
            if n_models:
                models = stack(config, n_models, device, together=True)
                steps = done(functools.partial(models.advance, 3), device)
            else:
                steps = stepping(config, device, 3)
            steps()
            kinds = torch.profiler.ProfilerActivity
            with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiled:
                steps()
            kernels: dict[str, tuple[float, int]] = {}
            for event in profiled.events():
                if event.device_type.name == "CUDA":
                    total, count = kernels.get(event.name, (0.0, 0))
                    kernels[event.name] = total + event.device_time_total, count + 1
            print(f"\n{name}: microseconds and calls in 3 steps, kernels and operations")
            ranked = sorted(kernels.items(), key=lambda item: -item[1][0])
            for kernel, (total, count) in ranked[:22]:
                print(f"{total:9.0f} {count:5d}  {kernel[:150]}")
            print(profiled.key_averages().table("self_device_time_total", row_limit=18))


def paper(folder: Path, device: torch.device, seconds: float) -> Row:
    """The paper's whole run, stopped in the middle; ends unfinished when the time is over."""
    sessions: list[Row] = []
    ends = time.monotonic() + seconds
    checkpoints, ended = folder / "checkpoints", threading.Event()

    def stop_when_due(middle: float) -> None:
        while not ended.wait(0.2):
            newest = max(RunFolder(folder).steps(), default=0) if checkpoints.exists() else 0
            if newest >= middle or time.monotonic() > ends:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    while not sessions or (sessions[-1]["steps"] < PAPER.train.steps and time.monotonic() < ends):
        began, before = time.perf_counter(), max(RunFolder(folder).steps(), default=0)
        middle = PAPER.train.steps / 2 if before < PAPER.train.steps / 2 else math.inf
        ended.clear()
        watching = threading.Thread(target=stop_when_due, args=(middle,), daemon=True)
        watching.start()
        with contextlib.suppress(InterruptedRunError):
            train(PAPER, folder, device=str(device))
        ended.set()
        watching.join()
        steps = max(RunFolder(folder).steps())
        took = time.perf_counter() - began
        sessions.append({"from_step": before, "steps": steps, "seconds": took})
        print(f"gpu: {sessions[-1]}", file=sys.stderr, flush=True)
    found: Row = {"sessions": sessions, "seconds": sum(s["seconds"] for s in sessions)}
    result = RunFolder(folder).result()
    return found | {"phase": result and result.get("phase"), "done": result is not None}


def tables(found: Row) -> dict[str, str]:
    """The JSON as two tables."""
    small, whole = found["tiny"], found.get("paper", {})
    lines = [
        ["`tiny`, recorded", f"{of_range(small['recorded_ms'])} ms", ""],
        ["`tiny`, launched kernel by kernel", f"{of_range(small['plain_ms'])} ms", ""],
    ]
    for row in found["wide"]:
        name = f"`paper-1head`, batch 2,048, {row['precision']}"
        lines.append([name, f"{of_range(row['ms'])} ms", number(row["share_of_card"])])
    if whole.get("done"):
        name = f"its {whole['sessions'][-1]['steps']:,} updates, evaluated, resumed once, bf16"
        lines.append([name, f"**{number(whole['seconds'] / 60)} min**", ""])
    of_runs = [
        [
            f"`{'tiny' if row['shape'] == 'tiny' else 'paper-1head'}`, batch {row['batch']}",
            row["precision"], str(row["models"]), f"{of_range(row['ms_of_all'])} ms",
            f"{number(row['ms_a_run'])} ms",
        ]
        for row in found["batches"] if row["together"]
    ]  # fmt: skip
    return {
        "steps": table(["one run", "an update", "of the card's rate"], lines),
        "batches": table(["models", "precision", "how many", "a step of all", "a run"], of_runs),
    }


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50, help="steps in a turn, at most 64")
    parser.add_argument("--turns", type=int, default=5, help="turns of a case")
    parser.add_argument(
        "--side", type=int, default=_SIDE, help="of the matrices for the card's rate"
    )
    parser.add_argument("--paper", type=Path, metavar="FOLDER", help="the whole run as well")
    parser.add_argument("--seconds", type=float, default=math.inf, help="at most, with --paper")
    parser.add_argument("--profile", action="store_true", help="kernels by their time instead")
    options = parser.parse_args()
    device, n, turns = resolve_device(options.device), options.steps, options.turns
    if options.profile:
        profile(device)
        return
    found: Row = {"schema": 1, "machine": machine(), "device": str(device)}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    found["tiny"] = tiny(device, n, turns)
    found["wide"] = wide(device, n, turns, options.side)
    found["batches"] = batches(device, n, turns)
    if options.paper:
        found["paper"] = paper(options.paper, device, options.seconds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
