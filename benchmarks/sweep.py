"""How fast sweeps are: local workers, a batch of models, and the commands on 10,000 runs.

* *throughput*: the same short ``tiny`` runs by one worker, by two, and by one that trains them as a
  batch of models. Each way is the whole command in a folder of its own, start-up included; the ways
  take turns, and a ratio is a median over the turns.
* *commands*: what a sweep of 10,000 runs takes to be expanded, to be told of (``status``) and to
  be put into a table, each in a fresh process, before any run and after all of them. The finished
  runs are copies of one: only their folders matter here. ``--dry-run`` is timed too and not judged:
  it loads PyTorch and tries some steps.

What is measured is kept under ``.cache/sweep``, turn by turn, until all of it is there.

    python benchmarks/sweep.py --json
    python benchmarks/sweep.py --parts throughput --runs 4 --steps 50 --turns 1
    python benchmarks/sweep.py --table docs/evidence/sweep.json
"""

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import yaml

from anchor_interp._util.files import read_json
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.train import train
from anchor_interp.sweeps.folder import SweepFolder
from anchor_interp.sweeps.spec import read_sweep
from measuring import Kept, Row, answer, machine, number, of_range, process, ratio, spread, table

ANCHOR_INTERP = ("-m", "anchor_interp")
ONE = "1 worker"
WAYS = {
    ONE: ("--workers", "1", "--batch", "1"),
    "2 workers": ("--workers", "2", "--batch", "1"),
    "1 worker, one batch": ("--workers", "1", "--batch"),
}
"""How the same runs are trained; the last gets their number."""
AIMS = {"2 workers": 1.8, "1 worker, one batch": 1.0}
"""What a way is meant to reach against one worker."""
EXPAND = """
import sys
from anchor_interp.sweeps.spec import read_sweep
read_sweep(sys.argv[1]).configs()
"""
MANY = 10_000
MOST_SECONDS = 3.0
MOST_BYTES = 500_000_000
"""What a command on 10,000 runs may take."""


def throughput_turn(ways: Sequence[str], runs: int, steps: int) -> Row:
    """Seconds of every way for the same runs."""
    return {name: swept(WAYS[name], runs, steps) for name in ways}


def swept(flags: Sequence[str], runs: int, steps: int) -> float:
    """Seconds of a sweep, from the start of the command to its end.

    Raises:
        RuntimeError: a run of it was not done.
    """
    gammas = [round(0.3 + 0.05 * n, 2) for n in range(runs)]
    grid = {"preset": "tiny", "set": {"steps": steps}, "axes": {"gamma": gammas}}
    if flags[-1] == "--batch":
        flags = [*flags, str(runs)]
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder) / "spec.yaml", Path(folder) / "out"
        spec.write_text(yaml.safe_dump(grid), encoding="utf-8")
        ended = process(
            *ANCHOR_INTERP, "sweep", str(spec), "--out", str(out), "--engine", "local",
            "--device", "cpu", *flags,
        )  # fmt: skip
        done = SweepFolder(out).states(read_sweep(spec).configs())
    if set(done.values()) != {"done"}:
        raise RuntimeError(f"not every run is done: {sorted(set(done.values()))}")
    return ended.seconds


def throughput(kept: Kept, ways: Sequence[str], runs: int, steps: int, turns: int) -> Row:
    """All turns, and every way against one worker."""
    found = [
        kept.row(f"throughput-{turn}", partial(throughput_turn, ways, runs, steps))
        for turn in range(turns)
    ]
    times = {name: [turn[name] for turn in found] for name in ways}
    one, *others = ways
    gains = {name: ratio(times[one], times[name]) for name in others}
    return {
        "part": "throughput",
        "runs": runs,
        "steps": steps,
        "seconds": {name: spread(values) for name, values in times.items()},
        "to_one_worker": gains,
        "aims": {name: AIMS[name] for name in others},
        "met": {name: gains[name]["median"] >= AIMS[name] for name in others},
    }


def commands(many: int, turns: int) -> Row:
    """Time and memory of the commands on many runs."""
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder) / "spec.yaml", Path(folder) / "out"
        spec.write_text(yaml.safe_dump(grid_of(many)), encoding="utf-8")
        sweep = SweepFolder(out)
        sweep.extend(read_sweep(spec))
        told = {
            "status": (*ANCHOR_INTERP, "status", str(out)),
            "table": (*ANCHOR_INTERP, "table", str(out), "--csv"),
        }
        dry = (*ANCHOR_INTERP, "sweep", str(spec), "--out", str(out), "--dry-run")
        rows = {
            "expansion": taken(("-c", EXPAND, str(spec)), sweep, turns),
            "dry run": taken(dry, sweep, turns) | {"met": None},
        }
        for name, command in told.items():
            rows[f"{name}, no run begun"] = taken(command, sweep, turns)
        finish(sweep)
        for name, command in told.items():
            rows[f"{name}, all runs done"] = taken(command, sweep, turns)
        rows["table, all runs done, again"] = taken(told["table"], sweep, turns, again=True)
    return {
        "part": "commands",
        "runs": many,
        "most_seconds": MOST_SECONDS,
        "most_bytes": MOST_BYTES,
        "commands": rows,
    }


def grid_of(many: int) -> Row:
    """A sweep of so many ``tiny`` runs: rates by decays by seeds."""
    seeds = next(n for n in (20, 10, 5, 2, 1) if many % (5 * n) == 0)
    axes = {
        "gamma": [n / 10_000 for n in range(many // (5 * seeds))],
        "weight_decay": [0.01, 0.03, 0.1, 0.3, 1.0],
    }
    return {"preset": "tiny", "axes": axes, "seeds": seeds}


def taken(command: Sequence[str], sweep: SweepFolder, turns: int, *, again: bool = False) -> Row:
    """Seconds and peak memory of a command, the table made anew each time unless ``again``."""
    ends = []
    for _ in range(turns + 1):
        if not again:
            (sweep.path / "table.parquet").unlink(missing_ok=True)
        ends.append(process(*command))
    ends = ends[1:]  # the first turn brings the files into memory
    found = spread([ended.seconds for ended in ends])
    peak = max(ended.peak_bytes for ended in ends)
    met = found["median"] < MOST_SECONDS and peak < MOST_BYTES
    cpu = statistics.median(ended.cpu_seconds for ended in ends)
    return {"seconds": found, "cpu_seconds": cpu, "peak_bytes": peak, "met": met}


def finish(sweep: SweepFolder) -> None:
    """Give every run the folder of a finished one, but for its checkpoints."""
    configs = sweep.spec().configs()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "run"
        train(override(RUNS["tiny"], steps=1, warmup=0.0), model, device="cpu", quiet=True)
        result = read_json(model / "result.json")
        for name in configs:
            run = sweep.runs / name
            run.mkdir(parents=True)
            for file in ("config.json", "provenance.json", "metrics.jsonl"):
                shutil.copyfile(model / file, run / file)
            (run / "result.json").write_text(json.dumps(result | {"run_id": name}))


def tables(found: Row) -> dict[str, str]:
    """The JSON as two tables."""
    parts = {row["part"]: row for row in found["parts"]}
    made = {}
    if part := parts.get("throughput"):
        lines = [
            [
                name, f"{number(took['median'], 3)} s",
                f"{number(3600 * part['runs'] / took['median'], 3)}",
                of_range(part["to_one_worker"][name], 3) if name in part["to_one_worker"] else "",
                str(part["aims"].get(name, "")),
            ]
            for name, took in part["seconds"].items()
        ]  # fmt: skip
        what = f"{part['runs']} runs of {part['steps']} steps"
        head = [what, "time", "runs per hour", "to one worker", "aim"]
        made["throughput"] = table(head, lines)
    if part := parts.get("commands"):
        lines = [
            [
                name, f"{of_range(row['seconds'])} s", f"{number(row['cpu_seconds'])} s",
                f"{number(row['peak_bytes'] / 1e6, 3)} MB",
            ]
            for name, row in part["commands"].items()
        ]  # fmt: skip
        head = [f"{part['runs']:,} runs", "time", "of the processor", "largest resident memory"]
        made["commands"] = table(head, lines)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = ("throughput", "commands")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as tables")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--ways", nargs="+", choices=tuple(AIMS), default=tuple(AIMS))
    parser.add_argument("--runs", type=int, default=8, help="runs of the throughput")
    parser.add_argument("--steps", type=int, default=300, help="their steps")
    parser.add_argument("--many", type=int, default=MANY, help="runs of the commands")
    parser.add_argument("--turns", type=int, default=3, help="interleaved turns")
    options = parser.parse_args(arguments)
    if min(options.runs, options.steps, options.turns) < 1 or options.many < 5 or options.many % 5:
        parser.error("--runs, --steps and --turns expect numbers from 1, --many a multiple of 5")
    answer(parser, options, measured, tables)


def measured(options: argparse.Namespace) -> Row:
    """What the command line asks for, as one JSON object."""
    torch.set_num_threads(1)
    settings = {name: vars(options)[name] for name in ("ways", "runs", "steps", "many", "turns")}
    kept = Kept("sweep", settings)
    parts = []
    if "throughput" in options.parts:
        ways = [ONE, *options.ways]
        parts.append(throughput(kept, ways, options.runs, options.steps, options.turns))
    if "commands" in options.parts:
        parts.append(kept.row("commands", partial(commands, options.many, options.turns)))
    kept.clear()
    return {"schema": 1, "machine": machine(), "parts": parts}


if __name__ == "__main__":
    main()
