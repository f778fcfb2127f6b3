"""The complexity-control paper's figure 3 on made-up rows, and what figure 4 draws."""

import itertools
from typing import Any

import numpy as np
import pytest
from findings import told

from claim_effects import Row
from claims import judge
from complexity_control.fig3_phases import CLAIMS, in_range
from complexity_control.fig4_masks import mask_drawing
from drawing import drawn_models
from studies import Data

CLAIM = [claim for claim in CLAIMS if claim.name == "c4-phases"]
ORDER = {"memorizing": 0.3, "composite": 0.5, "symmetric": 0.5, "inferential": 0.7}


def made_up(grid: dict[str, float], random: dict[str, float]) -> dict[str, list[Row]]:
    """Runs of every phase with about these gammas, in the grid and over random settings."""
    generator = np.random.default_rng(0)
    return {
        study: [
            {"run_id": f"{study}-{phase}-{seed}", "status": "done", "censored": False,
             "seed": 10 + seed, "phase": phase, "task": "complexity-control",
             "normalization": "pre", "gamma": gamma + generator.normal(0, 0.05),
             "weight_decay": 0.01, "n_layers": 2, "d_model": 128, "lr": 1e-3, "steps": 3_000,
             "n_sequences": 10_000, "gamma_qk": None}
            for (phase, gamma), seed in itertools.product(gammas.items(), range(40))
        ]
        for study, gammas in (("decay", grid), ("settings", random), ("settings-judging", {}),
                              ("settings-pre", {}))
    }  # fmt: skip


def test_the_whole_order_is_what_the_weakest_step_shows() -> None:
    found = judge(CLAIM, made_up(ORDER, ORDER))["c4-phases"]
    assert found.verdict == "supported"
    assert told(found.finding).effect == pytest.approx(0.2, abs=0.03)
    assert {part.verdict for part in found.parts.values()} == {"supported"}


def test_one_step_the_other_way_round_in_one_design_is_enough_against_it() -> None:
    back = ORDER | {"inferential": 0.4}
    found = judge(CLAIM, made_up(back, ORDER))["c4-phases"]
    assert told(found.finding).effect == pytest.approx(-0.1, abs=0.03)
    assert found.verdict != "supported"
    assert found.parts["random settings"].verdict == "supported"
    assert found.parts["grid"].verdict == "reversed"


def test_gamma_is_judged_over_the_papers_range() -> None:
    rows = made_up(ORDER, ORDER)["decay"]
    kept = in_range([row | {"study": "decay", "gamma": g} for row, g in zip(
        rows, (0.3, 0.4, 0.6, 0.8, 0.9), strict=False)])  # fmt: skip
    assert [row["gamma"] for row in kept] == [0.4, 0.6, 0.8]


def test_a_mask_cuts_what_leaves_the_hidden_token() -> None:
    (axes,) = mask_drawing(3).axes
    cut: list[Any] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert {tuple(line.get_xdata()) for line in cut} == {(3, 4)}
    assert len(cut) == 2  # a layer each


@pytest.mark.parametrize(("paper", "phases", "width"), [
    ("complexity_control", ("memorizing", "composite", "symmetric", "inferential"), None),
    ("neurips", ("inferential", "symmetric"), 128),
])  # fmt: skip
def test_the_models_of_a_figure_have_one_layout_and_the_phase_of_their_name(
    paper: str, phases: tuple[str, ...], width: int | None
) -> None:
    runs = drawn_models(Data(), paper, *phases)
    assert tuple(run.phase for run in runs) == phases
    assert {run.config.model.normalization for run in runs} == {"post"}
    assert {run.config.model.n_layers for run in runs} == {2}
    assert len({run.config.task for run in runs}) == 1
    assert width is None or {run.config.model.d_model for run in runs} == {width}
