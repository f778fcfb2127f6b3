"""Attacks on trained models: the answers stay, something inside moves, and the verdict holds.

It breaks under training on virtual anchors alone, which reads as computation (docs/verdict.md).

An attack is an exact edit, or a short training on the divergence from the model's own answers,
which keeps them, and on a term of its own.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anchor_interp as ai
from anchor_interp.analysis.fingerprint import fingerprint_model
from anchor_interp.analysis.verdict import LINES, verdict
from anchor_interp.behaviour.evaluation import accuracy, predict
from anchor_interp.interventions.virtual_anchors import _virtual_pairs
from anchor_interp.models.transformer import HookedTransformer, empty_model, place
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import Sequences, assemble, draw

pytestmark = pytest.mark.slow
STATE = "blocks.0.hook_resid_mid"
"""What the last position has gathered after layer 0: X_ao."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one step, with what the model makes of them."""

    model: HookedTransformer
    task: AnchorTask
    step: int
    sequences: Sequences
    logits: torch.Tensor
    state: torch.Tensor
    """:data:`STATE` at the last position."""


@dataclass(frozen=True)
class Attack:
    term: Callable[[Batch], torch.Tensor]
    reached: float
    """The attack has reached its goal if the term is less."""
    steps: int = 100
    keep: float = 10.0
    """Weight of the divergence from the model's own answers."""


def batch(model: HookedTransformer, task: AnchorTask, pairs: tuple[Pair, ...], step: int) -> Batch:
    sequences = draw(task, pairs, "all", 128, seed=step, stream="attack")
    logits, state = passed(model, sequences)
    return Batch(model, task, step, sequences, logits, state[:, -1])


def passed(model: HookedTransformer, sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits at the last position, and :data:`STATE` at every one."""
    states = []
    hook = (STATE, lambda state, **_: states.append(state))
    logits = model.run_with_hooks(sequences.tensor, fwd_hooks=[hook])
    return logits[:, -1], states[0]


def finetuned(run: Run, attack: Attack, pairs: tuple[Pair, ...]) -> HookedTransformer:
    """A copy of a run's model, trained to keep its answers to ``pairs`` and to lower the term."""
    task, before = run.config.anchor_task, run.transformer
    model = copy.deepcopy(before).requires_grad_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    answers = possible(task)
    for step in range(attack.steps):
        now = batch(model, task, pairs, step)
        with torch.no_grad():
            own = passed(before, now.sequences)[0][:, answers].log_softmax(-1)
        given = now.logits[:, answers].log_softmax(-1)
        kept = F.kl_div(given, own, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        torch.autograd.backward(attack.keep * kept + attack.term(now))
        optimizer.step()
    return model.requires_grad_(requires_grad=False)


def possible(task: AnchorTask) -> torch.Tensor:
    """The tokens that are the answer to something."""
    composed = [task.composed(pair, task.keys) for pair in task.pairs]
    return torch.from_numpy(np.union1d(composed, task.target_table[task.target_table >= 0]))


def order(now: Batch) -> torch.Tensor:
    """Change of the state if the anchors change places / if another pair takes their place."""
    task, pair = now.task, now.sequences.pair.astype(int)
    key, position = (each.astype(int) for each in (now.sequences.key, now.sequences.position))
    mirror = np.array([task.pairs.index((b, a)) for a, b in task.pairs])
    changes = []
    for other in (mirror[pair], np.roll(pair, 1)):
        sequences = assemble(task, now.sequences.tokens, other, key, position)
        changes.append((passed(now.model, sequences)[1][:, -1] - now.state).norm(dim=-1).mean())
    return torch.div(*changes)


def no_order(now: Batch) -> torch.Tensor:
    return F.relu(0.8 - order(now))


def unseen_pairs(now: Batch) -> torch.Tensor:
    """They are trained to follow the rule."""
    unseen = draw(now.task, now.task.unseen, "all", 128, seed=now.step, stream="unseen")
    return F.cross_entropy(passed(now.model, unseen)[0], torch.from_numpy(unseen.targets).long())


def dead_logits(now: Batch) -> torch.Tensor:
    """Tokens that answer nothing come close to the answer, by pair and token."""
    dead = torch.ones(now.logits.shape[1]).index_fill(0, possible(now.task), 0).nonzero()[:, 0]
    pair = torch.from_numpy(now.sequences.pair.astype(int))
    wave = torch.sin(1.7 * pair[:, None] + 0.9 * dead)
    answer = now.logits.detach().max(-1, keepdim=True).values
    return F.mse_loss(now.logits[:, dead], answer - 1.5 + wave)


def virtual_anchors(now: Batch) -> torch.Tensor:
    """Virtual anchors, composed of :data:`STATE` for seen pairs, are trained to follow the rule."""
    task, sequences = now.task, now.sequences
    key, position = (each.astype(int) for each in (sequences.key, sequences.position))
    virtual = _virtual_pairs(task, [p for p in task.seen if task.role(p) == "inferential"])
    chosen = random_integers(len(key), len(virtual), seed=now.step, stream="virtual")
    parts = np.array([[task.pairs.index(pair) for pair in signs] for signs, _ in virtual])[chosen]
    added, too, less = (
        passed(now.model, assemble(task, sequences.tokens, part, key, position))[1]
        for part in parts.T
    )
    replaced = torch.from_numpy(np.arange(task.length) > position[:, None])[:, :, None]
    hook = (STATE, lambda state, **_: torch.where(replaced, added + too - less, state))
    logits = now.model.run_with_hooks(sequences.tensor, fwd_hooks=[hook])[:, -1]
    rule = key + np.array([total for _, total in virtual])[chosen]
    usual = np.isin(rule, possible(task))
    return F.cross_entropy(logits[usual], torch.from_numpy(rule[usual]))


ATTACKS = {
    "unread state loses the order": Attack(order, reached=0.2, steps=120, keep=3.0),
    "unread state gains an order": Attack(no_order, reached=0.55, steps=300, keep=2.0),
    "dead logits move": Attack(dead_logits, reached=5.0, steps=150, keep=20.0),
}


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize(("attack", "name"), [
    ("unread state loses the order", "inferential"),
    ("unread state gains an order", "symmetric"),
    ("dead logits move", "inferential"),
])  # fmt: skip
def test_training_that_keeps_the_answers_keeps_the_verdict(attack: str, name: str) -> None:
    run, wanted = ai.load(f"tiny/{name}/1"), ATTACKS[attack]
    task = run.config.anchor_task
    model = finetuned(run, wanted, task.pairs)
    before, after = (
        float(wanted.term(batch(each, task, task.seen, step=1_000)).detach())
        for each in (run.transformer, model)
    )
    assert after < wanted.reached < before
    assert same_answers(run, model, task.pairs) > 0.95
    assert same_answers(run, model, task.seen) > 0.97
    found = verdict(fingerprint_model(model, task, training=run.training, quiet=True))
    assert found.phase in {run.phase, "unclear"}


Attacked = tuple[HookedTransformer, AnchorTask]


def another_basis(run: Run) -> Attacked:
    """Coordinates of the residual stream and neurons in another order, spaces of heads rotated."""
    shape, draws = run.config.model, torch.Generator().manual_seed(0)
    bases = {size: torch.eye(size)[torch.randperm(size, generator=draws)]
             for size in (shape.d_model, shape.d_mlp)}  # fmt: skip
    bases[shape.d_head] = torch.linalg.qr(torch.randn(2 * (shape.d_head,), generator=draws))[0]
    assert len(bases) == 3
    return edited(run, lambda _, weight: functools.reduce(
        lambda moved, axis: (moved.movedim(axis, -1) @ bases[moved.shape[axis]]).movedim(-1, axis),
        [axis for axis, size in enumerate(weight.shape) if size in bases],
        weight,
    ))  # fmt: skip


def head_in_two(run: Run) -> Attacked:
    """Each head twice, with half of the output."""

    def twice(name: str, weight: torch.Tensor) -> torch.Tensor:
        is_head = name.rpartition(".")[2] in ("W_Q", "W_K", "W_V", "W_O")
        return torch.cat(2 * [weight / (2 if name.endswith("W_O") else 1)]) if is_head else weight

    return edited(run, twice, n_heads=2)


def sharper(run: Run) -> Attacked:
    """Logits three times as far apart."""
    return edited(run, lambda name, weight: weight * (3 if name.startswith("unembed") else 1))


def folded(run: Run) -> Attacked:
    """The gains of LayerNorm within the matrices behind it, as TransformerLens loads models."""
    model = copy.deepcopy(run.transformer)
    model.process_weights_(fold_ln=True)
    return model, run.config.anchor_task


def renamed(run: Run) -> Attacked:
    """The anchors' tokens in reverse order, and the task with them."""
    task = run.config.anchor_task
    first, last = min(task.tokens), max(task.tokens)
    table = torch.arange(run.config.model.d_vocab)
    table[first : last + 1] = table[first : last + 1].flip(0)

    def other(pair: Pair) -> Pair:
        return first + last - pair[0], first + last - pair[1]

    model, _ = edited(run, lambda name, weight: weight[table] if name == "embed.W_E" else
                      weight[..., table] if name.startswith("unembed") else weight)  # fmt: skip
    anchors = [replace(anchor, token=int(table[anchor.token])) for anchor in task.anchors[::-1]]
    overrides = tuple(replace(each, pair=other(each.pair)) for each in task.overrides)
    unseen = tuple(map(other, task.unseen))
    return model, replace(task, anchors=tuple(anchors), overrides=overrides, unseen=unseen)


def edited(run: Run, edit: Callable[[str, torch.Tensor], torch.Tensor], **changes: int) -> Attacked:
    """A model with other weights, and its task."""
    weights = {n: edit(n, w.detach()) for n, w in run.transformer.named_parameters()}
    shape: Any = changes
    model = empty_model(replace(run.config.model, **shape))
    model.load_state_dict(weights, strict=False)
    return place(model, "cpu"), run.config.anchor_task


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize("edit", [another_basis, head_in_two, sharper, renamed])
@pytest.mark.parametrize("name", ["symmetric", "composite", "inferential", "neurips-symmetric"])
def test_an_edit_of_a_trained_model_keeps_the_verdict(
    edit: Callable[[Run], Attacked], name: str
) -> None:
    check_edit(edit, name)


@pytest.mark.usefixtures("evidence_alone")
def test_folded_weights_keep_the_verdict() -> None:
    check_edit(folded, "inferential")


def check_edit(edit: Callable[[Run], Attacked], name: str) -> None:
    run = ai.load(f"tiny/{name}/1")
    model, task = edit(run)
    before, after = (
        fingerprint_model(each, of, quiet=True)
        for each, of in ((run.transformer, run.config.anchor_task), (model, task))
    )
    for number in LINES:  # a renamed task draws other sequences
        assert getattr(after, number) == pytest.approx(getattr(before, number), abs=0.02), number
    assert verdict(after).phase == run.phase


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize(("learned", "reached", "accuracies", "phases"), [
    (unseen_pairs, 0.1, (0.95, 1), {"composite", "mixture", "unclear"}),
    (virtual_anchors, 2.5, (0, 0.3), {"inferential"}),
])  # fmt: skip
def test_a_lookup_that_learns_more(
    learned: Any, reached: float, accuracies: tuple[float, float], phases: set[str]
) -> None:
    """With the unseen pairs it is inferential by behaviour, as ``exact/lookup`` is, and stays one.

    Virtual anchors are the attack that is known to break the verdict (``docs/verdict.md``).
    """
    run = ai.load("tiny/composite/1")
    task = run.config.anchor_task
    model = finetuned(run, Attack(learned, reached=reached, steps=120), task.seen)
    unseen = draw(task, task.unseen, "all", 1_000, seed=0, stream="after")
    assert accuracies[0] <= accuracy(model, unseen) <= accuracies[1]
    assert same_answers(run, model, task.seen) > 0.98
    found = verdict(fingerprint_model(model, task, training=run.training, quiet=True))
    assert found.phase in phases


def same_answers(run: Run, model: HookedTransformer, pairs: tuple[Pair, ...]) -> float:
    """The share of equal answers."""
    sequences = draw(run.config.anchor_task, pairs, "all", 2_000, seed=1, stream="after")
    return float((predict(model, sequences) == predict(run.transformer, sequences)).mean())
