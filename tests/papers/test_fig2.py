"""Figure 2 at the paper's width: what curves say, the claims on them, and which runs there are."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from short import SHORT

import anchor_interp as ai
import curves
from claim_effects import Row
from claims import judge
from neurips import fig2_solutions as wide

STUDY = "figure2-wide"
OWN = tuple(claim for claim in wide.CLAIMS if claim.effect.runs == (STUDY,))
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
    judged = judge(OWN, {STUDY: wide.witnesses(study())})
    verdicts = {name: found.verdict for name, found in judged.items()}
    assert set(verdicts.values()) == {"supported"}
    turned = judge(OWN, {STUDY: wide.witnesses(study(turned=True))})
    assert turned["fig2-inferential"].verdict == turned["fig2-symmetric"].verdict == "reversed"


@pytest.mark.parametrize(("counts", "n"), [
    (lambda row: row["n_layers"] == 2 and row["gamma"] < 0.9, 12),  # less than half
    (lambda row: row["lr"] < 1.2e-4, 0),  # a rate of every seed is missing
])  # fmt: skip
def test_fewer_than_half_of_the_planned_seeds_answer_nothing(
    counts: Callable[[Row], bool], n: int
) -> None:
    judged = judge(OWN, {STUDY: wide.witnesses([row for row in study() if counts(row)])})
    found = judged["fig2-inferential"]
    reason = f"{n} of 30 planned seeds count"
    assert (found.verdict, found.reason) == ("not answerable here", reason)


def test_the_best_along_training_counts_runs_that_have_not_fitted() -> None:
    rows = [row for row in study() if row["gamma"] < 0.9 or row["train"] < 0.95]
    judged = judge(OWN, {STUDY: wide.witnesses(rows)})
    finding, end = (judged[name].finding for name in ("fig2-inferential", "fig2-inferential-end"))
    assert finding is not None
    assert end is not None
    assert (finding.n, end.n, end.censored) == ((30,), (24,), 6)


def test_a_run_that_was_stopped_ends_with_the_same_curve(tmp_path: Path) -> None:
    config = ai.preset("tiny", task="neurips", **{**SHORT, "eval_every": 10, "log_every": 10})
    cpu, signals = torch.device("cpu"), iter([False, True])
    row_of = partial(curves.answered, config.anchor_task)
    whole = curves.train(config, tmp_path / "whole", cpu, lambda: False, row_of)
    assert [row["step"] for row in whole] == [*range(10, config.train.steps + 1, 10)]
    assert curves.train(config, tmp_path / "parts", cpu, lambda: next(signals), row_of) == []
    assert curves.train(config, tmp_path / "parts", cpu, lambda: False, row_of) == whole


def test_the_committed_table_has_every_run() -> None:
    table = wide.RUNS[STUDY].table(Path(curves.__file__).parent / "tables", STUDY)
    rows = curves.read_curves(table)
    found = {(row["n_layers"], row["gamma"], row["lr"], row["seed"]) for row in rows}
    runs = ((run.model.n_layers, run.init.gamma, run.train.lr, run.seed) for run in wide.wide())
    assert found == {*runs}
