"""Many models at once: each as if it trained alone, whoever shares its batch."""

import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from short import SHORT

from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    DivergedError,
    InterruptedRunError,
    LockedError,
    OutOfMemoryError,
    StoreError,
)
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.runs import objectives, session
from anchor_interp.runs.config import RunConfig, override, shape_key
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import epoch_order_on, make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.store import RunWriter, writing
from anchor_interp.runs.train import train
from anchor_interp.sweeps.engine import RunResult
from anchor_interp.sweeps.model_stack import Member, Stack
from anchor_interp.sweeps.train_batch import batch_size, train_batch
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.hashing import epoch_order
from anchor_interp.tasks.sequences import sample

Patch = pytest.MonkeyPatch
CPU = torch.device("cpu")
SHAPES: list[dict[str, Any]] = [
    {"normalization": "post", "n_layers": 1, "n_heads": 1},
    {"normalization": "post", "n_layers": 2, "n_heads": 3, "bias": True, "batch_size": 128},
    {"normalization": "pre", "n_layers": 3, "n_heads": 1, "act_fn": "gelu", "batch_size": 128},
    {"normalization": "pre", "n_layers": 2, "n_heads": 3, "bias": True, "scheme": "released"},
]
OWN: list[dict[str, Any]] = [
    {"gamma": 0.3, "lr": 1e-2, "clip": None, "steps": 200, "task": TASKS["neurips"], "eps": 1e-6},
    {"seed": 1, "lr": 3e-3, "weight_decay": 1.0, "clip": 0.05, "steps": 50, "warmup": 0.0,
     "branch_step": 3, "branch_lr": 1e-3, "branch_weight_decay": 9.0},
    {"seed": 2, "n_sequences": 130, "beta1": 0.5, "beta2": 0.9, "lr_start": 1e-3, "lr_end": 1e-4,
     "schedule": ((3, 2e-3, 9.0), (5, 1e-3, 0.0))},
    {"seed": 2, "n_sequences": 131, "gamma": 1.0, "gamma_qk": 0.2, "eps": 1e-5, "weight_decay": 0},
]  # fmt: skip
"""What the models of a batch may have of their own.

b_K has no gradient but rounding, which a large learning rate and a small epsilon would make steps
of.
"""


def members(
    short: RunConfig, shape: dict[str, Any], dtype: torch.dtype = torch.float64
) -> list[Member]:
    """Models of one shape, the k-th trained alone for k steps."""
    found = []
    for index, own in enumerate(OWN):
        config = override(short, **(shape | own))
        model = build_model(config.model, config.init, seed=config.seed, dtype=dtype)
        state, objective = TrainState(model, config.train), make_objective(config, CPU)
        for _ in range(index):
            train_step(state, objective)
        found.append(Member(config, state, objective.training))
    return found


def assert_near(found: TrainState, expected: TrainState) -> None:
    assert found.step == expected.step
    for mine, its in (
        (found.weights(), expected.weights()),
        (found.optimizer_tensors(), expected.optimizer_tensors()),
    ):
        assert mine.keys() == its.keys()
        for name, tensor in its.items():
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=1e-10, msg=name)


def train_alone(member: Member, n_steps: int) -> None:
    objective = make_objective(member.config, CPU)
    for _ in range(n_steps):
        train_step(member.state, objective)


@pytest.mark.parametrize(("shape", "together"), [(SHAPES[0], False), *((s, True) for s in SHAPES)])
def test_a_step_of_a_batch_is_a_step_of_each_alone(
    short: RunConfig, shape: dict[str, Any], together: bool
) -> None:
    batch, alone = members(short, shape), members(short, shape)
    objectives = [make_objective(member.config, CPU) for member in alone]
    stack = Stack(batch, together=together)
    for _ in range(4):
        found = stack.advance(1)
        for index, (event, member) in enumerate(zip(found, alone, strict=True)):
            expected = train_step(member.state, objectives[index])
            assert (event.step, event.lr) == (expected.step, expected.lr)
            torch.testing.assert_close(event.loss, expected.loss, rtol=0, atol=1e-10)
            torch.testing.assert_close(event.grad_norm, expected.grad_norm, rtol=1e-10, atol=0)
            assert_near(batch[index].state, member.state)


def test_a_task_without_anchors_that_answers_last_trains_in_a_batch() -> None:
    def made() -> list[Member]:
        found = []
        for gamma, holdout in ((0.3, "square"), (0.8, "random")):
            config = preset("addition", **SHORT, gamma=gamma, holdout=holdout)
            model = build_model(config.model, config.init, seed=0, dtype=torch.float64)
            training = make_objective(config, CPU).training
            found.append(Member(config, TrainState(model, config.train), training))
        return found

    batch, alone = made(), made()
    stack = Stack(batch, together=True)
    stack.advance(5)
    for member, its in zip(batch, alone, strict=True):
        train_alone(its, 5)
        assert_near(member.state, its.state)
    asked = session.Probes(batch[1].config, batch[1].training).tokens
    found = stack.answers({1: asked})
    assert np.array_equal(found[1], predict(batch[1].state.model, asked))


def test_models_leave_and_join_without_a_trace(short: RunConfig) -> None:
    first, second, third, late = members(short, SHAPES[0])
    alone = members(short, SHAPES[0])
    Stack([first, second, third]).advance(5)
    Stack([third, late, first]).advance(4)
    Stack([late]).advance(3)
    for member, its, n in zip((first, second, third, late), alone, (9, 5, 9, 7), strict=True):
        train_alone(its, n)
        assert_near(member.state, its.state)


def test_a_row_is_the_same_bits_in_every_company(short: RunConfig) -> None:
    mixed, single = (members(short, SHAPES[1], torch.float32) for _ in range(2))
    Stack(mixed).advance(10)
    Stack([single[2]]).advance(10)
    expected = single[2].state.weights()
    for name, weight in mixed[2].state.weights().items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-5), ("bf16", 2e-2)])
def test_side_by_side_as_in_turn_in_other_precisions(
    short: RunConfig, precision: str, near: float
) -> None:
    shape = SHAPES[1] | {"precision": precision}
    together, in_turn = (members(short, shape, torch.float32) for _ in range(2))
    first, second = Stack(together, together=True), Stack(in_turn, together=False)
    for mine, other in zip(first.advance(1), second.advance(1), strict=True):
        torch.testing.assert_close(mine.loss, other.loss, rtol=near, atol=0)
        torch.testing.assert_close(mine.grad_norm, other.grad_norm, rtol=near, atol=0)


def test_answers_are_those_of_each_model(short: RunConfig) -> None:
    batch = members(short, SHAPES[3])
    with torch.no_grad():
        batch[3].state.model.unembed.b_U[0] = float("nan")
    tokens = {
        index: sample(batch[index].config.anchor_task, "id", 60 + index, seed=0).tokens
        for index in (0, 2, 3)
    }
    found = Stack(batch, together=True).answers(tokens)
    assert found.keys() == {0, 2}
    for index, answers in found.items():
        assert np.array_equal(answers, predict(batch[index].state.model, tokens[index]))
    assert Stack(batch, together=False).answers(tokens) == {}


def test_no_number_of_one_model_reaches_another(short: RunConfig) -> None:
    for together in (False, True):
        spoilt, whole = members(short, SHAPES[0]), members(short, SHAPES[0])
        with torch.no_grad():
            spoilt[1].state.model.unembed.b_U[0] = float("inf")
        events = Stack(spoilt, together=together).advance(3)
        Stack(whole, together=together).advance(3)
        assert [bool(event.loss.isfinite()) for event in events] == [True, False, True, True]
        for index in (0, 2, 3):
            expected = whole[index].state.weights()
            for name, weight in spoilt[index].state.weights().items():
                assert torch.equal(weight, expected[name])


@pytest.mark.parametrize(("n", "epoch", "seed"), [(1, 0, 0), (1000, 0, 3), (1000, 7, 1 << 62)])
def test_orders_made_on_a_device(n: int, epoch: int, seed: int) -> None:
    found = epoch_order_on(CPU, n, epoch, seed=seed)
    assert np.array_equal(found.numpy(), epoch_order(n, epoch, seed=seed))


def test_only_one_shape_shares_a_batch(short: RunConfig) -> None:
    assert shape_key(short) == shape_key(override(short, gamma=1, lr=1e-4, seed=7, steps=9))
    for change in ({"d_model": 8}, {"batch_size": 16}, {"precision": "bf16"}, {"length": 8}):
        other = override(short, **change)
        assert shape_key(other) != shape_key(short)
    scan = preset("scan", **SHORT)  # runs of sequences are never stacked
    assert shape_key(override(scan, seed=1)) != shape_key(scan)


def test_tf32_is_refused_without_a_gpu(short: RunConfig, tmp_path: Path) -> None:
    config = override(short, precision="tf32")
    with pytest.raises(ConfigError, match="'tf32', which only CUDA GPUs have; the device is cpu"):
        train(config, tmp_path / "run", device="cpu", quiet=True)
    with pytest.raises(ConfigError, match="'tf32', which only CUDA GPUs have; the device is cpu"):
        train_batch({"run": config}, tmp_path, device="cpu")
    assert not list(tmp_path.iterdir())


def test_a_cpu_is_busy_with_one_model(short: RunConfig) -> None:
    assert batch_size([short] * 5, "cpu") == 1
    assert batch_size([], "cpu") == 1


# Run folders --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def configs() -> dict[str, RunConfig]:
    """Runs of one shape that end and checkpoint at different steps."""
    short = preset("tiny", **SHORT)
    return {
        "quick": override(short, seed=1, steps=10, eval_every=5, gamma=0.8),
        "slow": override(short, steps=24, weight_decay=1.0, n_sequences=100, checkpoint_every=15),
        "odd": override(short, seed=1, steps=17, log_every=7, eval_every=7, clip=None),
    }


@pytest.fixture(scope="module")
def alone(
    configs: dict[str, RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """The same runs, each trained by itself."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        name: train(config, folder / name, device="cpu", threads=1, quiet=True)
        for name, config in configs.items()
    }


def assert_as_alone(found: Run, expected: Run) -> None:
    """The same run but for rounding: files, steps, provenance and what the lines hold."""
    assert found.steps == expected.steps
    for step in expected.steps:
        mine = found.folder.weights(step)
        for name, weight in expected.folder.weights(step).items():
            torch.testing.assert_close(mine[name], weight, rtol=0, atol=2e-5, msg=name)
    assert [row.keys() for row in found.metrics] == [row.keys() for row in expected.metrics]
    for row, other in zip(found.metrics, expected.metrics, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=5e-3)
    assert found.phase == expected.phase
    kept = {path.relative_to(expected.folder.path) for path in expected.folder.path.rglob("*")}
    assert {path.relative_to(found.folder.path) for path in found.folder.path.rglob("*")} == kept
    moments = found.folder.optimizer(found.step)
    for name, tensor in expected.folder.optimizer(found.step).items():
        torch.testing.assert_close(moments[name], tensor, rtol=1e-2, atol=1e-5, msg=name)


def ended(results: Iterator[RunResult]) -> dict[str, type[AnchorInterpError] | None]:
    return {r.name: None if r.error is None else type(r.error) for r in results}


def test_a_batch_writes_what_single_runs_write(
    tmp_path: Path, configs: dict[str, RunConfig], alone: dict[str, Run]
) -> None:
    results = list(train_batch(configs, tmp_path / "batch", device="cpu", threads=1))
    assert [(r.name, r.error) for r in results] == [("quick", None), ("odd", None), ("slow", None)]
    for name, run in alone.items():
        found = load(tmp_path / "batch" / name)
        assert_as_alone(found, run)
        (mine,), (its,) = found.folder.provenance(), run.folder.provenance()
        assert mine.keys() == its.keys()
        assert all(mine[key] == its[key] for key in its if key not in ("started", "ended"))
    again = train_batch(configs, tmp_path / "batch", device="cpu", threads=1)
    assert ended(again) == dict.fromkeys(configs)


def stop_at(monkeypatch: Patch, call: int) -> None:
    """Let SIGTERM come in the middle of a step."""
    original, calls = objectives.batch_loss, [0]

    def loss(*args: Any, **settings: Any) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **settings)

    monkeypatch.setattr(objectives, "batch_loss", loss)


def test_a_batch_trains_where_its_caller_takes_no_gradients(
    tmp_path: Path, configs: dict[str, RunConfig], alone: dict[str, Run]
) -> None:
    with torch.inference_mode():
        for result in train_batch({"quick": configs["quick"]}, tmp_path, device="cpu", threads=1):
            assert result.error is None
            assert not torch.is_grad_enabled()
    assert_as_alone(load(tmp_path / "quick"), alone["quick"])


def test_what_a_batch_began_goes_on_alone_and_the_other_way_round(
    tmp_path: Path, configs: dict[str, RunConfig], alone: dict[str, Run], monkeypatch: Patch
) -> None:
    stop_at(monkeypatch, 3 * 8 - 1)
    with pytest.raises(InterruptedRunError, match="stopped and checkpointed 3 runs; give the same"):
        list(train_batch(configs, tmp_path / "both", device="cpu", threads=1))
    monkeypatch.undo()
    assert {load(tmp_path / "both" / name).step for name in configs} == {8}
    finished = train(configs["slow"], tmp_path / "both/slow", device="cpu", threads=1, quiet=True)
    assert_as_alone(finished, alone["slow"])

    stop_at(monkeypatch, 12)  # in the middle of one that trains alone
    with pytest.raises(InterruptedRunError, match="stopped at step 12 of 17"):
        train(configs["odd"], tmp_path / "other/odd", device="cpu", threads=1, quiet=True)
    monkeypatch.undo()
    (tmp_path / "both/odd").rename(tmp_path / "begun")
    (tmp_path / "other/odd").rename(tmp_path / "both/odd")
    results = train_batch(configs, tmp_path / "both", device="cpu", threads=1)
    assert ended(results) == dict.fromkeys(configs)
    for name, run in alone.items():
        assert_as_alone(load(tmp_path / "both" / name), run)
        assert len(load(tmp_path / "both" / name).folder.provenance()) == 2


def test_a_signal_while_one_is_judged_keeps_the_others(
    tmp_path: Path, configs: dict[str, RunConfig], monkeypatch: Patch
) -> None:
    def judged(*args: Any, **settings: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal comes first")

    monkeypatch.setattr(session, "evaluate_run", judged)
    with pytest.raises(InterruptedRunError, match="stopped while judging the final checkpoint"):
        list(train_batch(configs, tmp_path, device="cpu", threads=1))
    monkeypatch.undo()
    assert {load(tmp_path / name).step for name in configs} == {10}
    assert not any((tmp_path / name / "result.json").exists() for name in configs)
    quick = {"quick": configs["quick"]}  # has nothing left but to be judged
    assert ended(train_batch(quick, tmp_path, device="cpu", threads=1)) == {"quick": None}


def test_leaving_early_checkpoints_the_rest(tmp_path: Path, configs: dict[str, RunConfig]) -> None:
    results = train_batch(configs, tmp_path, device="cpu", threads=1)
    assert next(results).name == "quick"
    results.close()
    assert load(tmp_path / "quick").phase
    for name in ("slow", "odd"):
        assert load(tmp_path / name).step == 10
        with writing(tmp_path / name, configs[name]):
            pass  # nobody holds it


def test_a_lost_run_stops_no_other(
    tmp_path: Path, configs: dict[str, RunConfig], alone: dict[str, Run], monkeypatch: Patch
) -> None:
    """One diverges, one is held by another process, one's disk is full; two train on."""
    others = {name: configs[name] for name in ("quick", "odd")}
    wild = override(configs["slow"], gamma=-1.0, weight_decay=0.0)
    batch = {"wild": wild, "held": configs["slow"], "full": configs["slow"], **others}
    append, batch_loss = RunWriter.append_metrics, objectives.batch_loss

    def full_disk(self: RunWriter, row: dict[str, Any]) -> None:
        if self.path.name == "full" and row["step"] == 5:
            raise StoreError("the disk is full")
        append(self, row)

    def loss(module: HookedTransformer, *args: Any, **settings: Any) -> torch.Tensor:
        found = batch_loss(module, *args, **settings)
        return found * math.inf if module.embed.W_E.abs().max() > 50 else found

    monkeypatch.setattr(RunWriter, "append_metrics", full_disk)
    monkeypatch.setattr(objectives, "batch_loss", loss)
    with writing(tmp_path / "held", batch["held"]):
        results = {r.name: r.error for r in train_batch(batch, tmp_path, device="cpu")}
    assert isinstance(results["held"], LockedError)
    assert str(results["full"]) == "the disk is full"
    with pytest.raises(DivergedError, match="step 5: loss nan") as error:
        train(wild, tmp_path / "alone", device="cpu", quiet=True)
    assert str(results["wild"]) == str(error.value)
    for name in others:
        assert results[name] is None
        assert_as_alone(load(tmp_path / name), alone[name])


def test_a_lack_of_memory_makes_smaller_batches(
    tmp_path: Path, configs: dict[str, RunConfig], alone: dict[str, Run], monkeypatch: Patch
) -> None:
    two = {name: configs[name] for name in ("quick", "odd")}
    advance, sizes = Stack.advance, []

    def limited(self: Stack, *args: Any) -> Any:
        events = advance(self, *args)
        sizes.append(len(events))
        if len(events) > 1 and events[0].step > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return events

    monkeypatch.setattr(Stack, "advance", limited)
    results = train_batch(two, tmp_path, device="cpu", threads=1)
    assert ended(results) == dict.fromkeys(two)
    assert sizes[0] == 2
    assert sizes[-1] == 1
    for name in two:
        assert_as_alone(load(tmp_path / name), alone[name])


def test_what_has_ended_is_told_whatever_comes_after(
    tmp_path: Path, short: RunConfig, monkeypatch: Patch
) -> None:
    """A lack of memory while the second of two runs is judged."""
    two = {str(seed): override(short, seed=seed) for seed in (0, 1)}
    judge, judged = session.Session.judge, []

    def limited(self: session.Session, *args: Any) -> None:
        judged.append(self.config.seed)
        if judged == [0, 1]:
            raise MemoryError
        judge(self, *args)

    monkeypatch.setattr(session.Session, "judge", limited)
    results = train_batch(two, tmp_path, device="cpu", threads=1)
    found = [(result.name, type(result.error)) for result in results]
    assert found == [("0", type(None)), ("1", OutOfMemoryError)]
