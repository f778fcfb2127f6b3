"""How the runs compute that the verdict names wrongly: their routes, circuits and answers.

``python experiments/failures.py --runs FOLDER > docs/evidence/failures.json`` takes the runs of
``papers/verdict_runs.py``; one whose kept weights are of another phase than the judged ones is left
out. Routes are path patching on seen pairs. A circuit is pruned at one position of the key, once
for the seen pairs and once for the unseen ones, on the model's own answers.
"""

import json

from anchor_interp import answer_map, load
from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp.analysis.circuits import prune
from anchor_interp.analysis.routes import route_scores
from anchor_interp.interventions.edge_ablation import EdgeAblation
from anchor_interp.runs.run import Run
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from measured import EVIDENCE, runs_folder, table, tell
from papers.rows import Row

N = 100
ROUTES = ("symmetric", "inferential", "gathered")


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


def line(about: Row, found: Row) -> list[str]:
    """A run's row of the table."""
    seen, unseen = ("; ".join(found[kind]["edges"]) or "-" for kind in ("seen", "unseen"))
    unseen = f"{found['shared']} shared: {unseen}"
    routes = ", ".join(f"{name} {found['routes'][name]:z.2f}" for name in ROUTES)
    named = f"{about['phase']}, named {about['verdict']}"
    return [about["settings"], named, routes, seen, unseen, found["answers"]]


if __name__ == "__main__":
    folder = runs_folder("How runs compute that have a wrong verdict.")
    wrong = json.loads((EVIDENCE / "claims.json").read_text())["verdict"]["disagreements"]
    try:
        runs = [load(folder / each["run_id"]) for each in wrong]
    except AnchorInterpError as error:
        raise SystemExit(
            f"failures: --runs holds the runs that are named wrongly; {error}"
        ) from error
    same = [(about, measure(run)) for about, run in zip(wrong, runs, strict=True)
            if run.phase == about["phase"]]  # fmt: skip
    found = {about["run_id"]: row for about, row in same}
    sizes = {kind: [len(row[kind]["edges"]) for row in found.values()]
             for kind in ("seen", "unseen")}  # fmt: skip
    inferential = [row["routes"] for row in found.values() if row["phase"] == "inferential"]
    head = ["run", "phase", "routes", "edges for seen pairs", "edges for unseen pairs",
            "answers to unseen pairs"]  # fmt: skip
    numbers = {
        "at": PROBE_POSITION, "n": N, "table": table(head, [line(*both) for both in same]),
        "left_out": len(wrong) - len(same), "all": len(wrong),
        "route": min(max(row["routes"].values()) for row in found.values()),
        "fewest": min(sizes["seen"]), "most": max(sizes["seen"]),
        "seen": sum(sizes["seen"]), "unseen": sum(sizes["unseen"]),
        "shared": sum(row["shared"] for row in found.values()),
        "added": sum(max(routes, key=routes.get) != "inferential" for routes in inferential),
    }  # fmt: skip
    tell("failures", found, **numbers)
