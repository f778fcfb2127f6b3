"""Figures: what is boxed, cut and hollow follows from the rule and the rows."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anchor_interp as ai
import common
import figure
from claims import judge
from complexity_control.fig4_masks import mask_drawing
from drawing import over_depth
from neurips.fig4_cosines import LOW, UP, triangles
from neurips.fig6_complexity import CLAIMS


def test_red_boxes_are_where_the_rule_gives_equal_values() -> None:
    """f(36; 3, 3) = f(30; 2, 2) is boxed in the first column (NeurIPS paper, figure 4)."""
    task, keys = ai.TASKS["neurips"], range(30, 41)
    pairs = list(itertools.chain(LOW, UP))
    items: list[Any] = list(itertools.product(pairs, keys))
    values = [int(task.composed(pair, np.array([key]))[0]) for pair, key in items]
    cosines = np.equal.outer(values, values).astype(float)
    similarity: Any = SimpleNamespace(
        anchors=[pair for pair, _ in items], keys=np.array([key for _, key in items]),
        values=np.array(values), cosine=cosines, centred=-cosines,
    )  # fmt: skip
    axes = triangles(similarity, LOW, UP, centred=False).axes[0]
    patches: list[Any] = [*axes.patches]
    boxes = {(round(box.get_y() + 0.5), round(box.get_x() + 0.5)) for box in patches}
    below = {(column + 6, column) for column in range(5)}
    above = {(row, row + 3) for row in range(8)}
    assert boxes == below | above
    shown = np.asarray(axes.images[0].get_array())
    assert {tuple(place) for place in np.argwhere(shown == 1)} == boxes


def test_the_pdf_has_a_page_a_panel_and_leaves_the_panels_as_they_were() -> None:
    panels = [[("(a) one", mask_drawing(3)), ("(b) two", mask_drawing(4))], [("", mask_drawing(3))]]
    picture, file = common.montage(panels), common.pages(panels)
    assert file.count(b"/Type /Page ") == 3
    assert b"/Type3" not in file  # letters that some publishers refuse
    assert common.montage(panels) == picture


def test_a_run_that_never_came_there_is_hollow() -> None:
    rows = [
        {"run_id": str(seed), "n_layers": 2, "complexity": 1.0, "steps": 100, "final_loss": 0.1,
         "steps_to_loss": 40.0 if seed else None}
        for seed in range(3)
    ]  # fmt: skip
    (axes,) = over_depth(rows).axes
    dots: list[Any] = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() == "none" for line in dots] == [True, False, False]
    assert sorted(float(line.get_ydata()[0]) for line in dots) == pytest.approx([40, 40, 100])


def test_a_script_draws_prints_and_names_a_missing_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit code of 0, a picture and the verdicts; of 2 or more and one line without tables."""
    script = str(Path(figure.__file__).parent / "neurips" / "fig6_complexity.py")
    monkeypatch.setattr(figure, "judge_all", lambda data, _: judge(CLAIMS, data))
    assert figure.main(script, ["--figures", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "complexity-large: not supported" in out
    assert (tmp_path / "neurips" / "fig6_complexity.png").read_bytes().startswith(b"\x89PNG")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert figure.main(script, ["--tables", str(empty), "--figures", str(tmp_path)]) != 0
    assert "no table of the study complexity-post; run this with --train" in capsys.readouterr().err
