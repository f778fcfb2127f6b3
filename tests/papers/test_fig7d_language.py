"""The claims of figure 7D on made-up runs; the crossing of curves that are known."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from findings import told

import anchor_interp
import measures
from anchor_interp.realistic import corpus_tokens
from anchor_interp.realistic.corpus import Corpus
from claim_effects import Row
from claims import judge
from complexity_control.fig7d_language import CLAIMS, GAMMAS, crossing, curves
from measures import CURVE, CURVE_POINTS

NAMES, SEEDS = {claim.name for claim in CLAIMS}, range(1000, 1005)
STEP = 64 * 32 * 128  # tokens between two points


def made_up(gap: list[float], *, noise: float = 0.01, steps: int = 960) -> list[Row]:
    """Runs whose held-out loss at the small initialisation is larger by ``gap`` at every point."""
    generator, rows = np.random.default_rng(0), []
    for part, gamma, seed in itertools.product(("code", "both"), GAMMAS, SEEDS):
        base = 2.5 - 0.05 * np.arange(CURVE_POINTS) + generator.normal(0, noise, CURVE_POINTS)
        losses = base + np.array(gap) * (gamma == GAMMAS[1])
        rows.append({
            "run_id": f"{part}-{gamma}-{seed}", "status": "done", "phase": "undertrained",
            "censored": True, "seed": seed, "task": f"corpus-{part}",
            "task.part": part, "task.limit": 1 << 26, "length": 128, "normalization": "pre",
            "gamma": gamma, "gamma_qk": None, "weight_decay": 0.1, "n_layers": 3, "d_model": 128,
            "lr": 2e-3, "steps": steps, "batch_size": 32, "n_sequences": 30_720, "eval_every": 64,
            "train_accuracy": 0.5, "id_accuracy": 0.5, "ood_accuracy": None,
            "held_out_loss": losses[-1],
            **{f"{CURVE}{point:02}": loss for point, loss in enumerate(losses, 1)},
        })  # fmt: skip
    return rows


def test_every_claim_can_be_supported_and_reversed() -> None:
    falling, enough = list(np.linspace(0.2, -0.1, CURVE_POINTS)), 600_000  # 2.5 billion tokens
    for gap, verdict in ((falling, "supported"), ([-g for g in falling], "reversed")):
        found = judge(CLAIMS, {"language": made_up(gap, steps=enough)})
        assert {name: found[name].verdict for name in NAMES} == dict.fromkeys(NAMES, verdict)
    effect = judge(CLAIMS, {"language": made_up(falling, steps=enough)})["c7-slimpajama"].finding
    assert told(effect).effect == pytest.approx(0.1, abs=0.02)
    assert effect is not None
    assert effect.n == (10, 10)
    early = judge(CLAIMS, {"language": made_up(falling)})["c7-slimpajama"]
    assert early.verdict == "not answerable here"  # before the paper's curves cross


def test_a_crossing_is_where_the_means_meet_on_a_scale_of_logarithms() -> None:
    gap = [0.3] * 6 + [0.1, -0.1] + [-0.3] * 7  # half-way between points 7 and 8
    rows = made_up(gap, noise=0.0)[:10]
    assert crossing(rows) == pytest.approx(STEP * np.sqrt(7 * 8))
    for never in ([0.1] * CURVE_POINTS, [-0.1] * CURVE_POINTS):
        assert crossing(made_up(never, noise=0.0)[:10]) is None


def test_one_initialisation_alone_crosses_nothing_and_is_drawn() -> None:
    rows = [row for row in made_up([0.1] * CURVE_POINTS)[:10] if row["gamma"] == GAMMAS[0]]
    assert crossing(rows) is None
    (axes,) = curves(rows).axes
    assert len(axes.get_lines()) == len(SEEDS) + 1  # every run and the mean


def test_a_run_is_measured_along_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    for number in range(30):
        text = "\n".join(f"def f{number}_{line}(x): return x" for line in range(20))
        (tmp_path / "texts" / f"m{number}.py").write_text(text)
    config = anchor_interp.preset(
        "language-tiny", task=Corpus(source=f"folder:{tmp_path / 'texts'}", length=16), n_ctx=16,
        n_layers=1, d_model=16, d_head=4, d_mlp=16, n_sequences=100, batch_size=8, steps=30,
        eval_every=2, checkpoint_every=30,
    )  # fmt: skip
    run = anchor_interp.train(config, tmp_path / "run", device="cpu", threads=1, quiet=True)
    corpus_tokens._opened.cache_clear()
    found = measures.language(run)
    assert found["held_out_loss"] == run.evaluation.splits[1].loss
    assert found["other_loss"] is None
    assert found[f"{CURVE}01"] == next(r["id_loss"] for r in run.metrics if r["step"] == 2)
    assert f"{CURVE}{CURVE_POINTS}" in found
