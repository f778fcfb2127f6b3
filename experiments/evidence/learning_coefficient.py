"""Does the local learning coefficient tell inferential runs better than the stable rank does?

The specimens and the finished runs of ``--runs`` are measured; undertrained ones are left out.

The runs existed, with their weights: random settings (seeds 7010000 to 7040008) and the specimens.
What judges was written down before the measure was taken of any: the area under the ROC curve of
inferential runs by a smaller share of the coefficient in half the parameters, minus that by a
smaller share of the stable rank in its initial value, over 55 runs (which find 0.23 with 80 % at a
spread of 0.6). Supported: at least 0.1, and the bootstrap's 95 % interval over runs above 0. Not
supported: the interval below 0.1. The sampler's settings are the defaults of
:mod:`anchor_interp.analysis.learning_coefficient`, chosen so that chains come to rest on new runs
of three recipes (seed 600): a symmetric one had 17, an inferential one 9, a memorizing one 1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from sklearn.metrics import roc_auc_score

from anchor_interp import Run, learning_coefficient, load
from anchor_interp._util.errors import StoreError
from anchor_interp.models.complexity import first_query_matrix
from anchor_interp.models.matrix_complexity import stable_rank
from anchor_interp.runs import zoo
from claim_effects import Row
from common import table
from evidence.measured import finished

LEAST, PLANNED = 0.1, 55
DRAWS = 10_000
SHARES = {
    "coefficient_share": "coefficient / half the parameters",
    "rank_share": "stable rank of W_Q L0 / its initial value",
}


def runs(folder: Path) -> Iterator[tuple[Row, Run]]:
    """The specimens, and the finished runs."""
    for name in zoo.names():
        yield {"run": name, "phase": (run := load(name)).phase}, run
    yield from finished(folder)


def measure(run: Run) -> Row:
    """The coefficient by chain, as a share, and the share of the stable rank."""
    chains = learning_coefficient(run)
    n_parameters = sum(weight.numel() for weight in run.model.parameters())
    ranks = [stable_rank(first_query_matrix(each)) for each in (run.model, run.initial)]
    mean = float(chains.mean())
    return {"chains": chains.tolist(), "coefficient": mean,
            "coefficient_share": 2 * mean / n_parameters, "rank_share": ranks[0] / ranks[1],
            "n_parameters": n_parameters}  # fmt: skip


def area(rows: Sequence[Row], share: str) -> float:
    """The area under the ROC curve of inferential runs by a smaller share."""
    inferential = [row["phase"] == "inferential" for row in rows]
    return float(roc_auc_score(inferential, [-row[share] for row in rows]))


def difference(rows: Sequence[Row]) -> float:
    """What is judged: the area of the coefficient minus that of the stable rank."""
    areas = [area(rows, share) for share in SHARES]
    return areas[0] - areas[1]


def interval(rows: Sequence[Row]) -> list[float]:
    """The 95 % interval of the difference over draws of as many runs of each kind."""
    generator, drawn = np.random.default_rng(0), []
    kinds = [[r for r in rows if (r["phase"] == "inferential") == kind] for kind in (True, False)]
    for _ in range(DRAWS):
        picked = [kind[i] for kind in kinds for i in generator.integers(len(kind), size=len(kind))]
        drawn.append(difference(picked))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return [float(low), float(high)]


def report(rows: Sequence[Row]) -> dict[str, object]:
    """The verdict on the claim, and both shares by phase."""
    judged = [row for row in rows if row["phase"] != "undertrained"]
    if 2 * len(judged) < PLANNED:
        raise StoreError(f"{len(judged)} fitted runs are too few; {PLANNED} were planned")
    effect, (low, high) = difference(judged), interval(judged)
    verdict = "inconclusive"
    if high < LEAST:
        verdict = "not supported"
    elif effect >= LEAST and low > 0:
        verdict = "supported"
    head = ["phase", "runs", "coefficient", *SHARES.values()]
    lines = []
    for phase, n in Counter(row["phase"] for row in judged).most_common():
        mine = [row for row in judged if row["phase"] == phase]
        values = [median(row[name] for row in mine) for name in ("coefficient", *SHARES)]
        lines.append([phase, str(n), *(f"{value:.3g}" for value in values)])
    areas = {name: area(judged, name) for name in SHARES}
    two = [row for row in judged if row["phase"] in ("symmetric", "inferential")]
    beside = [area(two, name) for name in SHARES]
    found = {"difference": effect, "interval": [low, high], "verdict": verdict, "areas": areas,
             "n": len(judged), "runs": list(rows)}  # fmt: skip
    return {"data": found, "verdict": verdict.capitalize(), "n": len(judged), "areas": areas,
            "beside": beside, "effect": effect, "low": low, "high": high, "least": LEAST,
            "table": table(head, lines)}  # fmt: skip
