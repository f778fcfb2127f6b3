"""The verdict from the mechanism against behaviour, on runs that it was not fitted on.

It prints the lines of the verdict, fitted anew.
"""

import section
from anchor_interp._util.errors import ConfigError
from papers.figures import confusion
from papers.page import read_ledger
from papers.tables import read_study
from papers.verdict_score import fit_lines, fitting_rows


def draw(data: section.Data) -> section.Panels:
    """Runs by phase and verdict."""
    score, own = read_ledger(data.scale, data.place).verdict, data.place / "verdict.csv"
    if score is None:
        raise ConfigError(f"{own} holds too few phases; train and measure its runs first")
    names = ("settings", "settings-judging")
    fitted = fitting_rows({name: data.rows(name) for name in names}, read_study(own))
    for name, line in fit_lines(fitted).items():
        print(f"fitted: {name} {line}")
    return [[("runs by phase and verdict", confusion(score))]]
