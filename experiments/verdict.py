"""The verdict from the mechanism against behaviour, on runs that it was not fitted on.

Beside it rules that know less, its thresholds fitted anew, and how early in training it tells what
a run becomes.
"""

import section
from anchor_interp._util.errors import ConfigError
from papers.figures import confusion, development, early
from papers.page import FITTED, JUDGED, SECOND, read_ledger
from papers.tables import checkpoints_table, read_checkpoints
from papers.verdict_score import fit_thresholds, fitted_accuracy


def draw(data: section.Data) -> section.Panels:
    """The confusion matrix and, from the second look, the verdict along training."""
    ledger = read_ledger(data.scale, data.place)
    score, second = ledger.verdict, ledger.second_look
    if score is None:
        raise ConfigError(
            f"the table of {JUDGED} holds too few phases with today's fingerprint; train and "
            "measure this study first"
        )
    print(f"fitted: {fit_thresholds(data.rows(FITTED))}")
    on_fitted, left_out = fitted_accuracy(data.rows(FITTED))
    print(f"{FITTED}: {on_fitted:.2f}, {left_out:.2f} if each run is left out of the fit in turn")
    looks = {JUDGED: score} if second is None else {JUDGED: score, SECOND: second}
    for name, found in looks.items():
        for rule in found.rules:
            print(f"{name}: {rule.rule}: {rule.accuracy:.2f} ({rule.low:.2f} to {rule.high:.2f})")
        for run in found.disagreements:
            behaviour = f"{run.reason}; {run.behaviour}"
            print(f"{name}: {run.settings}: {run.phase}, verdict {run.verdict} ({behaviour})")
    first = ("runs by phase and verdict", confusion(score))
    if second is None:  # its runs have no fingerprint of today
        return [[first]]
    along = checkpoints_table(data.place, SECOND)
    checkpoints = read_checkpoints(along) if along.is_file() else ()
    known = second.accuracy_of("settings-here")
    numbers = {"noise_share": "noise", "order_first": "order", "virtual_rule": "virtual anchors"}
    return [
        [
            first,
            ("the verdict along training", early(ledger.early, known)),
        ],
        [("by final phase", development(data.rows(SECOND), checkpoints, numbers))],
    ]


if __name__ == "__main__":
    section.main(draw, FITTED, JUDGED, SECOND)
