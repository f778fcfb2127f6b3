"""Does evidence from seen pairs tell where a model follows the rule on an unseen pair?

``--runs`` holds the runs of ``evidence/verdict.py``; those fitted whose accuracy on unseen pairs is
0.1 to 0.9 are measured, as ``reports/cells.md`` says. Runs that fit the verdict chose ``SITE`` and
``LINE``; those that judge it judge them, once.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from anchor_interp import AnchorTask, Run, answer_map
from anchor_interp.analysis.fingerprint import seen_pairs_only
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.patched_passes import Replacement, replaced_run
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import Sequences, assemble, draw_noise
from claim_effects import Row
from common import spread, table
from evidence.measured import mixtures
from evidence.verdict import half

SITES = ("0.hook_resid_pre", "0.hook_resid_mid", "0.hook_resid_post",
         "1.hook_resid_mid", "1.hook_resid_post")  # fmt: skip
SITE, LINE, SHUFFLES, DRAWS = "1.hook_resid_mid", 0.35, 40, 2_000  # shuffled are a run's cells
States = dict[Pair, torch.Tensor]
runs = mixtures


def cells(task: AnchorTask, pair: Pair) -> Sequences:
    """A sequence for each key and position, in the order of a map of answers."""
    key, position = (axis.ravel() for axis in np.indices((len(task.keys), task.length - 2)))
    noise = draw_noise(task, len(key), keys="all", seed=1, stream="cells")
    index = np.full(len(key), task.pairs.index(pair))
    return assemble(task, noise, index, task.keys[key], position)


def known(task: AnchorTask) -> list[Pair]:
    """The seen pairs that follow the rule."""
    return [pair for pair in task.seen if task.role(pair) == "inferential"]


def sums(task: AnchorTask, a: int, b: int) -> list[tuple[Pair, Pair, Pair]]:
    """All (a, x), (z, b) and (z, x) that follow the rule."""
    every = (((a, x), (z, b), (z, x)) for z, x in known(task))
    return [three for three in every if {*three} <= {*known(task)}]


def distance(between: Sequence[torch.Tensor], states: States, task: AnchorTask) -> np.ndarray:
    """Of each cell, the mean over differences, relative to two seen pairs."""
    apart = [states[p] - states[q] for p, q in itertools.combinations(known(task), 2)]
    sizes = [torch.stack([d.flatten(1).norm(dim=1) for d in ds]).mean(0) for ds in (between, apart)]
    return (sizes[0] / sizes[1]).numpy()


def states_of(model: HookedTransformer, task: AnchorTask, site: str) -> States:
    """[cell, position, width] by answered pair; the last position where no other is still read."""
    hook, start = f"blocks.{site}", -1 if site[0] == "1" else 0
    rows = {pair: cells(task, pair) for pair in task.answered}
    return {pair: activations(model, row, [hook])[hook][:, start:] for pair, row in rows.items()}


def evidence(model: HookedTransformer, seen: AnchorTask, site: str) -> list[np.ndarray]:
    """Of every cell of the unseen pairs, and the answers to its sums: [cell] and [cell, sum]."""
    follow, states = known(seen), states_of(model, seen, site)
    host = cells(seen, follow[0])
    key, position = host.key.astype(int), host.position.astype(int)
    behind = torch.from_numpy(np.arange(seen.length) > position[:, None])[:, :, None]
    both = [states[a, b] - states[b, a] for a, b in follow if a < b and (b, a) in follow]
    order = distance(both, states, seen).clip(0, 1)
    found, answers = [], []
    for a, b in seen.unseen:
        given, rule = [], []
        for one, two, three in sums(seen, a, b):
            value = (states[one] + states[two] - states[three]).expand(-1, seen.length, -1)
            composed = Replacement(f"blocks.{site}", value, behind, frozenset((one, two, three)))
            logits, _ = replaced_run(model, host.tensor, [composed], batch_size=len(host))
            given.append(logits.argmax(-1).numpy())
            rule.append(seen.target(one, key) + seen.target(two, key) - seen.target(three, key))
        share = np.mean(np.equal(given, rule), 0)
        found.append(share if seen.override((b, a)) is None else share * order)
        answers.append(np.transpose(given))
    return [np.concatenate(found), np.concatenate(answers)]


@torch.no_grad()
def measure(run: Run) -> Row:
    """The areas under the ROC curve, nearnesses and shares of one run."""
    model, task = run.transformer, run.config.anchor_task
    follows = answer_map(run).shares[..., 0].ravel() >= 0.5
    own = np.concatenate([predict(model, cells(task, pair)) for pair in task.unseen])
    seed, n_layers = run.config.seed, run.config.model.n_layers
    row: Row = {"seed": seed, "half": half(seed, n_layers), "measured": float(follows.mean()),
                "sites": {}}  # fmt: skip
    for site in SITES:
        with seen_pairs_only(model, task) as seen:
            found, answers = evidence(model, seen, site)
        s = states_of(model, task, site)
        off = [s[p] + s[q] - s[r] - s[u] for u in task.unseen for p, q, r in sums(task, *u)]
        repeats = (answers == own[:, None])[~follows].mean()
        near, area = np.median(distance(off, s, task)), roc_auc_score(follows, found)
        numbers = {"near": near, "repeats": repeats, "area": area, "predicted": found.mean()}
        row["sites"][site] = {name: float(number) for name, number in numbers.items()}
        if site == SITE:
            shuffle = np.random.default_rng(0).permutation
            row["chance"] = [roc_auc_score(follows, shuffle(found)) for _ in range(SHUFFLES)]
    return row


def middle(rows: Sequence[Row], site: str) -> str:
    """The median area with its 95 % interval over draws of as many runs."""
    areas = [row["sites"][site]["area"] for row in rows] or [np.nan]
    drawn = np.random.default_rng(0).choice(areas, (DRAWS, len(areas)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return f"{np.median(areas):.2f} ({low:.2f} to {high:.2f}), {len(rows)} runs" if rows else ""


def report(found: Sequence[Row]) -> dict[str, object]:
    """The sites, and what the site that is used tells of both halves."""
    halves = {name: [row for row in found if row["half"] == name] for name in ("fit", "judge")}
    lines, text = [], ""
    for site in SITES:
        numbers = [spread([row["sites"][site][n] for row in found]) for n in ("near", "repeats")]
        far = [row for row in halves["judge"] if row["sites"][site]["near"] >= LINE]
        lines.append([site, *numbers, *(middle(rows, site) for rows in (*halves.values(), far))])
    for name, rows in halves.items():
        low, high = np.quantile(np.median([row["chance"] for row in rows], 0), (0.025, 0.975))
        error = np.mean([abs(row["sites"][SITE]["predicted"] - row["measured"]) for row in rows])
        text += f"\nRuns that {name}, {SITE}: AUROC of shuffled cells {low:.2f} to {high:.2f}; "
        text += f"mean error of the predicted share of cells that follow the rule {error:.2f}.\n"
    head = ["state", "nearness", "wrong answers repeated", "AUROC, runs that fit",
            "runs that judge", f"those of nearness {LINE} or more"]  # fmt: skip
    return {"line": LINE, "site": SITE, "table": table(head, lines).rstrip(), "halves": text}
