"""Both papers, every claim with an effect: its effect, in units of the smallest that counts."""

import section
from papers.claims import judge_ledger
from papers.figures import forest
from papers.studies import STUDIES


def draw(data: section.Data) -> section.Panels:
    """The forest plot of the ledger."""
    return [[("every claim with an effect", forest(judge_ledger(data.tables)))]]


if __name__ == "__main__":
    section.main(draw, *STUDIES)
