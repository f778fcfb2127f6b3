"""Complexity-control paper, section VIII: fitting speed (figures 8A, 8B) and noise detection."""

from neurips_6 import LEVELS, speed
from papers.claims import of_three_and_four
from papers.figures import pairs_learned, strips
from section import Data, Panels, run_section

SCORES = {"auroc_late": "late", "auroc_loss": "mean loss", "auroc_final": "final loss"}


def draw(data: Data) -> Panels:
    """Figure 8A, figure 8B, and the areas under the ROC curve of every task."""
    areas = {}
    for end, against_whom in (("", "all"), ("_neighbours", "neighbours"), ("_strangers", "others")):
        for name, title in SCORES.items():
            found = [
                row[name + end] for row in data.rows("noise") if row.get(name + end) is not None
            ]
            areas[f"{title}\n{against_whom}"] = found
    broken = [row for row in data.rows("pairs") if row["complexity"]]
    return [
        [(f"reasoning complexity, loss {LEVELS[name]}", speed(data, name)) for name in LEVELS],
        [
            (
                "(3, 4) and (4, 3) broken; pairs of 3 and 4 in colour",
                pairs_learned(broken, of_three_and_four),
            )
        ],
        [("broken groups found, task by task", strips(areas, "AUROC", reference=0.5))],
    ]


if __name__ == "__main__":
    title = "Complexity-control paper, section VIII"
    raise SystemExit(run_section("control_8", title, ["complexity", "pairs", "noise"], draw))
