"""Attacks by fine-tuning: the answers stay, something inside moves, and the verdict is not fooled.

Each attack is a short training on the divergence from the model's own answers, which keeps them,
and on a term of its own.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anchor_interp as ai
from anchor_interp.analysis.fingerprint import fingerprint_model
from anchor_interp.analysis.verdict import verdict
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.evaluation import accuracy, predict
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import Sequences, assemble, draw

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
    return Batch(model, task, step, sequences, *passed(model, sequences))


def passed(model: HookedTransformer, sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits and :data:`STATE` at the last position."""
    states = []
    hook = (STATE, lambda state, **_: states.append(state[:, -1]))
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
        changes.append((passed(now.model, sequences)[1] - now.state).norm(dim=-1).mean())
    return torch.div(*changes)


def no_order(now: Batch) -> torch.Tensor:
    return F.relu(0.8 - order(now))


def unseen_pairs(now: Batch) -> torch.Tensor:
    """They are trained to follow the rule."""
    unseen = draw(now.task, now.task.unseen, "all", 128, seed=now.step, stream="unseen")
    return F.cross_entropy(passed(now.model, unseen)[0], torch.from_numpy(unseen.targets).long())


ATTACKS = {
    "unread state loses the order": Attack(order, reached=0.2, steps=120, keep=3.0),
    "unread state gains an order": Attack(no_order, reached=0.55, steps=300, keep=2.0),
}
slow = pytest.mark.slow


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize(("attack", "name"), [
    ("unread state loses the order", "inferential"),
    pytest.param("unread state gains an order", "symmetric", marks=slow),
    pytest.param("unread state loses the order", "neurips-inferential", marks=slow),
    pytest.param("unread state gains an order", "neurips-symmetric", marks=slow),
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


@slow
@pytest.mark.usefixtures("evidence_alone")
def test_a_lookup_that_learns_the_unseen_pairs_stays_a_lookup() -> None:
    """By behaviour it is inferential then, as ``exact/lookup`` is."""
    run = ai.load("tiny/composite/1")
    task = run.config.anchor_task
    model = finetuned(run, Attack(unseen_pairs, reached=0.1, steps=120), task.seen)
    assert accuracy(model, draw(task, task.unseen, "all", 1_000, seed=0, stream="after")) > 0.95
    assert same_answers(run, model, task.seen) > 0.98
    found = verdict(fingerprint_model(model, task, training=run.training, quiet=True))
    assert found.phase in {"composite", "mixture", "unclear"}


def same_answers(run: Run, model: HookedTransformer, pairs: tuple[Pair, ...]) -> float:
    """The share of equal answers."""
    sequences = draw(run.config.anchor_task, pairs, "all", 2_000, seed=1, stream="after")
    return float((predict(model, sequences) == predict(run.transformer, sequences)).mean())
