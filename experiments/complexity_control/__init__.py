"""The figures of the complexity-control paper; a file has a figure's runs, claims and drawing.

*Complexity Control Facilitates Reasoning-Based Compositional Generalization in Transformers*.
"""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from anchor_interp.sweeps.diagrams import Diagram, phase_diagrams
from claim_effects import Row, Rows, Trend, equal
from random_settings import IN_CONTROL, POST
from studies import Data, override, preset

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
KNOWN_PRE = ("decay", "settings", "settings-judging")
POST_RUNS: dict[str, Any] = {"studies": POST, "where": IN_CONTROL}  # random settings that judge


def over(setting: str, number: str, **words: Any) -> Trend:
    """The trend of a number with gamma or weight decay: at equal others in the grid, and random."""
    other = "gamma" if setting == "weight_decay" else "weight_decay"
    words = {"select": holding(other), "within": ("normalization", "held")} | words
    return Trend(number, setting, **OF_GRID | words)


def plane(data: Data, **where: tuple[float, ...]) -> Diagram:
    """The phase diagram of the grid over gamma and weight decay, or a row of it."""
    axes = {"x": "gamma"} if where else {"x": "gamma", "y": "weight_decay"}
    return phase_diagrams(data.rows("decay"), **axes, where=where).diagrams[0]


def span(values: Sequence[float]) -> str:
    """Mean and range as text; empty without values."""
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if len(values) else ""
