"""Figure 2's effects on synthetic runs: what is best, what is mean, the zone, and chance."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from anchor_interp._util.errors import StoreError
from papers.claims import CLAIMS
from papers.effects import Trend, grouped
from papers.figure2_runs import DEPTHS, GAMMAS, PAPER, distance
from papers.judging import Family, Judgement, judge
from papers.rises import SEED, Rise, best, in_zone, majority, mean, spread
from papers.rows import Row
from papers.studies import SCALES, study_sweep

OWN = tuple(claim for claim in CLAIMS if claim.studies == ("figure2",))


def runs(ood: Any, symmetric: Any, ident: Any = lambda *_: 1.0) -> list[Row]:
    """Every run of the study with accuracies that are functions of its settings and a draw."""
    generator, found = np.random.default_rng(0), []
    for name, config in study_sweep("figure2", "tiny").configs().items():
        model, gamma, lr = config.model, config.init.gamma, config.train.lr
        rate = (lr * model.d_model / PAPER.model.d_model - 1e-4) / 2e-4  # from 0 to 1
        draw = float(generator.uniform())
        accuracy = ident(model.n_layers, gamma)
        found.append(
            {
                "run_id": name, "status": "done", "censored": False, "seed": config.seed,
                "n_layers": model.n_layers, "gamma": gamma, "lr": lr, "id_accuracy": accuracy,
                "ood_accuracy": ood(gamma, rate, draw),
                "symmetric_accuracy": symmetric(gamma, rate, draw),
            }
        )  # fmt: skip
    return found


def judged(rows: list[Row]) -> dict[str, Judgement]:
    """Figure 2's claims alone."""
    return judge(Family(OWN), {"figure2": rows})


def as_in_the_paper(gamma: float, rate: float, draw: float) -> float:
    return min(1.0, max(0.0, 1.4 * gamma - 0.3 + 0.1 * draw))


def mirrored(gamma: float, rate: float, draw: float) -> float:
    return 1 - as_in_the_paper(gamma, rate, draw)


def failing(depth: int, gamma: float) -> float:
    """A shaded zone at the largest weights, wider in deep models."""
    return 0.3 if gamma < 0.1 * depth + 0.05 else 1.0


def test_the_claims_on_figure_2() -> None:
    assert len(OWN) == 9
    assert all(claim.ours for claim in OWN), "width 64 is ours"
    assert {claim.section for claim in OWN} == {"neurips_4"}


def test_what_the_paper_found_is_supported() -> None:
    found = judged(runs(as_in_the_paper, mirrored, failing))
    wanted = {claim.name for claim in OWN} - {"n4-spread"}
    assert wanted <= {name for name, j in found.items() if j.verdict == "supported"}
    effect = found["n4-inferential"].finding
    assert effect is not None
    assert effect.n == (16 * 27,)
    assert effect.seeds == 16 * 3  # three of each cell outside the zone


def test_the_opposite_is_not_supported() -> None:
    found = judged(runs(mirrored, as_in_the_paper, lambda *_: 0.95))
    for name in ("inferential", "symmetric", "inferential-mean", "symmetric-mean",
                 "inferential-most", "symmetric-most"):  # fmt: skip
        assert found[f"n4-{name}"].verdict == "reversed", name
    for name in ("n4-shadow", "n4-shadow-deep"):
        assert found[name].verdict == "not supported", name


def test_where_the_best_rises_and_the_mean_does_not() -> None:
    """Small weights: one rate in nine infers, the others do less than with large weights."""

    def lucky(gamma: float, rate: float, draw: float) -> float:
        return gamma if rate > 0.99 else 0.3 - 0.1 * gamma + 0.02 * draw

    found = judged(runs(lucky, lambda *_: 0.0))
    assert found["n4-inferential"].verdict == "supported"
    assert found["n4-inferential-mean"].verdict == "not supported"
    assert found["n4-inferential-most"].verdict == "not supported"
    assert found["n4-spread"].verdict == "supported"


def test_accuracies_near_zero_make_no_trend() -> None:
    """Their ranks rise perfectly, which a rank correlation would call a trend of 1."""
    rows = runs(lambda gamma, *_: 0.05 * gamma, lambda gamma, *_: 0.05 - 0.05 * gamma)
    ranked = Trend("gamma", "ood_accuracy", ("n_layers",)).measure(rows)
    assert ranked.effect == pytest.approx(1)
    found = judged(rows)
    answers = {name for name in found if name.startswith(("n4-inferential", "n4-symmetric"))}
    assert {found[name].verdict for name in answers} == {"not supported"}
    assert found["n4-inferential"].reason == "the interval ends below 0.3, the least that counts"


def test_permuted_labels_support_nothing() -> None:
    """Gammas change places between the seeds of a depth: nothing is left but chance."""
    rows = runs(as_in_the_paper, mirrored, failing)
    before = sum(j.verdict == "supported" for j in judged(rows).values())
    assert before == 8
    generator, after = np.random.default_rng(1), 0
    for _ in range(10):
        mutated: list[Row] = []
        for same_depth in grouped(rows, ("n_layers",)).values():
            units = [*grouped(same_depth, SEED).values()]
            order = generator.permutation(len(units))
            for runs_of_seed, other in zip(units, order, strict=True):
                mutated += [row | {"gamma": units[other][0]["gamma"]} for row in runs_of_seed]
        after += sum(j.verdict == "supported" for j in judged(mutated).values())
    assert after <= 5  # of 100


def unit(number: int, group: int, x: float, ys: list[float]) -> list[Row]:
    return [
        {"run_id": f"{group}-{number}-{i}", "status": "done", "censored": False,
         "seed": 100 * group + number, "n_layers": group, "gamma": x, "y": y}
        for i, y in enumerate(ys)
    ]  # fmt: skip


def test_a_rise_is_a_least_squares_slope_with_hc3_errors() -> None:
    """Against the matrix formula, with a level for each group."""
    generator = np.random.default_rng(2)
    xs, groups = generator.uniform(size=24), np.arange(24) % 3
    ys = 0.7 * xs + 2 * groups + generator.normal(size=24) * (0.1 + xs)
    rows = [
        row
        for i, (x, group, y) in enumerate(zip(xs, groups, ys, strict=True))
        for row in unit(i, int(group), float(x), [float(y)])
    ]
    found = Rise(number=mean("y"), within=("n_layers",)).measure(rows)
    design = np.column_stack([xs, *(groups == g for g in range(3))]).astype(float)
    inverse = np.linalg.inv(design.T @ design)
    fitted = inverse @ design.T @ ys
    hat = np.einsum("ij,jk,ik->i", design, inverse, design)
    rest = (ys - design @ fitted) / (1 - hat)
    error = math.sqrt((inverse @ design.T @ np.diag(rest**2) @ design @ inverse)[0, 0])
    span = xs.max() - xs.min()
    assert found.effect == pytest.approx(fitted[0] * span)
    assert found.found is not None
    assert found.found.high == pytest.approx(span * (fitted[0] + 2.0859634 * error))  # t of 20
    fallen = Rise(number=mean("y"), within=("n_layers",), sign=-1).measure(rows)
    assert fallen.found is not None
    assert fallen.found.low == pytest.approx(-found.found.high)
    assert fallen.p_value == pytest.approx(found.p_value, abs=0.02)


def test_a_unit_alone_with_its_value_has_a_finite_interval() -> None:
    """It lies on the line, whatever its number: its residual is 0, of leverage 1."""
    for other in (0.3, 0.33, 0.6, 0.73):
        rows = [row for i in range(3) for row in unit(i, 2, 0.9, [0.1 * i])]
        found = Rise(number=mean("y")).measure(rows + unit(3, 2, other, [0.7]))
        assert found.effect == pytest.approx(-0.6)
        # HC3 of the mean of 0, 0.1 and 0.2, with Student's t of two degrees of freedom
        assert found.found is not None
        assert found.found.high == pytest.approx(-0.6 + 4.3026527 * 0.1 / math.sqrt(2), rel=1e-6)


def test_equal_numbers_are_as_large_in_any_order() -> None:
    rows = [row for g in (2, 3) for i in range(7) for row in unit(i, g, 0.1 * i**1.5, [0.1])]
    assert Rise(number=mean("y")).measure(rows).p_value == 1


def test_the_runs_of_a_seed_count_once() -> None:
    """Nine runs that say the same as one are not nine witnesses."""
    ys = [math.sin(7.0 * i) for i in range(12)]
    few, many = (
        [row for i, y in enumerate(ys) for row in unit(i, 2, i % 4, [y] * copies)]
        for copies in (1, 9)
    )
    one, nine = (Rise(number=mean("y")).measure(rows) for rows in (few, many))
    assert (one.n, nine.n) == ((12,), (108,))
    assert one.seeds == nine.seeds == 12
    assert one.found is not None
    assert nine.found is not None
    assert one.found.low == pytest.approx(nine.found.low)
    assert (one.effect, one.p_value) == pytest.approx((nine.effect, nine.p_value))


def test_all_relabellings_of_few_units() -> None:
    """Six units of three values: p is near the share of all orders that reach the slope."""
    rows = [row for i, y in enumerate([0, 1, 1, 2, 2, 3]) for row in unit(i, 2, i // 2, [y])]
    xs, ys = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 3])
    slopes = [abs((xs - 1) @ np.array(order)) for order in itertools.permutations(ys)]
    exact = np.mean(np.array(slopes) >= abs((xs - 1) @ ys))
    found = Rise(number=mean("y")).measure(rows)
    assert found.p_value == pytest.approx(exact, abs=0.01)


def test_numbers_of_a_unit() -> None:
    rows = unit(0, 2, 0.5, [0.2, 0.5, 0.8])
    assert best("y")(rows) == 0.8
    assert mean("y")(rows) == pytest.approx(0.5)
    assert majority("y")(rows) == pytest.approx(2 / 3)
    assert spread("y")(rows) == pytest.approx(0.3)
    assert spread("y")(rows[:1]) == 0


@pytest.mark.parametrize("wrong", [math.nan, None])
def test_a_number_that_is_none_names_its_run(wrong: float | None) -> None:
    rows = [row for i in range(6) for row in unit(i, 2, i, [0.5, 0.6])]
    rows[7]["y"] = wrong
    with pytest.raises(StoreError, match=r"y of the run 2-3-1 is (nan|None); expected a finite"):
        Rise(number=mean("y")).measure(rows)


def test_runs_that_failed_stand_in_no_unit() -> None:
    rows = [row for i in range(6) for row in unit(i, 2, i, [0.1 * i, 0.1 * i])]
    rows[3] |= {"status": "failed", "y": None}
    found = Rise(number=mean("y")).measure(rows)
    assert (found.n, found.censored, found.seeds) == ((11,), 1, 6)
    assert found.effect == pytest.approx(0.5)


def test_without_different_values_there_is_no_rise() -> None:
    rows = [row for i in range(6) for row in unit(i, 2, 1.0, [0.1 * i])]
    found = Rise(number=mean("y")).measure(rows)
    assert found.effect is None
    assert found.note == "no group has three units at several values of gamma"


def test_the_shaded_zone_by_the_best_rate_and_by_every_run() -> None:
    """At gamma 0.2 no rate learns, at 0.33 one in nine does."""
    rows = runs(as_in_the_paper, mirrored)
    fastest = max(row["lr"] for row in rows)
    for row in rows:
        learns = row["gamma"] > 0.33 or (row["gamma"] == 0.33 and row["lr"] == fastest)
        row["id_accuracy"] = 1.0 if learns else 0.1
    assert in_zone(rows, best) == [(depth, 0.2) for depth in DEPTHS]
    assert in_zone(rows, mean) == [(depth, gamma) for depth in DEPTHS for gamma in (0.2, 0.33)]


def test_figure_2_has_nine_rates_and_three_seeds_of_its_own_in_every_cell() -> None:
    configs = study_sweep("figure2", "tiny").configs().values()
    assert len(configs) == 567
    cells: dict[tuple[int, float], set[int]] = {}
    for config in configs:
        cells.setdefault((config.model.n_layers, config.init.gamma), set()).add(config.seed)
    assert set(cells) == set(itertools.product(DEPTHS, GAMMAS))
    assert {len(seeds) for seeds in cells.values()} == {3}
    assert len(set().union(*cells.values())) == 63
    for scale in SCALES:
        for config in study_sweep("figure2", scale).configs().values():
            moved = config.train.lr * config.model.d_model / PAPER.model.d_model
            assert 0.999e-4 < moved < 3.001e-4


def test_the_distance_from_the_paper() -> None:
    found = {what: (here, there) for what, here, there in distance(SCALES["tiny"].figure2)}
    assert found["updates"][1] == "92,285"
    assert found["training sequences"][1] == "900,000"
    assert found["sum of learning rate x weight decay"][1] == "0.051 to 0.14"
    here, there = found["std of initial weights at gamma 1"]
    assert there == "0.0025"
    assert here.startswith(f"{1 / SCALES['tiny'].figure2.model.d_model:.2g}, that of gamma 0.")
    alike = float(here.split()[-4])
    assert 400**-alike == pytest.approx(1 / SCALES["tiny"].figure2.model.d_model, rel=0.05)
    for what, here, there in distance(PAPER):
        assert here == there, what
