"""A task of sequences through everything: training, judging, sweep, table, report, diagram."""

import html
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from in_process_engine import Here
from short import SHORT

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded
from anchor_interp.analysis.attention import sequence_attention
from anchor_interp.analysis.report_data import gather
from anchor_interp.behaviour.phase import Phase, decide
from anchor_interp.cli.main import main
from anchor_interp.cli.typed import typed_sweep
from anchor_interp.models.complexity import complexity
from anchor_interp.pages.attention_views import example_views
from anchor_interp.realistic.scan import Scan
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.train import train
from anchor_interp.sweeps.columns import COLUMNS
from anchor_interp.sweeps.diagrams import phase_diagrams
from anchor_interp.sweeps.estimate import estimate
from anchor_interp.sweeps.folder import SweepFolder, read_table
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table_files import from_csv, from_parquet, to_csv, to_parquet
from anchor_interp.tasks import registry
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.catalog import task_name
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.task import Task

START = preset("scan", **SHORT)
BRIEF = override(START, steps=5, eval_every=5, checkpoint_every=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(START, tmp_path_factory.mktemp("scan") / "run", device="cpu", quiet=True)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    plan = Sweep((Grid(BRIEF, {"gamma": (0.3, 0.8), "split": ("turn-left", "jump")}),))
    out = tmp_path_factory.mktemp("scan") / "sweep"
    return sweep(plan, out, engine=Here(), quiet=True)


def words(page: Path) -> str:
    """The page's text, without scripts and styles."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_a_run_is_trained_logged_and_judged(run: Run) -> None:
    assert [row["step"] for row in run.metrics] == list(range(0, 41, 5))
    assert run.metrics[-1]["loss"] < run.metrics[1]["loss"] - 0.2
    measured = [row for row in run.metrics if "train_accuracy" in row]
    assert [row["step"] for row in measured] == [0, 10, 20, 30, 40]
    assert {"train_accuracy", "id_accuracy", "ood_accuracy"} <= measured[-1].keys()
    found = run.evaluation
    sizes = [("train", "train", 300), ("id", "id", 500), ("ood", "ood", 500)]
    assert [(s.name, s.role, s.n) for s in found.splits] == sizes
    assert found.train_accuracy == found.splits[0].accuracy
    assert (found.pair_accuracy, found.unseen, found.commutativity) == ((), (), None)
    assert (run.phase, run.config.task) == ("undertrained", Scan())
    again = load(run.folder.path)
    assert again.evaluate() == found
    assert complexity(again.model).matrices


def test_every_example_of_a_split_is_judged_if_asked(run: Run) -> None:
    assert [score.n for score in run.evaluate(n=10_000).splits] == [300, 1_000, 1_208]


@pytest.mark.parametrize(
    ("train_accuracy", "known", "unknown", "phase", "reason"),
    [
        (0.5, 0.9, 0.9, "undertrained", "training accuracy 0.50 < 0.9"),
        (1.0, 0.2, 0.1, "memorizing", "ID 0.20 < 0.9"),
        (1.0, 0.95, 0.7, "inferential", "ID 0.95, OOD 0.70 >= 0.5"),
        (1.0, 0.95, 0.1, "other", "ID 0.95, OOD 0.10 < 0.5; the task has no anchors"),
        (1.0, None, 0.7, "inferential", "training accuracy 1.00, OOD 0.70 >= 0.5"),
        (1.0, None, 0.1, "other", "OOD 0.10 < 0.5; the task has no ID split, which shows memoriz"),
        (1.0, 1.0, None, "other", "the task has no OOD split to decide on"),
        (None, 1.0, 1.0, "other", "its own training sequences are not given"),
    ],
)
def test_phases_without_anchors(
    run: Run, train_accuracy: float, known: float, unknown: float, phase: Phase, reason: str
) -> None:
    evaluation = replace(
        run.evaluation, train_accuracy=train_accuracy, id_accuracy=known, ood_accuracy=unknown
    )
    found = decide(evaluation)
    assert found.phase == phase
    assert reason in found.reason


def test_a_sweep_its_table_and_its_estimate(swept: SweepFolder) -> None:
    rows = read_table(swept.path)
    assert {row["status"] for row in rows} == {"done"}
    assert {row["task"] for row in rows} == {"scan-turn-left", "scan-jump"}
    assert {row["split"] for row in rows} == {"turn-left", "jump"}
    assert {row["length"] for row in rows} == {58}
    assert all(row["key_min"] is row["commutativity"] is None for row in rows)
    assert all(0 <= row["ood_accuracy"] <= 1 for row in rows)
    assert from_csv(to_csv(rows)) == rows
    assert {row["task.held_out"] for row in rows} == {1_000}
    assert re.fullmatch("scan-[0-9a-f]{8}", task_name(Scan(held_out=7)))
    assert re.fullmatch("custom-[0-9a-f]{8}", task_name(AnchorTask(key_max=98)))
    assert len(swept.spec().configs()) == 4
    plan = typed_sweep("scan", ["gamma=0.3,0.5", "steps=100"], seeds=2)
    guess = estimate(plan.configs(), SweepFolder(swept.path / "new"), workers=1, device="cpu")
    assert (guess.runs, guess.todo) == (4, 4)
    assert guess.core_seconds > 0


@dataclass(frozen=True)
class Wide(Task):
    """A task with fields of every kind, two of them with names of shared columns."""

    kind: Literal["wide"] = "wide"
    size: float = bounded(2.5, low=0)
    marked: bool = False
    held_out: str | None = None
    split: int = bounded(7, low=0)
    words = ("a", "b")
    length = 2
    splits = (Split("train", "train"),)

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        assert (split, seed >= 0) == ("train", True)
        return Dataset.of([[1]] * n, [[1]] * n)


registry.CLASSES.pop("wide")  # only this module's


def test_a_table_has_the_fields_of_every_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.CLASSES, "wide", Wide)
    tasks = (Scan(held_out=5), Scan(), Wide(), Wide(size=3.0, held_out="all", marked=True))
    start = override(START, task=tasks[0])
    folder = SweepFolder(tmp_path)
    folder.extend(Sweep((Grid(start, {"task": tasks}), Grid(preset("tiny")))))
    found = folder.write_table()
    own = ["task.held_out", "task.size", "task.marked", "task.split"]
    assert [name for name in found[0] if name not in COLUMNS] == own
    assert [[row[name] for name in own] for row in found] == [
        ["5", None, None, None],
        ["1000", None, None, None],
        [None, 2.5, False, 7],
        ["all", 3.0, True, 7],
        [None, None, None, None],
    ]
    assert [row["split"] for row in found][1:4:2] == ["turn-left", None]
    assert read_table(folder.path) == found
    assert from_parquet(to_parquet(found))[0] == found
    assert from_csv(to_csv(found)) == found


def test_a_diagram_takes_a_tasks_field_before_its_name(swept: SweepFolder) -> None:
    several = [
        row | {"run_id": f"{n} {i}", "task": f"scan-{n}", "task.held_out": n, "split": "jump"}
        for n in (10, 50)
        for i, row in enumerate(read_table(swept.path))
    ]
    found = phase_diagrams(several)
    assert [diagram.y.name for diagram in found.diagrams if diagram.y] == ["task.held_out"]
    assert found.diagrams[0].y is not None
    assert found.diagrams[0].y.label == "held out"


@pytest.mark.usefixtures("undrawn")
def test_the_report_says_what_was_asked_and_found(
    run: Run, finished_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, paths = tmp_path / "page.html", [run.folder.path, finished_run.folder.path]
    assert main(["report", *map(str, paths), "--out", str(out), "--quiet"]) == 0
    text = words(out)
    assert "Commands such as jump twice become actions; tested on commands with" in text
    assert re.search(r"ood ood 1,208 .*turn left.* -> I_", text)
    assert re.search(r"It answers only [\d.]+ % of its own training sequences\.", text)
    assert "Score of every split" in text
    assert "Accuracy by length." in text
    assert "Accuracy by construction." in text
    assert "Accuracy on the split ood, by what its examples have in common" in text
    assert "Stable rank" in text
    assert "A sequence of 9 tokens holds a key" in text  # of the other run
    assert capsys.readouterr().out.count("report: ") == 1


@pytest.mark.usefixtures("undrawn")
def test_a_report_shows_the_plane_and_what_stands_beside_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, n_ctx in (("addition", 4), ("prontoqa", 64)):  # little room: answers do not end
        paths.append(str(tmp_path / name))
        config = preset(name, **SHORT | {"steps": 5, "n_heads": 1, "n_ctx": n_ctx})
        train(config, paths[-1], device="cpu", threads=1, quiet=True)
    assert main(["report", *paths, "--out", str(tmp_path / "page.html"), "--quiet"]) == 0
    text = words(tmp_path / "page.html")
    assert "right answers over a and b, on examples of all splits. Training leaves out the" in text
    shortcut = 'chance 0.500, shortcut "subject that occurs more often" 1.000'
    assert f"what training leaves out; on deeper: {shortcut}" in text
    assert re.search(r"OOD accuracy 0\.\d+ 0\.75 (below|reached)", text)
    assert main(["evaluate", paths[1], "--n", "20", "--quiet"]) == 0
    assert re.search(rf"id \(id\) +accuracy 0.\d+ \({shortcut}\), loss", capsys.readouterr().out)
    (found,) = gather(paths[:1])
    plane = found.plane
    assert plane is not None
    assert plane.plane.square == (40, 60)
    assert len(set(zip(plane.x, plane.y, strict=True))) == 10_000  # every pair, once


def test_answers_without_an_end_have_as_many_tokens_as_asked(run: Run) -> None:
    alone = replace(run, config=replace(run.config, task=Wrong()))
    with pytest.raises(ConfigError, match=r"the task wrong have no end token .*; say with most"):
        alone.answer(["a"])
    (answer,) = alone.answer(["a b"], most=3)
    assert all(word in Wrong.words or re.fullmatch(r"<\d+>", word) for word in answer.split())
    assert len(answer.split()) == 3


@pytest.mark.usefixtures("undrawn")
def test_the_diagram_and_the_status_of_a_sweep(
    swept: SweepFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(swept.path), "--quiet"]) == 0
    assert "states: 4 done" in capsys.readouterr().out
    out = tmp_path / "diagram"
    assert main(["diagram", str(swept.path), "--out", str(out), "--quiet"]) == 0
    page = words(out / "index.html")
    assert "scan" in page
    assert "The model does not answer its own training examples." in page
    assert len(json.loads((out / "diagram.json").read_text())["diagrams"][0]["cells"]) == 4


@pytest.mark.usefixtures("undrawn")
def test_analyses_of_anchors_say_what_they_need(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = anchor_interp.analyze(run)
    assert found.mechanism is None
    assert found.left_out == ("the mechanism: the task scan has no anchors",)
    assert found.development is not None
    assert found.development.steps == (0, 10, 20, 30, 40)
    assert main(["analyze", str(run.folder.path), "--out", str(tmp_path / "page")]) == 0
    assert "the task scan has no anchors" in caplog.text
    page = words(tmp_path / "page" / "index.html")
    for caption in ("Stable rank along", "Effective rank along", "Condensation along"):
        assert f"{caption} training." in page
    assert "The model does not answer its own training examples." in page
    for example in found.attention:
        assert f"An example of the split {example.split} read {' '.join(example.words)}" in page
    needs = "needs a task with anchors; the task scan has none"
    with pytest.raises(ConfigError, match=needs):
        anchor_interp.fingerprint(run)
    task: Any = START.task
    with pytest.raises(ConfigError, match=needs):
        anchor_interp.sample(task, "train", 3, seed=0)
    capsys.readouterr()


def test_attention_is_shown_in_a_short_example_of_each_tested_split(run: Run) -> None:
    found = sequence_attention(run.model, run.config.task)
    assert [example.split for example in found] == ["ood", "id"]
    for example in found:
        tokens = torch.tensor([run.config.task.encode(" ".join(example.words))])
        assert tokens.shape[1] < 20
        assert (*example.words, ".")[-len(example.answer) :] == example.answer
        logits: Any = run.model(tokens)
        _, cache = run.model.run_with_cache(tokens)
        guessed = logits[0, -len(example.answer) :].argmax(-1)
        assert " ".join(example.predicted) == run.config.task.decode(guessed)
        for layer, pattern in enumerate(example.patterns):
            np.testing.assert_allclose(pattern, cache["pattern", layer][0], atol=1e-6)
    view = example_views(found[0], "one")[1]
    assert view.props["tokens"] == list(found[0].words)


def test_the_command_line(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run.folder.path), "--n", "20", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"ood \(ood\) +accuracy 0.\d{3}, loss [\d.]+, 20 examples", out)
    assert "per pair" not in out
    sizes = SHORT | {"steps": 6}
    small = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    where = ["--out", str(tmp_path / "run"), "--threads", "1", "--quiet", "--json"]
    flags = ["--preset", "scan", "--split", "jump", "--held-out", "50", *small]
    assert main(["train", *flags, *where]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["config"]["task"] == {"kind": "scan", "split": "jump", "held_out": 50}
    assert [split["n"] for split in trained["splits"]] == [300, 50, 500]
    again = ["--preset", "scan", "--task", "scan-length", *small]
    assert main(["train", *again, *where]) == 1  # the folder holds another run
    assert "task.split jump (asked: length)" in capsys.readouterr().err


def test_a_folder_of_another_task_is_refused(run: Run) -> None:
    with pytest.raises(
        anchor_interp.AnchorInterpError, match=r"another run: task scan \(asked: AnchorTask\)"
    ):
        train(preset("tiny", **SHORT), run.folder.path, quiet=True)


@dataclass(frozen=True)
class Wrong(Task):
    """A task whose OOD examples have a token too many."""

    kind: Literal["wrong"] = "wrong"
    words = ("a", "b", "c")
    length = 3
    splits = (Split("train", "train"), Split("ood", "ood"))

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        assert seed >= 0
        return Dataset.of([[1]] * n, [[1 if split == "train" else 3]] * n)


registry.CLASSES.pop("wrong")  # only this module's


def test_wrong_examples_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = anchor_interp.RunConfig(Wrong(), START.model, START.init, START.train)
    with pytest.raises(ConfigError, match="ood of the task wrong has a token outside its vocab"):
        train(config, tmp_path / "run", device="cpu", quiet=True)
    monkeypatch.setattr(
        Wrong, "examples", lambda *asked, **_: Dataset.of([[1]] * asked[-1], [[1]] * asked[-1])
    )
    with pytest.raises(ConfigError, match="training holds 512 of 512 examples of the split ood"):
        train(config, tmp_path / "run", device="cpu", quiet=True)
    monkeypatch.setattr(Wrong, "splits", Wrong.splits[:1])
    monkeypatch.setattr(Wrong, "aspects", lambda _, examples: {"size": [1] * (len(examples) - 1)})
    with pytest.raises(ConfigError, match=r"'size' of the task wrong .* expected \d+ values"):
        train(config, tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()
