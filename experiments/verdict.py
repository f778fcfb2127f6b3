"""The verdict from the mechanism against behaviour, on runs of other seeds, widths and layouts.

Beside it rules that know less, and how early in training it tells what a run becomes.
"""

import section
from anchor_interp._util.errors import ConfigError
from papers.figures import confusion, development, early
from papers.page import FITTED_ON, HELD_OUT, read_ledger
from papers.tables import checkpoints_table, read_checkpoints


def draw(data: section.Data) -> section.Panels:
    """The confusion matrix, and the verdict along training."""
    ledger = read_ledger(data.scale, data.place)
    score = ledger.verdict
    if score is None:
        raise ConfigError("the tables hold too few phases for a verdict; train the studies first")
    for rule in score.rules:
        print(f"{rule.rule}: {rule.accuracy:.2f} ({rule.low:.2f} to {rule.high:.2f})")
    for run in score.disagreements:
        print(f"{run.settings}: {run.phase}, verdict {run.verdict} ({run.reason}; {run.behaviour})")
    along = checkpoints_table(data.place, HELD_OUT)
    checkpoints = read_checkpoints(along) if along.is_file() else ()
    numbers = {"noise_share": "noise", "value": "equal values", "answer": "equal answers"}
    return [
        [
            ("runs by phase and verdict", confusion(score)),
            ("the verdict along training", early(ledger.early, score.accuracy_of("settings-here"))),
        ],
        [("by final phase", development(data.rows(HELD_OUT), checkpoints, numbers))],
    ]


if __name__ == "__main__":
    section.main(draw, HELD_OUT, *FITTED_ON)
