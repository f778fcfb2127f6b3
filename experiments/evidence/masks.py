"""Masks on the recipes' runs: how much the logits still depend on a token that is masked.

Five runs of every recipe are measured. Each of 40 sequences (every pair and key, second anchor
before the last position) is run with all 80 keys, or with all four anchors at the second anchor's
place (:func:`anchor_interp.analysis.mask_leakage.mask_leakage`).
"""

from collections.abc import Sequence

import torch

from anchor_interp import ConfigError, Run, load
from anchor_interp.analysis.mask_leakage import mask_leakage
from anchor_interp.interventions.masks import Paths
from anchor_interp.tasks.sequences import Place, drawn_sequences
from claim_effects import Row, Rows
from common import spread, table
from evidence.margins import FRESH_SEEDS
from evidence.measured import ends, others, used

N, SEEDS = 40, list(FRESH_SEEDS)[:5]
MASKS: dict[str, tuple[Paths, bool]] = {
    "as the papers": ("all", False), "renormalised": ("all", True), "direct": ("direct", False)
}  # fmt: skip
"""Paths that are cut, and whether what remains is renormalised."""
HIDDEN: dict[Place, str] = {"key": "key, over 80 keys", "second": "second anchor, over four"}


def measure(run: Run) -> Row:
    """The leaks of one run, in double precision; null where the token has no effect anyway."""
    task = run.config.anchor_task
    model = load(run.folder.path, dtype=torch.float64).model
    sequences = drawn_sequences(
        task, lambda s: s.position < task.length - 3, N, 0, task.pairs, "all"
    )
    found: Row = {}
    for place in HIDDEN:
        for name, (paths, renormalise) in MASKS.items():
            try:
                left = mask_leakage(
                    model, task, sequences, place, paths=paths, renormalise=renormalise
                )
            except ConfigError as error:
                found |= {f"{place}, {name}": None, "refused": str(error)}
            else:
                found[f"{place}, {name}"] = left
    return found


def report(rows: Rows) -> dict[str, object]:
    """The runs that reached their phase, recipe by recipe, and the others apart."""
    columns = [(place, name) for place in HIDDEN for name in MASKS]
    head = [f"{HIDDEN[place]}: {name}" for place, name in columns]

    def cells(runs: Sequence[Row]) -> list[str]:
        return [_spread([row[f"{place}, {name}"] for row in runs]) for place, name in columns]

    lines = [[name, str(len(runs)), *cells(runs)] for name, runs in used(rows).items()]
    apart = others(rows, head, lambda row: cells([row]))
    return {"of_all": table(["recipe", "runs", *head], lines), "others": apart, **ends(rows)}


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    rounding = known and max(known) < 1e-9
    return f"at most {max(known):.0e}" if rounding else spread(known)
