"""How the runs compute that the verdict names wrongly: their routes, circuits and answers.

``--runs`` holds the runs of ``evidence/verdict.py``; one whose kept weights are of another phase
than the judged ones is left out. Routes are path patching on seen pairs. A circuit is pruned at one
position of the key, once for the seen pairs and once for the unseen ones, on the model's own
answers.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from anchor_interp import ConfigError, EdgeAblation, Run, answer_map, load, prune, route_scores
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from claim_effects import Row, Rows
from common import table
from evidence.measured import EVIDENCE

N = 100
ROUTES = ("symmetric", "inferential", "gathered")


def wrong() -> list[Row]:
    """What the committed score says of every run that is named wrongly."""
    score = json.loads((EVIDENCE / "verdict.json").read_text(encoding="utf-8"))
    found: list[Row] = score["disagreements"]
    return found


def runs(folder: Path) -> Iterator[tuple[Row, Run]]:
    """The runs that are named wrongly, with what is known of them."""
    for about in wrong():
        run = load(folder / about["run_id"])
        if run.phase == about["phase"]:
            yield {"about": about}, run


def measure(run: Run) -> Row:
    """Routes, circuits and answers of one run."""
    task, found = run.config.anchor_task, answer_map(run)
    scores, by_rule = route_scores(run.model, task), found.shares[..., 0].mean((1, 2))
    seen, unseen = _circuit(run, task.seen), _circuit(run, found.pairs)
    return {
        "phase": run.phase,
        "routes": {name: getattr(scores, name) for name in ROUTES},
        "seen": seen, "unseen": unseen, "shared": len({*seen["edges"]} & {*unseen["edges"]}),
        "rule": dict(zip(map(str, found.pairs), by_rule.tolist(), strict=True)),
        "answers": found.sentence,
    }  # fmt: skip


def _circuit(run: Run, pairs: tuple[Pair, ...]) -> Row:
    """The pruned circuit of some pairs, and how faithful it is to all their answers."""
    sequences = aligned_sequences(run.config.anchor_task, PROBE_POSITION, N, seed=0, pairs=pairs)
    try:
        bench = EdgeAblation(run.model, sequences)
        circuit = prune(bench, quiet=True)
    except ConfigError as error:
        return {"edges": [], "of": 0, "why": str(error)}
    return {"edges": list(circuit.names), "of": int(bench.reachable.sum())}


def report(rows: Rows) -> dict[str, object]:
    """A line a run, and what all of them say."""
    sizes = {kind: [len(row[kind]["edges"]) for row in rows] for kind in ("seen", "unseen")}
    inferential = [row["routes"] for row in rows if row["phase"] == "inferential"]
    head = ["run", "phase", "routes", "edges for seen pairs", "edges for unseen pairs",
            "answers to unseen pairs"]  # fmt: skip
    data = {row["about"]["run_id"]: {k: v for k, v in row.items() if k != "about"} for row in rows}
    return {
        "data": data, "at": PROBE_POSITION, "n": N, "table": table(head, [*map(line, rows)]),
        "left_out": len(wrong()) - len(rows), "all": len(wrong()),
        "route": min(max(row["routes"].values()) for row in rows),
        "fewest": min(sizes["seen"]), "most": max(sizes["seen"]),
        "seen": sum(sizes["seen"]), "unseen": sum(sizes["unseen"]),
        "shared": sum(row["shared"] for row in rows),
        "added": sum(max(routes, key=routes.get) != "inferential" for routes in inferential),
    }  # fmt: skip


def line(row: Row) -> list[str]:
    """A run's row of the table."""
    seen, unseen = ("; ".join(row[kind]["edges"]) or "-" for kind in ("seen", "unseen"))
    routes = ", ".join(f"{name} {row['routes'][name]:z.2f}" for name in ROUTES)
    named = f"{row['about']['phase']}, named {row['about']['verdict']}"
    edges = f"{row['shared']} shared: {unseen}"
    return [row["about"]["settings"], named, routes, seen, edges, row["answers"]]
