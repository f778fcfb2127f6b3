"""Effects over a table's runs: closed forms, clusters, power, verdicts and bad questions."""

import itertools
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr, ttest_ind

import anchor_interp as ai
from anchor_interp._util import statistics
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.statistics import Estimate
from anchor_interp.cli.main import main
from anchor_interp.sweeps import compared
from anchor_interp.sweeps.effect_verdict import judge_effect
from anchor_interp.sweeps.effects import Stratum, find_rise, find_trend


def stratum(x: Any, y: Any, clusters: Any = None, **more: Any) -> Stratum:
    x = np.array(x, np.float64)
    return Stratum(x, np.array(y, np.float64), clusters or [object() for _ in x], **more)


def rise(*strata: Stratum) -> Estimate:
    """The difference, which is there."""
    found = find_rise([*strata])
    assert found is not None
    return found


def trend(*strata: Stratum) -> Estimate:
    """The trend, which is there."""
    found = find_trend([*strata])
    assert found is not None
    return found


def answered(rows: Any, **question: Any) -> Estimate:
    """The answer to a question, which is there."""
    found = ai.effect(rows, **question).found
    assert found is not None
    return found


def test_a_trend_is_spearmans_correlation_inside_strata() -> None:
    """Between the strata the number falls, inside each it rises: Simpson's paradox."""
    generator = np.random.default_rng(0)
    x = np.arange(20.0)
    y = x + 4 * generator.standard_normal(20)
    one = trend(stratum(x, y))
    assert one.effect == pytest.approx(spearmanr(x, y).statistic)
    assert one.p == pytest.approx(spearmanr(x, y).pvalue, abs=1e-3)
    both = trend(stratum(x, y), stratum(x + 100, y - 1000))
    assert both.effect == pytest.approx(one.effect)
    assert both.finds < one.finds


def test_a_difference_inside_strata_is_that_of_their_means() -> None:
    labels, y = [1, 1, 0, 0], [3.0, 5.0, 1.0, 2.0]
    found = rise(stratum(labels, y), stratum(labels, [v + 100 for v in y]))
    assert found.effect == pytest.approx(2.5)
    assert found.low < 2.5 < found.high


def test_a_setting_that_explains_the_number_leaves_no_difference() -> None:
    x = [1, 1, 1, 0, 0, 0]
    given = np.array([[3.0], [4.0], [6.0], [1.0], [2.0], [4.0]])
    found = rise(stratum(x, 2 * given[:, 0], given=given))
    assert found.effect == pytest.approx(0, abs=1e-9)


def test_runs_of_a_seed_change_places_together() -> None:
    """Five seeds in three strata are ten clusters of two kinds, not thirty runs."""
    generator = np.random.default_rng(3)
    of_seed = generator.standard_normal((2, 5)) + np.array([[2.5], [0.0]])
    clusters = [(kind, seed) for kind in (1, 0) for seed in range(5)]
    strata = [stratum([k for k, _ in clusters], of_seed.ravel() + s, clusters) for s in range(3)]
    found = rise(*strata)
    pooled, seen = of_seed.ravel(), of_seed[0].sum()
    sums = [sum(pooled[list(five)]) for five in itertools.combinations(range(10), 5)]
    centre = pooled.sum() / 2
    exact = np.mean([abs(s - centre) >= abs(seen - centre) - 1e-9 for s in sums])
    assert found.p == pytest.approx(float(exact), abs=0.005)
    alone = rise(*(s._replace(clusters=[object() for _ in s.x]) for s in strata))
    assert alone.p < found.p / 5


def crossed(n: int, n_strata: int, generator: np.random.Generator) -> list[Stratum]:
    """Seeds of two kinds in several strata, each with its own level; no difference."""
    x, of_seed = np.repeat([1.0, 0.0], n), generator.standard_normal(2 * n)
    seeds = [(kind, i) for i, kind in enumerate(x)]
    return [stratum(x, of_seed + generator.standard_normal(2 * n) / 2 + level, seeds)
            for level in range(n_strata)]  # fmt: skip


def test_levels_that_clusters_cross_cost_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is that of two samples of means of seeds, and holds 0 in 95 of 100 samples."""
    monkeypatch.setattr(statistics, "DRAWN", 10)
    generator, holds = np.random.default_rng(0), 0
    for _ in range(400):
        strata = crossed(5, 6, generator)
        found = rise(*strata)
        holds += found.low <= 0 <= found.high
    assert 0.93 <= holds / 400 <= 0.98
    means = np.mean([each.y for each in strata], axis=0)
    interval = ttest_ind(means[:5], means[5:]).confidence_interval()
    # CR3 divides by n, not n - 1, and by what a kind's mean leaves of its seed
    assert found.high - found.low == pytest.approx(
        (interval.high - interval.low) * math.sqrt(4 / 5) / (4 / 5)
    )
    whole = rise(stratum(np.repeat([1.0, 0.0], 5), means))
    assert (found.effect, found.low, found.high) == pytest.approx(
        (whole.effect, whole.low, whole.high)
    )


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 20), (1, 2, 3, 10), (5, 5, 5, 5)])
def test_clusters_of_unequal_size_are_corrected_whole(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Without a difference the interval holds 0 in 95 of 100 samples or more.

    With residuals corrected run by run it held 0 in 38 of 100 in the first case.
    """
    monkeypatch.setattr(statistics, "DRAWN", 10)
    generator, holds = np.random.default_rng(1), 0
    clusters = np.repeat(np.arange(2 * len(sizes)), 2 * sizes)
    for _ in range(300):
        of_cluster = generator.standard_normal(2 * len(sizes))
        y = of_cluster[clusters] + generator.standard_normal(len(clusters)) / 2
        found = rise(stratum(clusters < len(sizes), y, [*clusters]))
        holds += found.low <= 0 <= found.high
    assert holds >= 0.92 * 300


def test_an_effect_does_not_rest_on_one_cluster() -> None:
    """One seed of a kind says nothing of how such seeds scatter, however many runs it has."""
    y = np.random.default_rng(0).standard_normal(30)
    x, sixths = np.repeat([1.0, 0.0], [5, 25]), [*np.repeat(range(6), 5)]
    assert find_rise([stratum(x, y, sixths)]) is None
    assert find_rise([stratum(x, y, sixths), stratum(x, y, sixths)]) is None
    other = stratum(np.repeat([1.0, 0.0], [15, 15]), y, sixths)
    assert find_rise([other]) is not None
    two = [stratum([1] * 21 + [0] * 10, np.arange(31.0) % 7, [0, *[1] * 20, *[2] * 5, *[3] * 5])]
    assert find_rise(two) is not None  # unequal, but two of each


def test_an_effect_beside_other_settings_does_not_rest_on_one_cluster() -> None:
    """In all other clusters the given setting determines the setting."""
    x, given = [0, 0, 0, 1, 1, 1, 0, 1], np.array([[0, 0, 0, 1, 1, 1, 0, 0]], float).T
    y = np.arange(8.0) ** 2
    assert find_rise([stratum(x, y, [0, 1, 2, 3, 4, 5, 6, 6], given=given)]) is None
    two = stratum([*x, 0, 1], np.arange(10.0) ** 2, [0, 1, 2, 3, 4, 5, 6, 6, 7, 7],
                  given=np.vstack([given, [[0], [0]]]))  # fmt: skip
    assert find_rise([two]) is not None


def test_what_a_given_setting_takes_up_whole_counts_as_nothing() -> None:
    """A dummy of one run removes it, whatever the size of the numbers."""
    generator = np.random.default_rng(0)
    x, y = 1e6 + generator.random(12), 1e6 + generator.random(12)
    seeds = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5]
    dummy = np.eye(12)[:, :1]
    found = rise(stratum(x, y, seeds, given=dummy))
    without = rise(stratum(x[1:], y[1:], seeds[1:]))
    span = np.ptp(x) / np.ptp(x[1:])
    assert found.high - found.low == pytest.approx(span * (without.high - without.low), rel=1e-4)


def test_rounding_takes_no_degree_of_freedom() -> None:
    """Two clusters that both have both kinds leave one."""
    x = [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert find_rise([stratum(x, np.arange(10.0) % 4, [0] * 6 + [1] * 4)]) is not None


def test_groups_that_scatter_unequally_are_not_called_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six runs scatter five times as much as forty others of the same mean: p keeps its level."""
    monkeypatch.setattr(statistics, "DRAWN", 199)
    generator, x, there = np.random.default_rng(0), np.repeat([1.0, 0.0], [6, 40]), 0
    for _ in range(200):
        found = rise(stratum(x, generator.standard_normal(46) * (1 + 4 * x)))
        there += found.p <= 0.05
    assert there <= 20  # 10 on average; more than 20 once in a thousand times


def test_power_is_what_simulated_samples_find() -> None:
    generator = np.random.default_rng(1)
    x = np.repeat([1.0, 0.0], 12)
    finds = np.mean([rise(stratum(x, generator.standard_normal(24))).finds for _ in range(50)])
    found = [rise(stratum(x, generator.standard_normal(24) + finds * x)).p for _ in range(200)]
    assert np.mean([p <= 0.05 for p in found]) == pytest.approx(0.8, abs=0.1)


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
    assert judge_effect(found, 0.3)[0] == verdict


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
    rows = runs().assign(run_id=[f"run-{i}" for i in range(80)]).to_dict("records")
    monkeypatch.setattr(compared, "read_table", lambda *_, **__: rows)
    asked = ["effect", str(tmp_path), "--of", "ood_accuracy", "--on", "gamma"]
    assert main([*asked, "--within", "layout", "--least", "0.3", "layout=pre"]) == 0
    shown = capsys.readouterr().out
    assert "That ood accuracy rises with initialisation rate" in shown
    assert "is supported" in shown
    assert (
        "n: 32 runs, 8 left out\n  without ood accuracy: 4 (run-8, run-18, run-28, run-38)" in shown
    )
    assert "\n  censored: 4 (run-9, run-19, run-29, run-39)\n" in shown
    assert main([*asked, "--within", "layout", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["of"], len(shown["left_out_runs"]["censored"])) == ("ood_accuracy", 8)
    assert shown["strata"]["post"]["left_out_runs"]["censored"][0] == "run-49"


@pytest.mark.parametrize(("shift", "step"), [(1e4, 0.1), (-1e7, 0.1), (1e10, 1.0)])
def test_ties_of_a_number_that_is_large_beside_its_spread(shift: float, step: float) -> None:
    """Rounding of a large number neither breaks ties of small differences nor hides these."""
    k = [0, 3, 0, 1, 1, 0, 2, 2, 0, 2, 1, 2]

    tables = ([{"kind": i // 6, "y": by + step * n} for i, n in enumerate(k)] for by in (0, shift))
    near, far = (answered(rows, of="y", on="kind") for rows in tables)
    assert far.p == near.p < 1
    assert far.effect == pytest.approx(near.effect, abs=1e-15 * abs(shift))


def test_numbers_that_differ_by_rounding_have_one_rank() -> None:
    """3 * 0.1 is 3 / 10; losses of other orders of magnitude stay apart."""
    x, k = np.arange(12.0), np.array([3, 1, 2, 3, 3, 1, 2, 6, 3, 4, 4, 6])
    exact = trend(stratum(x, k))
    mixed = np.where(np.arange(12) % 2, k * 0.1, k / 10)
    assert len({*mixed}) > len({*k})
    for y in (mixed, 1e4 + mixed, 10.0 ** -(4 * k)):
        found = trend(stratum(x, y * np.sign(y[7] - y[1])))
        assert found == exact
    alike = trend(stratum(x, np.where(np.arange(12) % 2, 0.1 + 0.2, 0.3)))
    assert (alike.effect, alike.p) == (0, 1)


def test_an_effect_that_is_the_least_but_for_rounding_counts() -> None:
    rows = [{"kind": i % 2, "y": 0.7 if i % 2 else 0.4} for i in range(20)]
    found = ai.effect(rows, of="y", on="kind", least=0.3)
    assert found.found is not None
    assert found.found.effect < 0.3
    assert found.verdict == "supported"


def few_runs(**more: Any) -> list[dict[str, Any]]:
    generator = np.random.default_rng(4)
    return [
        {"run_id": f"run-{i}", "gamma": i % 5 / 10, "y": float(generator.normal() + i % 5 / 3)}
        | more
        for i in range(20)
    ]


def test_a_run_counts_once_however_often_a_table_holds_it(caplog: pytest.LogCaptureFixture) -> None:
    rows = few_runs()
    asked: dict[str, Any] = {"of": "y", "on": "gamma"}
    once = ai.effect(rows, **asked)
    assert once.n == 20
    for often in (rows * 2, [*rows, *map(dict, rows)], pd.DataFrame(rows * 3)):
        assert ai.effect(often, **asked) == once
    timed = [row | {"seconds": 3.0, "memory": None} for row in rows]
    measured = [row | {"seconds": 4.0, "memory": i / 9} for i, row in enumerate(rows)]
    assert ai.effect([*timed, *measured], **asked).found == once.found
    assert ai.effect([*timed, *measured], of="y", on="memory").n == 20
    assert caplog.messages == []


def test_two_numbers_of_one_run_are_an_error() -> None:
    rows = few_runs()
    changed = [*rows, rows[3] | {"y": 0.25}]
    with pytest.raises(ConfigError, match=r"run run-3 has y .* and 0\.25; keep one of its rows"):
        ai.effect(changed, of="y", on="gamma")
    steps = [row | {"step": step, "y": row["y"] * step} for row in rows for step in (1, 2)]
    assert ai.effect(steps, of="y", on="gamma", where={"step": 2}).n == 20
    with pytest.raises(ConfigError, match="the run run-0 has"):
        ai.effect(steps, of="y", on="gamma")


def test_copies_without_a_name_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """They may be runs that agree, so they count, each as a run of its own."""
    rows = [{k: v for k, v in row.items() if k != "run_id"} for row in few_runs()]
    once = answered(rows, of="y", on="gamma")
    assert caplog.messages == []
    for often in (rows * 4, [dict(row) for row in rows for _ in range(4)]):
        assert ai.effect(often, of="y", on="gamma").n == 80
        caplog.clear()
        assert answered(often, of="y", on="gamma").finds < once.finds / 1.5
        (message,) = caplog.messages
        assert message.startswith("60 of 80 rows repeat another one whole and count as further")
        assert (
            f"initialisation rate \N{GREEK SMALL LETTER GAMMA} 0, y {rows[0]['y']:g}; " in message
        )
        assert message.endswith("a column run_id would tell copies from runs")


def test_the_order_of_runs_changes_nothing() -> None:
    """Drawn relabellings follow from the runs, not from where they stand in the table."""
    rows = [row | {"seed": i // 5, "half": i % 2} for i, row in enumerate(few_runs())]
    ways: list[dict[str, Any]] = [{}, {"cluster": ("seed",)}, {"within": ("half",)}]
    for asked in ways:
        one = ai.effect(rows, of="y", on="gamma", **asked)
        for order in (rows[::-1], sorted(rows, key=lambda row: row["y"])):
            assert ai.effect(order, of="y", on="gamma", **asked).found == one.found


SAID: dict[bool, list[Any]] = {
    True: [True, "True", "TRUE", "yes", " true ", "1", 1, 1.0, np.True_],
    False: [False, "False", "false", "no", "0", "", None, math.nan, 0, 0.0, np.False_],
}


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_short_numbers_of_a_table_are_those_that_it_prints(kind: type) -> None:
    """As Python's floats they are 0.30000001: ``where`` kept the runs at 0.5 alone."""
    rows = [{"gamma": gamma, "y": gamma + i / 8} for gamma in (0.3, 0.5, 0.7) for i in range(5)]
    whole = pd.DataFrame([*rows, {"gamma": math.nan, "y": 1.0}])
    short = whole.assign(gamma=whole["gamma"].astype(kind))
    for asked in ({"where": {"gamma": [0.3, 0.5, 0.7]}}, {"between": [0.3, 0.7]}):
        expected = ai.effect(whole, of="y", on="gamma", **asked)
        found = ai.effect(short, of="y", on="gamma", **asked)
        assert (found.n, found.kind, found.found) == (expected.n, expected.kind, expected.found)
    assert str(short["gamma"].dtype) == np.dtype(kind).name  # the table itself stays


def test_an_effect_in_small_units_is_printed() -> None:
    rows = [{"kind": kind, "y": (kind + i / 50) / 2e4} for kind in (0, 1) for i in range(10)]
    found = ai.effect(rows, of="y", on="kind", least=0)
    assert found.found is not None
    assert found.found.effect == pytest.approx(5e-5)
    low, high = found.found.low, found.found.high
    assert f"effect: 1 minus 0 +5e-05 [{low:.3g}, {high:.3g}]\n" in str(found)


def test_undertrained_runs_are_left_out_by_their_phase() -> None:
    """A table may lack the column ``censored``."""
    rows = [row | {"phase": "undertrained" if i < 4 else "composite"}
            for i, row in enumerate(few_runs())]  # fmt: skip
    found = ai.effect(rows, of="y", on="gamma")
    assert (found.n, found.left_out) == (16, 4)
    assert found.left_out_runs["undertrained"] == ("run-0", "run-1", "run-2", "run-3")
    whole = ai.effect([row | {"censored": i < 4} for i, row in enumerate(rows)], of="y", on="gamma")
    assert found.found == whole.found


@pytest.mark.parametrize("censored", SAID)
def test_a_flag_counts_as_what_it_says(censored: bool) -> None:
    for flag in SAID[censored]:
        rows = [row | {"censored": flag if i < 4 else False} for i, row in enumerate(few_runs())]
        found = ai.effect(rows, of="y", on="gamma")
        assert (found.n, found.left_out) == ((16, 4) if censored else (20, 0)), flag


@pytest.mark.parametrize("flag", ["perhaps", "nan", 2, 0.5, "-"])
def test_a_flag_that_says_nothing_is_refused(flag: Any) -> None:
    with pytest.raises(ConfigError, match=r"censored is .*; expected true or false"):
        ai.effect(few_runs(censored=flag), of="y", on="gamma")


def test_a_file_needs_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    """Flags may be texts, and missing numbers may be written."""
    rows = [{"width": 2**i, "error": i % 3, "score": i + (i % 2)} for i in range(9)]
    file = tmp_path / "own.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    found = ai.effect(file, of="score", on="width")
    assert (found.n, found.found) == (9, ai.effect(rows, of="score", on="width").found)
    pd.DataFrame(few_runs()).assign(censored=["yes"] * 4 + ["no"] * 16).to_csv(file, index=False)
    found = ai.effect(file, of="y", on="gamma")
    assert (found.n, found.left_out_runs) == (
        16, {"undertrained": ("run-0", "run-1", "run-2", "run-3")}
    )  # fmt: skip
    numbers = "".join(f"{i % 2},{i},r{i}\n" for i in range(16))
    file.write_text(f"kind,y,run_id\n{numbers}0,NaN,a\n0,nan,c\n")
    assert ai.effect(file, of="y", on="kind").left_out_runs == {"without y": ("a", "c")}


def test_runs_that_are_left_out_are_named_by_why() -> None:
    rows = few_runs(status="done", censored=False, layout="pre", phase="symmetric")
    rows[0]["status"], rows[1]["status"] = "missing", "failed"
    rows[2] |= {"censored": True, "phase": "undertrained"}
    rows[3] |= {"censored": True}
    rows[4]["y"] = rows[5]["gamma"] = None
    rows[6]["layout"] = "post"
    rows[7]["gamma"] = 0.77
    found = ai.effect(rows, of="y", on="gamma", within=("layout",))
    gamma = "without initialisation rate \N{GREEK SMALL LETTER GAMMA}"
    assert found.left_out_runs == {
        "missing": ("run-0",), "failed": ("run-1",), "undertrained": ("run-2",),
        "censored": ("run-3",), "without y": ("run-4",), gamma: ("run-5",),
        "in a stratum with too little to compare": ("run-6",),
    }  # fmt: skip
    assert (found.n, found.left_out) == (13, 7)
    assert found.strata["pre"].left_out == 6
    for name in ("run-0", "run-1", "run-6"):
        assert name in str(found)
    two = ai.effect(rows, of="y", on="gamma", between=(0.0, 0.1), least=0.3)
    assert two.verdict == "nothing comparable"
    unlearned = ai.effect([row | {"status": "failed"} for row in rows], of="y", on="gamma")
    assert "20 of 20 runs are left out: 20 failed" in str(unlearned)
    assert "failed: 20 (run-0, run-1, run-2, run-3, run-4, ...)" in str(unlearned)


def test_copies_of_runs_say_nothing_new_where_they_are_one_cluster() -> None:
    generator = np.random.default_rng(0)
    rows = [{"seed": i, "kind": i % 2, "y": float(generator.normal())} for i in range(16)]
    kinds: dict[str, Any] = {"of": "y", "on": "kind", "cluster": ("seed",)}
    once, often = (answered(each, **kinds) for each in (rows, rows * 20))
    assert often.finds > 0.8 * once.finds
    verdicts = {ai.effect(each, **kinds).verdict for each in (rows, rows * 20)}
    assert verdicts == {"not answerable here"}
    rows = [{"seed": i, "x": float(i), "y": float(generator.normal())} for i in range(20)]
    one, many = (answered(each, of="y", on="x", cluster=("seed",)) for each in (rows, rows * 20))
    assert many.finds == pytest.approx(one.finds)


@pytest.mark.parametrize("number", [np.float64, np.float32, Decimal, Fraction])
def test_numbers_of_any_kind_are_numbers(number: Any) -> None:
    rows = few_runs(seed=3)
    for row in rows:
        row["y"] = round(row["y"], 3)
    given = [row | {"y": number(str(row["y"])), "gamma": number(str(row["gamma"])),
                    "seed": np.int64(3)} for row in rows]  # fmt: skip
    asked: dict[str, Any] = {"of": "y", "on": "gamma", "within": ("seed",)}
    assert answered(rows, **asked) == answered(given, **asked)
    assert {*ai.effect(rows, **asked).strata} == {*ai.effect(given, **asked).strata} == {"3"}


def test_values_that_differ_by_rounding_are_one_setting() -> None:
    rows = [{"gamma": (0.1 + 0.2, 0.3, 0.6)[i % 3], "y": float(i)} for i in range(30)]
    found = ai.effect(rows, of="y", on="gamma")
    assert (found.kind, found.n) == ("0.6 minus 0.3", 30)
    assert ai.effect(rows, of="y", on="gamma", between=(0.1 + 0.2, 0.6)).n == 30


def test_a_runs_name_may_be_a_text_or_a_number() -> None:
    rows = few_runs()
    for i, row in enumerate(rows):
        row["run_id"] = str(i)
    again = [row | {"run_id": kind(i)} for kind in (int, float) for i, row in enumerate(rows)]
    assert ai.effect([*rows, *again], of="y", on="gamma").n == len(rows)


def test_missing_settings_are_one_stratum() -> None:
    rows = [{"g": i % 5, "y": float(i), "w": (None, math.nan)[i % 2]} for i in range(20)]
    names: Any
    for names in ("w", ["w"], {"w"}, pd.Index(["w"])):
        assert ai.effect(rows, of="y", on="g", within=names).strata.keys() == {"none"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on": "width"}, "width holds texts; give two of them as between: 128, 64"),
        ({"least": -0.3}, "least is -0.3"),
        ({"least": "x"}, "least is 'x'"),
        ({"between": ([1], [2])}, "between is "),
        ({"between": 3}, "between is 3; expected two values of kind: 0, 1"),
        ({"between": (0, 7)}, "expected two values of kind: 0, 1"),
    ],
)
def test_wrong_questions_are_refused(settings: dict[str, Any], message: str) -> None:
    rows = [{"kind": i % 2, "y": float(i), "width": ("64", "128")[i % 2]} for i in range(16)]
    with pytest.raises(ConfigError, match=message):
        ai.effect(rows, **{"of": "y", "on": "kind"} | settings)


def test_rows_of_a_run_are_told_in_tables_of_pandas(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"of": "y", "on": "gamma"}
    table = pd.DataFrame(few_runs())
    once, thrice = ai.effect(table, **asked), pd.concat([table] * 3)
    assert ai.effect(thrice.set_index("run_id"), **asked) == once
    assert caplog.messages == []
    thrice.drop(columns="run_id").reset_index().to_csv(tmp_path / "table.csv")
    assert ai.effect(tmp_path / "table.csv", **asked).n == 60
    assert caplog.messages.pop().startswith("40 of 60 rows repeat another one whole")
    steps = pd.concat([table.assign(step=i, y=table.y + i) for i in (0, 1)])
    ai.effect(steps.drop(columns="run_id"), **asked)
    assert "rows of several steps count as a run each" in caplog.messages[-1]
    with pytest.raises(ConfigError, match="the column 'y' occurs twice"):
        ai.effect(pd.concat([table, table[["y"]] * 0], axis=1), **asked)


def test_runs_without_a_cluster_are_no_cluster() -> None:
    """They counted as one; a run whose seed nobody wrote down may be of any."""
    y = np.random.default_rng(0).standard_normal(30)
    rows = [{"x": i % 2, "y": y[i], "seed": i if i < 20 else None} for i in range(30)]
    found = ai.effect(rows, of="y", on="x", cluster=["seed"])
    assert {why: len(names) for why, names in found.left_out_runs.items()} == {"without seed": 10}
    assert found.found == ai.effect(rows[:20], of="y", on="x", cluster=["seed"]).found


def test_runs_that_did_not_converge_and_would_change_a_verdict_leave_it_open() -> None:
    rows = [row | {"y": row["gamma"] + 0.01 * row["y"]} for row in few_runs()]
    assert ai.effect(rows, of="y", on="gamma").verdict == "supported"
    low = [
        {"run_id": f"low-{i}", "gamma": 0.9 - 0.1 * (i % 2), "y": -9.0, "censored": True}
        for i in range(12)
    ]
    found = ai.effect([*rows, *low], of="y", on="gamma")
    every = ai.effect([*rows, *(row | {"censored": False} for row in low)], of="y", on="gamma")
    assert every.found is not None
    assert found.with_unfitted == every.found
    assert found.found != every.found
    assert (found.verdict, found.n, found.left_out) == ("inconclusive", 20, 12)
    assert f"{every.found.effect:+.2f} with runs that did not converge" in str(found)


def fitted(gamma: float, mean: float, n: int, **more: Any) -> list[dict[str, Any]]:
    return [{"gamma": gamma, "y": mean + i / 100, "seed": i, "censored": False} | more
            for i in range(n)]  # fmt: skip


def test_a_value_or_stratum_that_did_not_converge_counts_against_a_verdict() -> None:
    """Though the runs that did have two values of the setting, or none in the stratum."""
    rows = [*fitted(0.3, 0.2, 8), *fitted(0.5, 0.9, 8)]
    low = fitted(0.7, 0.0, 8, censored=True)
    assert ai.effect(rows, of="y", on="gamma").verdict == "supported"
    assert ai.effect([*rows, *low], of="y", on="gamma").verdict == "inconclusive"
    inside = [row | {"lr": 1} for row in rows]
    other = [*fitted(0.3, 0.9, 8, lr=2), *fitted(0.5, 0.0, 8, lr=2, censored=True)]
    found = ai.effect([*inside, *other], of="y", on="gamma", within=["lr"], between=[0.3, 0.5])
    assert (found.verdict, found.strata["1"].verdict) == ("inconclusive", "supported")
    for broken in ({"y": math.inf}, {"y": "n/a"}, {"gamma": "auto"}):
        some = [*rows, low[0] | broken, *low]
        assert ai.effect(some, of="y", on="gamma").verdict == "inconclusive"


def test_none_is_a_word_where_a_table_has_it() -> None:
    rows = [row | {"aug": ("none", "flip")[i % 2]} for i, row in enumerate(few_runs())]
    assert ai.effect(rows, of="y", on="gamma", where={"aug": "none"}).n == 10
    assert ai.effect(rows, of="y", on="aug", between=["none", "flip"]).n == 20
    empty = [row | {"aug": None if row["aug"] == "none" else "flip"} for row in rows]
    assert ai.effect(empty, of="y", on="gamma", where={"aug": "none"}).n == 10


def test_a_status_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"status is 'finished'; expected done, .*: write done"):
        ai.effect(few_runs(status="finished"), of="y", on="gamma")
