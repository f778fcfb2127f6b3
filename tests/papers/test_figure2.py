"""The script of figure 2, on synthetic tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neurips_4
import section
from anchor_interp.runs.config import RunConfig
from papers.rows import Row
from papers.studies import study_sweep

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


def test_the_script_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of_figure(config: RunConfig, draw: float) -> tuple[float, float]:
        gamma = config.init.gamma
        return gamma * draw, (1 - gamma) * draw

    tables = {name: table(name, of_figure) for name in ("figure2", "depth")}
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
