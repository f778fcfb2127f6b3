"""Interchange interventions in the recipes' runs: does g(x; a1) stand at the first anchor?

``python experiments/interchange.py`` takes the runs of ``experiments/recipes.py judge``, exchanges
the residual stream after layer 1 at the first anchor, prints JSON and writes
``docs/evidence/interchange.md``. It goes on where it was stopped.

What is counted is the share of 1,000 sequences with test keys that are answered with g(g(x'; a1');
a2), (x', a1') from another sequence: after an exchange of all of the activation (plain), along the
16 directions that were found for it on sequences with training keys (searched), and along 16 random
ones. The control of the search is the same search with the answers renamed by one random
permutation, on the sequences it is fitted on and on those it is judged on: what it reaches there,
the search makes of the model by itself (control task: Hewitt and Liang 2019). Only keys are held
out: values g(x'; a1') and second anchors meet in both. As memorizing runs know no test keys, plain
is measured on training keys too. A difference between an inferential recipe and another one of its
task counts with p <= 0.05 after Holm's correction over the table.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from anchor_interp._util.errors import AnchorInterpError
from anchor_interp.analysis.statistics import holm, two_samples
from anchor_interp.interventions.interchange import (
    InterchangeResult,
    Subspace,
    interchange,
    learn_subspace,
    random_subspace,
)
from anchor_interp.interventions.sites import Site
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import InterchangePairs, interchange_pairs
from measured import RUNS, Row, each_run, spread, table, tell
from recipes import FRESH_SEEDS

LEVEL = 0.05
SITE = Site("resid_post", 0, "first")
DIMENSIONS = 16
WAYS = {
    "plain": "all of it",
    "familiar": "all of it, training keys",
    "searched": "searched, k = 16",
    "control": "searched, k = 16, answers renamed",
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

    def searched(pairs: InterchangePairs) -> Subspace:
        return learn_subspace(model, pairs, SITE, DIMENSIONS, seed=0, batch_size=64, quiet=True)

    def answered(
        subspace: Subspace | None, pairs: InterchangePairs = held_out
    ) -> InterchangeResult:
        return interchange(model, pairs, SITE, subspace=subspace)

    found = searched(fitted)
    control = searched(renamed(fitted, task))
    random = random_subspace(len(found.basis), DIMENSIONS, seed=0)

    results = {
        "plain": answered(None),
        "familiar": interchange(model, familiar, SITE),
        "searched": answered(found),
        "control": answered(control, renamed(held_out, task)),
        "random": answered(random),
    }
    shares = ("counterfactual", "base", "source", "anchor_moved", "key_moved", "untouched")
    return {way: {s: getattr(result, s) for s in shares} for way, result in results.items()}


def renamed(pairs: InterchangePairs, task: AnchorTask) -> InterchangePairs:
    """The same with all answers renamed by one random permutation."""
    answers = np.unique([task.composed(pair, task.keys) for pair in task.pairs])
    name = np.arange(answers.max() + 1)
    name[answers] = np.random.default_rng(0).permutation(answers)
    return replace(pairs, counterfactual=name[pairs.counterfactual])


def report(rows: Sequence[Row]) -> None:
    """Compare the recipes' runs that reached their phase; tell of all."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    used = {name: [r for r in rows if r["recipe"] == name and r["reached"]] for name in recipes}

    def values(name: str, way: str, share: str = "counterfactual") -> list[float]:
        return [row[way][share] for row in used[name]]

    tested = [
        (way, pair)
        for way in WAYS
        if way != "control"
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
their phase, seeds {seeds[0]} to {seeds[-1]}. Held out are keys: the directions were searched for on
sequences with training keys, in which the same values g(x'; a1') meet the same second anchors. With
answers renamed by one random permutation, for the search and for its judgement, the same search
shows what it makes of a model by itself. The last five columns tell what else follows when all of
it is exchanged.

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
