"""Masks on the recipes' runs: how much the logits still depend on a token that is masked.

``python experiments/masks.py`` measures five runs of every recipe of ``experiments/recipes.py
judge``, prints JSON and writes ``docs/evidence/masks.md``. It goes on where it was stopped.

Of 40 sequences (every pair and key, second anchor before the last position) each is run with all 80
keys, or all four anchors at the second anchor's place; see :func:`anchor_interp.interventions.masks.leak`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp.interventions.masks import Paths, leak
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.sequences import Place, drawn_sequences
from measured import RUNS, Row, each_run, spread, table, tell
from recipes import FRESH_SEEDS

N = 40
MASKS: dict[str, tuple[Paths, bool]] = {
    "as the papers": ("all", False),
    "renormalised": ("all", True),
    "direct": ("direct", False),
}
"""Paths that are cut, and whether what remains is renormalised."""
HIDDEN: dict[Place, str] = {"key": "key, over 80 keys", "second": "second anchor, over four"}


def measure(run: Run) -> Row:
    """The leaks of one run, in double precision; null where the token has no effect anyway."""
    task = run.config.task
    model = load(run.folder.path, dtype=torch.float64).model
    sequences = drawn_sequences(
        task, lambda s: s.position < task.length - 3, N, 0, task.pairs, "all"
    )
    found: Row = {}
    for place in HIDDEN:
        for name, (paths, renormalise) in MASKS.items():
            try:
                left = leak(model, task, sequences, place, paths=paths, renormalise=renormalise)
            except ConfigError as error:
                found |= {f"{place}, {name}": None, "refused": str(error)}
            else:
                found[f"{place}, {name}"] = left
    return found


def report(rows: Sequence[Row]) -> None:
    """Tell of the runs that reached their phase, recipe by recipe, and of the others apart."""
    recipes = dict.fromkeys(row["recipe"] for row in rows)
    reached = {name: [r for r in rows if r["recipe"] == name and r["reached"]] for name in recipes}
    missed = [row for row in rows if not row["reached"]]
    columns = [(place, name) for place in HIDDEN for name in MASKS]
    head = [f"{HIDDEN[place]}: {name}" for place, name in columns]

    def cells(runs: Sequence[Row]) -> list[str]:
        return [_spread([row[f"{place}, {name}"] for row in runs]) for place, name in columns]

    of_all = table(
        ["recipe", "runs", *head],
        [[name, str(len(runs)), *cells(runs)] for name, runs in reached.items()],
    )
    apart = table(
        ["recipe", "seed", "phase", *head],
        [[row["recipe"], str(row["seed"]), row["phase"], *cells([row])] for row in missed],
    )
    others = f"Runs that did not reach their recipe's phase, in no number above:\n\n{apart}"
    seeds = sorted({row["seed"] for row in rows})
    text = f"""# masks

What is left of the logits' range over the values of a token when the token is masked: 0 if the mask
hides it, 1 if it does nothing. Median and range over the recipes' runs that reached their phase
(seeds {seeds[0]} to {seeds[-1]}). "As the papers": every edge that leaves the token's position is
zeroed after the softmax, and the others stay, so they still depend on the masked token through the
softmax's denominator. "Renormalised": the others are scaled to their former sum, which removes it.
"Direct": only edges into the last position are zeroed, in every layer.

{of_all}
{others if missed else "Every run reached its recipe's phase."}
"""
    tell("masks", {"runs": rows}, text.rstrip() + "\n")


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    rounding = known and max(known) < 1e-9
    return f"at most {max(known):.0e}" if rounding else spread(known)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="What masks leave, on the recipes' runs.")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(FRESH_SEEDS)[:5])
    asked = parser.parse_args()
    try:
        report(list(each_run("masks", measure, asked.seeds, runs=asked.runs)))
    except AnchorInterpError as error:
        raise SystemExit(f"masks: {error}") from error


if __name__ == "__main__":
    main()
