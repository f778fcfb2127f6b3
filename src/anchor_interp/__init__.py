"""anchor-interp: did this transformer memorize, learn a symmetric shortcut, or infer the rule?

Public names are loaded on first use: importing the package loads neither torch nor
TransformerLens.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchor_interp.analysis import analyze as analyze
    from anchor_interp.analysis import analyze_model as analyze_model
    from anchor_interp.config import InitConfig as InitConfig
    from anchor_interp.config import ModelConfig as ModelConfig
    from anchor_interp.config import RunConfig as RunConfig
    from anchor_interp.config import TrainConfig as TrainConfig
    from anchor_interp.config import run_id as run_id
    from anchor_interp.data import Sequences as Sequences
    from anchor_interp.data import sample as sample
    from anchor_interp.errors import AnchorInterpError as AnchorInterpError
    from anchor_interp.errors import ConfigError as ConfigError
    from anchor_interp.evaluation import evaluate as evaluate
    from anchor_interp.exact import exact_model as exact_model
    from anchor_interp.fingerprints import fingerprint as fingerprint
    from anchor_interp.forward import last_logits as last_logits
    from anchor_interp.masks import mask_edges as mask_edges
    from anchor_interp.masks import mask_first_anchor as mask_first_anchor
    from anchor_interp.masks import mask_key_token as mask_key_token
    from anchor_interp.masks import mask_second_anchor as mask_second_anchor
    from anchor_interp.mechanism import verdict as verdict
    from anchor_interp.model import build_model as build_model
    from anchor_interp.phase import Evaluation as Evaluation
    from anchor_interp.phase import classify as classify
    from anchor_interp.presets import preset as preset
    from anchor_interp.run import Run as Run
    from anchor_interp.run import load as load
    from anchor_interp.run import train as train
    from anchor_interp.task import TASKS as TASKS
    from anchor_interp.task import Affine as Affine
    from anchor_interp.task import Anchor as Anchor
    from anchor_interp.task import AnchorTask as AnchorTask
    from anchor_interp.task import Override as Override
    from anchor_interp.task import Table as Table
    from anchor_interp.weights import load_weights as load_weights

_HOME = {
    "analysis": ("analyze", "analyze_model"),
    "config": ("InitConfig", "ModelConfig", "RunConfig", "TrainConfig", "run_id"),
    "data": ("Sequences", "sample"),
    "errors": ("AnchorInterpError", "ConfigError"),
    "evaluation": ("evaluate",),
    "exact": ("exact_model",),
    "fingerprints": ("fingerprint",),
    "forward": ("last_logits",),
    "masks": ("mask_edges", "mask_first_anchor", "mask_key_token", "mask_second_anchor"),
    "mechanism": ("verdict",),
    "model": ("build_model",),
    "phase": ("Evaluation", "classify"),
    "presets": ("preset",),
    "run": ("Run", "load", "train"),
    "task": ("TASKS", "Affine", "Anchor", "AnchorTask", "Override", "Table"),
    "weights": ("load_weights",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = tuple(sorted([*_MODULE_OF, "__version__"]))


logging.getLogger(__name__).addHandler(logging.NullHandler())  # a program chooses its own


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
