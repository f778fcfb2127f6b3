"""Complexity-control paper, section VIII: fitting speed (figures 8A, 8B) and noise detection."""

import section
from neurips_6 import speed
from papers.figures import pairs_learned, strips
from papers.measures import LEVELS
from papers.rows import of_three_and_four

SCORES = {"auroc_late": "late", "auroc_loss": "mean loss", "auroc_final": "final loss"}
AGAINST = {"": "all", "_neighbours": "neighbours", "_strangers": "others"}


def draw(data: section.Data) -> section.Panels:
    """Figure 8A, figure 8B, and the areas under the ROC curve of every task."""
    areas = {
        f"{title}\n{whom}": [
            v for row in data.rows("noise") if (v := row.get(name + end)) is not None
        ]
        for end, whom in AGAINST.items()
        for name, title in SCORES.items()
    }
    broken = [row for row in data.rows("pairs") if row["complexity"]]
    pairs = pairs_learned(broken, of_three_and_four)
    return [
        [(f"reasoning complexity, loss {v}", speed(data, name)) for name, v in LEVELS.items()],
        [("(3, 4) and (4, 3) broken; pairs of 3 and 4 in colour", pairs)],
        [("broken groups found, task by task", strips(areas, "AUROC", reference=0.5))],
    ]


if __name__ == "__main__":
    section.main(draw, "complexity")
