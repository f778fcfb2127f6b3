"""What every task of sequences answers, and how a configuration finds its class.

A task is a value: a frozen dataclass that inherits :class:`Task`. A sequence is a *prompt* followed
by an *answer*; the model reads tokens from the left and is trained on the answer's tokens alone.
Training, evaluation, sweeps and pages ask a task these questions and no others:

==================  ================  ==============================================================
question            type              meaning
==================  ================  ==============================================================
``kind``            ``str``           the name of its class in files, a field with one value
``words``           ``tuple[str]``    the text of every token: a token is an index of them
``length``          ``int``           most tokens that the model reads: all but the last one
``splits``          ``tuple[Split]``  the sets of examples: ``train``, and those it is judged on
``examples(...)``   ``Examples``      n examples of a split: tokens, loss mask, lengths
``end``             ``int | None``    the token that ends an answer; None if answers are not decoded
``score(...)``      ``bool[n]``       which decoded answers are right; by default, exact matches
``aspects(...)``    ``Mapping``       what errors are counted by; by default, the answer's length
``plane``           ``Plane | None``  two aspects that span a plane of errors; by default, None
``chance``          ``float``         the accuracy of a guess; by default, 0
``baselines(...)``  ``Mapping``       what shortcuts get right, shown beside scores; by default, {}
``n_bytes(...)``    ``int[n] | None`` bytes of text that are predicted; by default, None
==================  ================  ==============================================================

``encode``, ``decode``, ``n_tokens`` and ``about`` follow from these. Two further questions have an
answer that only anchor tasks change: ``answers_last`` and ``anchored``; and two that only corpora
do, whose data are files: ``data`` and ``mapped``.

``examples(split, n, seed=s)`` is a function of (split, seed, index) alone: the first m of n
examples equal a request for m. :mod:`anchor_interp.tasks.hashing` draws such numbers. An example is
in one split whatever the seed, so that nothing a model is judged on was trained on.

A task in a file of its own needs no change of this package: its class is known once its module is
imported. A command or a worker imports the modules and files that ``ANCHOR_INTERP_TASKS`` names.
"""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int, Integer

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import check_fields, checked, shown, suggestion

if TYPE_CHECKING:
    from anchor_interp.tasks.anchor import AnchorTask

TASKS_VARIABLE = "ANCHOR_INTERP_TASKS"
"""The environment variable with modules or files of further tasks, separated as paths are."""
MAX_EXAMPLES = 1 << 31
"""Most examples of one request."""
_BLOCK, _MOST_BLOCKS = 1 << 22, 16  # tokens that are checked at a time, and how often at most
SplitRole = Literal["train", "id", "ood"]
"""What a split tests: ``id`` has the distribution of the training data, ``ood`` another one."""
_CLASSES: dict[str, "type[Task]"] = {}


@dataclass(frozen=True)
class Split:
    """A set of examples that a task has."""

    name: str
    role: SplitRole
    size: int | None = None
    """How many different examples it has; None if there is no end of them."""


@dataclass(frozen=True)
class Plane:
    """Two aspects of whole numbers that span a plane of errors."""

    x: str
    y: str
    square: tuple[int, int] | None = None
    """The smallest and the largest number, on both axes, of a square that is drawn in."""


@dataclass(frozen=True, eq=False)
class Examples:
    """n sequences, padded with zeros on the right to one length."""

    tokens: Integer[np.ndarray, "n pos"]
    """Prompt and answer, with its end token if the task has one."""
    mask: Bool[np.ndarray, "n pos"]
    """The tokens that the model is trained to predict, each from the tokens before it. In a task
    with an end token they are the answer, whole."""
    lengths: Integer[np.ndarray, " n"]
    """Tokens before the padding."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> "Examples":
        """Examples of prompts and answers that are lists of tokens; an answer has its end token.

        Raises:
            ConfigError: there are more prompts than answers, or the other way round.
        """
        if len(prompts) != len(answers):
            raise ConfigError(f"{len(prompts):,} prompts have {len(answers):,} answers")
        starts = np.fromiter(map(len, prompts), np.int64, len(prompts))
        lengths = starts + np.fromiter(map(len, answers), np.int64, len(prompts))
        place = np.arange(lengths.max(initial=1))
        inside = place < lengths[:, None]
        tokens = np.zeros(inside.shape, np.int32)
        pairs = zip(prompts, answers, strict=True)
        tokens[inside] = [token for pair in pairs for part in pair for token in part]
        return cls(tokens, inside & (place >= starts[:, None]), lengths)

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, which: slice | np.ndarray) -> "Examples":
        """Some of the examples, cut to the longest of them."""
        longest = int(self.lengths[which].max(initial=1))
        return Examples(
            self.tokens[which, :longest], self.mask[which, :longest], self.lengths[which]
        )

    @functools.cached_property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where the answers start: the first token that is predicted."""
        found: Int[np.ndarray, " n"] = self.mask.argmax(1)
        return found

    def answers(self) -> list[tuple[int, ...]]:
        """The tokens of every answer, with its end token."""
        rows = zip(self.tokens, self.starts, self.lengths, strict=True)
        return [tuple(map(int, row[start:length])) for row, start, length in rows]

    @functools.cached_property
    def n_predicted(self) -> Int[np.ndarray, " n"]:
        """How many tokens of each example are predicted."""
        if self.mask.strides[0] == 0:  # one row stands for all
            return np.broadcast_to(self.mask[:1].sum(1), len(self))
        found: Int[np.ndarray, " n"] = self.mask.sum(1)
        return found

    @property
    def inputs(self) -> Integer[np.ndarray, "n read"]:
        """All tokens but the last position's: what a model reads."""
        return self.tokens[:, :-1]

    @property
    def last(self) -> Integer[np.ndarray, " n"]:
        """The tokens of the last position: the answers of a task that ``answers_last``."""
        return self.tokens[:, -1]


@dataclass(frozen=True)
class Task:
    """The base of all tasks; the module's docstring is its contract.

    A subclass is a frozen dataclass. It has the field ``kind``, whose only value is its default,
    and a docstring whose first sentence tells what is asked.
    """

    _origin: ClassVar[tuple[str, str]]
    """Its file (in a notebook, its module) and its name there, where it may be defined again."""

    def __init_subclass__(cls, *, untagged: bool = False) -> None:
        """Make the class known to configurations; ``untagged`` ones have no kind in files."""
        if issubclass(cls, _CLASSES.get("", ())):
            return  # a view of an anchor task, which no configuration holds
        kind = "" if untagged else vars(cls).get("kind")
        if not isinstance(kind, str):
            name = cls.__name__.lower()
            raise ConfigError(
                f"the task {cls.__name__} has no kind; give it the field "
                f"kind: Literal[{name!r}] = {name!r}"
            )
        known = _CLASSES.get(kind)
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        place = str(Path(file).resolve()) if isinstance(file, str) else cls.__module__
        cls._origin = (place, cls.__qualname__)
        if known is not None and known._origin != cls._origin:
            place, name = known._origin
            raise ConfigError(f"{kind!r} is the kind of the task {name} in {place}; choose another")
        _CLASSES[kind] = cls

    def __post_init__(self) -> None:
        check_fields(self, "task")

    @property
    def kind(self) -> str:
        """The name of the class in files."""
        return type(self).__name__

    @property
    def words(self) -> tuple[str, ...]:
        """The text of every token, without spaces."""
        raise self._unanswered("words")

    @property
    def length(self) -> int:
        """Most tokens that the model reads."""
        raise self._unanswered("length")

    @property
    def splits(self) -> tuple[Split, ...]:
        """The sets of examples; the first one is ``Split("train", "train")``."""
        raise self._unanswered("splits")

    def examples(self, split: str, n: int, *, seed: int) -> Examples:
        """N examples of a split; :func:`draw_examples` checks them."""
        raise self._unanswered(f"examples({split!r}, {n}, seed={seed})")

    def _unanswered(self, question: str) -> ConfigError:
        what = f"the task {self.kind} does not answer {question}"
        return ConfigError(f"{what}; see anchor_interp.tasks.task for what a task answers")

    @property
    def end(self) -> int | None:
        """The token that ends an answer; None if the score is that of each token by itself."""
        return None

    def score(self, examples: Examples, answers: Sequence[Sequence[int]]) -> Bool[np.ndarray, " n"]:
        """Which decoded answers are right; each is what the model wrote, with its end token."""
        pairs = zip(answers, examples.answers(), strict=True)
        return np.array([tuple(given) == wanted for given, wanted in pairs], bool)

    def aspects(self, examples: Examples) -> Mapping[str, Sequence[str | int]]:
        """What errors are counted by: for each way of grouping, the value of every example.

        Texts are shown as bars, whole numbers as a line. :func:`draw_aspects` checks them.
        """
        return {"length": (examples.mask.sum(1) - (self.end is not None)).tolist()}

    @property
    def plane(self) -> Plane | None:
        """Two aspects whose whole numbers span a plane of errors; None without any."""
        return None

    @property
    def chance(self) -> float:
        """The accuracy of a guess, from 0 to 1, which the rule for OOD accuracy counts from."""
        return 0.0

    def baselines(self, examples: Examples) -> Mapping[str, Bool[np.ndarray, " n"]]:
        """Which examples each shortcut gets right, by its name; :func:`draw_baselines` checks them.

        Their accuracies stand beside those of a model.
        """
        del examples  # there is none by default
        return {}

    def n_bytes(self, examples: Examples) -> Int[np.ndarray, " n"] | None:
        """How many bytes of text the predicted tokens of each example are; None if none are text.

        With them a loss is also told in bits per byte, which compares tokenizers.
        """
        del examples
        return None

    @property
    def data(self) -> str:
        """A digest of data that the configuration names and does not hold; empty without any.

        A run whose data have changed is not resumed.
        """
        return ""

    @property
    def mapped(self) -> bool:
        """Whether training examples are read from files when needed, and take no memory."""
        return False

    @property
    def answers_last(self) -> bool:
        """Whether every example has one length and one token to predict, its last."""
        return False

    @property
    def by_token(self) -> bool:
        """Whether every token is scored by itself, after all before it, as in language modelling.

        Then runs also tell losses on their splits, and how many tokens they have seen.
        """
        return self.end is None and not self.answers_last

    @property
    def anchored(self) -> "AnchorTask | None":
        """The task itself if it has anchors, which analyses of mechanisms need; else None."""
        return None

    @property
    def n_tokens(self) -> int:
        """The vocabulary needed."""
        return len(self.words)

    @property
    def n_input_tokens(self) -> int:
        """One more than the largest token that the model reads."""
        return self.n_tokens

    @property
    def about(self) -> str:
        """What the task asks, in one line: the first line of its docstring."""
        return (inspect.getdoc(self) or type(self).__name__).splitlines()[0]

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, whose words are separated by spaces; ConfigError if unknown."""
        index, words = _index(self.words), text.split()
        for word in words:
            if word not in index:
                close = suggestion(word, index)
                raise ConfigError(f"{shown(word)} is not a word of the task {self.kind}{close}")
        return tuple(index[word] for word in words)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; ConfigError if one is outside the vocabulary."""
        words, found = self.words, [int(token) for token in tokens]
        for token in found:
            if not 0 <= token < len(words):
                expected = f"expected 0 to {len(words) - 1}, the vocabulary"
                raise ConfigError(f"a token of the task {self.kind} is {token}; {expected}")
        return " ".join(words[token] for token in found)

    def spelled(self, tokens: Iterable[int]) -> tuple[str, ...]:
        """The text of each token that a model writes; one that no word has is such as ``<57>``."""
        words = self.words
        return tuple(words[t] if t < len(words) else f"<{t}>" for t in map(int, tokens))

    def written(self, tokens: Iterable[int]) -> str:
        """The text of tokens that a model writes."""
        return " ".join(self.spelled(tokens))

    @classmethod
    def among(cls, data: Mapping[str, Any]) -> "type[Task]":
        """The class of a task's JSON object; ConfigError if no module of that kind is imported."""
        kind = checked(data.get("kind", ""), str, "task.kind")
        if kind not in _CLASSES:
            for name in _named():
                import_tasks(name)
        if kind not in _CLASSES:
            known = ", ".join(sorted(filter(None, _CLASSES)))
            raise ConfigError(
                f"task.kind is {shown(kind)}; known: {known}. For a task of your own, import its "
                f"module first, or name that module or file in {TASKS_VARIABLE}"
            )
        return _CLASSES[kind]


def draw_examples(task: Task, split: str, n: int, *, seed: int) -> Examples:
    """The task's own examples, after a check.

    Raises:
        ConfigError: an unknown split, n or seed out of range, or examples that break the contract:
            a token outside the vocabulary or ``n_input_tokens``, a sequence longer than the
            context, nothing to predict, an answer without its end token.
    """
    checked(task, Task, "task")
    checked(n, int, "n", low=0, high=MAX_EXAMPLES)
    checked(seed, int, "seed", low=0)
    checked(task.chance, float, f"the chance of the task {task.kind}", low=0, high=1)
    find_split(task, split)
    found: Examples = checked(task.examples(split, n, seed=seed), Examples, "examples")
    where = f"the split {split} of the task {task.kind}"
    if len(found) != n:
        raise ConfigError(f"{where} gives {len(found):,} examples; expected {n:,}")
    shapes = found.tokens.shape, found.mask.shape, found.lengths.shape
    if found.tokens.ndim != 2 or shapes[1:] != (shapes[0], (n,)):
        raise ConfigError(
            f"{where} has tokens, mask and lengths of shapes {shapes[0]}, {shapes[1]} and "
            f"{shapes[2]}; expected (n, pos) twice and (n)"
        )
    for rows in _checked_blocks(*found.tokens.shape):
        part = Examples(found.tokens[rows], found.mask[rows], found.lengths[rows])
        _check_examples(task, part, where, rows.start)
    return found


def _checked_blocks(n: int, n_pos: int) -> list[slice]:
    """All rows in blocks; of a very large set, which lies in files, blocks all over it."""
    size = max(1, _BLOCK // n_pos)
    starts = range(0, n, size)
    if len(starts) > _MOST_BLOCKS:
        starts = range(0, n, n // _MOST_BLOCKS)
    return [slice(start, min(start + size, n)) for start in starts]


def _check_examples(task: Task, found: Examples, where: str, first: int) -> None:
    """Refuse examples that break the contract; the first of them has this number."""
    low, high = int(found.tokens.min()), int(found.tokens.max())
    if low < 0 or high >= task.n_tokens:
        row = first + int(((found.tokens < 0) | (found.tokens >= task.n_tokens)).any(1).argmax())
        wrong = high if high >= task.n_tokens else low
        raise ConfigError(
            f"{where} has the token {wrong} in example {row}; expected 0 to {task.n_tokens - 1}, "
            "the vocabulary"
        )
    if (wrong := int(found.inputs.max(initial=0))) >= task.n_input_tokens:
        row = first + int((found.inputs == wrong).any(1).argmax())
        raise ConfigError(
            f"{where} has the token {wrong} before the last position of example {row}; "
            f"n_input_tokens of the task is {task.n_input_tokens}: make it {wrong + 1} or more"
        )
    longest = int(found.lengths.max())
    if longest > task.length + 1 or longest > found.tokens.shape[1]:
        row = first + int(found.lengths.argmax())
        most = min(task.length + 1, found.tokens.shape[1])
        raise ConfigError(f"{where} has {longest} tokens in example {row}; expected at most {most}")
    asked, position = found.mask.any(1), np.arange(found.mask.shape[1])
    wrong_mask = found.mask[:, 0] | (found.mask & (position >= found.lengths[:, None])).any(1)
    if not asked.all() or wrong_mask.any():
        row = first + int((wrong_mask | ~asked).argmax())
        raise ConfigError(
            f"{where} predicts no token, the first one or padding in example {row}; expected a "
            "mask on some tokens after the first"
        )
    n = len(found)
    if task.answers_last and (found.mask[:, -1].sum(), found.mask.sum()) != (n, n):
        raise ConfigError(f"{where} predicts other tokens than the last; answers_last is true")
    if task.end is not None:
        _check_answers(found, task.end, where, first)


def _check_answers(found: Examples, end: int, where: str, first: int) -> None:
    """Refuse an answer that is not one stretch of tokens up to its only end token."""
    position = np.arange(found.tokens.shape[1])
    inside = (position >= found.starts[:, None]) & (position < found.lengths[:, None])
    is_end = inside & (found.tokens == end)
    last = found.tokens[np.arange(len(found)), found.lengths - 1]
    wrong = (found.mask != inside).any(1) | (is_end.sum(1) != 1) | (last != end)
    if wrong.any():
        raise ConfigError(
            f"{where} has an answer in example {first + int(wrong.argmax())} that is not one "
            f"stretch of predicted tokens up to its only end token ({end}); decoding could not "
            "give it"
        )


def draw_aspects(task: Task, examples: Examples) -> dict[str, list[str] | list[int]]:
    """The task's own aspects of examples, after a check.

    Raises:
        ConfigError: an aspect lacks the value of an example, or has neither texts nor whole
            numbers; or the plane names an aspect that is absent, texts or negative somewhere.
    """
    found: dict[str, list[str] | list[int]] = {}
    for name, values in checked(task.aspects(examples), Mapping, "aspects").items():
        what = f"the aspect {shown(name)} of the task {task.kind}"
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        if len(plain) != len(examples):
            raise ConfigError(f"{what} has {len(plain):,} values; expected {len(examples):,}")
        kinds = {type(value) for value in plain}
        if not (kinds <= {str} or kinds <= {int}):
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ConfigError(f"{what} has values of type {names}; expected str alone or int alone")
        found[checked(name, str, "the name of an aspect")] = plain
    plane = task.plane
    for name in () if plane is None else (plane.x, plane.y):
        if name not in found:
            known = ", ".join(found) or "none"
            raise ConfigError(
                f"the plane of the task {task.kind} names {shown(name)}; its aspects are {known}"
            )
        for value in found[name]:
            if isinstance(value, str) or value < 0:
                raise ConfigError(
                    f"the aspect {shown(name)} of the task {task.kind} has the value "
                    f"{shown(value)}; an axis of its plane needs whole numbers from 0"
                )
    return found


def draw_baselines(task: Task, examples: Examples) -> dict[str, float]:
    """The accuracies of the task's own baselines on examples, after a check.

    Raises:
        ConfigError: a baseline does not say of every example whether it is right.
    """
    found = {}
    for name, right in checked(task.baselines(examples), Mapping, "baselines").items():
        rights = np.asarray(right)
        if rights.shape != (len(examples),) or rights.dtype != bool:
            raise ConfigError(
                f"the baseline {shown(name)} of the task {task.kind} has {rights.dtype} values of "
                f"shape {rights.shape}; expected bool and {(len(examples),)}"
            )
        found[checked(name, str, "the name of a baseline")] = float(rights.mean())
    return found


def find_split(task: Task, name: str) -> Split:
    """A task's split by its name; ConfigError if there is none."""
    names = [split.name for split in task.splits]
    if checked(name, str, "split") not in names:
        close, known = suggestion(name, names), ", ".join(names)
        raise ConfigError(f"the task {task.kind} has no split {shown(name)}{close}; known: {known}")
    return task.splits[names.index(name)]


def anchored(task: Task, what: str) -> "AnchorTask":
    """The task as one with anchors; ConfigError if it has none, which ``what`` needs."""
    checked(task, Task, "task")
    found = task.anchored
    if found is None:
        raise ConfigError(f"{what} needs a task with anchors; the task {task.kind} has none")
    return found


def plain_fields(task: Task) -> dict[str, Any]:
    """The fields of a task that are numbers, texts or None, without its kind."""
    values = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    plain = (int, float, str, bool, type(None))
    return {n: value for n, value in values.items() if n != "kind" and isinstance(value, plain)}


def further_tasks() -> tuple[str, ...]:
    """The modules and files that another process must import to know the tasks of this one."""
    given = [str(Path(name).resolve()) if is_file(name) else name for name in _named()]
    for cls in _CLASSES.values():
        place, _ = cls._origin
        if not _is_ours(cls) and is_file(place):
            given.append(cls.__module__ if "." in cls.__module__ else place)
    return tuple(dict.fromkeys(given))


def import_tasks(name: str, copy: Path | None = None) -> None:
    """Import a module, or a file (from its ``copy``, if given); ConfigError if that fails."""
    try:
        if is_file(name):
            spec = importlib.util.spec_from_file_location(f"_task_{Path(name).stem}", copy or name)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            module.__file__ = name if copy is None else None  # a kept worker gets further copies
            spec.loader.exec_module(module)
        else:
            importlib.import_module(name)
    except Exception as error:
        raise ConfigError(
            f"cannot import the tasks of {name} ({type(error).__name__}: {error}); correct it, or "
            f"leave it out of {TASKS_VARIABLE}"
        ) from error


def _named() -> list[str]:
    return list(filter(None, os.environ.get(TASKS_VARIABLE, "").split(os.pathsep)))


def is_file(name: str) -> bool:
    """Whether the name of further tasks is a file's, not a module's."""
    return name.endswith(".py")


def _is_ours(cls: "type[Task]") -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


@functools.lru_cache(maxsize=16)
def _index(words: tuple[str, ...]) -> dict[str, int]:
    return {word: token for token, word in enumerate(words)}
