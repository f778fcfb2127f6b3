"""States that no sequence produced: does a model compute with anchors, or look them up?

Let s(a, b) be a state of the residual stream for the pair (a, b), with one key and one noise. Then
s(a, b) + s(c, b) - s(d, b) belongs to a *virtual* anchor, whose function adds what a and c add,
less what d adds. From the first anchor's position
on it replaces the state in a sequence of a seen pair. If the model computes with what the anchors
add, it answers with the rule. If it looks pairs up, it has no entry for such an anchor.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.patched_passes import Replacement, declare, replaced_run
from anchor_interp.interventions.subject import Subject, subject_of
from anchor_interp.models.forward import fast_logits_from, takes_fast_path
from anchor_interp.models.transformer import HookedTransformer, check_causal, token_rows
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Affine, Pair
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import assemble

Signs = Mapping[Pair, int]
"""A sum of the states of known pairs: each is added or subtracted."""


@dataclass(frozen=True, eq=False)
class VirtualAnchors:
    """A model's answers to anchors that nobody trained, beside anchors that were trained."""

    hook: str
    """The state where most answers follow the rule, of all in the residual stream."""
    rules: Float[np.ndarray, " n"]
    """Share of the answers there that follow the rule, for each key and noise, over virtual pairs
    that add what no seen pair adds; NaN where no such answer lies in the range of the targets."""

    @property
    def rule(self) -> float:
        """The mean of :attr:`rules`."""
        return float(np.nanmean(self.rules))


@torch.no_grad()
def virtual_anchors(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    n: int = 100,
    seed: int = 0,
) -> VirtualAnchors:
    """Compose the states of virtual anchors and see what the model answers.

    Every virtual anchor stands first and second, beside each anchor that follows the rule with
    every anchor in both orders. No unseen pair has such an anchor, and a virtual pair that adds
    what a seen or an unseen pair adds is left out. Hooks attached to the model act.

    Args:
        n: keys and noises, at most 10,000. All virtual pairs have the same.

    Raises:
        ConfigError: a task without virtual anchors; n out of range; a model that is too small for
            the task or not causal.
    """
    checked(n, int, "n", low=1, high=10_000)
    subject = subject_of(model, task, seed)
    model, task = subject.model, subject.anchor_task
    check_causal(model)
    known = [pair for pair in task.seen if task.role(pair) == "inferential"]
    virtual = _virtual_pairs(task, known)
    states = _States(model, task, known, n, subject.seed)
    targets = [task.target(pair, states.keys) for pair in known]
    rules = states.keys + np.array([total for _, total in virtual])[:, None]  # [virtual pair, n]
    usual = (np.min(targets) <= rules) & (rules <= np.max(targets))
    if not usual.any():
        raise ConfigError("no virtual anchor's answer lies in the range of the task's targets")
    shares, counts = {}, usual.sum(0)
    for hook in states.hooks:
        answers = [states.composed(hook, parts).argmax(-1).cpu().numpy() for parts, _ in virtual]
        right = (usual & (answers == rules)).sum(0)
        shares[hook] = np.divide(right, counts, out=np.full(n, np.nan), where=counts > 0)
    return max((VirtualAnchors(*each) for each in shares.items()), key=lambda best: best.rule)


def _virtual_pairs(task: AnchorTask, known: Sequence[Pair]) -> list[tuple[Signs, int]]:
    """The virtual anchors a + c - d before and behind an anchor b, each as a sum of known pairs.

    Beside each stands what it adds to the key, which no pair of the task adds.
    """
    adds = {token: function.add for token in task.tokens
            if isinstance(function := task.function(token), Affine)
            and function == Affine(function.add)}  # fmt: skip
    anchors = task.tokens if len(adds) == len(task.tokens) else ()
    virtual = [(a, c, d) for d in anchors for a, c in itertools.combinations(anchors, 2)
               if d not in (a, c)]  # fmt: skip
    beside = [b for b in anchors if all({(a, b), (b, a)} <= set(known) for a in anchors)]
    if not virtual or not beside:
        needed = "three anchors that add numbers, and one that follows the rule with each of them"
        raise ConfigError(f"the task has no virtual anchors: they need {needed} in both orders")
    taken = {adds[a] + adds[b] for a, b in (*known, *task.unseen)}
    for pair in task.seen:  # an exception adds another number
        differences = np.unique(task.target(pair, task.keys) - task.keys)
        taken |= {int(differences[0])} if len(differences) == 1 else set()
    pairs: list[tuple[Signs, int]] = []
    for (a, c, d), b in itertools.product(virtual, beside):
        total = adds[a] + adds[c] - adds[d] + adds[b]
        if total not in taken:
            pairs.append(({(a, b): 1, (c, b): 1, (d, b): -1}, total))
            pairs.append(({(b, a): 1, (b, c): 1, (b, d): -1}, total))
    return pairs


class _States:
    """The states of known pairs, over the same n keys and noise."""

    def __init__(
        self, model: HookedTransformer, task: AnchorTask, known: Sequence[Pair], n: int, seed: int
    ) -> None:
        def drawn(part: str, count: int, bound: int) -> np.ndarray:
            return random_integers(count, bound, seed=seed, stream=f"composition/{part}")

        self.keys: np.ndarray = task.keys[drawn("key", n, len(task.keys))]
        position = drawn("position", n, task.length - 2)
        noise = task.keys[drawn("noise", n * task.length, len(task.keys))].reshape(n, -1)
        self._model, self._fast = model, takes_fast_path(model, model.embed)
        layers = [f"blocks.{layer}.hook_resid_" for layer in range(model.cfg.n_layers)]
        kinds = ("post",) if model.cfg.attn_only else ("mid", "post")
        self.hooks = [f"{layers[0]}pre", *(layer + kind for layer in layers for kind in kinds)]
        self._states = {}
        for pair in known:
            index = np.full(n, task.pairs.index(pair))
            rows = token_rows(model, assemble(task, noise, index, self.keys, position).tokens)
            self._states[pair] = activations(model, rows, self.hooks)
        # any known pair can be run: in a causal model all that depends on it is replaced
        self._rows, self._own = rows, self._states[pair]
        replaced = torch.from_numpy(np.arange(task.length) > position[:, None])
        self._mask = replaced.to(self._rows.device)[:, :, None]

    def composed(self, hook: str, parts: Signs) -> Float[torch.Tensor, "n d_vocab"]:
        """The logits of a sum of known states."""
        state = torch.stack([s * self._states[p][hook] for p, s in parts.items()]).sum(0)
        if self._fast:
            declare(parts)
            state = torch.where(self._mask, state, self._own[hook])
            layer, middle = divmod(self.hooks.index(hook), 2)
            return fast_logits_from(self._model, state, layer, at_mlp=bool(middle))
        sum_of_states = Replacement(hook, state, self._mask, frozenset(parts))
        return replaced_run(self._model, self._rows, [sum_of_states], batch_size=len(self._rows))[0]
