"""COGS: sentences become logical forms, and the test set uses known words in unknown roles.

"The boy slept ." is answered with "* boy ( x _ 1 ) ; sleep . agent ( x _ 2 , x _ 1 )". The answer
has a token for each digit of a number, so that no index is a word that training lacks. The splits
ask for the training distribution, and for 21 types of generalisation of 1,000 sentences each:

==============  ==================================================================================
split           sentences
==============  ==================================================================================
``id``          3,000 of the training distribution: the official test set, not its dev set
``lexical``     a word in a role that it never has in training: 18 types (``GAPS`` in
                ``anchor_interp.realistic.cogs_corpus``)
``structural``  clauses or prepositional phrases nested deeper than in training, or a phrase on the
                subject: 3 types (``STRUCTURAL`` there)
==============  ==================================================================================

Both corpora, our own sentences and the official files, have the same words, longest sequence, types
and sets. The training set has few rows with each held-out word: ask for all 24,000, or few of those
may be in it. Sources: complexity-control paper, section VII and figure 7B; Kim and Linzen, EMNLP
2020; https://github.com/najoungkim/COGS.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anchor_interp._util.schema import bounded
from anchor_interp.realistic.cogs_corpus import (
    GAPS,
    ROWS_OF_TYPE,
    STRUCTURAL,
    TEST_ROWS,
    Row,
    own_corpus,
    own_train_rows,
)
from anchor_interp.realistic.cogs_files import official_rows
from anchor_interp.realistic.cogs_grammar import WORDS
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.hashing import shuffled_rows
from anchor_interp.tasks.task import Task

_OFFICIAL_TRAIN_ROWS = 24_155
_SETS = {"train": "train", "id": "test", "lexical": "gen", "structural": "gen"}


@dataclass(frozen=True)
class Cogs(Task):
    """Translate a sentence such as "The boy slept ." into its logical form."""

    kind: Literal["cogs"] = "cogs"
    """The name of this task in files."""
    data: Literal["own", "official"] = "own"
    """Sentences of our own, which need no network, or the official files, which are read from
    ``ANCHOR_INTERP_COGS`` or fetched."""
    exposures: int = bounded(1, low=1, high=1_000)
    """Training rows with each held-out word, in sentences of our own; the official files have 1."""
    end = 0
    """The token ``<end>``."""
    length = 600
    """61 words, the arrow and 538 words and digits."""

    @property
    def words(self) -> tuple[str, ...]:
        """The end of an answer, the end of a sentence, 825 words of sentences and forms."""
        return ("<end>", "->", *WORDS)

    @property
    def splits(self) -> tuple[Split, ...]:
        """``train``, ``id`` and the OOD splits ``lexical`` and ``structural``."""
        own = self.data == "own"
        return (
            Split(
                "train", "train", own_train_rows(self.exposures) if own else _OFFICIAL_TRAIN_ROWS
            ),
            Split("id", "id", TEST_ROWS),
            Split("lexical", "ood", ROWS_OF_TYPE * len(GAPS)),
            Split("structural", "ood", ROWS_OF_TYPE * len(STRUCTURAL)),
        )

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N sentences with their forms: the whole set in random order, then in another order."""
        corpus = _examples(self, split)
        return corpus.rows(shuffled_rows(n, len(corpus), seed=seed, stream=f"cogs/{split}"))

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """The type of generalisation of every example, and how many tokens its answer has."""
        types, rows = _types(self), zip(examples.tokens, examples.starts, strict=True)
        kinds = [types.get(tuple(row[:start].tolist()), "in distribution") for row, start in rows]
        return {"type": kinds, **super().aspects(examples)}


TASKS = {"cogs": Cogs(), "cogs-official": Cogs(data="official")}
"""The named tasks."""


def corpus_rows(task: Cogs, split: str) -> list[Row]:
    """The sentences of a split with their forms and types, as the corpus has them."""
    name = _SETS[split]
    rows = own_corpus(task.exposures)[name] if task.data == "own" else official_rows(name)
    if name != "gen":
        return rows
    return [row for row in rows if (row.type in STRUCTURAL) == (split == "structural")]


@functools.lru_cache(maxsize=8)
def _examples(task: Cogs, split: str) -> Dataset:
    """A split as tokens, in the order of the corpus."""
    rows = corpus_rows(task, split)
    prompts = [task.encode(f"{row.sentence} ->") for row in rows]
    forms = [re.sub(r"(?<=\d)(?=\d)", " ", row.form) for row in rows]  # digit by digit
    corpus = Dataset.of(prompts, [task.encode(f"{form} <end>") for form in forms])
    return Dataset(corpus.tokens.astype(np.int16), corpus.mask, corpus.lengths)


@functools.lru_cache(maxsize=2)
def _types(task: Cogs) -> dict[tuple[int, ...], str]:
    """The type of every prompt of the OOD splits."""
    rows = (row for split in ("lexical", "structural") for row in corpus_rows(task, split))
    return {task.encode(f"{row.sentence} ->"): row.type for row in rows}
