"""How far a number rises with a setting: slopes, intervals and p, against formulas."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from findings import told

from claim_effects import Finding, Rise, Row


def runs(group: int, xs: list[float], ys: list[float]) -> list[Row]:
    return [
        {"run_id": f"{group}-{i}", "status": "done", "censored": False, "seed": i,
         "n_layers": group, "gamma": x, "y": y}
        for i, (x, y) in enumerate(zip(xs, ys, strict=True))
    ]  # fmt: skip


def rise(rows: list[Row], sign: int = 1) -> Finding:
    return Rise("y", "gamma", within=("n_layers",), sign=sign).measure(rows)


def test_a_rise_is_a_least_squares_slope_with_hc3_errors() -> None:
    """Against the matrix formula, with a level for each group."""
    generator = np.random.default_rng(2)
    xs, groups = generator.uniform(size=24), np.arange(24) % 3
    ys = 0.7 * xs + 2 * groups + generator.normal(size=24) * (0.1 + xs)
    rows = [row for g in range(3) for row in runs(g, [*xs[groups == g]], [*ys[groups == g]])]
    found = rise(rows)
    design = np.column_stack([xs, *(groups == g for g in range(3))]).astype(float)
    inverse = np.linalg.inv(design.T @ design)
    fitted = inverse @ design.T @ ys
    hat = np.einsum("ij,jk,ik->i", design, inverse, design)
    rest = (ys - design @ fitted) / (1 - hat)
    error = math.sqrt((inverse @ design.T @ np.diag(rest**2) @ design @ inverse)[0, 0])
    span = xs.max() - xs.min()
    assert told(found).effect == pytest.approx(fitted[0] * span)
    assert told(found).high == pytest.approx(span * (fitted[0] + 2.0859634 * error))  # t of 20
    fallen = rise(rows, sign=-1)
    assert told(fallen).low == pytest.approx(-told(found).high)
    assert told(fallen).p == pytest.approx(told(found).p, abs=0.02)


def test_a_run_alone_with_its_value_has_a_finite_interval() -> None:
    """It lies on the line, whatever its number: its residual is 0, of leverage 1."""
    for other in (0.3, 0.33, 0.6, 0.73):
        found = rise(runs(2, [0.9, 0.9, 0.9, other], [0, 0.1, 0.2, 0.7]))
        assert told(found).effect == pytest.approx(-0.6)
        # HC3 of the mean of 0, 0.1 and 0.2, with Student's t of two degrees of freedom
        assert told(found).high == pytest.approx(-0.6 + 4.3026527 * 0.1 / math.sqrt(2), rel=1e-6)


def test_all_relabellings_of_few_runs() -> None:
    """Six runs of three values: p is near the share of all orders whose slope over its HC3 error is
    as large."""
    xs, ys = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 3])
    design = np.stack([np.ones(6), xs], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    leverage = np.diag(design @ inverse @ design.T)

    def size(order: Sequence[int]) -> float:
        slope = inverse @ design.T @ np.array(order)
        rest = (np.array(order) - design @ slope) / (1 - leverage)
        covariance = inverse @ design.T @ np.diag(rest**2) @ design @ inverse
        return round(float(abs(slope[1]) / math.sqrt(covariance[1, 1])), 9)

    sizes = np.array([size(order) for order in itertools.permutations(ys)])
    exact = float(np.mean(sizes >= size(ys.tolist())))
    assert told(rise(runs(2, xs.tolist(), ys.tolist()))).p == pytest.approx(exact, abs=0.015)


def test_runs_that_failed_stand_in_no_line() -> None:
    rows = runs(2, [*range(6)], [0.1 * i for i in range(6)])
    rows[3] |= {"status": "failed", "y": None}
    found = rise(rows)
    assert (found.n, found.censored, found.seeds) == ((5,), 1, 5)
    assert told(found).effect == pytest.approx(0.5)


def test_without_different_values_there_is_no_rise() -> None:
    # equal numbers are as large in any order
    xs = [0.1 * i**1.5 for i in range(7)]
    assert told(rise([row for g in (2, 3) for row in runs(g, xs, [0.1] * 7)])).p == 1
    found = rise(runs(2, [1.0] * 6, [0.1 * i for i in range(6)]))
    assert found.found is None
    assert found.note == "no group has three runs at several values of gamma"
