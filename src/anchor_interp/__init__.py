"""anchor-interp: did this transformer memorize, learn a symmetric shortcut, or infer the rule?

Public names are loaded on first use: importing the package loads neither torch nor
TransformerLens.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchor_interp._util.errors import AnchorInterpError as AnchorInterpError
    from anchor_interp._util.errors import ConfigError as ConfigError
    from anchor_interp.analysis.circuits import prune as prune
    from anchor_interp.analysis.fingerprint import fingerprint as fingerprint
    from anchor_interp.analysis.fingerprint import fingerprint_model as fingerprint_model
    from anchor_interp.analysis.overview import analyze as analyze
    from anchor_interp.analysis.overview import analyze_model as analyze_model
    from anchor_interp.analysis.routes import route_scores as route_scores
    from anchor_interp.analysis.verdict import verdict as verdict
    from anchor_interp.interventions.ablation import EdgeAblation as EdgeAblation
    from anchor_interp.interventions.interchange import interchange as interchange
    from anchor_interp.interventions.interchange import learn_subspace as learn_subspace
    from anchor_interp.interventions.masks import mask_edges as mask_edges
    from anchor_interp.interventions.masks import mask_first_anchor as mask_first_anchor
    from anchor_interp.interventions.masks import mask_key_token as mask_key_token
    from anchor_interp.interventions.masks import mask_second_anchor as mask_second_anchor
    from anchor_interp.interventions.patching import logit_difference as logit_difference
    from anchor_interp.interventions.patching import patch as patch
    from anchor_interp.interventions.sites import Site as Site
    from anchor_interp.interventions.sites import site_grid as site_grid
    from anchor_interp.models.complexity import complexity as complexity
    from anchor_interp.models.exact import exact_model as exact_model
    from anchor_interp.models.forward import last_logits as last_logits
    from anchor_interp.models.shapes import InitConfig as InitConfig
    from anchor_interp.models.shapes import ModelConfig as ModelConfig
    from anchor_interp.models.transformer import build_model as build_model
    from anchor_interp.runs.answers import answer_map as answer_map
    from anchor_interp.runs.config import RunConfig as RunConfig
    from anchor_interp.runs.config import TrainConfig as TrainConfig
    from anchor_interp.runs.config import run_id as run_id
    from anchor_interp.runs.evaluation import evaluate as evaluate
    from anchor_interp.runs.export import load_transformer as load_transformer
    from anchor_interp.runs.export import load_weights as load_weights
    from anchor_interp.runs.export import save_transformer as save_transformer
    from anchor_interp.runs.phase import Evaluation as Evaluation
    from anchor_interp.runs.phase import classify as classify
    from anchor_interp.runs.presets import preset as preset
    from anchor_interp.runs.run import Run as Run
    from anchor_interp.runs.run import load as load
    from anchor_interp.runs.train import train as train
    from anchor_interp.sweeps.effects import Effect as Effect
    from anchor_interp.sweeps.effects import effect as effect
    from anchor_interp.tasks.addition import Addition as Addition
    from anchor_interp.tasks.anchor import TASKS as TASKS
    from anchor_interp.tasks.anchor import Affine as Affine
    from anchor_interp.tasks.anchor import Anchor as Anchor
    from anchor_interp.tasks.anchor import AnchorTask as AnchorTask
    from anchor_interp.tasks.anchor import Override as Override
    from anchor_interp.tasks.anchor import Table as Table
    from anchor_interp.tasks.cogs import Cogs as Cogs
    from anchor_interp.tasks.counterfactuals import contrast_pairs as contrast_pairs
    from anchor_interp.tasks.counterfactuals import interchange_pairs as interchange_pairs
    from anchor_interp.tasks.examples import Examples as Examples
    from anchor_interp.tasks.examples import Plane as Plane
    from anchor_interp.tasks.examples import Split as Split
    from anchor_interp.tasks.prontoqa import Prontoqa as Prontoqa
    from anchor_interp.tasks.scan import Scan as Scan
    from anchor_interp.tasks.sequences import Sequences as Sequences
    from anchor_interp.tasks.sequences import aligned_sequences as aligned_sequences
    from anchor_interp.tasks.sequences import sample as sample
    from anchor_interp.tasks.task import Task as Task

# Each public name stands once, above, for type checkers and editors. Here it is read from there.
_IMPORT = re.compile(r"^    from anchor_interp\.(\S+) import \w+ as (\w+)$", re.MULTILINE)
_SOURCE = Path(__file__).read_text(encoding="utf-8")
_MODULE_OF = {name: module for module, name in _IMPORT.findall(_SOURCE)}

__version__ = "0.1.0"
__all__ = tuple(sorted([*_MODULE_OF, "__version__"]))


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        text = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])  # Python suggests one
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
