"""Figures of runs: accuracy by what a task's errors are counted by, and the plane of errors."""

import string
from dataclasses import replace
from typing import Any, cast

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
    plane_of_errors,
    unseen_answers,
)
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run
from anchor_interp.tasks.examples import Plane, SplitRole


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


def drawn(*arguments: Any, square: tuple[int, int] | None = None) -> tuple[Any, Any]:
    """The image of a figure and its axes."""
    axes = plane_of_errors(Plane("a", "b", square), *arguments).axes[0]
    return axes.images[0], axes


def test_every_pair_of_a_small_plane_is_a_cell() -> None:
    a, b = np.divmod(np.arange(400), 20)
    wrong = (a >= 8) & (a <= 12) & (b == 9)
    image, axes = drawn(a, b, ~wrong, square=(8, 12))
    shares = image.get_array()
    assert shares.shape == (20, 20)
    assert np.argwhere(shares == 0).tolist() == [[9, column] for column in range(8, 13)]  # [b, a]
    assert image.get_extent() == [-0.5, 19.5, -0.5, 19.5]
    assert image.origin == "lower"
    (frame,) = axes.patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((7.5, 7.5), 5, 5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("a", "b")


def test_a_large_plane_is_binned() -> None:
    a, b = np.divmod(np.arange(1_000_000), 1_000)
    right = a % 10 < 3
    image, axes = drawn(a, b, right)
    assert image.get_array().shape == (100, 100)
    assert np.allclose(image.get_array(), 0.3)
    assert not axes.patches
    few = np.random.default_rng(0).integers(0, 1_000, (2, 900))
    image, axes = drawn(*few, few[0] > 500, square=(400, 600))
    cells = image.get_array()
    assert cells.shape[0] == cells.shape[1] <= 30
    assert axes.get_xlim() == (-0.5, few.max() + 0.5)


def test_places_without_an_example_are_left_out() -> None:
    a, b = np.array([0, 0, 3]), np.array([0, 0, 1])
    image, _ = drawn(a, b, np.array([True, False, True]))
    found = image.get_array().filled(np.nan)
    assert found[0, 0] == pytest.approx(2 / 3)  # one cell: there are three examples
    image, _ = drawn(a.repeat(6), b.repeat(6), np.array([True, False, True]).repeat(6))
    found = image.get_array().filled(np.nan)
    assert found.shape == (4, 4)
    assert (found[0, 0], found[1, 3]) == (0.5, 1)
    assert np.isnan(found).sum() == 14
