"""States that no sequence produced: does a model compute with anchors, or look them up?

Take the state after a layer's attention, X^ao, in sequences of one key and one noise. Beside a
fixed anchor b let s(a, b) be the state of the pair (a, b). Then s(a, b) + s(c, b) - s(d, b) is the
state of a *virtual* anchor, which adds what a and c add, less what d adds. From the first anchor's
position on it replaces the state in a sequence of a seen pair. The answer shows what the later
layers do with an anchor that nobody trained:

* what the rule says, if they compute with what the anchors add;
* the same answer for both orders of a virtual pair, if they look up the unordered pair;
* anything else, if they look up each ordered pair.
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
from anchor_interp.interventions.passes import Replacement, replaced_run
from anchor_interp.interventions.subject import Subject, subject_of
from anchor_interp.models.transformer import HookedTransformer, check_causal, token_rows
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Affine, Pair
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import assemble

Signs = Mapping[Pair, int]
"""A sum of the states of known pairs: each is added or subtracted."""


@dataclass(frozen=True)
class VirtualAnchors:
    """A model's answers to anchors that nobody trained, beside anchors that were trained."""

    layer: int
    """0-based layer whose X^ao holds them."""
    n: int
    """Sequences of each virtual pair and order."""
    rule: float | None
    """Share answered with the rule, over virtual pairs that add what no seen pair adds; None if
    anchors do other than add a number."""
    alike: float | None
    """Mean cosine between the centred logits of a virtual pair and of its other order; None if all
    answers are those of the pairs that the states were composed of, which training made alike."""


@torch.no_grad()
def virtual_anchors(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    layer: int,
    n: int = 40,
    seed: int = 0,
) -> VirtualAnchors:
    """Compose the states of virtual anchors and see what the model answers.

    Every virtual anchor stands first and second, beside each anchor that follows the rule with
    every anchor in both orders. No unseen pair has such an anchor, and a virtual pair that adds
    what an unseen pair adds is left out. Composes ``hook_resid_mid`` of a 0-based layer; in
    the last layer it holds all that attention brings to the last position. Attached hooks act.

    Raises:
        ConfigError: fewer than three anchors, or no anchor that follows the rule with all others; a
            layer or n out of range; a model that is too small for the task, without MLPs or not
            causal.
    """
    checked(n, int, "n", low=1, high=10_000)
    subject = subject_of(model, task, seed)
    model, task = subject.model, subject.anchor_task
    check_causal(model)
    checked(layer, int, "layer", low=0, high=model.cfg.n_layers - 1)
    if model.cfg.attn_only:
        raise ConfigError("the model has attention only; composition needs the state before an MLP")
    known = [pair for pair in task.seen if task.role(pair) == "inferential"]
    virtual = _virtual_pairs(task, known)
    states = _States(model, task, known, layer, n, subject.seed)
    targets = {pair: task.target(pair, states.keys) for pair in known}
    low, high = (bound(map(bound, targets.values())) for bound in (min, max))
    right: list[bool] = []
    cosines: list[float] = []
    copied = True
    for parts, total in virtual:
        swapped = {(second, first): sign for (first, second), sign in parts.items()}
        logits = [states.composed(each) for each in (parts, swapped)]
        one, other = (each - each.mean(-1, keepdim=True) for each in logits)
        cosines.append(float(torch.cosine_similarity(one, other, dim=-1).mean()))
        answers = [each.argmax(-1).cpu().numpy() for each in logits]
        of_parts = [targets[pair] for pair in parts]
        copied &= bool(np.all([np.any(answer == of_parts, axis=0) for answer in answers]))
        if total is not None:
            rule = states.keys + total
            usual = (low <= rule) & (rule <= high)
            right += [is_rule for answer in answers for is_rule in (answer == rule)[usual]]
    return VirtualAnchors(
        layer=layer,
        n=n,
        rule=float(np.mean(right)) if right else None,
        alike=None if copied or not cosines else float(np.mean(cosines)),
    )


def _virtual_pairs(task: AnchorTask, known: Sequence[Pair]) -> list[tuple[Signs, int | None]]:
    """The virtual anchors a + c - d beside an anchor b, each as a sum of known pairs.

    Beside each stands what it adds to the key; None if a known pair adds the same, or if an anchor
    does anything but add. Those that add what an unseen pair adds are left out.
    """
    if not known:
        raise ConfigError("no seen pair of the task follows the rule: nothing can be composed")
    anchors = task.tokens
    virtual = [
        (a, c, d) for d in anchors for a, c in itertools.combinations(anchors, 2) if d not in (a, c)
    ]
    beside = [b for b in anchors if all({(a, b), (b, a)} <= set(known) for a in anchors)]
    if not virtual or not beside:
        needed = "three anchors, and one that follows the rule with each anchor in both orders"
        raise ConfigError(f"the task has no virtual anchors: they need {needed}")
    adds = _added(task)
    trained, unseen = ({adds[a] + adds[b] for a, b in of if adds} for of in (known, task.unseen))
    pairs: list[tuple[Signs, int | None]] = []
    for (a, c, d), b in itertools.product(virtual, beside):
        parts = {(a, b): 1, (c, b): 1, (d, b): -1}
        total = adds[a] + adds[c] - adds[d] + adds[b] if adds else None
        if total not in unseen:
            pairs.append((parts, None if total in trained else total))
    return pairs


def _added(task: AnchorTask) -> dict[int, int]:
    """What each anchor adds to the key; empty if one does anything else."""
    of = {token: task.function(token) for token in task.tokens}
    plain = {t: g.add for t, g in of.items() if isinstance(g, Affine) and g == Affine(g.add)}
    return plain if len(plain) == len(of) else {}


class _States:
    """The states of known pairs, over the same n keys and noise."""

    def __init__(
        self,
        model: HookedTransformer,
        task: AnchorTask,
        known: Sequence[Pair],
        layer: int,
        n: int,
        seed: int,
    ) -> None:
        def drawn(part: str, count: int, bound: int) -> np.ndarray:
            return random_integers(count, bound, seed=seed, stream=f"composition/{part}")

        self.keys: np.ndarray = task.keys[drawn("key", n, len(task.keys))]
        position = drawn("position", n, task.length - 2)
        noise = task.keys[drawn("noise", n * task.length, len(task.keys))].reshape(n, -1)
        self._model, self._hook = model, f"blocks.{layer}.hook_resid_mid"
        rows = {}
        for pair in known:
            index = np.full(n, task.pairs.index(pair))
            rows[pair] = token_rows(model, assemble(task, noise, index, self.keys, position).tokens)
        self._states = {
            pair: activations(model, tokens, [self._hook])[self._hook]
            for pair, tokens in rows.items()
        }
        # any known pair can be run: in a causal model all that depends on it is replaced
        self._rows = rows[known[0]]
        replaced = torch.from_numpy(np.arange(task.length) > position[:, None])
        self._mask = replaced.to(self._rows.device)[:, :, None]

    def composed(self, parts: Signs) -> Float[torch.Tensor, "n d_vocab"]:
        """The logits of a sum of known states."""
        state = torch.stack([sign * self._states[pair] for pair, sign in parts.items()]).sum(0)
        sum_of_states = Replacement(self._hook, state, self._mask, frozenset(parts))
        return replaced_run(self._model, self._rows, [sum_of_states], batch_size=len(self._rows))[0]
