"""The words of COGS, and the logical form of each of its sentences.

A logical form has a conjunct for every noun and for every role of a verb. ``x _ 3`` is what the
word at place 3 stands for, counted from 0; nouns with "the" come first::

    The boy gave Emma a cake .
    * boy ( x _ 1 ) ; give . agent ( x _ 2 , x _ 1 ) AND give . recipient ( x _ 2 , Emma )
    AND give . theme ( x _ 2 , x _ 5 ) AND cake ( x _ 5 )

The sentences follow a small grammar, in which the next word always tells what comes:

=============  ==================================================================================
part           consists of
=============  ==================================================================================
noun phrase    a name; or a determiner and a noun, then any number of "in", "on" or "beside" with
               another, each about the noun before it
clause         a noun phrase, a verb, and one of: nothing; an object; a recipient and a theme; a
               theme, "to" and a recipient; "that" and a clause; "to" and a bare verb
passive        a noun phrase, "was", a participle, then a theme or "to" and a recipient or neither,
               then "by" and an agent or not
=============  ==================================================================================

Only the subject of a verb without object depends on the verb: it is the theme of "shattered" and
the agent of "slept". Source: Kim and Linzen, EMNLP 2020 (section 3 and appendix); every sentence
of the official files has its official form (``tests/tasks/test_cogs.py``).
"""

import re
from collections.abc import Container, Mapping

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown, suggestion


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


DETERMINERS = ("a", "the")
PREPOSITIONS = ("in", "on", "beside")
BEINGS = _listed(
    "girl boy cat dog baby child teacher frog mouse lion bear monkey horse giraffe sailor duck "
    "bird monster penguin lawyer princess professor customer student"
)
THINGS = _listed(
    "cake donut cookie box rose drink raisin melon strawberry sandwich ball balloon block book "
    "doll chalk game glue hamburger crayon lollipop banana pretzel biscuit"
)
PLACES = _listed(
    "house room car garden cup glass bag hole table stage bed chair stool road tree rock"
)
NAMES = _listed(
    "Emma Liam Olivia Noah Ava William Isabella James Sophia Oliver Benjamin Mia Elijah Amelia "
    "Lucas Harper Mason Evelyn Logan Abigail Alexander Emily Ethan Grace"
)
"""These four are the words of sentences of our own."""
HELD_NOUNS = ("shark", "hedgehog", "cockroach", "cobra", "hippo")
HELD_NAMES = ("Paula", "Lina", "Charlie")
"""Words that training shows in one role only, or by themselves."""
_NOUNS = _listed(
    "backpack backyard bakery baron barrel basin basket bat bathtub beach bean beast bee beer bell "
    "bench bible bicycle bike bin blanket blender board boat booklet bookstore bottle boulder bowl "
    "brain branch brick broker brush bucket bun bunker bunny bush butterfly button buyer cabinet "
    "cafe cage can canvas captain carpet cart casket cassette castle champion chemical chemist "
    "chessboard chicken chief china citizen clock closet cloth cloud coach coffin coin computer "
    "condo consumer container corner corpse cot couch counter cow crack cracker crate creature "
    "crib crocodile crown crystal cubicle cupboard cushion cylinder dealer deck deer desk device "
    "director dish doctor donkey dragon drawer driver duke dumpster dungeon envelope farmer father "
    "fig fish fishbowl flag floor flower fly foreigner fox fridge friend fruit futon gardner "
    "genius giant glacier goose governor gravel guard guest guitar gumball guy hammer hammock "
    "hanger hat haystack headmaster hedge helicopter hen hero host human jacket jar jeep jigsaw "
    "journalist judge kennel key keyboard kid king kitty knife ladder lamb lamp landlord leaf "
    "leaflet lemon liver log machine manager mandarin mattress microwave mirror molecule monastery "
    "monk moose mother mound muffin mug murderer nail napkin needle nest newspaper notebook "
    "package pad painting palace pancake panel paper parcel passenger patient pedestal pen pencil "
    "penny penthouse pepper philosopher piano pickle pig pile pillar pillow pit pizza plant plaque "
    "plate platter pod podium poet politician pony pool poster pot potato present president priest "
    "prince prisoner producer puddle pumpkin pupil puppy purse pyramid queen rack radio rag "
    "refrigerator researcher resident ring rod rug sack saucepan scarf scientist sculpture seat "
    "seed servant sheep sheet shelf shell shirt shoe shoebox sink skull soap sock sofa soldier "
    "soup spaceship speaker sphere spokesman spoon squirrel stack stadium stand statue storage "
    "surface surgeon swamp sweetcorn sword tabletop taxi teapot tenant tent throne tiger tin tomb "
    "tool toothbrush torch tourist towel tower toy trailer train trainee trampoline trap tray "
    "tripod trophy truck trunk tub tube turkey turntable turtle tv valve van vase vehicle vessel "
    "visitor wagon wardrobe warrior watch weapon well whale windowsill wine wolf worm writer yacht "
    "yogurt zebra"
)
_NAMES = _listed(
    "Addison Aiden Andrew Anthony Aria Asher Aubrey Audrey Aurora Avery Bella Brooklyn Caleb "
    "Camila Carter Charlotte Chloe Christopher Claire Daniel David Dylan Eleanor Elizabeth Ella "
    "Ellie Gabriel Grayson Hannah Hazel Henry Isaac Jack Jackson Jacob Jaxon Jayden John Joseph "
    "Joshua Julian Layla Leah Leo Levi Lillian Lily Lincoln Luke Luna Madison Mateo Matthew "
    "Michael Mila Natalie Nathan Nora Owen Penelope Riley Ryan Samuel Savannah Scarlett Sebastian "
    "Skylar Sofia Stella Theodore Thomas Victoria Violet Wyatt Zoe Zoey"
)
VERBS = {
    "unergative": "cry dance frown gasp giggle jog laugh nap run scoff scream sleep smile smirk "
    "sneeze snooze snore stutter talk walk crawl",
    "omissible": "call clean cook draw dust eat hunt paint sketch study examine hear investigate "
    "juggle know notice nurse observe pack see read bake",
    "unaccusative": "break burn change collapse crumple double float freeze grow roll decompose "
    "disintegrate enlarge improve inflate redden shorten slide snap split shatter",
    "transitive": "adore discover find help hold miss poke stab throw touch admire appreciate like "
    "love pierce respect tolerate toss value worship bless squeeze",
    "dative": "award bring feed forward give hand lend mail offer sell loan pass post promise rent "
    "return send serve slip wire ship teleport",
    "clause": "believe confess declare hope imagine prove say support think wish admire appreciate "
    "dream expect like mean notice respect tolerate value",
    "infinitive": "attempt crave enjoy hate intend need plan prefer try want dream expect hope "
    "itch like long love mean wish yearn",
}  # fmt: skip
"""Verbs by what they take: the first ten of a class are those of our own sentences, and a verb that
is held out is one of the last. "omissible" is an object that may be left out."""
VERBS_OF: dict[str, tuple[str, ...]] = {name: tuple(v.split()) for name, v in VERBS.items()}
_IRREGULAR = {
    "break": "broke broken", "bring": "brought", "cry": "cried", "draw": "drew drawn",
    "eat": "ate eaten", "feed": "fed", "find": "found", "freeze": "froze frozen",
    "give": "gave given", "grow": "grew grown", "hear": "heard", "hold": "held",
    "jog": "jogged", "know": "knew known", "mean": "meant", "nap": "napped", "plan": "planned",
    "prefer": "preferred", "read": "read", "run": "ran", "say": "said", "see": "saw seen",
    "sell": "sold", "send": "sent", "ship": "shipped", "sleep": "slept", "slide": "slid",
    "slip": "slipped", "snap": "snapped", "split": "split", "stab": "stabbed", "study": "studied",
    "think": "thought", "throw": "threw thrown", "try": "tried", "worship": "worshipped",
}  # fmt: skip


def past(verb: str) -> str:
    """The past tense of a verb."""
    return _IRREGULAR.get(verb, re.sub("eed$", "ed", f"{verb}ed")).split()[0]


def participle(verb: str) -> str:
    """The past participle of a verb."""
    return _IRREGULAR.get(verb, past(verb)).split()[-1]


_ALL_VERBS = tuple(dict.fromkeys(verb for verbs in VERBS_OF.values() for verb in verbs))
_NOUN = frozenset((*BEINGS, *THINGS, *PLACES, *HELD_NOUNS, *_NOUNS))
_NAME = frozenset((*NAMES, *HELD_NAMES, *_NAMES))
_PAST = {past(verb): verb for verb in _ALL_VERBS}
_PARTICIPLE = {participle(verb): verb for verb in _ALL_VERBS}
_BARE = {verb: verb for verb in _ALL_VERBS}
_SYMBOLS = (
    *"0123456789", *"*().,;_", "AND", "LAMBDA", "x", "b", "e", "agent", "theme", "recipient",
    "ccomp", "xcomp", "nmod",
)  # fmt: skip
WORDS = (
    *_SYMBOLS, "A", "The", *DETERMINERS, *PREPOSITIONS, "was", "by", "to", "that",
    *sorted(_NOUN), *sorted(_NAME), *sorted({*_BARE, *_PAST, *_PARTICIPLE}),
)  # fmt: skip
"""The words of sentences and logical forms, with digits in place of numbers."""


def logical_form(sentence: str) -> str:
    """The logical form of a sentence, or of a noun, a name or a bare verb by itself.

    Raises:
        ConfigError: the text is not of the grammar; the message names the word.
    """
    words = sentence.split()
    return _form_of_word(words[0]) if len(words) == 1 else _Reading(words).form()


def _form_of_word(word: str) -> str:
    if word in _NAME:
        return word
    if word in _NOUN:
        return f"LAMBDA a . {word} ( a )"
    if word in VERBS_OF["unergative"]:
        return f"LAMBDA a . LAMBDA e . {word} . agent ( e , a )"
    if word in VERBS_OF["unaccusative"]:
        return f"LAMBDA a . LAMBDA e . {word} . theme ( e , a )"
    if word in VERBS_OF["transitive"] or word in VERBS_OF["omissible"]:
        roles = f"{word} . agent ( e , b ) AND {word} . theme ( e , a )"
        return f"LAMBDA a . LAMBDA b . LAMBDA e . {roles}"
    known = (*_NAME, *_NOUN, *_ALL_VERBS)
    raise ConfigError(f"{shown(word)} is not a word with a logical form{suggestion(word, known)}")


class _Reading:
    """A sentence that is read from the left, and what is known of it so far."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.place = 0
        self.definite: list[str] = []
        self.conjuncts: list[tuple[int, str]] = []
        """Each with the place of its first variable, by which the form sorts them."""

    def form(self) -> str:
        """Read it all."""
        self.clause()
        self.next((".",), "'.'")
        if self.word:
            raise self.unexpected("the end")
        conjuncts = [text for _, text in sorted(self.conjuncts, key=lambda each: each[0])]
        return " ; ".join([*self.definite, " AND ".join(conjuncts)])

    def clause(self) -> int:
        """A clause; returns the place of its verb."""
        subject = self.noun_phrase()
        if self.skip("was"):
            return self.passive(subject)
        verb, place = self.verb(_PAST)
        is_theme = self.word == "." and verb in VERBS_OF["unaccusative"]
        self.relate(place, verb, "theme" if is_theme else "agent", subject)
        if self.skip("that"):
            self.relate(place, verb, "ccomp", f"x _ {self.clause()}")
        elif self.skip("to"):
            other, event = self.verb(_BARE)
            self.relate(place, verb, "xcomp", f"x _ {event}")
            self.relate(event, other, "agent", subject)
        elif self.word != ".":
            self.objects(place, verb, self.noun_phrase())
        return place

    def objects(self, place: int, verb: str, first: str) -> None:
        """What follows the first noun phrase after an active verb."""
        if self.word == ".":
            self.relate(place, verb, "theme", first)
        elif self.skip("to"):
            self.relate(place, verb, "theme", first)
            self.relate(place, verb, "recipient", self.noun_phrase())
        else:
            self.relate(place, verb, "recipient", first)
            self.relate(place, verb, "theme", self.noun_phrase())

    def passive(self, subject: str) -> int:
        """The rest of a passive after "was"; returns the place of its verb."""
        verb, place = self.verb(_PARTICIPLE)
        if self.word in ("to", "by", "."):
            self.relate(place, verb, "theme", subject)
            if self.skip("to"):
                self.relate(place, verb, "recipient", self.noun_phrase())
        else:
            self.relate(place, verb, "recipient", subject)
            self.relate(place, verb, "theme", self.noun_phrase())
        if self.skip("by"):
            self.relate(place, verb, "agent", self.noun_phrase())
        return place

    def noun_phrase(self) -> str:
        """A name or nouns; returns the name, or the variable of the first noun."""
        if self.word in _NAME:
            return self.next(_NAME, "a name")
        noun, first = self.noun()
        place = first
        while self.word in PREPOSITIONS:
            preposition = self.next(PREPOSITIONS, "a preposition")
            inner, inner_place = self.noun()
            text = f"{noun} . nmod . {preposition} ( x _ {place} , x _ {inner_place} )"
            self.conjuncts.append((place, text))
            noun, place = inner, inner_place
        return f"x _ {first}"

    def noun(self) -> tuple[str, int]:
        """A determiner and a noun; returns the noun and its place."""
        determiner = self.next(DETERMINERS if self.place else ("A", "The"), "a noun phrase")
        noun, place = self.next(_NOUN, "a noun"), self.place - 1
        text = f"{noun} ( x _ {place} )"
        if determiner.lower() == "the":
            self.definite.append(f"* {text}")
        else:
            self.conjuncts.append((place, text))
        return noun, place

    def verb(self, forms: Mapping[str, str]) -> tuple[str, int]:
        """A verb in one of its forms; returns the verb and its place."""
        return forms[self.next(forms, "a verb")], self.place - 1

    def relate(self, place: int, verb: str, role: str, who: str) -> None:
        """Say who has a role of the verb at a place."""
        self.conjuncts.append((place, f"{verb} . {role} ( x _ {place} , {who} )"))

    @property
    def word(self) -> str:
        """The next word; empty at the end."""
        return self.words[self.place] if self.place < len(self.words) else ""

    def next(self, wanted: Container[str], what: str) -> str:
        """Read the next word, which must be one of the wanted ones; ``what`` calls them."""
        if (word := self.word) not in wanted:
            raise self.unexpected(what)
        self.place += 1
        return word

    def skip(self, word: str) -> bool:
        """Read the next word if it is this one."""
        self.place += (found := self.word == word)
        return found

    def unexpected(self, wanted: str) -> ConfigError:
        """The error for a sentence that goes on otherwise."""
        text = shown(" ".join(self.words))
        found = f"word {self.place} is {shown(self.word)}; expected {wanted}"
        return ConfigError(f"{text} is not a sentence of COGS: {found}")
