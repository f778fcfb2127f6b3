"""The fast path computes the same function as model(tokens): logits and gradients."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import LAYOUTS
from torch import Tensor
from versions import only_3

from anchor_interp._util.errors import ConfigError
from anchor_interp.models import fast_linear as linear_module
from anchor_interp.models.fast_linear import linear
from anchor_interp.models.forward import fast_last_logits, fast_logits, last_logits, takes_fast_path
from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import build_model
from anchor_interp.models.transformer_lens import HookedTransformer, HookedTransformerConfig

SHAPES = list(itertools.product(LAYOUTS, (1, 3), (1, 3), (False, True)))


def model_of(
    normalization: Normalization,
    n_heads: int,
    n_layers: int,
    bias: bool,
    dtype: torch.dtype = torch.float64,
) -> HookedTransformer:
    shape = ModelConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=24,
        d_head=10,
        d_mlp=36,
        act_fn="relu" if normalization == "post" else "gelu",
        normalization=normalization,
        bias=bias,
    )
    # the released scheme starts biases away from zero
    init = InitConfig(0.4, scheme="released" if bias else "paper")
    return build_model(shape, init, seed=0, dtype=dtype)


def tokens_and_targets(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    tokens = torch.randint(0, 100, (n, 9), generator=generator)
    return tokens, torch.randint(0, 201, (n,), generator=generator)


def check_logits_and_gradients(
    model: HookedTransformer, found: Tensor, expected: Tensor, targets: Tensor
) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    parameters = dict(model.named_parameters())
    slow = torch.autograd.grad(F.cross_entropy(expected, targets), list(parameters.values()))
    fast = torch.autograd.grad(F.cross_entropy(found, targets), list(parameters.values()))
    for name, a, b in zip(parameters, slow, fast, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(("normalization", "n_heads", "n_layers", "bias"), SHAPES)
@pytest.mark.parametrize("n", [7, 150])  # below and above the size from which the table is used
def test_logits_and_gradients_equal_the_hooked_forward(
    normalization: Normalization, n_heads: int, n_layers: int, bias: bool, n: int
) -> None:
    """At the last position and at any others."""
    model = model_of(normalization, n_heads, n_layers, bias)
    assert takes_fast_path(model)
    tokens, last_targets = tokens_and_targets(n)
    last = fast_last_logits(model, tokens, n_input_tokens=100)
    check_logits_and_gradients(model, last, model(tokens)[:, -1], last_targets)
    generator = torch.Generator().manual_seed(n)
    places = torch.randint(0, tokens.numel(), (40,), generator=generator)  # some of them twice
    targets = torch.randint(0, 201, (40,), generator=generator)
    expected = model(tokens).flatten(0, 1)[places]
    found = fast_logits(model, tokens, places, n_input_tokens=100)
    check_logits_and_gradients(model, found, expected, targets)


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_float32_is_about_as_exact_as_the_hooked_forward(normalization: Normalization) -> None:
    """Compared with float64, the fast path's error is at most three times the other's."""
    single = model_of(normalization, 2, 2, True, torch.float32)
    double = model_of(normalization, 2, 2, True)
    tokens, targets = tokens_and_targets(300)

    def gradients(logits: Tensor, model: HookedTransformer) -> Tensor:
        loss = F.cross_entropy(logits.double(), targets)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    exact = gradients(double(tokens)[:, -1], double)
    hooked = gradients(single(tokens)[:, -1], single).double()
    fast = gradients(fast_last_logits(single, tokens), single).double()
    hooked_error, fast_error = ((g - exact).norm() / exact.norm() for g in (hooked, fast))
    assert float(fast_error) < 3 * float(hooked_error) + 1e-6


def test_bytes_are_tokens_and_tokens_outside_the_vocabulary_are_refused() -> None:
    model = model_of("post", 1, 2, False)
    tokens, _ = tokens_and_targets(300)
    expected = last_logits(model, tokens)
    for n in (5, 300):
        as_bytes = tokens[:n].to(torch.uint8)
        torch.testing.assert_close(last_logits(model, as_bytes), expected[:n], rtol=0, atol=1e-12)
        wrong = tokens[:n].clone()
        wrong[0, 0] = 250
        with pytest.raises(ConfigError, match="tokens run from 0 to 250; expected 0 to 200"):
            last_logits(model, wrong)


def test_logits_that_are_not_finite_are_refused() -> None:
    model = build_model(ModelConfig(d_vocab=9, n_ctx=4), InitConfig(), seed=0)
    tokens = torch.tensor([[1, 2, 3, 4]])

    assert last_logits(model, tokens).isfinite().all()
    with (
        model.hooks([("blocks.0.hook_mlp_out", lambda wrote, **_: wrote * torch.nan)]),
        pytest.raises(ConfigError, match="the model's logits are not finite"),
    ):
        last_logits(model, tokens)


@only_3
@pytest.mark.parametrize(
    "changes",
    [
        {"positional_embedding_type": "rotary", "rotary_dim": 10},
        {"positional_embedding_type": "shortformer"},
        {"post_embedding_ln": True},
        {"clip_qkv": 0.01},
        {"use_attention_sinks": True},
        {"act_fn": "silu"},
        {"attn_only": True},
        {"normalization_type": None},
        {"normalization_type": "LNPre"},
        {"use_attn_scale": False},
        {"parallel_attn_mlp": True},
        {"n_key_value_heads": 1},
        {"gated_mlp": True},
        {"attn_scores_soft_cap": 5.0},
        {"output_logits_soft_cap": 5.0},
        {"attention_dir": "bidirectional"},
        {"use_local_attn": True, "attn_types": ["local", "local"], "window_size": 2},
    ],
)
@pytest.mark.filterwarnings("ignore:HookedTransformer is deprecated:DeprecationWarning")
def test_other_architectures_take_the_hooked_forward(changes: dict[str, object]) -> None:
    """Any HookedTransformer gets its own logits, whatever its parts."""
    settings: dict[str, Any] = {
        "n_layers": 2, "n_heads": 2, "d_model": 24, "d_head": 10, "d_mlp": 36, "d_vocab": 120,
        "n_ctx": 9, "act_fn": "relu", "normalization_type": "LN", "device": "cpu",
        "dtype": torch.float64,
    }  # fmt: skip
    model = HookedTransformer(HookedTransformerConfig(**(settings | changes)))
    tokens, _ = tokens_and_targets(6)
    torch.testing.assert_close(last_logits(model, tokens), model(tokens)[:, -1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(1,), (5,), (4, 9)])
def test_onednn_linear_equals_float64(
    relu: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "cpu_model", lambda: "AMD EPYC")
    linear_module.onednn_fault.cache_clear()
    fault = linear_module.onednn_fault()
    linear_module.onednn_fault.cache_clear()
    if fault:
        pytest.skip(fault)
    monkeypatch.setattr(linear_module, "onednn_fault", lambda: "")
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).requires_grad_()

    x, weight, bias = draw(*shape, 33), draw(33, 17), draw(17)
    found = linear(x, weight, bias, relu=relu)
    assert found.grad_fn is not None
    expected = x.double() @ weight.double() + bias.double()
    expected = expected.relu() if relu else expected
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(found.shape, generator=generator)
    got = torch.autograd.grad(found, [x, weight, bias], upstream)
    want = torch.autograd.grad(expected, [x, weight, bias], upstream.double())
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fault", ["wrong", "changed"])
def test_a_product_that_differs_or_fails_is_left_to_pytorch(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
        if fault == "changed":
            raise TypeError("_linear_pointwise() takes 3 arguments")
        return x @ weight.mT + 0.001

    monkeypatch.setattr(linear_module, "_product", product)
    monkeypatch.setattr(linear_module, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None, raising=False)
    linear_module.onednn_fault.cache_clear()
    try:
        expected = {"wrong": "differ from", "changed": "takes 3 arguments"}[fault]
        assert expected in linear_module.onednn_fault()
        x = torch.ones(2, 3)
        assert torch.equal(linear(x, torch.eye(3)), x)
    finally:
        linear_module.onednn_fault.cache_clear()


def test_products_on_an_intel_processor_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for cpu, is_intel in (("Intel(R) Xeon(R) Processor", True), ("AMD EPYC 9R14", False)):
        monkeypatch.setattr(linear_module, "cpu_model", lambda cpu=cpu: cpu)
        linear_module.onednn_fault.cache_clear()
        found = linear_module.onednn_fault()
        linear_module.onednn_fault.cache_clear()
        assert ("MKL is faster" in found) == is_intel


def test_bfloat16_autocast_is_close() -> None:
    model = model_of("post", 1, 2, False, torch.float32)
    tokens, _ = tokens_and_targets(200)
    with torch.no_grad():
        exact = fast_last_logits(model, tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = fast_last_logits(model, tokens)
    assert float((rough.float() - exact).norm() / exact.norm()) < 0.03


@only_3
def test_a_tokenizer_that_pads_on_the_left_is_obeyed() -> None:
    """TransformerLens then masks padding, which the fast path would read."""
    model = model_of("pre", 2, 1, False)
    tokens = torch.tensor([[29, 29, 5, 6], [7, 8, 9, 10]])
    read = last_logits(model, tokens)
    model.tokenizer = SimpleNamespace(
        padding_side="left", pad_token_id=29, bos_token_id=None, bos_token=None
    )
    masked = last_logits(model, tokens)
    torch.testing.assert_close(masked, model(tokens)[:, -1])
    assert float((masked - read)[0].abs().max().detach()) > 0.1
    torch.testing.assert_close(masked[1], read[1])
