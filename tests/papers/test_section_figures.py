"""Figures of sections: what is boxed, cut and hollow follows from the rule and the rows."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

import anchor_interp as ai
import section
import sections
from papers.figures import mask_drawing, over_depth, triangles


def test_red_boxes_are_where_the_rule_gives_equal_values() -> None:
    """f(36; 3, 3) = f(30; 2, 2) is boxed in the first column (NeurIPS paper, figure 4)."""
    task, keys = ai.TASKS["neurips"], range(30, 41)
    pairs = list(itertools.chain(sections.LOW, sections.UP))
    items: list[Any] = list(itertools.product(pairs, keys))
    values = [int(task.composed(pair, np.array([key]))[0]) for pair, key in items]
    cosines = np.equal.outer(values, values).astype(float)
    similarity: Any = SimpleNamespace(
        anchors=[pair for pair, _ in items], keys=np.array([key for _, key in items]),
        values=np.array(values), cosine=cosines, centred=-cosines,
    )  # fmt: skip
    axes = triangles(similarity, sections.LOW, sections.UP, centred=False).axes[0]
    patches: list[Any] = [*axes.patches]
    boxes = {(round(box.get_y() + 0.5), round(box.get_x() + 0.5)) for box in patches}
    below = {(column + 6, column) for column in range(5)}
    above = {(row, row + 3) for row in range(8)}
    assert boxes == below | above
    shown = np.asarray(axes.images[0].get_array())
    assert {tuple(place) for place in np.argwhere(shown == 1)} == boxes


def test_the_pdf_has_a_page_a_panel_and_leaves_the_panels_as_they_were() -> None:
    panels = [[("(a) one", mask_drawing(3)), ("(b) two", mask_drawing(4))], [("", mask_drawing(3))]]
    picture, file = section.montage(panels), section.pages(panels)
    assert file.count(b"/Type /Page ") == 3
    assert b"/Type3" not in file  # letters that some publishers refuse
    assert section.montage(panels) == picture


def test_a_mask_cuts_what_leaves_the_hidden_token() -> None:
    (axes,) = mask_drawing(3).axes
    cut: list[Any] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert {tuple(line.get_xdata()) for line in cut} == {(3, 4)}
    assert len(cut) == 2  # a layer each


def test_a_run_that_never_came_there_is_hollow() -> None:
    rows = [
        {"run_id": str(seed), "n_layers": 2, "complexity": 1.0, "steps": 100, "final_loss": 0.1,
         "steps_to_loss": 40.0 if seed else None}
        for seed in range(3)
    ]  # fmt: skip
    (axes,) = over_depth(rows).axes
    dots: list[Any] = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() == "none" for line in dots] == [True, False, False]
    assert sorted(float(line.get_ydata()[0]) for line in dots) == [40, 40, 100]
