"""Both papers, claims on anchor tasks: every effect, in units of the smallest that counts."""

import section
from papers.claims import REALISTIC, judge_ledger
from papers.figures import forest
from papers.studies import STUDIES


def draw(data: section.Data) -> section.Panels:
    """The part of the forest plot that is about anchor tasks."""
    judged = judge_ledger(data.tables)
    shown = {name: each for name, each in judged.items() if name not in REALISTIC}
    return [[("claims on anchor tasks", forest(shown))]]


if __name__ == "__main__":
    section.main(draw, *STUDIES)
