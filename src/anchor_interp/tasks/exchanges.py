"""Base and source examples whose states are exchanged, and the answer that this predicts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import check_name, checked
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.examples import Examples, Integers, as_integers
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import Sequences, as_examples, places


@dataclass(frozen=True, eq=False, repr=False)
class InterchangePairs(Readable):
    """n base examples, each with a source and the answer that their interchange predicts."""

    base: Any
    """Examples, which are run; sequences (x; a1, a2) of an anchor task."""
    source: Any
    """Examples where an activation comes from, each from its own places; sequences (x'; a1', a2')
    of an anchor task."""
    counterfactual: Int64[np.ndarray, " n"]
    """The answer expected; of an anchor task g(g(x'; a1'); a2)."""
    anchor_moved: Int64[np.ndarray, " n"] | None = None
    """The answer to (x; a1', a2), as if only the first anchor were exchanged."""
    key_moved: Int64[np.ndarray, " n"] | None = None
    """The answer to (x'; a1, a2), as if only the key were exchanged."""
    left_out: int = 0
    """How many base examples have no source that an answer tells apart, and are left out."""
    label: str | None = None
    """The label of examples that is exchanged; None of anchors."""

    def __post_init__(self) -> None:
        base = _paired(self.base, self.source)[0]
        expected = _answers(self.counterfactual, "counterfactual", len(base))
        object.__setattr__(self, "counterfactual", expected)

    def _summary(self) -> str:
        about = f"{len(self.base)} base sequences, each with a source; {self.left_out} left out"
        return about if self.label is None else f"{about}; exchanged: {self.label}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        base, source = as_examples(self.base), as_examples(self.source)
        for i, counterfactual in enumerate(self.counterfactual.tolist()):
            yield {
                "base": " ".join(map(str, base.tokens[i])),
                "source": " ".join(map(str, source.tokens[i])),
                "base_target": None if base.answers is None else int(base.answers[i]),
                "source_target": None if source.answers is None else int(source.answers[i]),
                "counterfactual": counterfactual,
            }

    @property
    def made(self) -> frozenset[Pair] | None:
        """What an exchange combines: the pairs (a1, a2), (a1', a2'), (a1', a2) and (a1, a2').

        None if there are no anchors.
        """
        if not (isinstance(self.base, Sequences) and isinstance(self.source, Sequences)):
            return None
        rows, both = np.arange(len(self.base)), (self.base, self.source)
        first, second = (
            [each.tokens[rows, places(each, place)].tolist() for each in both]
            for place in ("first", "second")
        )
        return frozenset(pair for a in first for b in second for pair in zip(a, b, strict=True))


def exchange_label(
    base: Sequences | Examples,
    source: Sequences | Examples,
    label: str,
    answer: Callable[[Mapping[str, np.ndarray]], np.ndarray],
) -> InterchangePairs:
    """The answers of examples of any task if one of their labels were their source's.

    Row i of ``source`` is the source of row i of ``base``. ``answer`` is what the model is thought
    to compute: it takes labels by name, each [n], and returns the answers, tokens [n]. Examples
    that should answer as the base tell nothing and are left out. So are examples that should answer
    as the source, which an exchange of everything gives too, unless no others are left: if the
    answer copies the label. ConfigError if none is left, or ``answer`` does not give the examples'
    own answers.
    """
    base, source = _paired(base, source)
    for examples in (base, source):
        check_name(label, examples.labels, "no label of the examples")
        computed = _answers(answer(examples.labels), "answer", len(examples))
        if (own := examples.answers) is None:
            raise ConfigError("the examples have no answers; give answers=answer(labels)")
        for row in np.flatnonzero(own != computed)[:1]:
            made = f"answer makes {computed[row]} of the labels of row {row}"
            raise ConfigError(f"{made}, answered by {own[row]}")
    moved = {**base.labels, label: source.labels[label]}
    expected = _answers(answer(moved), "answer", len(base))
    apart = expected != base.answers
    if not apart.any():
        raise ConfigError(f"exchanging {label!r} changes no answer; choose other sources")
    if (specific := apart & (expected != source.answers)).any():
        apart = specific
    left_out = int((~apart).sum())
    return InterchangePairs(
        base[apart], source[apart], expected[apart], left_out=left_out, label=label
    )


def renamed_answers(
    task: AnchorTask | Integers, pairs: InterchangePairs, *, seed: int
) -> InterchangePairs:
    """The same pairs with arbitrary labels: a control of a search (Hewitt and Liang 2019).

    One permutation of all answers, drawn with the seed, renames the counterfactual ones: all
    composed answers of an anchor task, or those given. At most one answer in ten keeps its name.
    """
    checked(pairs, InterchangePairs, "pairs")
    if isinstance(task, AnchorTask):
        answers = np.unique([task.composed(pair, task.keys) for pair in task.pairs])
    else:
        answers = np.unique(as_integers(task, "task, or all its answers (range(n)),", "n"))
    if not np.isin(pairs.counterfactual, answers).all():
        raise ConfigError("the pairs expect answers that are not among those to rename: give all")
    if len(answers) < 2:
        raise ConfigError("1 answer cannot be renamed; give all")
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    names = generator.permutation(answers)
    while (names == answers).mean() > 0.1:
        names = generator.permutation(answers)
    return replace(pairs, counterfactual=names[np.searchsorted(answers, pairs.counterfactual)])


def _paired(base: Sequences | Examples, source: Sequences | Examples) -> tuple[Examples, Examples]:
    """Both as examples; ConfigError if they are not as many."""
    pair = as_examples(base), as_examples(source)
    if len(pair[0]) != len(pair[1]):
        raise ConfigError(f"{len(pair[0])} base examples have {len(pair[1])} sources")
    return pair


def _answers(given: Any, name: str, n: int) -> Int64[np.ndarray, " n"]:
    """The tokens given, if there is one for each of n examples."""
    answers = as_integers(given, name, "n").astype(np.int64)
    if len(answers) != n:
        raise ConfigError(f"{name} has {len(answers)} values; expected {n}, one for each example")
    return answers
