"""Figures of runs: accuracy by what a task's errors are counted by."""

import string
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer

from anchor_interp.behaviour.phase import AspectScore, Evaluation, SplitScore
from anchor_interp.pages.run_figures import (
    along_curves,
    aspect_scores,
    aspects,
    known_offsets,
    unseen_answers,
)
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run
from anchor_interp.tasks.examples import SplitRole


def test_an_answer_is_told_whose_it_is() -> None:
    found = known_offsets(preset("inferential"), (3, 4))
    assert (found["x - 10"], found["x - 7"]) == ("the rule", "as for (2, 4)")
    assert known_offsets(preset("neurips-inferential"), (4, 3))["x - 6"] == "as for the other order"


def test_a_rare_answer_is_not_told_whose_it_is(finished_run: Run) -> None:
    config = preset("inferential")
    answers = replace(
        finished_run.evaluation.unseen[0], pair=(3, 4), offsets={"-7": 0.05, "-10": 0.04}
    )
    figure = unseen_answers(config, replace(finished_run.evaluation, unseen=(answers,)))
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["(3, 4): x - 7  as for (2, 4)", "(3, 4): x - 10"]


def split(name: str, role: SplitRole, *scores: AspectScore) -> SplitScore:
    return SplitScore(name, role, 0.5, 1.0, 100, scores)


def evaluation(run: Run, *splits: SplitScore) -> Evaluation:
    return replace(run.evaluation, splits=splits)


def test_texts_are_bars_with_the_hardest_at_the_top(finished_run: Run) -> None:
    easy, hard = (AspectScore("built", text, None, a, 9) for text, a in (("b", 0.9), ("c", 0.1)))
    only_id = AspectScore("built", "a", None, 0.5, 3)
    found = evaluation(
        finished_run,
        split("train", "train", AspectScore("unseen here", "a", None, 1.0, 1)),
        split("id", "id", only_id, easy, hard),
        split("ood", "ood", replace(easy, accuracy=0.7)),
    )
    assert aspects(found) == ["built"]
    (axes,) = aspect_scores(found, "built").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "a", "b"]
    known, unknown = (cast(BarContainer, bars) for bars in axes.containers)
    assert [bar.get_width() for bar in known] == [0.5, 0.9, 0.1]
    assert [bar.get_width() for bar in unknown] == [0.7]
    assert [text.get_text() for text in axes.texts] == ["3", "9", "9", "9"]
    assert axes.get_yticks().tolist() == [0, 1.6, 3.7]  # "b" has two bars, the others one
    assert [to_hex(bars[0].get_facecolor()) for bars in (known, unknown)] == ["#009e73", "#d55e00"]


def test_the_rarest_of_many_texts_are_left_out(finished_run: Run) -> None:
    scores = [
        AspectScore("letter", letter, None, 0.5, number + 1)
        for number, letter in enumerate(string.ascii_letters)
    ]
    found = evaluation(finished_run, split("id", "id", *scores))
    (axes,) = aspect_scores(found, "letter").axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == sorted(string.ascii_letters[-30:])
    assert "22 rarer ones left out" in axes.get_xlabel()


def test_numbers_are_lines_above_how_many_examples_there_are(finished_run: Run) -> None:
    ranges = [AspectScore("size", low, low + 3, low / 10, low + 1) for low in (0, 4, 8)]
    found = evaluation(
        finished_run,
        split("id", "id", *ranges),
        split("far", "ood", replace(ranges[0], value=20, high=20)),
        split("deep", "ood", ranges[1]),
    )
    axes, counts = aspect_scores(found, "size").axes
    lines, numbers = axes.get_lines(), counts.get_lines()
    assert [line.get_label() for line in lines] == ["ID, id", "OOD, far", "OOD, deep"]
    assert len({line.get_color() for line in lines}) == 3
    assert np.asarray(lines[0].get_xdata()).tolist() == [1.5, 5.5, 9.5]
    assert np.asarray(lines[0].get_ydata()).tolist() == pytest.approx([0, 0.4, 0.8])
    assert np.asarray(numbers[0].get_ydata()).tolist() == [1, 5, 9]
    assert np.asarray(lines[1].get_xdata()).tolist() == [20]


def test_runs_along_training_have_a_line_each_and_one_legend() -> None:
    """Lines of a number share its colour; a failure is a gap and a cross."""
    rows = [
        {"run_id": run, "step": step, "a": a, "b": -a, "reason": None if a == a else "failed"}
        for run, values in (("one", (1.0, 2.0)), ("two", (float("nan"), 4.0)))
        for step, a in zip((0, 10), values, strict=True)
    ]
    (axes,) = along_curves(rows).axes
    *lines, failed = axes.lines
    drawn = np.array([line.get_ydata() for line in lines], dtype=float)
    np.testing.assert_array_equal(drawn, [[1, 2], [-1, -2], [np.nan, 4], [np.nan, -4]])
    assert [line.get_color() for line in lines[:2]] == [line.get_color() for line in lines[2:]]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert np.asarray(failed.get_xdata()).tolist() == [0]
