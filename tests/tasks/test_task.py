"""The contract of a task: its examples are checked, its class is found by its kind."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, canonical_json, from_dict, parse_json
from anchor_interp.realistic.scan import Scan
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.presets import RUNS, preset
from anchor_interp.tasks import contract, registry
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.catalog import NAMED_TASKS, name_task
from anchor_interp.tasks.contract import (
    check_repeats,
    draw_aspects,
    draw_baselines,
    draw_examples,
    untrained,
)
from anchor_interp.tasks.examples import Dataset, Plane, Split
from anchor_interp.tasks.rules import require_anchors
from anchor_interp.tasks.sequences import sample
from anchor_interp.tasks.task import Task


@pytest.fixture(autouse=True)
def own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the classes that a test defines."""
    monkeypatch.setattr(registry, "CLASSES", dict(registry.CLASSES))


def made(give: Callable[[int], Dataset], **answers: object) -> Task:
    """A task whose examples are given."""

    @dataclass(frozen=True)
    class Made(Task):
        """Some task."""

        kind: Literal["made"] = "made"
        words = tuple("abcd")
        length = 4
        splits = (Split("train", "train"),)

        def examples(self, split: str, n: int, *, seed: int) -> Dataset:
            assert (split, seed) == ("train", 0)
            return give(n)

    for name, value in answers.items():
        setattr(Made, name, value)
    return Made()


def of(prompt: list[int], answer: list[int]) -> Callable[[int], Dataset]:
    return lambda n: Dataset.of([prompt] * n, [answer] * n)


def arrays(tokens: list[list[int]], mask: list[list[int]]) -> Callable[[int], Dataset]:
    """Examples of arrays whose shapes need not fit, as without the tests' checks of types."""

    def give(n: int) -> Dataset:
        rows = np.array(tokens * n)
        found = Dataset(rows, np.ones_like(rows, bool), np.full(n, rows.shape[1]))
        object.__setattr__(found, "mask", np.array(mask * n, bool))
        return found

    return give


def test_examples_of_ragged_lists() -> None:
    found = Dataset.of([[3], [1, 2]], [[2, 0], [1]])
    assert found.tokens.tolist() == [[3, 2, 0], [1, 2, 1]]
    assert found.mask.tolist() == [[False, True, True], [False, False, True]]
    assert found.lengths.tolist() == [3, 3]
    assert found.starts.tolist() == [1, 2]
    assert found.answers() == [(2, 0), (1,)]
    assert found.rows(np.array([1])).answers() == [(1,)]
    assert len(Dataset.of([], [])) == 0
    halves: list[Any] = [[4 / 2], [5 / 2]]
    assert Dataset.of([[1]], halves[:1]).answers() == [(2,)]
    with pytest.raises(ConfigError, match=r"2\.5.* is not a token"):  # it would be trained as 2
        Dataset.of([[1], [2]], halves)
    with pytest.raises(ConfigError, match="2 prompts have 1 answers"):
        Dataset.of([[1], [2]], [[3]])


NOT_A_STRETCH = r"an answer that is not one stretch of .*\(0\) in example 0"


def test_an_answer_that_is_no_whole_number_is_not_cut_to_one() -> None:
    """Without the tests' checks of types a task may give it: 5 / 2 would be trained as 2."""
    task, found = made(of([1], [2])), Dataset.of([[1]], [[2]])
    assert not any(wrong.any() for wrong, _ in contract._faults(task, found))
    object.__setattr__(found, "tokens", found.tokens + np.array([0, 0.5]))
    wrong, what = next(contract._faults(task, found))
    assert (wrong.tolist(), what) == ([True], "has a token outside its vocabulary of 4")


@pytest.mark.parametrize(("task", "message"), [
    (made(of([1], [7])), "train of the task made has a token outside"),
    (made(of([-1], [2])), "has a token outside its vocabulary of 4 in example 0"),
    (made(of([1, 3], [2]), n_input_tokens=3),
     r"before the last position that is not below n_input_tokens \(3\) in example 0"),
    (made(of([1] * 4, [2, 3])), "has more than 5 tokens in example 0"),
    (made(of([1], [])), "predicts no token, the first one or padding in example 0"),
    (made(of([], [1, 2])), "predicts no token, the first one or padding in example 0"),
    (made(lambda n: of([1], [2])(n + 1)), r"expected \(2, pos\) twice and \(2,\)"),
    (made(of([1], [2, 3]), answers_last=True), "predicts other tokens than the last"),
    (made(of([1], [2, 3]), end=0), NOT_A_STRETCH),
    (made(of([1], [0, 2, 0]), end=0), "up to its only end"),
    (made(arrays([[1, 2, 3, 0]], [[0, 1, 0, 1]]), end=0), NOT_A_STRETCH),
    (made(arrays([[1, 2, 3]], [[0, 1]])), r"of \(\(2, 3\), \(2, 2\), \(2,\)\); expected"),
    (made(of([1], [2]), chance=50.0), r"the chance of the task made is 50.0; expected at most 1"),
])  # fmt: skip
def test_examples_that_break_the_contract_are_refused(task: Task, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_examples(task, "train", 2, seed=0)


@pytest.mark.parametrize(("draw", "given", "plane", "message"), [
    (draw_aspects, {"size": [1]}, None,
     r"the aspect 'size' of the task made is \[1\]; expected 2 values"),
    (draw_aspects, {"size": [1, "b"]}, None, "expected 2 values, str alone or int alone"),
    (draw_aspects, {"size": [1.5, 2.5]}, None, r"is \[1.5, 2.5\]; expected"),
    (draw_aspects, {"a": np.arange(2)}, Plane("a", "b"),
     r"plane of the task made names 'b'; expected one of its aspects \(a\)"),
    (draw_aspects, {"a": [3, -2], "b": [0, 1]}, Plane("a", "b"),
     r"names 'a'; .* \(a, b\) with whole numbers from 0"),
    (draw_aspects, {"a": [3, 2], "b": ["x", "y"]}, Plane("a", "b"),
     "names 'b'; .* with whole numbers"),
    (draw_baselines, {"short": [True]}, None,
     r"the baseline 'short' of the task made has bool values of shape \(1,\)"),
    (draw_baselines, {"share": [0.5, 1.0]}, None,
     r"has float64 values of shape \(2,\); expected bool and \(2,\)"),
])  # fmt: skip
def test_wrong_aspects_and_baselines_are_refused(
    draw: Callable[[Task, Dataset], object], given: object, plane: object, message: str
) -> None:
    answers = {name: lambda _self, _examples: given for name in ("aspects", "baselines")}
    task = made(of([1], [2]), plane=plane, **answers)
    with pytest.raises(ConfigError, match=message):
        draw(task, draw_examples(task, "train", 2, seed=0))


def test_training_examples_follow_from_their_index() -> None:
    task = made(lambda n: Dataset.of([[n % 3]] * n, [[1]] * n))
    check_repeats(task, draw_examples(task, "train", 16, seed=0), seed=0)
    with pytest.raises(ConfigError, match="the first 16 of 17 training examples of the task made"):
        check_repeats(task, draw_examples(task, "train", 17, seed=0), seed=0)


def test_windows_of_a_text_may_repeat() -> None:
    task, training = made(of([1], [2]), mapped=True), Dataset.of([[1]], [[2]])
    assert len(untrained(task, "ood", training, training)) == 1


def test_examples_of_training_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    task, training = made(of([1], [2])), Dataset.of([[1], [3, 3]], [[2], [3]])
    drawn = Dataset.of([[1], [1], [3]], [[2], [3], [3]])
    assert untrained(task, "ood", drawn, training).answers() == [(3,), (3,)]
    assert "training holds 1 of 3 examples of the split ood" in caplog.messages[0]
    with pytest.raises(ConfigError, match="training holds 1 of 1 examples of the split ood"):
        untrained(task, "ood", drawn.rows(slice(1)), training)


def test_words_are_told_apart() -> None:
    with pytest.raises(ConfigError, match="'a' occurs twice in the task made"):
        made(of([1], [2]), words=("a", "b", "a")).encode("b a")
    assert made(of([1], [2]), words=("", "a", "")).encode("a") == (1,)  # padding has no word


def test_the_last_position_may_have_a_token_that_no_model_reads() -> None:
    assert len(draw_examples(made(of([1, 2], [3]), n_input_tokens=3), "train", 2, seed=0)) == 2


def test_the_aspect_of_every_task_is_the_length_of_its_answers() -> None:
    drawn = Dataset.of([[1], [1, 2]], [[2, 3, 0], [0]])
    assert draw_aspects(made(of([1], [0]), end=0), drawn) == {"length": [2, 0]}
    assert draw_aspects(made(of([1], [0])), drawn) == {"length": [3, 1]}


def test_a_token_without_a_word_is_spelled_as_its_number() -> None:
    assert Scan().spelled(np.array([0, 2, 57])) == (".", "walk", "<57>")


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    message = r"no split of the task scan is called 'odd'.*known: train, id, ood"
    with pytest.raises(ConfigError, match=message):
        draw_examples(Scan(), "odd", 1, seed=0)
    whole = NAMED_TASKS["reasoning-complexity-0"]  # no pair is unseen
    with pytest.raises(ConfigError, match="is called 'ood'"):
        draw_examples(whole, "ood", 1, seed=0)


def test_only_a_task_gets_a_name() -> None:
    with pytest.raises(ConfigError, match="task is 'scan'; expected a Task"):
        name_task("mine", cast(Any, "scan"))
    assert "mine" not in NAMED_TASKS


def test_an_anchor_task_answers_the_same_questions() -> None:
    for task in TASKS.values():
        for split in task.splits:
            drawn = sample(task, split.role, 50, seed=1)
            found = draw_examples(task, split.name, 50, seed=1)
            assert np.array_equal(found.inputs, drawn.tokens)
            assert np.array_equal(found.last, drawn.targets)
            assert found.mask.sum(1).tolist() == [1] * 50
        assert task.decode(task.encode("1 2 99")) == "1 2 99"
        assert isinstance(task, AnchorTask)
    assert require_anchors(TASKS["neurips"], "this") is TASKS["neurips"]
    with pytest.raises(ConfigError, match="a verdict needs a task with anchors; the task scan has"):
        require_anchors(Scan(), "a verdict")


def test_configurations_find_the_class_of_a_task() -> None:
    for config in (RUNS["tiny"], RUNS["scan"], preset("scan", split="jump")):
        again = from_dict(RunConfig, parse_json(canonical_json(config)))
        assert again == config
        assert type(again.task) is type(config.task)
        assert run_id(again) == run_id(config)
    assert isinstance(RUNS["tiny"].task, AnchorTask)
    assert '"kind"' not in canonical_json(RUNS["tiny"])
    assert '"kind":"scan"' in canonical_json(RUNS["scan"])
    assert run_id(RUNS["scan"]) == "08881121ad6b2bc9"


@pytest.mark.parametrize(("kind", "names"), registry.REALISTIC.items())
def test_the_table_says_what_the_modules_hold(kind: str, names: tuple[str, ...]) -> None:
    module = importlib.import_module(registry.MODULES[kind])
    assert tuple(module.TASKS) == names
    assert {task.kind for task in module.TASKS.values()} == {kind}
    assert all(NAMED_TASKS[name] is module.TASKS[name] for name in names)


def test_a_kind_of_the_package_is_taken_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {kind: cls for kind, cls in registry.CLASSES.items() if kind != "cogs"}
    monkeypatch.setattr(registry, "CLASSES", others)
    monkeypatch.delitem(sys.modules, registry.MODULES["cogs"], raising=False)
    with pytest.raises(ConfigError, match="'cogs' is the kind of the task Cogs"):

        @dataclass(frozen=True)
        class Mine(Task):
            kind: Literal["cogs"] = "cogs"


def test_an_unknown_kind_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"kind is 'scam'; known: .*scan.*ANCHOR_INTERP_TASKS"):
        from_dict(RunConfig, {"task": {"kind": "scam"}})
    with pytest.raises(ConfigError, match=r"task.kind is \[\]; expected a text"):
        from_dict(RunConfig, {"task": {"kind": []}})


def test_a_class_without_a_kind_or_with_a_taken_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Nameless has no kind; .*Literal\['nameless'\]"):

        @dataclass(frozen=True)
        class Nameless(Task):
            """No kind."""

    with pytest.raises(ConfigError, match="'scan' is the kind of the task Scan"):

        @dataclass(frozen=True)
        class Other(Task):
            """A taken kind."""

            kind: Literal["scan"] = "scan"


def test_a_kind_of_another_file_or_name_is_refused(own_file: Path, tmp_path: Path) -> None:
    for _ in range(2):  # its own file may be imported again, also after a change
        registry.import_tasks(str(own_file))
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / own_file.name
    other.write_text(OWN)
    with pytest.raises(ConfigError, match=f"'echo' is the kind of the task Echo in {own_file};"):
        registry.import_tasks(str(other))
    own_file.write_text(OWN.replace("class Echo", "class Louder"))
    with pytest.raises(ConfigError, match="'echo' is the kind of the task Echo"):
        registry.import_tasks(str(own_file))
    kept = Task.among({"kind": "echo"})
    cell: dict[str, Any] = {"__name__": "__notebook__"}
    for _ in range(2):
        exec(OWN.replace("echo", "cell"), cell)
    assert [Task.among({"kind": kind}) for kind in ("cell", "echo")] == [cell["Echo"], kept]


def test_a_field_with_the_name_of_a_setting_is_refused() -> None:
    @dataclass(frozen=True)
    class Clash(Task):
        """A field that training has too."""

        kind: Literal["clash"] = "clash"
        steps: int = bounded(3, low=1)

    with pytest.raises(ConfigError, match="field steps, which is also a setting of the train"):
        RunConfig(Clash())


def test_a_question_without_an_answer_is_named() -> None:
    @dataclass(frozen=True)
    class Mute(Task):
        """Says nothing."""

        kind: Literal["mute"] = "mute"

    with pytest.raises(ConfigError, match="the task mute does not answer words"):
        RunConfig(Mute())


def test_a_task_longer_than_the_models_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_ctx is 57; the task's sequences have 58 tokens"):
        preset("scan", n_ctx=57)


OWN = '''
from dataclasses import dataclass
from typing import Literal
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.task import Task

@dataclass(frozen=True)
class Echo(Task):
    """Say it again."""

    kind: Literal["echo"] = "echo"
    words = ("a", "b")
    length = 2
    splits = (Split("train", "train"),)

    def examples(self, split, n, *, seed):
        return Dataset.of([[1]] * n, [[1]] * n)
'''


@pytest.fixture
def own_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "echo_task.py"
    path.write_text(OWN)
    yield path
    for name in ("_task_echo_task", "echo_task"):
        sys.modules.pop(name, None)


def test_tasks_of_named_files_are_found(own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"kind": "echo"}
    monkeypatch.setenv("ANCHOR_INTERP_TASKS", str(own_file))
    found = from_dict(Task, data)
    assert found.about == "Say it again."
    assert registry.further_tasks().count(str(own_file)) == 1
    monkeypatch.chdir(own_file.parent)  # a worker may have another folder
    monkeypatch.setenv("ANCHOR_INTERP_TASKS", own_file.name)
    assert registry.further_tasks().count(str(own_file)) == 1
    own_file.write_text("oh no")
    monkeypatch.setattr(registry, "CLASSES", {})
    with pytest.raises(
        ConfigError, match=r"cannot import the tasks of echo_task.py .SyntaxError: .* leave it out"
    ):
        from_dict(Task, data)


def test_a_module_that_is_imported_passes_its_tasks_on(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own_file.parent)
    monkeypatch.setattr(registry, "CLASSES", {})
    importlib.import_module("echo_task")
    assert registry.further_tasks() == (str(own_file),)
