"""The tokens of a corpus: documents become tokens once, in files that are mapped into memory.

A corpus has a folder in the cache (``~/.cache/anchor-interp/corpus``, or ``$XDG_CACHE_HOME``)::

    state.json       how far the source is read, and how many tokens of each file count
    tokenizer.json   if one was trained
    train.bin        tokens of 16 or 32 bits; a document ends with a token of its own
    held-out.bin     the same of documents that are held out
    other.bin        held-out documents of the kind that training leaves out
    corpus.json      written last: the corpus is complete; its digest and sizes

A process that dies at any moment loses the documents since ``state.json`` was written: the next one
cuts the files back and goes on at the same token. A lock makes others wait for the one that writes.
"""

import functools
import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Integer

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.schema import digest
from anchor_interp.realistic.corpus_sources import Document, Source, open_source
from anchor_interp.realistic.corpus_tokenizers import (
    Tokenizer,
    byte_tokenizer,
    read_tokenizer,
    tokenizer_digest,
    train_tokenizer,
)

Part = Literal["code", "prose", "both"]
COMMIT = 1 << 20
"""Tokens between two commits."""
_FORMAT = 2  # to be raised when the same documents give other tokens
_SAMPLE = 1 << 26  # characters of the training part from which a tokenizer is learned
_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class CorpusSpec:
    """What decides the tokens; see :class:`anchor_interp.realistic.corpus.Corpus`."""

    source: str
    part: Part
    tokenizer: str
    vocabulary: int
    limit: int

    @property
    def dtype(self) -> type[np.uint16] | type[np.uint32]:
        """The integers of the files."""
        return np.uint16 if self.vocabulary <= 1 << 16 else np.uint32

    @property
    def words(self) -> str:
        """What is read, as messages name it."""
        return self.source if self.part == "both" else f"{self.part} of {self.source}"


@dataclass(frozen=True, eq=False)
class CorpusTokens:
    """An open corpus."""

    sets: Mapping[str, Integer[np.ndarray, " token"]]
    """The tokens of each set, mapped into memory: ``train``, ``held-out`` and perhaps ``other``."""
    tokenizer: Tokenizer
    digest: str
    """16 hexadecimal digits that name the corpus by all its tokens."""


def corpus_tokens(spec: CorpusSpec) -> CorpusTokens:
    """The tokens of a corpus: from the cache or, the first time, from its source."""
    return _opened(files.cache_folder() / "corpus", spec)


@functools.lru_cache(maxsize=16)
def _opened(cache: Path, spec: CorpusSpec) -> CorpusTokens:
    source = open_source(spec.source)
    folder = cache / digest([_FORMAT, spec, source.state, tokenizer_digest(spec.tokenizer)])
    advice = "; make it writable, or name another folder in XDG_CACHE_HOME"
    with raising(StoreError, f"cannot use the cache {folder}: ", advice, of=OSError):
        if not files.is_there(folder / "corpus.json"):  # a complete one need not be writable
            folder.parent.mkdir(parents=True, exist_ok=True)
            from anchor_interp._util.lock import Lock  # here: commands load this module

            with Lock.acquire(folder.with_name(f".{folder.name}.lock"), patience=math.inf):
                if not files.is_there(folder / "corpus.json"):
                    _LOGGER.info("reading the corpus %s into %s", spec.words, folder)
                    _write(folder, spec, source)
        about = files.read_json(folder / "corpus.json", advice=f"remove {folder}")
        sets = {name: _mapped(folder, name, n, spec) for name, n in about["tokens"].items()}
    return CorpusTokens(sets, _tokenizer(folder, spec), about["digest"])


def _mapped(folder: Path, name: str, size: int, spec: CorpusSpec) -> npt.NDArray[Any]:
    path = folder / f"{name}.bin"
    if path.stat().st_size != size * np.dtype(spec.dtype).itemsize:
        raise StoreError(f"{path} is damaged; remove {folder} to have the corpus read again")
    return np.memmap(path, spec.dtype, "r", shape=(size,))


def _tokenizer(folder: Path, spec: CorpusSpec) -> Tokenizer:
    if spec.tokenizer == "bytes":
        return byte_tokenizer()
    path = folder / "tokenizer.json" if spec.tokenizer == "bpe" else Path(spec.tokenizer)
    return read_tokenizer(path, spec.vocabulary)


def _write(folder: Path, spec: CorpusSpec, source: Source) -> None:
    """Write what is left of a corpus; what was committed stays if the source fails."""
    learned = folder / "tokenizer.json"
    if spec.tokenizer == "bpe" and not files.is_there(learned):
        data = train_tokenizer(_training_texts(spec, source), spec.vocabulary)
        folder.mkdir(exist_ok=True)
        files.write_text(learned, data.decode())
    writer = _Writer(folder, spec)
    writer.resume()
    tokenizer, start = _tokenizer(folder, spec), writer.position
    behind: Callable[[], Any] = functools.partial(getattr, writer, "position")
    for documents, behind in source.documents(start):
        for document in documents:
            writer.append(document, tokenizer)
        if writer.new >= COMMIT or writer.is_full:
            writer.commit(behind())
        if writer.is_full:
            break
    writer.commit(behind())
    writer.finish(tokenizer)


def _training_texts(spec: CorpusSpec, source: Source) -> Iterator[str]:
    size = 0
    for documents, _ in source.documents(None):
        for document in documents:
            if _set_of(document, spec.part) == "train":
                size += len(document.text)
                yield document.text
        if size > _SAMPLE:
            return


def _set_of(document: Document, part: Part) -> str | None:
    """The set that a document belongs to; None if it is left out."""
    if part in ("both", document.kind):
        return "held-out" if document.held_out else "train"
    return "other" if document.held_out else None


@dataclass
class _Writer:
    """Appends documents to the sets of a corpus."""

    folder: Path
    spec: CorpusSpec
    position: Any = None
    """Where the source goes on after what is committed."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The tokens of each set."""
    new: int = 0
    """How many of them are not committed."""
    _waiting: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)

    def resume(self) -> None:
        """Take up what is committed, and cut off what a killed process wrote after it."""
        state = self.folder / "state.json"
        if files.is_there(state):
            committed = files.read_json(state, advice=f"remove {self.folder}")
            self.position, self.sizes = committed["position"], committed["tokens"]
        for path in self.folder.glob("*.bin"):
            os.truncate(path, self.sizes.get(path.stem, 0) * np.dtype(self.spec.dtype).itemsize)

    @property
    def is_full(self) -> bool:
        """Whether there are as many tokens as are wanted, and half as many held out at least."""
        wanted = {"train": self.spec.limit, "held-out": self.spec.limit // 20}
        return all(self.sizes.get(name, 0) >= size for name, size in wanted.items())

    def append(self, document: Document, tokenizer: Tokenizer) -> None:
        """Add the tokens of a document and its end, as far as they are wanted."""
        name = _set_of(document, self.spec.part)
        most = self.spec.limit if name == "train" else -(-self.spec.limit // 10)
        if name is None or (room := most - self.sizes.get(name, 0)) <= 0:
            return
        tokens = np.append(tokenizer.encode(document.text), tokenizer.end)[:room]
        self._waiting.setdefault(name, []).append(tokens.astype(self.spec.dtype))
        self.sizes[name] = self.sizes.get(name, 0) + len(tokens)
        self.new += len(tokens)

    def commit(self, position: Any) -> None:
        """Bring everything to disk, and then what tells that it counts."""
        self.folder.mkdir(exist_ok=True)
        for name, parts in self._waiting.items():
            with open(self.folder / f"{name}.bin", "ab") as file:
                file.write(np.concatenate(parts).tobytes())
                file.flush()
                os.fsync(file.fileno())
        self._waiting, self.new, self.position = {}, 0, position
        files.write_json(self.folder / "state.json", {"position": position, "tokens": self.sizes})

    def finish(self, tokenizer: Tokenizer) -> None:
        """Write ``corpus.json``: the corpus is complete."""
        for name, what in (("train", "to train on"), ("held-out", "that is held out")):
            if not self.sizes.get(name):
                raise ConfigError(
                    f"the corpus {self.spec.words} has no text {what}; expected more files of text"
                )
        digest_of_all = hashlib.sha256("\0".join(tokenizer.words).encode())
        for name in sorted(self.sizes):
            digest_of_all.update(f"\0{name} {self.sizes[name]}\0".encode())
            with open(self.folder / f"{name}.bin", "rb") as file:
                while block := file.read(1 << 24):
                    digest_of_all.update(block)
        about = {"digest": digest_of_all.hexdigest()[:16], "tokens": self.sizes}
        files.write_json(self.folder / "corpus.json", about)
