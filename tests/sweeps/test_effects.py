"""Effects over a table's runs: closed forms, clusters, power, verdicts and bad questions."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis import statistics
from anchor_interp.cli.main import main
from anchor_interp.sweeps import effects
from anchor_interp.sweeps.effects import Estimate, Stratum, decide, line, trend


def stratum(x: Any, y: Any, clusters: Any = None, **more: Any) -> Stratum:
    x = np.array(x, np.float64)
    return Stratum(x, np.array(y, np.float64), clusters or [object() for _ in x], **more)


def test_a_trend_is_spearmans_correlation_inside_strata() -> None:
    """Between the strata the number falls, inside each it rises: Simpson's paradox."""
    generator = np.random.default_rng(0)
    x = np.arange(20.0)
    y = x + 4 * generator.standard_normal(20)
    one = trend([stratum(x, y)])
    assert one is not None
    assert one.effect == pytest.approx(spearmanr(x, y).statistic)
    assert one.p == pytest.approx(spearmanr(x, y).pvalue, abs=1e-3)
    both = trend([stratum(x, y), stratum(x + 100, y - 1000)])
    assert both is not None
    assert both.effect == pytest.approx(one.effect)
    assert both.finds < one.finds


def test_a_difference_inside_strata_is_that_of_their_means() -> None:
    labels, y = [1, 1, 0, 0], [3.0, 5.0, 1.0, 2.0]
    found = line([stratum(labels, y), stratum(labels, [v + 100 for v in y])])
    assert found is not None
    assert found.effect == pytest.approx(2.5)
    assert found.low < 2.5 < found.high


def test_a_setting_that_explains_the_number_leaves_no_difference() -> None:
    x = [1, 1, 1, 0, 0, 0]
    given = np.array([[3.0], [4.0], [6.0], [1.0], [2.0], [4.0]])
    found = line([stratum(x, 2 * given[:, 0], given=given)])
    assert found is not None
    assert found.effect == pytest.approx(0, abs=1e-9)


def test_runs_of_a_seed_change_places_together() -> None:
    """Five seeds in three strata are ten clusters of two kinds, not thirty runs."""
    generator = np.random.default_rng(3)
    of_seed = generator.standard_normal((2, 5)) + np.array([[2.5], [0.0]])
    clusters = [(kind, seed) for kind in (1, 0) for seed in range(5)]
    strata = [stratum([k for k, _ in clusters], of_seed.ravel() + s, clusters) for s in range(3)]
    found = line(strata)
    pooled, seen = of_seed.ravel(), of_seed[0].sum()
    sums = [sum(pooled[list(five)]) for five in itertools.combinations(range(10), 5)]
    centre = pooled.sum() / 2
    exact = np.mean([abs(s - centre) >= abs(seen - centre) - 1e-9 for s in sums])
    assert found is not None
    assert found.p == pytest.approx(float(exact), abs=0.005)
    alone = line([s._replace(clusters=[object() for _ in s.x]) for s in strata])
    assert alone is not None
    assert alone.p < found.p / 5


def test_groups_that_scatter_unequally_are_not_called_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six runs scatter five times as much as forty others of the same mean: p keeps its level."""
    monkeypatch.setattr(statistics, "DRAWN", 199)
    generator, x, there = np.random.default_rng(0), np.repeat([1.0, 0.0], [6, 40]), 0
    for _ in range(200):
        found = line([stratum(x, generator.standard_normal(46) * (1 + 4 * x))])
        assert found is not None
        there += found.p <= 0.05
    assert there <= 20  # 10 on average; more than 20 once in a thousand times


def test_power_is_what_simulated_samples_find() -> None:
    generator = np.random.default_rng(1)
    x = np.repeat([1.0, 0.0], 12)
    finds = np.mean(
        [f.finds for _ in range(50) if (f := line([stratum(x, generator.standard_normal(24))]))]
    )
    found = [line([stratum(x, generator.standard_normal(24) + finds * x)]) for _ in range(200)]
    assert np.mean([f.p <= 0.05 for f in found if f]) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize(("found", "verdict"), [
    (Estimate(0.5, 0.3, 0.7, 0.001, 0.2), "supported"),
    (Estimate(0.5, 0.1, 0.9, 0.001, 0.6), "supported"),
    (Estimate(-0.5, -0.9, -0.1, 0.001, 0.6), "reversed"),
    (Estimate(0.05, -0.1, 0.2, 0.4, 0.2), "not supported"),
    (Estimate(0.05, -0.1, 0.2, 0.4, 0.4), "not answerable here"),
    (Estimate(-0.05, -0.2, 0.1, 0.4, 0.4), "not answerable here"),
    (Estimate(0.2, 0.1, 0.4, 0.001, 0.2), "inconclusive"),
    (Estimate(0.2, -0.1, 0.5, 0.2, 0.25), "inconclusive"),
])  # fmt: skip
def test_an_effect_that_is_there_decides_and_power_says_what_its_absence_means(
    found: Estimate, verdict: str
) -> None:
    assert decide(found, 0.3)[0] == verdict


def runs() -> pd.DataFrame:
    generator = np.random.default_rng(2)
    return pd.DataFrame([
        {"status": "done", "censored": seed == 9, "layout": layout, "gamma": gamma, "seed": seed,
         "phase": "inferential" if gamma > 0.6 else "symmetric",
         "ood_accuracy": math.nan if seed == 8 else gamma * (layout == "pre") + 0.1 *
         generator.random()}
        for layout in ("pre", "post") for gamma in (0.3, 0.5, 0.7, 0.9) for seed in range(10)
    ])  # fmt: skip


def test_a_question_is_answered_in_each_stratum() -> None:
    found = ai.effect(runs(), of="ood_accuracy", on="gamma", within=("layout",), least=0.3)
    assert (found.n, found.left_out) == (64, 16)
    assert found.strata["pre"].verdict == "supported"
    assert found.strata["post"].verdict in ("not answerable here", "inconclusive", "not supported")
    assert "p:" in str(found)
    assert "power:" in str(found)
    kinds = ai.effect(runs(), of="ood_accuracy", on="phase", within=("layout",), least=0.1,
                      between=("symmetric", "inferential"), cluster=("seed",))  # fmt: skip
    assert kinds.strata["pre"].found is not None
    assert kinds.strata["pre"].found.effect == pytest.approx(0.4, abs=0.05)
    few = ai.effect(runs().query("seed < 1"), of="ood_accuracy", on="gamma", within=("layout",))
    assert few.verdict == "nothing comparable"
    unlearned = ai.effect(runs().assign(censored=True), of="ood_accuracy", on="gamma")
    assert "80 of 80 runs failed, did not learn or lack a value" in str(unlearned)


@pytest.mark.parametrize(("asked", "says"), [
    ({"of": "ood_acuracy", "on": "gamma"}, "did you mean 'ood_accuracy'"),
    ({"of": "phase", "on": "gamma"}, "phase holds texts"),
    ({"of": "gamma", "on": "ood_accuracy", "between": (1,)}, "two values"),
    ({"of": "gamma", "on": "seed", "where": {"seed": 77}}, "no run has seed 77"),
])  # fmt: skip
def test_a_question_that_cannot_be_asked(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ai.effect(runs(), **asked)


def test_of_many_columns_a_message_names_the_nearest() -> None:
    wide = runs().assign(**{f"measure_{i}": 0.0 for i in range(50)})
    message = r"expected one of gamma, (\w+, ){7}\.\.\. \(\d\d columns\)$"
    with pytest.raises(ConfigError, match=message):
        ai.effect(wide, of="gama", on="seed")


def test_the_command_prints_effect_p_n_power_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "read_table", lambda *_, **__: effects._rows(runs()))
    asked = ["effect", str(tmp_path), "--of", "ood_accuracy", "--on", "gamma"]
    assert main([*asked, "--within", "layout", "--least", "0.3", "layout=pre"]) == 0
    shown = capsys.readouterr().out
    assert "That ood accuracy rises with initialisation rate" in shown
    assert "is supported" in shown
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["of"] == "ood_accuracy"


def test_a_file_needs_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    rows = [{"width": 2**i, "error": i % 3, "score": i + (i % 2)} for i in range(9)]
    file = tmp_path / "own.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    found = ai.effect(file, of="score", on="width")
    assert (found.n, found.found) == (9, ai.effect(rows, of="score", on="width").found)


@pytest.mark.parametrize(("shift", "step"), [(1e4, 0.1), (-1e7, 0.1), (1e10, 1.0)])
def test_ties_of_a_number_that_is_large_beside_its_spread(shift: float, step: float) -> None:
    """Rounding of a large number neither breaks ties of small differences nor hides these."""
    k = [0, 3, 0, 1, 1, 0, 2, 2, 0, 2, 1, 2]

    def asked(shift: float) -> Estimate:
        rows = [{"kind": i // 6, "y": shift + step * n} for i, n in enumerate(k)]
        found = ai.effect(rows, of="y", on="kind").found
        assert found is not None
        return found

    near, far = asked(0), asked(shift)
    assert far.p == near.p < 1
    assert far.effect == pytest.approx(near.effect, abs=1e-15 * abs(shift))


def test_numbers_that_differ_by_rounding_have_one_rank() -> None:
    """3 * 0.1 is 3 / 10; losses of other orders of magnitude stay apart."""
    x, k = np.arange(12.0), np.array([3, 1, 2, 3, 3, 1, 2, 6, 3, 4, 4, 6])
    exact = trend([stratum(x, k)])
    mixed = np.where(np.arange(12) % 2, k * 0.1, k / 10)
    assert len({*mixed}) > len({*k})
    for y in (mixed, 1e4 + mixed, 10.0 ** -(4 * k)):
        found = trend([stratum(x, y * np.sign(y[7] - y[1]))])
        assert found == exact
    alike = trend([stratum(x, np.where(np.arange(12) % 2, 0.1 + 0.2, 0.3))])
    assert alike is not None
    assert (alike.effect, alike.p) == (0, 1)


def test_an_effect_that_is_the_least_but_for_rounding_counts() -> None:
    rows = [{"kind": i % 2, "y": 0.7 if i % 2 else 0.4} for i in range(20)]
    found = ai.effect(rows, of="y", on="kind", least=0.3)
    assert found.found is not None
    assert found.found.effect < 0.3
    assert found.verdict == "supported"


def test_copies_of_runs_say_nothing_new_where_they_are_one_cluster() -> None:
    generator = np.random.default_rng(0)
    rows = [{"seed": i, "kind": i % 2, "y": float(generator.normal())} for i in range(16)]
    once = ai.effect(rows, of="y", on="kind", cluster=("seed",))
    often = ai.effect(
        [row for row in rows for _ in range(20)], of="y", on="kind", cluster=("seed",)
    )
    assert once.found is not None
    assert often.found is not None
    assert often.verdict == once.verdict == "not answerable here"
    assert often.found.finds > 0.8 * once.found.finds
    trend = [{"seed": i, "x": float(i), "y": float(generator.normal())} for i in range(20)]
    one = ai.effect(trend, of="y", on="x", cluster=("seed",)).found
    many = ai.effect(
        [row for row in trend for _ in range(20)], of="y", on="x", cluster=("seed",)
    ).found
    assert one is not None
    assert many is not None
    assert many.finds == pytest.approx(one.finds)


def test_numbers_that_are_not_finite_are_left_out() -> None:
    rows = [{"kind": i % 2, "y": float(i)} for i in range(16)] + [{"kind": 0, "y": float("nan")}]
    assert ai.effect(rows, of="y", on="kind").left_out == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least": -0.3}, "least is -0.3"),
        ({"least": "x"}, "least is 'x'"),
        ({"between": 3}, "between is 3; expected two values of kind: 0, 1"),
        ({"between": (0, 7)}, "expected two values of kind: 0, 1"),
    ],
)
def test_wrong_questions_are_refused(settings: dict[str, Any], message: str) -> None:
    rows = [{"kind": i % 2, "y": float(i)} for i in range(16)]
    with pytest.raises(ConfigError, match=message):
        ai.effect(rows, of="y", on="kind", **settings)
