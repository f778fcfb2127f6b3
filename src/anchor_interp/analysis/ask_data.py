"""What a page needs of models to let them answer there: shapes, weights and maps of answers."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp.behaviour.answer_map import answer_map
from anchor_interp.behaviour.answer_map_numbers import AnswerMap
from anchor_interp.models.forward import last_logits
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.rules import require_anchors
from anchor_interp.tasks.sequences import sample

MOST_PARAMETERS = 4_000_000
"""Of a model on the page."""
HALF = 1e-2
"""Weights are kept in half precision if no logit of 500 sequences changes by more."""
_SHAPE = ("n_layers", "n_heads", "d_model", "d_head", "act_fn", "attn_scale", "eps")
_CONSTANTS = ("attn.mask", "attn.IGNORE")


@dataclass(frozen=True, eq=False)
class Asked:
    """A model that a page can compute."""

    name: str
    task: AnchorTask
    shape: Mapping[str, Any]
    """The settings of its forward pass, under TransformerLens's names, and ``normalization``."""
    weights: Mapping[str, np.ndarray]
    """All in half or all in single precision."""
    answers: AnswerMap
    """Of all ordered pairs, 4 sequences a cell."""


def to_ask(runs: Mapping[str, Run]) -> list[Asked]:
    """Models to ask, by the names that they shall have.

    Raises:
        ConfigError: the runs have different tasks or one without anchors, or a model is not a
            trained transformer or has more than :data:`MOST_PARAMETERS` parameters.
    """
    first, *_ = runs
    for name, run in runs.items():
        task, model = require_anchors(run.config.task, "ask"), run.config.model
        if task != runs[first].config.task:
            raise ConfigError(f"{name} has another task than {first}; ask runs of one task")
        if run.path is None or not isinstance(model, ModelConfig):
            raise ConfigError(f"{name} is not a trained transformer; the page computes only those")
        if model.n_parameters > MOST_PARAMETERS:
            size = f"{model.n_parameters:,} parameters"
            raise ConfigError(f"{name} has {size}; the page computes at most {MOST_PARAMETERS:,}")
    return [
        Asked(
            name,
            task := run.config.anchor_task,
            shape_of(run.transformer, run.config.model),
            weights_to_send(run.transformer, task),
            answer_map(run, pairs=task.pairs, n=4),
        )
        for name, run in runs.items()
    ]


def shape_of(model: HookedTransformer, config: ModelConfig) -> dict[str, Any]:
    """The settings of a model's forward pass."""
    own = {name: getattr(model.cfg, name) for name in _SHAPE}
    return own | {"normalization": config.normalization}


def weights_to_send(model: HookedTransformer, task: AnchorTask) -> dict[str, np.ndarray]:
    """A model's weights, in half precision if that keeps its logits (:data:`HALF`)."""
    sequences = sample(task, "ood" if task.unseen else "id", 500, seed=0)
    rounded, dtype = copy.deepcopy(model), "float32"
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.copy_(weight.half())
        if all(bool(weight.isfinite().all()) for weight in rounded.parameters()):
            change = last_logits(rounded, sequences) - last_logits(model, sequences)
            dtype = "float16" if change.abs().max() <= HALF else "float32"
    return {
        name: value.detach().cpu().numpy().astype(dtype)
        for name, value in model.state_dict().items()
        if not name.endswith(_CONSTANTS)
    }
