"""Phase diagrams: the contents of cells, runs without measurements, the figures and the page."""

import csv
import html
import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sweep_rows import decay_sweep, depth_sweep, done, grid, not_done
from watched_page import Watched

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.statistics import Estimate, mean_interval
from anchor_interp.cli.typed import named_values, typed_sweep
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map
from anchor_interp.pages.diagram_marks import COLOURS
from anchor_interp.pages.diagram_page import (
    _parts,
    conclusion,
    effects,
    highest,
    render_diagrams,
    write_diagrams,
)
from anchor_interp.pages.style import inline_svg, settle
from anchor_interp.sweeps.cells import STATE_MARKS, Cell
from anchor_interp.sweeps.columns import TableRow, words
from anchor_interp.sweeps.diagrams import Diagrams, phase_diagrams, summary
from anchor_interp.sweeps.effect_verdict import judge_effect
from anchor_interp.sweeps.effects import Effect, effect

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}"


def cell(found: Diagrams, x: Any, y: Any = None, diagram: int = 0) -> Cell:
    (only,) = (c for c in found.diagrams[diagram].cells if (c.x, c.y) == (x, y))
    return only


def mean(found: Cell, measure: str) -> float:
    value = found.measures[measure].mean
    assert value is not None
    return value


def values(found: Cell, measure: str) -> list[float | None]:
    return list(found.measures[measure].values.values())


def test_runs_near_a_line_are_marked() -> None:
    rows = [done(0, ood=0.47), done(1, ood=0.2), done(2, ood=0.47, train=0.5)]
    rows += [not_done("failed", 3), done(gamma=0.6)]
    rows.append(done(4, ood=0.52) | {"key_dependence": None})  # a task without anchors
    found = phase_diagrams(rows)
    near = [run["near"] for run in cell(found, 0.5).runs]
    message = "OOD accuracy is 0.47; at 0.52 the phase would be inferential"
    assert near == [(message,), (), (), (), ()]
    page = render_diagrams(found, [])
    assert page.count(">near a line</span>") == 1
    assert "; OOD accuracy is 0.47; at 0.52" in page


def test_a_cell_holds_every_seed_and_their_mean() -> None:
    oods = (0.1, 0.2, 0.9)
    rows = [done(seed, gamma=0.3, ood=ood) for seed, ood in enumerate(oods)]
    rows += [done(seed, gamma=0.4) for seed in range(3)]
    found = cell(phase_diagrams(rows[::-1]), 0.3)
    measured = found.measures["ood_accuracy"]
    assert values(found, "ood_accuracy") == list(oods)
    assert measured.n == 3
    assert mean(found, "ood_accuracy") == pytest.approx(0.4)
    assert [run["seed"] for run in found.runs] == [0, 1, 2]
    assert found.states == {"symmetric": 2, "inferential": 1}
    assert found.phase == "symmetric"
    # Student's t with two degrees of freedom reaches 4.3027 standard errors
    reach = 4.3027 * math.sqrt(0.19 / 3)
    low, high = mean_interval(oods)
    assert (low, high) == pytest.approx((0.4 - reach, 0.4 + reach), abs=1e-3)
    assert (measured.low, measured.high) == (0, 1)  # a share is between 0 and 1


def test_any_column_of_numbers_can_be_mapped() -> None:
    rows = [done(seed, gamma=0.3) | {"spread": 3.0 * seed - 4} for seed in range(3)]
    rows += [done(0, gamma=0.4) | {"spread": None}, not_done("missing", 1, gamma=0.4)]
    found = phase_diagrams(rows, maps=("spread", "ood_accuracy", "seed"))
    assert found.maps == ("spread", "seed")  # the accuracy is mapped anyway
    measured = cell(found, 0.3).measures["spread"]
    assert values(cell(found, 0.3), "spread") == [-4, -1, 2]
    assert measured.mean == -1
    assert (measured.low, measured.high) == pytest.approx(mean_interval([-4, -1, 2]))  # not a share
    assert cell(found, 0.4).measures["spread"].n == 0
    assert [row["spread"] for row in summary(found)] == [-1, None]
    assert inline_svg(accuracy_map(found.diagrams[0], "spread"), "p").count("p-cell-") >= 2
    small = [row | {"spread": (row.get("spread") or 0) / 1e4} for row in rows]
    page = render_diagrams(phase_diagrams(small, maps="spread"), [])
    for number in ("-0.0001", "-0.0004", "0.0002"):  # the mean and two runs, not 0.00
        assert re.search(rf'<td class="n[^>]*>{number}\b', page), number
    for name, message in (
        ("sprad", "did you mean 'spread'"),
        ("phase", "map is 'phase'; expected"),
    ):
        with pytest.raises(ConfigError, match=message):
            phase_diagrams(rows, maps=name)


def test_training_accuracy_is_mapped_if_asked_for() -> None:
    """Of all measures it alone has no map by itself."""
    rows = [done(seed, gamma=gamma, lr=lr, train=0.9 + lr) for gamma in (0.3, 0.4)
            for lr in (0.01, 0.02) for seed in range(2)]  # fmt: skip
    found = phase_diagrams(rows, maps=("train_accuracy", "ood_accuracy"), best_over="lr")
    assert found.maps == ("train_accuracy",)
    (part,) = _parts(found)
    (drawn,) = (picture for picture in part.pictures if picture.about == "map-train_accuracy")
    shown = [text.get_text() for text in drawn.figure.axes[0].texts]
    assert shown == ["0.92", "0.92"]


def test_no_clipping_is_not_called_the_default() -> None:
    """The default clips at 1."""
    rows = [done(seed, ood=seed / 4) | {"run_id": f"{clip}-{seed}", "clip": clip}
            for clip in (None, 1.0) for seed in range(2)]  # fmt: skip
    found = phase_diagrams(rows)
    assert found.diagrams[0].x.values == (None, 1)
    ticks = accuracy_map(found.diagrams[0], "ood_accuracy").axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["none", "1"]
    configs = typed_sweep("tiny", ["clip=none,1"]).configs()
    assert [config.train.clip for config in configs.values()] == [None, 1]
    assert len(phase_diagrams(rows, x="clip", where=named_values(["clip=none"])).runs) == 2


def test_runs_that_ended_by_other_evaluations_are_told_apart() -> None:
    """The evaluations decide when a run has its ``until_accuracy``, and so how long it trains."""
    rows = [done(seed, gamma=gamma) | {"run_id": f"{gamma}-{every}-{seed}", "eval_every": every}
            for gamma in (0.3, 0.4) for every in (50, 200) for seed in range(2)]  # fmt: skip
    assert [cell.measures["ood_accuracy"].n for cell in phase_diagrams(rows).cells] == [4, 4]
    found = phase_diagrams([row | {"until_accuracy": 0.9} for row in rows])
    assert [axis.name for axis in (found.diagrams[0].x, found.diagrams[0].y) if axis] == [
        "gamma", "eval_every",
    ]  # fmt: skip


def test_the_page_spells_out_the_anchors_of_a_task_that_is_not_a_presets() -> None:
    own = done(0) | {"run_id": "own", "task": "custom-1", "task.anchors": "1: x + 9, 2: <x>"}
    found = phase_diagrams([done(0), own])
    assert found.diagrams[0].x.name == "task"  # the anchors are not a setting beside it
    assert found.anchors == {"custom-1": "1: x + 9, 2: <x>"}
    page = render_diagrams(found, [])
    assert "Task custom-1 has the anchors 1: x\xa0+\xa09, 2: &lt;x&gt;." in page
    assert page.count("has the anchors") == 1


def test_runs_without_measurements_are_marks_and_not_zeros() -> None:
    rows = [done(0, gamma=0.3, ood=0.8), done(1, gamma=0.3, ood=0.6)]
    rows += [not_done(status, seed, gamma=0.3) for seed, status in
             enumerate(("diverged", "failed", "running", "begun", "missing"), 2)]  # fmt: skip
    rows += [not_done("missing", seed, gamma=0.4) for seed in range(7)]
    # numbers in the row of a diverged run are not measurements
    rows[2] |= {"ood_accuracy": 0.0, "phase": "memorizing"}
    found = phase_diagrams(rows)
    mixed, empty = cell(found, 0.3), cell(found, 0.4)
    states = {"inferential": 2, "diverged": 1, "failed": 1, "unfinished": 2, "missing": 1}
    assert mixed.states == states
    assert mixed.measures["ood_accuracy"].mean == pytest.approx(0.7)
    assert mixed.measures["ood_accuracy"].n == 2
    assert values(mixed, "ood_accuracy") == [0.8, 0.6, None, None, None, None, None]
    assert [run["censored"] for run in mixed.runs] == [False] * 2 + [True] * 5
    assert mixed.phase == "inferential"
    assert empty.states == {"missing": 7}
    assert empty.measures["ood_accuracy"].mean is None
    assert (empty.phase, empty.poor_id, empty.poor_commutativity) == (None, False, False)
    assert len(found.runs) == len(rows)


def test_an_undertrained_run_counts_and_is_censored() -> None:
    rows = [done(0, gamma=0.3, train=0.5, seen=0.4), done(1, gamma=0.3, seen=1.0), done(gamma=0.4)]
    found = cell(phase_diagrams(rows), 0.3)
    assert found.measures["id_accuracy"].mean == pytest.approx(0.7)
    assert [run["censored"] for run in found.runs] == [True, False]
    assert found.phase is None  # one of each


def test_poor_id_and_poor_commutativity_by_the_papers_thresholds() -> None:
    rows = [
        done(0, gamma=0.1, seen=0.89),
        done(0, gamma=0.2, seen=0.9),
        done(0, gamma=0.3, commutativity=0.69),
        done(0, gamma=0.4, commutativity=0.7),
        done(0, gamma=0.5, symmetric=0.0, ood=1.0, commutativity=0.0, task="neurips"),
        done(0, gamma=0.6, seen=0.5),  # the cell's mean is good, one run is not
        *(done(seed, gamma=0.6, seen=1.0) for seed in range(1, 6)),
    ]
    found = phase_diagrams(rows)
    marks = {c.x: (c.poor_id, c.poor_commutativity) for c in found.cells}
    assert marks == {
        0.1: (True, False), 0.2: (False, False), 0.3: (False, True), 0.4: (False, False),
        0.5: (False, False), 0.6: (False, False),
    }  # fmt: skip
    assert [run["poor_id"] for run in cell(found, 0.6).runs] == [True] + [False] * 5


def test_stable_rank_and_its_ratio_to_the_initial_one() -> None:
    rows = [
        done(s, gamma=g, rank=r) for g, s, r in ((0.3, 0, 40.0), (0.3, 1, 20.0), (0.4, 0, None))
    ]
    found = phase_diagrams(rows)
    assert cell(found, 0.3).measures["stable_rank"].mean == pytest.approx(30)
    assert values(cell(found, 0.3), "stable_rank_ratio") == [1, 0.5]
    assert cell(found, 0.4).measures["stable_rank_ratio"].mean is None


def test_seeds_keep_their_places() -> None:
    rows = [done(seed, gamma=0.3) for seed in (0, 5, 7)] + [done(7, gamma=0.4)]
    found = phase_diagrams(rows)
    assert [run["slot"] for run in cell(found, 0.4).runs] == [2]
    assert found.diagrams[0].slots == 3


def test_runs_with_equal_settings_are_all_kept() -> None:
    rows = [done(0, gamma=0.3), done(0, gamma=0.3, eval_every=7, ood=0.4), done(0, gamma=0.4)]
    found = cell(phase_diagrams(rows), 0.3)
    assert sorted(v for v in values(found, "ood_accuracy") if v is not None) == [0, 0.4]


def test_short_and_long_runs_share_the_decay_axis() -> None:
    """Half the steps with twice the weight decay give the same effective decay."""
    rows = grid(done, gamma=(0.3, 0.5), weight_decay=(0.1, 0.2), steps=(2000, 4000), seeds=2)
    found = phase_diagrams(rows, x="total_decay", y="gamma")
    assert [diagram.x.values for diagram in found.diagrams] == [(0.1, 0.2), (0.2, 0.4)]
    assert all(len(cell.runs) == 2 for cell in found.cells)


def test_best_over_is_taken_by_seed_and_by_measure() -> None:
    rows = [
        done(0, gamma=0.3, lr=0.001, ood=0.1, symmetric=0.9),
        done(0, gamma=0.3, lr=0.002, ood=0.6, symmetric=0.2),
        done(1, gamma=0.3, lr=0.001, ood=0.3, symmetric=0.5),
        not_done("diverged", 1, gamma=0.3, lr=0.002),
        *(not_done("missing", 2, gamma=0.3, lr=lr) for lr in (0.001, 0.002)),
        *grid(done, gamma=(0.4,), lr=(0.001, 0.002)),
    ]
    found = phase_diagrams(rows, best_over="lr")
    best = cell(found, 0.3)
    assert found.best_over == {"lr": 2}
    assert best.measures["ood_accuracy"].values == {0: 0.6, 1: 0.3, 2: None}
    assert best.measures["symmetric_accuracy"].values == {0: 0.9, 1: 0.5, 2: None}
    assert best.measures["ood_accuracy"].mean == pytest.approx(0.45)
    assert len(best.runs) == 6
    every = phase_diagrams(rows)
    assert every.best_over == {}
    assert (every.diagrams[0].y and every.diagrams[0].y.name) == "lr"


def test_settings_that_move_together_make_one_axis() -> None:
    rows = [done(gamma=g, gamma_qk=g, steps=n, lr=r) for g in (0.3, 0.4)
            for n, r in ((1000, 0.1), (2000, 0.05))]  # fmt: skip
    found = phase_diagrams(rows)
    (diagram,) = found.diagrams
    assert diagram.x.name == "gamma"
    assert diagram.y is not None
    assert diagram.y.name == "lr"
    assert found.follows == {"gamma_qk": (0.3, 0.4), "steps": (1000, 2000)}


def test_where_keeps_rows_and_reports_them() -> None:
    rows = grid(done, gamma=(0.3, 0.4), lr=(0.001, 0.002), seeds=2)
    found = phase_diagrams(rows, where=named_values(["lr=0.001"]))
    assert found.where == {"lr": (0.001,)}
    assert (found.left_out, len(found.runs)) == (4, 4)
    for wrong in (["lr=1", "lr=2"], ["lr=1,"], ["gamma"], ["=1"], ["gamma="], [""]):
        with pytest.raises(ConfigError, match=r"given twice.* lr=VALUE,VALUE|not NAME=VALUE,VALUE"):
            named_values(wrong)
    assert named_values(["a=1,2.5", "b=true", "c=null", "task=custom", "d = x y "]) == {
        "a": [1, 2.5], "b": [True], "c": [None], "task": ["custom"], "d": ["x y"],
    }  # fmt: skip


def test_a_run_that_a_table_holds_twice_is_one_mark() -> None:
    each = itertools.product((0.3, 0.4), range(3))
    rows = [done(seed, gamma=gamma, ood=gamma + seed / 10) for gamma, seed in each]
    once = phase_diagrams(rows)
    assert phase_diagrams([*rows, *rows[:2], rows[4] | {"seconds": 1.0}]) == once
    more = [*rows * 2, done(gamma=0.9)]
    assert phase_diagrams(more, where={"gamma": [0.3, 0.4]}).left_out == 1
    with pytest.raises(ConfigError, match=r"has ood_accuracy 0\.3 and 0\.9; keep one of its rows"):
        phase_diagrams([*rows, rows[0] | {"ood_accuracy": 0.9}])


SWEEP = [*grid(done, gamma=(0.3, 0.4), seeds=1)]
WIDE = grid(done, gamma=(0.3, 0.4), weight_decay=(0.0, 1.0), lr=tuple(range(1, 8)), seeds=1)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([], {}, r"no run is done \(no runs\)"),
        ([done()], {}, "no setting varies between the runs"),
        ([not_done("missing", gamma=g) for g in (0, 1)], {}, r"no run is done \(2 missing\)"),
        (SWEEP, {"x": "gama"}, r"x is 'gama' \(did you mean 'gamma'"),
        (SWEEP, {"y": "ood_accuracy"}, r"y is 'ood_accuracy'.*; expected one of"),
        (SWEEP, {"x": "gamma", "y": "gamma"}, "x and y are both 'gamma'"),
        (SWEEP, {"where": {"gamm": 1}}, r"where is 'gamm' \(did you mean 'gamma'\?\)"),
        (SWEEP, {"where": {"gamma": 0.7}}, "no run has gamma 0.7; expected one of 0.3, 0.4"),
        (SWEEP, {"best_over": "lrr"}, "best_over is 'lrr'"),
        ([row | {"seed": None} for row in SWEEP], {"best_over": "gamma"}, "a seed in every row"),
        (WIDE, {}, "these settings vary: lr, which makes 7 diagrams; .* where, such as lr=1"),
        ([done(), done(1) | {"status": "gone"}], {"x": "gamma"}, "status of run .* is 'gone'"),
        ([done() | {"phase": None}], {"x": "gamma"}, "phase of run .* is None"),
        ([done() | {"id_accuracy": "x"}], {"x": "gamma"}, "id_accuracy 'x'; expected a number"),
    ],
)  # fmt: skip
def test_errors_name_the_problem(rows: list[TableRow], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        phase_diagrams(rows, **options)


def test_given_axis_where_nothing_varies() -> None:
    found = phase_diagrams([done()], x="n_layers")
    assert [c.x for c in found.cells] == [2]


def test_every_run_is_drawn_with_its_letter() -> None:
    """The SVG has one filled place for each run of a state, and one legend entry."""
    found = phase_diagrams(decay_sweep())
    states: Counter[str] = Counter(run["state"] for run in found.runs)
    svg = inline_svg(phase_map(found.diagrams[0]), "p")
    assert len(re.findall(r'id="p-cell-\d+"', svg)) == 28
    for state, colour in COLOURS.items():
        in_legend = state in states
        assert svg.count(f"fill: {colour.lower()}") == states[state] + in_legend, state
    assert set(STATE_MARKS) == set(COLOURS) | {"failed", "unfinished", "missing"}
    assert len(set(STATE_MARKS.values())) == len(STATE_MARKS)


@pytest.mark.parametrize("axes", [("gamma", "schedule"), ("schedule", "gamma")])
def test_labels_of_schedules_stand_beside_each_other(axes: tuple[str, str]) -> None:
    long = "2000 0.001 3.7128394812; 3000 0.001 0.01"
    rows = grid(done, gamma=(0.3, 0.5), schedule=(None, "1000 0.001 1", long), seeds=1)
    (diagram,) = phase_diagrams(rows, x=axes[0], y=axes[1]).diagrams
    figure = settle(phase_map(diagram))
    (panel,) = figure.axes
    assert min(panel.bbox.width, panel.bbox.height) > 0.8 * figure.dpi  # two or three cells
    for axis in (panel.xaxis, panel.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert all(figure.bbox.x0 <= box.x0 and figure.bbox.y0 <= box.y0 for box in boxes)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    rows = decay_sweep()
    rows[5] |= {"reason": HOSTILE, "run_id": HOSTILE}
    rows = [row | {"task": HOSTILE} for row in rows if row["gamma"] < 0.65]
    folder = tmp_path_factory.mktemp("diagrams")
    report = folder / "a sweep" / "runs" / rows[0]["run_id"] / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("")
    return write_diagrams(rows, folder / "made", name=HOSTILE, runs=folder / "a sweep" / "runs")


def test_written_files_agree(written: list[Path]) -> None:
    page, numbers, table, *figures = written
    assert [page.name, numbers.name, table.name] == ["index.html", "diagram.json", "cells.csv"]
    names = {path.stem for path in figures}
    assert names == {"overview", "phases", "ood-accuracy", "id-accuracy", "commutativity",
                     "stable-rank", "stable-rank-ratio", "along"}  # fmt: skip
    for path in figures:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ET.fromstring(path.read_bytes()).tag.endswith("svg")
    found = json.loads(numbers.read_text())
    assert found["schema"] == 1
    (diagram,) = found["diagrams"]
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(diagram["cells"]) == 16
    for row, entry in zip(rows, diagram["cells"], strict=True):
        assert float(row["gamma"]) == entry["x"]
        assert int(row["diverged"]) == entry["states"].get("diverged", 0)
        mean = entry["measures"]["ood_accuracy"]["mean"]
        assert (float(row["ood_accuracy"]) if row["ood_accuracy"] else None) == mean


def test_hostile_text_stays_text(written: list[Path]) -> None:
    source = written[0].read_text("utf-8")
    assert "<script>alert" not in source
    assert "<img" not in source
    assert source.count("<script>") == source.count("</script>") == 2


def test_page_states_the_selection() -> None:
    rows = depth_sweep((0.001, 0.002))
    best = phase_diagrams(rows, best_over="lr", where={"gamma": [0.3, 0.4]})
    text = render_diagrams(best, [])
    assert "Best of 2 values of learning rate." in text
    assert "0.3, 0.4" in text
    assert "54 other runs are left out" in text
    assert "Best of" not in render_diagrams(phase_diagrams(rows), [])
    assert len(list(summary(best))) == 6


def test_the_page_concludes_with_the_effects_inside_the_other_axis() -> None:
    rows = decay_sweep()
    found = effects(phase_diagrams(rows))
    by = {(one.of, one.on): one.found for one in found}
    for axis, other in (("gamma", "weight_decay"), ("weight_decay", "gamma")):
        direct = effect(rows, of="ood_accuracy", on=axis, within=[other], least=0)
        assert by["ood_accuracy", axis] == direct.found
    diagrams = phase_diagrams(rows)
    said = conclusion(found, diagrams.runs)
    assert said.startswith("OOD accuracy ")
    assert said in html.unescape(render_diagrams(diagrams, []))


def test_effects_compare_runs_of_one_value_of_what_the_best_is_taken_over() -> None:
    """At either rate OOD accuracy falls with gamma; runs of both together say that it rises."""
    rows = [done(seed, gamma=gamma, lr=lr, ood=ood - gamma / 2 + seed / 1000)
            for lr, ood, gammas in ((0.001, 0.4, (0.2, 0.4, 0.6)), (0.002, 0.9, (0.4, 0.6, 0.8)))
            for gamma in gammas for seed in range(4)]  # fmt: skip
    found = effects(phase_diagrams(rows, best_over="lr"))
    direct = effect(rows, of="ood_accuracy", on="gamma", within=["lr"], least=0).found
    assert direct is not None
    assert direct.effect < -0.9
    assert [one.found for one in found if one.of == "ood_accuracy"] == [direct]


@pytest.mark.parametrize(
    ("axes", "values", "words"),
    [
        ({"gamma": (0.1, 0.2)}, {}, "OOD accuracy has no trend yet: 5 fitted runs are needed."),
        ({"gamma": (0.1, 0.2)}, {"ood": None}, ""),  # a task without it
        ({"gamma": (0.1, 0.2, 0.3)}, {"ood": None}, ""),
        ({"lr": (0.1, 0.2, 0.3)}, {"train": 0.2}, "6 of 6 runs are undertrained: not fitted to"),
        ({"task": ("a", "b", "c")}, {}, ""),  # texts have no direction
    ],
)
def test_a_trend_is_missed_only_where_too_few_runs_have_the_accuracy(
    axes: dict[str, tuple[Any, ...]], values: dict[str, Any], words: str
) -> None:
    diagrams = phase_diagrams(grid(lambda seed, **at: done(seed, **at, **values), 2, **axes))
    page = html.unescape(render_diagrams(diagrams, []))
    assert ('<p class="says">' in page) == bool(words)
    assert words in page
    assert conclusion([], diagrams.runs).startswith(words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gamma": (0.5, 0.01), "lr": (-0.4, 0.02)}, ", and falls on the whole with learning rate"),
        ({"gamma": (0.2, 0.3)}, "shows no trend with initialisation rate"),
    ],
)
def test_a_trend_has_a_direction_only_if_it_is_there(
    values: dict[str, tuple[float, float]], words: str
) -> None:
    found = [
        Effect("ood_accuracy", on, "", 9, 0, Estimate(size, size / 2, size / 2, p, 0.5), 0,
               *judge_effect(Estimate(size, size / 2, size / 2, p, 0.5), 0))
        for on, (size, p) in values.items()
    ]  # fmt: skip
    assert words in conclusion(found, [])


def test_the_highest_mean_names_its_cells() -> None:
    ood = {(0.3, 0.1): 0.2, (0.3, 1): 0.501, (0.9, 0.1): 0.502, (0.9, 1): 0.1}
    rows = [done(seed, ood=mean, gamma=gamma, weight_decay=decay)
            for (gamma, decay), mean in ood.items() for seed in range(2)]  # fmt: skip
    (diagram,) = phase_diagrams(rows).diagrams
    places = [(cell, diagram.place(cell)) for cell in diagram.cells]
    first, second = (words({"gamma": g, "weight_decay": d}) for g, d in ((0.9, 0.1), (0.3, 1)))
    best = f"The highest mean of OOD accuracy is 0.50, at {first} and at {second}."
    assert highest(places) == best
    rows += [done(2, ood=0.9, train=0.2, gamma=0.5, weight_decay=1)]
    (diagram,) = phase_diagrams(rows).diagrams
    among = best.replace(" is ", ", where all runs have fitted, is ")  # one cell has a higher mean
    assert highest([(cell, diagram.place(cell)) for cell in diagram.cells]) == among
    assert highest(places[:1]).endswith(f" at {words(places[0][1])}.")
    assert highest([]) == ""


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_page_in_a_browser(browser: Any, written: list[Path], width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(120_000)  # milliseconds
    shown = context.new_page()
    watched = Watched(shown)
    shown.goto(written[0].as_uri())
    overflow = "document.documentElement.scrollWidth - innerWidth"
    assert shown.evaluate(overflow) == 0
    about, rows = shown.locator("#about"), shown.locator("#run-table tbody tr:visible")
    assert (about.is_visible(), rows.count()) == (False, 48)
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(entry => entry.id)")
    assert len(ids) == len(set(ids))

    shown.locator(".phases .cell").first.hover()
    assert about.is_visible()
    for text in ("weight decay 0", "seed 0", "seed 2", "memorizing", "ID 0."):
        assert text in about.inner_text()
    shown.mouse.move(0, 0)
    assert not about.is_visible()

    # Tab stops once in each figure; arrow keys move on from there
    figures = shown.locator(".diagrams figure")
    assert shown.locator(".cell[tabindex='0']").count() == figures.count() == 7
    shown.locator(".ood-accuracy .cell[tabindex='0']").focus()
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowUp")
    focused = shown.evaluate("document.activeElement.getAttribute('aria-label')")
    assert " 0.4, weight decay 0.01: 2 composite, 1 symmetric" in focused
    shown.keyboard.press("Enter")
    assert shown.locator(".cell.picked").count() == 7  # the same cell in every figure
    assert shown.locator("#run-table tr.picked").count() == 3
    assert shown.locator(".cell[aria-pressed='true']").count() == 7
    shown.locator("input[name=picked]").check()
    assert rows.count() == 3
    assert shown.locator("output").inner_text() == "3 of 48 runs"
    shown.keyboard.press("Escape")
    assert (shown.locator(".picked").count(), about.is_visible(), rows.count()) == (0, False, 48)

    link = shown.locator("#run-table a")
    assert (link.count(), link.evaluate("link => decodeURI(link.href)")) == (
        1, (written[0].parents[1] / "a sweep/runs" / link.inner_text() / "report.html").as_uri()
        .replace("%20", " "),
    )  # fmt: skip
    column = shown.locator("#run-table [data-measure=id_accuracy]")
    for n, sign in enumerate((1, -1)):
        shown.locator("#run-table .sort", has_text="ID accuracy").click()
        values = [text.strip() for text in column.all_inner_texts()]
        shares = [sign * float(text) for text in values if text != "\N{EN DASH}"]
        assert shares == sorted(shares), n
    shown.select_option("select[name=state]", "diverged")
    assert rows.count() == 2
    shown.select_option("select[name=state]", "")
    shown.select_option("select[name=status]", "failed")
    assert rows.count() == 1
    assert shown.locator("h1").inner_text() == f"Phases of {HOSTILE}"
    assert shown.evaluate(overflow) == 0
    assert watched.complaints == []
    assert watched.requests == [written[0].as_uri()]
    context.close()


def test_touch_and_a_page_without_its_script(browser: Any, written: list[Path]) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True)
    context.set_default_timeout(120_000)  # milliseconds
    shown = context.new_page()
    shown.goto(written[0].as_uri())
    shown.locator(".stable-rank .cell").nth(3).tap()
    box = shown.locator("#about").bounding_box()
    assert 0 <= box["x"] < box["x"] + box["width"] <= 390
    assert 0 <= box["y"] < box["y"] + box["height"] <= 800
    shown.locator("#about .close").tap()
    assert not shown.locator("#about").is_visible()
    context.close()
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(120_000)  # milliseconds
    shown = context.new_page()
    shown.goto(written[0].as_uri())
    assert shown.locator(".picture svg").count() == 7
    assert not shown.locator(".filters").is_visible()
    context.close()


def test_a_task_without_anchors_is_not_told_of_pairs(tmp_path: Path) -> None:
    settings = [(seed, gamma) for seed in range(2) for gamma in (0.3, 0.8)]
    rows = [done(seed, gamma=gamma, ood=0.1, commutativity=None) for seed, gamma in settings]
    page = write_diagrams(rows, tmp_path / "made")[0].read_text()
    assert "examples of what training leaves out" in page
    told = " ".join(re.findall("<figcaption>(.*?)</figcaption>", page, re.DOTALL))
    assert told
    assert not re.search("unseen pairs|test keys|symmetric", told)
