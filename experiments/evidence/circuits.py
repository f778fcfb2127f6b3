"""Circuits of the recipes' runs: how small, how faithful, against what, and by which route.

Fixed before the first run was measured: a circuit is pruned on 100 sequences with the key at
position 2 (the papers' probe), all pairs and keys, resample ablation, tolerance 0.1; it is judged
on 100 other sequences under resample and under mean ablation, the answers being the unedited
model's own. 100 random circuits with as many edges in every layer, p = (1 + k) / 101. Route scores
over 200 sequences of seen pairs for each token that is exchanged.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from anchor_interp import ConfigError, Run, route_scores
from anchor_interp.analysis.circuits import Performance, prune, score_circuit
from anchor_interp.analysis.rivals import compare_circuit
from anchor_interp.interventions.ablation_bench import Ablation, EdgeAblation
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from claim_effects import Row, Rows
from common import spread, table
from evidence.measured import count, ends, others, used

N = 100
N_RANDOM = 100
ROUTES = ("symmetric", "inferential", "gathered")
JUDGED: tuple[Ablation, ...] = ("resample", "mean")
BASELINES = ("attention rollout", "symmetric route", "inferential route")


def measure(run: Run) -> Row:
    """Circuit and routes of one run; why not, where the answers hardly depend on attention."""
    model, task = run.model, run.config.anchor_task
    scores = route_scores(model, task)
    found: Row = {"no_routes": scores.reason}
    if scores.reason is None:
        found = {"routes": {name: getattr(scores, name) for name in ROUTES}}
    pruned_on, judged_on = (aligned_sequences(task, PROBE_POSITION, N, seed=s) for s in (0, 1))
    try:
        circuit = prune(EdgeAblation(model, pruned_on))
        found |= {"size": circuit.size, "edges": list(circuit.names)}
        for ablation in JUDGED:
            bench = EdgeAblation(model, judged_on, ablation)
            scored = score_circuit(bench, circuit)
            compared = compare_circuit(bench, circuit, n_random=N_RANDOM)
            random = compared.random_accuracy.tolist()
            found["n_edges"] = scored.n_edges
            found[ablation] = {
                "nothing": scored.nothing.accuracy,
                **{name: _numbers(getattr(scored, name))
                   for name in ("faithfulness", "remaining", "incompleteness")},
                "minimality": [_numbers(entry.loss) for entry in scored.minimality],
                "random_median": median(random), "random_best": max(random),
                "p": [compared.p_accuracy, compared.p_logit_difference],
                **{other.name: _numbers(other.faithfulness) for other in compared.others},
            }  # fmt: skip
    except ConfigError as error:
        found["no_circuit"] = str(error)
    return found


def _numbers(relative: Performance) -> list[float]:
    """By accuracy and by logit difference."""
    return [relative.accuracy, relative.logit_difference]


def report(rows: Rows) -> dict[str, object]:
    """The runs that reached their phase, recipe by recipe, and the others apart."""
    mine = used(rows)
    head = ["recipe", "runs in their phase", "edges kept", "of", "accuracy, resampled",
            "logit difference, resampled", "accuracy, mean", "logit difference, mean",
            "without the circuit", "incompleteness", "least loss of an edge",
            "best random circuit", "largest p"]  # fmt: skip
    sizes = table(head, [[name, count(rows, name), *_sizes(runs)] for name, runs in mine.items()])
    counts = {name: [name, str(len(runs))] for name, runs in mine.items()}
    routes = [[*counts[name], *_routes(runs)] for name, runs in mine.items()]
    often = [[*counts[name], _edges(runs)] for name, runs in mine.items()]
    one = ["recipe", "seed", "edges", "circuit", "random: median", "random: best", "p", *BASELINES]
    return {
        "sizes": sizes,
        "routes": table(["recipe", "runs", *ROUTES], routes),
        "often": table(["recipe", "runs", "edges kept in at least half of them"], often),
        "each": table(one, [_one(row) for runs in mine.values() for row in runs]),
        "others": others(rows, ["edges", "faithfulness", *ROUTES], _missed),
        **ends(rows),
    }


def _sizes(runs: Sequence[Row]) -> list[str]:
    pruned = [row for row in runs if "size" in row]
    resampled = [row["resample"] for row in pruned]
    return [
        spread([row["size"] for row in pruned], 0),
        "/".join(sorted({str(row["n_edges"]) for row in pruned})),
        *(spread([r[way]["faithfulness"][i] for r in pruned]) for way in JUDGED for i in (0, 1)),
        *(spread([r[name][0] for r in resampled]) for name in ("remaining", "incompleteness")),
        spread([min(loss[1] for loss in r["minimality"]) for r in resampled]),
        spread([r["random_best"] for r in resampled]),
        f"{max(r['p'][0] for r in resampled):.3f}" if pruned else "",
    ]


def _size(row: Row) -> str:
    return f"{row['size']} of {row['n_edges']}" if "size" in row else row["no_circuit"]


def _missed(row: Row) -> list[str]:
    faithful = f"{row['resample']['faithfulness'][0]:.2f}" if "size" in row else ""
    return [_size(row), faithful, *_routes([row])]


def _routes(runs: Sequence[Row]) -> list[str]:
    with_routes = [row["routes"] for row in runs if "routes" in row]
    return [spread([routes[name] for routes in with_routes]) for name in ROUTES]


def _edges(runs: Sequence[Row]) -> str:
    counts = Counter(edge for row in runs for edge in row.get("edges", []))
    often = [f"{edge} ({n})" for edge, n in counts.most_common() if 2 * n >= len(runs)]
    return "; ".join(often) if len(often) <= 12 else f"{len(often)} of {runs[0]['n_edges']} edges"


def _one(row: Row) -> list[str]:
    begin = [row["recipe"], str(row["seed"]), _size(row)]
    if "size" not in row:
        return begin + [""] * 7
    found: dict[str, Any] = row["resample"]
    shares = [found["faithfulness"][0], found["random_median"], found["random_best"]]
    baselines = [f"{found[name][0]:.2f}" for name in BASELINES]
    return [*begin, *(f"{share:.2f}" for share in shares), f"{found['p'][0]:.3f}", *baselines]
