"""Weights in one safetensors file that plain TransformerLens can read.

The tensors are a HookedTransformer's ``state_dict`` under its own names. The metadata hold:

==========================  ======================================================================
key                         value
==========================  ======================================================================
``format``, ``schema``      ``anchor-interp weights`` and the number of this layout
``run_id``, ``step``        the run and its checkpoint
``config``                  the :class:`anchor_interp.runs.config.RunConfig`, as JSON
``HookedTransformerConfig`` its arguments as JSON, without the dtype, which the tensors have
==========================  ======================================================================

A pre-LayerNorm model does not need this package::

    with safetensors.safe_open(path, "pt") as file:
        cfg = HookedTransformerConfig(**json.loads(file.metadata()["HookedTransformerConfig"]))
    model = HookedTransformer(cfg)
    model.load_state_dict(safetensors.torch.load_file(path))

A model of your own is written by :func:`save_transformer`: the last key alone, with every argument.
:func:`load_transformer` opens both.

A post-LayerNorm model has blocks that TransformerLens lacks. Open it with :func:`load_transformer`,
or as above with ``anchor_interp.models.transformer.PostLNTransformer(cfg)``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.files import write_output
from anchor_interp._util.schema import canonical_json, checked_path, from_dict, parse_json, to_dict
from anchor_interp.models.networks import Network, empty_network
from anchor_interp.models.number_checks import check_weights, rounding
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.models.transformer import (
    HookedTransformer,
    PostLNTransformer,
    check_model,
    model_of_weights,
    place,
)
from anchor_interp.models.transformer import (
    device as model_device,
)
from anchor_interp.models.transformer_lens import is_bridge
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.memory import check_model_fits

FORMAT = "anchor-interp weights"
_CONFIG = "HookedTransformerConfig"
SCHEMA = "1"
_COMPARED = (2, 32)
"""Rows, and positions of each at most, by which a saved model and its file are compared."""
_TRANSFORMER_LENS = (
    "n_layers", "n_heads", "d_model", "d_head", "d_mlp", "act_fn", "d_vocab", "n_ctx",
    "normalization_type",
)  # fmt: skip


def save_weights(model: HookedTransformer, path: Path, config: RunConfig, *, step: int) -> None:
    """Write a model's weights and what they belong to, whole or not at all; replaces a file."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    arguments = {name: getattr(model.cfg, name) for name in _TRANSFORMER_LENS}
    metadata = {
        "format": FORMAT,
        "schema": SCHEMA,
        "run_id": run_id(config),
        "step": str(step),
        "config": canonical_json(config),
        _CONFIG: json.dumps(arguments | {"init_weights": False}),
    }
    write_output(path, save(state, metadata))


def save_transformer(model: HookedTransformer, path: str | Path) -> Path:
    """Write any HookedTransformer's weights and its configuration as one file; replaces a file.

    Raises:
        ConfigError: the model is not a HookedTransformer, a weight is not finite, or
            :func:`load_transformer` could not open the file, or would give other logits.
        StoreError: the file cannot be written.
    """
    check_model(model)
    check_weights(model)
    if is_bridge(model):
        raise ConfigError("a TransformerBridge has other names of weights; save its state_dict")
    if isinstance(model, PostLNTransformer):
        raise ConfigError("a post-LayerNorm model has blocks of this package; use Run.export")
    # copies: two layers may be one module, and safetensors refuses shared memory
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    state = {name: value.contiguous() for name, value in state.items()}
    arguments = to_dict(vars(model.cfg))
    kinds = (bool, int, float, str, list, type(None))
    plain = {name: value for name, value in arguments.items() if isinstance(value, kinds)}
    with raising(ConfigError, "load_transformer could not open it: ", "; save its state_dict"):
        opened = model_of_weights(state, plain)
    _check_same(model, opened)
    path = checked_path(path, "path")
    write_output(path, save(state, {_CONFIG: json.dumps(plain)}))
    return path


@torch.no_grad()
def _check_same(model: HookedTransformer, opened: HookedTransformer) -> None:
    """ConfigError if hooks or code of a user's own make a model another than its file's."""
    n_pos = min(_COMPARED[1], model.cfg.n_ctx)
    rows = torch.arange(_COMPARED[0] * n_pos, device=model_device(model)) * 7919
    rows = (rows % model.cfg.d_vocab).view(-1, n_pos)
    own, again = model(rows), place(opened, rows.device)(rows)
    off = float((own - again).abs().amax())
    if not off <= rounding(own, model.cfg.dtype) * float(own.abs().amax()):
        told = "hooks and code of your own are not in the file, and change the logits"
        raise ConfigError(f"{told} by {off:.2g}; save its state_dict, or remove them")


def load_transformer(
    path: str | Path, *, device: str | torch.device = "cpu", to_run: bool = False
) -> HookedTransformer:
    """A model around any HookedTransformer's weights, in ``eval`` mode.

    The file is one of :func:`save_transformer` or :meth:`anchor_interp.runs.run.Run.export`, whose
    model is pre- or post-LayerNorm as it was trained and has the file's dtype; or of
    ``safetensors.torch.save_file(model.state_dict(), path)``, whose model can be looked at and not
    run. ``to_run`` refuses that.

    Raises:
        StoreError: the file is missing, or does not hold a HookedTransformer's finite weights.
    """
    path, target = checked_path(path, "the path of the weights"), resolve_device(device)
    metadata, state = _read(path)
    if metadata.get("format") == FORMAT:
        return place(_exported(path, metadata, state), target)
    text = metadata.get(_CONFIG)
    if text is None and to_run:
        advice = "write it with ai.save_transformer, or give the model to ai.analyze_model"
        raise StoreError(f"{path} has weights without their configuration: {advice}")
    with raising(StoreError, f"{path}: "):
        settings = None if text is None else from_dict(dict[str, Any], parse_json(text), _CONFIG)
        model = model_of_weights(state, settings)
        check_weights(model)
    return place(model, target)


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file."""
    advice = (
        "; only safetensors is read: fill the model from a file of torch.save with "
        "model.load_state_dict(torch.load(path)), and write it with ai.save_transformer"
    )
    with (
        raising(StoreError, f"{path} cannot be read as weights: ", advice, of=SafetensorError),
        raising(StoreError, f"cannot read {path}: ", of=OSError),
        safe_open(path, "pt") as file,
    ):
        names: list[str] = file.keys()
        return file.metadata() or {}, {name: file.get_tensor(name) for name in names}


def _exported(
    path: Path, metadata: Mapping[str, str], state: Mapping[str, Tensor]
) -> HookedTransformer:
    """The model of an exported run."""
    if (schema := metadata.get("schema")) != SCHEMA:
        expected = f"this version of anchor-interp reads schema {SCHEMA}"
        raise StoreError(f"{path} has schema {schema!r}; {expected}: use the version that wrote it")
    with raising(StoreError, f"{path} has a damaged configuration: "):
        run = from_dict(dict[str, Any], parse_json(metadata.get("config", "")), "config")
        config: ModelConfig = from_dict(ModelConfig, run.get("model"), "model")
    check_model_fits(config)  # before it is allocated
    dtype = state["embed.W_E"].dtype if "embed.W_E" in state else torch.float32
    return load_weights(config, state, str(path), dtype=dtype)


def load_weights(
    config: ModelConfig | Any,
    weights: Mapping[str, Tensor],
    where: str,
    *,
    dtype: torch.dtype = torch.float32,
) -> Network:
    """A network with these parameters; StoreError if those at ``where`` do not fit or are NaN.

    Buffers may be missing; those of the same shape, such as zero biases, are taken over.
    """
    network = empty_network(config, dtype=dtype)
    parameters = dict(network.named_parameters())
    unknown = weights.keys() - network.state_dict().keys()
    for name in sorted(unknown | parameters.keys() - weights.keys()):
        raise StoreError(f"{where}: the weights do not fit the model: {name!r} is in only one")
    for name, parameter in parameters.items():
        given, expected = tuple(weights[name].shape), tuple(parameter.shape)
        if given != expected:
            what = f"has shape {given}; the configured model has {expected}"
            raise StoreError(f"{where}: the weight {name!r} {what}")
        parameter.data.copy_(weights[name])
    for name, buffer in network.named_buffers():
        if name in weights and weights[name].shape == buffer.shape:
            buffer.copy_(weights[name])
    with raising(StoreError, f"{where}: "):
        check_weights(network)
    return network
