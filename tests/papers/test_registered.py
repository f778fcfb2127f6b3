"""The claims that were written down before their runs."""

import tomllib
from pathlib import Path

import pytest

from papers import claims

FILE = Path(claims.__file__).with_name("registered.toml")
CLAIMS = tomllib.loads(FILE.read_text(encoding="utf-8"))
FIELDS = {
    "by", "figure", "quote", "sentence", "predictor", "statistic", "stratum", "studies", "least",
    "n", "spread", "finds",
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_a_registered_claim_says_all_that_judges_it(name: str) -> None:
    claim = CLAIMS[name]
    assert set(claim) >= FIELDS
    assert claim["by"] in ("paper", "ours")
    assert claim["quote"] or claim["by"] == "ours", "a paper's claim quotes the paper"
    assert 0 < claim["finds"] < 1
