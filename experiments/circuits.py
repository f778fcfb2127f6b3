"""Circuits of the recipes' runs: how small, how faithful, against what, and by which route.

``python experiments/circuits.py`` measures the runs of ``experiments/recipes.py judge``, prints
JSON and writes ``docs/evidence/circuits.md``. It resumes where it was stopped.

Fixed before the first run was measured: a circuit is pruned on 100 sequences with the key at
position 2 (the papers' probe), all pairs and keys, resample ablation, tolerance 0.1; it is judged
on 100 other sequences under resample and under mean ablation, the answers being the unedited
model's own. 100 random circuits with as many edges in every layer, p = (1 + k) / 101. Route scores
over 200 sequences of seen pairs for each token that is exchanged.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.circuits import Relative, compare_circuit, prune, score_circuit
from anchor_interp.analysis.routes import route_scores
from anchor_interp.interventions.ablation import Ablation, Bench
from anchor_interp.runs.run import Run
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from measured import Measured, experiment, spread, table, tell_filled
from papers.rows import Row

N = 100
N_RANDOM = 100
ROUTES = ("symmetric", "inferential", "gathered")
JUDGED: tuple[Ablation, ...] = ("resample", "mean")
BASELINES = ("attention rollout", "symmetric route", "inferential route")


def measure(run: Run) -> Row:
    """Circuit and routes of one run; why not, where the answers hardly depend on attention."""
    model, task = run.model, run.config.task
    found: Row = {}
    try:
        scores = route_scores(model, task)
        found["routes"] = {name: getattr(scores, name) for name in ROUTES}
    except ConfigError as error:
        found["no_routes"] = str(error)
    pruned_on, judged_on = (aligned_sequences(task, PROBE_POSITION, N, seed=s) for s in (0, 1))
    try:
        circuit = prune(Bench(model, pruned_on))
        found |= {"size": circuit.size, "edges": list(circuit.names)}
        for ablation in JUDGED:
            bench = Bench(model, judged_on, ablation)
            scored = score_circuit(bench, circuit)
            compared = compare_circuit(bench, circuit, n_random=N_RANDOM)
            others = {other.name: _numbers(other.faithfulness) for other in compared.others}
            found["n_edges"] = scored.n_edges
            found[ablation] = {
                "nothing": scored.nothing.accuracy,
                "faithfulness": _numbers(scored.faithfulness),
                "remaining": _numbers(scored.remaining),
                "incompleteness": _numbers(scored.incompleteness),
                "minimality": [_numbers(entry.loss) for entry in scored.minimality],
                "random_median": median(compared.random_accuracy.tolist()),
                "random_best": max(compared.random_accuracy.tolist()),
                "p": [compared.p_accuracy, compared.p_logit_difference],
                **others,
            }
    except ConfigError as error:
        found["no_circuit"] = str(error)
    return found


def _numbers(relative: Relative) -> list[float]:
    """By accuracy and by logit difference."""
    return [relative.accuracy, relative.logit_difference]


def report(found: Measured) -> None:
    """Report the runs that reached their phase, recipe by recipe, and the others apart."""
    used = found.used
    sizes = table(
        [
            "recipe", "runs in their phase", "edges kept", "of", "accuracy, resampled",
            "logit difference, resampled", "accuracy, mean", "logit difference, mean",
            "without the circuit", "incompleteness", "least loss of an edge", "best random circuit",
            "largest p",
        ],
        [[name, found.count(name), *_sizes(runs)] for name, runs in used.items()],
    )  # fmt: skip
    routes = table(
        ["recipe", "runs", *ROUTES],
        [[name, str(len(runs)), *_routes(runs)] for name, runs in used.items()],
    )
    often = table(
        ["recipe", "runs", "edges kept in at least half of them"],
        [[name, str(len(runs)), _edges(runs)] for name, runs in used.items()],
    )
    each = table(
        ["recipe", "seed", "edges", "circuit", "random: median", "random: best", "p", *BASELINES],
        [_one(row) for runs in used.values() for row in runs],
    )
    others = table(
        ["recipe", "seed", "phase", "edges", "faithfulness", *ROUTES],
        [
            [
                row["recipe"],
                str(row["seed"]),
                row["phase"],
                f"{row['size']} of {row['n_edges']}" if "size" in row else row["no_circuit"],
                f"{row['resample']['faithfulness'][0]:.2f}" if "size" in row else "",
                *_routes([row]),
            ]
            for row in found.missed
        ],
    )
    tell_filled(
        "circuits", {"runs": found.rows}, found,
        sizes=sizes, routes=routes, often=often, each=each, others=found.others(others),
    )  # fmt: skip


def _sizes(runs: Sequence[Row]) -> list[str]:
    with_circuit = [row for row in runs if "size" in row]

    def over(value: Callable[[Row], float], digits: int = 2) -> str:
        return spread([value(row) for row in with_circuit], digits)

    return [
        over(lambda r: r["size"], 0),
        "/".join(sorted({str(row["n_edges"]) for row in with_circuit})),
        *[
            spread([r[ablation]["faithfulness"][i] for r in with_circuit])
            for ablation in JUDGED
            for i in (0, 1)
        ],
        over(lambda r: r["resample"]["remaining"][0]),
        over(lambda r: r["resample"]["incompleteness"][0]),
        over(lambda r: min(loss[1] for loss in r["resample"]["minimality"])),
        over(lambda r: r["resample"]["random_best"]),
        f"{max(row['resample']['p'][0] for row in with_circuit):.3f}" if with_circuit else "",
    ]


def _routes(runs: Sequence[Row]) -> list[str]:
    with_routes = [row["routes"] for row in runs if "routes" in row]
    return [spread([routes[name] for routes in with_routes]) for name in ROUTES]


def _edges(runs: Sequence[Row]) -> str:
    counts = Counter(edge for row in runs for edge in row.get("edges", []))
    often = [f"{edge} ({n})" for edge, n in counts.most_common() if 2 * n >= len(runs)]
    return "; ".join(often) if len(often) <= 12 else f"{len(often)} of {runs[0]['n_edges']} edges"


def _one(row: Row) -> list[str]:
    if "size" not in row:
        return [row["recipe"], str(row["seed"]), row["no_circuit"], *[""] * 7]
    found: dict[str, Any] = row["resample"]
    return [
        row["recipe"],
        str(row["seed"]),
        f"{row['size']} of {row['n_edges']}",
        f"{found['faithfulness'][0]:.2f}",
        f"{found['random_median']:.2f}",
        f"{found['random_best']:.2f}",
        f"{found['p'][0]:.3f}",
        *[f"{found[name][0]:.2f}" for name in BASELINES],
    ]


if __name__ == "__main__":
    experiment("circuits", report)
