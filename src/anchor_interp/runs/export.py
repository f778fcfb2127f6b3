"""Weights outside a run folder: one safetensors file that plain TransformerLens can read.

The tensors are a HookedTransformer's ``state_dict`` under its own names. The file's metadata say
what they belong to:

==========================  ======================================================================
key                         value
==========================  ======================================================================
``format``, ``schema``      ``anchor-interp weights`` and the number of this layout
``run_id``, ``step``        the run and its checkpoint
``config``                  the whole :class:`anchor_interp.runs.config.RunConfig`, as JSON
``HookedTransformerConfig`` its arguments, as JSON, but for the dtype, which the tensors have
==========================  ======================================================================

A pre-LayerNorm model needs nothing of this package::

    with safetensors.safe_open(path, "pt") as file:
        cfg = HookedTransformerConfig(**json.loads(file.metadata()["HookedTransformerConfig"]))
    model = HookedTransformer(cfg)
    model.load_state_dict(safetensors.torch.load_file(path))

A post-LayerNorm model has blocks that TransformerLens lacks (:mod:`anchor_interp.models.transformer`): open it
with :func:`load_weights`, or do the same with ``anchor_interp.models.transformer.PostLNTransformer(cfg)`` in
place of ``HookedTransformer(cfg)``. HookedTransformer alone would refuse it for its LayerNorms.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.files import open_regular, write_output
from anchor_interp._util.schema import canonical_json, checked_path, from_dict, parse_json
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.models.transformer import HookedTransformer, empty_model, model_of_weights, place
from anchor_interp.runs.config import MAX_CONFIG_BYTES, RunConfig, run_id

FORMAT = "anchor-interp weights"


SCHEMA = "1"


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


_TRANSFORMER_LENS = (
    "n_layers", "n_heads", "d_model", "d_head", "d_mlp", "act_fn", "d_vocab", "n_ctx",
    "normalization_type",
)  # fmt: skip


def save_weights(model: HookedTransformer, path: Path, config: RunConfig, *, step: int) -> None:
    """Write a model's weights and what they belong to; a file that is there is replaced.

    The file is written beside its place and renamed into it, so that it is whole or not there.

    Raises:
        StoreError: the path is a folder, or cannot be written.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    arguments = {name: getattr(model.cfg, name) for name in _TRANSFORMER_LENS}
    metadata = {
        "format": FORMAT,
        "schema": SCHEMA,
        "run_id": run_id(config),
        "step": str(step),
        "config": canonical_json(config),
        "HookedTransformerConfig": json.dumps(arguments | {"init_weights": False}),
    }
    write_output(path, save(state, metadata))


def load_weights(path: str | Path, *, device: str | torch.device = "cpu") -> HookedTransformer:
    """The HookedTransformer of a file that :meth:`anchor_interp.runs.run.Run.export` wrote.

    Args:
        path: the file.
        device: where to place the model.

    Returns:
        The model in ``eval`` mode, pre- or post-LayerNorm as it was trained, in the file's dtype.

    Raises:
        StoreError: no such file, another kind of file, or a damaged one; the message says which.
        ConfigError: a path or device that is none, or a device that cannot be used.
    """
    path, target = checked_path(path, "the path of the weights"), resolve_device(device)
    open_regular(path.resolve()).close()  # the format's own reader would wait for a pipe
    try:
        with safe_open(path, "pt") as file:
            config = _model_config(path, file.metadata() or {})
            shapes = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            _check_size(path, config, [list(found.get_shape()) for found in shapes.values()])
            first = shapes.get("embed.W_E")
            dtype = _DTYPES.get(first.get_dtype() if first else "", torch.float32)
            model = empty_model(config, dtype=dtype)
            _check_shapes(path, model, shapes)
            state = {name: file.get_tensor(name) for name in shapes}
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{path} cannot be read as weights: {error}") from error
    _check_values(path, model, state)
    model.load_state_dict(state)
    return place(model, target)


def load_transformer(path: str | Path, *, device: str | torch.device = "cpu") -> HookedTransformer:
    """Any HookedTransformer's weights, to look at and not to run.

    Args:
        path: a safetensors file with a ``state_dict`` under TransformerLens's names, such as
            ``safetensors.torch.save_file(model.state_dict(), path)`` writes.
        device: where to place the weights.

    Returns:
        A model around these weights; see :func:`anchor_interp.models.transformer.model_of_weights`.

    Raises:
        StoreError: no such file, another kind of file, or no HookedTransformer's weights.
        ConfigError: a path or device that is none.
    """
    path, target = checked_path(path, "the path of the weights"), resolve_device(device)
    open_regular(path.resolve()).close()
    try:
        with safe_open(path, "pt", device=str(target)) as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return model_of_weights(state)
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{path} cannot be read as weights: {error}") from error
    except ConfigError as error:
        raise StoreError(f"{path}: {error}") from error


def _model_config(path: Path, metadata: Mapping[str, str]) -> ModelConfig:
    if metadata.get("format") != FORMAT:
        raise StoreError(
            f"{path} is no export of anchor-interp (its format is {metadata.get('format')!r}); "
            "such files are written by anchor-interp export"
        )
    if metadata.get("schema") != SCHEMA:
        raise StoreError(
            f"{path} has schema {metadata.get('schema')!r}; this version of anchor-interp reads "
            f"schema {SCHEMA}: use the version that wrote it"
        )
    text = metadata.get("config", "")
    try:
        if len(text) > MAX_CONFIG_BYTES:
            raise ValueError(f"it is longer than {MAX_CONFIG_BYTES} bytes")
        config: RunConfig = from_dict(RunConfig, parse_json(text))
    except ValueError as error:
        raise StoreError(f"{path} has a damaged configuration: {error}") from error
    if metadata.get("run_id") != run_id(config):
        raise StoreError(f"{path} has a configuration that is not its run's: export it again")
    return config.model


def _check_size(path: Path, model: ModelConfig, shapes: list[list[int]]) -> None:
    """Refuse a configuration that asks for far more than the file holds, before allocating it."""
    attention = 4 * model.n_heads * model.d_model * model.d_head
    blocks = model.n_layers * (attention + 2 * model.d_model * model.d_mlp)
    needed = blocks + model.d_model * (2 * model.d_vocab + model.n_ctx)
    held = sum(map(math.prod, shapes))
    if held < needed:
        raise StoreError(
            f"{path} holds {held:,} numbers; the model that it describes has {needed:,} or more"
        )


def _check_shapes(path: Path, model: HookedTransformer, shapes: Mapping[str, Any]) -> None:
    expected = model.state_dict()
    odd = sorted(set(expected) ^ set(shapes))
    if odd:
        where = "lacks" if odd[0] in expected else "should not hold"
        raise StoreError(f"{path} {where} the tensor {odd[0]!r}")
    for name, tensor in expected.items():
        found = shapes[name].get_shape()
        if list(found) != list(tensor.shape):
            raise StoreError(
                f"{path} has {name!r} of shape {tuple(found)}; the model that it describes has "
                f"{tuple(tensor.shape)}"
            )


def _check_values(path: Path, model: HookedTransformer, state: Mapping[str, Tensor]) -> None:
    trained = dict(model.named_parameters())
    for name, buffer in model.state_dict().items():
        found = state[name]
        if found.dtype != buffer.dtype:
            raise StoreError(f"{path} has {name!r} as {found.dtype}; expected {buffer.dtype}")
        if name in trained and not torch.isfinite(found).all():
            raise StoreError(f"{path} has values in {name!r} that are not finite")
        if name not in trained and not torch.equal(found, buffer):
            raise StoreError(f"{path} changes {name!r}, which no training changes")
