"""Figure 2 at the paper's width: what curves say, and the claims on them."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from test_tables import TABLES

import neurips_4
import section
from papers import wide
from papers.claims import CLAIMS, NAMED, REGISTERED
from papers.judging import judge
from papers.rows import Row
from papers.tables import read_study

OWN = tuple(claim for claim in CLAIMS if claim.studies == (wide.STUDY,))
GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)


def curve(small: float, noise: float) -> list[Row]:
    """The rule comes first, gives way while the exception is learned, and comes back."""
    rule = [0.0, 0.7, 0.1, 0.8, 0.8]
    symmetric = [0.0, 0.1, 0.3, 1.0, 1.0]
    broken, train = [0.0, 0.1, 0.9, 1.0, 1.0], [0.2, 0.6, 0.9, 0.99, 1.0]
    return [
        {"step": 50.0 * i, "train": t, "id": t, "broken": b,
         "x-10": min(1.0, max(0.0, small * r + noise)), "x-6": (1 - small) * s}
        for i, (r, s, b, t) in enumerate(zip(rule, symmetric, broken, train, strict=True))
    ]  # fmt: skip


def study(turned: bool = False) -> list[Row]:
    generator, rows = np.random.default_rng(0), []
    for depth, gamma, seed in itertools.product((2, 3), GAMMAS, range(3)):
        for rate in wide.RATES[depth]:
            small = GAMMAS.index(gamma) / 4
            about = {"run_id": f"{depth}-{gamma}-{seed}-{rate}", "n_layers": float(depth),
                     "gamma": gamma, "seed": 1e6 + 100 * depth + 10 * GAMMAS.index(gamma) + seed,
                     "lr": rate}  # fmt: skip
            noise = float(generator.normal(0, 0.03))
            rows += [about | row for row in curve(1 - small if turned else small, noise)]
    return rows


def test_a_seed_at_all_its_rates_is_one_witness() -> None:
    found = wide.witnesses(study())
    assert len({row["run_id"] for row in found}) == 30
    assert {(row["n_layers"], row["rates"]) for row in found} == {(2, 5), (3, 2)}
    largest = next(row for row in found if row["gamma"] == 0.95)
    assert largest["before"] == pytest.approx(0.7, abs=0.1)
    assert largest["gives_way"] == pytest.approx(0.6, abs=0.1)
    assert largest["comes_back"] == pytest.approx(0.7, abs=0.1)


def test_what_a_run_passes_through_counts_in_the_best_and_not_at_the_end() -> None:
    rows = [row for row in study() if row["gamma"] == 0.95][:5]
    rows[-1] = rows[-1] | {"x-10": 0.0}
    (found,) = wide.witnesses(rows)
    assert found["best_ood"] > 0.7
    assert found["end_ood"] == 0
    (unfitted,) = wide.witnesses(rows[:3])
    assert unfitted["censored"]
    assert unfitted["end_ood"] is None


def test_the_claims_follow_the_curves() -> None:
    judged = judge(OWN, {wide.STUDY: wide.witnesses(study())})
    verdicts = {name: found.verdict for name, found in judged.items()}
    assert set(verdicts.values()) == {"supported"}
    turned = judge(OWN, {wide.STUDY: wide.witnesses(study(turned=True))})
    assert turned["fig2-inferential"].verdict == turned["fig2-symmetric"].verdict == "reversed"


@pytest.mark.parametrize(("fits", "verdict"), [(True, "supported"), (False, "inconclusive")])
def test_runs_that_have_not_fitted_cannot_darken_the_shaded_zone(fits: bool, verdict: str) -> None:
    """Half of the runs of large weights fail on seen pairs; they count if they have fitted."""
    rows: list[Row] = [
        {"run_id": f"{gamma}-{seed}", "status": "done", "phase": None, "seed": 10 * gamma + seed,
         "gamma": gamma, "censored": gamma == 0.2 and not fits,
         "best_id_accuracy": (0.1 if gamma == 0.2 else 1.0) - 0.001 * seed}
        for gamma, n in ((0.2, 6), (0.3, 6), (0.5, 8)) for seed in range(n)
    ]  # fmt: skip
    claim = NAMED["fig2-shadow"]
    assert judge((claim,), {"deep": rows})["fig2-shadow"].verdict == verdict


def test_fewer_than_half_of_the_planned_runs_answer_nothing() -> None:
    rows = [row for row in study() if row["n_layers"] == 2 and row["gamma"] < 0.9]
    judged = judge(OWN, {wide.STUDY: wide.witnesses(rows)})
    found = judged["fig2-inferential"]
    assert (found.verdict, found.reason) == (
        "not answerable here", "12 of 30 planned seeds count",
    )  # fmt: skip
    assert judged["fig2-rule-first"].verdict == "not answerable here"  # 9 of 24


def test_a_seed_that_lacks_a_rate_does_not_count() -> None:
    rows = [row for row in study() if row["lr"] < 1.2e-4]
    found = judge(OWN, {wide.STUDY: wide.witnesses(rows)})["fig2-symmetric"]
    assert (found.verdict, found.reason) == ("not answerable here", "0 of 30 planned seeds count")


def test_the_best_along_training_counts_runs_that_have_not_fitted() -> None:
    rows = [row for row in study() if row["gamma"] < 0.9 or row["train"] < 0.95]
    judged = judge(OWN, {wide.STUDY: wide.witnesses(rows)})
    finding, end = (judged[name].finding for name in ("fig2-inferential", "fig2-inferential-end"))
    assert finding is not None
    assert end is not None
    assert (finding.n, end.n, end.censored) == ((30,), (24,), 6)


def test_depths_that_disagree_are_mixed() -> None:
    deep = [row for row in study(turned=True) if row["n_layers"] == 3]
    rows = [row for row in study() if row["n_layers"] == 2] + deep
    judged = judge(OWN, {wide.STUDY: wide.witnesses(rows)})
    assert judged["fig2-inferential"].verdict == "mixed"


def test_claims_say_what_was_registered() -> None:
    for claim in OWN:
        said = REGISTERED[claim.name]
        assert (claim.sentence, claim.statistic) == (said["sentence"], said["statistic"])
        assert (claim.minimum, claim.ours) == (said["least"], said["by"] == "ours")


def test_the_table_of_curves_is_read(tmp_path: Path) -> None:
    rows = study()
    with (tmp_path / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert wide.witnesses(wide.read_curves(tmp_path / "curves.csv")) == wide.witnesses(rows)


def test_the_figure_shows_answers_and_courses(tmp_path: Path) -> None:
    """Both answers and the curves of each depth at the paper's width, then the study ``depth``."""
    place, curves = tmp_path / "tiny", study()
    wide.curves_table(place).parent.mkdir()
    with wide.curves_table(place).open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(curves[0]))
        writer.writeheader()
        writer.writerows(curves)
    tables = {"depth": read_study(TABLES / "depth.csv"), wide.STUDY: wide.witnesses(curves)}
    panels = neurips_4.draw(section.Data("tiny", tables, place))
    titles = [[title for title, _ in row] for row in panels]
    answers = ("(a) symmetric", "(b) inferential")
    assert titles[0] == [f"{title}, {depth} layers" for title in answers for depth in (2, 3)]
    assert titles[1:3] == [["along training, 2 layers"], ["along training, 3 layers"]]
    ((_, figure),) = panels[1]
    assert len(figure.axes) == 5  # gammas
    assert (
        len(figure.axes[0].lines) == 4 * 15
    )  # two answers and their ends, five rates, three seeds
    assert section.montage(panels).startswith(b"\x89PNG")
