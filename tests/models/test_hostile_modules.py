"""Modules that initialisation, decay groups or complexity would get wrong without a word."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import own_modules
import pytest
import torch
from refusals import assert_refused
from torch import nn

import anchor_interp as ai
from anchor_interp.models.init import initialize
from anchor_interp.models.parameters import decay_groups

VO: dict[str, Any] = {"gamma": ai.InitConfig(0.8, gamma_vo=0.4)}


def tree(*places: str, make: Callable[[], nn.Module] = lambda: nn.Linear(16, 16)) -> nn.Module:
    """Linear maps at places such as ``attn.to_out.0``."""
    root = nn.Module()
    for place in places:
        at, *steps = root, *place.split(".")
        for step in steps[:-1]:
            if step not in at._modules:
                at.register_module(step, nn.Module())
            at = at.get_submodule(step)
        at.register_module(steps[-1], make())
    return root


def shared(change: Callable[[Any], None]) -> Any:
    """Two linear maps of one storage."""
    module = tree("one", "two")
    change(module)
    return module


def with_data(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A module whose weights a wrapper has changed."""
    for parameter in module.parameters():
        parameter.data = change(parameter.data)
    return nn.Sequential(module)


def kept(dtype: torch.dtype) -> nn.Module:
    """A frozen parameter of numbers that are not real."""
    module = nn.Sequential(nn.Linear(4, 4))
    module.extra = nn.Parameter(torch.ones(3, 3).to(dtype), requires_grad=False)
    return module


class Transposed(nn.Linear):
    """A linear map that stores [d_in, d_out]."""

    def __init__(self, d_in: int = 16, d_out: int = 1024) -> None:
        super().__init__(d_in, d_out)
        self.weight = nn.Parameter(self.weight.detach().T.contiguous())


class Gain(nn.Module):
    """A norm of one's own with a gain under any name."""

    def __init__(self, name: str, gain: torch.Tensor, noise: float = 0.0) -> None:
        super().__init__()
        self.name, self.noise = name, noise
        self.register_parameter(name, nn.Parameter(gain))
        self.shift = nn.Parameter(torch.zeros_like(gain)) if gain.numel() > 1 else 0.0

    def forward(self, x: torch.Tensor) -> Any:
        """x / rms(x) * (w or 1 + w) + shift."""
        gain = getattr(self, self.name)
        normed = nn.functional.rms_norm(x + self.noise * torch.randn_like(x), x.shape[-1:])
        return normed * (1 + gain if self.name == "w" else gain) + self.shift


class GainNorm(Gain):
    """Its class has a norm's name."""


class NormThenMix(nn.Module):
    """A matrix under the name of a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(16, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, 16]."""
        return nn.functional.layer_norm(x, x.shape[-1:]) @ self.w


class ImageNorm(nn.LayerNorm):
    """A norm of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, channel, height, width]."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class OnePlus(nn.LayerNorm):
    """A subclass of PyTorch's that multiplies by 1 + weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, d_model]."""
        norm = nn.functional.layer_norm
        return norm(x, self.normalized_shape, self.weight + 1, self.bias)


class LN(nn.LayerNorm):
    """A norm without the word in its name."""


class OwnParameter(nn.Parameter):
    """A subclass of PyTorch's, as libraries have."""


class RelativeAttention(nn.MultiheadAttention):
    """A subclass of PyTorch's."""


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "transposed view": (
        lambda: shared(lambda m: setattr(m.two, "weight", nn.Parameter(m.one.weight.t()))), {},
        "one.weight and two.weight share memory: tie them as one Parameter"),
    "same data": (lambda: shared(lambda m: setattr(m.two.weight, "data", m.one.weight.data)), {},
                  "one.weight and two.weight share memory"),
    "part of it": (lambda: shared(lambda m: setattr(m.two, "weight",
                                                    nn.Parameter(m.one.weight.data[4:]))), {},
                   "one.weight and two.weight share memory"),
    "subclass": (lambda: shared(lambda m: setattr(m.two, "weight",
                                                  OwnParameter(m.one.weight.data))), {},
                 "one.weight and two.weight share memory"),
    "expanded": (lambda: shared(lambda m: setattr(m.two, "weight", nn.Parameter(
        torch.ones(1, 16).expand(16, 16)))), {}, "two.weight is expanded, its values share memory"),
    "head": (lambda: tree("mlp.up", "head"), {"gamma": ai.InitConfig(0.8, gamma_mlp=0.4)},
             r"no group is known for head.weight: give rules=\{'head.weight': 'embed'\}, 'mlp'"),
    "norm": (lambda: nn.LayerNorm(4), {"rules": {"weight": 8}}, "a norm has no inputs; expected"),
    "nanoGPT": (lambda: tree("attn.c_attn", "attn.c_proj"), VO,
                r"gamma_vo 0.4; no group is known for attn.c_attn.weight: give rules=\{'attn.c_at"),
    "to_qkv": (lambda: tree("attn.to_qkv", "attn.to_out.0"), VO, "known for attn.to_qkv.weight"),
    "to_kv": (lambda: tree("attn.to_q", "attn.to_kv", "attn.to_out"), VO, "for attn.to_kv.weight:"),
    "c_q": (lambda: tree("attn.c_q", "attn.c_k", "attn.c_proj"), VO,
            "no group is known for attn.c_q.weight, attn.c_k.weight: give"),
    "layers": (lambda: tree("h.0.attn.kv_a", "h.0.attn.o_proj", "h.1.attn.kv_a"), VO,
               r"known for h.\*.attn.kv_a.weight: give rules=\{'h.\*.attn.kv_a.weight': 'qk'\}"),
    "heads": (lambda: tree("sa.heads.0.key", "sa.heads.0.value", "sa.proj"), VO,
              "no group is known for sa.proj.weight"),
    "critic": (lambda: tree("policy", "value"), VO, "gamma_vo is 0.4; no parameter is known to be"),
    "action values": (lambda: tree("policy", "q"), {"gamma": ai.InitConfig(0.8, gamma_qk=0.4)},
                      "gamma_qk is 0.4; no parameter is known to be"),
    "LoRA": (lambda: tree("q_proj.lora_A.default", "q_proj.lora_B.default"), {},
             r"for q_proj.lora_A.default.weight, .* all without one: .*q_proj.lora_B"),
    "matrix": (lambda: NormThenMix(), {}, r"for w, \(16, 48\) of a NormThenMix"),
    "single gain": (lambda: GainNorm("g", torch.tensor([8.0])), {}, r"for g, \(1,\) of a GainN"),
    "several": (lambda: nn.LSTM(3, 4, num_layers=2), {},
                "all without one: weight_ih_l0, weight_hh_l0, weight_ih_l1, weight_hh_l1$"),
    "stale width": (lambda: with_data(nn.Linear(4, 4), lambda x: x[..., :3].clone()), {},
                    r"for 0.weight, \(4, 3\) of a Linear"),
    "placeholders": (lambda: with_data(nn.Linear(4, 4), lambda x: x.new_empty(0)), {},
                     "0.weight is in shards .*: gather it first"),
    "complex": (lambda: kept(torch.complex64), {}, r"extra \(torch.complex64\) is complex; expec"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4)), {}, "0.weight has no shape yet: run"),
    "two fills": (lambda: nn.Linear(4, 4), {"rules": {"weight": ("zero", 8)}}, r"is \('zero', 8\)"),
    "two widths": (lambda: nn.Linear(4, 4), {"rules": {"weight": (8, 16)}}, r"is \(8, 16\); exp"),
    "two groups": (lambda: nn.Linear(4, 4), {"rules": {"weight": ("qk", "vo")}}, "; expected one"),
    "dict": (lambda: nn.Linear(4, 4), {"rules": {"weight": {"d_in": 8}}}, "d_in.*; expected one"),
    "kdim": (lambda: nn.MultiheadAttention(16, 4, kdim=64), {"biases": "weights"},
             "the inputs of the matrix of in_proj_bias are unknown"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_initialize_refuses(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, arguments, message = REFUSED[case]
    module = make()
    assert_refused(lambda: initialize(module, overwrite=True, **arguments), message, monkeypatch)


@pytest.mark.parametrize(
    "places", ["attn.q_proj attn.k_proj attn.v_proj attn.out_proj mlp.up", "attention.self.query"
               " attention.self.key attention.self.value attention.output.dense output.dense",
               "sa.heads.0.key sa.heads.0.value pooler", "attn.wq attn.wv attn.wo w1 attn.mlp.x"]
)  # fmt: skip
def test_whole_attentions_take_rates_of_their_own(places: str) -> None:
    table = initialize(tree(*places.split()), ai.InitConfig(0.8, gamma_qk=0.3, gamma_vo=0.4))
    assert {"qk", "vo"} <= set(table.group)


def test_fused_matrices_of_others_are_refused_only_with_a_rate() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    module = own_modules.seeded(lambda: BloomForCausalLM(BloomConfig(
        hidden_size=16, n_layer=2, n_head=2, vocab_size=9)))  # fmt: skip
    initialize(module)
    with pytest.raises(ai.ConfigError, match=r"for transformer.h.\*.*query_key_value.weight: give"):
        initialize(module, **VO)
    initialize(module, **VO, rules={"*query_key_value.weight": 16})


def test_classes_tell_the_parts_of_an_attention() -> None:
    module: Any = tree("mha", make=lambda: RelativeAttention(256, 4))
    initialize(module, ai.InitConfig(1.0, gamma_qk=0.3, gamma_vo=0.5), biases="weights")
    for values in (module.mha.in_proj_weight, module.mha.in_proj_bias):
        parts = zip(values.detach().chunk(3), (0.3, 0.3, 0.5), strict=True)
        stds = [float(part.std()) * 256**rate for part, rate in parts]
        assert stds == pytest.approx([1, 1, 1], abs=0.2)
    assert float(module.mha.out_proj.weight.detach().std()) == pytest.approx(256**-0.5, rel=0.05)
    names = [one.name for one in ai.complexity(module).matrices]
    assert names[:3] == ["mha.in_proj.q", "mha.in_proj.k", "mha.in_proj.v"]


def test_frozen_parameters_stay_unless_all_are() -> None:
    module: Any = nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    nn.init.normal_(module[1].weight)
    module[:2].requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    table = initialize(module)
    assert table.group.tolist()[:3] == ["kept"] * 3
    assert table.d_in.isna().tolist() == [True] * 3 + [False, True]
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) is not name.startswith("2")
    initialize(module, rules={"0.weight": 8})
    assert not torch.equal(module[0].weight, before["0.weight"])
    initialize(module.requires_grad_(False), overwrite=True)
    assert (module[1].weight == 1).all()


def gpt2_config(**given: Any) -> Any:
    """A config that a network of one's own keeps."""
    from types import SimpleNamespace

    return SimpleNamespace(model_type="gpt2", **given)


def test_only_gpt2_itself_gets_the_names_of_a_hooked_transformer() -> None:
    towers: Any = nn.ModuleDict({"policy": own_modules.gpt2(), "critic": own_modules.gpt2()})
    towers.config = towers["policy"].config
    initialize(towers)
    one, other = (towers[name].transformer for name in ("policy", "critic"))
    assert not torch.equal(one.wte.weight, other.wte.weight)
    assert not torch.equal(one.h[0].attn.c_attn.weight, other.h[0].attn.c_attn.weight)
    plain, wrapped = own_modules.gpt2(), nn.ModuleDict({"module": own_modules.gpt2()})
    initialize(plain)
    initialize(wrapped)
    pairs = zip(plain.parameters(), wrapped.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for given in ({"n_head": 2}, {}):
        nano: Any = tree("h.0.attn.c_proj", "h.0.mlp.c_fc")
        nano.h._modules["0"].attn.c_attn = nn.Linear(16, 48)
        nano.config = gpt2_config(**given)
        assert initialize(nano).d_in.tolist()[::2] == [16] * 3


def test_queries_keys_and_values_of_nanogpt_are_told_apart() -> None:
    nano: Any = tree("h.0.attn", make=type("CausalSelfAttention", (nn.Module,), {}))
    nano.h._modules["0"].attn.c_attn = fused = nn.Linear(16, 48)
    initialize(nano, ai.InitConfig(0.5, gamma_qk=0.9, gamma_vo=0.2), seed=0)
    rows = ai.complexity(nano).to_frame().set_index("name")
    for name, part in zip("qkv", fused.weight.detach().double().view(3, 16, 16), strict=True):
        largest = torch.linalg.matrix_norm(part, 2)
        rank = float(part.square().sum() / largest.square())
        assert rows.loc[f"h.0.attn.c_attn.{name}", "stable_rank"] == pytest.approx(rank, rel=1e-4)
        gamma = 0.2 if name == "v" else 0.9
        assert float(part.std()) == pytest.approx(16**-gamma, rel=0.2)


@pytest.mark.parametrize(
    "names", ["module", "_orig_mod", "module _orig_mod", "_orig_mod module", "_fsdp_wrapped_module"]
)
def test_wrappers_change_no_weights(names: str) -> None:
    plain, wrapped = (tree("transformer.first", "transformer.last") for _ in range(2))
    initialize(plain)
    initialize(functools.reduce(lambda m, name: nn.ModuleDict({name: m}), names.split(), wrapped))
    pairs = zip(plain.parameters(), wrapped.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    twins: Any = tree("module.first", "first")
    initialize(twins)
    assert not torch.equal(twins.module.first.weight, twins.first.weight)


@pytest.mark.parametrize("biases", ["zero", "pytorch"])
def test_a_width_for_a_bias_is_that_of_its_matrix(biases: Any) -> None:
    module: Any = tree("lin", make=nn.Module)
    module.lin.kernel = nn.Parameter(torch.ones(64, 64))
    module.lin.bias = nn.Parameter(torch.ones(5000))
    rules: Any = {"lin.*": [64]}
    initialize(module, rules=rules, biases=biases)
    most = float(module.lin.bias.detach().abs().max())
    assert most == 0 if biases == "zero" else 0.99 / 8 < most <= 1 / 8


def test_a_linear_map_may_store_its_inputs_first() -> None:
    module: Any = nn.Sequential(Transposed())
    table = initialize(module, 0.8, biases="weights")
    assert table.d_in.tolist() == [16, 16]
    assert float(module[0].weight.detach().std()) == pytest.approx(16**-0.8, rel=0.05)
    assert [one.shape for one in ai.complexity(module).matrices] == [(16, 1024)]


def test_norms_of_ones_own_become_the_identity() -> None:
    x = torch.randn(64, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    vectors = x.movedim(1, -1).flatten(0, 2)
    gains = (("w", 0.0), ("scale", 0.0), ("scale", 1e-3))
    norms: list[Any] = [GainNorm(name, torch.ones(8), noise) for name, noise in gains]
    norms += [LN(8), OnePlus(8), ImageNorm(8)]
    state = torch.get_rng_state()
    initialize(nn.Sequential(*norms))
    assert torch.equal(state, torch.get_rng_state())
    for norm in norms:
        out = norm(x if isinstance(norm, ImageNorm) else vectors).detach()
        assert float(out.square().mean()) == pytest.approx(1, abs=0.01)


def test_decay_groups_take_what_an_optimizer_takes() -> None:
    for module in (kept(torch.complex64), kept(torch.uint8)):
        (group,) = decay_groups(module, 0.1)
        assert len(group["params"]) == 2
        assert len(initialize(module, rules={"extra": "keep"})) == 3
    shards = with_data(nn.Linear(4, 4), torch.flatten)
    assert len(decay_groups(shards, 0.1)) == 1
    with pytest.raises(ai.ConfigError, match=r"0.weight is flattened: make the groups"):
        decay_groups(shards, 0.1, norms_and_biases=False)
    doubled: Any = tree("one", "two")
    doubled.two.weight = nn.Parameter(doubled.one.weight.t())
    with pytest.raises(ai.ConfigError, match="share memory"):
        decay_groups(doubled, 0.1)


def test_parts_of_one_storage_that_do_not_overlap_are_apart() -> None:
    halves: Any = tree("one", "two")
    whole = torch.zeros(16, 32)
    halves.one.weight, halves.two.weight = map(nn.Parameter, whole.chunk(2, 1))
    table = initialize(halves)
    assert table.std_after.tolist()[::2] == pytest.approx([16**-0.8] * 2, rel=0.2)
    assert len(decay_groups(halves, 0.1)[0]["params"]) == 4


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("function", [initialize, ai.complexity, lambda x: decay_groups(x, 0.1)])
def test_a_scripted_module_is_refused(function: Callable[[nn.Module], Any]) -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(ai.ConfigError, match="module is a ScriptModule; expected the module that"):
        function(scripted)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 0), lambda: nn.Linear(0, 4),
                                  lambda: nn.Embedding(0, 4), lambda: nn.LayerNorm(0)])  # fmt: skip
def test_tensors_without_elements_stay(make: Callable[[], nn.Module]) -> None:
    module = nn.Sequential(make(), nn.Linear(4, 4))
    assert initialize(module).group.tolist()[0] == "kept"
    assert [one.name for one in ai.complexity(module).matrices] == ["1"]
    assert len(decay_groups(module, 0.1)) == 1


def test_tensors_of_inference_are_set() -> None:
    with torch.inference_mode():
        module = nn.Linear(4, 4)
    initialize(module)
    assert not module.bias.any()


def test_a_tensor_in_shards_is_refused_by_name(tmp_path: Any) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ai.ConfigError, match=r"0.weight is in shards .*: gather it first"):
            initialize(module)
        assert [len(g["params"]) for g in decay_groups(module, 1, norms_and_biases=False)] == [1, 3]
    finally:
        distributed.destroy_process_group()
