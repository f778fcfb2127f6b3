"""SCAN: commands in a small language become sequences of actions.

The grammar has 20,910 commands. The splits ask for what training leaves out:

=============  ===================================================================================
split          test set
=============  ===================================================================================
``turn-left``  every command with "turn left" but the bare one: 1,208 (complexity-control paper,
               section VII and figure 7A)
``jump``       every command with "jump" but the bare one: 7,706
``length``     every command with more than 22 actions: 3,920
``simple``     4,182 commands drawn at random: the same distribution as the training data
=============  ===================================================================================

In the first two the bare primitive is every tenth row of the training set, as in the official
files, whose rows are the same without ``held_out`` commands; only ``simple`` is drawn differently.
Source: Lake and Baroni, ICML 2018 (appendix); https://github.com/brendenlake/SCAN for the counts.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anchor_interp._util.schema import bounded
from anchor_interp.realistic.finite_sets import drawn_rows, finite_splits
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.hashing import random_bits
from anchor_interp.tasks.task import Task

PRIMITIVES = ("walk", "look", "run", "jump")
COMMAND_WORDS = (
    *PRIMITIVES, "turn", "left", "right", "opposite", "around", "twice", "thrice", "and", "after",
)  # fmt: skip
ACTIONS = ("I_WALK", "I_LOOK", "I_RUN", "I_JUMP", "I_TURN_LEFT", "I_TURN_RIGHT")
_LONG = 22
"""Most actions of a training command in the split by length."""
_SIMPLE_TEST = 4_182
_TESTS = {
    "turn-left": 'commands with "turn left"',
    "jump": 'commands with "jump"',
    "length": f"commands of more than {_LONG} actions",
    "simple": "commands drawn at random",
}
CommandActions = tuple[str, str]
"""A command and its actions."""


@dataclass(frozen=True)
class Scan(Task):
    """Translate a command such as "jump twice and walk" into its sequence of actions."""

    kind: Literal["scan"] = "scan"
    """The name of this task in files."""
    split: Literal["turn-left", "jump", "length", "simple"] = "turn-left"
    """What the test set holds; see the module."""
    held_out: int = bounded(1_000, low=0, high=10_000)
    """Commands kept out of the training set as a test of the same distribution (ID); 0 gives the
    official training set. ``simple`` ignores it: its test set is such a test."""
    end = 0
    """The token ``.``."""
    length = 58
    """9 words, the arrow and 48 actions."""

    @property
    def words(self) -> tuple[str, ...]:
        """The end of an answer, the end of a command, 13 words of commands and 6 actions."""
        return (".", "->", *COMMAND_WORDS, *ACTIONS)

    @property
    def about(self) -> str:
        """The task and its test set."""
        return f"Commands such as jump twice become actions; tested on {_TESTS[self.split]}"

    @property
    def splits(self) -> tuple[Split, ...]:
        """``train``, ``id`` (unless nothing is held out) and ``ood`` (except for ``simple``)."""
        return finite_splits(_rows(self))

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N commands with their actions: the whole set in random order, then in another order."""
        chosen = drawn_rows(_rows(self), split, n, seed=seed, stream="scan")
        return _all_examples().rows(chosen)

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """The number of actions, and what the command is built of (:func:`construction`)."""
        rows = zip(examples.tokens, examples.starts, strict=True)
        built = [construction(self.decode(row[: start - 1])) for row, start in rows]
        return {**super().aspects(examples), "construction": built}


TASKS = {f"scan-{split}": Scan(split=split) for split in ("turn-left", "jump", "length", "simple")}
"""The named tasks."""


def construction(command: str) -> str:
    """What joins a command's clauses, and the longest construction inside them.

    "walk around left twice and jump" is "and, around". These are 15 texts in all.
    """
    words = command.split()
    joined = [word for word in ("and", "after") if word in words]
    inside = [word for word in ("around", "opposite", "thrice", "twice") if word in words]
    return ", ".join((*joined, *inside[:1])) or "neither"


@functools.cache
def pairs() -> tuple[CommandActions, ...]:
    """All commands of the grammar with their actions."""
    one = [  # S -> V | V twice | V thrice
        (phrase + word, " ".join([actions] * times))
        for times, word in enumerate(("", " twice", " thrice"), 1)
        for phrase, actions in _verb_phrases()
    ]
    joined = (
        (f"{first} {word} {second}", f"{a} {b}" if word == "and" else f"{b} {a}")
        for word in ("and", "after")
        for (first, a), (second, b) in itertools.product(one, one)
    )
    return (*one, *joined)


def _verb_phrases() -> Iterator[CommandActions]:
    """V -> U | D | U opposite D | U around D, where U is a primitive or, with a side, "turn"."""
    for verb in (*PRIMITIVES, "turn"):
        act = [f"I_{verb.upper()}"] if verb in PRIMITIVES else []
        if act:
            yield verb, act[0]
        for side in ("left", "right"):
            turn = [f"I_TURN_{side.upper()}"]
            yield f"{verb} {side}", " ".join(turn + act)
            yield f"{verb} opposite {side}", " ".join(turn + turn + act)
            yield f"{verb} around {side}", " ".join((turn + act) * 4)


@functools.cache
def _all_examples() -> Dataset:
    """Every pair as tokens, in the order of :func:`pairs`."""
    task = Scan()
    prompts = [task.encode(f"{command} ->") for command, _ in pairs()]
    commands = Dataset.of(prompts, [task.encode(f"{actions} .") for _, actions in pairs()])
    return Dataset(commands.tokens.astype(np.uint8), commands.mask, commands.lengths)


@functools.lru_cache(maxsize=64)
def _rows(task: Scan) -> dict[str, Ints]:
    """The rows of :func:`pairs` in each set; the bare primitive occurs more than once."""
    every = np.arange(len(pairs()))
    if task.split == "simple":
        order = random_bits(len(every), seed=0, stream="scan/simple").argsort()
        return {"train": order[_SIMPLE_TEST:], "id": order[:_SIMPLE_TEST], "ood": every[:0]}
    bare = {"turn-left": "turn left", "jump": "jump"}.get(task.split, "")
    if bare:
        is_test = np.array([f" {bare} " in f" {command} " for command, _ in pairs()])
        is_bare = np.array([command == bare for command, _ in pairs()])
    else:
        is_test = np.array([actions.count("I_") > _LONG for _, actions in pairs()])
        is_bare = np.zeros_like(is_test)
    usual = every[~is_test]
    order = random_bits(len(usual), seed=0, stream=f"scan/{task.split}/held-out").argsort()
    held_out, train = usual[order[: task.held_out]], usual[np.sort(order[task.held_out :])]
    repeated = np.repeat(every[is_bare], round(len(train) / 9))  # one row in ten
    train = np.concatenate([train, repeated])
    return {"train": train, "id": held_out, "ood": every[is_test & ~is_bare]}
