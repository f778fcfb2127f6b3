"""Attribution patching against patching: how alike their ranks are, and the time of both.

The sites are those of the analysis page, on 200 pairs whose keys differ. Every way takes its turn
with the others on one thread, and a time is a median of processor time.

    python benchmarks/attribution_patching.py --json
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from anchor_interp.analysis.attribution_patching import attribution_patch, rank_correlation
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import PatchResult, patch
from anchor_interp.interventions.sites import site_grid
from anchor_interp.runs.run import load
from anchor_interp.tasks.counterfactuals import contrast_pairs
from measuring import Row, answer, machine, number, table

SPECIMENS = tuple(
    f"tiny/{recipe}/1"
    for recipe in ("memorizing", "composite", "symmetric", "inferential", "neurips-inferential")
)
ESTIMATES = {"gradient": 1, "eight": 8}
"""Names of the estimates, and the steps of each."""


def compared(specimen: str, turns: int) -> Row:
    """Rank correlations of the two estimates with patching, and the seconds of all three."""
    run = load(specimen)
    pairs = contrast_pairs(run.config.anchor_task, "key", 200, seed=0)
    sites = site_grid(run.model, ["resid_pre", "attn_out", "mlp_out", "v", "z"])
    arguments = run.model, *pairs, sites, logit_difference(*pairs)
    ways: dict[str, Callable[[], PatchResult]] = {"patching": lambda: patch(*arguments)}
    for name, steps in ESTIMATES.items():
        ways[name] = functools.partial(attribution_patch, *arguments, steps=steps)
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            results[name] = way()
            times[name].append(time.process_time() - began)
    row: Row = {"specimen": specimen, "sites": len(sites)}
    row |= {f"seconds_{name}": statistics.median(each) for name, each in times.items()}
    patched = results.pop("patching")
    for name, estimate in results.items():
        effects = [result.recovery() for result in (estimate, patched)]
        row[f"ranks_{name}"] = rank_correlation(estimate, patched)
        row[f"effects_{name}"] = float(np.corrcoef(effects)[0, 1])
    return row


def tables(found: Row) -> dict[str, str]:
    """The JSON as a table, a line a model."""
    head = ["model", "sites", "rank correlation, gradient", "8 steps", "correlation, gradient",
            "8 steps", "seconds, patching", "gradient", "8 steps"]  # fmt: skip
    alike = [f"{kind}_{name}" for kind in ("ranks", "effects") for name in ESTIMATES]
    times = [f"seconds_{name}" for name in ("patching", *ESTIMATES)]
    lines = [
        [row["specimen"], str(row["sites"]), *(f"{row[name]:.2f}" for name in alike),
         *(number(row[name]) for name in times)]
        for row in found["models"]
    ]  # fmt: skip
    return {"models": table(head, lines)}


def measured(options: argparse.Namespace) -> Row:
    """What the command line asks for, as one JSON object."""
    torch.set_num_threads(1)
    rows = []
    for specimen in SPECIMENS:
        print(f"comparing {specimen} ...", file=sys.stderr)
        rows.append(compared(specimen, options.turns))
    return {"schema": 1, "machine": machine(), "models": rows}


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as tables")
    parser.add_argument("--turns", type=int, default=5, help="interleaved turns per model")
    options = parser.parse_args()
    answer(parser, options, measured, tables)


if __name__ == "__main__":
    main()
