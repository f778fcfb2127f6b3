"""SCAN: the official counts, the paper's examples, splits that share nothing."""

import numpy as np
import pytest

from anchor_interp.realistic.scan import ACTIONS, COMMAND_WORDS, TASKS, Scan, construction, pairs
from anchor_interp.tasks.contract import draw_aspects, draw_examples
from anchor_interp.tasks.task import Task

ACTIONS_OF = dict(pairs())


def texts(task: Task, split: str, n: int, seed: int = 0) -> list[str]:
    """Examples as "command -> actions ." lines."""
    drawn = draw_examples(task, split, n, seed=seed)
    rows = zip(drawn.tokens, drawn.lengths, strict=True)
    return [task.decode(row[:length]) for row, length in rows]


def commands(task: Task, split: str) -> list[str]:
    """Every command of a split, as often as it occurs."""
    size = {s.name: s.size for s in task.splits}[split]
    assert size is not None
    drawn = draw_examples(task, split, size, seed=0)
    prompts = zip(np.array(task.words)[drawn.tokens], drawn.starts, strict=True)
    return [" ".join(row[: start - 1]) for row, start in prompts]  # without its arrow


def test_the_grammar_has_the_official_counts() -> None:
    assert len(pairs()) == len(ACTIONS_OF) == 20_910
    single = [command for command in ACTIONS_OF if not {"and", "after"} & {*command.split()}]
    phrases = [command for command in single if not {"twice", "thrice"} & {*command.split()}]
    assert (len(single), len(phrases)) == (102, 34)
    words = {word for command in ACTIONS_OF for word in command.split()}
    actions = {action for found in ACTIONS_OF.values() for action in found.split()}
    assert (words, actions) == ({*COMMAND_WORDS}, {*ACTIONS})
    assert (len(words), len(actions)) == (13, 6)
    assert max(len(command.split()) for command in ACTIONS_OF) == 9
    assert max(len(found.split()) for found in ACTIONS_OF.values()) == 48


@pytest.mark.parametrize(
    ("command", "actions"),
    [
        ("jump", "JUMP"),
        ("jump left", "LTURN JUMP"),
        ("jump around right", "RTURN JUMP RTURN JUMP RTURN JUMP RTURN JUMP"),
        ("turn left twice", "LTURN LTURN"),
        ("jump thrice", "JUMP JUMP JUMP"),
        ("jump opposite left and walk thrice", "LTURN LTURN JUMP WALK WALK WALK"),
        (
            "jump opposite left after walk around left",
            "LTURN WALK LTURN WALK LTURN WALK LTURN WALK LTURN LTURN JUMP",
        ),
    ],
)
def test_the_examples_of_the_papers_figure_1(command: str, actions: str) -> None:
    named = actions.replace("LTURN", "TURN_LEFT").replace("RTURN", "TURN_RIGHT")
    assert ACTIONS_OF[command] == " ".join(f"I_{action}" for action in named.split())


@pytest.mark.parametrize(
    ("split", "rows", "bare", "test"),
    [
        ("turn-left", 21_890, 2_189, 1_208),
        ("jump", 14_670, 1_467, 7_706),
        ("length", 16_990, None, 3_920),
        ("simple", 16_728, None, 4_182),
    ],
)
def test_the_official_training_and_test_sets(
    split: str, rows: int, bare: int | None, test: int
) -> None:
    task = TASKS[f"scan-{split}"]
    official = Scan(split=task.split, held_out=0)
    train = commands(official, "train")
    tested = commands(official, "id" if split == "simple" else "ood")
    assert (len(train), len(tested), len({*tested})) == (rows, test, test)
    assert not {*train} & {*tested}
    assert len({*train} | {*tested}) == 20_910
    if bare is not None:
        primitive = split.replace("-", " ")
        assert train.count(primitive) == bare
        assert all(f" {primitive} " in f" {command} " for command in tested)
        assert len({*train}) == rows - bare + 1
    if split == "length":
        assert max(len(ACTIONS_OF[command].split()) for command in train) == 22
        assert min(len(ACTIONS_OF[command].split()) for command in tested) == 24


def test_held_out_commands_are_in_no_other_split() -> None:
    for name in ("turn-left", "length"):
        task = TASKS[f"scan-{name}"]
        parts = [{*commands(task, split)} for split in ("train", "id", "ood")]
        assert len(parts[1]) == 1_000
        assert sum(map(len, parts)) == len(set.union(*parts)) == 20_910
        assert name.replace("-", " ") not in parts[1]


def test_every_tenth_training_row_is_the_bare_primitive_in_a_small_set_too() -> None:
    found = texts(Scan(), "train", 4_000)
    share = np.mean([text.startswith("turn left ->") for text in found])
    assert 0.08 < share < 0.12
    others = [text for text in found if not text.startswith("turn left ->")]
    assert len(set(others)) == len(others)


def test_a_command_is_counted_by_its_construction_and_its_actions() -> None:
    for command, expected in (
        ("jump", "neither"),
        ("turn left thrice", "thrice"),
        ("walk opposite left twice", "opposite"),
        ("walk twice and jump", "and, twice"),
        ("walk opposite left twice after run around right", "after, around"),
    ):
        assert construction(command) == expected
    drawn = draw_examples(Scan(), "ood", 1_208, seed=0)
    found = draw_aspects(Scan(), drawn)
    rows = zip(drawn.tokens, drawn.lengths, strict=True)
    lines = [Scan().decode(row[:length]).removesuffix(" .").split(" -> ") for row, length in rows]
    assert all(ACTIONS_OF[command] == actions for command, actions in lines)
    assert found["length"] == [actions.count("I_") for _, actions in lines]
    assert found["construction"] == [construction(command) for command, _ in lines]
    assert len({construction(command) for command, _ in pairs()}) == 15
