"""Masks on the recipes' runs: how much the logits still depend on a token that is masked.

``python experiments/masks.py`` measures five runs of every recipe of ``experiments/recipes.py
judge``, prints JSON and writes ``docs/evidence/masks.md``. It resumes where it was stopped.

Each of 40 sequences (every pair and key, second anchor before the last position) is run with all 80
keys, or with all four anchors at the second anchor's place
(:func:`anchor_interp.interventions.masks.leak`).
"""

from collections.abc import Sequence

import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.masks import Paths, leak
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.sequences import Place, drawn_sequences
from margins import FRESH_SEEDS
from measured import Measured, experiment, spread, table, tell
from papers.rows import Row

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


def report(found: Measured) -> None:
    """Report the runs that reached their phase, recipe by recipe, and the others apart."""
    columns = [(place, name) for place in HIDDEN for name in MASKS]
    head = [f"{HIDDEN[place]}: {name}" for place, name in columns]

    def cells(runs: Sequence[Row]) -> list[str]:
        return [_spread([row[f"{place}, {name}"] for row in runs]) for place, name in columns]

    of_all = table(
        ["recipe", "runs", *head],
        [[name, str(len(runs)), *cells(runs)] for name, runs in found.used.items()],
    )
    apart = table(
        ["recipe", "seed", "phase", *head],
        [[row["recipe"], str(row["seed"]), row["phase"], *cells([row])] for row in found.missed],
    )
    others = f"Runs that did not reach their recipe's phase, in no number above:\n\n{apart}"
    first, *_, last = found.seeds
    text = f"""# masks

What is left of the logits' range over the values of a token when the token is masked: 0 if the mask
hides it, 1 if it does nothing. Median and range over the recipes' runs that reached their phase
(seeds {first} to {last}). "As the papers": every edge that leaves the token's position is
zeroed after the softmax, and the others stay, so they still depend on the masked token through the
softmax's denominator. "Renormalised": the others are scaled to their former sum, which removes it.
"Direct": only edges into the last position are zeroed, in every layer.

{of_all}
{others if found.missed else "Every run reached its recipe's phase."}
"""
    tell("masks", {"runs": found.rows}, text.rstrip() + "\n")


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    rounding = known and max(known) < 1e-9
    return f"at most {max(known):.0e}" if rounding else spread(known)


if __name__ == "__main__":
    experiment("masks", report, list(FRESH_SEEDS)[:5])
