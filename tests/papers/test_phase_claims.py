"""Claims that compare phases inside strata, on made-up tables of random settings."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from findings import told

from anchor_interp._util import statistics
from anchor_interp._util.errors import StoreError
from claim_effects import (
    Alike,
    Difference,
    Effect,
    Finding,
    Mean,
    Rise,
    Row,
    Rows,
    Trend,
    equal,
    two_samples,
)
from claims import Claim, Judgement, family, judge
from complexity_control.fig5_condensation import HALF_A_STEP, log_rank_share
from measures import rank_share
from random_settings import RUNS as RANDOM
from random_settings import STRATUM

PHASES = ("memorizing", "composite", "symmetric", "inferential")
STRATA = tuple((task, layout) for task in ("neurips", "complexity-control")
               for layout in ("post", "pre"))  # fmt: skip
# Every number of a claim about phases, and its mean in memorizing to inferential runs as claimed.
AS_CLAIMED = {
    "route_symmetric": (0, 0.2, 1, 0), "route_inferential": (0, 0, 0, 0.9),
    "order_first": (0.5, 0.5, 0.05, 0.1), "answer": (0, 0.1, 0, 0.6), "value": (0, 0, 0, 0.6),
    "condensation": (0.1, 0.3, 0.3, 0.6), "embedding_smooth": (0.1, 0.1, 0.1, 0.5),
    "embedding_dimension": (0.9, 0.8, 0.8, 0.4), "commutativity": (0.1, 0.3, 0.4, 0.9),
    "key_mask_pairs": (-0.2, 0.6, 0.6, 0.6), "key_mask_order": (0, 0.5, 0.05, 0.1),
    "blocks": (0, 0, 0, 0.6), "embedding_steps": (0, 0, 0, 6), "distance": (0.2, 1, 1, 2),
    "answer_raw": (0.4, 0.4, 0.4, 0.8), "value_raw": (0.4, 0.4, 0.4, 0.8),
    "blocks_raw": (0.4, 0.4, 0.4, 0.8), "mixed": (0.5, 0.9, 0.9, 0.9),
    "by_cell": (0.5, 0.8, 0.8, 0.8), "borrowed_near": (0, 0.3, 0.3, 0.3),
}  # fmt: skip
BY_PHASE = {claim.name for claim in family() if set(claim.effect.runs) & set(RANDOM)}
# What these made-up runs have no number or too few runs for, and the last one, for which they lack
# symmetric runs of a gamma below 0.5.
OPEN = {"c4-id", "cc-rank", "c4-gamma", "c4-decay", "cc-decay", "c4-commutativity",
        "n53-condensation-phase"}  # fmt: skip
COMPARED = {claim.name for claim in family() if claim.name in BY_PHASE
            and isinstance(claim.effect, Difference)}  # fmt: skip


def random_settings(n: int = 60, seed: int = 0) -> list[Row]:
    """``n`` runs in each stratum. Phases lie along gamma, at other gammas in each stratum; numbers
    depend on the stratum and on the phase."""
    generator, rows = np.random.default_rng(seed), []
    for place, (task, layout) in enumerate(STRATA):
        for i in range(n):
            gamma = generator.uniform(0.2, 1.0)
            drawn = 5 * (gamma + generator.normal(0, 0.1) - 0.2 - 0.02 * place)
            reached = int(np.clip(drawn, 0, 3))
            row: Row = {
                "run_id": f"{task}-{layout}-{i:03d}", "status": "done", "censored": False,
                "seed": 10_000 * place + i, "task": task, "normalization": layout,
                "scale": "tiny", "phase": PHASES[reached], "gamma": gamma, "gamma_qk": None,
                "weight_decay": math.exp(generator.uniform(-5, 0.7)), "n_layers": 2,
                "d_model": int(generator.choice((64, 96, 128))),
                "lr": 1e-3 * math.exp(generator.uniform(-0.7, 0.7)),
                "steps": int(generator.choice((2000, 3000, 4000))),
                "n_sequences": int(generator.integers(5_000, 100_000)),
                "stable_rank_at_init": 40.0, "id_accuracy": 1.0, "ood_accuracy": 0.5,
                "complexity": 0,
            }  # fmt: skip
            share = (1, 0.5, 0.45, 0.1)[reached]
            row["stable_rank"] = 40.0 * share * math.exp(generator.normal(0, 0.1))
            for name, means in AS_CLAIMED.items():
                level = 0.5 * np.ptp(means) * place
                noise = generator.normal(0, 0.15 * np.ptp(means))
                row[name] = float(level + means[reached] + noise)
            rows.append(row)
    return rows


def in_studies(rows: Rows) -> dict[str, Rows]:
    return {**{name: rows[i :: len(RANDOM)] for i, name in enumerate(RANDOM)}, "decay": []}


def supported(judgements: dict[str, Judgement]) -> set[str]:
    return {name for name, found in judgements.items() if found.verdict == "supported"}


def judged_alone(effect: Effect, rows: Rows, minimum: float = 0.2) -> Judgement:
    claim = Claim("claim", "", effect, minimum)
    return judge((claim,), {"settings": rows})["claim"]


def between(more: str, less: str, number: Any = "y", **fields: Any) -> Difference:
    kinds = equal(phase=more), equal(phase=less)
    return Difference(number, *kinds, within=STRATUM, runs=("settings",), **fields)


def with_number(rows: Rows, number: Callable[[Row, float], float], seed: int = 1) -> list[Row]:
    """The rows with a number y of a row and a standard normal draw."""
    noise = np.random.default_rng(seed).normal(size=len(rows))
    return [row | {"y": number(row, e)} for row, e in zip(rows, noise, strict=True)]


def test_every_claim_about_phases_can_be_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 999)
    found = judge(family(), in_studies(random_settings(150)))
    assert len(BY_PHASE) == 30
    assert BY_PHASE - supported(found) <= OPEN
    for name in BY_PHASE:
        assert set(found[name].also) <= {", ".join(stratum) for stratum in STRATA}


@pytest.mark.slow
def test_phases_permuted_inside_strata_support_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten tables each supports a claim with a probability of a twentieth at most.

    More than three would do so once in a thousand times. The numbers differ between strata and
    phases do as well, so labels compared across strata would support claims.
    """
    monkeypatch.setattr(statistics, "DRAWN", 999)
    rows, generator = random_settings(), np.random.default_rng(0)
    compared = tuple(claim for claim in family() if claim.name in COMPARED)
    tables_that_support, p_values = 0, []
    for _ in range(10):
        mixed = []
        for stratum in STRATA:
            mine = [row for row in rows if (row["task"], row["normalization"]) == stratum]
            phases = generator.permutation([row["phase"] for row in mine])
            mixed += [row | {"phase": str(p)} for row, p in zip(mine, phases, strict=True)]
        found = judge(compared, in_studies(mixed))
        tables_that_support += bool(supported(found) & COMPARED)
        findings = [found[name].finding for name in COMPARED]
        p_values += [each.found.p for each in findings if each and each.found]
    assert tables_that_support <= 3
    assert np.mean(np.array(p_values) <= 0.05) < 0.1
    across = Difference("blocks", equal(phase="inferential"), equal(phase=PHASES[1:3]))
    assert told(across.measure(rows)).p < 0.05


def test_a_difference_between_strata_is_none_between_phases() -> None:
    """Most inferential runs stand in strata with large numbers; inside strata nothing differs."""
    rows = with_number(random_settings(), lambda _, e: e)
    for row in rows:
        layout = row["normalization"] == "pre"
        row["y"] += 5 * layout
        row["phase"] = "inferential" if (hash_of(row) % 5 < 1 + 3 * layout) else "symmetric"
    pooled = Difference("y", equal(phase="inferential"), equal(phase="symmetric")).measure(rows)
    assert told(pooled).effect > 2
    found = judged_alone(between("inferential", "symmetric"), rows, 1.0)
    assert abs(told(found.finding).effect) < 0.6
    assert found.verdict == "not supported"


def hash_of(row: Row) -> int:
    return int(row["seed"]) * 7919 % 104_729


def test_p_is_that_of_all_relabellings_in_one_stratum() -> None:
    rows = with_number(random_settings()[:10], lambda _, e: e)
    for i, row in enumerate(rows):
        row["phase"] = "inferential" if i < 5 else "symmetric"
        row["y"] += 1.2 * (i < 5)
    found = between("inferential", "symmetric").measure(rows)
    exact = two_samples([row["y"] for row in rows[:5]], [row["y"] for row in rows[5:]])
    assert told(found).effect == pytest.approx(exact.effect)
    assert told(found).p == pytest.approx(exact.p, abs=0.01)


def test_four_runs_of_a_kind_are_not_compared() -> None:
    rows = random_settings(12)[:12]
    for i, row in enumerate(rows):
        row |= {"phase": "inferential" if i < 4 else "symmetric", "y": float(i < 4)}
    found = judged_alone(between("inferential", "symmetric"), rows)
    assert found.verdict == "not answerable here"
    assert found.reason == "neurips, post: 4 and 8 runs, 5 are needed"
    rows[4]["phase"] = "inferential"
    assert judged_alone(between("inferential", "symmetric"), rows).finding is not None


def test_phases_that_never_meet_leave_nothing_comparable() -> None:
    """Symmetric runs are post-LayerNorm, inferential ones pre: the reason says it."""
    rows = with_number(random_settings(), lambda _, e: e)
    for row in rows:
        row["phase"] = {"post": "symmetric", "pre": "inferential"}[row["normalization"]]
    found = judged_alone(between("inferential", "symmetric"), rows)
    assert found.verdict == "nothing comparable"
    assert "neurips, post: 0 and 60 runs" in found.reason
    assert found.finding is not None
    assert (found.finding.found, found.q_value) == (None, None)


def test_settings_that_explain_a_difference_leave_none_at_equal_settings() -> None:
    rows = random_settings()
    by_gamma = with_number(rows, lambda row, e: 3 * row["gamma"] + 0.2 * e)
    found = judged_alone(between("inferential", "composite"), by_gamma)
    assert (found.verdict, found.at_equal_settings) == ("supported", False)
    by_phase = with_number(
        rows, lambda row, e: 3 * row["gamma"] + (row["phase"] == "inferential") + 0.2 * e
    )
    found = judged_alone(between("inferential", "composite"), by_phase)
    assert (found.verdict, found.at_equal_settings) == ("supported", True)
    assert found.finding is not None
    assert found.finding.adjusted is not None
    adjusted = found.finding.adjusted
    assert adjusted.effect == pytest.approx(1, abs=0.25)
    assert adjusted.low < 1 < adjusted.high
    about_gamma = between("inferential", "composite", "gamma", free=("gamma", "gamma_qk"))
    assert judged_alone(about_gamma, rows, 0.05).at_equal_settings  # gamma is not held


@pytest.mark.slow
def test_the_test_at_equal_settings_keeps_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number follows gamma and not the phase, which follows gamma: one p in twenty is small."""
    monkeypatch.setattr(statistics, "DRAWN", 199)
    small = missed = 0
    for seed in range(100):
        rows = with_number(
            random_settings(seed=seed), lambda row, e: 3 * row["gamma"] + e, 1000 + seed
        )
        found = between("inferential", "symmetric").measure(rows).adjusted
        assert found is not None
        small += found.p <= 0.05
        missed += not found.low <= 0 <= found.high
    assert 1 <= small <= 11
    assert 1 <= missed <= 11


def test_too_few_runs_say_nothing_at_equal_settings() -> None:
    rows = with_number(random_settings()[:12], lambda _, e: e)
    for i, row in enumerate(rows):
        row["phase"] = "inferential" if i < 6 else "symmetric"
    found = judged_alone(between("inferential", "symmetric"), rows)
    assert told(found.finding).p <= 1
    assert found.at_equal_settings is None


def test_a_number_that_never_changes_is_no_difference() -> None:
    rows = [row | {"y": 0.1} for row in random_settings()]
    found = judged_alone(between("inferential", "symmetric"), rows)
    assert told(found.finding).p == 1
    assert found.verdict == "not supported"
    assert found.reason == "the interval ends below 0.2, the least that counts"


def ranked(share: Callable[[Row, float], float]) -> list[Row]:
    rows = with_number(random_settings(), share)
    return [
        row
        | {"stable_rank": row["y"], "phase": PHASES.index(row["phase"]), "stable_rank_at_init": 1.0}
        for row in rows
    ]


ALIKE = Alike(log_rank_share, HALF_A_STEP, runs=("settings",), within=STRATUM)
AT = (150, 60, 60, 5)


def test_ranks_that_are_alike_within_phases_are_supported() -> None:
    """Phases at 150, 60 and 5 with next to no spread, and equal values everywhere."""
    found = judged_alone(
        ALIKE, ranked(lambda row, e: AT[PHASES.index(row["phase"])] + 0.001 * e), 0
    )
    assert found.verdict == "supported"
    assert told(found.finding).effect == pytest.approx(math.log(HALF_A_STEP), abs=0.001)
    assert judged_alone(ALIKE, ranked(lambda *_: 7.0), 0).verdict == "supported"


def test_ranks_that_follow_the_settings_are_not() -> None:
    found = judged_alone(ALIKE, ranked(lambda row, _: 2 * row["weight_decay"] ** -0.8), 0)
    assert found.verdict == "not supported"
    assert found.reason.startswith("the interval ends below 0: the limit is missed")
    assert (found.q_value or 1) < 0.05  # missed, which is not the same as reversed


def spoilt(column: str) -> list[Row]:
    rows = with_number(random_settings(), lambda _, e: e)
    rows[7] |= {column: math.nan, "phase": "inferential"}
    return rows


@pytest.mark.parametrize(("effect", "column"), [
    (Trend("y", "gamma"), "y"),
    (Trend("y", "gamma"), "gamma"),
    (Rise("y", "gamma"), "y"),
    (Mean("y"), "y"),
    (Difference("y", equal(phase="inferential"), equal(phase="symmetric")), "y"),
    (between("inferential", "symmetric"), "y"),
    (between("inferential", "symmetric"), "lr"),  # a setting that is regressed out
    (between("inferential", "symmetric", rank_share), "stable_rank"),
    (Alike(log_rank_share, 2.0, within=STRATUM), "stable_rank_at_init"),
])  # fmt: skip
def test_a_number_that_is_not_finite_names_its_column_and_run(effect: Effect, column: str) -> None:
    with pytest.raises(StoreError, match=f"{column} of the run neurips-post-007 is nan; expected"):
        effect.measure(spoilt(column))


def test_claims_on_known_runs_are_counted_from_the_tables() -> None:
    """Ten runs of a known seed and thirty of others; a study that was known as a whole."""
    rows = with_number(random_settings(10), lambda row, e: row["gamma"] + 0.1 * e)
    old = [row | {"seed": 301} for row in rows[:10]]
    trend = Trend("y", "gamma", runs=("settings",))
    claims = (
        Claim("some", "", trend, 0.1),
        Claim("all", "", trend, 0.1, known=("settings",)),
        Claim("new", "", Mean("y", equal(seed=3), runs=("settings",)), 0.1),
    )
    found = judge(claims, {"settings": [*old, *rows[10:]]})
    assert [found[name].known for name in ("some", "all", "new")] == [10, 40, 0]
    others = found["some"].without_known
    assert isinstance(others, Finding)
    assert others.found == trend.measure(rows[10:]).found
    assert found["all"].without_known is found["new"].without_known is None
