"""PrOntoQA: a solver that knows only the logic agrees, shortcuts are where they belong."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp.realistic import prontoqa
from anchor_interp.realistic.prontoqa import TASKS, Prontoqa
from anchor_interp.runs.presets import preset
from anchor_interp.tasks.catalog import NAMED_TASKS
from anchor_interp.tasks.contract import draw_examples

FAITHFUL, BALANCED = TASKS["prontoqa-faithful"], TASKS["prontoqa-balanced"]
SPLITS = ("train", "id", "deeper")
N = 5_000
TOLERANCE = 0.03  # four standard errors of a share of N at chance


@dataclass(frozen=True)
class Text:
    """An example as its sentences."""

    rules: tuple[str, ...]
    fact: str
    query: str
    proof: tuple[str, ...]
    judgement: str


def texts(task: Prontoqa, split: str, n: int, seed: int = 0) -> list[Text]:
    """Examples, parsed from their text alone."""
    drawn, found = draw_examples(task, split, n, seed=seed), []
    for row, start, length in zip(drawn.tokens, drawn.starts, drawn.lengths, strict=True):
        stated, query = task.decode(row[:start]).split(" True or false: ")
        *rules, fact = stated.removesuffix(" .").split(" . ")
        *proof, judgement = task.decode(row[start:length]).removesuffix(" <end>").split(" . ")
        found.append(Text((*rules,), fact, query.removesuffix(" ."), (*proof,), judgement))
    return found


def applied(rule: str, statement: str) -> str | None:
    """What follows from a rule and a statement about somebody, if anything."""
    concept, _, says = rule.removeprefix("Every ").partition(" is ")
    somebody, _, what = statement.partition(" is a ")
    return f"{somebody} is {says}" if rule.startswith("Every ") and what == concept else None


def match(pattern: str, text: str) -> Any:
    found = re.fullmatch(pattern, text)
    return found and found.groups()


def opposite(statement: str) -> str:
    if denied(statement):
        return statement.replace(" is not ", " is ")
    return statement.replace(" is ", " is not ")


def denied(sentence: str) -> bool:
    return " not " in sentence


def closure(text: Text) -> tuple[set[str], int]:
    """Everything that follows, and in which round the query was proved or refuted."""
    known, new, rounds, hops = {text.fact}, {text.fact}, 0, 0
    while new:
        rounds += 1
        found = (applied(rule, statement) for rule in text.rules for statement in new)
        new = {statement for statement in found if statement is not None} - known
        known |= new
        hops = rounds if {text.query, opposite(text.query)} & new else hops
    return known, hops


def solved(text: Text) -> str:
    """The judgement, by forward chaining."""
    known, _ = closure(text)
    truths = (text.query in known, opposite(text.query) in known)
    assert sorted(truths) == [False, True], text
    return str(truths[0])


def check_proof(text: Text) -> None:
    """Each sentence is given or follows from the two before it; the last one answers the query."""
    for i, line in enumerate(text.proof):
        follows = i >= 2 and applied(text.proof[i - 1], text.proof[i - 2]) == line
        is_rule = line.startswith("Every ")
        assert follows is (not is_rule and i > 0), (text, line)
        assert follows or line in (text.rules if is_rule else [text.fact]), (text, line)
    assert text.proof[-1] == (text.query if text.judgement == "True" else opposite(text.query))


@pytest.mark.parametrize("task", [FAITHFUL, BALANCED])
def test_every_label_and_every_proof_is_right(task: Prontoqa) -> None:
    for split, n in (("train", 1_500), ("id", 500), ("deeper", 500)):
        found = texts(task, split, n)
        for text in found:
            assert solved(text) == text.judgement
            check_proof(text)
        hops = {closure(text)[1] for text in found[:500]}
        assert hops == ({4} if split == "deeper" else {1, 2, 3})
        assert {len(text.proof) for text in found} == {2 * n_hops + 1 for n_hops in hops}


@pytest.mark.parametrize("task", [FAITHFUL, BALANCED])
@pytest.mark.parametrize("hops", [1, 5])
def test_fixed_hops_without_a_proof(task: Prontoqa, hops: int) -> None:
    direct = Prontoqa(
        distribution=task.distribution, hops=hops, least_hops=hops, chain_of_thought=False
    )
    for text in texts(direct, "train", 300):
        assert (solved(text), closure(text)[1], text.proof) == (text.judgement, hops, ())


def test_a_faithful_world_has_one_rule_that_cannot_be_reached() -> None:
    for text in texts(FAITHFUL, "train", 500):
        _, asked = match(r"\w+ is (not )?(\w+)", text.query)
        about = [rule for rule in text.rules if rule.endswith(f" {asked}")]
        owners = [match(r"Every (\w+) is .*", rule)[0] for rule in about]
        in_rules = [" ".join(text.rules).split().count(owner) for owner in owners]
        assert sorted(in_rules) in ([1, 2], [1, 3])  # the top of a chain has one rule less
        assert sum(" not " in rule for rule in about) == 1
        n_concepts = sum(" is a " in rule for rule in text.rules) + 1
        assert n_concepts in (4, 5)
        assert len(text.rules) == 2 * n_concepts


def test_exchanging_the_chains_of_a_balanced_world_exchanges_the_answers() -> None:
    for text in texts(BALANCED, "train", 500):
        subjects = {match(r"Every (\w+) is .*", rule)[0] for rule in text.rules}
        upper = {rule.split()[-1] for rule in text.rules if " is a " in rule}
        person, first = match(r"(\w+) is a (\w+)", text.fact)
        (other,) = subjects - upper - {first}
        exchanged = Text(text.rules, f"{person} is a {other}", text.query, (), "")
        assert {solved(exchanged), text.judgement} == {"True", "False"}
        assert closure(exchanged)[1] == closure(text)[1]


def test_the_shortcut_answers_the_faithful_questions_alone() -> None:
    for split in SPLITS:
        right = FAITHFUL.baselines(draw_examples(FAITHFUL, split, 2_000, seed=1))
        assert {name: shares.mean() for name, shares in right.items()} == {
            "subject that occurs more often": 1.0
        }
    (shares,) = BALANCED.baselines(draw_examples(BALANCED, "id", N, seed=1)).values()
    assert abs(shares.mean() - 0.5) < TOLERANCE


def about(text: Text) -> list[str]:
    """The rules on the property in question, in their order."""
    return [rule for rule in text.rules if rule.endswith(f" {text.query.split()[-1]}")]


@pytest.mark.parametrize(
    "guess",
    [
        bool,  # always true
        lambda text: denied(text.query),
        lambda text: denied(text.rules[-1]) == denied(text.query),
        lambda text: denied(text.rules[0]) == denied(text.query),
        lambda text: denied(about(text)[0]) == denied(text.query),
        lambda text: denied(about(text)[-1]) == denied(text.query),
        lambda text: text.rules.index(about(text)[0]) < len(text.rules) / 2,
        lambda text: denied(min(about(text))) == denied(text.query),
        lambda text: sum(map(denied, text.rules)) > len(text.rules) / 4,
        lambda text: (sum(map(denied, text.rules)) > len(text.rules) / 4) == denied(text.query),
        lambda text: len(text.rules) > 14,
    ],
)
def test_no_surface_of_a_balanced_question_tells_its_answer(
    guess: Callable[[Text], bool], balanced: list[Text]
) -> None:
    right = [str(guess(text)) == text.judgement for text in balanced]
    assert abs(np.mean(right) - 0.5) < TOLERANCE


@pytest.fixture(scope="module")
def balanced() -> list[Text]:
    return texts(BALANCED, "train", N, seed=5)


def test_no_world_is_in_the_training_set_and_a_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prontoqa, "CONCEPTS", prontoqa.CONCEPTS[:6])  # so few that all are drawn
    monkeypatch.setattr(prontoqa, "PROPERTIES", prontoqa.PROPERTIES[:6])
    task = Prontoqa(hops=1, chain_of_thought=False)

    def small(split: str, seed: int) -> list[frozenset[str]]:
        worlds = [frozenset(text.rules) for text in texts(task, split, 8_000, seed)]
        return [world for world in worlds if len(world) == 4]

    train, again = {*small("train", 0)}, {*small("train", 1)}
    assert len(train & again) > 0.2 * len(again)
    assert not (train | again) & {*small("id", 0)}


def test_the_longest_example_has_the_length_of_the_task() -> None:
    for distribution in ("faithful", "balanced"):
        for proof in (True, False):
            task = Prontoqa(distribution=distribution, hops=1, chain_of_thought=proof)
            drawn = draw_examples(task, "train", 1_000, seed=0)
            assert drawn.lengths.max() == task.length + 1
            assert draw_examples(task, "deeper", 500, seed=0).lengths.max() <= task.length + 1
    largest = {"distribution": "balanced", "hops": 5, "chain_of_thought": True}
    longest = preset("prontoqa", **largest)  # the preset fits every task
    assert longest.model.n_ctx == longest.task.length
    assert preset("prontoqa").model.d_vocab == FAITHFUL.n_tokens == len({*FAITHFUL.words})
    for name, task in TASKS.items():
        assert NAMED_TASKS[name] == task


def test_the_size_of_chunks_changes_no_example(monkeypatch: pytest.MonkeyPatch) -> None:
    many = texts(BALANCED, "id", 40, seed=3)
    monkeypatch.setattr(prontoqa, "_CHUNK", 7)
    assert texts(BALANCED, "id", 40, seed=3) == many
    assert len(draw_examples(FAITHFUL, "train", 0, seed=0)) == 0


def test_the_judgement_is_scored_and_not_the_proof() -> None:
    drawn = draw_examples(FAITHFUL, "id", 50, seed=0)
    right = drawn.answers()
    other = {FAITHFUL.encode("True")[0]: "False", FAITHFUL.encode("False")[0]: "True"}
    wrong = [(*answer[:-2], *FAITHFUL.encode(other[answer[-2]]), 0) for answer in right]
    assert FAITHFUL.score(drawn, right).all()
    assert FAITHFUL.score(drawn, [answer[-2:] for answer in right]).all()
    for answers in (wrong, [(0,)] * 50, [()] * 50, [answer[:-1] for answer in right]):
        assert not FAITHFUL.score(drawn, answers).any()


@pytest.mark.parametrize("task", [FAITHFUL, Prontoqa(chain_of_thought=False)])
def test_aspects_are_those_of_the_text(task: Prontoqa) -> None:
    found = texts(task, "train", 500)
    assert task.aspects(draw_examples(task, "train", 500, seed=0)) == {
        "hops": [closure(text)[1] for text in found],
        "negated": ["yes" if denied(text.query) else "no" for text in found],
        "answer": [text.judgement for text in found],
    }
    counts = [sum(denied(text.query) for text in found), sum(t.judgement == "True" for t in found)]
    assert all(200 < count < 300 for count in counts)


def test_least_hops_are_at_most_the_hops() -> None:
    with pytest.raises(ConfigError, match=r"task.least_hops is 4; expected at most 3"):
        Prontoqa(least_hops=4)
    with pytest.raises(ConfigError, match=r"task.hops is 6; expected at most 5"):
        Prontoqa(hops=6)
