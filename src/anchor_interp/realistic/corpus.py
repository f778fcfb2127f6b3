"""Language modelling: the next token of code and prose.

A corpus is one long stream of documents, each followed by a token of its own
(:mod:`anchor_interp.realistic.corpus_tokens`). An example is a window of it, ``length`` tokens that
the model reads and one more. Windows overlap by one token, so that every token is predicted once.
They are read from the file when they are needed: a corpus may be larger than the memory.

==============  ==================================================================================
split           windows
==============  ==================================================================================
``train``       the first n of the stream, the same for every seed: the seed orders them
``held-out``    (ID) of documents that training leaves out
``prose``       (OOD) of held-out prose, after training on code; ``code`` after training on prose
==============  ==================================================================================

Source: complexity-control paper, section VII, figure 7D, on SlimPajama's GitHub part and on GitHub
with Wikipedia.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int, Integer

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded
from anchor_interp.realistic.corpus_tokenizers import BYTES
from anchor_interp.realistic.corpus_tokens import CorpusSpec, CorpusTokens, Part, corpus_tokens
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.hashing import shuffled_rows
from anchor_interp.tasks.task import Task

Windows = Integer[np.ndarray, "window token"]


@dataclass(frozen=True)
class Corpus(Task):
    """Predict the next token of code or prose, from all before it in a window."""

    kind: Literal["corpus"] = "corpus"
    """The name of this task in files."""
    source: str = "stdlib"
    """Where documents come from: ``stdlib``, Python's own library, which every machine has;
    ``folder:PATH``; or ``hub:OWNER/NAME``, a dataset of the Hugging Face hub."""
    part: Part = "both"
    """What is trained on: ``code``, ``prose`` or both."""
    tokenizer: str = "bytes"
    """``bytes``, ``bpe`` (learned from the training part), or the path of a ``tokenizer.json``."""
    vocabulary: int = bounded(BYTES, low=BYTES, high=1 << 20)
    """Tokens of the tokenizer: 256 bytes, what is merged of them, and the end of a document."""
    length: int = bounded(256, low=2, high=1 << 13)
    """Tokens that the model reads: a window, less the last one."""
    limit: int = bounded(1 << 26, low=1 << 10, high=1 << 40)
    """Most tokens of the training part; held-out parts have a tenth of it at most."""
    mapped = True
    """Windows are read from files when needed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer == "bytes" and self.vocabulary != BYTES:
            raise ConfigError(f"task.vocabulary is {self.vocabulary}; expected {BYTES} with bytes")

    @property
    def _tokens(self) -> CorpusTokens:
        settings = (self.source, self.part, self.tokenizer, self.vocabulary, self.limit)
        return corpus_tokens(CorpusSpec(*settings))

    @property
    def words(self) -> tuple[str, ...]:
        """Every token in GPT-2's alphabet, which has a printed character for each byte."""
        return self._tokens.tokenizer.words

    @property
    def n_tokens(self) -> int:
        """The vocabulary needed."""
        return self.vocabulary

    @property
    def about(self) -> str:
        """What is read, in one line."""
        parts = {"code": "code", "prose": "prose", "both": "code and prose"}
        return f"The next token of {parts[self.part]} ({self.source}), in windows of {self.length}"

    @property
    def splits(self) -> tuple[Split, ...]:
        """``train``, ``held-out`` and, unless both kinds are trained on, the other kind."""
        train, held_out = (len(self._windows(name)) for name in ("train", "held-out"))
        both = (Split("train", "train", train), Split("held-out", "id", held_out))
        if len(self._tokens.sets.get("other", ())) <= self.length:
            return both
        other = {"code": "prose", "prose": "code"}[self.part]
        return (*both, Split(other, "ood", len(self._windows("other"))))

    def _windows(self, of: str) -> Windows:
        """All windows of a set, without copying it."""
        tokens, length = self._tokens.sets[of], self.length
        if len(tokens) <= length:
            text = f"the set {of} has {len(tokens):,} tokens; a window needs {length + 1:,}"
            raise ConfigError(f"{text}: give more text, lower task.length or raise task.limit")
        (step,) = tokens.strides
        shape = (len(tokens) - 1) // length, length + 1
        strides = length * step, step
        return np.lib.stride_tricks.as_strided(tokens, shape, strides, writeable=False)

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N windows: of ``train`` the first, of others a random order."""
        windows = self._windows(split if split in ("train", "held-out") else "other")
        if split != "train":
            tokens = windows[shuffled_rows(n, len(windows), seed=seed, stream=f"corpus/{split}")]
        elif n <= len(windows):
            tokens = windows[:n]
        else:
            tokens = windows[np.arange(n) % len(windows)]
        asked = np.arange(self.length + 1) > 0
        lengths = np.broadcast_to(np.int64(self.length + 1), n)
        return Dataset(tokens, np.broadcast_to(asked, tokens.shape), lengths)

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """None: all windows have one length."""
        del examples
        return {}

    def n_bytes(self, examples: Dataset) -> Int[np.ndarray, " n"]:
        """Bytes of the predicted tokens."""
        total: Int[np.ndarray, " n"] = self._tokens.tokenizer.widths[examples.tokens[:, 1:]].sum(1)
        return total

    @property
    def data(self) -> str:
        """The corpus's digest."""
        return self._tokens.digest

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, as it is."""
        return tuple(map(int, self._tokens.tokenizer.encode(text)))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; ConfigError if one is outside the vocabulary."""
        numbers = list(map(int, tokens))
        super().decode(numbers)  # refuses others
        return self.written(numbers)

    def written(self, tokens: Iterable[int]) -> str:
        """The text of tokens that a model writes."""
        return self._tokens.tokenizer.decode(tokens)


TASKS = {f"corpus-{part}": Corpus(part=part) for part in ("code", "prose", "both")}
"""The named tasks, on the standard library."""
