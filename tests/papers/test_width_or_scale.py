"""Width or scale: what is matched, what a curve says of its run, and which matching is nearer."""

import pytest

import curves
from claim_effects import Row
from neurips import PAPER
from questions import width_or_scale as question

MATCHED = question.MATCHINGS.items()


@pytest.mark.parametrize(("matching", "power"), MATCHED)
def test_matched_weights_have_equal_scales_at_both_widths(matching: str, power: float) -> None:
    """Also the products of the pairs whose input widths differ."""
    narrow, wide = question.NARROW, PAPER.model
    for gamma in question.GAMMAS:
        own = question.matched(gamma, matching)
        for name, hidden in (("gamma", None), ("gamma_vo", "d_head"), ("gamma_mlp", "d_mlp")):
            at, to = (m.d_model * (getattr(m, hidden) if hidden else 1) for m in (narrow, wide))
            one, two = at ** (power - own[name]), to ** (power - gamma)
            assert one == pytest.approx(two, rel=1e-3)


def curve(run: str, rule: list[float], train: list[float], seed: int = 0) -> list[Row]:
    return [
        {"run_id": run, "n_layers": 2.0, "gamma": 0.8, "seed": float(seed), "step": 50.0 * (i + 1),
         "lr": 3e-4, "train": t, "id": t, "x-10": r, "x-6": 1 - r if i else None}
        for i, (r, t) in enumerate(zip(rule, train, strict=True))
    ]  # fmt: skip


def test_a_run_that_goes_on_is_told_by_its_best_and_its_last_2_000_steps() -> None:
    rule = [0.9, *[0.1] * 9, *[0.25] * 39, 0.75]
    (row,) = curves.by_run(curve("a", rule, [0.99, 0.5, 0.99, 1.0, *[0.9] * 46])[::-1])
    assert row["fitted_step"] == 200
    assert row["best_ood"] == 0.9
    assert row["end_ood"] == pytest.approx((39 * 0.25 + 0.75) / 40)
    assert row["last_symmetric"] == 0.25
    assert row["best_symmetric"] == pytest.approx(0.9)
