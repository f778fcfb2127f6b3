"""Attention in example sequences, ready to be drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp.behaviour.evaluation import EVALUATION_SEED, predict
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.inputs import Rows, finite_rows
from anchor_interp.models.transformer import HookedTransformer, Inputs, token_rows
from anchor_interp.tasks.contract import draw_examples
from anchor_interp.tasks.examples import Examples, Split, as_examples
from anchor_interp.tasks.functions import Pair, Role
from anchor_interp.tasks.sequences import draw
from anchor_interp.tasks.task import Task

Strings = Sequence[Sequence[str]]
"""One text for each position of each sequence."""
_FEW_WORDS = 20  # most tokens of an example whose attention is easy to read
_CANDIDATES = 64  # examples that one is chosen from


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
    n_alike: int
    """How many of ``n_drawn`` sequences of the pair have this difference of answer and key."""
    n_drawn: int
    patterns: Float[np.ndarray, "layer head query key"]

    @property
    def words(self) -> tuple[str, ...]:
        """The text of every token."""
        return tuple(map(str, self.tokens))

    @property
    def roles(self) -> tuple[str, ...]:
        """``key``, ``a1`` and ``a2`` at their positions, nothing for noise."""
        named = {0: "key", 1: "a1", 2: "a2"}
        return tuple(named.get(place - self.position, "") for place in range(len(self.tokens)))


@dataclass(frozen=True, eq=False)
class SequenceAttention:
    """One example of a task without anchors with a model's attention in it."""

    split: str
    """Empty if the example is given."""
    words: tuple[str, ...]
    """What the model reads: a prompt and all but the last token of its right answer."""
    answer: tuple[str, ...]
    """The tokens to predict, in order."""
    predicted: tuple[str, ...]
    """What the model predicts in their place, each after the right tokens before it."""
    patterns: Float[np.ndarray, "layer head query key"]

    @property
    def roles(self) -> tuple[str, ...]:
        """None."""
        return ("",) * len(self.words)


@dataclass(frozen=True, eq=False)
class AttentionPatterns:
    """Attention of any HookedTransformer in some sequences."""

    words: tuple[tuple[str, ...], ...]
    """The text of every token."""
    roles: tuple[tuple[str, ...], ...]
    """The role of every position; an empty text for one without."""
    answers: Int64[np.ndarray, " n"]
    patterns: Float[np.ndarray, "layer n head query key"]


def attention_examples(subject: Subject) -> tuple[AttentionExample, ...]:
    """One test-key sequence of the first unseen pair and one of a seen pair of two anchors.

    The seen pair is the unseen one in the other order, where that was seen. Of some sequences it is
    the first with the most frequent difference of answer and key.
    """
    model, task = subject.model, subject.anchor_task
    unseen = task.unseen[:1]
    mirrored = [pair[::-1] for pair in unseen if pair[::-1] not in task.unseen]
    seen = [*mirrored, *(pair for pair in task.seen if pair[0] != pair[1]), *task.seen][:1]

    def example(pair: Pair) -> AttentionExample:
        stream = f"evaluate/{pair}/test"
        drawn = draw(task, [pair], "test", _CANDIDATES, seed=EVALUATION_SEED, stream=stream)
        answers = predict(model, drawn)
        _, place = np.unique(answers - drawn.key.astype(int), return_inverse=True)
        counts = np.bincount(place)
        shown = int((place == counts.argmax()).argmax())
        typical = drawn[shown]
        return AttentionExample(
            pair=pair,
            role=task.role(pair),
            tokens=tuple(map(int, typical.tokens[0])),
            position=int(typical.position[0]),
            answer=int(answers[shown]),
            target=int(typical.targets[0]),
            n_alike=int(counts.max()),
            n_drawn=len(drawn),
            patterns=_patterns(model, typical)[:, 0],
        )

    return tuple(map(example, (*unseen, *seen)))


def sequence_attention(model: HookedTransformer, task: Task) -> tuple[SequenceAttention, ...]:
    """One short example of the first split of every role that judges a model, OOD first."""
    first = {split.role: split for split in reversed(task.splits)}
    splits = [first[role] for role in ("ood", "id") if role in first] or [first["train"]]
    return tuple(_sequence(model, task, split) for split in splits)


def _sequence(model: HookedTransformer, task: Task, split: Split) -> SequenceAttention:
    """The first example that has few enough words to be read, or else the shortest of some."""
    n = min(_CANDIDATES, split.size or _CANDIDATES)
    drawn = draw_examples(task, split.name, n, seed=EVALUATION_SEED)
    short = drawn.lengths <= _FEW_WORDS
    row = int(short.argmax() if short.any() else drawn.lengths.argmin())
    tokens, mask = (part[row, : drawn.lengths[row]] for part in (drawn.tokens, drawn.mask))
    read = tokens[None, :-1]
    with torch.no_grad():
        predicted = model(token_rows(model, read))[0].argmax(-1).cpu().numpy()[mask[1:]]
    words = task.words
    return SequenceAttention(
        split=split.name,
        words=tuple(words[token] for token in tokens[:-1]),
        answer=tuple(words[token] for token in tokens[mask]),
        predicted=task.spelled(predicted),
        patterns=_patterns(model, read)[:, 0],
    )


def examples_attention(
    model: HookedTransformer, examples: Examples
) -> tuple[SequenceAttention, ...]:
    """Attention in the first two examples, up to where each is answered, without masked padding."""

    def shown(row: int) -> SequenceAttention:
        one = examples[row].until(int(examples.at[row]) + 1)
        seen, mask = attention_patterns(model, one), one.attention_mask
        read = np.flatnonzero(np.ones_like(one.tokens[0]) if mask is None else mask[0])
        right = () if one.answers is None else (str(one.answers[0]),)
        words = tuple(seen.words[0][place] for place in read)
        patterns = seen.patterns[:, 0][..., read, :][..., read]
        return SequenceAttention("", words, right, (str(seen.answers[0]),), patterns)

    return tuple(map(shown, range(min(2, len(examples)))))


def attention_patterns(
    model: HookedTransformer,
    sequences: Inputs,
    *,
    words: Strings | None = None,
    roles: Strings | None = None,
) -> AttentionPatterns:
    """Attention in some sequences, for :func:`anchor_interp.pages.attention_views.attention_views`.

    ``words`` are the text of every token (its number if None), ``roles`` the role of every position
    (if None, the places of the examples, and ``last``). Hooks attached to the model act.

    Raises:
        ConfigError: no sequences, tokens, words or roles that do not fit, or weights that are not
            finite.
    """
    rows, examples = finite_rows(model, sequences), as_examples(sequences)
    tokens = rows.tokens.cpu().numpy()
    if words is None:
        words = [list(map(str, row)) for row in tokens.tolist()]
    if roles is None:
        named = np.full(tokens.shape, "", object)
        for name, at in {"last": examples.at, **examples.places}.items():
            named[np.arange(len(tokens)), at] = name
        roles = named.tolist()
    return AttentionPatterns(
        words=_texts(words, tokens),
        roles=_texts(roles, tokens),
        answers=predict(model, sequences),
        patterns=_patterns(model, rows),
    )


def attention_rollout(
    patterns: Float[Tensor, "layer batch head query key"], read: int = -1
) -> Float[np.ndarray, "layer head query key"]:
    """How much attention runs through every edge to the position that is read.

    An edge's weight times the weight of all ways from its query on to this position of the
    last layer, as a mean over the sequences. From layer to layer a way follows the mean attention
    of the heads, or stays in place along the residual stream, which has weight 1 (attention
    rollout: Abnar and Zuidema 2020, section 3, here by edge and from the end on).
    """
    weights = patterns.double()
    onward = torch.zeros_like(weights[0, :, 0, 0])  # [batch, position]
    onward[:, read] = 1
    through = []
    for layer in reversed(weights):
        flow = layer * onward[:, None, :, None]
        through.append(flow.mean(0))
        onward = onward + flow.mean(1).sum(1)
    return torch.stack(through[::-1]).cpu().numpy()


def _patterns(
    model: HookedTransformer, tokens: Inputs | Rows
) -> Float[np.ndarray, "layer n head query key"]:
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    patterns = activations(model, tokens, names)
    return torch.stack([patterns[name] for name in names]).float().cpu().numpy()


def _texts(texts: Strings, tokens: Integer[np.ndarray, "n pos"]) -> tuple[tuple[str, ...], ...]:
    n, length = tokens.shape
    if [len(row) for row in texts] != [length] * n:
        given = f"{len(texts)} sequences of {[*map(len, texts)][:5]} tokens"
        raise ConfigError(f"words or roles are given for {given}; expected {n} of {length}")
    return tuple(map(tuple, texts))
