"""What the papers say of representations, over the recipes' runs: which contrasts appear.

``python experiments/contrasts.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/contrasts.md``. It resumes where it was stopped. The claims are
:data:`papers.rule_contrasts.CONTRASTS`.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.analysis.contrast import SimilarityContrast
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.effects import LEVEL
from measured import Measured, experiment, interval, spread, table, tell_filled
from papers.effects import Recipes
from papers.judging import judge
from papers.rows import Row
from papers.rule_contrasts import CONTRASTS, NUMBERS, Grouping, RuleContrasts, rule_contrasts

DIFFERENCES = [name for name in NUMBERS if name.endswith("difference")]
GROUPINGS = [name for name in NUMBERS if name not in DIFFERENCES]
STATES = ("logits", "V L1", "X_ao L1")
"""What :attr:`RuleContrasts.sensitivity` is of, in its order."""

Runs = Sequence[RuleContrasts]


def measure(run: Run) -> Row:
    """Every contrast of one run."""
    return {"contrasts": to_dict(rule_contrasts(run.model, run.config.anchor_task))}


def report(found: Measured) -> None:
    """Judge the claims on the runs that reached their phase, and report all."""
    used = {name: [_contrasts(row) for row in rows] for name, rows in found.used.items()}
    judged = _judged(found)

    def by_recipe(names: Sequence[str], cell: Callable[[Runs, str], str]) -> str:
        return table(
            ["recipe", "runs in their phase", *[NUMBERS[name] for name in names]],
            [[r, found.count(r), *[cell(used[r], name) for name in names]] for r in used],
        )

    tell_filled(
        "contrasts", {"runs": found.rows, "verdicts": judged}, found,
        seeds=", ".join(map(str, found.seeds)), judged=len(judged), claims=_claims(judged),
        differences=by_recipe(DIFFERENCES, _difference), groupings=by_recipe(GROUPINGS, _spread),
        sensitivity=_sensitivity(used), missed=_missed(found.missed),
    )  # fmt: skip


def _contrasts(row: Row) -> RuleContrasts:
    return from_dict(RuleContrasts, row["contrasts"])


def _judged(found: Measured) -> list[Row]:
    """Every claim with its comparison over runs, Holm's p and what came of it."""
    numbers = found.table(lambda row: {name: _contrasts(row).number(name) for name in NUMBERS})
    rows = []
    for name, judgement in judge(CONTRASTS, numbers).items():
        claim = CONTRASTS.named(name)
        assert isinstance(claim.effect, Recipes)
        compared = claim.effect.compare(numbers["recipes"])
        about = {
            "text": claim.sentence, "source": claim.source, "number": claim.effect.number,
            "larger": claim.effect.larger, "smaller": claim.effect.smaller,
        }  # fmt: skip
        comparison = None if compared is None else to_dict(compared)
        result = {"verdict": judgement.verdict, "reason": judgement.reason}
        rows.append({"claim": about, "comparison": comparison, "holm": judgement.q_value, **result})
    return rows


def _difference(runs: Runs, name: str) -> str:
    tests: list[SimilarityContrast] = [getattr(run, name.split(".")[0]) for run in runs]
    if not runs or 1 / tests[0].n_permutations > LEVEL:
        return _spread(runs, name)
    return f"{_spread(runs, name)} [{sum(test.p_value <= LEVEL for test in tests)}]"


def _claims(judged: Sequence[Row]) -> str:
    lines = []
    for row in judged:
        claim, found, numbers = row["claim"], row["comparison"], [""] * 4
        if found is not None:
            runs = " and ".join(map(str, found["n"]))
            numbers = [runs, interval(found), f"{found['p_value']:.2g}", f"{row['holm']:.2g}"]
        tested = f"{claim['larger']} > {claim['smaller'] or '0'}"
        reason = f"{row['verdict']}: {row['reason']}"
        told = "**supported**" if row["verdict"] == "supported" else reason
        words = [claim["text"], claim["source"], NUMBERS[claim["number"]], tested]
        lines.append([*words, *numbers, told])
    head = ["claim", "source", "number", "tested", "n", "difference (95 % interval)", "p"]
    return table([*head, "Holm's p", "verdict"], lines)


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
