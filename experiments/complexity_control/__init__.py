"""The figures of the complexity-control paper; a file has a figure's runs, claims and drawing.

*Complexity Control Facilitates Reasoning-Based Compositional Generalization in Transformers*.
"""

from collections.abc import Callable
from typing import Any

from anchor_interp.runs.config import override
from anchor_interp.runs.presets import preset
from effects import Row, Rows, equal

# Where runs on the paper's anchor task start: two pre-LayerNorm layers of one head.
CONTROL = override(
    preset("inferential", batch_size=128, log_every=100, eval_every=500),
    checkpoint_every=3000, gamma=0.5, weight_decay=0.01,
)  # fmt: skip
LARGE, SMALL = 0.3, 0.7  # the gamma of a large and of a small initialisation on it
PHASE_OF = {"memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3}  # section IV


def holding(setting: str) -> Callable[[Rows], list[Row]]:
    """The rows with their design, and what is held in a grid: a setting, nothing at random."""

    def held(rows: Rows) -> list[Row]:
        return [
            row | ({"design": "grid", "held": row[setting]} if row["study"] == "decay"
                   else {"design": "random settings", "held": None})
            for row in rows
        ]  # fmt: skip

    return held


# Claims over gamma and weight decay: the grid of figure 3 and random settings, pre-LayerNorm.
IN_PRE: dict[str, Any] = {
    "runs": ("decay", "settings", "settings-judging", "settings-pre"),
    "elsewhere": ("settings-post", "settings-post-again"),
    "where": equal(task="complexity-control", normalization="pre"),
    "also": ("task", "normalization"),
}
OF_GRID: dict[str, Any] = IN_PRE | {"apart": ("design",), "cluster": ("seed",)}
AT_EQUAL_DECAY: dict[str, Any] = OF_GRID | {"select": holding("weight_decay")}
AT_EQUAL_GAMMA: dict[str, Any] = OF_GRID | {"select": holding("gamma")}
KNOWN_PRE = ("decay", "settings", "settings-judging")
