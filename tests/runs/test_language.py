"""Language models through training and judging: perplexity, bits per byte, data, large corpora."""

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import anchor_interp
from anchor_interp._util.errors import InterruptedRunError, StoreError
from anchor_interp.behaviour.evaluation import evaluate
from anchor_interp.cli.main import main
from anchor_interp.models.complexity import complexity
from anchor_interp.models.shapes import MODELS, InitConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.realistic import corpus_tokens
from anchor_interp.realistic.corpus import Corpus
from anchor_interp.runs import session
from anchor_interp.runs.config import RunConfig, memory_bytes, override
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import MaskedObjective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.train import train
from anchor_interp.tasks.contract import draw_examples
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.task import Task

CPU = torch.device("cpu")
SMALL = {"n_layers": 2, "d_model": 32, "d_head": 8, "d_mlp": 64, "batch_size": 8, "log_every": 5}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    corpus_tokens._opened.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    for number in range(30):
        text = "\n".join(f"def f{number}_{line}(x): return x + {line}" for line in range(20))
        (root / f"m{number}.py").write_text(text)
    for number in range(20):
        (root / f"{number}.md").write_text(f"The word of day {number} is hapax. " * 30)
    return root


@pytest.fixture(scope="module")
def config(folder: Path) -> RunConfig:
    task = Corpus(source=f"folder:{folder}", part="code", length=32)
    changes = {"n_sequences": 200, "steps": 20, "eval_every": 10, "checkpoint_every": 10}
    return preset("language-tiny", task=task, n_ctx=32, **(SMALL | changes))


@pytest.fixture(scope="module")
def run(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> anchor_interp.Run:
    out = tmp_path_factory.mktemp("language") / "run"
    return train(config, out, device="cpu", threads=1, quiet=True)


def test_a_uniform_models_perplexity_is_the_vocabulary(config: RunConfig) -> None:
    model = build_model(config.model, InitConfig(), seed=0)
    with torch.no_grad():
        model.unembed.W_U.zero_()
        model.unembed.b_U.zero_()
    found = evaluate(model, config.task, n=20)
    for score in found.splits:
        assert score.perplexity == pytest.approx(257, rel=1e-5)
        drawn = draw_examples(config.task, score.name, score.n, seed=found.seed)
        n_bytes = sum(len(config.task.decode(row[1:]).replace("<|endoftext|>", "").encode())
                      for row in drawn.tokens)  # fmt: skip
        expected = math.log2(257) * score.n * 32 / n_bytes
        assert score.bits_per_byte == pytest.approx(expected, rel=1e-5)
    assert anchor_interp.preset("scan").task.n_bytes(drawn) is None


def test_a_memorised_text_has_a_perplexity_near_one(config: RunConfig, tmp_path: Path) -> None:
    changes = {"n_sequences": 8, "steps": 150, "lr": 5e-3, "eval_every": 150, "gamma": 0.7}
    run = train(override(config, **changes), tmp_path / "run", device="cpu", threads=1, quiet=True)
    train_split, held_out = run.evaluation.splits[:2]
    assert train_split.perplexity is not None
    assert held_out.perplexity is not None
    assert train_split.perplexity < 1.1
    assert held_out.perplexity > 2
    assert run.answer(["def f"], most=4)[0].encode()


def test_metrics_tell_losses_and_tokens_seen(run: anchor_interp.Run, config: RunConfig) -> None:
    rows = [row for row in run.metrics if "id_loss" in row]
    assert [row["tokens"] for row in rows] == [0, 10 * 8 * 32, 20 * 8 * 32]
    assert rows[0]["id_loss"] > rows[-1]["id_loss"]
    assert set(rows[-1]) >= {"train_loss", "ood_loss", "ood_accuracy"}
    model = run.at(10).model
    drawn = draw_examples(config.task, "held-out", 40, seed=1)
    with torch.no_grad():
        tokens = torch.from_numpy(drawn.tokens.astype(np.int64))
        loss = model(tokens[:, :-1]).flatten(0, 1)
        found = torch.nn.functional.cross_entropy(loss, tokens[:, 1:].flatten())
    assert rows[1]["id_loss"] == pytest.approx(float(found), abs=0.3)  # of other windows
    along = run.at_every_step(complexity)
    assert sorted(along) == [0, 10, 20]
    sums = run.at_every_step(lambda model: float(model.W_E.detach().sum()))
    assert sums == {s: float(run.at(s).model.W_E.detach().sum()) for s in (0, 10, 20)}
    assert len({*sums.values()}) == 3
    scan = anchor_interp.preset("scan", steps=2)
    assert session.tokens_seen(scan, drawn, 2) == {}


def test_tokens_that_are_not_predicted_are_not_seen(config: RunConfig) -> None:
    """A task of a user may mask some tokens, and have examples of several lengths."""
    drawn = draw_examples(config.task, "held-out", 4, seed=1)
    mask = np.array(drawn.mask)
    mask[:2, 5:], mask[2:, :9] = False, False
    masked = Dataset(drawn.tokens, mask, drawn.lengths)
    assert session.tokens_seen(config, masked, 10) == {"tokens": 10 * 8 * (4 + 24) // 2}


def test_reports_and_evaluate_tell_perplexity(
    run: anchor_interp.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", run.name, "--n", "20", "--quiet"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "held-out (id)" in line]
    score = run.evaluate(n=20).splits[1]
    assert f"perplexity {score.perplexity:.4g}, {score.bits_per_byte:.4g} bits a byte" in line
    assert main(["report", run.name, "--out", str(tmp_path / "r.html"), "--quiet"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "bits a byte" in page
    assert "Perplexity by the tokens" in page
    assert "batches of long answers" not in page  # all windows have one length


def test_a_run_whose_corpus_has_changed_is_not_resumed(
    config: RunConfig,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        keep = session.Session.keep

        def leaving(self: session.Session, **_: Any) -> None:
            keep(self)
            if self.state.step == 10:
                raise InterruptedRunError("a stop")

        patch.setattr(session.Session, "keep", leaving)
        with pytest.raises(InterruptedRunError):
            train(config, out, device="cpu", threads=1, quiet=True)
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*") if path.is_file())
    path = folder / "m1.py"
    text = path.read_text()
    anchor_interp.load(out).evaluate(n=2)
    assert "other data" not in caplog.text
    try:
        path.write_text(text + "\nx = 1")
        corpus_tokens._opened.cache_clear()
        anchor_interp.load(out).evaluate(n=2)
        assert "was trained on other data (digest" in caplog.text
        assert "and is measured on what there is now" in caplog.text
        with pytest.raises(StoreError, match=r"trained on other data \(digest \w+, now \w+\)"):
            train(config, out, device="cpu", threads=1, quiet=True)
    finally:
        path.write_text(text)
        corpus_tokens._opened.cache_clear()
    after = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*") if path.is_file())
    lock = out / ".lock"
    assert [each for each in after if each[0] != lock] == [
        each for each in before if each[0] != lock
    ]
    assert train(config, out, device="cpu", threads=1, quiet=True).steps[-1] == 20


@dataclass(frozen=True)
class Endless(Task):
    """Four billion tokens that take no memory, as a file that is mapped."""

    kind: Literal["endless"] = "endless"

    words = tuple(map(chr, range(97, 107)))
    length = 1024
    splits = (Split("train", "train"), Split("id", "id"))
    mapped = True

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        del split, seed
        row = np.arange(1025, dtype=np.uint16) % 10
        tokens = np.broadcast_to(row, (n, 1025))
        mask = np.broadcast_to(np.arange(1025) > 0, (n, 1025))
        return Dataset(tokens, mask, np.broadcast_to(np.int64(1025), n))


def test_a_corpus_larger_than_memory_trains() -> None:
    n = 4_000_000
    config = preset("language-tiny", task=Endless(), n_ctx=1024, n_sequences=n, **SMALL)
    assert memory_bytes(config)["training sequences"] == 24 * n
    tracemalloc.start()
    try:
        training = draw_examples(config.task, "train", n, seed=0)
        checked = tracemalloc.get_traced_memory()[1]
        objective = MaskedObjective(config, training, CPU)
        train_step(TrainState.fresh(config, CPU), objective)
        trained = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert checked < 60 << 20  # its mask alone would have 4 GB
    assert trained < 24 * n + (120 << 20)  # the order of an epoch


def test_a_large_vocabulary_makes_small_parts() -> None:
    config = preset("language-tiny", task=Endless(), n_ctx=1024, **(SMALL | {"batch_size": 24}))
    training = draw_examples(config.task, "train", 48, seed=0)
    assert len(MaskedObjective(config, training, CPU).parts(0)) == 1
    wide = override(config, d_vocab=50_257)
    parts = MaskedObjective(wide, training, CPU).parts(0)
    assert len(parts) == 5  # at most a GiB of logits each
    assert sum(part.share for part in parts) == pytest.approx(1)


@pytest.mark.parametrize(("name", "millions"), [("small", 163), ("medium", 406)])
def test_shapes_are_gpt_2s(name: str, millions: float) -> None:
    """GPT-2's 124 and 355 million parameters, with an unembedding of its own."""
    shape = MODELS[f"language-{name}"]
    tied = shape.n_parameters - shape.d_model * shape.d_vocab - shape.d_vocab
    assert round(tied / 1e6) == {"small": 124, "medium": 355}[name]
    assert round(shape.n_parameters / 1e6) == millions
