"""Plain TransformerLens and load_transformer read exported weights; anything else is refused."""

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from versions import only_3

import anchor_interp
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import canonical_json
from anchor_interp.cli.main import main
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import PostLNTransformer, build_model, model_of_weights
from anchor_interp.models.transformer_lens import HookedTransformer, HookedTransformerConfig
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.export import load_transformer, save_transformer, save_weights
from anchor_interp.runs.run import Run

# TransformerLens warns whenever one is built by hand
pytestmark = pytest.mark.filterwarnings("ignore:HookedTransformer is deprecated:DeprecationWarning")
TOKENS = torch.randint(0, 100, (8, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def exported(tmp_path: Path, finished_run: Run) -> Path:
    return finished_run.export(tmp_path / "weights.safetensors")


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        found: dict[str, str] = file.metadata()
    return found


def test_an_export_gives_the_same_model(finished_run: Run, exported: Path) -> None:
    model = anchor_interp.load_transformer(exported)
    assert isinstance(model, PostLNTransformer)
    assert not model.training
    assert torch.equal(model(TOKENS), finished_run.model(TOKENS))
    state, expected = load_file(exported), finished_run.model.state_dict()
    cfg = HookedTransformerConfig(**json.loads(_metadata(exported)["HookedTransformerConfig"]))
    PostLNTransformer(cfg).load_state_dict(state)  # as the documentation opens it
    assert set(state) == set(expected)
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    metadata = _metadata(exported)
    assert metadata["run_id"] == run_id(finished_run.config)
    assert metadata["step"] == "40"
    assert json.loads(metadata["config"]) == json.loads(canonical_json(finished_run.config))
    assert anchor_interp.evaluate(model, finished_run.config.task, n=20).steps is None


def test_an_export_keeps_a_bias_that_is_no_parameter(tmp_path: Path, finished_run: Run) -> None:
    """It is zero while a model trains, and can be set afterwards."""
    run = finished_run.at(40)
    mlp: Any = run.model.blocks[0].mlp
    assert "b_in" not in dict(mlp.named_parameters())
    mlp.b_in.fill_(0.5)
    again = load_transformer(run.export(tmp_path / "w.safetensors"))
    assert torch.equal(again(TOKENS), run.model(TOKENS))
    assert not torch.equal(again(TOKENS), finished_run.model(TOKENS))
    mlp.b_in[3] = torch.nan
    with pytest.raises(StoreError, match=r"0\.mlp\.b_in holds 1 of .* not finite"):
        load_transformer(run.export(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_transformer_lens_reads_a_pre_layernorm_export(
    tmp_path: Path, short: RunConfig, bias: bool, dtype: torch.dtype
) -> None:
    config = override(short, normalization="pre", act_fn="gelu", bias=bias, n_heads=2)
    model = build_model(config.model, config.init, seed=1, dtype=dtype)
    path = tmp_path / "w"
    save_weights(model, path, config, step=0)
    cfg = HookedTransformerConfig(
        **json.loads(_metadata(path)["HookedTransformerConfig"]), dtype=dtype
    )
    plain = HookedTransformer(cfg)
    plain.load_state_dict(load_file(path), strict=True)
    assert torch.equal(plain(TOKENS), model(TOKENS))
    again = load_transformer(path)
    assert again.cfg.dtype == dtype
    assert torch.equal(again(TOKENS), model(TOKENS))
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in model.named_parameters()}


def test_a_failed_write_keeps_the_file_that_was_there(
    exported: Path, finished_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = exported.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        finished_run.at(0).export(exported)
    assert exported.read_bytes() == before
    assert [path.name for path in exported.parent.iterdir()] == [exported.name]


State = dict[str, torch.Tensor]
Damage = Callable[[State, dict[str, str]], None]


def _wider(state: State, metadata: dict[str, str]) -> None:
    config = json.loads(metadata["config"])
    config["model"]["d_mlp"] = 1 << 18
    _reconfigure(metadata, config)


def _reconfigure(metadata: dict[str, str], config: Any) -> None:
    from anchor_interp._util.schema import from_dict

    metadata["config"] = json.dumps(config)
    metadata["run_id"] = run_id(from_dict(RunConfig, config))


def _narrower(state: State, metadata: dict[str, str]) -> None:
    config = json.loads(metadata["config"])
    config["model"]["d_head"] = 4
    _reconfigure(metadata, config)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _, m: m.update(format="pt"), r"these settings has no 'blocks\.0\.ln1"),
        (lambda _, m: m.clear(), "weights without their configuration.*ai.save_transformer"),
        (lambda _, m: m.update(schema="2"), "has schema '2'; this version"),
        (lambda _, m: m.update(config="[" * 100_000), "damaged configuration"),
        (lambda _, m: m.update(config='{"task": 1}'), "damaged configuration"),
        (_wider, "the configured model has"),
        (_narrower, r"W_Q' has shape \(1, 16, 8\)"),
        (lambda s, _: s.pop("unembed.b_U"), "'unembed.b_U' is in only one"),
        (lambda s, _: s.update(extra=torch.zeros(1)), "'extra' is in only one"),
        (lambda s, _: s["embed.W_E"].fill_(torch.nan), "not finite"),
    ],
)
def test_foreign_and_damaged_exports_are_refused(
    exported: Path, damage: Damage, message: str
) -> None:
    state, metadata = load_file(exported), _metadata(exported)
    damage(state, metadata)
    save_file(state, exported, metadata)
    with pytest.raises(StoreError, match=message) as caught:
        load_transformer(exported, to_run=True)
    assert str(exported) in str(caught.value)


def test_weights_of_a_task_that_is_not_imported_are_opened(exported: Path) -> None:
    state = {name: value.clone() for name, value in load_file(exported).items()}  # not mapped
    metadata = _metadata(exported)
    metadata["config"] = json.dumps(json.loads(metadata["config"]) | {"task": {"kind": "mine"}})
    save_file(state, exported, metadata)
    assert torch.equal(load_transformer(exported).embed.W_E, state["embed.W_E"])


def plain_model(**settings: Any) -> HookedTransformer:
    plain: dict[str, Any] = {
        "n_layers": 1, "d_model": 8, "d_head": 4, "n_heads": 2, "d_vocab": 110, "n_ctx": 9,
        "act_fn": "gelu", "seed": None, "device": "cpu",
    }  # fmt: skip
    cfg = HookedTransformerConfig(**(plain | settings))
    with torch.random.fork_rng():
        return HookedTransformer(cfg, move_to_device=False).eval()


@only_3
@pytest.mark.parametrize("settings", [
    {"use_local_attn": True, "attn_types": ["global", "local"], "window_size": 2, "n_layers": 2},
    {"num_experts": 3, "experts_per_token": 2},
    {"num_experts": 3, "experts_per_token": 2, "gated_mlp": True, "act_fn": "silu"},
])  # fmt: skip
def test_settings_that_are_lists_and_experts_come_back(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    model = plain_model(**settings)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    path = save_transformer(model, tmp_path / "own.safetensors")
    assert torch.equal(load_transformer(path, to_run=True)(TOKENS), model(TOKENS))


def test_a_model_that_could_not_be_opened_again_is_not_saved(tmp_path: Path) -> None:
    model, path = plain_model(), tmp_path / "own.safetensors"
    model.blocks[0].adapter = torch.nn.Linear(8, 8)
    with pytest.raises(ConfigError, match=r"has no 'blocks\.0\.adapter\.weight'.*state_dict"):
        save_transformer(model, path)
    assert not path.exists()


def test_a_model_whose_code_is_not_in_the_file_is_not_saved(tmp_path: Path) -> None:
    model: Any = plain_model()
    path = tmp_path / "own.safetensors"
    plain = save_transformer(model, path).read_bytes()
    model.add_hook("hook_embed", lambda x, **_: 2 * x, is_permanent=True)
    with pytest.raises(ConfigError, match=r"hooks and code of your own.*by \d"):
        save_transformer(model, path)
    model.reset_hooks(including_permanent=True)
    model.blocks[0].mlp.forward = torch.zeros_like
    with pytest.raises(ConfigError, match=r"hooks and code of your own.*by \d"):
        save_transformer(model, path)
    assert path.read_bytes() == plain


def test_a_model_of_ones_own_is_opened_by_what_the_error_names(tmp_path: Path) -> None:
    model = plain_model()
    path = save_transformer(model, tmp_path / "own.safetensors")
    with pytest.raises(StoreError, match=r"anchor_interp\.load_transformer"):
        anchor_interp.load(path)
    assert torch.equal(load_transformer(path, to_run=True)(TOKENS), model(TOKENS))


def test_an_own_model_with_a_weight_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = plain_model()
    model.blocks[0].attn.W_Q.data[0, 0, 0] = torch.nan  # which its logits do not show
    assert torch.isfinite(model(TOKENS)).all()
    path = tmp_path / "own.safetensors"
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn\.W_Q holds 1 of 64"):
        save_transformer(model, path)
    assert not path.exists()
    save_file(model.state_dict(), path)
    with pytest.raises(StoreError, match=r"own\.safetensors: blocks\.0\.attn\.W_Q holds 1 of 64"):
        load_transformer(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_told_what_to_become(
    tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "model.pt", str(tmp_path / "out")
    torch.save(plain_model().state_dict(), path, _use_new_zipfile_serialization=zipped)
    advice = r"only safetensors is read: .*model\.load_state_dict\(torch.load.*save_transformer"
    no_run = r"is not a run folder: it is a file; .*safetensors"
    calls: list[tuple[Callable[[Path], object], str]] = [
        (load_transformer, advice), (anchor_interp.load, no_run),
        (anchor_interp.analyze, no_run), (anchor_interp.fingerprint, no_run),
    ]  # fmt: skip
    for call, message in calls:
        with pytest.raises(StoreError, match=message):
            call(path)
    for command in (["verdict", str(path)], ["analyze", str(path), "--out", out]):
        assert main([*command, "--task", "neurips"]) == 1
        assert re.search(advice, capsys.readouterr().err)


def test_other_file_formats_are_refused(exported: Path, tmp_path: Path) -> None:
    whole = exported.read_bytes()
    for data in (b"", whole[:-1], whole[:100], pickle.dumps({"a": 1}), bytes(8) + whole):
        exported.write_bytes(data)
        with pytest.raises(StoreError, match="cannot be read as weights"):
            load_transformer(exported)
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(StoreError, match=f"cannot read {path}"):
            load_transformer(path)


def test_layers_that_are_one_module_are_saved_as_copies(tmp_path: Path) -> None:
    cfg = HookedTransformerConfig(
        n_layers=2, d_model=8, d_head=4, n_heads=2, n_ctx=5, d_vocab=7, act_fn="relu", d_mlp=8
    )
    model = HookedTransformer(cfg)
    model.blocks[1] = model.blocks[0]
    again = load_transformer(save_transformer(model, tmp_path / "shared.safetensors"))
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again(tokens), model(tokens))


def test_weights_tell_their_shape_whatever_settings_say() -> None:
    shape = ModelConfig(d_model=8, d_head=4, d_mlp=8, normalization="pre")
    model = build_model(shape, InitConfig(), seed=0)
    settings = {"n_layers": 1, "act_fn": "relu", "normalization_type": "LN"}
    without = {n: w for n, w in model.state_dict().items() if not n.endswith((".mask", ".IGNORE"))}
    for weights in (model.state_dict(), without):
        again = model_of_weights(weights, settings)
        torch.testing.assert_close(again(TOKENS), model(TOKENS))
