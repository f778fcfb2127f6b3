"""The verdict from the mechanism against behaviour, on runs of other seeds, widths and layouts.

Beside it rules that know less, and how early in training it tells what a run becomes.
"""

from anchor_interp.papers.figures import confusion, early
from anchor_interp.papers.page import FITTED_ON, HELD_OUT, make_ledger
from anchor_interp.papers.tables import checkpoints_table, read_study
from section import Data, Panels, run_section


def draw(data: Data) -> Panels:
    """The confusion matrix, and the verdict along training."""
    along = checkpoints_table(data.place, HELD_OUT)
    ledger = make_ledger(data.scale, data.tables, read_study(along) if along.is_file() else ())
    score = ledger.verdict
    if score is None:
        return []
    for rule in score.rules:
        print(f"{rule.rule}: {rule.accuracy:.2f} ({rule.low:.2f} to {rule.high:.2f})")
    for run in score.disagreements:
        print(f"{run.settings}: {run.phase}, verdict {run.verdict} ({run.reason}; {run.behaviour})")
    settings = next(rule for rule in score.rules if rule.rule.startswith("gamma"))
    return [
        [
            ("runs by phase and verdict", confusion(score)),
            ("the verdict along training", early(ledger.early, settings.accuracy)),
        ]
    ]


if __name__ == "__main__":
    studies = [HELD_OUT, *FITTED_ON]
    raise SystemExit(run_section("verdict", "The verdict from the mechanism", studies, draw))
