"""The claims on drawings of unseen concepts, on made-up rows, and their figure."""

from pathlib import Path

import numpy as np
import pytest
from killed_training import config as of_preset

from anchor_interp.runs.config import override
from anchor_interp.runs.train import train
from control_7_concepts import draw
from measures import attributes
from papers.claims import CLAIMS
from papers.judging import Judgement, judge
from papers.rows import Row
from papers.section_7_runs import CONCEPT_GAMMAS, SEEDS
from papers.studies import study_sweep
from papers.tables import read_study, write_rows
from section import Data, montage

NAMES = ("c7-concepts", "c7-concepts-whole")


def made_up(shapes: dict[float, float], *, trained: float = 1.0) -> list[Row]:
    """Rows with about these shares of right shapes, by gamma."""
    generator = np.random.default_rng(0)
    return [
        {
            "run_id": f"{gamma}-{seed}", "status": "done", "phase": None, "scale": "tiny",
            "censored": trained < 0.9, "seed": seed, "gamma": gamma, "train_accuracy": trained,
            "ood_shape": (share := float(np.clip(mean + generator.normal(0, 0.03), 0, 1))),
            "ood_accuracy": share * 0.95,
        }
        for gamma, mean in shapes.items()
        for seed in SEEDS
    ]  # fmt: skip


def judged(rows: list[Row]) -> list[Judgement]:
    found = judge(CLAIMS, {"concepts": rows})
    return [found[name] for name in NAMES]


def test_every_claim_can_be_supported_and_not_supported() -> None:
    default, *between, small = CONCEPT_GAMMAS
    middle = dict.fromkeys(between, 0.5)
    as_claimed = judged(made_up({default: 0.05, **middle, small: 0.95}))
    assert {found.verdict for found in as_claimed} == {"supported"}
    otherwise = judged(made_up({default: 0.95, **middle, small: 0.9}))
    assert {found.verdict for found in otherwise} <= {"not supported", "reversed"}


def test_the_papers_gamma_is_judged_on_other_seeds() -> None:
    for small, verdict in ((0.6, "supported"), (0.0, "reversed")):
        rows = made_up({0.5: 0.2, 0.8: small})
        more = [row | {"run_id": f"{row['run_id']}-b", "seed": row["seed"] + 9} for row in rows]
        found = judge(CLAIMS, {"concepts-judging": rows + more})["c7-concepts-again"]
        assert found.verdict == verdict
    for scale in ("tiny", "small", "paper"):
        again, first = (
            {config.seed for config in study_sweep(name, scale).configs().values()}
            for name in ("concepts-judging", "concepts")
        )
        assert (len(again), again & first) == (10, set())


def test_runs_that_do_not_draw_what_they_were_trained_on_are_not_compared() -> None:
    rows = made_up({CONCEPT_GAMMAS[0]: 0.05, CONCEPT_GAMMAS[-1]: 0.95}, trained=0.8)
    for found in judged(rows):
        assert found.verdict not in ("supported", "not supported")
        assert found.finding is None or sum(found.finding.n) == 0


def test_a_table_holds_what_runs_on_pictures_have(tmp_path: Path) -> None:
    whole = {
        "reason": "",
        "task": "concepts",
        "weight_decay": 0.0,
        "steps": 9,
        "model.n_features": 8,
    }
    rows = [row | whole for row in made_up({0.5: 0.1, 0.8: 0.9})]
    for row in rows:
        row.update(phase="other", n_sequences=9, lr=1e-3, normalization=None, n_layers=None)
    write_rows(tmp_path / "concepts.csv", rows)
    assert [row["ood_shape"] for row in read_study(tmp_path / "concepts.csv")] == [
        row["ood_shape"] for row in rows
    ]


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_runs_differ_in_gamma_and_seed_alone(scale: str) -> None:
    found = study_sweep("concepts", scale).configs().values()
    assert len(found) == len(SEEDS) * len(CONCEPT_GAMMAS)
    assert len({override(config, gamma=0.5, seed=0) for config in found}) == 1
    assert {config.init.weights for config in found} == {"uniform"}
    sizes = {vars(config.model)["d_image"] for config in found}
    assert sizes == {28 if scale == "tiny" else 64}


def test_the_figure_shows_runs_whose_folders_are_there(tmp_path: Path) -> None:
    tiny = override(of_preset("concepts"), steps=4, eval_every=4)
    run = train(tiny, tmp_path / "sweep" / "runs" / "one", device="cpu", quiet=True)
    numbers = attributes(run)
    assert set(numbers) == {
        f"{s}_{a}" for s in ("train", "ood") for a in ("shape", "size", "colour")
    }
    rows = made_up({0.5: 0.1, 0.8: 0.9})
    rows[0]["run_id"] = "one"
    without = draw(Data("tiny", {"concepts": rows[1:]}, tmp_path / "tables"))
    whole = draw(Data("tiny", {"concepts": rows}, tmp_path / "tables"))
    assert [len(row) for row in without] == [3]
    assert [len(row) for row in whole] == [1, 3]
    assert whole[0][0][0] == "(B) gamma 0.5"
    assert montage(whole).startswith(b"\x89PNG")
