"""What a training step, memory and start-up cost, one thread.

* *steps*: one factor at a time around ``tiny``: width (heads and MLP with it), layers, batch size
  and sequence length. A case and ``tiny`` take turns within one process; its cost is the ratio of
  the two. The share of the core's matrix-product rate is that of ``benchmarks/train_step.py``.
* *memory*: the largest resident memory of fresh processes that train or expand a sweep.
* *start-up*: fresh processes in turns, from their start to their end.

A case that is measured is kept under ``.cache/scaling`` until all are there.

    python benchmarks/scaling.py --json
    python benchmarks/scaling.py --cases width-256 memory-tiny start-up --turns 2
    python benchmarks/scaling.py --table docs/evidence/scaling.json
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import TrainState
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import RUNS
from measuring import (
    Kept,
    Row,
    answer,
    machine,
    number,
    of_range,
    process,
    ratio,
    seconds,
    spread,
    table,
)
from train_step import executed_products, fastest_product, products_alone, stepper

TINY = RUNS["tiny"]
SECONDS_PER_TURN = 0.5


@dataclass(frozen=True)
class Factor:
    """What of ``tiny`` is varied."""

    name: str
    values: tuple[int, ...]
    change: Callable[[int], dict[str, Any]]
    """The fields that a value changes."""

    def config(self, value: int) -> RunConfig:
        """``tiny`` with the value."""
        return override(TINY, **self.change(value))


FACTORS = {
    factor.name: factor
    for factor in (
        Factor(
            "width",
            (64, 128, 256, 512),
            lambda n: {"d_model": n, "d_head": n // 2, "d_mlp": 2 * n},
        ),
        Factor("layers", (1, 2, 4, 8), lambda n: {"n_layers": n}),
        Factor("batch", (64, 256, 1024, 4096), lambda n: {"batch_size": n}),
        Factor("length", (9, 17, 33, 65), lambda n: {"length": n, "n_ctx": max(20, n)}),
    )
}


def step_cost(factor: Factor, value: int, turns: int) -> Row:
    """Time one configuration's step and ``tiny``'s in turns."""
    config, cpu = factor.config(value), torch.device("cpu")
    steps = {
        name: stepper(TrainState.fresh(c, cpu), make_objective(c, cpu))
        for name, c in (("case", config), ("tiny", TINY))
    }
    # the first call warms up, the second tells how many make a turn
    calls = {
        name: max(1, round(SECONDS_PER_TURN / [seconds(step, 1) for _ in range(2)][-1]))
        for name, step in steps.items()
    }
    shapes = executed_products(config)
    times: dict[str, list[float]] = {name: [] for name in (*steps, "mm", "fastest")}
    for _ in range(turns):
        for name, step in steps.items():
            times[name].append(seconds(step, calls[name]))
        times["mm"].append(products_alone(shapes, config, torch.mm))
        times["fastest"].append(products_alone(shapes, config, fastest_product(config)))
    median = {name: statistics.median(values) for name, values in times.items()}
    flops = sum(2 * m * k * n * count for (m, k, n), count in shapes.items())
    return {
        "part": "steps",
        "factor": factor.name,
        "value": value,
        "parameters": config.model.n_parameters,
        "step_ms": 1e3 * median["case"],
        "to_tiny": ratio(times["case"], times["tiny"]),
        "sequences_per_second": config.train.batch_size / median["case"],
        "gflop_executed": flops / 1e9,
        "gflops": flops / median["case"] / 1e9,
        "share_of_torch_mm": median["mm"] / median["case"],
        "share_of_fastest": median["fastest"] / median["case"],
    }


TRAIN = """
import sys
from anchor_interp.runs.presets import preset
from anchor_interp.runs.train import train
name, steps, out = sys.argv[1:]
train(preset(name, steps=int(steps), warmup=0), out, device="cpu", threads=1, quiet=True)
"""
EXPAND = """
from anchor_interp.sweeps.spec import parse_sweep
axes = {"gamma": [n / 1000 for n in range(100)], "weight_decay": [0.01, 0.03, 0.1, 0.3, 1.0]}
assert len(parse_sweep({"preset": "tiny", "axes": axes, "seeds": 20}).configs()) == 10_000
"""
MEMORY = {
    "nothing but torch": ("-c", "import torch"),
    "training tiny": ("-c", TRAIN, "tiny", "20", "OUT"),
    "training paper-1head": ("-c", TRAIN, "paper-1head", "2", "OUT"),
    "expanding a sweep of 10,000": ("-c", EXPAND),
}
"""Programs by what they do; OUT is a folder that is not there yet. The trainings include the
judging of the initial and the last model."""

START_UP = {
    "python": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import anchor_interp": ("-c", "import anchor_interp"),
    "import anchor_interp.runs.run": ("-c", "import anchor_interp.runs.run"),
    "anchor-interp --help": ("-m", "anchor_interp", "--help"),
    "anchor-interp train --steps 1": (
        "-m", "anchor_interp", "train", "--steps", "1", "--warmup", "0", "--out", "OUT",
    ),
}  # fmt: skip
"""Programs whose whole time counts."""


def memory(turns: int) -> Row:
    """The peak of each program, the largest of the turns; they vary little."""
    found = {name: [started(program) for _ in range(turns)] for name, program in MEMORY.items()}
    return {
        "part": "memory",
        "peak_bytes": {name: max(e.peak_bytes for e in ends) for name, ends in found.items()},
    }


def start_up(turns: int) -> Row:
    """The time of each program, in turns."""
    times: dict[str, list[float]] = {name: [] for name in START_UP}
    for turn in range(turns + 1):
        for name, program in START_UP.items():
            ended = started(program)
            if turn:  # the first turn brings the files into memory
                times[name].append(ended.seconds)
    return {
        "part": "start-up",
        "seconds": {name: spread(values) for name, values in times.items()},
    }


def started(program: Iterable[str]) -> Any:
    """Run a program, with a folder of its own where it asks for one."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out")
        return process(*(out if word == "OUT" else word for word in program))


CASES: dict[str, Callable[[int], Row]] = {
    f"{factor.name}-{value}": partial(step_cost, factor, value)
    for factor in FACTORS.values()
    for value in factor.values
} | {"memory": memory, "start-up": start_up}
"""Every case by name, given the number of turns."""


def tables(found: Row) -> dict[str, str]:
    """The JSON as three tables: steps, memory and start-up."""
    steps = [
        [
            f"{row['factor']} {row['value']}", f"{number(row['step_ms'])} ms",
            of_range(row["to_tiny"]), f"{number(row['sequences_per_second'])}",
            f"{row['share_of_torch_mm']:.2f}", f"{row['share_of_fastest']:.2f}",
        ]
        for row in found["cases"] if row["part"] == "steps"
    ]  # fmt: skip
    head = ["`tiny` with", "step", "to `tiny`", "sequences per second"]
    head += ["of `torch.mm`", "of the fastest product"]
    peaks = [
        [name, f"{number(peak / 1e6, 3)} MB"]
        for row in found["cases"]
        if row["part"] == "memory"
        for name, peak in row["peak_bytes"].items()
    ]
    starts = [
        [f"`{name}`", f"{of_range(took)} s"]
        for row in found["cases"]
        if row["part"] == "start-up"
        for name, took in row["seconds"].items()
    ]
    return {
        "steps": table(head, steps),
        "memory": table(["process", "largest resident memory"], peaks),
        "start-up": table(["process", "from start to end"], starts),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen cases and print tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as tables")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--turns", type=int, default=5, help="interleaved turns per case")
    options = parser.parse_args(arguments)
    if options.turns < 1:
        parser.error("--turns expects a number from 1")
    answer(parser, options, measured, tables)


def measured(options: argparse.Namespace) -> Row:
    """What the command line asks for, as one JSON object."""
    torch.set_num_threads(1)
    kept = Kept("scaling", {"turns": options.turns})
    rows = [kept.row(name, partial(CASES[name], options.turns)) for name in options.cases]
    kept.clear()
    return {"schema": 1, "machine": machine(), "cases": rows}


if __name__ == "__main__":
    main()
