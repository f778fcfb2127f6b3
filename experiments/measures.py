"""What a study measures of its runs beside their evaluation: plain numbers by name.

A run keeps them in its folder (:mod:`anchor_interp.runs.measurements`).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anchor_interp import Run, along, answer_map, route_scores
from anchor_interp._util.errors import StoreError
from anchor_interp.analysis.fingerprint_numbers import FINGERPRINT, NUMBERS
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.runs.measurements import Measure, kept
from anchor_interp.tasks.sequences import draw
from claim_effects import Row, never_came, number_of
from learning_order import broken_pairs, detection, lateness, learning_curves

Numbers = dict[str, float | str | None]  # columns of a study's table: numbers, or a phase's name

# Training losses, in nats: 0.05 is where data count as fitted (NeurIPS paper, section 6).
LEVELS: Mapping[str, float] = {"steps_to_loss": 0.05, "steps_to_half": 0.5}
MATCHED = 0.999  # the ID accuracy at which corners on addition are compared
APART = 0.1  # by how much a kind of anchors comes to have larger cosines than two have
_LOGGED = 5
CURVE, CURVE_POINTS = "held_out_loss_", 15  # held-out losses along the training of a language model


def raw(run: Run) -> Numbers:
    """Mean raw cosines of the items that the papers show, where their values are equal.

    X_ao L1 (NeurIPS paper, figure 4a, 4b), V L1 (figure 4c), and the outputs under a second-anchor
    mask (complexity-control paper, figure 4D).
    """
    model, task = run.model, run.config.anchor_task

    found = {"answer_raw": answer_similarity(model, task),
             "value_raw": value_similarity(model, task),
             "blocks_raw": block_similarity(model, task)}  # fmt: skip
    equal = {n: np.triu(one.values[:, None] == one.values, 1) for n, one in found.items()}
    return {name: float(one.cosine[equal[name]].mean()) for name, one in found.items()}


def answers(run: Run) -> Numbers:
    """How the answers to unseen pairs are mixed (:func:`anchor_interp.answer_map`).

    ``mixed`` is 1 if no function holds in nine of ten cells. ``by_cell`` is the share of the
    variance of "follows the rule" that key and position explain, if the rule's share is from 0.1 to
    0.9. ``borrowed_near`` is the share of borrowed cells whose seen pair shares an anchor with the
    unseen one, less what it is if every borrowed function is as likely; None below 20 such cells.
    """
    task, found = run.config.anchor_task, answer_map(run)
    rule, explained = float(found.shares[..., 0].mean()), found.explained
    targets = {pair: task.target(pair, task.keys) for pair in task.seen}
    named, near = {str(pair): target for pair, target in targets.items()}, []
    for (a, b), row in zip(found.pairs, found.holding, strict=True):
        borrowed = {}
        for i, name in enumerate(found.functions):
            if (own := named.get(name.partition(":")[0])) is not None:
                alike = [pair for pair, target in targets.items() if np.array_equal(target, own)]
                borrowed[i] = any({a, b} & {*pair} for pair in alike)
        cells = row[np.isin(row, [*borrowed])]
        near += [borrowed[i] - np.mean([*borrowed.values()]) for i in cells.tolist()]
    return {
        "mixed": float(max(found.cells.values()) < 0.9),
        "by_cell": explained.cell if explained and 0.1 <= rule <= 0.9 else None,
        "borrowed_near": float(np.mean(near)) if len(near) >= 20 else None,
    }


def learning(run: Run) -> Numbers:
    """The first step at which the mean of five logged losses is at most each of :data:`LEVELS`.

    None for a run that never comes there.
    """
    logged = [(row["step"], row["loss"]) for row in run.metrics if "loss" in row]
    if len(logged) < _LOGGED:
        raise StoreError(f"{run.folder.path} has {len(logged)} logged losses; {_LOGGED} are needed")
    steps, losses = map(np.array, zip(*logged, strict=True))
    means = np.convolve(losses, np.full(_LOGGED, 1 / _LOGGED), mode="valid")
    ends = [*zip(means, steps[_LOGGED - 1 :].tolist(), strict=True)]
    first: Numbers = {name: next((float(step) for loss, step in ends if loss <= level), None)
             for name, level in LEVELS.items()}  # fmt: skip
    return {"final_loss": float(means[-1]), **first}


def matched(run: Run) -> Numbers:
    """Where the ID accuracy is 0.999 at a second evaluation in a row: the step, OOD accuracy there.

    None for a run that never comes there.
    """
    judged = [row for row in run.metrics if "id_accuracy" in row]
    both = itertools.pairwise(judged)
    there = next((b for a, b in both if min(a["id_accuracy"], b["id_accuracy"]) >= MATCHED), {})
    return {"matched_step": there.get("step"), "matched_ood": there.get("ood_accuracy")}


def routes(run: Run) -> Numbers:
    """When the inferential route, on seen pairs, and OOD accuracy have passed one half.

    Each at the first of three checkpoints in a row at which it is one half or more; None without
    such. ``route_at_answers`` is the route's score when the answers have.
    """
    route = {row["step"]: row["value"] for row in _rows_along(run, inferential_route)}
    ood = {row["step"]: row["ood_accuracy"] for row in run.metrics if "ood_accuracy" in row}
    answered = passed({step: ood[step] for step in route}, 3)
    return {"route_step": passed(route, 3), "answers_step": answered,
            "route_at_answers": None if answered is None else route[int(answered)]}  # fmt: skip


def inferential_route(subject: Subject) -> float:
    """The score of the inferential route on seen pairs."""
    return route_scores(subject, seen_only=True).inferential


def parts(run: Run) -> Numbers:
    """When the reasoning and the memory part are half right, and when their anchors are apart.

    A part is never later than the last step; anchors that are never apart have None.
    """
    found = _rows_along(run, two_parts)
    least = dict.fromkeys(("reasoning", "memory"), 0.5)
    least |= {name: found[0][name] + APART for name in ("embedding_apart", "value_apart")}
    steps: Numbers = {
        f"{name}_step": passed({row["step"]: row[name] for row in found}, 2, value)
        for name, value in least.items()
    }
    for name in ("reasoning", "memory"):
        steps[f"{name}_half"] = float(steps[f"{name}_step"] is not None)
        steps[f"{name}_step"] = steps[f"{name}_step"] or float(run.steps[-1])
    return steps


def two_parts(subject: Subject) -> dict[str, float]:
    """Accuracy on both kinds of pairs, and how far the anchors of both kinds are apart.

    ``*_apart`` is the mean cosine of anchors of one kind minus that of anchors of two: rows of W_E,
    and these rows times W_V W_O of layer 0.
    """
    task, model = subject.anchor_task, subject.model
    own = [pair for pair in task.seen if task.override(pair)]
    kinds = {"reasoning": [pair for pair in task.seen if pair not in own], "memory": own}
    found = {}
    for name, pairs in kinds.items():
        drawn = draw(task, pairs, "train", 640, seed=2, stream="parts")
        found[name] = float((predict(model, drawn) == drawn.targets).mean())
    memory = np.array([any(token in pair for pair in own) for token in task.tokens])
    rows = model.W_E[list(task.tokens)].detach().double()
    value = sum(rows @ (v @ o) for v, o in zip(model.W_V[0].double(), model.W_O[0].double(),
                                               strict=True))  # fmt: skip
    for name, vectors in (("embedding", rows), ("value", value)):
        unit = (vectors / vectors.norm(dim=-1, keepdim=True)).detach().cpu().numpy()
        cosine, alike = unit @ unit.T, memory[:, None] == memory
        within = alike & ~np.eye(len(unit), dtype=bool)
        found[f"{name}_apart"] = float(cosine[within].mean() - cosine[~alike].mean())
    return found


def _rows_along(run: Run, function: Callable[[Subject], Any]) -> Sequence[Mapping[str, Any]]:
    """The numbers of every checkpoint, which may be NaN; StoreError where the function failed."""
    rows = along(run, function, subject=True).rows
    for row in rows:
        if row["reason"] and not row["reason"].endswith(": not finite"):
            raise StoreError(f"{run.name} at step {row['step']}: {row['reason']}")
    return rows


def passed(values: Mapping[int, float], n: int, least: float = 0.5) -> float | None:
    """The first of so many steps in a row at which a number is large enough; None without such."""
    steps, there = [*values], [value >= least for value in values.values()]
    runs = (steps[i] for i in range(len(steps) - n + 1) if all(there[i : i + n]))
    return next(map(float, runs), None)


def pairs(run: Run) -> Numbers:
    """When each ordered pair is learned, its mean loss, and how well these find broken pairs.

    A pair that is not learned at the end counts as learned then.
    """
    curves = learning_curves(run)
    late, loss = lateness(curves), curves.loss.mean(0)
    found: Numbers = {"never_learned": float(np.isinf(late).sum())}
    for (a, b), step, value in zip(curves.pairs, late, loss, strict=True):
        found[f"late_pair_{a}{b}"] = float(min(step, curves.steps[-1]))
        found[f"loss_pair_{a}{b}"] = float(value)
    if broken := broken_pairs(run.config.anchor_task):
        for name, scores in (("late", late), ("loss", loss), ("final", curves.loss[-1])):
            areas = detection(scores, curves.pairs, broken)
            found |= {f"auroc_{name}": areas.auroc, f"auroc_{name}_neighbours": areas.neighbours,
                      f"auroc_{name}_strangers": areas.strangers}  # fmt: skip
    return found


def embedding(run: Run) -> Numbers:
    """How far arithmetic steps stand out of the embedding, as z scores."""
    steps = embedding_structure(key_embeddings(run.model, run.config.anchor_task)).steps
    z = (steps.closeness - steps.expected) / steps.spread
    return {f"step_z_{step}": float(z[steps.steps == step][0]) for step in range(2, 7)}


def language(run: Run) -> Numbers:
    """Held-out loss in nats at the end and along training, bits per byte, loss on the other part.

    The end is judged on other windows than the points along training.
    """
    by_role = {score.role: score for score in run.evaluation.splits}
    held_out, other = by_role["id"], by_role.get("ood")
    losses = [row["id_loss"] for row in run.metrics if "id_loss" in row][1:]
    if (n := len(losses)) != CURVE_POINTS:
        raise StoreError(f"{run.folder.path} has {n} held-out losses; expected {CURVE_POINTS}")
    return {
        "held_out_loss": held_out.loss, "held_out_bits": held_out.bits_per_byte,
        "other_loss": other and other.loss,
        **{f"{CURVE}{point:02}": loss for point, loss in enumerate(losses, 1)},
    }  # fmt: skip


def attributes(run: Run) -> Numbers:
    """The share of drawings of which each attribute is right, by split: such as ``ood_shape``."""
    return {f"{split.name}_{score.value}": score.accuracy
            for split in run.evaluation.splits for score in split.aspects
            if score.aspect == "attribute"}  # fmt: skip


_PLAIN = ("raw", "answers", "pairs", "language", "embedding", "attributes", "matched", "routes",
          "parts")  # fmt: skip
MEASURES = {name: Measure(name, f"{__name__}:{name}") for name in _PLAIN} | {
    "mechanism": FINGERPRINT,
    "learning": Measure("learning", f"{__name__}:learning", version=2),
}


def numbers(run: Path, name: str, step: int) -> Numbers | None:
    """The numbers that a run folder keeps of a checkpoint; None if they have to be measured."""
    found = kept(run, MEASURES[name], step)
    if found is None or name != "mechanism":
        return found
    return {number: found[number] for number in NUMBERS}


def log_steps(row: Row) -> float | None:
    """Natural logarithm of the steps to a training loss of 0.05, or of all steps without it."""
    if row.get("final_loss") is None:  # not measured
        return None
    steps = row["steps"] if never_came(row) else row["steps_to_loss"]
    return math.log(steps)


def rank_share(row: Row) -> float | None:
    """Stable rank of W_Q L0 over its value at initialisation."""
    rank, at_init = number_of(row, "stable_rank"), number_of(row, "stable_rank_at_init")
    return rank / at_init if rank is not None and at_init else None
