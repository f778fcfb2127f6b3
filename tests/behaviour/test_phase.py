"""The phase rules: every measurement has a phase, and each threshold is where the rule says."""

import re
import typing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_interp.behaviour.phase import (
    PAPER,
    Baseline,
    CellAccuracy,
    Evaluation,
    Phase,
    SplitScore,
    Thresholds,
    classify,
    decide,
    deciding,
    meanings,
    near_lines,
)

shares = st.floats(0, 1)
maybe = st.none() | shares


def measured(
    train: float | None = 1.0,
    seen: float = 1.0,
    ood: float | None = 0.0,
    symmetric: float | None = None,
    commutativity: float | None = 0.0,
    key: float | None = 1.0,
) -> Evaluation:
    return Evaluation(
        steps=1, train_accuracy=train, id_accuracy=seen, ood_accuracy=ood,
        symmetric_accuracy=symmetric, commutativity=commutativity, key_dependence=key,
        pair_accuracy=(), unseen=(), cells=CellAccuracy(0.95, seen, ood, ood), stable_rank=1.0,
        stable_rank_at_init=None, condensation=0.0, condensation_at_init=None, n=1, seed=0,
    )  # fmt: skip


@given(st.builds(measured, maybe, shares, maybe, maybe, maybe, maybe))
def test_every_measurement_has_a_phase_and_a_reason(evaluation: Evaluation) -> None:
    decision = decide(evaluation)
    assert decision.phase in typing.get_args(Phase)
    assert decision.reason


@pytest.mark.parametrize(("evaluation", "phase"), [
    (measured(train=0.899), "undertrained"),
    (measured(train=0.899, ood=1.0), "undertrained"),
    (measured(train=None, ood=0.6), "inferential"),
    (measured(train=0.9, seen=0.899), "memorizing"),
    (measured(seen=0.5, ood=0.5), "other"),
    (measured(seen=0.9, ood=0.5), "inferential"),
    (measured(ood=0.9, commutativity=1.0, symmetric=0.1), "inferential"),
    # a task with a symmetric target
    (measured(ood=0.1, symmetric=0.5, commutativity=0.1), "symmetric"),
    (measured(ood=0.1, symmetric=0.49, commutativity=0.69), "composite"),
    (measured(ood=0.1, symmetric=0.49, commutativity=0.99), "other"),
    # a task without one
    (measured(ood=0.49, commutativity=0.7), "symmetric"),
    (measured(ood=0.49, commutativity=0.69), "composite"),
    (measured(ood=0.0, commutativity=1.0, key=0.0), "other"),  # a constant answer
    # a task whose only unseen pairs have equal anchors
    (measured(ood=0.1, commutativity=None), "other"),
    # a task without unseen pairs
    (measured(ood=None, commutativity=None, key=None), "other"),
    (measured(seen=0.2, ood=None, commutativity=None, key=None), "memorizing"),
])  # fmt: skip
def test_each_rule_decides_at_its_threshold(evaluation: Evaluation, phase: Phase) -> None:
    assert classify(evaluation) == phase


@pytest.mark.parametrize("share", [0.8949, 0.8952, 0.89951, 0.899996])
def test_a_reason_shows_on_which_side_of_its_line_a_share_is(share: float) -> None:
    """Rounded to two decimals it would say 0.90 < 0.9."""
    of_commuting = measured(ood=0.1, commutativity=share - 0.2)
    of_task = SplitScore("far", "ood", share - 0.4, 1.0, 9)
    without = replace(measured(ood=share - 0.4, key=None), splits=(of_task,))
    fresh = replace(measured(train=None), cells=CellAccuracy(share, 1, 0, 0))
    for evaluation in (measured(train=share), measured(seen=share), of_commuting, without, fresh):
        ((less, line),) = re.findall(r"([\d.]+) < ([\d.]+)", decide(evaluation).reason)
        assert float(less) < float(line)
        assert len(less) <= 8


@pytest.mark.parametrize(
    ("ood", "chance", "phase"),
    [(0.75, 0.5, "inferential"), (0.74, 0.5, "other"), (0.5, 0.0, "inferential")],
)
def test_ood_accuracy_counts_from_chance(ood: float, chance: float, phase: Phase) -> None:
    scores = (
        SplitScore("id", "id", 1.0, 0.1, 9, (), 0.9),
        SplitScore("far", "ood", ood, 1.0, 9, (), chance),
    )
    found = decide(replace(measured(ood=ood, key=None), splits=scores))
    assert found.phase == phase
    assert f"{0.5 + chance / 2:g}" in found.reason


@pytest.mark.parametrize(
    ("shares", "phase"), [((1.0, 1.0), "other"), ((1.0, 0.5), "other"), ((1.0, 0.4), "inferential")]
)
def test_what_a_shortcut_explains_is_not_inference(shares: tuple[float, ...], phase: Phase) -> None:
    scores = tuple(
        SplitScore(f"far-{share}", "ood", 1.0, 0.1, 9, (), 0.5, (Baseline("often", share),))
        for share in shares
    )
    found = decide(replace(measured(ood=1.0, key=None), splits=scores))
    assert found.phase == phase
    assert ('the shortcut "often"' in found.reason) == (phase == "other")


def test_thresholds_are_the_papers_and_can_be_changed() -> None:
    assert (PAPER.train, PAPER.id, PAPER.ood, PAPER.commutativity) == (0.9, 0.9, 0.5, 0.7)
    assert classify(measured(ood=0.6), Thresholds(ood=0.8)) == "composite"


def test_a_number_near_a_line_names_the_phase_beyond_it() -> None:
    assert near_lines(measured(ood=0.2, commutativity=0.3)) == ()
    assert near_lines(measured(ood=0.47, commutativity=0.3)) == (
        "OOD accuracy is 0.47; at 0.52 the phase would be inferential",
    )
    assert near_lines(measured(ood=0.53, commutativity=0.3)) == (
        "OOD accuracy is 0.53; at 0.48 the phase would be composite",
    )
    undecided = measured(ood=0.2, symmetric=None, commutativity=0.72)
    assert near_lines(undecided)[-1].endswith("at 0.67 the phase would be composite")
    assert near_lines(measured(train=0.5, ood=0.47)) == ()  # another rule decides


def test_a_phase_hangs_on_what_could_change_it() -> None:
    fitted = {"train_accuracy", "id_accuracy", "ood_accuracy"}
    assert deciding(measured(train=0.5)) == {"train_accuracy"}
    assert deciding(measured(seen=0.1, ood=0.1)) == fitted
    assert deciding(measured(ood=1.0, commutativity=1.0)) == fitted
    decides = fitted | {"commutativity", "key_dependence"}
    assert deciding(measured(commutativity=1.0)) >= decides
    assert "key_dependence" not in deciding(measured(commutativity=0.1))


def test_every_phase_has_a_meaning() -> None:
    assert tuple(meanings(anchored=True)) == typing.get_args(Phase)
    without = meanings(anchored=False)
    assert set(typing.get_args(Phase)) - set(without) == {"composite", "symmetric"}
    assert not re.search("pair|key|function|anchor", " ".join(without.values()))
