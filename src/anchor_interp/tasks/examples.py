"""Sets of examples: what a task gives for training and judging, and what an analysis is about."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Int, Int64, Integer

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import check_name, checked, shown

if TYPE_CHECKING:
    import torch

    Integers: TypeAlias = np.ndarray | torch.Tensor | Sequence[int] | Sequence[Sequence[int]]
else:
    Integers = Any
"""Integers as an array, a tensor on any device, or lists."""
warn_once = functools.cache(logging.getLogger(__name__).warning)
"""Warns once of the same, with the same arguments, in a process."""

SplitRole = Literal["train", "id", "ood"]
"""What a split tests: ``id`` has the distribution of the training data, ``ood`` another one."""


@dataclass(frozen=True)
class Split:
    """A set of examples of a task; a plain test set is declared twice, as ``id`` and as ``ood``."""

    name: str
    role: SplitRole
    size: int | None = None
    """How many different examples it has; None if there is no limit."""


@dataclass(frozen=True)
class Plane:
    """Two aspects of whole numbers that span a plane of errors."""

    x: str
    y: str
    square: tuple[int, int] | None = None
    """The smallest and the largest number, on both axes, of a square that is drawn in."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """n sequences, padded with zeros on the right to one length."""

    tokens: Integer[np.ndarray, "n pos"]
    """Prompt and answer, with its end token if the task has one."""
    mask: Bool[np.ndarray, "n pos"]
    """The tokens that the model is trained to predict, each from the tokens before it. In a task
    with an end token they are the answer, whole."""
    lengths: Integer[np.ndarray, " n"]
    """Tokens before the padding."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> "Dataset":
        """Prompts and answers that are lists of tokens; an answer has its end token."""
        for part in (each for each in (*prompts, *answers) if not hasattr(each, "__len__")):
            raise ConfigError(f"{shown(part)} is not a list of tokens; put an answer in a list")
        if len(prompts) != len(answers):
            raise ConfigError(f"{len(prompts):,} prompts have {len(answers):,} answers")
        starts = np.fromiter(map(len, prompts), np.int64, len(prompts))
        lengths = starts + np.fromiter(map(len, answers), np.int64, len(prompts))
        place = np.arange(lengths.max(initial=1))
        inside = place < lengths[:, None]
        tokens = np.zeros(inside.shape, np.int32)
        parts = (part for pair in zip(prompts, answers, strict=True) for part in pair)
        given = np.array([token for part in parts for token in part])
        tokens[inside] = given
        for token in given[tokens[inside] != given]:
            raise ConfigError(f"{shown(token)} is not a token; expected an integer below 2**31")
        return cls(tokens, inside & (place >= starts[:, None]), lengths)

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, which: slice | np.ndarray) -> "Dataset":
        """Some of the examples, cut to the longest of them."""
        part = which, slice(int(self.lengths[which].max(initial=1)))
        return Dataset(self.tokens[part], self.mask[part], self.lengths[which])

    @functools.cached_property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where the answers start: the first token that is predicted."""
        starts: Int[np.ndarray, " n"] = self.mask.argmax(1)
        return starts

    def answers(self) -> list[tuple[int, ...]]:
        """The tokens of every answer, with its end token."""
        rows = zip(self.tokens, self.starts, self.lengths, strict=True)
        return [tuple(map(int, row[start:length])) for row, start, length in rows]

    @functools.cached_property
    def n_predicted(self) -> Int[np.ndarray, " n"]:
        """How many tokens of each example are predicted."""
        is_one_row = self.mask.strides[0] == 0  # which stands for all
        return np.broadcast_to((self.mask[:1] if is_one_row else self.mask).sum(1), len(self))

    @property
    def inputs(self) -> Integer[np.ndarray, "n read"]:
        """All tokens but the last position's: what a model reads."""
        return self.tokens[:, :-1]

    @property
    def last(self) -> Integer[np.ndarray, " n"]:
        """The tokens of the last position: the answers of a task that ``answers_last``."""
        return self.tokens[:, -1]

    def prompts(self) -> "Examples":
        """The prompts, each answered by the first token to predict, which is read at its end."""
        answers = self.tokens[np.arange(len(self)), self.starts]
        return Examples(self.inputs, answers, at=self.starts - 1)


class Examples(Readable):
    """What an analysis is about: sequences, where each is answered, and with what.

    :class:`anchor_interp.tasks.sequences.Sequences` are those of an anchor task, a byte a token.

    Args:
        tokens: token indices [n, pos].
        answers: the right answer of each, a token, or k of each [n, k]; None where no answer is
            needed. Metrics take all k (:mod:`anchor_interp.interventions.metrics`), and so does
            what is given a metric.
        wrong: a wrong answer of each, as many.
        at: the position at which the answer is read, one for all or one each, or of k answers
            [n, k]: 0-based, or negative and counted from the end. By default the last one.
        labels: named properties of each, n values a name; a DataFrame will do.
        places: named positions, as ``at``; sites and masks take their names. ``last`` always is
            where the answer is read.
        padding: the token that fills rows on the left or right; no position lies in it, and
            negative ones count from its beginning. A model reads it like any token, unless there is
            a mask.
        attention_mask: 1 for a token, 0 for padding [n, pos], as TransformerLens and transformers
            have it. Every model gets it. It alone tells padding from tokens, so the padding token
            may also be a real one.

    Raises:
        ConfigError: arrays that do not fit together, no sequence, a position in the padding, or a
            row that begins and ends with the padding token.
    """

    def __init__(
        self,
        tokens: Integers,
        answers: Integers | None = None,
        wrong: Integers | None = None,
        *,
        at: Integers | int = -1,
        labels: Mapping[str, Any] | None = None,
        places: Mapping[str, Integers | int] | None = None,
        padding: int | None = None,
        attention_mask: Integers | None = None,
    ) -> None:
        self.tokens: Integer[np.ndarray, "n pos"] = as_integers(tokens, "tokens", "n, pos")
        self.padding = checked(padding, int | None, "padding")
        self.attention_mask: Bool[np.ndarray, "n pos"] | None = None
        if attention_mask is not None:
            self.attention_mask = _mask(attention_mask, self.tokens.shape)
        self.inside: Bool[np.ndarray, "n pos"] = self._inside()
        """Where a row holds tokens, not padding."""
        columns = as_integers(at, "at", "n, k").T if np.ndim(at) == 2 else [at]
        each_at = [self._columns(column, "at") for column in columns]
        self.each_at: Int64[np.ndarray, "n k"] = np.stack(each_at, 1)
        """Where each answer is read."""
        self.at: Int64[np.ndarray, " n"] = self.each_at.max(1)
        self.each_answer = None if answers is None else self._k_each(answers, "answers")
        self.each_wrong = None if wrong is None else self._k_each(wrong, "wrong")
        is_table = hasattr(labels, "columns")  # a DataFrame
        named: Any = labels if is_table else checked(labels, Mapping | None, "labels") or {}
        places = checked(places, Mapping | None, "places") or {}
        self.labels = {name: self._column(np.asarray(v), name) for name, v in dict(named).items()}
        self.places = {name: self._columns(at, name) for name, at in places.items()}
        asked, read = self.each_answer, np.take_along_axis(self.tokens, self.each_at, 1)
        if asked is not None and (read == asked).all() and len(np.unique(asked)) > 1:
            what = "every answer is the token at the position where it is read (at)"
            warn_once(f"{what}; where a model predicts the next token, at is one too large")
        if taken := {"all", "last", "noise", "other"}.intersection(self.places):
            raise ConfigError(f"rename the place {min(taken)!r}; all, last, noise, other are taken")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answers(self) -> Int64[np.ndarray, " n"] | None:
        """The right answers; ConfigError if there are several each."""
        return None if self.each_answer is None else self._single(self.each_answer)

    @property
    def wrong(self) -> Int64[np.ndarray, " n"] | None:
        """The wrong answers; ConfigError if there are several each."""
        return None if self.each_wrong is None else self._single(self.each_wrong)

    @property
    def unread(self) -> Bool[np.ndarray, "n pos"]:
        """Where the attention mask hides a position up to the last answer's."""
        before = np.arange(self.tokens.shape[1]) <= self.at[:, None]
        return before & (False if self.attention_mask is None else ~self.attention_mask)

    @property
    def explained(self) -> tuple[Int64[np.ndarray, " n"] | None, Int64[np.ndarray, " n"] | None]:
        """The right and wrong answers to explain; None: the model's own, as of anchor sequences."""
        return self.answers, self.wrong

    def single(self) -> "Examples":
        """These examples; ConfigError if there are several answers each."""
        self._single(self.each_at)
        return self

    def _single(self, answers: Int64[np.ndarray, "n k"]) -> Int64[np.ndarray, " n"]:
        if (k := answers.shape[1]) > 1:
            text = f"the examples have {k} answers each; expected one here"
            raise ConfigError(f"{text}: patching and attribution with a metric take several")
        one: Int64[np.ndarray, " n"] = answers[:, 0]
        return one

    def __getitem__(self, index: Any) -> "Examples":
        """One example by its number, or some by a slice, numbers or a mask [n] of booleans."""
        return self._part(np.atleast_1d(np.arange(len(self))[index]), self.tokens.shape[1])

    def until(self, stop: int) -> "Examples":
        """The first ``stop`` positions, which hold all answers; later places are left out."""
        return self._part(np.arange(len(self)), stop)

    def _part(self, rows: Int[np.ndarray, " some"], stop: int) -> "Examples":
        some = Examples(
            self.tokens[rows, :stop],
            None if self.each_answer is None else self.each_answer[rows],
            None if self.each_wrong is None else self.each_wrong[rows],
            at=self.each_at[rows],
            labels={name: values[rows] for name, values in self.labels.items()},
            places={n: at[rows] for n, at in self.places.items() if at.max() < stop},
            attention_mask=self.inside[rows, :stop],
        )
        some.padding = self.padding
        some.attention_mask = None if self.attention_mask is None else some.inside
        return some

    def dataset(self) -> Dataset:
        """As training data: the tokens of each row up to where it is answered, and the answer."""
        if self.answers is None:
            raise ConfigError("the examples have no answers, so nothing is trained on them")
        read = self.inside & (np.arange(self.tokens.shape[1]) <= self.at[:, None])
        prompts = [row[inside].tolist() for row, inside in zip(self.tokens, read, strict=True)]
        return Dataset.of(prompts, self.answers[:, None].tolist())

    def positions(self, where: str | int | Integers) -> Int64[np.ndarray, " n"]:
        """The column of a place in every row: by its name, or as ``at``."""
        if not isinstance(where, str):
            return self._columns(where, "position")
        named = {**self.places, "last": self.at}
        hint = "; key, first and second are of anchor tasks: name yours (site_grid: positions=...)"
        with raising(ConfigError, "", hint if where in ("key", "first", "second") else ""):
            check_name(where, named, "no place of the examples")
        return named[where]

    @property
    def names(self) -> tuple[str, ...]:
        """The place of each position in all examples, else its number (``noise`` by anchors)."""
        key, first, second = (self.places.get(name, -1) for name in ("key", "first", "second"))
        anchors = np.all((key != -1) & (first == key + 1) & (second == key + 2))  # in a row
        names = ["noise" if anchors else str(i) for i in range(self.tokens.shape[1])]
        for name, where in {"last": self.at, **self.places}.items():
            if (where == where[0]).all():
                names[where[0]] = name
        return tuple(names)

    def _columns(self, where: Integers | int, name: str) -> Int64[np.ndarray, " n"]:
        """Positions as columns, inside the padding."""
        each: Any = where if np.ndim(where) else np.full(len(self), where)
        given = self._each(each, name)
        length = self.tokens.shape[1]
        stop = length - self.inside[:, ::-1].argmax(1)
        columns = np.where(given < 0, stop + given, given)
        known = (columns >= 0) & (columns < length)
        held = known & self.inside[np.arange(len(self)), np.where(known, columns, 0)]
        for row in np.flatnonzero(~held)[:1]:
            tokens = self.inside[row]
            inside = f"which has {tokens.sum()} tokens from position {tokens.argmax()} on"
            inside += "" if self.inside.all() else "; the rest is padding"
            raise ConfigError(f"{name} is {given[row]} in row {row}, {inside}")
        return columns

    def _inside(self) -> Bool[np.ndarray, "n pos"]:
        """Where rows hold tokens; ConfigError if one begins and ends with the padding token."""
        if self.attention_mask is not None:
            return self.attention_mask
        token = np.broadcast_to(self.tokens != self.padding, self.tokens.shape)
        both = ~(token[:, 0] | token[:, -1]) & token.any(1)
        if both.any():
            where = f"row {both.argmax()} begins and ends with {self.padding}"
            mask = "give Examples(..., attention_mask=...), 1 for a token and 0 for padding"
            raise ConfigError(f"{where}; is it padding or a token? {mask}")
        if not token[:, -1].any():
            where = "if it is also a token, say where: Examples(..., attention_mask=...)"
            warn_once(f"every row ends with %s, which counts as padding; {where}", self.padding)
        after, before = (np.maximum.accumulate(t, 1) for t in (token, token[:, ::-1]))
        return after & before[:, ::-1]

    def _k_each(self, values: Any, name: str) -> Int64[np.ndarray, "n k"]:
        """An answer for each place where one is read."""
        if (k := self.each_at.shape[1]) == 1 and np.ndim(values) != 2:
            return self._each(values, name)[:, None]
        given = as_integers(values, name, "n, k").astype(np.int64)
        if given.shape != (len(self), k):
            expected = f"({len(self)}, {k}), one for each position in at"
            raise ConfigError(f"{name} has shape {given.shape}; expected {expected}")
        return given

    def _each(self, values: Integers, name: str) -> Int64[np.ndarray, " n"]:
        return self._column(as_integers(values, name, "n"), name)

    def _column(self, values: np.ndarray, name: str) -> np.ndarray:
        checked(name, str, "the name of a label or place")
        if values.shape != (len(self),):
            raise ConfigError(f"{name} has shape {values.shape}; expected {len(self)} values")
        small = np.can_cast(values.dtype, np.int64) and values.dtype.kind in "iu"
        return values.astype(np.int64) if small else values  # sums of small types overflow

    def _summary(self) -> str:
        n, length = self.tokens.shape
        low, high = self.at.min(), self.at.max()
        at = f"{low}" if low == high else f"{low} to {high}"
        named = (("labels", self.labels), ("places", self.places))
        names = [f"; {what} {', '.join(some)}" for what, some in named if some]
        return f"{n} of {length} tokens, answered at position {at}{''.join(names)}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        each = {"answer": self.each_answer, "wrong": self.each_wrong, "at": self.each_at}
        known = {n: [r[0] if len(r) == 1 else " ".join(map(str, r)) for r in values]
                 for n, values in each.items() if values is not None} | self.labels  # fmt: skip
        for i, tokens in enumerate(self.tokens):
            read = tokens[self.inside[i]]
            yield {"tokens": " ".join(map(str, read)), **{n: v[i] for n, v in known.items()}}


def as_examples(inputs: Examples | Integers) -> Examples:
    """Examples themselves, or tokens [n, pos] as examples without answers; ConfigError for none."""
    if not isinstance(inputs, Examples):
        return Examples(inputs)
    as_integers(inputs.tokens, "tokens", "n, pos")  # sequences may be none
    return inputs


def order_of(examples: Examples) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """The order of examples that follows from them, wherever they stand, and their places in it.

    Equal examples, which have the same tokens, answers and positions, share the first one's place.
    """
    given = examples.each_answer, examples.each_wrong, examples.each_at, examples.attention_mask
    each = (*given, *examples.places.values())
    rows = np.column_stack([examples.tokens, *(values for values in each if values is not None)])
    _, which = np.unique(rows, axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    return order, np.searchsorted(which.ravel()[order], which.ravel())


def check_aligned(**named: Examples) -> None:
    """ConfigError if two sets, by name, differ in shape, or in where a place of both lies."""
    (one, a), (other, b) = named.items()
    for what, x, y in (("tokens", a.tokens, b.tokens), ("answers", a.each_at, b.each_at)):
        if x.shape != y.shape:
            raise ConfigError(f"{one} has {what} of shape {x.shape} and {other} {y.shape}")
    read = {"last": a.each_at != b.each_at, "masked padding": a.unread != b.unread}
    elsewhere = {name: differs.any(1) for name, differs in read.items()}
    shared = {name: at != b.places[name] for name, at in a.places.items() if name in b.places}
    for place, other_at in (elsewhere | shared).items():
        if n := other_at.sum():
            where = f"elsewhere in {n} of {len(a)} {other} examples"
            raise ConfigError(f"{place!r} is {where}; pair rows whose places and masks agree")


def _mask(given: Any, shape: tuple[int, ...]) -> Bool[np.ndarray, "n pos"]:
    """An attention mask as booleans."""
    with contextlib.suppress(ValueError, TypeError):  # what is not an array is not a mask
        array = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
        if array.shape == shape and array.dtype.kind in "biu" and np.isin(array, (0, 1)).all():
            return array.astype(np.bool_)
    expected = f"expected 1 (a token) or 0 (padding) in shape {shape}"
    raise ConfigError(f"attention_mask is {shown(given)}; {expected}")


def as_integers(values: Any, name: str, axes: str) -> Integer[np.ndarray, "..."]:
    """Integers with axes such as ``n, pos`` as an array; ConfigError for anything else."""
    reason = f"{name} is not an array of integers; are its rows of one length? "
    with raising(ConfigError, reason, of=(ValueError, TypeError)):
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.ndim != 1 + axes.count(",") or array.dtype.kind not in "iu" or not array.size:
        about = f"shape {array.shape} and dtype {array.dtype}"
        raise ConfigError(f"{name} has {about}; expected integers [{axes}], at least one")
    return array
