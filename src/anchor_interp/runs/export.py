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

A pre-LayerNorm model needs nothing of this package::

    with safetensors.safe_open(path, "pt") as file:
        cfg = HookedTransformerConfig(**json.loads(file.metadata()["HookedTransformerConfig"]))
    model = HookedTransformer(cfg)
    model.load_state_dict(safetensors.torch.load_file(path))

A post-LayerNorm model has blocks that TransformerLens lacks. Open it with :func:`load_weights`, or
as above with ``anchor_interp.models.transformer.PostLNTransformer(cfg)``.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
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

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_TRANSFORMER_LENS = (
    "n_layers", "n_heads", "d_model", "d_head", "d_mlp", "act_fn", "d_vocab", "n_ctx",
    "normalization_type",
)  # fmt: skip


def save_weights(model: HookedTransformer, path: Path, config: RunConfig, *, step: int) -> None:
    """Write a model's weights and what they belong to, whole or not at all; replaces a file.

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

    Returns:
        The model in ``eval`` mode, pre- or post-LayerNorm as it was trained, in the file's dtype.

    Raises:
        StoreError: the file is missing, damaged or of another kind; the message says which.
        ConfigError: the path or the device cannot be used.
    """
    path, target = checked_path(path, "the path of the weights"), resolve_device(device)
    with _opened(path, "cpu") as file:
        config = _model_config(path, file.metadata() or {})
        state = _tensors(file)
    model = _empty_model(path, config, state)
    model.load_state_dict(state)
    return place(model, target)


def load_transformer(path: str | Path, *, device: str | torch.device = "cpu") -> HookedTransformer:
    """Any HookedTransformer's weights, to be looked at and not run.

    Args:
        path: a safetensors file with a ``state_dict`` under TransformerLens's names, such as
            ``safetensors.torch.save_file(model.state_dict(), path)`` writes.
        device: where to place the weights.

    Returns:
        A model around these weights; see :func:`anchor_interp.models.transformer.model_of_weights`.

    Raises:
        StoreError: the file is missing, or does not hold a HookedTransformer's weights.
        ConfigError: the path or the device cannot be used.
    """
    path, target = checked_path(path, "the path of the weights"), resolve_device(device)
    with _opened(path, str(target)) as file:
        state = _tensors(file)
    try:
        return model_of_weights(state)
    except ConfigError as error:
        raise StoreError(f"{path}: {error}") from error


@contextlib.contextmanager
def _opened(path: Path, device: str) -> Iterator[Any]:
    open_regular(path.resolve()).close()  # safetensors itself would wait for a FIFO
    try:
        with safe_open(path, "pt", device=device) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{path} cannot be read as weights: {error}") from error


def _tensors(file: Any) -> dict[str, Tensor]:
    names: list[str] = file.keys()
    return {name: file.get_tensor(name) for name in names}


def _model_config(path: Path, metadata: Mapping[str, str]) -> ModelConfig:
    if metadata.get("format") != FORMAT:
        raise StoreError(
            f"{path} is not an export of anchor-interp (its format is {metadata.get('format')!r}); "
            "write one with anchor-interp export"
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
        raise StoreError(f"{path} has the configuration of another run: export it again")
    return config.model


def _empty_model(path: Path, config: ModelConfig, state: Mapping[str, Tensor]) -> HookedTransformer:
    """The model that the weights belong to, without them; refuses weights that do not fit."""
    with torch.device("meta"):  # shapes without memory
        shapes = {name: value.shape for name, value in empty_model(config).state_dict().items()}
    odd = sorted(set(shapes) ^ set(state))
    if odd:
        what = "lacks" if odd[0] in shapes else "should not hold"
        raise StoreError(f"{path} {what} the tensor {odd[0]!r}")
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise StoreError(
                f"{path} has {name!r} of shape {tuple(state[name].shape)}; the model that it "
                f"describes has {tuple(shape)}"
            )
    dtype = state["embed.W_E"].dtype
    model = empty_model(config, dtype=dtype if dtype in _DTYPES else torch.float32)
    trained = dict(model.named_parameters())
    for name, tensor in model.state_dict().items():
        found = state[name]
        if found.dtype != tensor.dtype:
            raise StoreError(f"{path} has {name!r} as {found.dtype}; expected {tensor.dtype}")
        if name in trained and not torch.isfinite(found).all():
            raise StoreError(f"{path} has values in {name!r} that are not finite")
        if name not in trained and not torch.equal(found, tensor):
            raise StoreError(f"{path} changes {name!r}, which training never changes")
    return model
