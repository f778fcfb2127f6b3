"""Patching and pruning in two checkouts of this repository, which take turns: processor time.

Each turn is a fresh process on one thread. A ratio is second / first, turn by turn.

    python benchmarks/checkouts.py BEFORE . --turns 7
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from measuring import machine, ratio

TURN = """
import json, time, anchor_interp as ai
run = ai.load("tiny/inferential/1")
pairs = ai.contrast_pairs(run.config.task, "key", 256, seed=0)
sites = ai.site_grid(run.model, ["resid_pre"], positions=range(9))
clean, other = (ai.aligned_sequences(run.config.task, 6, 256, seed=seed) for seed in (0, 1))
patch = lambda: ai.patch(run.model, *pairs, sites, ai.logit_difference(*pairs))
prune = lambda: ai.prune(ai.EdgeAblation(run.model, clean, "resample", references=other))
times = {}
for name, way in (("patching", patch), ("pruning", prune)):
    way()
    began = time.process_time()
    way()
    times[name] = time.process_time() - began
print(json.dumps(times))
"""


def turn(checkout: Path) -> dict[str, float]:
    """Seconds of processor time in one checkout."""
    source = {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TURN]
    done = subprocess.run(command, env=os.environ | source, stdout=subprocess.PIPE, check=True)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in every turn
    turns = [[turn(path) for path in options.checkouts] for _ in range(options.turns)]
    rows = []
    for case in turns[0][0]:
        first, second = ([pair[i][case] for pair in turns] for i in (0, 1))
        seconds = {"first": statistics.median(first), "second": statistics.median(second)}
        rows.append({"case": case, "seconds": seconds, "ratio": ratio(second, first)})
    print(json.dumps({"schema": 1, "machine": machine(), "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
