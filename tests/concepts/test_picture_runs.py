"""Runs on pictures: one pipeline trains, resumes, judges, sweeps and reports them."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from in_process_engine import Here
from killed_training import config as of_preset
from matplotlib.text import Text

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.analyze import analyze
from anchor_interp.analysis.fingerprint import fingerprint
from anchor_interp.analysis.report_data import gather
from anchor_interp.behaviour.evaluation import evaluate
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.pages.report import render
from anchor_interp.runs.config import (
    RunConfig,
    memory_bytes,
    override,
    read_config,
    run_id,
    shape_key,
)
from anchor_interp.runs.loop import TrainState, fit
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run
from anchor_interp.runs.train import train
from anchor_interp.sweeps.estimate import estimate
from anchor_interp.sweeps.folder import SweepFolder
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table_files import from_csv, to_csv
from anchor_interp.tasks.contract import draw_examples
from concepts import Concepts, UNetConfig, judge
from concepts.diffusion import signal_left
from concepts.drawings import drawings
from concepts.figures import drawing_grid
from concepts.judge import judge_of
from concepts.pictures import as_tensor, bits_of, every_node
from concepts.training import DiffusionObjective, draw
from concepts.unet import UNet

TINY = override(of_preset("concepts"), steps=12, eval_every=6)
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def quick_judge() -> Iterator[None]:
    """A judge that is trained for a few steps: what it says is as good as another's here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "_MOST_STEPS", judge._STEPS)
        patch.setattr(judge, "LEAST", 0.0)
        judge_of.cache_clear()
        yield
    judge_of.cache_clear()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(TINY, tmp_path_factory.mktemp("pictures") / "run", device="cpu", quiet=True)


def objective_of(config: RunConfig) -> DiffusionObjective:
    found = make_objective(config, CPU)
    assert isinstance(found, DiffusionObjective)
    return found


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    configs = (TINY, TINY, override(TINY, seed=1))
    one, same, other = (objective_of(config) for config in configs)
    same.batch(3)  # earlier batches change nothing
    fields = [field.name for field in dataclasses.fields(one.batch(7))]
    for name in fields:
        assert torch.equal(getattr(one.batch(7), name), getattr(same.batch(7), name))
        assert not torch.equal(getattr(one.batch(7), name), getattr(one.batch(8), name))
        assert not torch.equal(getattr(one.batch(7), name), getattr(other.batch(7), name))
    batch = one.batch(7)
    assert set((batch.times * 4).tolist()) <= {1.0, 2.0, 3.0, 4.0}


def test_the_noise_and_the_time_of_a_batch_give_its_noisy_pictures_back() -> None:
    objective = objective_of(TINY)
    batch = objective.batch(0)
    right: Any = _Answer(batch.noise)
    wrong: Any = _Answer(batch.noise + 2)
    assert objective.loss(right, batch) == 0
    assert float(objective.loss(wrong, batch)) == pytest.approx(4)
    left = signal_left(4).float()[(batch.times * 4).long()][:, None, None, None]
    pictures = (batch.noisy - (1 - left).sqrt() * batch.noise) / left.sqrt()
    levels = (pictures[batch.times < 0.9] + 1) * 127.5
    assert torch.allclose(levels, levels.round().clamp(0, 255), atol=1e-2)


class _Answer(torch.nn.Module):
    """Says one thing whatever it sees."""

    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_seen: torch.Tensor) -> torch.Tensor:
        return self.answer


def test_training_lowers_the_loss() -> None:
    config = override(TINY, steps=60, lr=3e-3, n_times=20, predicts="velocity")
    objective, state = objective_of(config), TrainState.fresh(config, CPU)
    batch, network = objective.batch(0), cast(UNet, state.model)
    before = objective.loss(network, batch).detach()
    fit(state, objective, until=60, on_event=lambda *_: None)
    assert objective.loss(network, batch).detach() < 0.7 * before


def test_a_finished_run_has_all_that_others_have(done: Run) -> None:
    assert done.steps == [0, 4, 8, 12]
    assert isinstance(done.model, UNet)
    assert done.config == TINY
    assert [row["step"] for row in done.metrics if "train_accuracy" in row] == [0, 6, 12]
    found = done.evaluation
    assert (found.id_accuracy, found.symmetric_accuracy, found.pair_accuracy) == (None, None, ())
    assert found.stable_rank is not None
    assert found.stable_rank_at_init is not None
    assert [(split.name, split.role, split.n) for split in found.splits] == [
        ("train", "train", 64), ("ood", "ood", 256),
    ]  # fmt: skip
    for split in found.splits:
        shares = {
            score.value: score.accuracy for score in split.aspects if score.aspect == "attribute"
        }
        nodes = [score for score in split.aspects if score.aspect == "node"]
        assert set(shares) == {"shape", "size", "colour"}
        assert split.accuracy <= min(shares.values())
        assert split.accuracy == pytest.approx(
            np.average([s.accuracy for s in nodes], weights=[s.n for s in nodes])
        )
        assert split.chance == 1 / 8
    assert found.ood_accuracy == found.splits[1].accuracy
    assert done.evaluate() == found
    assert done.evaluate(seed=1) != found
    assert "U-Net, 8 features, pictures of 12 x 12, 4 times" in repr(done)


def test_drawings_follow_the_seed_and_the_node(done: Run) -> None:
    task = Concepts(pixels=12)
    nodes = bits_of(every_node(3))[np.arange(70) % 8]  # more than are drawn at once
    found = draw(done.model, task, nodes)
    assert torch.equal(found, draw(done.model, task, nodes))
    assert torch.equal(found[:64], draw(done.model, task, nodes[:64]))
    assert not torch.equal(found, draw(done.model, task, nodes, seed=1))
    assert found.abs().max() <= 1
    shown = drawings(done, 3)
    assert shown.drawn.shape == (8, 3, 3, 12, 12)
    again = judge_of(task).right(
        as_tensor(shown.drawn.reshape(24, 3, 12, 12)), np.repeat(bits_of(every_node(3)), 3, 0)
    )
    assert (again == shown.right.reshape(24, 3)).mean() > 0.95  # drawings have 256 levels
    assert shown.roles == ("trained", "trained", "tested", "tested", "trained", "", "", "trained")


def test_a_report_shows_the_drawings_and_the_layers(done: Run) -> None:
    (found,) = gather([done.folder.path])
    page = render([found])
    for text in ("drawings", "layers-stable-rank", "told1.2.one", "U-Net, 8 feat"):
        assert text in page, text
    shown = drawing_grid(drawings(done, 2)).findobj(Text)
    label = "010 circle small red (tested)  "
    assert [text for text in shown if text.get_text().startswith(label)]
    assert "nats" not in page


@pytest.mark.slow
def test_sweeps_train_runs_on_pictures(tmp_path: Path) -> None:
    short = override(TINY, steps=2, eval_every=2, checkpoint_every=2)
    plan = Sweep((Grid(short, {"predicts": ("noise", "velocity")}),))
    first, second = plan.configs().values()
    assert shape_key(first) != shape_key(second)  # they train one by one
    assert estimate(plan.configs(), SweepFolder(tmp_path), workers=1, device="cpu").todo == 2
    sweep(plan, tmp_path / "sweep", engine=Here(), quiet=True)
    found = SweepFolder(tmp_path / "sweep").rows()
    assert {row["model.predicts"] for row in found} == {"noise", "velocity"}
    of_network = {"model.n_features": 8, "model.n_times": 4, "model.d_image": 12}
    for row in found:
        expected = of_network | {"weights": "uniform", "d_model": None, "task.pixels": 12}
        assert {name: row[name] for name in expected} == expected
    assert from_csv(to_csv(found)) == found


NEEDS = "this needs a HookedTransformer; the run has a UNet, the network that its task brings"


@pytest.mark.parametrize("use", [
    analyze,
    fingerprint,
    lambda run: run.answer(["circle small red"]),
    lambda run: run.export("never.safetensors"),
    lambda run: run.transformer,
])  # fmt: skip
def test_what_needs_a_transformer_refuses_in_one_line(
    done: Run, use: Callable[[Run], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^{re.escape(NEEDS)}$"):
        use(done)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ModelConfig()}, "expected a UNetConfig, which answers the task concepts"),
        ({"task": Concepts(pixels=64)}, "model.d_image is 28; the task's pictures need 64"),
        ({"model": UNetConfig(d_told=(2, 1))}, "model.d_told is (2, 1); the task's pictures need"),
        ({"init": InitConfig(gamma_qk=0.5)}, "init.gamma_qk is 0.5; expected None: a U-Net has"),
        ({"init": InitConfig(scheme="released")}, "init.scheme is released; expected paper: a"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_have_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        dataclasses.replace(preset("concepts"), **changes)
    assert "\n" not in str(error.value)


def test_a_file_names_the_network_by_its_fields(done: Run, tmp_path: Path) -> None:
    assert read_config(done.folder.path / "config.json") == TINY
    path = tmp_path / "config.json"
    path.write_text('{"task": {"kind": "concepts"}, "model": {"n_features": 8}, "schema": 1}')
    assert read_config(path).model == UNetConfig(n_features=8)
    path.write_text('{"task": {"kind": "concepts"}, "model": {"n_feature": 8, "n_times": 9}}')
    with pytest.raises(ConfigError, match=r"'n_feature' \(did you mean 'n_features'\?\)"):
        read_config(path)
    with pytest.raises(ConfigError, match="no field is called 'd_model'"):
        override(TINY, d_model=8)
    assert run_id(override(TINY, weights="normal")) != run_id(TINY)
    assert sum(memory_bytes(preset("paper-concepts")).values()) > 1 << 30


def test_a_network_in_double_precision_draws_and_is_judged(done: Run) -> None:
    double = anchor_interp.load(done.folder.path, dtype=torch.float64)
    task = cast(Concepts, TINY.task)
    nodes = bits_of(task.trained)
    found, expected = (draw(run.model, task, nodes) for run in (double, done))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    assert double.evaluate(n=4).ood_accuracy == done.evaluate(n=4).ood_accuracy


def test_a_model_of_other_pictures_is_refused(done: Run) -> None:
    with pytest.raises(ConfigError, match="the model draws pictures of 12 pixels"):
        draw(done.model, Concepts(), bits_of(("000",)))
    with pytest.raises(ConfigError, match="model is UNet"):
        evaluate(done.model, anchor_interp.preset("scan").task, n=2)
    training = draw_examples(TINY.task, "train", 4, seed=0)
    assert evaluate(done.model, TINY.task, n=4, training=training).train_accuracy is not None


def test_several_processes_refuse_a_run_on_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    wanted = (
        r"^2 processes were started \(WORLD_SIZE is 2\) and the task concepts has its own network"
    )
    with pytest.raises(ConfigError, match=wanted):
        anchor_interp.train(preset("concepts"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
