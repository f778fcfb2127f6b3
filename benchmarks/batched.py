"""Training models one at a time against training them as a batch, interleaved.

Both ways take the same steps of the same models (shape ``tiny``, each with a seed, data, gamma and
weight decay of its own) and take turns within one process, so that a noisy machine slows both; a
ratio is the median over the turns of time one at a time / time as a batch. On a CPU, on one thread:
8 models in a row against a batch of 8. With ``--device cuda``: batches of 1 to 256 models against
one model after another, of which as many are timed as ``--alone`` says.

    python benchmarks/batched.py --json
    python benchmarks/batched.py --device cuda --json
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from anchor_interp._util.environment import resolve_device
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import RUNS
from anchor_interp.sweeps.model_stack import Member, Stack
from measuring import in_turns, machine, ratio

AIMS = {"cpu": (8, 1.0), "cuda": (256, 10.0)}
"""Models in a batch, and how many times faster than one at a time they are meant to be."""


def members(n: int, device: torch.device, **changes: Any) -> tuple[list[Member], list[Any]]:
    """Models that differ in all that may differ, and their objectives."""
    found, objectives = [], []
    for index in range(n):
        config = differing(index, **changes)
        objective = make_objective(config, device)
        found.append(Member(config, TrainState.fresh(config, device), objective.training))
        objectives.append(objective)
    return found, objectives


def differing(index: int, **changes: Any) -> RunConfig:
    """The tiny run with a seed, gamma and weight decay of its own."""
    gamma, weight_decay = 0.3 + 0.1 * (index % 7), 0.1 * (index % 4)
    return override(RUNS["tiny"], seed=index % 3, gamma=gamma, weight_decay=weight_decay, **changes)


def measure(
    n: int,
    n_alone: int,
    n_steps: int,
    turns: int,
    device: torch.device,
    **changes: Any,
) -> dict[str, Any]:
    """Time a step of each of n models, both ways; all times in seconds."""
    batch, _ = members(n, device, **changes)
    alone, objectives = members(n_alone, device, **changes)
    stack = Stack(batch)

    def as_a_batch() -> None:
        stack.advance(n_steps)

    def in_a_row() -> None:
        for member, objective in zip(alone, objectives, strict=True):
            for _ in range(n_steps):
                train_step(member.state, objective)

    ways = {"batch": done(as_a_batch, device), "alone": done(in_a_row, device)}
    in_turns(ways, 1)  # warms up
    times = in_turns(ways, turns)
    alone_too = [n / n_alone * value for value in times["alone"]]
    step = statistics.median(times["batch"]) / n_steps
    return {
        "models": n,
        "ratio": ratio(alone_too, times["batch"]),
        "step_of_all_ms": 1e3 * step,
        "step_of_all_alone_ms": 1e3 * statistics.median(alone_too) / n_steps,
        "sequences_per_second": n * batch[0].config.train.batch_size / step,
    }


def done(act: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """A call that ends when the device has done what was asked of it."""

    def acted() -> None:
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return acted


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", choices=AIMS, default="cpu")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--models", type=int, nargs="+", help="sizes of the batch")
    parser.add_argument("--alone", type=int, default=8, help="models timed one at a time, at most")
    parser.add_argument("--turns", type=int, default=7, help="interleaved turns per case")
    parser.add_argument("--steps", type=int, default=20, help="steps in a turn, at most 64")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = resolve_device(options.device)
    at, aim = AIMS[options.device]
    sizes = options.models or ([at] if device.type == "cpu" else [2**k for k in range(9)])
    rows = []
    for n in sizes:
        print(f"measuring {n} models ...", file=sys.stderr)
        found = measure(
            n,
            min(n, options.alone),
            options.steps,
            options.turns,
            device,
            precision=options.precision,
        )
        rows.append(
            found | ({"aim": aim, "met": found["ratio"]["median"] >= aim} if n == at else {})
        )
    settings = {"device": options.device, "precision": options.precision, "shape": "tiny"}
    if device.type == "cuda":
        settings["gpu"] = torch.cuda.get_device_name(device)
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), **settings, "cases": rows}, indent=1))
        return
    print("models   ratio  ms a step of all   alone ms   sequences/s")
    for row in rows:
        print(
            f"{row['models']:>6} {row['ratio']['median']:7.2f} {row['step_of_all_ms']:17.1f} "
            f"{row['step_of_all_alone_ms']:10.1f} {row['sequences_per_second']:13,.0f}"
        )


if __name__ == "__main__":
    main()
