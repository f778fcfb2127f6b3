"""The expectations of the two diagrams, on tables whose answer is known."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sweep_rows import done, not_done

from papers.diagram_claims import DIAGRAMS, spearman
from papers.rows import Row

GAMMAS = (0.3, 0.5, 0.7, 0.9)
Make = Callable[..., Row]


def memorizing(**where: Any) -> Row:
    return done(seen=0.1, ood=0.01, rank=40.0, **where)


def composite(**where: Any) -> Row:
    return done(ood=0.1, commutativity=0.2, rank=20.0, **where)


def inferential(**where: Any) -> Row:
    return done(ood=0.9, rank=3.0, **where)


def other(**where: Any) -> Row:
    """Poor on seen pairs, good on unseen ones: not phase 2."""
    return done(seen=0.5, ood=0.9, **where)


def undertrained(**where: Any) -> Row:
    return done(train=0.3, seen=0.3, **where)


def unfinished(**where: Any) -> Row:
    return not_done("failed", **where)


def decay(rows: Mapping[float, str]) -> list[Row]:
    """Three seeds of every cell; a row's letters are the cells along gamma."""
    make: dict[str, Make] = {
        "M": memorizing, "C": composite, "I": inferential, "O": other, "U": undertrained,
        "F": unfinished,
    }  # fmt: skip
    return [
        make[letter](seed=seed, weight_decay=value, gamma=gamma)
        for value, letters in rows.items()
        for gamma, letter in zip(GAMMAS, letters, strict=True)
        for seed in range(3)
    ]


def met(name: str, rows: list[Row]) -> list[bool]:
    """Which expectations of a diagram its rows meet, in order."""
    return [check(rows)[0] for check in DIAGRAMS[name].values()]


def verdicts(rows: Mapping[float, str]) -> list[bool]:
    return met("decay", decay(rows))


def test_runs_like_the_papers_meet_every_expectation() -> None:
    assert all(verdicts({0.0: "MMCI", 0.01: "MCII", 0.1: "MCII", 1.0: "MIII"}))


@pytest.mark.parametrize(
    ("middle", "agrees"),
    [("MCII", True), ("CCCC", False), ("MMII", False), ("CMII", False), ("MICI", False),
     ("MUII", False), ("MOII", False), ("MFII", False), ("UCII", False), ("MCUI", True)],
)  # fmt: skip
def test_phase_2_lies_between_the_others(middle: str, agrees: bool) -> None:
    assert verdicts({0.0: "MMCI", 0.01: middle, 1.0: "MIII"})[5] is agrees


@pytest.mark.parametrize(
    ("low", "high", "agrees"),
    [("MCCI", "MIII", True), ("MIII", "MIII", False), ("MIII", "MCCI", False),
     ("MCCC", "MIII", False), ("MCCI", "MCCC", False)],
)  # fmt: skip
def test_more_decay_needs_less_gamma(low: str, high: str, agrees: bool) -> None:
    assert verdicts({0.0: "MMCI", 0.01: low, 1.0: high})[3] is agrees


def test_corners_trends_and_ranks_can_disagree() -> None:
    turned = verdicts({0.0: "IICM", 0.01: "IICM", 0.1: "IICM", 1.0: "IIIM"})
    assert turned[:3] == [False, False, False]
    assert turned[4] is False


def test_runs_that_did_not_end_count_against_a_majority() -> None:
    rows = decay({0.0: "MMCI", 0.01: "MCII", 1.0: "MIII"})
    corner = [row for row in rows if (row["gamma"], row["weight_decay"]) == (0.3, 0.0)]
    for row in corner[:2]:
        row.update(unfinished(gamma=0.3, weight_decay=0.0))
    assert met("decay", rows)[0] is False


def depth(shares: Mapping[float, tuple[float, float, float]]) -> list[Row]:
    """ID, inferential and symmetric accuracy along gamma, at every depth alike."""
    return [
        done(seed, seen=seen, ood=ood, symmetric=symmetric, gamma=gamma, n_layers=layers)
        for gamma, (seen, ood, symmetric) in shares.items()
        for layers in (2, 3, 4)
        for seed in range(3)
    ]


PAPER_LIKE = {0.3: (0.5, 0.0, 0.9), 0.5: (1, 0.2, 0.7), 0.7: (1, 0.6, 0.3), 0.9: (1, 0.9, 0.0)}


def test_depth_like_the_paper_agrees() -> None:
    assert met("depth", depth(PAPER_LIKE)) == [True, True, True]


@pytest.mark.parametrize(
    ("change", "agree"),
    [
        ({0.3: (1.0, 0.0, 0.9)}, [True, True, False]),  # nothing shaded
        ({0.9: (0.5, 0.9, 0.0)}, [True, True, False]),  # shaded at the wrong end
        ({0.9: (1.0, 0.0, 0.0), 0.3: (0.5, 0.9, 0.9)}, [False, True, True]),
        ({0.9: (1.0, 0.9, 1.0), 0.7: (1.0, 0.6, 0.95)}, [True, False, True]),
    ],
)
def test_depth_can_disagree(
    change: dict[float, tuple[float, float, float]], agree: list[bool]
) -> None:
    assert met("depth", depth(PAPER_LIKE | change)) == agree


def test_a_number_that_never_changes_has_no_trend() -> None:
    assert spearman([{"x": i, "y": 1.0} for i in range(9)], "x", "y") == (9, 0.0, 1.0)
    assert spearman([{"x": 1, "y": None}], "x", "y") == (0, 0.0, 1.0)
