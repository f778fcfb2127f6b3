"""States that no sequence produced: do the later layers treat anchors one by one?

Take the state after a layer's attention, X^ao, in sequences of one key and one noise. If each
anchor adds its own part to it, the state of (a, b) is that of (a, b') plus that of (a', b) minus
that of (a', b'), for any other anchors a' and b': a parallelogram. The mean of all parallelograms
of pairs trained on the rule is a *composed* state. From the first anchor's position on it replaces
the state in a sequence of another pair. The answer shows what the later layers do with two anchors
that meet for the first time:

* the composition g(g(x; a); b), if they work anchor by anchor;
* the same answer for (a, b) and (b, a), if they look up the unordered pair;
* anything else, if they look up each ordered pair.

The pair (a, b) itself is never run. A composed state lacks what the layers up to it make of both
anchors *together*; :attr:`Composition.recomposed` shows how much that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.passes import Replacement, replaced_run
from anchor_interp.models.transformer import HookedTransformer, check_causal, check_fits, token_rows
from anchor_interp.tasks.anchor import AnchorTask, Pair
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import assemble


@dataclass(frozen=True)
class Composition:
    """A model's answers to composed states: shares of n sequences, averaged over pairs."""

    layer: int
    """0-based layer whose X^ao is composed."""
    pairs: tuple[Pair, ...]
    n: int
    """Sequences of each pair."""
    composed: float
    """Share answered with the composition g(g(x; a); b)."""
    commutes: float | None
    """Share of equal answers to the composed (a, b) and (b, a); None if no pair has both. Of named
    pairs both have to be named."""
    mirrored: float | None
    """Share answered with the other order's training target; None if no pair has another one."""
    recomposed: float | None
    """Share of seen pairs, composed of other seen ones, answered with their target; None if no
    seen pair can be composed."""


@torch.no_grad()
def composition(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    layer: int = 0,
    pairs: Sequence[Pair] | None = None,
    n: int = 200,
    seed: int = 0,
) -> Composition:
    """Compose the state of pairs from the states of other pairs and see what the model answers.

    Composes ``hook_resid_mid`` of a 0-based layer in ``n`` sequences of each ordered pair, by
    default the unseen ones. Hooks attached to the model act.

    Raises:
        ConfigError: no pairs, a pair that no parallelogram of seen pairs leads to, a layer or n
            out of range, or a model that is too small for the task, without MLPs or not causal.
    """
    check_fits(model, task)
    checked(layer, int, "layer", low=0, high=model.cfg.n_layers - 1)
    checked(n, int, "n", low=1, high=10_000)
    if model.cfg.attn_only:
        raise ConfigError("the model has attention only; composition needs the state before an MLP")
    check_causal(model)
    given = task.unseen if pairs is None else checked(pairs, tuple[Pair, ...], "pairs")
    wanted = [task.known(pair) for pair in given]
    if not wanted:
        raise ConfigError(f"pairs is {shown(pairs)} and the task has no unseen pair; name some")
    states = _States(model, task, layer, n, seed)
    rule, alike, mirror, again = [], [], [], []
    for pair in wanted:
        answers = states.answers(pair)
        rule.append(np.mean(answers == task.composed(pair, states.keys)))
        reverse = pair[::-1] if pairs is None or pair[::-1] in wanted else pair
        if reverse != pair and states.parallelograms(reverse):
            alike.append(np.mean(answers == states.answers(reverse)))
        target = task.symmetric(pair, states.keys)
        if target is not None:
            mirror.append(np.mean(answers == target))
    for pair in filter(states.parallelograms, states.of):
        again.append(np.mean(states.answers(pair) == task.target(pair, states.keys)))
    others = (float(np.mean(shares)) if shares else None for shares in (alike, mirror, again))
    return Composition(layer, tuple(wanted), n, float(np.mean(rule)), *others)


class _States:
    """The states of all seen pairs that follow the rule, over the same n keys and noise."""

    def __init__(
        self, model: HookedTransformer, task: AnchorTask, layer: int, n: int, seed: int
    ) -> None:
        pairs = [pair for pair in task.seen if task.role(pair) == "inferential"]
        if not pairs:
            raise ConfigError("no seen pair of the task follows the rule: nothing can be composed")

        def drawn(part: str, count: int, bound: int) -> np.ndarray:
            return random_integers(count, bound, seed=seed, stream=f"composition/{part}")

        self.keys: np.ndarray = task.keys[drawn("key", n, len(task.keys))]
        position = drawn("position", n, task.length - 2)
        noise = task.keys[drawn("noise", n * task.length, len(task.keys))]
        self._model, self._hook = model, f"blocks.{layer}.hook_resid_mid"
        self._rows = {}
        for pair in pairs:
            index = np.full(n, task.pairs.index(pair))
            tokens = assemble(task, noise.reshape(n, -1), index, self.keys, position).tokens
            self._rows[pair] = token_rows(model, tokens)
        hook = self._hook
        self.of = {p: activations(model, rows, [hook])[hook] for p, rows in self._rows.items()}
        replaced = torch.from_numpy(np.arange(task.length) > position[:, None])
        self._mask = replaced.to(self._rows[pairs[0]].device)[:, :, None]

    def parallelograms(self, pair: Pair) -> list[tuple[Pair, Pair, Pair]]:
        """The (a, b'), (a', b), (a', b') of a pair (a, b) whose states are known."""
        a, b = pair
        return [
            ((a, d), (c, b), (c, d))
            for c, d in self.of
            if c != a and d != b and (a, d) in self.of and (c, b) in self.of
        ]

    def answers(self, pair: Pair) -> np.ndarray:
        sides = self.parallelograms(pair)
        if not sides:
            raise ConfigError(
                f"the pair {pair} cannot be composed: it needs three seen pairs (a, b'), (a', b), "
                "(a', b') with its anchors a and b"
            )
        state = torch.stack([self.of[p] + self.of[q] - self.of[r] for p, q, r in sides]).mean(0)
        # any other pair can be run: in a causal model all that depends on it is replaced
        rows = self._rows[sides[0][2]]
        composed = Replacement(self._hook, state, self._mask, frozenset([pair]))
        logits, _ = replaced_run(self._model, rows, [composed], batch_size=len(rows))
        return logits.argmax(-1).cpu().numpy()
