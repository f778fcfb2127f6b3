"""The claims that the README names: every effect, in units of the smallest that counts."""

import re
from pathlib import Path

import section
from papers.claims import judge_ledger
from papers.figures import forest
from papers.studies import STUDIES

README = Path(__file__).parents[1] / "README.md"


def draw(data: section.Data) -> section.Panels:
    """The part of the forest plot that is about the README's sentences, in their order."""
    judged = judge_ledger(data.tables)
    text = README.read_text(encoding="utf-8")
    named = dict.fromkeys(re.findall(r"docs/claims\.md#([\w-]+)", text))
    return [[("what the papers say", forest({name: judged[name] for name in named}))]]


if __name__ == "__main__":
    section.main(draw, *STUDIES)
