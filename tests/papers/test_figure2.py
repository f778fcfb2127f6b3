"""The scripts of figure 2 and of its factors, on synthetic tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neurips_4
import neurips_4_factors
import section
from anchor_interp.runs.config import RunConfig
from papers.figure2_runs import BASES, factor_levels, factor_runs
from papers.rows import Row
from papers.studies import SCALES, study_sweep

START = SCALES["tiny"].figure2
Answers = Callable[[RunConfig, float], tuple[float, float]]


def table(study: str, answers: Answers) -> list[Row]:
    """Finished runs of a study; ``answers`` gives the OOD and the symmetric accuracy of one."""
    generator, found = np.random.default_rng(0), []
    for name, config in study_sweep(study, "tiny").configs().items():
        ood, symmetric = answers(config, float(generator.uniform()))
        phase = "inferential" if ood >= 0.5 else "symmetric" if symmetric >= 0.5 else "composite"
        row: dict[str, Any] = {
            "run_id": name, "status": "done", "censored": False, "seed": config.seed,
            "phase": phase, "id_accuracy": 0.3 if config.init.gamma == 0.2 else 1.0,
            "ood_accuracy": ood, "symmetric_accuracy": symmetric, "commutativity": 0.5,
        }  # fmt: skip
        found.append(row | vars(config.model) | vars(config.init) | vars(config.train))
    return found


def of_factors(config: RunConfig, draw: float) -> tuple[float, float]:
    """Width turns inferential models symmetric, LayerNorm throws dice, all else does nothing."""
    inferential = config.model.n_layers == 3
    if config.model.normalization == "pre":
        return draw, 0.5 * draw
    if config.model.d_model == 400:
        inferential = False
    return (0.8, 0.05 * draw) if inferential else (0.05 * draw, 0.9)


def test_which_factor_moves_the_boundary() -> None:
    rows = table("factors", of_factors)
    found = {(level.factor, level.level): level for level in neurips_4_factors.levels(rows, "tiny")}
    assert found["base", "runs"].phases == {"inferential": "IIIII", "symmetric": "SSSSS"}
    assert not found["base", "runs"].effects
    assert not found["base", "runs"].says
    moved = found["width", "400"]
    assert moved.says == "moves"
    assert moved.effects["inferential", "ood_accuracy"].mean == pytest.approx(-0.8, abs=0.06)
    assert moved.effects["symmetric", "ood_accuracy"].mean == pytest.approx(0, abs=0.06)
    assert found["LayerNorm", "pre"].says == "moves"
    rest = {key: level.says for key, level in found.items() if key[0] not in ("base", "width")}
    del rest["LayerNorm", "pre"]
    assert set(rest.values()) == {"holds"}
    asked = {(factor, level) for factor, of in factor_levels(START).items() for level in of}
    assert asked == set(found) - {("base", "runs")}


def test_a_factor_that_scatters_is_open_and_one_without_runs_is_left_out() -> None:
    """Seeds of one level lie 0.4 apart: an interval that holds both 0 and 0.3."""
    level = factor_levels(START)["rate"]["x 1.5"]
    shaken = {run for base in BASES for run in factor_runs(START, base, level)}
    rows = table("factors", lambda *_: (0.4, 0.3))
    for index, row in enumerate(rows):
        if row["run_id"] in shaken:
            row["ood_accuracy"] = 0.4 + 0.5 * (index % 5 - 1.5) / 2.5
    kept = [row for row in rows if row["n_layers"] == 3 or not row["bias"]]
    found = {(x.factor, x.level): x for x in neurips_4_factors.levels(kept, "tiny")}
    assert found["rate", "x 1.5"].says == "open"
    assert found["biases", "with"].says == "open"  # one of the two cells is not there
    assert found["steps", "x 2"].says == "holds"


def test_both_scripts_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of_figure(config: RunConfig, draw: float) -> tuple[float, float]:
        gamma = config.init.gamma
        return gamma * draw, (1 - gamma) * draw

    tables = {"figure2": table("figure2", of_figure), "factors": table("factors", of_factors),
              "depth": table("depth", of_figure)}  # fmt: skip
    tables["paper-width"] = table("paper-width", of_figure)
    data = section.Data("tiny", tables, tmp_path)
    maps, every, _ = panels = neurips_4.draw(data)
    assert [title for title, _ in maps] == ["symmetric answers", "inferential answers"]
    (figure,) = (figure for _, figure in every)
    assert len(figure.axes) == 6
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert len(dots) == 7 * 27
    zone = "gamma 0.2 with 2 layers; gamma 0.2 with 3 layers; gamma 0.2 with 4 layers"
    assert f"the best of nine rates: {zone}. By every run: {zone}" in capsys.readouterr().out
    assert section.montage(panels).startswith(b"\x89PNG")
    (((_, figure),),) = panels = neurips_4_factors.draw(data)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert "width 400 (moves)" in labels
    assert "base runs" in labels
    assert "paper-width, gamma 0.5: " in capsys.readouterr().out
    assert section.montage(panels).startswith(b"\x89PNG")
