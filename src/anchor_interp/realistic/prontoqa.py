"""PrOntoQA: is a statement about somebody true, given the rules of a fictional world?

    Every tulgar is not salty . Every morban is a tulgar . Every dorvik is salty . (...)
    Greta is a morban . True or false: Greta is not salty .

The answer is a judgement, ``True`` or ``False``, after a chain of thought if the task has one:
each rule that is applied, and what follows from it.

A world is a chain of concepts: each is also the next one, and has one property, negated or not. The
statement is about the property of a concept of the chain, and is negated half the time. Proving or
refuting it applies as many rules as the example has *hops*. A second chain, of other concepts and
never reached, has at the same depth a rule with the opposite sign, the *distractor*. The rules come
in random order.

================  ==============================================================================
``distribution``  what the rules hold of the second chain
================  ==============================================================================
``faithful``      the distractor alone. As in the original sampler, its concept occurs in no other
                  rule, so the rule whose subject occurs more often is right: no hop is needed
``balanced``      all of it. Exchanging the chains changes the answer and not the rules, so that
                  nothing but following the chain from the person's concept tells the answer
================  ==============================================================================

The ontologies of the test sets are those of one hash value in eight, whatever their order and
question. ``id`` asks for as many hops as training, ``deeper`` for one more. A chain has one or two
concepts more than ``hops``, in ``deeper`` one: its examples are no longer than those of training.

Source: complexity-control paper, section VII and figure 7E; Saparov and He, ICLR 2023: of their
sampler's options, chains without branches in random order. The words are our own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Int

from anchor_interp._util.schema import bounded, checked
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.hashing import below, hash_counter, stream_key
from anchor_interp.tasks.task import Task

_GRAMMAR = ("<end>", ".", "Every", "is", "a", "not", "True", "False", "or", "false:")
_END, _STOP, _EVERY, _IS, _A, _NOT, _TRUE, _FALSE, _OR, _COLON = range(len(_GRAMMAR))
CONCEPTS = (
    "bostle", "cravin", "dorvik", "fengle", "gimret", "hulpin", "jastor", "klovet",
    "lurmid", "morban", "neldif", "pravit", "quorzel", "rostim", "sorvet", "tulgar",
)  # fmt: skip
PROPERTIES = (
    "round", "heavy", "green", "quiet", "brave", "warm", "salty", "smooth",
    "tall", "shiny", "hollow", "gentle", "swift", "sticky", "proud", "sleepy",
)  # fmt: skip
PEOPLE = ("Ada", "Boris", "Clara", "Dmitri", "Edith", "Farid", "Greta", "Hugo")
_ABSENT = -1
"""In place of a word that an example does not have."""
_ONE_IN = 8
"""One ontology in this many belongs to the test sets."""
_CHUNK = 1 << 14
"""How many examples are drawn at a time."""


@dataclass(frozen=True)
class Prontoqa(Task):
    """Tell whether a statement follows from the rules of a fictional world."""

    kind: Literal["prontoqa"] = "prontoqa"
    """The name of this task in files."""
    distribution: Literal["faithful", "balanced"] = "faithful"
    """Whether a shortcut answers the question, as in the original; see the module."""
    hops: int = bounded(3, low=1, high=5)
    """Most rules that the proof of a training example applies; ``deeper`` applies one more."""
    least_hops: int = bounded(1, low=1, high=5)
    """Fewest rules that such a proof applies; at most hops."""
    chain_of_thought: bool = True
    """Whether an answer gives the proof before its judgement."""
    end = _END
    """The token ``<end>``."""
    chance = 0.5
    """Half of all guesses are right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self.least_hops, int, "task.least_hops", high=self.hops)

    @property
    def words(self) -> tuple[str, ...]:
        """The end of an answer, 9 words of the grammar, concepts, properties and people."""
        return (*_GRAMMAR, *CONCEPTS, *PROPERTIES, *PEOPLE)

    @property
    def length(self) -> int:
        """The longest training example without its last token: all is negated that can be."""
        of_chain = 2 * (self.hops + 2) - 1
        n_rules = of_chain + (of_chain if self.distribution == "balanced" else 1)
        rules = 6 * n_rules - 1  # one of the two rules on the property in question is not negated
        proof = 5 + 11 * self.hops if self.chain_of_thought else 0
        return rules + 5 + 8 + proof + 2 - 1

    @property
    def splits(self) -> tuple[Split, ...]:
        """``train``, ``id`` and ``deeper``; none of them has a last example."""
        return (Split("train", "train"), Split("id", "id"), Split("deeper", "ood"))

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N questions about as many worlds."""
        chunks = np.split(np.arange(n), range(_CHUNK, n, _CHUNK))
        slots = np.concatenate([_slots(self, split, rows, seed) for rows in chunks])
        there = slots != _ABSENT
        lengths, place = there.sum(1), np.arange(there.sum(1).max(initial=1))
        inside = place < lengths[:, None]
        tokens = np.zeros(inside.shape, np.uint8)
        tokens[inside] = slots[there]
        n_prompt = 6 * (4 * (self.hops + 2) - 2) + 5 + 8  # rules of both chains, fact, question
        starts = there[:, :n_prompt].sum(1)
        return Dataset(tokens, inside & (place >= starts[:, None]), lengths)

    def score(self, examples: Dataset, answers: Sequence[Sequence[int]]) -> Bool[np.ndarray, " n"]:
        """Whether the judgement is right, the last word before the end, whatever the proof."""
        pairs = zip(answers, examples.answers(), strict=True)
        return np.array([tuple(given[-2:]) == wanted[-2:] for given, wanted in pairs], bool)

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """By what errors are grouped: the hops, whether the statement is negated, the judgement."""
        asked = list(_questions(examples))
        return {
            "hops": [question.hops() for question in asked],
            "negated": ["yes" if question.negated else "no" for question in asked],
            "answer": _judgements(examples),
        }

    def baselines(self, examples: Dataset) -> Mapping[str, Bool[np.ndarray, " n"]]:
        """Which examples a rule that follows no chain gets right, by the name of that rule."""
        guessed = [str(question.guess()) for question in _questions(examples)]
        pairs = zip(guessed, _judgements(examples), strict=True)
        return {"subject that occurs more often": np.array([a == b for a, b in pairs], bool)}


TASKS = {f"prontoqa-{name}": Prontoqa(distribution=name) for name in ("faithful", "balanced")}
"""The named tasks."""


def _slots(
    task: Prontoqa, split: str, rows: Int[np.ndarray, " n"], seed: int
) -> Int[np.ndarray, "n slots"]:
    """The words of some examples; each is drawn again until its ontology belongs to the split."""
    left, attempt = np.arange(len(rows)), 0
    kept: list[Int[np.ndarray, " some"]] = []
    parts: list[Int[np.ndarray, "some slots"]] = []
    while not parts or len(left):
        key = stream_key(seed, f"prontoqa/{split}/{attempt}")
        drawn = _Drawn.of(task, rows[left], key, deeper=split == "deeper")
        rules = drawn.rules(whole=task.distribution == "balanced")
        fits = _is_held_out(rules) == (split != "train")
        parts.append(drawn.written(rules, proof=task.chain_of_thought)[fits])
        kept.append(left[fits])
        left, attempt = left[~fits], attempt + 1
    slots: Int[np.ndarray, "n slots"] = np.concatenate(parts)[np.concatenate(kept).argsort()]
    return slots


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The random choices of n examples, as tokens; the second of the two chains is not reached."""

    concepts: Int[np.ndarray, "n 2 size"]
    properties: Int[np.ndarray, "n 2 size"]
    negated: Bool[np.ndarray, "n 2 size"]
    """Whether a concept has its property negated."""
    n_concepts: Int[np.ndarray, " n"]
    """How many of a chain's concepts there are."""
    hops: Int[np.ndarray, " n"]
    person: Int[np.ndarray, " n"]
    asks_negated: Bool[np.ndarray, " n"]
    order: Int[np.ndarray, "n rules"]

    @classmethod
    def of(
        cls, task: Prontoqa, rows: Int[np.ndarray, " n"], key: np.uint64, *, deeper: bool
    ) -> "_Drawn":
        """The choices of some rows, each a function of the key and the row alone."""
        size = task.hops + 2
        shape, row = (len(rows), 2, size), np.arange(len(rows))
        sizes = (len(CONCEPTS), len(PROPERTIES), 4 * size - 2, 2 * size, 1, 1, 1, 1)
        counters = rows[:, None] * sum(sizes) + np.arange(sum(sizes))
        bits = hash_counter(key, counters.ravel().astype(np.uint64)).reshape(counters.shape)
        concepts, properties, order, signs, *single = np.split(bits, np.cumsum(sizes)[:-1], axis=1)
        bounds = (task.hops - task.least_hops + 1, 2, len(PEOPLE), 2)
        more, longer, person, asks_negated = (
            below(column[:, 0], bound) for column, bound in zip(single, bounds, strict=True)
        )
        hops = np.where(deeper, task.hops + 1, task.least_hops + more)
        chosen = properties.argsort(1)[:, : 2 * size].reshape(shape) + _token(PROPERTIES[0])
        negated = (signs >> np.uint64(63)).astype(bool).reshape(shape)
        chosen[row, 1, hops - 1] = chosen[row, 0, hops - 1]  # the distractor
        negated[row, 1, hops - 1] = ~negated[row, 0, hops - 1]
        return cls(
            concepts=concepts.argsort(1)[:, : 2 * size].reshape(shape) + _token(CONCEPTS[0]),
            properties=chosen,
            negated=negated,
            n_concepts=task.hops + 1 + np.where(deeper, 0, longer),
            hops=hops,
            person=person + _token(PEOPLE[0]),
            asks_negated=asks_negated.astype(bool),
            order=order.argsort(1),
        )

    def rules(self, *, whole: bool) -> Int[np.ndarray, "n rules 6"]:
        """The rules of both chains, of the second one the distractor alone unless ``whole``."""
        place = np.arange(self.concepts.shape[2])
        there = np.repeat(place < self.n_concepts[:, None, None], 2, axis=1)
        subset, has = there[:, :, 1:].copy(), there
        if not whole:
            subset[:, 1] = False
            has[:, 1] = place == self.hops[:, None] - 1
        lower, upper = self.concepts[:, :, :-1], self.concepts[:, :, 1:]
        links = _where(subset, _sentence(_EVERY, lower, _IS, _A, upper, _STOP))
        negation = np.where(self.negated, _NOT, _ABSENT)
        traits = _sentence(_EVERY, self.concepts, _IS, negation, self.properties, _STOP)
        both = np.concatenate([links, _where(has, traits)], axis=2)
        return rearrange(both, "n chain rule word -> n (chain rule) word")

    def written(
        self, rules: Int[np.ndarray, "n rules 6"], *, proof: bool
    ) -> Int[np.ndarray, "n slots"]:
        """All words: the rules in their order, the fact, the question, the answer."""
        row, last = np.arange(len(rules)), self.hops - 1
        person, chain = self.person, self.concepts[:, 0]
        asked, negated = self.properties[row, 0, last], self.negated[row, 0, last]
        denied = np.where(negated, _NOT, _ABSENT)
        asks = np.where(self.asks_negated, _NOT, _ABSENT)
        fact = _sentence(person, _IS, _A, chain[:, 0], _STOP)
        question = _sentence(_TRUE, _OR, _COLON, person, _IS, asks, asked, _STOP)
        parts = [rules[row[:, None], self.order], fact, question]
        if proof:
            upper = chain[:, 1:]
            step = (_EVERY, chain[:, :-1], _IS, _A, upper, _STOP)
            steps = _sentence(*step, person[:, None], _IS, _A, upper, _STOP)
            taken = np.arange(1, chain.shape[1]) < self.hops[:, None]
            rule = (_EVERY, chain[row, last], _IS, denied, asked, _STOP)
            conclusion = _sentence(*rule, person, _IS, denied, asked, _STOP)
            parts += [fact, _where(taken, steps), conclusion]
        judgement = np.where(self.asks_negated == negated, _TRUE, _FALSE)
        parts.append(_sentence(judgement, _END))
        flat = [rearrange(part, "n ... -> n (...)") for part in parts]
        return np.concatenate(flat, axis=1).astype(np.int8)


def _sentence(*words: int | Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Words along a new last axis."""
    return np.stack(np.broadcast_arrays(*words), axis=-1)


def _where(
    there: Bool[np.ndarray, "*some"], sentences: Int[np.ndarray, "*some words"]
) -> Int[np.ndarray, "*some words"]:
    """The sentences that are there, and nothing for the others."""
    words: Int[np.ndarray, "*some words"] = np.where(there[..., None], sentences, _ABSENT)
    return words


def _token(word: str) -> int:
    return Prontoqa().words.index(word)


def _is_held_out(rules: Int[np.ndarray, "n rules 6"]) -> Bool[np.ndarray, " n"]:
    """Whether ontologies belong to the test sets, whatever the order of their rules."""
    there = rules[..., 0] != _ABSENT
    codes = (rules[..., 1] << 16) + (rules[..., 4] << 8) + (rules[..., 3] == _NOT)
    key = stream_key(0, "prontoqa/ontology")
    hashes = hash_counter(key, codes.ravel().astype(np.uint64)).reshape(codes.shape)
    sums = np.where(there, hashes, np.uint64(0)).sum(1)
    held_out: Bool[np.ndarray, " n"] = below(sums, _ONE_IN) == 0
    return held_out


@dataclass(frozen=True)
class _Question:
    """What a prompt says, as tokens."""

    links: dict[int, int]
    """The concept that comes after each, in both chains."""
    traits: list[tuple[int, int, bool]]
    """Concepts with their property, and whether that is negated."""
    concept: int
    """What the person is."""
    asked: int
    """The property in question."""
    negated: bool
    """Whether the statement is negated."""

    @classmethod
    def read(cls, prompt: list[int]) -> "_Question":
        """The question of a prompt."""
        links, traits = {}, []
        for place, word in enumerate(prompt):
            if word == _EVERY:
                subject, _, third, fourth = prompt[place + 1 : place + 5]
                if third == _A:
                    links[subject] = fourth
                else:
                    traits.append((subject, fourth if third == _NOT else third, third == _NOT))
        negated = prompt[-3] == _NOT
        return cls(links, traits, prompt[-9 - negated], prompt[-2], negated)

    def hops(self) -> int:
        """How many rules the proof applies."""
        owners = {concept for concept, trait, _ in self.traits if trait == self.asked}
        concept, n = self.concept, 1
        while concept not in owners:
            concept, n = self.links[concept], n + 1
        return n

    def guess(self) -> bool:
        """The judgement of the rule on that property whose subject occurs in more of the rules."""
        owners = [owner for owner, _, _ in self.traits]
        counts = Counter([*self.links, *self.links.values(), *owners])
        rules = [(counts[owner], no) for owner, what, no in self.traits if what == self.asked]
        return max(rules)[1] == self.negated


def _questions(examples: Dataset) -> Iterator[_Question]:
    rows = zip(examples.tokens, examples.starts, strict=True)
    return (_Question.read(row[:start].tolist()) for row, start in rows)


def _judgements(examples: Dataset) -> list[str]:
    last = examples.tokens[np.arange(len(examples)), examples.lengths - 2]
    return [_GRAMMAR[token] for token in last]
