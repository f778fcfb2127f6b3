"""What a busy neighbour costs: every command alone and beside one process that never rests.

Threads of OpenMP that spin while they wait for each other lose most of their time when another
process takes a core. ``OMP_WAIT_POLICY=PASSIVE`` lets them sleep instead; the command line and
every worker set it. Beside a neighbour, a command should take at most 1.5 times as long as with one
thread::

    python benchmarks/busy.py --json
    python benchmarks/busy.py --source OLD/src --commands train evaluate    # another version

It also measures a training step on one thread and on all, by width.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import ROOT, Row, machine, number, table

AIM = 1.5
COMMANDS: dict[str, list[str]] = {
    "train": [
        "train", "--preset", "tiny", "--steps", "100", "--checkpoint-every", "100",
        "--eval-every", "100", "--out", "OUT",
    ],
    "evaluate": ["evaluate", "tiny/symmetric/1"],
    "analyze": ["analyze", "tiny/symmetric/1", "--out", "OUT"],
    "sweep": [
        "sweep", "tiny", "gamma=0.5,0.7", "steps=200", "checkpoint_every=200", "eval_every=200",
        "--seeds", "1", "--workers", "2", "--out", "OUT",
    ],
}  # fmt: skip
"""Commands by name; OUT stands for a fresh folder."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
WIDTHS = (64, 128, 192, 256, 400)
"""Widths of the `tiny` shape whose step is measured on one thread and on all."""
STEP = """
import sys, time, torch
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import preset
width, cpu = int(sys.argv[1]), torch.device("cpu")
config = preset("tiny", d_model=width, d_head=width // 2, d_mlp=2 * width, n_sequences=20_000)
state, objective = TrainState.fresh(config, cpu), make_objective(config, cpu)
every = torch.get_num_threads()
best = {1: 1e9, every: 1e9}
for _ in range(5):
    for threads in best:
        torch.set_num_threads(threads)
        train_step(state, objective)
        began = time.perf_counter()
        for _ in range(10):
            train_step(state, objective)
        best[threads] = min(best[threads], (time.perf_counter() - began) / 10)
print(best[1], best[every], every)
"""


def main() -> None:
    """Measure, or print the table of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the package measured")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(name, given.source.resolve(), given.turns) for name in given.commands]
    steps = [step_on_threads(width) for width in WIDTHS]
    about: Row = {"machine": machine(), "aim": AIM, "turns": given.turns}
    found = about | {"commands": rows, "steps": steps}
    print(json.dumps(found, indent=1) if given.json else "\n".join(tables(found).values()))


def measure(name: str, source: Path, turns: int) -> Row:
    """The fewest seconds of a command: calm, busy, and with one thread."""
    seconds: dict[str, list[float]] = {}
    for _ in range(turns):
        for way, extra, neighbours in (
            ("calm", {}, 0),
            ("calm_one_thread", ONE_THREAD, 0),
            ("busy", {}, 1),
            ("busy_one_thread", ONE_THREAD, 1),
        ):
            with neighbour() if neighbours else contextlib.nullcontext():
                seconds.setdefault(way, []).append(run(COMMANDS[name], source, extra))
            print(f"{name}, {way}: {seconds[way][-1]:.1f} s", file=sys.stderr, flush=True)
    best = {way: min(values) for way, values in seconds.items()}
    return {"command": name} | best | {"ratio": best["busy"] / best["busy_one_thread"]}


def run(command: list[str], source: Path, extra: dict[str, str]) -> float:
    """Seconds of one command in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    environment |= {"PYTHONPATH": str(source)} | extra
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(Path(folder) / "out") if word == "OUT" else word for word in command]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "anchor_interp", *arguments, "--quiet"],
            env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return time.perf_counter() - began


def step_on_threads(width: int) -> Row:
    """The fewest milliseconds of a training step on one thread and on all."""
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-c", STEP, str(width)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    one, every, threads = map(float, done.stdout.split())
    return {"d_model": width, "one_ms": 1e3 * one, "all_ms": 1e3 * every, "threads": int(threads)}


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """A process that keeps one core busy inside the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def tables(found: Row) -> dict[str, str]:
    """The measurements in Markdown: commands in seconds, steps in milliseconds."""
    ways = ("calm", "calm_one_thread", "busy", "busy_one_thread")
    head = ["command", "calm", "calm, one thread", "busy", "busy, one thread", "ratio when busy"]
    lines = [
        [f"`{row['command']}`", *(f"{number(row[way])} s" for way in ways), number(row["ratio"])]
        for row in found["commands"]
    ]
    steps = [
        [str(row["d_model"]), f"{number(row['one_ms'])} ms", f"{number(row['all_ms'])} ms",
         number(row["one_ms"] / row["all_ms"])]
        for row in found["steps"]
    ]  # fmt: skip
    threads = ["width", "one thread", "all threads", "gain"]
    return {"commands": table(head, lines), "threads": table(threads, steps)}


if __name__ == "__main__":
    main()
