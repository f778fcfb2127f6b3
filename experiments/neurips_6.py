"""NeurIPS paper, section 6: steps to fit data of growing inferential complexity (figure 6)."""

from anchor_interp.papers.figures import against
from section import Data, Panels, run_section


def draw(data: Data) -> Panels:
    """Figure 6: one line a size of the initialisation; runs that never fitted stand at the end."""
    figure = against(
        data.rows("complexity"),
        "complexity",
        lambda row: row.get("steps_to_loss") or row["steps"],
        "gamma",
        labels=("groups of pairs that break the rule", "steps to a training loss of 0.05"),
        log=True,
        name=lambda gamma: f"gamma {gamma:g}",
    )
    return [[("training speed and inferential complexity", figure)]]


if __name__ == "__main__":
    raise SystemExit(run_section("neurips_6", "NeurIPS paper, section 6", ["complexity"], draw))
