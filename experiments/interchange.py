"""Interchange interventions in the recipes' runs: does g(x; a1) stand at the first anchor?

``python experiments/interchange.py`` takes the runs of ``experiments/recipes.py judge``, exchanges
the residual stream after layer 1 at the first anchor, prints JSON and writes
``docs/evidence/interchange.md``. It goes on where it was stopped.

What is counted is the share of 1,000 sequences with test keys that are answered with
g(g(x'; a1'); a2), (x', a1') from another sequence: after an exchange of all of the activation
(plain), along the 16 directions that were found for it on sequences with training keys (searched),
and along 16 random ones. As memorizing runs know no test keys, plain is measured on training keys
too. A difference between an inferential recipe and another one of its task counts with p <= 0.05
after Holm's correction over the table.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from anchor_interp.errors import AnchorInterpError
from anchor_interp.interchange import (
    InterchangeResult,
    Subspace,
    interchange,
    interchange_pairs,
    learn_subspace,
    random_subspace,
)
from anchor_interp.patching import Site
from anchor_interp.run import Run
from anchor_interp.statistics import holm, two_samples
from measured import RUNS, Row, each_run, spread, table, tell
from recipes import FRESH_SEEDS

LEVEL = 0.05
SITE = Site("resid_post", 0, "first")
DIMENSIONS = 16
WAYS = {
    "plain": "all of it",
    "familiar": "all of it, training keys",
    "searched": "searched, k = 16",
    "random": "random, k = 16",
}
OTHERS = ("base", "source", "anchor_moved", "key_moved", "untouched")
PAIRS = (
    ("inferential", "memorizing"),
    ("inferential", "composite"),
    ("inferential", "symmetric"),
    ("neurips-inferential", "neurips-memorizing"),
    ("neurips-inferential", "neurips-symmetric"),
)
"""Recipes that are compared; the first of each is the one whose circuit has g(x; a1) there."""


def measure(run: Run) -> Row:
    """All ways of one run."""
    model, task = run.model, run.config.task
    fitted = interchange_pairs(task, 4_000, seed=0, keys="train")
    held_out = interchange_pairs(task, 1_000, seed=1, keys="test")
    familiar = interchange_pairs(task, 1_000, seed=1, keys="train")
    found = learn_subspace(model, fitted, SITE, DIMENSIONS, seed=0, batch_size=64, quiet=True)
    random = random_subspace(len(found.basis), DIMENSIONS, seed=0)

    def answered(subspace: Subspace | None) -> InterchangeResult:
        return interchange(model, held_out, SITE, subspace=subspace)

    results = {
        "plain": answered(None),
        "familiar": interchange(model, familiar, SITE),
        "searched": answered(found),
        "random": answered(random),
    }
    shares = ("counterfactual", "base", "source", "anchor_moved", "key_moved", "untouched")
    return {way: {s: getattr(result, s) for s in shares} for way, result in results.items()}


def report(rows: Sequence[Row]) -> None:
    """Compare the recipes' runs that reached their phase; tell of all."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    used = {name: [r for r in rows if r["recipe"] == name and r["reached"]] for name in recipes}

    def values(name: str, way: str, share: str = "counterfactual") -> list[float]:
        return [row[way][share] for row in used[name]]

    tested = [
        (way, pair)
        for way in WAYS
        for pair in PAIRS
        if min(len(used[name]) for name in pair) > 1  # a test needs two runs of each
    ]
    found = [two_samples(values(a, way), values(b, way)) for way, (a, b) in tested]
    corrected = holm([entry.p_value for entry in found])
    comparisons = [
        {"way": way, "first": a, "second": b, **asdict(entry), "holm": p}
        for (way, (a, b)), entry, p in zip(tested, found, corrected, strict=True)
    ]
    shares = table(
        ["recipe", "runs in their phase", *WAYS.values(), "base's answer", "source's answer",
         "(x; a1', a2)", "(x'; a1, a2)", "right when nothing is exchanged"],
        [
            [
                name,
                f"{len(used[name])} of {sum(r['recipe'] == name for r in rows)}",
                *[spread(values(name, way)) for way in WAYS],
                *[spread(values(name, "plain", share)) for share in OTHERS],
            ]
            for name in recipes
        ],
    )  # fmt: skip
    differences = table(
        ["exchanged", "first", "second", "difference of means (95 % interval)", "p", "Holm's p"],
        [
            [
                WAYS[c["way"]],
                c["first"],
                c["second"],
                f"{c['mean']:+.2f} ({c['low']:+.2f} to {c['high']:+.2f})",
                f"{c['p_value']:.2g}",
                f"**{c['holm']:.2g}**" if c["holm"] <= LEVEL else f"{c['holm']:.2g}",
            ]
            for c in comparisons
        ],
    )
    seeds = sorted({row["seed"] for row in rows})
    text = f"""# interchange

Share of 1,000 held-out sequences that are answered with g(g(x'; a1'); a2) after an exchange of
the residual stream after layer 1 at the first anchor: median and range over the runs that reached
their phase, seeds {seeds[0]} to {seeds[-1]}. The last five columns tell what else follows when all
of it is exchanged.

{shares}
Differences between recipes, permutation test over runs, Holm's correction over all {len(tested)}:

{differences}"""
    tell("interchange", {"runs": rows, "comparisons": comparisons}, text)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="Interchange in the recipes' runs.")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(FRESH_SEEDS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    try:
        report(list(each_run("interchange", measure, asked.seeds, runs=asked.runs)))
    except AnchorInterpError as error:
        raise SystemExit(f"interchange: {error}") from error


if __name__ == "__main__":
    main()
