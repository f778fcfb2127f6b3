"""What the papers say of representations, over the recipes' runs: which contrasts appear.

``python experiments/contrasts.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/contrasts.md``. It resumes where it was stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis.contrast import SimilarityContrast
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.effects import LEVEL
from measured import Measured, experiment, spread, table, tell_filled
from papers.rows import Row
from papers.rule_contrasts import NUMBERS, Grouping, RuleContrasts, rule_contrasts

DIFFERENCES = [name for name in NUMBERS if name.endswith("difference")]
GROUPINGS = [name for name in NUMBERS if name not in DIFFERENCES]
STATES = ("logits", "V L1", "X_ao L1")
"""What :attr:`RuleContrasts.sensitivity` is of, in its order."""

Runs = Sequence[RuleContrasts]


def measure(run: Run) -> Row:
    """Every contrast of one run."""
    return {"contrasts": to_dict(rule_contrasts(run.model, run.config.anchor_task))}


def report(found: Measured) -> None:
    """Every contrast of the runs that reached their phase, and of the others."""
    used = {name: [_contrasts(row) for row in rows] for name, rows in found.used.items()}

    def by_recipe(names: Sequence[str], cell: Callable[[Runs, str], str]) -> str:
        return table(
            ["recipe", "runs in their phase", *[NUMBERS[name] for name in names]],
            [[r, found.count(r), *[cell(used[r], name) for name in names]] for r in used],
        )

    tell_filled(
        "contrasts", {"runs": found.rows}, found, seeds=", ".join(map(str, found.seeds)),
        differences=by_recipe(DIFFERENCES, _difference), groupings=by_recipe(GROUPINGS, _spread),
        sensitivity=_sensitivity(used), missed=_missed(found.missed),
    )  # fmt: skip


def _contrasts(row: Row) -> RuleContrasts:
    return from_dict(RuleContrasts, row["contrasts"])


def _difference(runs: Runs, name: str) -> str:
    tests: list[SimilarityContrast] = [getattr(run, name.split(".")[0]) for run in runs]
    if not runs or 1 / tests[0].n_permutations > LEVEL:
        return _spread(runs, name)
    return f"{_spread(runs, name)} [{sum(test.p_value <= LEVEL for test in tests)}]"


def _sensitivity(used: Mapping[str, Runs]) -> str:
    def cell(runs: Runs, index: int, factor: str, number: str) -> str:
        parts = [part for run in runs for part in run.sensitivity[index].factors]
        found = [getattr(part, number) for part in parts if part.factor == factor]
        return spread([value for value in found if value is not None])

    factors = ("position", "noise")
    states = range(len(STATES))
    head = [f"{factor}, {state}" for factor in factors for state in STATES]
    lines = []
    for recipe, runs in used.items():
        kept = [cell(runs, 0, factor, "agreement") for factor in factors]
        totals = [cell(runs, i, factor, "total") for factor in factors for i in states]
        lines.append([recipe, *totals, *kept])
    return table(["recipe", *head, *(f"{factor}, answers kept" for factor in factors)], lines)


def _missed(rows: Sequence[Row]) -> str:
    if not rows:
        return "none.\n"
    return table(
        ["recipe", "seed", "phase", *NUMBERS.values()],
        [
            [row["recipe"], str(row["seed"]), row["phase"]]
            + [_spread([_contrasts(row)], name) for name in NUMBERS]
            for row in rows
        ],
    )


def _spread(runs: Runs, name: str) -> str:
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


if __name__ == "__main__":
    experiment("contrasts", report)
