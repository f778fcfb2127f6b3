"""Complexity of the recipes' runs: which of the papers' numbers differ, and the embedding's steps.

``python experiments/complexity.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/complexity.md``. It resumes where it was stopped.

The papers see two things in inferential (small-initialisation) models and not in memorizing ones:
few directions in W_Q L0 (stable rank; condensed neurons), and keys embedded in steps of 3 and 4.
A run shows the steps if each of 3 and 4 stands out beyond a smooth curve with p <= 0.05. Runs of
these recipes had been looked at before this was fixed.
"""

from collections.abc import Sequence
from statistics import mean, median

import torch

from anchor_interp.models.complexity import complexity
from anchor_interp.models.embeddings import arithmetic_steps, embedding_structure, key_embeddings
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.effects import LEVEL
from measured import Measured, experiment, spread, table, tell_filled
from papers.rows import Row

NUMBERS = {
    "stable_rank": "stable rank of W_Q L0",
    "condensation": "condensation of W_Q L0",
    "effective_rank": "effective rank of W_Q L0",
    "qk_stable_rank": "stable rank of QK L0, mean of heads",
    "distance": "distance of W_Q L0 from its start",
    "dimension": "dimension of the embedded keys",
}


def measure(run: Run) -> Row:
    """The numbers of one run."""
    found = complexity(run.model, run.initial)
    query = next(e for e in found.matrices if e.name == "W_Q" and e.layer == 0)
    heads = [e for e in found.heads if e.name == "QK" and e.layer == 0]
    structure = embedding_structure(key_embeddings(run.model, run.config.anchor_task))
    steps = structure.steps
    z = (steps.closeness - steps.expected) / steps.spread
    plane = arithmetic_steps(torch.from_numpy(structure.coordinates[:, :2].copy()))
    return {
        **{name: getattr(query, name) for name in ("stable_rank", "condensation", "distance")},
        "effective_rank": query.effective_rank,
        "stable_rank_at_init": None if query.at_init is None else query.at_init.stable_rank,
        "qk_stable_rank": mean(e.stable_rank or 0 for e in heads),
        "dimension": structure.dimension,
        "steps_p": steps.p_value,
        "steps_ranks": list(steps.ranks),
        "steps_z": [round(float(value), 2) for value in z],
        "steps_p_in_the_plane": plane.p_value,
    }


def report(found: Measured) -> None:
    """The numbers of the recipes' runs that reached their phase."""
    numbers = table(
        ["recipe", "runs in their phase", *NUMBERS.values(), "W_Q L0 at the start"],
        [
            [name, found.count(name), *[spread([r[number] for r in runs]) for number in NUMBERS],
             spread([r["stable_rank_at_init"] for r in runs], 1)]
            for name, runs in found.used.items()
        ],
    )  # fmt: skip
    steps = table(
        ["recipe", "runs", "show both steps", "in the first two components",
         "median places of 3 and 4", "steps that stand out most (median z)"],
        [_steps(name, runs) for name, runs in found.used.items() if runs],
    )  # fmt: skip
    tell_filled(
        "complexity", {"runs": found.rows}, found, numbers=numbers, steps=steps,
    )  # fmt: skip


def _steps(name: str, runs: Sequence[Row]) -> list[str]:
    def shown(key: str) -> str:
        return f"{sum(row[key] <= LEVEL for row in runs)} of {len(runs)}"

    places = [f"{median(row['steps_ranks'][i] for row in runs):g}" for i in (0, 1)]
    z = [median(row["steps_z"][i] for row in runs) for i in range(len(runs[0]["steps_z"]))]
    most = sorted(range(len(z)), key=lambda i: -z[i])[:5]
    largest = ", ".join(f"{i + 1} ({z[i]:.1f})" for i in most)
    shares = [shown("steps_p"), shown("steps_p_in_the_plane")]
    return [name, str(len(runs)), *shares, ", ".join(places), largest]


if __name__ == "__main__":
    experiment("complexity", report)
