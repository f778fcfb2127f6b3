"""Interchange interventions in the recipes' runs: does g(x; a1) stand at the first anchor?

The residual stream after layer 0 at the first anchor is exchanged. It counts the share of 1,000
sequences with test keys that are answered with g(g(x'; a1'); a2), (x', a1') from another sequence:
after an exchange of all of the activation (plain), along the 16 directions that a search found on
sequences with training keys (searched), and along 16 random ones. The search's control is the same
search with the answers renamed by one random permutation, on the sequences that it is fitted on and
on those that judge it: what it reaches there, the search makes of the model by itself (control
task: Hewitt and Liang 2019). Only keys are held out: values g(x'; a1') and second anchors meet in
both. Memorizing runs know no test keys, so plain is measured on training keys too. A difference
between an inferential recipe and another one of its task counts with p <= 0.05 after Holm's
correction over the table.
"""

from anchor_interp import Run, Site
from anchor_interp.interventions.interchange import (
    Subspace,
    interchange,
    learn_subspace,
    random_subspace,
    renamed_answers,
)
from anchor_interp.tasks.counterfactuals import InterchangePairs, interchange_pairs
from claim_effects import Row, Rows
from common import spread, table
from evidence.measured import count, ends, used

SITE = Site("resid_post", 0, "first")
DIMENSIONS = 16
WAYS = {
    "plain": "all of it", "familiar": "all of it, training keys", "searched": "searched, k = 16",
    "control": "searched, k = 16, answers renamed", "random": "random, k = 16",
}  # fmt: skip
OTHERS = ("base", "source", "anchor_moved", "key_moved", "untouched")


def measure(run: Run) -> Row:
    """All ways of one run."""
    model, task = run.model, run.config.anchor_task
    fitted = interchange_pairs(task, 4_000, seed=0, keys="train")
    held_out = interchange_pairs(task, 1_000, seed=1, keys="test")
    familiar = interchange_pairs(task, 1_000, seed=1, keys="train")

    def searched(pairs: InterchangePairs) -> Subspace:
        return learn_subspace(model, pairs, SITE, DIMENSIONS, seed=0, batch_size=64, quiet=True)

    found = searched(fitted)
    renamed = [renamed_answers(task, pairs, seed=0) for pairs in (held_out, fitted)]
    exchanges: dict[str, tuple[InterchangePairs, Subspace | None]] = {
        "plain": (held_out, None), "familiar": (familiar, None), "searched": (held_out, found),
        "control": (renamed[0], searched(renamed[1])),
        "random": (held_out, random_subspace(len(found.basis), DIMENSIONS, seed=0)),
    }  # fmt: skip
    results = {way: interchange(model, pairs, SITE, subspace=subspace)
               for way, (pairs, subspace) in exchanges.items()}  # fmt: skip
    shares = ("counterfactual", *OTHERS)
    return {way: {s: getattr(result, s) for s in shares} for way, result in results.items()}


def report(rows: Rows) -> dict[str, object]:
    """The shares of the recipes' runs that reached their phase."""
    head = ["recipe", "runs in their phase", *WAYS.values(), "base's answer", "source's answer",
            "(x; a1', a2)", "(x'; a1, a2)", "right when nothing is exchanged"]  # fmt: skip
    lines = [
        [name, count(rows, name),
         *[spread([row[way]["counterfactual"] for row in runs]) for way in WAYS],
         *[spread([row["plain"][share] for row in runs]) for share in OTHERS]]
        for name, runs in used(rows).items()
    ]  # fmt: skip
    return {"shares": table(head, lines), **ends(rows)}
