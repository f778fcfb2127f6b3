"""Attention in example sequences, ready to be drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.hooks import activations
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.runs.evaluation import EVALUATION_SEED, predict
from anchor_interp.tasks.anchor import AnchorTask, Pair, Role
from anchor_interp.tasks.sequences import Sequences, draw, position_roles

Strings = Sequence[Sequence[str]]
"""One text for each position of each sequence."""


@dataclass(frozen=True, eq=False)
class AttentionExample:
    """One sequence of a task with a model's attention in it."""

    pair: Pair
    role: Role
    tokens: tuple[int, ...]
    position: int
    answer: int
    target: int
    """The target; the composition if the pair is unseen."""
    patterns: Float[np.ndarray, "layer head query key"]


@dataclass(frozen=True, eq=False)
class AttentionPatterns:
    """Attention of any HookedTransformer in some sequences."""

    words: tuple[tuple[str, ...], ...]
    """The text of every token."""
    roles: tuple[tuple[str, ...], ...]
    """The role of every position; empty if unknown."""
    answers: Int64[np.ndarray, " n"]
    patterns: Float[np.ndarray, "layer n head query key"]


def attention_examples(
    model: HookedTransformer, task: AnchorTask, *, seed: int = EVALUATION_SEED
) -> tuple[AttentionExample, ...]:
    """One test-key sequence of the first unseen pair and one of a seen pair of two anchors.

    The seen pair is the unseen one in the other order, where that was seen.
    """
    unseen = task.unseen[:1]
    mirrored = [pair[::-1] for pair in unseen if pair[::-1] not in task.unseen]
    seen = [*mirrored, *(pair for pair in task.seen if pair[0] != pair[1]), *task.seen][:1]

    def example(pair: Pair) -> AttentionExample:
        drawn = draw(task, [pair], "test", 1, seed=seed, stream=f"evaluate/{pair}/test")
        return AttentionExample(
            pair=pair,
            role=task.role(pair),
            tokens=tuple(map(int, drawn.tokens[0])),
            position=int(drawn.position[0]),
            answer=int(predict(model, drawn.tokens)[0]),
            target=int(drawn.targets[0]),
            patterns=_patterns(model, drawn.tokens)[:, 0],
        )

    return tuple(map(example, (*unseen, *seen)))


def attention_patterns(
    model: HookedTransformer,
    sequences: Sequences | Integer[np.ndarray, "n pos"] | Integer[Tensor, "n pos"],
    *,
    words: Strings | None = None,
    roles: Strings | None = None,
) -> AttentionPatterns:
    """Attention in some sequences, for :func:`anchor_interp.pages.attention_views.attention_views`.

    ``words`` are the text of every token (its number if None), ``roles`` the role of every position
    (if None, that in a task's sequences, otherwise empty). Hooks attached to the model act.

    Raises:
        ConfigError: no sequences, or tokens, words or roles that do not fit.
    """
    rows = token_rows(model, sequences.tokens if isinstance(sequences, Sequences) else sequences)
    tokens = rows.cpu().numpy()
    if not len(rows):
        raise ConfigError("there are no sequences; expected at least one")
    if roles is None and isinstance(sequences, Sequences):
        roles = [position_roles(tokens.shape[1], at) for at in sequences.position.tolist()]
    return AttentionPatterns(
        words=_texts([map(str, row) for row in rows.tolist()] if words is None else words, tokens),
        roles=_texts([[""] * tokens.shape[1]] * len(tokens) if roles is None else roles, tokens),
        answers=predict(model, tokens),
        patterns=_patterns(model, tokens),
    )


def _patterns(
    model: HookedTransformer, tokens: Integer[np.ndarray, "n pos"]
) -> Float[np.ndarray, "layer n head query key"]:
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    found = activations(model, tokens, names)
    return torch.stack([found[name] for name in names]).float().cpu().numpy()


def _texts(
    given: Iterable[Iterable[str]], tokens: Integer[np.ndarray, "n pos"]
) -> tuple[tuple[str, ...], ...]:
    texts = tuple(map(tuple, given))
    if [len(row) for row in texts] != [tokens.shape[1]] * len(tokens):
        raise ConfigError(
            f"words or roles are given for {len(texts)} sequences of {[*map(len, texts)][:5]} "
            f"tokens; expected {len(tokens)} of {tokens.shape[1]}"
        )
    return texts
