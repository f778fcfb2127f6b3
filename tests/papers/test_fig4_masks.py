"""Figure 4 of the complexity-control paper: what a mask cuts, and one layout for all phases."""

from typing import Any

from complexity_control import post_models
from complexity_control.fig4_masks import mask_drawing
from studies import Data


def test_a_mask_cuts_what_leaves_the_hidden_token() -> None:
    (axes,) = mask_drawing(3).axes
    cut: list[Any] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert {tuple(line.get_xdata()) for line in cut} == {(3, 4)}
    assert len(cut) == 2  # a layer each


def test_the_models_of_a_figure_have_one_layout_and_the_phase_of_their_name() -> None:
    phases = ("memorizing", "composite", "symmetric", "inferential")
    runs = post_models(Data(), *phases)
    assert tuple(run.phase for run in runs) == phases
    assert {run.config.model.normalization for run in runs} == {"post"}
    assert {run.config.model.n_layers for run in runs} == {2}
    assert len({run.config.task for run in runs}) == 1
