"""What the papers say of representations, over the recipes' runs: which contrasts appear.

``python experiments/contrasts.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/contrasts.md``. It goes on where it was stopped.

The claims, their direction and the level are those of :mod:`papers.rule_contrasts`. They are
tested on the runs that reached their recipe's phase; the others are told of by themselves. The
claims were committed before this measurement of the runs, after exploratory looks at runs of the
recipes.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis.contrast import SimilarityContrast
from anchor_interp.analysis.sensitivity import Sensitivity
from anchor_interp.runs.run import Run
from measured import RUNS, Row, each_run, spread, table, tell
from papers.rule_contrasts import (
    LEVEL,
    NUMBERS,
    Grouping,
    RuleContrasts,
    Verdict,
    judge,
    rule_contrasts,
)
from recipes import FRESH_SEEDS

CONTRASTS = [name for name in NUMBERS if name.endswith("difference")]
GROUPINGS = [name for name in NUMBERS if name not in CONTRASTS]
STATES = ("logits", "V^(2)", "X^ao(2)")
"""What :attr:`RuleContrasts.sensitivity` is of, in its order."""


def measure(run: Run) -> Row:
    """Every contrast of one run."""
    return {"contrasts": to_dict(rule_contrasts(run.model, run.config.task))}


def report(rows: Sequence[Row]) -> None:
    """Judge the claims on the runs that reached their phase; tell of all."""
    runs = [(row, from_dict(RuleContrasts, row["contrasts"])) for row in rows]
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    used = {
        name: [found for row, found in runs if row["recipe"] == name and row["reached"]]
        for name in recipes
    }
    counts = {
        name: f"{len(used[name])} of {sum(row['recipe'] == name for row in rows)}"
        for name in recipes
    }
    verdicts = judge(used)
    seeds = sorted({row["seed"] for row in rows})
    missed = [(row, found) for row, found in runs if not row["reached"]]
    text = f"""# contrasts

Seeds {", ".join(map(str, seeds))}. Of every recipe the runs that reached its phase, at their last
checkpoint: median and range. Layers are the papers'
two, also in the four layers of neurips-inferential.

Recipes differ in more than the phase: memorizing and inferential models are pre-LayerNorm with GELU
and 5,000 sequences, composite and symmetric ones post-LayerNorm with ReLU and 100,000, and
neurips-inferential has four layers. A difference between two of these is one between recipes.

Difference of centred cosines between vectors of equal value and near misses at the same |x - x'|
and with the same anchors in common; 0 without a trace of the rule. In brackets, the runs in which
the model's own permutation test over the 48 relabellings of the anchors gives p <= {LEVEL}. X^ao(2)
at the end has no such test: the pairs that follow the rule have 8 relabellings only.
Two columns are no claim of the papers and are told of, not tested: the blocks renormalised, where
nothing of the masked anchor leaks through the softmax, which some runs' blocks depend on, and the
blocks in X^ao(2), added when it was seen that the logits' do not separate the phases.

{_contrasts(recipes, used, counts)}
Mean silhouettes (1 for tight clusters far apart, 0 where they overlap) and the number of clusters
that fits best, of 2 to 4 more than the ordered pairs: "or more" and "or fewer" stand where the last
or the first number tried fits best. Under the key mask there are 12 ordered and 6 unordered pairs
of unequal anchors, of all pairs 16 and 10.

{_groupings(recipes, used, counts)}
The papers' claims, each a difference of means between runs of two recipes, or from zero. Their
directions are those of the papers' text; the list was committed before this measurement of the
runs, but after exploratory looks at runs of these recipes, so that it is no blind preregistration.
The contrast of X^ao(2) at the end was corrected after five seeds had been seen: its comparisons are
now among pairs with the same anchors in common.
Permutation test over runs, Holm's correction over all {len(verdicts)}. A claim is shown with a
corrected p of {LEVEL} or less in its direction. "Too few runs" is said where not even runs without
any overlap could have shown it.

{_claims(verdicts)}
How much position and noise matter, which the papers assume to be nothing: share of the variance
that the factor has a part in (Sobol' total index; scatters by a few hundredths), and the share of
answers that stay when it alone changes. V^(2) is read at the first anchor, X^ao(2) and the logits
at the end.

{_sensitivity(recipes, used)}
Runs that did not reach their recipe's phase, in none of the tables above:

{_missed(missed)}"""
    data = {"runs": rows, "verdicts": [to_dict(verdict) for verdict in verdicts]}
    tell("contrasts", data, text)


Used = dict[str, list[RuleContrasts]]
Counts = dict[str, str]


def _contrasts(recipes: Sequence[str], used: Used, counts: Counts) -> str:
    def cell(runs: Sequence[RuleContrasts], name: str) -> str:
        tests: list[SimilarityContrast] = [getattr(run, name.split(".")[0]) for run in runs]
        if not runs or 1 / tests[0].n_permutations > LEVEL:
            return _spread(runs, name)
        return f"{_spread(runs, name)} [{sum(test.p_value <= LEVEL for test in tests)}]"

    return _by_recipe(recipes, used, counts, CONTRASTS, cell)


def _groupings(recipes: Sequence[str], used: Used, counts: Counts) -> str:
    return _by_recipe(recipes, used, counts, GROUPINGS, _spread)


def _by_recipe(
    recipes: Sequence[str],
    used: Used,
    counts: Counts,
    names: Sequence[str],
    cell: Callable[[Sequence[RuleContrasts], str], str],
) -> str:
    return table(
        ["recipe", "runs in their phase", *[NUMBERS[name] for name in names]],
        [[r, counts[r], *[cell(used[r], name) for name in names]] for r in recipes],
    )


def _claims(verdicts: Sequence[Verdict]) -> str:
    lines = []
    for verdict in verdicts:
        claim, found = verdict.claim, verdict.comparison
        numbers = ["", "", "", ""]
        if found is not None:
            numbers = [
                " and ".join(map(str, found.n)),
                f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})",
                f"{found.p_value:.2g}",
                f"{verdict.holm:.2g}",
            ]
        tested = f"{claim.larger} > {claim.smaller or '0'}"
        outcome = "**shown**" if verdict.outcome == "shown" else verdict.outcome
        words = [claim.text, claim.source, NUMBERS[claim.number], tested]
        lines.append([*words, *numbers, outcome])
    return table(
        [
            "claim",
            "source",
            "number",
            "tested",
            "n",
            "difference (95 % interval)",
            "p",
            "Holm's p",
            "outcome",
        ],
        lines,
    )


def _sensitivity(recipes: Sequence[str], used: Used) -> str:
    def cell(recipe: str, index: int, factor: str, number: str) -> str:
        measured: list[Sensitivity] = [run.sensitivity[index] for run in used[recipe]]
        parts = [part for one in measured for part in one.factors if part.factor == factor]
        found = [getattr(part, number) for part in parts]
        return spread([value for value in found if value is not None])

    factors = ("position", "noise")
    return table(
        [
            "recipe",
            *[f"{factor}, {state}" for factor in factors for state in STATES],
            *[f"{factor}, answers kept" for factor in factors],
        ],
        [
            [
                recipe,
                *[cell(recipe, i, f, "total") for f in factors for i in range(len(STATES))],
                *[cell(recipe, 0, f, "agreement") for f in factors],
            ]
            for recipe in recipes
        ],
    )


def _missed(runs: Sequence[tuple[Row, RuleContrasts]]) -> str:
    if not runs:
        return "none.\n"
    return table(
        ["recipe", "seed", "phase", *[NUMBERS[name] for name in NUMBERS]],
        [
            [row["recipe"], str(row["seed"]), row["phase"]]
            + [_spread([found], name) for name in NUMBERS]
            for row, found in runs
        ],
    )


def _spread(runs: Sequence[RuleContrasts], name: str) -> str:
    found = [value for run in runs if (value := run.number(name)) is not None]
    if not name.endswith("n_clusters") or not found:
        return spread(found)
    groupings: list[Grouping] = [getattr(run, name.split(".")[0]) for run in runs]
    beyond = {
        float(one.n_clusters): " or fewer" if one.n_clusters == 2 else " or more"
        for one in groupings
        if one.at_limit
    }
    ends = [float(end(found)) for end in (min, median, max)]
    low, middle, high = (f"{number:g}{beyond.get(number, '')}" for number in ends)
    return middle if low == high else f"{middle} ({low} to {high})"


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="Contrasts of the recipes' runs.")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(FRESH_SEEDS))
    asked = parser.parse_args()
    try:
        report(list(each_run("contrasts", measure, asked.seeds, runs=asked.runs)))
    except AnchorInterpError as error:
        raise SystemExit(f"contrasts: {error}") from error


if __name__ == "__main__":
    main()
