"""On a CUDA GPU: the same results as on the CPU, and runs that repeat and resume bit for bit."""

import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anchor_interp as ai
from anchor_interp._util.errors import InterruptedRunError
from anchor_interp._util.signals import StopRequest
from anchor_interp.models.forward import fast_last_logits
from anchor_interp.models.transformer import build_model
from anchor_interp.runs import cuda_graph
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import epoch_order_on, make_objective
from anchor_interp.runs.run import load
from anchor_interp.runs.train import train
from anchor_interp.sweeps.model_stack import Member, Stack
from anchor_interp.sweeps.train_batch import batch_size, train_batch
from anchor_interp.tasks.hashing import epoch_order

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

GPU = torch.device("cuda")


@pytest.mark.parametrize("normalization", ["post", "pre"])
@pytest.mark.parametrize("n", [7, 150])
def test_fast_path_equals_the_hooked_forward(short: RunConfig, normalization: str, n: int) -> None:
    config = override(short, normalization=normalization, n_heads=2, n_layers=3, bias=True)
    model = build_model(config.model, config.init, seed=0, device=GPU, dtype=torch.float64)
    generator = torch.Generator().manual_seed(n)
    tokens = torch.randint(0, 100, (n, 9), generator=generator).to(GPU)
    targets = torch.randint(0, 201, (n,), generator=generator).to(GPU)
    slow, fast = model(tokens)[:, -1], fast_last_logits(model, tokens, n_input_tokens=100)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-11)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(F.cross_entropy(slow, targets), parameters)
    found = torch.autograd.grad(F.cross_entropy(fast, targets), parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_instruments_give_what_they_give_on_the_cpu() -> None:
    task = ai.load("tiny/inferential/1").config.anchor_task
    pairs = ai.contrast_pairs(task, "key", 200, seed=0)
    exchanged = ai.interchange_pairs(task, 200, seed=0)
    sequences, site = ai.aligned_sequences(task, 2, 100, seed=0), ai.Site("resid_post", 0, "first")
    found = []
    for device in ("cpu", "cuda"):
        model = ai.load("tiny/inferential/1").model.to(torch.float64).to(device)
        sites = ai.site_grid(model, ["resid_post", "z"])
        metric = ai.logit_difference(*pairs)
        with ai.mask_position(model, sequences, "key"):
            masked = ai.last_logits(model, sequences)
        found.append({
            "patch": ai.patch(model, *pairs, sites, metric).values,
            "attribution": ai.attribution_patch(model, *pairs, sites, metric, steps=2).values,
            "direct": ai.attribute_logits(model, sequences).to_frame().select_dtypes("number"),
            "interchange": ai.interchange(model, exchanged, site).counterfactual,
            "subspace": ai.learn_subspace(model, exchanged, site, 2, seed=0, steps=5).basis,
            "circuit": ai.prune(ai.EdgeAblation(model, sequences)).edges,
            "masked": masked.detach().cpu(),
        })  # fmt: skip
    for name, on_cpu in found[0].items():
        np.testing.assert_allclose(found[1][name], on_cpu, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_runs_repeat_and_resume_bit_for_bit(
    tmp_path: Path, short: RunConfig, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(short, precision=precision, batch_size=256, d_model=64, d_head=32)
    first = train(config, tmp_path / "first", device="cuda", quiet=True)
    calls = itertools.count(1)
    monkeypatch.setattr(StopRequest, "__call__", lambda _: next(calls) >= 23)
    with pytest.raises(InterruptedRunError):
        train(config, tmp_path / "second", device="cuda", quiet=True)
    monkeypatch.undo()
    second = train(config, tmp_path / "second", device="cuda", quiet=True)
    assert first.metrics == second.metrics
    expected = first.folder.weights(40)
    for name, weight in second.folder.weights(40).items():
        assert torch.equal(weight, expected[name]), name


WIDE = {"d_model": 400, "d_head": 200, "d_mlp": 1200, "batch_size": 2048, "n_sequences": 9000}


@pytest.mark.parametrize("shape", [{}, {"branch_step": 6, "branch_weight_decay": 3.0}, WIDE])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_recorded_step_is_the_step_bit_for_bit(
    short: RunConfig, precision: str, shape: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(short, precision=precision, **shape)
    found = []
    for warm_up in (cuda_graph.WARM_UP, sys.maxsize):
        monkeypatch.setattr(cuda_graph, "WARM_UP", warm_up)
        state, objective = TrainState.fresh(config, GPU), make_objective(config, GPU)
        events = [train_step(state, objective) for _ in range(12)]
        numbers = {f"step {e.step}": torch.stack([e.loss, e.grad_norm]) for e in events}
        found.append(numbers | state.weights() | state.optimizer_tensors())
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_a_step_waits_for_nothing(short: RunConfig) -> None:
    config = override(short, n_sequences=640, batch_size=64)
    state, objective = TrainState.fresh(config, GPU), make_objective(config, GPU)
    for _ in range(cuda_graph.WARM_UP + 1):
        train_step(state, objective)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(12):  # into the next epoch
            train_step(state, objective)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("n", "epoch", "seed"), [(900_000, 0, 0), (900_001, 209, 1 << 62)])
def test_the_order_of_an_epoch_is_the_cpus(n: int, epoch: int, seed: int) -> None:
    found = epoch_order_on(GPU, n, epoch, seed=seed)
    assert np.array_equal(found.cpu().numpy(), epoch_order(n, epoch, seed=seed))


def _members(short: RunConfig, dtype: torch.dtype, **changes: object) -> list[Member]:
    """Models of one shape on the GPU with different data, rates and clipping."""
    own = ({"seed": 1, "lr": 3e-3}, {"n_sequences": 77, "clip": None}, {"weight_decay": 1.0})
    found = []
    for settings in own:
        config = override(short, **(settings | changes))
        model = build_model(config.model, config.init, seed=config.seed, device=GPU, dtype=dtype)
        training = make_objective(config, GPU).training
        found.append(Member(config, TrainState(model, config.train), training))
    return found


@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_a_batch_steps_like_each_model_alone(short: RunConfig, normalization: str) -> None:
    shape = {"normalization": normalization, "n_heads": 2, "bias": True, "eps": 1e-6}
    batch, alone = (_members(short, torch.float64, **shape) for _ in range(2))
    Stack(batch).advance(10)
    for member, its in zip(batch, alone, strict=True):
        objective = make_objective(its.config, GPU)
        for _ in range(10):
            train_step(its.state, objective)
        weights = its.state.weights()
        for name, weight in member.state.weights().items():  # alone, the rate is a float32
            torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("together", [True, False])
def test_a_recorded_batch_steps_bit_for_bit(
    short: RunConfig, together: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for warm_up in (cuda_graph.WARM_UP, sys.maxsize):
        monkeypatch.setattr(cuda_graph, "WARM_UP", warm_up)
        batch = _members(short, torch.float32, precision=precision)
        losses = [event.loss for event in Stack(batch, together=together).advance(12)]
        numbers = {"losses": torch.stack(losses)}
        for index, member in enumerate(batch):
            weights = member.state.weights().items()
            numbers |= {f"{index} {name}": weight for name, weight in weights}
        found.append(numbers)
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_a_single_run_resumes_what_a_batch_wrote(tmp_path: Path, short: RunConfig) -> None:
    configs = {"a": short, "b": override(short, seed=1, gamma=0.8)}
    results = list(train_batch(configs, tmp_path, device="cuda"))
    assert [(result.name, result.error) for result in results] == [("a", None), ("b", None)]
    expected = train(short, tmp_path / "alone", device="cuda", quiet=True)
    found = load(tmp_path / "a")
    (found.folder.path / "result.json").unlink()
    train(
        short, found.folder.path, device="cuda", quiet=True
    )  # judges the batch's checkpoint again
    assert [row.keys() for row in found.metrics] == [row.keys() for row in expected.metrics]
    for name, weight in found.folder.weights(40).items():
        torch.testing.assert_close(weight, expected.folder.weights(40)[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_batch_trains_in_other_precisions(short: RunConfig, precision: str) -> None:
    shape = {"precision": precision, "d_model": 64, "d_head": 32, "batch_size": 64}
    batch, alone = (_members(short, torch.float32, **shape) for _ in range(2))
    events = Stack(batch).advance(1)
    for event, its in zip(events, alone, strict=True):
        expected = train_step(its.state, make_objective(its.config, GPU))
        torch.testing.assert_close(event.loss, expected.loss.cpu(), rtol=1e-2, atol=0)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_batch_holds_as_many_models_as_fit(short: RunConfig) -> None:
    wide = override(short, d_model=4096, d_mlp=16384, n_layers=12)
    assert batch_size([short] * 40, "cuda") == 40
    assert 1 <= batch_size([wide] * 40, "cuda") < 40


def test_a_run_starts_from_the_same_weights_and_data_as_on_the_cpu(
    tmp_path: Path, short: RunConfig
) -> None:
    on_gpu = train(short, tmp_path / "gpu", device="cuda", quiet=True)
    on_cpu = train(short, tmp_path / "cpu", device="cpu", quiet=True)
    initial = on_cpu.folder.weights(0)
    for name, weight in on_gpu.folder.weights(0).items():
        assert torch.equal(weight, initial[name])
    losses = [[row["loss"] for row in run.metrics if "loss" in row] for run in (on_gpu, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
