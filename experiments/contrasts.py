"""What the papers say of representations, over the recipes' runs: which contrasts appear.

``python experiments/contrasts.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/contrasts.md``. It goes on where it was stopped.

The claims, their direction and the level are those of :mod:`anchor_interp.rule_contrasts`. They are
tested on the runs that reached their recipe's phase; the others are told of by themselves.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from anchor_interp.errors import AnchorInterpError
from anchor_interp.representations import Contrast, Sensitivity
from anchor_interp.rule_contrasts import (
    LEVEL,
    NUMBERS,
    RuleContrasts,
    Verdict,
    judge,
    rule_contrasts,
)
from anchor_interp.run import Run
from anchor_interp.schema import from_dict, to_dict
from measured import RUNS, Row, each_run, spread, table, tell
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

Difference of centred cosines between vectors of equal value and near misses at the same |x - x'|;
0 without a trace of the rule. In brackets, the runs in which the model's own permutation test over
anchors gives p <= {LEVEL}: 48 relabellings for the four anchors, 999 for the pairs of X^ao(2).
The blocks in X^ao(2) are no claim of the papers: they were added when it was seen that the logits'
do not separate the phases, so they are told of and not tested.

{_contrasts(recipes, used, counts)}
Mean silhouettes (1 for tight clusters far apart, 0 where they overlap) and the number of clusters
that fits best. Under the key mask there are 12 ordered and 6 unordered pairs of unequal anchors, of
all pairs 16 and 10.

{_groupings(recipes, used, counts)}
The papers' claims, each a difference of means between runs of two recipes, or from zero:
permutation test over runs, Holm's correction over all {len(verdicts)}. A claim is shown with a
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
        tests: list[Contrast] = [getattr(run, name.split(".")[0]) for run in runs]
        found = sum(test.p_value <= LEVEL for test in tests)
        return f"{_spread(runs, name)} [{found}]" if runs else ""

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
    if name.endswith("n_clusters") and found:
        low, middle, high = (f"{f(found):g}" for f in (min, median, max))
        return middle if low == high else f"{middle} ({low}-{high})"
    return spread(found)


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
