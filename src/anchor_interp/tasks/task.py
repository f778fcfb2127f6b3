"""What every task of sequences answers.

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
``examples(...)``   ``Dataset``       n examples of a split: tokens, loss mask, lengths
``end``             ``int | None``    the token that ends an answer; None if answers are not decoded
``score(...)``      ``bool[n]``       which decoded answers are right; by default, exact matches
``aspects(...)``    ``Mapping``       what errors are counted by; by default, the answer's length
``plane``           ``Plane | None``  two aspects that span a plane of errors; by default, None
``chance``          ``float``         the accuracy of a guess; by default, 0
``baselines(...)``  ``Mapping``       what shortcuts get right, shown beside scores; by default, {}
``n_bytes(...)``    ``int[n] | None`` bytes of text that are predicted; by default, None
==================  ================  ==============================================================

``encode``, ``decode``, ``n_tokens`` and ``about`` follow from these. Only anchor tasks change
``answers_last``, only corpora ``data`` and ``mapped``, and only a task with a network of its own
what :mod:`anchor_interp.tasks.network` asks for.

``examples(split, n, seed=s)`` is a function of (split, seed, index) alone: the first m of n
examples equal a request for m. :mod:`anchor_interp.tasks.hashing` draws such numbers. An example is
in one split whatever the seed, so that nothing a model is judged on was trained on.

:mod:`anchor_interp.tasks.registry` knows where the package's classes are, and a user's once their
module is imported.
"""

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import check_fields, checked, shown, suggestion
from anchor_interp.tasks import registry
from anchor_interp.tasks.examples import Dataset, Plane, Split


@dataclass(frozen=True)
class Task:
    """The base of all tasks, frozen dataclasses; the module's docstring is its contract.

    The first sentence of a subclass's docstring tells what is asked.
    """

    config_class: ClassVar[type[Any] | None] = None
    """The class of ``RunConfig.model``; None for a transformer's."""
    loss_unit: ClassVar[str] = "nats"
    """What the loss is measured in."""
    most_judged: ClassVar[int | None] = None
    """Most examples of a split that an evaluation judges; None for those that were asked for."""
    most_probes: ClassVar[int] = 512
    """Most examples of a split that are judged along training."""
    why_alone: ClassVar[str] = ""
    """Why one process trains it; empty if several can share the examples of a step."""
    _origin: ClassVar[tuple[str, str]]
    """Its file (in a notebook, its module) and its name there, where it may be defined again."""

    def __init_subclass__(cls, *, untagged: bool = False) -> None:
        """Make the class known to configurations; ``untagged`` ones have no kind in files."""
        if issubclass(cls, registry.CLASSES.get("", ())):
            return  # a view of an anchor task, which no configuration holds
        kind = "" if untagged else vars(cls).get("kind")
        if not isinstance(kind, str):
            field = f"kind: Literal[{cls.__name__.lower()!r}] = {cls.__name__.lower()!r}"
            raise ConfigError(f"the task {cls.__name__} has no kind; give it the field {field}")
        registry.register(cls, kind)

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

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N examples of a split; :mod:`anchor_interp.tasks.contract` checks them."""
        raise self._unanswered(f"examples({split!r}, {n}, seed={seed})")

    def _unanswered(self, question: str) -> ConfigError:
        what = f"the task {self.kind} does not answer {question}"
        return ConfigError(f"{what}; see anchor_interp.tasks.task for what a task answers")

    @property
    def end(self) -> int | None:
        """The token that ends an answer; None if every token is scored alone."""
        return None

    def score(self, examples: Dataset, answers: Sequence[Sequence[int]]) -> Bool[np.ndarray, " n"]:
        """Which decoded answers are right; each is what the model wrote, with its end token."""
        pairs = zip(answers, examples.answers(), strict=True)
        return np.array([tuple(given) == wanted for given, wanted in pairs], bool)

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """What errors are counted by, n values a name: texts (shown as bars) or whole numbers."""
        return {"length": (examples.mask.sum(1) - (self.end is not None)).tolist()}

    @property
    def plane(self) -> Plane | None:
        """Two aspects whose whole numbers span a plane of errors; None without any."""
        return None

    @property
    def chance(self) -> float:
        """The accuracy of a guess, from 0 to 1, which the rule for OOD accuracy counts from."""
        return 0.0

    def baselines(self, examples: Dataset) -> Mapping[str, Bool[np.ndarray, " n"]]:
        """Which examples each shortcut gets right, by its name."""
        del examples
        return {}

    def n_bytes(self, examples: Dataset) -> Int[np.ndarray, " n"] | None:
        """Bytes of text that the predicted tokens of each example are; None if none are text."""
        del examples
        return None

    @property
    def data(self) -> str:
        """A digest of data that the configuration names and does not hold; empty without any."""
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
        """Whether every token is scored by itself, as in language modelling."""
        return self.end is None and not self.answers_last

    def check_model(self, model: Any, init: Any) -> None:
        """ConfigError if a model of this configuration, so initialised, does not fit the task."""
        del init
        for name, needed, what in (
            ("d_vocab", self.n_tokens, f"tokens and targets need at least {self.n_tokens}"),
            ("n_ctx", self.length, f"sequences have {self.length} tokens"),
        ):
            if (size := getattr(model, name)) < needed:
                raise ConfigError(f"model.{name} is {size}; the task's {what}")

    def objective(self, config: Any, training: Dataset, device: Any) -> Any:
        """What training minimises; None for the cross-entropy of the tokens to predict."""
        del config, training, device

    def judge(
        self, network: Any, examples: Dataset, *, seed: int, stream: str
    ) -> Mapping[str, Bool[np.ndarray, " n"]] | None:
        """Which parts of an answer are right, by name; None if answers are read token by token."""
        del network, examples, seed, stream
        return None

    def figures(self, run: Any) -> Sequence[Any]:
        """What a report draws of a run besides; nothing by default."""
        del run
        return ()

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
        if unknown := [word for word in words if word not in index]:
            what = "occurs twice in" if unknown[0] in self.words else "is not a word of"
            hint = suggestion(unknown[0], index)
            raise ConfigError(f"{shown(unknown[0])} {what} the task {self.kind}{hint}")
        return tuple(index[word] for word in words)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; ConfigError if one is outside the vocabulary."""
        words, numbers = self.words, [int(token) for token in tokens]
        for token in numbers:
            checked(token, int, f"a token of the task {self.kind}", low=0, high=len(words) - 1)
        return " ".join(words[token] for token in numbers)

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
        return registry.class_of(data)


def plain_fields(config: Any) -> dict[str, Any]:
    """The fields of a task or a network that are numbers, texts or None, without its kind."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = (int, float, str, bool, type(None))
    return {n: value for n, value in values.items() if n != "kind" and isinstance(value, plain)}


@functools.lru_cache(maxsize=16)
def _index(words: tuple[str, ...]) -> dict[str, int]:
    """The tokens of the words that occur once."""
    counts = Counter(words)
    return {word: token for token, word in enumerate(words) if counts[word] == 1}
