"""The words of COGS, and the logical form of each of its sentences.

A logical form has a conjunct for every noun and for every role of a verb. ``x _ 3`` is what the
word at place 3 stands for, counted from 0; nouns with "the" come first::

    The boy gave Emma a cake .
    * boy ( x _ 1 ) ; give . agent ( x _ 2 , x _ 1 ) AND give . recipient ( x _ 2 , Emma )
    AND give . theme ( x _ 2 , x _ 5 ) AND cake ( x _ 5 )

A noun phrase is a name, or a determiner and a noun with any number of phrases such as "in the
house", each about the noun before it. The order of noun phrases and verbs in a clause tells the
roles; only the subject of a verb without object depends on the verb, as the theme of "shattered"
and the agent of "slept". Source: Kim and Linzen, EMNLP 2020 (section 3 and appendix); every
sentence of the official files has its official form (``tests/tasks/test_cogs.py``).
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_LISTS = json.loads(Path(__file__).with_name("cogs_words.json").read_text(encoding="utf-8"))


def _listed(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(lines).split())


DETERMINERS = ("a", "the")
PREPOSITIONS = ("in", "on", "beside")
BEINGS, THINGS, PLACES, NAMES = (
    _listed(_LISTS[name]) for name in ("beings", "things", "places", "names")
)
"""These four lists are the nouns and names in sentences of our own."""
HELD_NOUNS, HELD_NAMES = _listed(_LISTS["held nouns"]), _listed(_LISTS["held names"])
"""Words that training shows in one role only, or by themselves."""
VERBS = {kind: _listed(verbs) for kind, verbs in _LISTS["verbs"].items()}
"""Verbs by what they take; an "omissible" object may be left out. The first ten of a class are in
sentences of our own, and a verb that is held out is one of the last."""
_IRREGULAR: Mapping[str, str] = dict(forms.split(" ", 1) for forms in _LISTS["irregular"])


def past(verb: str) -> str:
    """The past tense of a verb."""
    return _IRREGULAR.get(verb, re.sub("eed$", "ed", f"{verb}ed")).split()[0]


def participle(verb: str) -> str:
    """The past participle of a verb."""
    return _IRREGULAR.get(verb, past(verb)).split()[-1]


_ALL_VERBS = tuple(dict.fromkeys(verb for verbs in VERBS.values() for verb in verbs))
_NOUN = frozenset((*BEINGS, *THINGS, *PLACES, *HELD_NOUNS, *_listed(_LISTS["other nouns"])))
_NAME = frozenset((*NAMES, *HELD_NAMES, *_listed(_LISTS["other names"])))
_AFTER: Mapping[str, Mapping[str, str]] = {
    "N": {past(verb): verb for verb in _ALL_VERBS},
    "was": {participle(verb): verb for verb in _ALL_VERBS},
    "to": {verb: verb for verb in _ALL_VERBS},
}
"""The verbs by their forms after a noun phrase, after "was" and after "to"."""
_SYMBOLS = (
    *"0123456789", *"*().,;_", "AND", "LAMBDA", "x", "b", "e", "agent", "theme", "recipient",
    "ccomp", "xcomp", "nmod",
)  # fmt: skip
WORDS = (
    *_SYMBOLS, "A", "The", *DETERMINERS, *PREPOSITIONS, "was", "by", "to", "that",
    *sorted(_NOUN), *sorted(_NAME), *sorted({form for forms in _AFTER.values() for form in forms}),
)  # fmt: skip
"""The words of sentences and logical forms, with digits in place of numbers."""


_ROLES = {
    "N V that": "agent", "N V .": "agent", "N V to V .": "agent", "N V N .": "agent theme",
    "N V N N .": "agent recipient theme", "N V N to N .": "agent theme recipient",
    "N was V .": "theme", "N was V by N .": "theme agent", "N was V to N .": "theme recipient",
    "N was V to N by N .": "theme recipient agent", "N was V N .": "recipient theme",
    "N was V N by N .": "recipient theme agent",
}  # fmt: skip
"""The roles of the noun phrases (N) in every clause, in their order; V is a verb."""
_Conjunct = tuple[int, str]
"""A conjunct, with the place of its first variable, by which a form sorts them."""


class _Part(NamedTuple):
    """A part of a clause."""

    symbol: str
    """N for a noun phrase, V for a verb, or the word."""
    text: str
    """The variable or the name, the verb, or the word."""
    place: int


def logical_form(sentence: str) -> str:
    """The logical form of a sentence, or of a noun, a name or a bare verb by itself.

    LookupError if the grammar has no such noun, verb or clause.
    """
    words = sentence.split()
    if len(words) == 1:
        return _form_of_word(words[0])
    definite: list[_Conjunct] = []
    conjuncts: list[_Conjunct] = []
    events = [_relate(clause, conjuncts) for clause in _clauses(words, definite, conjuncts)]
    for (verb, place), (_, inner) in itertools.pairwise(events):
        conjuncts.append((place, f"{verb} . ccomp ( x _ {place} , x _ {inner} )"))
    ordered = [text for _, text in sorted(conjuncts, key=lambda each: each[0])]
    return " ; ".join([*(f"* {text}" for _, text in definite), " AND ".join(ordered)])


def _clauses(
    words: list[str], definite: list[_Conjunct], conjuncts: list[_Conjunct]
) -> list[list[_Part]]:
    """The parts of every clause; adds what its nouns say."""
    clauses: list[list[_Part]] = [[]]
    place, before = 0, ""
    while place < len(words):
        word, start = words[place], place
        if word in (DETERMINERS if place else ("A", "The")):
            text, place = _noun_phrase(words, place, definite, conjuncts)
            part = _Part("N", text, start)
        elif word in _NAME:
            part = _Part("N", word, start)
        elif word in _AFTER.get(before, ()):
            part = _Part("V", _AFTER[before][word], start)
        else:  # a word that links them
            part = _Part(word, word, start)
        clauses[-1].append(part)
        if word == "that":
            clauses.append([])
        place, before = max(place, start + 1), part.symbol
    return clauses


def _noun_phrase(
    words: list[str], place: int, definite: list[_Conjunct], conjuncts: list[_Conjunct]
) -> tuple[str, int]:
    """The variable of the noun whose determiner is at a place, and the place after its phrases."""
    first = place + 1
    while True:
        head, after = place + 1, place + 2
        noun, *rest = words[head : after + 2] or [""]
        if noun not in _NOUN:
            raise LookupError(f"{noun!r} is not a noun of COGS")
        is_definite = words[place].lower() == "the"
        (definite if is_definite else conjuncts).append((head, f"{noun} ( x _ {head} )"))
        if not rest or rest[0] not in PREPOSITIONS:
            return f"x _ {first}", after
        conjuncts.append((head, f"{noun} . nmod . {rest[0]} ( x _ {head} , x _ {after + 2} )"))
        place = after + 1


def _relate(clause: list[_Part], conjuncts: list[_Conjunct]) -> tuple[str, int]:
    """Say who has which role in a clause; returns its verb and the place of that."""
    shape = " ".join(part.symbol for part in clause)
    roles = _ROLES[shape]
    (_, verb, place), *bare = [part for part in clause if part.symbol == "V"]
    nouns = [part.text for part in clause if part.symbol == "N"]
    if shape == "N V ." and verb in VERBS["unaccusative"]:
        roles = "theme"
    for role, who in zip(roles.split(), nouns, strict=True):
        conjuncts.append((place, f"{verb} . {role} ( x _ {place} , {who} )"))
    for _, other, event in bare:
        conjuncts.append((place, f"{verb} . xcomp ( x _ {place} , x _ {event} )"))
        conjuncts.append((event, f"{other} . agent ( x _ {event} , {nouns[0]} )"))
    return verb, place


def _form_of_word(word: str) -> str:
    if word in _NAME:
        return word
    if word in _NOUN:
        return f"LAMBDA a . {word} ( a )"
    if word in VERBS["unergative"]:
        return f"LAMBDA a . LAMBDA e . {word} . agent ( e , a )"
    if word in VERBS["unaccusative"]:
        return f"LAMBDA a . LAMBDA e . {word} . theme ( e , a )"
    if word in VERBS["transitive"] or word in VERBS["omissible"]:
        roles = f"{word} . agent ( e , b ) AND {word} . theme ( e , a )"
        return f"LAMBDA a . LAMBDA b . LAMBDA e . {roles}"
    raise LookupError(f"{word!r} is not a word of COGS with a logical form")
