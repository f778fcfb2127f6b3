"""Initialisation and complexity of modules that are not ours."""

import copy
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import own_modules
import pytest
import torch
from refusals import assert_refused
from scipy.stats import chi2
from torch import nn
from torch.nn.utils import prune

import anchor_interp as ai
from anchor_interp.models.complexity import main_numbers
from anchor_interp.models.networks import build_network
from anchor_interp.models.parameters import decay_groups, parameters
from concepts import UNetConfig

WIDTHS = {  # inputs of the matrices that do not have 64
    "gpt2": {"mlp.c_proj": 256}, "llama": {"down_proj": 128}, "mistral": {"down_proj": 128},
    "neox": {"dense_4h_to_h": 128}, "gemma": {"down_proj": 128}, "encoder": {"linear2": 128},
    "convolutional": {"0.weight": 27, "2.weight": 8 * 9, "3.weight": 16 * 4, "5.weight": 16 * 5,
                      "6.weight": 4 * 8, "7.weight": 50},
}  # fmt: skip
GPT2 = ai.ModelConfig(
    n_heads=4, d_model=64, d_head=16, d_mlp=256, act_fn="gelu", normalization="pre", bias=True
)
MEASURES = ("stable_rank", "effective_rank", "condensation", "distance", "norm", "share")
MODELS: dict[str, Callable[[], Any]] = {name: getattr(own_modules, name) for name in WIDTHS}


def assert_spread(values: torch.Tensor, std: float) -> None:
    """The sum of n squared standard normal numbers has a chi-squared distribution."""
    low, high = chi2.ppf([0.0005, 0.9995], values.numel())
    assert low < float((values.detach().double() / std).square().sum()) < high


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_follows_its_rule(name: str) -> None:
    module = MODELS[name]()
    table = ai.initialize(module, 0.7)
    rows = {row.name: row for row in table.itertuples()}
    assert set(rows) == {name for name, _ in module.named_parameters()}
    for at, parameter in module.named_parameters():
        row, std = rows[at], float(parameter.detach().std(correction=0))
        assert row.shape == tuple(parameter.shape)
        assert row.std_after == pytest.approx(std, rel=1e-5)
        if parameter.ndim == 1:
            is_gain = not at.endswith("bias") and name != "gemma"
            assert (parameter == float(is_gain)).all(), at
            assert math.isnan(row.d_in)
        else:
            d_in = next((n for end, n in WIDTHS[name].items() if end in at), 64)
            assert row.d_in == d_in
            padding = 3 if "embed_tokens" in at and name == "gemma" else len(parameter)
            drawn = torch.cat([parameter[:padding], parameter[padding + 1 :]])
            assert_spread(drawn, d_in**-0.7)
            assert not parameter[padding : padding + 1].any()


@pytest.mark.parametrize("name", MODELS)
def test_weights_depend_on_seed_alone(name: str) -> None:
    one, other, third = (MODELS[name]() for _ in range(3))
    state = torch.get_rng_state()
    ai.initialize(one, 0.7, 5)
    ai.initialize(other, 0.3, 5)
    ai.initialize(other, 0.7, 5)
    ai.initialize(third, 0.7, 6)
    assert torch.equal(state, torch.get_rng_state())
    pairs = zip(one.parameters(), other.parameters(), third.parameters(), strict=True)
    for a, b, c in pairs:
        assert torch.equal(a, b)
        assert a.ndim == 1 or not torch.equal(a, c)


def test_norms_become_the_identity_as_their_class_computes_it() -> None:
    for make in (own_modules.gemma, own_modules.llama, own_modules.neox):
        module = make()
        ai.initialize(module)
        norms = [part for part in module.modules() if "Norm" in type(part).__name__]
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
        for norm in norms:
            rms = norm(x).square().mean(-1).sqrt()
            torch.testing.assert_close(rms, torch.ones(5), rtol=1e-3, atol=0)


def test_groups_of_a_fused_matrix_have_rates_of_their_own() -> None:
    init = ai.InitConfig(0.5, gamma_qk=0.9, gamma_vo=0.6, gamma_mlp=1.1, gamma_embed=0.3)
    module = own_modules.neox()
    ai.initialize(module, init)
    qkv = module.gpt_neox.layers[1].attention.query_key_value.weight.detach()
    q, k, v = qkv.view(4, 3, 16, 64).unbind(1)  # as GPTNeoXAttention takes them apart
    for part, rate in ((q, 0.9), (k, 0.9), (v, 0.6)):
        assert_spread(part, 64**-rate)
    layer = module.gpt_neox.layers[0]
    assert_spread(layer.attention.dense.weight.detach(), 64**-0.6)
    assert_spread(layer.mlp.dense_4h_to_h.weight.detach(), 128**-1.1)
    for table in (module.gpt_neox.embed_in, module.lm_head):
        assert_spread(table.weight.detach(), 64**-0.3)
    attention = own_modules.encoder()
    ai.initialize(attention, ai.InitConfig(0.5, gamma_qk=0.9))
    q, k, v = attention.self_attn.in_proj_weight.detach().chunk(3)
    assert_spread(torch.cat([q, k]), 64**-0.9)
    assert_spread(v, 64**-0.5)


@pytest.mark.parametrize("init", [ai.InitConfig(0.7), ai.InitConfig(0.6, gamma_vo=0.9)])
@pytest.mark.parametrize("tied", [True, False])
def test_gpt2_gets_the_weights_of_the_same_shape(init: ai.InitConfig, tied: bool) -> None:
    ours, theirs = ai.build_model(GPT2, init, seed=4), own_modules.gpt2(tie_word_embeddings=tied)
    ai.initialize(theirs, init, 4)
    expected = ours.state_dict() | ({"unembed.W_U": ours.W_E.mT} if tied else {})
    found = own_modules.hooked_weights(theirs)
    matrices = [name for name in found if ".W_" in name]
    assert len(matrices) == 3 + 2 * 6
    assert all(torch.equal(found[name], expected[name]) for name in matrices)


@pytest.mark.parametrize("name", ["inferential", "composite"])
def test_a_hooked_transformer_gets_the_weights_of_its_run(name: str) -> None:
    run = ai.load(f"tiny/{name}/1")
    model = copy.deepcopy(run.model)
    with pytest.raises(ai.ConfigError, match=r"look trained: the values of .* overwrite=True"):
        ai.initialize(model)
    ai.initialize(model, run.config.init, run.config.seed, overwrite=True)
    expected = dict(run.initial.named_parameters())
    assert all(torch.equal(value, expected[at]) for at, value in model.named_parameters())
    released = ai.InitConfig(0.6, scheme="released")
    ai.initialize(model, released, 3)
    again = ai.build_model(run.config.model, released, seed=3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize("weights", ["normal", "uniform"])
def test_a_network_of_a_task_gets_its_own_weights(weights: Any) -> None:
    shape, init = UNetConfig(n_features=8, d_image=12), ai.InitConfig(0.6, weights=weights)
    module, expected = build_network(shape, init, seed=1), build_network(shape, init, seed=2)
    ai.initialize(module, init, 2, biases="weights")
    pairs = zip(module.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_biases_can_be_pytorchs() -> None:
    module = nn.Sequential(nn.Conv2d(20, 500, 5), nn.Linear(9, 400))
    ai.initialize(module, biases="pytorch")
    part: Any
    for part, fan_in in zip(module, (20 * 25, 9), strict=True):
        bias: Any = part.bias.detach()
        assert 0.95 < float(bias.abs().max()) * fan_in**0.5 <= 1
        assert float(bias.std()) == pytest.approx(fan_in**-0.5 / math.sqrt(3), rel=0.1)


class Own(nn.Module):
    """A parameter of its own, a gain, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.mix = nn.Parameter(torch.rand(4, 16, 16))
        self.gate = nn.Parameter(torch.rand(16))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight


def test_rules_cover_parameters_of_ones_own() -> None:
    module = Own()
    kept = module.gate.detach().clone()
    table = ai.initialize(module, ai.InitConfig(0.5, gamma_qk=1.0),
                       rules={"*mix": ("qk", 16), "gate": "keep"})  # fmt: skip
    assert_spread(module.mix.detach(), 1 / 16)
    assert torch.equal(module.gate, kept)
    assert table.name.tolist() == ["mix", "gate", "table.weight"]
    assert table.also.tolist() == ["", "", "head.weight"]
    ai.initialize(module, rules={"mix": "zero", "g*": "one"})
    assert not module.mix.any()
    assert (module.gate == 1).all()
    assert table.d_in.tolist()[0] == 16


def quantised() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    return module


GIVEN: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "meta": (lambda: nn.Linear(3, 3, device="meta"), {}, "weight is on the device meta"),
    "quantised": (quantised, {}, r"1.weight \(torch.int8\) is quantised; expected floating-point"),
    "nan": (own_modules.encoder, {"gamma": math.nan}, "gamma is nan; expected an InitConfig or a"),
    "large": (own_modules.encoder, {"gamma": 9.0}, "init.gamma is 9.0; expected at most 4"),
    "seed": (own_modules.encoder, {"seed": -1}, "seed is -1; expected at least 0"),
    "two rules": (Own, {"rules": {"mix": "keep", "gate": "one", "table.*": "zero", "head*": "one"}},
                  "table.weight and head.weight are one tensor with two rules; give both"),
    "two widths": (Own, {"gamma": ai.InitConfig(embed_d_in="d_vocab"),
                         "rules": {"mix": "keep", "gate": "one"}},
                   "table.weight and head.weight are one tensor with two rules; give both"),
    "none": (lambda: nn.LSTM(3, 4), {}, r"no .* for weight_ih_l0, \(16, 3\) of a LSTM; give one"),
    "no name": (own_modules.encoder, {"rules": {"norm3.weight": "one"}},
                r"no parameter is called 'norm3.weight' \(did you mean 'norm2.weight'\?\)"),
    "no rule": (Own, {"rules": {"*": "qkv"}},
                "the rule for mix is 'qkv'; expected one of embed, qk, vo"),
    "no d_in": (Own, {"rules": {"mix": "qk"}}, "the rule for mix is 'qk'; its d_in is unknown"),
    "no group": (own_modules.convolutional, {"gamma": ai.InitConfig(gamma_qk=0.4)},
                 "init.gamma_qk is 0.4; no parameter is known to be in the group qk: name them"),
    "norm in a group": (own_modules.convolutional, {"gamma": ai.InitConfig(gamma_qk=0.4),
                                                    "rules": {"1.weight": "qk"}},
                        "the rule '1.weight': 'qk' changes nothing: 1.weight is a norm"),
    "bias of no matrix": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
                          {"rules": {"*original?": 4}, "biases": "pytorch"},
                          "biases is 'pytorch', and the inputs of the matrix of bias are unknown"),
    "scheme": (own_modules.encoder, {"gamma": ai.InitConfig(scheme="released")},
               "init.scheme is 'released'; expected 'paper': a TransformerEncoderLayer"),
    "rules": (own_modules.encoder, {"rules": ["*"]}, r"rules is \['\*'\]; expected a dict"),
    "text": (lambda: "tiny", {}, "module is 'tiny'; expected a Module"),
    "empty": (nn.ReLU, {}, "the ReLU has no parameters"),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN)
def test_wrong_input_has_one_line(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, arguments, message = GIVEN[case]
    assert_refused(lambda: ai.initialize(make(), **arguments), message, monkeypatch)


def test_nothing_changes_where_a_parameter_has_no_rule() -> None:
    module = Own()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ai.ConfigError, match="for mix"):
        ai.initialize(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_trained_weights_are_noticed_by_norms_or_by_name() -> None:
    module = own_modules.convolutional()
    with torch.no_grad():
        module[1].weight[3] += 1e-6
    with pytest.raises(ai.ConfigError, match=r"look trained: the values of 1.weight differ"):
        ai.initialize(module)
    ai.initialize(module, overwrite=True)
    assert (module[1].weight == 1).all()
    named: Any = nn.Linear(3, 3)
    named.name_or_path = "somebody/model"
    with pytest.raises(ai.ConfigError, match="look trained: it was loaded from somebody/model"):
        ai.initialize(named)
    fresh = own_modules.llama()
    fresh.name_or_path = "somebody/config"  # as a config that was loaded leaves it: norms tell
    ai.initialize(fresh)


def perturbed_gpt2() -> Any:
    """GPT-2 with weights of low rank added, in float64."""
    module = own_modules.gpt2().double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (w for w in module.parameters() if w.ndim == 2):
            left, right = (torch.randn(n, 1, generator=generator).double() for n in weight.shape)
            weight += 0.01 * left @ right.T
    return module


def test_gpt2_is_as_complex_as_the_same_hooked_transformer() -> None:
    theirs, start = perturbed_gpt2(), own_modules.gpt2().double()
    models = [ai.build_model(GPT2, ai.InitConfig(), seed=0, dtype=torch.float64) for _ in "ab"]
    for ours, module in zip(models, (theirs, start), strict=True):
        assert not ours.load_state_dict(own_modules.hooked_weights(module), False).unexpected_keys
    found, expected = ai.complexity(theirs, start), ai.complexity(*models)
    names = {"W_E": "wte", "W_pos": "wpe", "W_Q": "attn.c_attn.q", "W_K": "attn.c_attn.k",
             "W_V": "attn.c_attn.v", "W_O": "attn.c_proj", "W_in": "mlp.c_fc",
             "W_out": "mlp.c_proj"}  # fmt: skip
    of: dict[str, Any] = {one.name.removeprefix("transformer."): one for one in found.matrices}
    compared: list[Any] = [one for one in expected.matrices if one.name in names]
    assert len(of) == len(compared) == 14
    for one in compared:
        layer = "" if one.layer is None else f"h.{one.layer}."
        mine = of[layer + names[one.name]]
        for measure in MEASURES:
            assert getattr(mine, measure) == pytest.approx(getattr(one, measure), rel=1e-6)
        assert (mine.shape, mine.basis_dependent) == (one.shape, one.basis_dependent)
    first = next(one for one in compared if one.name == "W_Q")
    assert first.share == pytest.approx(first.stable_rank / first.at_init.stable_rank)
    assert first.norm == pytest.approx(float(models[0].W_Q[0].detach().norm()))


def test_fused_matrices_are_split_or_said_to_be_whole() -> None:
    module = own_modules.neox().double()
    heads = module.gpt_neox.layers[0].attention.query_key_value.weight
    with torch.no_grad():
        heads.view(4, 3, 16, 64)[:, 1] = 1.0  # the keys of every head
    found: dict[str, Any] = {one.name: one for one in ai.complexity(module).matrices}
    attention = "gpt_neox.layers.0.attention.query_key_value"
    assert found[f"{attention}.k"].stable_rank == pytest.approx(1)
    assert found[f"{attention}.k"].condensation == pytest.approx(1)
    assert found[f"{attention}.q"].stable_rank > 5
    other = nn.ModuleDict({"Wqkv": nn.Linear(16, 48), "lstm": nn.LSTM(4, 4)})
    whole = ai.complexity(other)
    assert whole.to_frame()["depends_on"].tolist() == [
        "basis, dead heads; fused: q, k and v in one matrix"
    ]
    assert whole.left_out == ("lstm.weight_ih_l0", "lstm.weight_hh_l0")
    with pytest.raises(
        ai.ConfigError, match=r"the LSTM has no known matrix; left out: .*weight_ih_l0"
    ):
        ai.complexity(nn.LSTM(4, 4))


def test_multihead_attention_is_split() -> None:
    module = own_modules.encoder().double()
    in_proj = module.self_attn.in_proj_weight
    with torch.no_grad():
        in_proj[128:] = torch.outer(torch.arange(64.0), torch.ones(64))
    found = {one.name: one.stable_rank for one in ai.complexity(module).matrices}
    assert found["self_attn.in_proj.v"] == pytest.approx(1)
    singular = np.linalg.svd(in_proj[:64].detach().numpy(), compute_uv=False)
    assert found["self_attn.in_proj.q"] == pytest.approx((singular**2).sum() / singular[0] ** 2)


class Scaled(nn.Linear):
    """A linear map with a parameter beside its weight."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.scale = nn.Parameter(torch.ones(4))


class ScaledTable(nn.Embedding):
    """An embedding with a parameter beside its weight."""

    def __init__(self) -> None:
        super().__init__(7, 4)
        self.scale = nn.Parameter(torch.ones(4))


class NormThenMix(nn.Module):
    """A norm in its name, and more than a norm in it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(4, 4))


def pruned() -> nn.Module:
    module: nn.Module = cast(Any, prune).random_unstructured(nn.Linear(4, 4), "weight", 0.5)
    return module


KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, str | None]]] = {
    "weight norm of old": (lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
                           {"weight_g": None, "weight_v": None, "bias": "bias"}),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
                    {"parametrizations.weight.original0": None, "bias": "bias",
                     "parametrizations.weight.original1": None}),
    "spectral norm": (lambda: nn.utils.spectral_norm(nn.Conv1d(4, 4, 3)),
                      {"weight_orig": None, "bias": "bias"}),
    "pruning": (pruned, {"weight_orig": None, "bias": "bias"}),
    "linear": (Scaled, {"weight": "matrix", "bias": "bias", "scale": None}),
    "table": (ScaledTable, {"weight": "table", "scale": None}),
    "norm": (NormThenMix, {"mix": None}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("case", KINDS)
def test_only_what_a_class_is_known_by_is_known(case: str) -> None:
    make, expected = KINDS[case]
    module = make()
    assert {each.name: each.kind for each, *_ in parameters(module)} == expected
    with pytest.raises(ai.ConfigError, match="no initialisation is defined for"):
        ai.initialize(module)
    if "weight" in expected:
        assert len(ai.complexity(module).matrices) == 1


PLACES = {
    "attn.to_q": "qk", "attn.wk": "qk", "attn.q_attn": "qk", "attention.self.query": "qk",
    "attn.to_qkv": None, "attn.to_v": "vo", "attn.wo": "vo", "attn.to_out.0": "vo",
    "attention.output.dense": "vo", "attn.gate": None, "attn_layers.0.mlp.fc1": "mlp",
    "layer.0.output.dense": "mlp", "feed_forward.key": "mlp", "h.0.mlp.c_proj": "mlp",
    "attn.q_proj.base_layer": "qk", "attn.v_proj._orig_mod": "vo", "fc3": "mlp",
    "lm_head": "embed", "first": None,
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_the_last_name_in_a_path_tells_the_group(place: str) -> None:
    module: nn.Module = nn.Linear(4, 4)
    for name in reversed(place.split(".")):
        module = nn.ModuleDict({name: module})
    assert {each.name: each.group for each, *_ in parameters(module)} == {
        f"{place}.weight": PLACES[place],
        f"{place}.bias": PLACES[place],
    }


def test_complexity_tells_what_it_left_out_and_what_depends_on_the_basis() -> None:
    module = nn.ModuleDict({"qkv": nn.Linear(4, 12), "norm": nn.LayerNorm([2, 4])})
    found = ai.complexity(module)
    assert [one.basis_dependent for one in found.matrices] == [True]
    assert found.left_out == ("norm.weight", "norm.bias")
    more = nn.ModuleDict({"qkv": nn.Linear(4, 12), "other": nn.Linear(4, 4)})
    with pytest.raises(ai.ConfigError, match=r"other is missing and \(4, 4\) in the model before"):
        ai.complexity(module, more)


@pytest.mark.parametrize("place", ["q_proj", "q_proj._orig_mod", "q_proj.base_layer"])
def test_queries_of_layer_0_are_found_in_wrappers_and_merged_over_heads(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped: Any = nn.ModuleDict({"v_proj": nn.Linear(8, 8), "q_proj": nn.Linear(8, 8)})
    alone = nn.ModuleDict({"q_proj": wrapped.q_proj})
    outer, _, inner = place.partition(".")
    if inner:
        wrapped[outer] = nn.ModuleDict({inner: wrapped.q_proj})
    assert vars(main_numbers(wrapped)[0]) == vars(main_numbers(alone)[0])
    told = f"{place} is measured without its adapter; merge them (merge_and_unload)"
    assert [x.getMessage() for x in caplog.records] == [told] * (inner == "base_layer")


def test_queries_of_single_heads_are_merged() -> None:
    def layer() -> nn.Module:
        heads = [
            nn.ModuleDict({"key": nn.Linear(8, 2), "query": nn.Linear(8, 2)}) for _ in range(3)
        ]
        return nn.ModuleDict({"heads": nn.ModuleList(heads)})

    def rank(query: torch.Tensor) -> float:
        return float(query.square().sum() / torch.linalg.matrix_norm(query, 2) ** 2)

    layers: Any = nn.ModuleList([layer(), layer()])
    queries = [head["query"].weight.detach() for head in layers[0]["heads"]]
    assert main_numbers(layers)[0].stable_rank == pytest.approx(rank(torch.cat(queries)), rel=1e-5)
    layers[0]["heads"][0]["query"] = nn.Linear(4, 2)  # which cannot be merged with the others
    ranks = [rank(x) for x in (layers[0]["heads"][0]["query"].weight.detach(), *queries[1:])]
    assert main_numbers(layers)[0].stable_rank == pytest.approx(np.mean(ranks), rel=1e-5)


def test_what_cannot_be_measured_has_no_rank() -> None:
    assert main_numbers(nn.ReLU())[0].stable_rank is None


def test_biases_are_drawn_as_their_matrices() -> None:
    module = nn.ModuleDict({"q_proj": nn.Linear(4096, 500), "gate": nn.Linear(8, 500)})
    init = ai.InitConfig(0.5, gamma_qk=0.9)
    table = ai.initialize(module, init, rules={"gate.weight": 64}, biases="weights")
    part: Any
    for part, std in ((module["q_proj"], 4096**-0.9), (module["gate"], 64**-0.5)):
        assert_spread(part.bias.detach(), std)
    assert dict(zip(table.name, table.d_in, strict=True))["gate.bias"] == 64


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_table_tells_the_inputs_that_counted(is_ours: bool) -> None:
    module = ai.build_model(GPT2, ai.InitConfig(), seed=0) if is_ours else nn.Embedding(7, 5)
    table = ai.initialize(module, ai.InitConfig(embed_d_in="d_vocab"), overwrite=True)
    tables = [name in ("weight", "embed.W_E", "pos_embed.W_pos") for name in table.name]
    assert table.d_in[tables].tolist() == [shape[0] for shape in table["shape"][tables]]


def test_rates_of_parts_do_not_depend_on_the_default_dtype() -> None:
    one, other = own_modules.encoder(), own_modules.encoder()
    init = ai.InitConfig(0.5, gamma_qk=0.9)
    ai.initialize(one, init)
    torch.set_default_dtype(torch.bfloat16)
    try:
        ai.initialize(other, init)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(one.self_attn.in_proj_weight, other.self_attn.in_proj_weight)


def test_a_tied_head_that_comes_first_keeps_the_padding() -> None:
    module = nn.ModuleDict({"head": nn.Linear(5, 7), "table": nn.Embedding(7, 5, padding_idx=3)})
    tied: Any = module
    tied["head"].weight = tied["table"].weight
    ai.initialize(module)
    assert tied["head"].weight.ne(0).any(1).tolist() == [row != 3 for row in range(7)]


def test_decay_groups_are_all_parameters_or_leave_out_norms_and_biases() -> None:
    module = own_modules.gpt2()
    (whole,) = decay_groups(module, 0.1)
    assert whole["weight_decay"] == 0.1
    assert {id(p) for p in whole["params"]} == {id(p) for p in module.parameters()}
    decayed, spared = decay_groups(module, 0.1, norms_and_biases=False)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(p) for p in module.parameters() if p.ndim > 1}
    assert len(decayed["params"]) + len(spared["params"]) == len(whole["params"])
    hooked = ai.build_model(GPT2, ai.InitConfig(), seed=0)
    decayed, _ = decay_groups(hooked, 0.1, norms_and_biases=False)
    names = {id(p): name for name, p in hooked.named_parameters()}
    assert {names[id(p)].split(".")[-1][:2] for p in decayed["params"]} == {"W_"}
