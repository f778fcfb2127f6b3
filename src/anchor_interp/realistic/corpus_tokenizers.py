"""How the text of a corpus becomes tokens: bytes, or byte pairs that were merged.

=================  =============================================================================
tokenizer          tokens
=================  =============================================================================
``bytes``          the 256 bytes of UTF-8 text
``bpe``            byte-level BPE, learned from the training part by the library ``tokenizers``
a file's path      a ``tokenizer.json`` of that library, byte-level, such as GPT-2's; where it
                   truncates, pads or adds special tokens, that is left out
=================  =============================================================================

Each has one token more, which ends a document. A token is told in GPT-2's byte-level alphabet.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.schema import checked_path

END = "<|endoftext|>"
"""The word of the token that ends a document."""
BYTES = 257
"""The vocabulary of ``bytes``."""
_MOST_BYTES = 1 << 28
_PROBE = "A b\n\tc  e\u0301 \ufb01 \u6f22"  # upper case, spaces, and what normalizers change


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Turns text into tokens and back."""

    words: tuple[str, ...]
    """Every token in the byte-level alphabet."""
    encode: Callable[[str], Integer[np.ndarray, " token"]]
    """The tokens of a text, without an end."""

    @functools.cached_property
    def end(self) -> int:
        """The token that ends a document."""
        return self.words.index(END)

    @functools.cached_property
    def widths(self) -> Int[np.ndarray, " vocabulary"]:
        """How many bytes each token is; the end of a document is none."""
        return np.array([0 if word == END else len(word) for word in self.words], np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become replacement characters."""
        words, known = (self.words[token] for token in tokens), _byte_of()
        parts = (END.encode() if w == END else bytes(map(known.__getitem__, w)) for w in words)
        return b"".join(parts).decode("utf-8", "replace")


@functools.cache
def byte_words() -> tuple[str, ...]:
    """The character of each of the 256 bytes in the byte-level alphabet."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return tuple(chr(b if b in printed else 256 + others.index(b)) for b in range(256))


@functools.cache
def _byte_of() -> dict[str, int]:
    return {word: byte for byte, word in enumerate(byte_words())}


def byte_tokenizer() -> Tokenizer:
    """One token for each byte."""
    return Tokenizer((*byte_words(), END), lambda text: np.frombuffer(text.encode(), np.uint8))


def tokenizer_digest(name: str) -> str:
    """What names a tokenizer: a digest of its file, or its own name; ConfigError without a file."""
    if name in ("bytes", "bpe"):
        return name
    path = checked_path(name, "task.tokenizer")
    expected = "; expected 'bytes', 'bpe' or a tokenizer.json"
    with raising(ConfigError, "task.tokenizer: ", expected, of=StoreError):
        data = files.read_bytes(path.resolve(), limit=_MOST_BYTES)
    return hashlib.sha256(data).hexdigest()


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """A tokenizer from its file; ConfigError if it does not give text back, or has other tokens."""
    import tokenizers

    text = files.read_bytes(path.resolve(), limit=_MOST_BYTES)
    # the library raises no class of its own
    with raising(ConfigError, f"{path} is not a tokenizer.json: ", of=Exception):
        made = tokenizers.Tokenizer.from_buffer(text)
    made.no_truncation()
    made.no_padding()
    known = made.get_vocab(with_added_tokens=True)
    words = tuple(sorted(known, key=known.__getitem__))
    tokenizer = Tokenizer(
        words, lambda text: np.array(made.encode(text, add_special_tokens=False).ids, np.int64)
    )
    if fault := _fault(tokenizer, sorted(known.values()), vocabulary):
        raise ConfigError(f"the tokenizer {path} {fault}")
    return tokenizer


def _fault(tokenizer: Tokenizer, numbers: list[int], vocabulary: int) -> str | None:
    """What keeps a tokenizer of these token numbers from giving text back, if anything does."""
    if len(numbers) != vocabulary:
        return f"has {len(numbers):,} tokens; task.vocabulary is {vocabulary:,}: make them equal"
    if numbers != list(range(vocabulary)):
        return f"has tokens up to {numbers[-1]:,} with gaps; expected 0 to {vocabulary - 1:,}"
    alphabet = _byte_of().keys()
    if other := [word for word in tokenizer.words if word != END and not alphabet >= set(word)]:
        return f"has the token {other[0]!r}; expected byte-level tokens and {END}"
    if END not in tokenizer.words:
        return f"lacks the token {END}"
    text = tokenizer.decode(tokenizer.encode(_PROBE))
    expected = "expected one that gives text back, without normalizer or space in front"
    return None if text == _PROBE else f"makes {text!r} of {_PROBE!r}; {expected}"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> bytes:
    """The ``tokenizer.json`` of a byte-level BPE; ConfigError if the texts are too short for it."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers, trainers

    made = Rust(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    if (size := made.get_vocab_size()) != vocabulary:
        text = f"the text is too short for task.vocabulary {vocabulary:,}"
        raise ConfigError(f"{text}: lower it to {size:,}, or give more text")
    return bytes(made.to_str().encode())
