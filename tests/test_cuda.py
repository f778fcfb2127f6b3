"""On a CUDA GPU: the same function as on the CPU, and runs that repeat and resume bit for bit."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import anchor_interp
from anchor_interp.config import RunConfig, override
from anchor_interp.errors import InterruptedRunError
from anchor_interp.forward import fast_last_logits
from anchor_interp.model import build_model
from anchor_interp.run import train

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


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_runs_repeat_and_resume_bit_for_bit(
    tmp_path: Path, short: RunConfig, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(short, precision=precision, batch_size=256, d_model=64, d_head=32)
    first = train(config, tmp_path / "first", device="cuda", quiet=True)
    monkeypatch.setattr(anchor_interp.run, "stop_signals", _stop_after(23))
    with pytest.raises(InterruptedRunError):
        train(config, tmp_path / "second", device="cuda", quiet=True)
    monkeypatch.undo()
    second = train(config, tmp_path / "second", device="cuda", quiet=True)
    assert first.metrics == second.metrics
    expected = first.folder.weights(40)
    for name, weight in second.folder.weights(40).items():
        assert torch.equal(weight, expected[name]), name


def _stop_after(calls: int) -> object:
    import contextlib
    from collections.abc import Callable, Iterator

    @contextlib.contextmanager
    def signals() -> Iterator[Callable[[], bool]]:
        seen = [0]

        def stopped() -> bool:
            seen[0] += 1
            return seen[0] >= calls

        yield stopped

    return signals


def test_starts_from_the_weights_and_data_of_the_cpu(tmp_path: Path, short: RunConfig) -> None:
    on_gpu = train(short, tmp_path / "gpu", device="cuda", quiet=True)
    on_cpu = train(short, tmp_path / "cpu", device="cpu", quiet=True)
    initial = on_cpu.folder.weights(0)
    for name, weight in on_gpu.folder.weights(0).items():
        assert torch.equal(weight, initial[name])
    losses = [[row["loss"] for row in run.metrics if "loss" in row] for run in (on_gpu, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
