"""The verdict from the mechanism against behaviour, on runs that it was not fitted on.

Beside it rules that know less, and its lines fitted anew.
"""

import section
from anchor_interp._util.errors import ConfigError
from papers.figures import confusion
from papers.page import read_ledger
from papers.tables import read_study
from papers.verdict_score import fit_lines, fitting_rows, left_out_accuracy


def draw(data: section.Data) -> section.Panels:
    """Runs by phase and verdict."""
    score, own = read_ledger(data.scale, data.place).verdict, data.place / "verdict.csv"
    if score is None:
        raise ConfigError(f"{own} holds too few phases; train and measure its runs first")
    names = ("settings", "settings-judging")
    fitted = fitting_rows({name: data.rows(name) for name in names}, read_study(own))
    for name, line in fit_lines(fitted).items():
        print(f"fitted: {name} {line}")
    leaning, coverage, named = left_out_accuracy(fitted)
    print(f"left out of the fit: {leaning:.2f}; {named:.2f} of the {coverage:.0%} that it names")
    print(f"judged: it names {score.coverage:.0%}; OOD of mixtures {score.mixtures}")
    for rule in score.rules:
        print(f"judged: {rule.rule}: {rule.accuracy:.2f} ({rule.low:.2f} to {rule.high:.2f})")
    for run in score.disagreements:
        behaviour = f"{run.reason}; {run.behaviour}"
        print(f"judged: {run.settings}: {run.phase}, verdict {run.verdict} ({behaviour})")
    return [[("runs by phase and verdict", confusion(score))]]
