"""Complexity of the recipes' runs: which of the papers' numbers differ, and the embedding's steps.

``python experiments/complexity.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/complexity.md``. It goes on where it was stopped.

The papers see two things in inferential (small-initialisation) models and not in memorizing ones:
few directions in W_Q(1) (stable rank; condensed neurons), and keys embedded in steps of 3 and 4.
A difference between two recipes counts with p <= 0.05 after Holm's correction over the table; a run
shows the steps if each of 3 and 4 stands out beyond a smooth curve with p <= 0.05. Runs of these
recipes had been looked at before this was fixed.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

import torch

from anchor_interp._util.errors import AnchorInterpError
from anchor_interp.analysis.statistics import holm, two_samples
from anchor_interp.models.complexity import complexity
from anchor_interp.models.embeddings import arithmetic_steps, embedding_structure, key_embeddings
from anchor_interp.runs.run import Run
from measured import RUNS, Row, each_run, spread, table, tell
from recipes import FRESH_SEEDS

LEVEL = 0.05
PAIRS = (
    ("memorizing", "inferential"),
    ("composite", "inferential"),
    ("composite", "symmetric"),
    ("symmetric", "inferential"),
    ("neurips-memorizing", "neurips-inferential"),
    ("neurips-symmetric", "neurips-inferential"),
)
"""Recipes that are compared; the papers expect the first of each to be the more complex one."""
NUMBERS = {
    "stable_rank": "stable rank of W_Q(1)",
    "condensation": "condensation of W_Q(1)",
    "effective_rank": "effective rank of W_Q(1)",
    "qk_stable_rank": "stable rank of QK(1), mean of heads",
    "distance": "distance of W_Q(1) from its start",
    "dimension": "dimension of the embedded keys",
}


def measure(run: Run) -> Row:
    """The numbers of one run."""
    found = complexity(run.model, run.initial)
    query = next(e for e in found.matrices if e.name == "W_Q" and e.layer == 0)
    heads = [e for e in found.heads if e.name == "QK" and e.layer == 0]
    rows = key_embeddings(run.model, run.config.task)
    structure = embedding_structure(rows)
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


def report(rows: Sequence[Row]) -> None:
    """Compare the recipes' runs that reached their phase; tell of all."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    used = {name: [r for r in rows if r["recipe"] == name and r["reached"]] for name in recipes}
    able = [pair for pair in PAIRS if min(len(used.get(name, ())) for name in pair) >= 2]
    tested = [(pair, number) for number in NUMBERS for pair in able]
    found = [
        two_samples([r[number] for r in used[a]], [r[number] for r in used[b]])
        for (a, b), number in tested
    ]
    corrected = holm([entry.p_value for entry in found])
    comparisons = [
        {"first": a, "second": b, "number": number, **asdict(entry), "holm": p}
        for ((a, b), number), entry, p in zip(tested, found, corrected, strict=True)
    ]
    numbers = table(
        ["recipe", "runs in their phase", *NUMBERS.values(), "W_Q(1) at the start"],
        [
            [
                name,
                f"{len(used[name])} of {sum(r['recipe'] == name for r in rows)}",
                *[spread([r[number] for r in used[name]]) for number in NUMBERS],
                spread([r["stable_rank_at_init"] for r in used[name]], 1),
            ]
            for name in recipes
        ],
    )
    differences = table(
        ["number", "first", "second", "difference of means (95 % interval)", "d", "p", "Holm's p"],
        [
            [
                NUMBERS[c["number"]],
                c["first"],
                c["second"],
                f"{c['mean']:+.2f} ({c['low']:+.2f} to {c['high']:+.2f})",
                "" if c["effect"] is None else f"{c['effect']:+.1f}",
                f"{c['p_value']:.2g}",
                f"**{c['holm']:.2g}**" if c["holm"] <= LEVEL else f"{c['holm']:.2g}",
            ]
            for c in comparisons
        ],
    )
    steps = table(
        [
            "recipe",
            "runs",
            "show both steps",
            "in the first two components",
            "median places of 3 and 4",
            "steps that stand out most (median z)",
        ],
        [_steps(name, used[name]) for name in recipes if used[name]],
    )
    text = f"""# complexity

Median and range over the recipes' runs that reached their phase.

{numbers}
Differences between recipes, permutation test over runs, Holm's correction over all {len(tested)}.
Memorizing and inferential differ in gamma and weight decay alone, composite and symmetric in the
gamma of queries and keys besides; these two pairs differ from each other in LayerNorm layout,
activation and amount of data as well, so a difference across them is not the phase's alone.

{differences}
Steps of the embedding: runs in which steps of 3 and of 4 each bring keys closer than a smooth curve
explains (p <= {LEVEL}), and where they stand among steps 1 to 20.

{steps}"""
    tell("complexity", {"runs": rows, "comparisons": comparisons}, text)


def _steps(name: str, runs: Sequence[Row]) -> list[str]:
    def shown(key: str) -> str:
        return f"{sum(row[key] <= LEVEL for row in runs)} of {len(runs)}"

    places = [f"{median(row['steps_ranks'][i] for row in runs):g}" for i in (0, 1)]
    z = [median(row["steps_z"][i] for row in runs) for i in range(len(runs[0]["steps_z"]))]
    most = sorted(range(len(z)), key=lambda i: -z[i])[:5]
    return [
        name,
        str(len(runs)),
        shown("steps_p"),
        shown("steps_p_in_the_plane"),
        ", ".join(places),
        ", ".join(f"{i + 1} ({z[i]:.1f})" for i in most),
    ]


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="Complexity of the recipes' runs.")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(FRESH_SEEDS))
    asked = parser.parse_args()
    try:
        report(list(each_run("complexity", measure, asked.seeds, runs=asked.runs)))
    except AnchorInterpError as error:
        raise SystemExit(f"complexity: {error}") from error


if __name__ == "__main__":
    main()
