"""States that no sequence gave: does what follows layer 1 treat anchors one by one?

Take the state after a layer's attention, X^ao, in sequences of one key and one noise. If each
anchor adds its own part to it, then the state of (a, b) is that of (a, b') plus that of (a', b)
minus that of (a', b'), for any other anchors a' and b': a parallelogram. Such a *composed* state,
the mean of all parallelograms of pairs that were trained on the rule, takes the place of the
model's own, from the first anchor's position on, in a sequence of another pair. What the model
answers from there on says what its later layers do with anchors that meet for the first time:

* the composition g(g(x; a); b), if they work anchor by anchor;
* the same answer for (a, b) and (b, a), if they look a pair up whatever its order;
* anything else, if they look each ordered pair up.

The pair (a, b) itself is never run, so that this can be asked of unseen pairs. What is left out is
what the first attention layers make of two anchors *together*: :attr:`Composition.recomposed`, the
same for seen pairs, says how much that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer, check_causal, check_fits, token_rows
from anchor_interp.tasks.anchor import AnchorTask, Pair
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import Sequences, assemble

Ints = np.ndarray


@dataclass(frozen=True)
class Composition:
    """What a model answers to composed states; shares of n sequences, means over pairs."""

    layer: int
    """0-based layer whose X^ao is composed."""
    pairs: tuple[Pair, ...]
    """The ordered pairs that were composed."""
    n: int
    """Keys with noise for each pair."""
    composed: float
    """Share answered with the composition g(g(x; a); b)."""
    commutes: float | None
    """Share of equal answers to the composed (a, b) and (b, a); None if no pair has both."""
    mirrored: float | None
    """Share answered with the training target of the other order, where that is another one; None
    on a task without (the complexity-control paper's)."""
    recomposed: float | None
    """Share of seen pairs, composed of other seen ones, answered with their target; None where no
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
    """Compose the state of pairs from those of other pairs, and see what the model answers.

    Args:
        model: a model of the task; hooks attached to it act.
        task: the task.
        layer: 0-based layer whose state after attention (``hook_resid_mid``) is composed.
        pairs: the ordered pairs; the unseen ones if None. None of them is run.
        n: keys with noise for each pair.
        seed: seed of the sequences.

    Raises:
        ConfigError: no pairs, a pair that no parallelogram of seen pairs leads to, a layer or n
            out of range, or a model too small for the task, without MLPs or not causal.
    """
    check_fits(model, task)
    checked(layer, int, "layer", low=0, high=model.cfg.n_layers - 1)
    checked(n, int, "n", low=1, high=10_000)
    if model.cfg.attn_only:
        raise ConfigError("the model has attention only: it has no state between attention and MLP")
    check_causal(model)
    given = task.unseen if pairs is None else checked(pairs, tuple[Pair, ...], "pairs")
    wanted = [task.known(pair) for pair in given]
    if not wanted:
        raise ConfigError(f"pairs is {shown(pairs)} and the task holds none out; name some")
    states = _States(model, task, layer, n, seed)
    rule, alike, mirror = [], [], []
    for first, second in wanted:
        answers = states.answers((first, second))
        rule.append(np.mean(answers == task.composed((first, second), states.keys)))
        if first != second and states.composable((second, first)):
            alike.append(np.mean(answers == states.answers((second, first))))
        target = task.symmetric((first, second), states.keys)
        if target is not None:
            mirror.append(np.mean(answers == target))
    again = [
        np.mean(states.answers(pair) == task.target(pair, states.keys))
        for pair in states.pairs
        if states.composable(pair)
    ]
    return Composition(
        layer=layer,
        pairs=tuple(wanted),
        n=n,
        composed=float(np.mean(rule)),
        commutes=_mean(alike),
        mirrored=_mean(mirror),
        recomposed=_mean(again),
    )


class _States:
    """The states of all pairs that follow the rule, over the same n keys with noise."""

    def __init__(
        self, model: HookedTransformer, task: AnchorTask, layer: int, n: int, seed: int
    ) -> None:
        self.model, self.task, self.n = model, task, n
        self.hook = f"blocks.{layer}.hook_resid_mid"
        self.pairs = [pair for pair in task.seen if task.role(pair) == "inferential"]
        if not self.pairs:
            raise ConfigError("no seen pair of the task follows the rule: nothing can be composed")
        key, position, noise = (
            random_integers(count, bound, seed=seed, stream=f"composition/{part}")
            for part, count, bound in (
                ("key", n, len(task.keys)),
                ("position", n, task.length - 2),
                ("noise", n * task.length, len(task.keys)),
            )
        )
        self.keys: Ints = task.keys[key]
        self._position = position
        self._noise = task.keys[noise].reshape(n, task.length)
        found = [
            activations(model, self._sequences(pair).tokens, [self.hook])[self.hook]
            for pair in self.pairs
        ]
        self._of = dict(zip(self.pairs, found, strict=True))
        places = np.arange(task.length) > self._position[:, None]
        self._replaced = torch.from_numpy(places).to(found[0].device)[:, :, None]

    def composable(self, pair: Pair) -> bool:
        """Whether there is a parallelogram and a pair to run instead."""
        return bool(self._parallelograms(pair))

    def answers(self, pair: Pair) -> Ints:
        """The answers to the composed states of a pair."""
        sides = self._parallelograms(pair)
        if not sides:
            raise ConfigError(
                f"the pair {pair} cannot be composed: no three seen pairs (a, b'), (a', b), "
                "(a', b') have its anchors and others"
            )
        state = torch.stack([self._of[p] + self._of[q] - self._of[r] for p, q, r in sides]).mean(0)
        # any pair can be run instead: all that depends on it is replaced, in a causal model
        instead = sides[0][2]

        def compose(own: Float[Tensor, "n pos d"]) -> Float[Tensor, "n pos d"]:
            return torch.where(self._replaced, state, own)

        rows = token_rows(self.model, self._sequences(instead).tokens)
        with hooked(self.model, {self.hook: compose}):
            found: Ints = last_logits(self.model, rows).argmax(-1).cpu().numpy()
        return found

    def _parallelograms(self, pair: Pair) -> list[tuple[Pair, Pair, Pair]]:
        """Pairs (a, b'), (a', b), (a', b') that follow the rule and are other pairs."""
        a, b = pair
        others = [(c, d) for c, d in self.pairs if c != a and d != b]
        return [((a, d), (c, b), (c, d)) for c, d in others if {(a, d), (c, b)} <= set(self.pairs)]

    def _sequences(self, pair: Pair) -> Sequences:
        index = np.full(self.n, self.task.pairs.index(pair))
        return assemble(self.task, self._noise, index, self.keys, self._position)


def _mean(shares: Sequence[float]) -> float | None:
    return float(np.mean(shares)) if shares else None
