"""The claims on drawings of unseen concepts, on made-up rows, and their figure."""

from pathlib import Path

import numpy as np
import pytest
from killed_training import config as of_preset

from anchor_interp.runs.config import override
from anchor_interp.runs.train import train
from claim_effects import Row
from claims import judge
from common import montage
from complexity_control.fig6_concepts import CLAIMS, concept_graph, draw, unseen
from concepts.drawings import drawings
from concepts.presets import TASKS
from measures import attributes
from studies import Data

SEEDS = range(1005, 1015)


def made_up(shapes: dict[float, float], *, trained: float = 1.0) -> list[Row]:
    """Rows with about these shares of right shapes, by gamma."""
    generator = np.random.default_rng(0)
    return [
        {
            "run_id": f"{gamma}-{seed}", "status": "done", "phase": None,
            "censored": trained < 0.9, "seed": seed, "gamma": gamma, "train_accuracy": trained,
            "ood_shape": (share := float(np.clip(mean + generator.normal(0, 0.03), 0, 1))),
            "ood_accuracy": share * 0.95,
        }
        for gamma, mean in shapes.items()
        for seed in SEEDS
    ]  # fmt: skip


def test_the_claim_can_be_supported_and_reversed() -> None:
    for small, verdict in ((0.9, "supported"), (0.0, "reversed")):
        found = judge(CLAIMS, {"concepts-judging": made_up({0.5: 0.3, 0.8: small})})
        assert [one.verdict for one in found.values()] == [verdict]


@pytest.mark.slow  # it trains the judge of pictures; tests/concepts draws and judges a run
def test_the_figure_shows_ones_own_run(tmp_path: Path) -> None:
    tiny = override(of_preset("concepts"), steps=4, eval_every=4)
    run = train(tiny, tmp_path / "one", device="cpu", quiet=True)
    numbers = attributes(run)
    assert set(numbers) == {
        f"{s}_{a}" for s in ("train", "ood") for a in ("shape", "size", "colour")
    }
    panels = draw(Data(tmp_path, [run]))
    assert [len(row) for row in panels] == [1, 1]
    assert panels[1][0][0] == f"(B) gamma {tiny.init.gamma:g}"
    assert montage(panels).startswith(b"\x89PNG")
    found = drawings(run, 2)
    (axes,) = unseen(found).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        title for title, role in zip(found.titles, found.roles, strict=True) if role == "tested"
    ]
    cube = concept_graph(TASKS["concepts"]).axes[0]
    assert len(cube.lines) == 12  # the edges of a cube
    dashed = [inset.get_xlabel() for inset in cube.child_axes
              if inset.spines["left"].get_linestyle() == "--"]  # fmt: skip
    assert dashed == ["circle small red", "circle small blue"]
