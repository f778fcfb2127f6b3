"""Sentences of COGS of our own: what training shows, and what the 21 types of ``gen`` ask for.

A corpus has three sets, ``train``, ``test`` and ``gen``, of sentences with their logical forms.
Each lexical type of generalisation is a :class:`Gap`: a word, where training shows it, and where
``gen`` asks for it; no other sentence of training or test has that word. A structural type has
phrases where training has none, or more of them. So no sentence of ``gen`` is one of training.
Nothing is in two sets.

The sentences are drawn from the grammar with about 200 of its words, which are equally frequent.
Source of the types: Kim and Linzen, EMNLP 2020 (section 4); names and held-out words are those of
the official files.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from anchor_interp.realistic.cogs_grammar import (
    BEINGS,
    DETERMINERS,
    NAMES,
    PLACES,
    PREPOSITIONS,
    THINGS,
    VERBS,
    logical_form,
    participle,
    past,
)
from anchor_interp.tasks.hashing import random_bits

T = TypeVar("T")

TRAIN_ROWS, TEST_ROWS, ROWS_OF_TYPE = 24_000, 3_000, 1_000
"""Sentences in distribution, to train on and to test, and sentences of each type in ``gen``."""


class Row(NamedTuple):
    """A sentence of a corpus."""

    sentence: str
    form: str
    type: str
    """In ``gen`` one of :data:`TYPES`; else ``in_distribution``, ``primitive``, ``exposure``."""


class Gap(NamedTuple):
    """A word that training has in one place, and ``gen`` in another."""

    word: str
    seen: str
    """A kind of sentence and the word's slot in it; empty for the word by itself."""
    asked: tuple[str, ...]
    """Kinds of sentences."""
    slot: str
    """The word's slot in them."""


_KINDS = {
    "unergative": ("agent unergative",), "omissible": ("agent omissible",),
    "unaccusative": ("theme unaccusative",),
    "transitive": ("agent transitive object",),
    "passive": ("patient was transitive-en", "patient was transitive-en by author"),
    "pp-dative": ("agent dative gift to recipient",),
    "do-dative": ("agent dative recipient gift",),
    "passive-dative": (
        "present was dative-en to recipient", "present was dative-en to recipient by author",
        "recipient was dative-en present", "recipient was dative-en present by author",
    ),
    "infinitive": ("agent infinitive to bare",),
}  # fmt: skip
"""Kinds of sentences, as slots with words between them."""
_USUAL = (
    *["transitive", "passive", "pp-dative", "do-dative", "passive-dative"] * 2,
    "transitive", "passive", "unergative", "omissible", "unaccusative", "infinitive",
)  # fmt: skip
"""How often each kind occurs."""
_ACTIVE = ("transitive", "unergative", "omissible", "pp-dative", "do-dative", "infinitive")
_SHORT = ("transitive", "unergative", "unaccusative")
_TRANSITIVE = ("transitive",)
GAPS = {
    "subj_to_obj_common": Gap("hedgehog", "transitive agent", _TRANSITIVE, "object"),
    "subj_to_obj_proper": Gap("Lina", "transitive agent", _TRANSITIVE, "object"),
    "obj_to_subj_common": Gap("cockroach", "transitive object", _ACTIVE, "agent"),
    "obj_to_subj_proper": Gap("Charlie", "transitive object", _ACTIVE, "agent"),
    "prim_to_subj_common": Gap("shark", "", _ACTIVE, "agent"),
    "prim_to_subj_proper": Gap("Paula", "", _ACTIVE, "agent"),
    "prim_to_obj_common": Gap("shark", "", _TRANSITIVE, "object"),
    "prim_to_obj_proper": Gap("Paula", "", _TRANSITIVE, "object"),
    "prim_to_inf_arg": Gap("crawl", "", ("infinitive",), "bare"),
    "active_to_passive": Gap("bless", "transitive transitive", ("passive",), "transitive-en"),
    "passive_to_active": Gap("squeeze", "passive transitive-en", _TRANSITIVE, "transitive"),
    "obj_omitted_transitive_to_transitive": Gap(
        "bake", "omissible omissible", _TRANSITIVE, "transitive"
    ),
    "unacc_to_transitive": Gap("shatter", "unaccusative unaccusative", _TRANSITIVE, "transitive"),
    "pp_dative_to_do_dative": Gap("ship", "pp-dative dative", ("do-dative",), "dative"),
    "do_dative_to_pp_dative": Gap("teleport", "do-dative dative", ("pp-dative",), "dative"),
    "only_seen_as_transitive_subj_as_unacc_subj": Gap(
        "cobra", "transitive agent", ("unaccusative",), "theme"
    ),
    "only_seen_as_unacc_subj_as_obj_omitted_transitive_subj": Gap(
        "hippo", "unaccusative theme", ("omissible",), "agent"
    ),
    "only_seen_as_unacc_subj_as_unerg_subj": Gap(
        "hippo", "unaccusative theme", ("unergative",), "agent"
    ),
}
"""The lexical types; names and words are those of the official files."""
_MANY = tuple(range(3, 13))
_BEYOND: Mapping[str, Mapping[str, Any]] = {
    "cp_recursion": {"kinds": _SHORT, "clauses": _MANY, "phrases": {}},
    "pp_recursion": {
        "kinds": _TRANSITIVE, "words": {"object": (*BEINGS, *THINGS)}, "phrases": {"object": _MANY},
    },
    "obj_pp_to_subj_pp": {
        "kinds": _ACTIVE, "words": {"agent": BEINGS}, "phrases": {"agent": (1, 2)},
    },
}  # fmt: skip
"""How the sentences of the structural types are drawn."""
STRUCTURAL = (*_BEYOND,)
"""The types that ask for unseen structures."""
TYPES = (*GAPS, *STRUCTURAL)
"""All 21 types of generalisation."""

_SOMEONE, _ANYTHING = (*BEINGS, *NAMES), (*BEINGS, *THINGS, *NAMES)
_NOUNS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("agent", "author", "recipient", "speaker"), _SOMEONE),
    **dict.fromkeys(("theme", "object", "patient"), _ANYTHING),
    **dict.fromkeys(("gift", "present"), THINGS),
}
"""The nouns and names that a slot takes."""
_OWN = {name: verbs[:10] for name, verbs in VERBS.items()}
_OBJECT_VERBS = (*_OWN["transitive"], *_OWN["omissible"], *_OWN["unaccusative"])
_VERBS: Mapping[str, Sequence[str]] = {
    **{name: tuple(map(past, verbs)) for name, verbs in _OWN.items()},
    "transitive": tuple(map(past, _OBJECT_VERBS)),
    "transitive-en": tuple(map(participle, _OBJECT_VERBS)),
    "dative-en": tuple(map(participle, _OWN["dative"])),
    "bare": (*_OWN["unergative"], *_OWN["omissible"]),
}
"""The forms of verbs that a slot takes."""
_PRIMITIVES = (*BEINGS, *THINGS, *PLACES, *NAMES, *_OWN["unergative"], *_OBJECT_VERBS)
_FEW = (0, 0, 0, 1, 1, 2)
_PHRASES: Mapping[str, Sequence[int]] = {"object": _FEW, "gift": _FEW}
"""The slots whose nouns have phrases such as "in the house", and how many."""
_CLAUSES = (*[0] * 17, 1, 1, 2)
"""How many clauses such as "Emma said that" come first."""


@functools.lru_cache(maxsize=4)
def own_corpus(exposures: int) -> dict[str, list[Row]]:
    """The sets of a corpus whose training has each held-out word in ``exposures`` rows."""
    taken: set[str] = set()

    def take(n: int, name: str, drawn: Iterator[str]) -> Iterator[Row]:
        while n:
            sentence = next(drawn)
            if sentence not in taken:
                taken.add(sentence)
                yield Row(sentence, logical_form(sentence), name)
                n -= 1

    drawn = _sentences("usual", _USUAL)
    usual = list(take(TRAIN_ROWS + TEST_ROWS, "in_distribution", drawn))
    every = len(usual) // TEST_ROWS
    test = usual[::every]
    train = [row for place, row in enumerate(usual) if place % every]
    train += [Row(word, logical_form(word), "primitive") for word in _PRIMITIVES]
    for word, seen in dict.fromkeys((gap.word, gap.seen) for gap in GAPS.values()):
        if seen:
            kind, slot = seen.split()
            drawn = _sentences(f"exposure/{word}", [kind], words=_held(word, slot))
            train += take(exposures, "exposure", drawn)
        else:
            train += [Row(word, logical_form(word), "primitive")] * exposures
    gen = [
        row for name in TYPES for row in take(ROWS_OF_TYPE, name, _sentences(name, **_asked(name)))
    ]
    return {"train": train, "test": test, "gen": gen}


def own_train_rows(exposures: int) -> int:
    """How many rows the training set has."""
    return TRAIN_ROWS + len(_PRIMITIVES) + exposures * len({g[:2] for g in GAPS.values()})


def _held(word: str, slot: str) -> dict[str, Sequence[str]]:
    """The options of a slot for a held-out word, a verb in the form that the slot needs."""
    if slot.endswith("-en"):
        return {slot: [participle(word)]}
    return {slot: [word if slot in (*_NOUNS, "bare") else past(word)]}


def _asked(name: str) -> Mapping[str, Any]:
    """What is special about the sentences of a type of ``gen``."""
    if name in _BEYOND:
        return _BEYOND[name]
    gap = GAPS[name]
    return {"kinds": gap.asked, "words": _held(gap.word, gap.slot)}


def _sentences(
    stream: str,
    kinds: Sequence[str],
    *,
    words: Mapping[str, Sequence[str]] | None = None,
    phrases: Mapping[str, Sequence[int]] = _PHRASES,
    clauses: Sequence[int] = _CLAUSES,
) -> Iterator[str]:
    """Sentences without end, whose slots take ``words`` in place of the usual ones."""
    options = {**_NOUNS, **_VERBS, **(words or {})}
    drawn = (random_bits(1 << 14, seed=0, stream=f"cogs/{stream}/{i}") for i in itertools.count())
    numbers = (int(number) for part in drawn for number in part.tolist())

    def one(items: Sequence[T]) -> T:
        return items[next(numbers) % len(items)]

    def noun_phrase(slot: str) -> list[str]:
        noun = one(options[slot])
        if noun[0].isupper():
            return [noun]
        phrase = [one(DETERMINERS), noun]
        for _ in range(one(phrases.get(slot, (0,)))):
            phrase += [one(PREPOSITIONS), one(DETERMINERS), one(PLACES)]
        return phrase

    while True:
        text: list[str] = []
        for _ in range(one(clauses)):
            text += [*noun_phrase("speaker"), one(options["clause"]), "that"]
        for slot in one(_KINDS[one(kinds)]).split():
            if slot in _NOUNS:
                text += noun_phrase(slot)
            else:
                text.append(one(options.get(slot, (slot,))))
        yield " ".join([text[0].capitalize(), *text[1:], "."])
