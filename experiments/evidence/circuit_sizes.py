"""Rollout over sizes and pruning over seeds: how much of a circuit's lead depends on either.

The specimens of the inferential recipes are measured. Fixed before the first run: a circuit is
pruned on 100 sequences with the key at position 2 (the papers' probe), resample ablation with
references of their own, tolerance 0.1, once for each of five draws. All circuits and the rollouts
of 1 to 12 edges are judged on 100 further sequences.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from anchor_interp import EdgeAblation, Run, load, prune, score_circuit
from anchor_interp.analysis.rivals import rollouts
from anchor_interp.runs import zoo
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from claim_effects import Row, Rows
from common import say, spread, table

N = 100
DRAWS = range(5)
SIZES = range(1, 13)
JUDGED_ON = 1_000
"""Seed of the sequences that every circuit is judged on."""
RECIPES = ("inferential", "neurips-inferential")


def bench(run: Run, seed: int, n: int = N) -> EdgeAblation:
    """Sequences of a draw, with references of their own."""
    sequences, references = (
        aligned_sequences(run.config.anchor_task, PROBE_POSITION, n, seed=s)
        for s in (seed, seed + 1)
    )
    return EdgeAblation(run.model, sequences, "resample", references=references)


def runs(_: Path) -> Iterator[tuple[Row, Run]]:
    """The specimens."""
    for name in zoo.names():
        if name.split("/")[1] in RECIPES:
            yield {"name": name}, load(name)


def measure(run: Run) -> Row:
    """The circuits of one specimen by draw, and the rollouts by size."""
    judge = bench(run, JUDGED_ON)
    by_size = {one.size: one.faithfulness.accuracy for one in rollouts(judge, SIZES)}
    found: Row = {"n_edges": int(judge.reachable.sum()), "rollout": by_size}
    found["pruned"] = []
    for draw in DRAWS:
        say(f"circuit_sizes: {run.name}, draw {draw}")
        circuit = prune(bench(run, 2 * draw), quiet=True)
        accuracy = score_circuit(judge, circuit, n_subsets=0).faithfulness.accuracy
        edges = list(circuit.names)
        found["pruned"].append({"size": circuit.size, "edges": edges, "faithfulness": accuracy})
    return found


def needed(row: Row, least: float) -> str:
    """The fewest edges from which on the rollout stays at least this faithful."""
    low = [size for size, accuracy in row["rollout"].items() if accuracy < least]
    first = max(low, default=0) + 1
    return str(first) if first in row["rollout"] else f"more than {max(SIZES)}"


def report(rows: Rows) -> dict[str, object]:
    """A line a specimen, once by draw and once by size."""
    lines, curves = [], []
    for row in rows:
        sizes = Counter(one["size"] for one in row["pruned"])
        faithful = [one["faithfulness"] for one in row["pruned"]]
        same = [row["rollout"].get(one["size"], float("nan")) for one in row["pruned"]]
        how = ", ".join(f"{size} ({times})" for size, times in sorted(sizes.items()))
        kept = Counter(edge for one in row["pruned"] for edge in one["edges"])
        always = [edge for edge, times in kept.items() if times == len(row["pruned"])]
        lines.append([row["name"], how, str(row["n_edges"]), spread(faithful), spread(same),
                      needed(row, 0.9), "; ".join(always)])  # fmt: skip
        curves.append([row["name"], *(f"{accuracy:z.2f}" for accuracy in row["rollout"].values())])
    head = ["model", "edges kept (draws)", "of", "faithfulness", "rollout with as many edges",
            "edges that the rollout needs for 0.9", "edges kept in every draw"]  # fmt: skip
    drawn, by_size = table(head, lines), table(["model", *map(str, SIZES)], curves)
    return {"draws": len(DRAWS), "n": N, "lines": drawn, "curves": by_size}
