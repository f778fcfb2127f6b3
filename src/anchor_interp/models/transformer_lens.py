"""What the package takes from TransformerLens, in its versions 3.9 and 4.

Version 3 brings the HookedTransformer. Version 4 has none;
:mod:`anchor_interp.models.hooked_transformer` takes its place. Only these two modules import
TransformerLens.
"""

import functools
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anchor_interp._util.errors import ConfigError

with warnings.catch_warnings():  # tqdm warns in every notebook without ipywidgets
    warnings.filterwarnings("ignore", "IProgress not found")
    import transformer_lens

VERSION_3 = "HookedTransformer" in vars(transformer_lens)
if TYPE_CHECKING or VERSION_3:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.components.layer_norm import LayerNorm
    from transformer_lens.components.transformer_block import TransformerBlock
    from transformer_lens.utilities.tensors import repeat_along_head_dimension
else:
    from anchor_interp.models.hooked_transformer import (
        HookedTransformer,
        HookedTransformerConfig,
        LayerNorm,
        TransformerBlock,
        repeat_along_head_dimension,
    )

__all__ = [
    "VERSION_3", "HookedTransformer", "HookedTransformerConfig", "LayerNorm", "TransformerBlock",
    "asked_once", "bridge", "is_bridge", "repeat_along_head_dimension",
]  # fmt: skip


def bridge(model: Any) -> Any:
    """A model of Hugging Face as a TransformerBridge, which all instruments take.

    Nothing is downloaded. The bridge takes over the model's own modules, in evaluation mode, and
    renames their parameters: load a checkpoint, initialise and measure the model before.

    Raises:
        ConfigError: not a model of transformers (or wrapped, or in a bridge already), or of an
            architecture that TransformerLens lacks.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    theirs = [
        kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("transformers.")
    ]
    try:
        if not theirs or any("_original_component" in name for name in model.state_dict()):
            raise ValueError("wrapped, in a bridge already, or of another library")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build_bridge_from_module(model, theirs[0], hf_config=model.config).eval()
    except (AttributeError, TypeError, ValueError) as error:
        expected = "expected a model of transformers that TransformerLens has a bridge for"
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"model is {type(model).__name__} ({reason}); {expected}") from error


def is_bridge(model: Any) -> bool:
    """Whether the model is a TransformerBridge, whose module takes two seconds to import."""
    module = sys.modules.get("transformer_lens.model_bridge")
    return module is not None and isinstance(model, module.TransformerBridge)


def asked_once(ask: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What a function finds out by running a TransformerBridge, kept; False of other models."""
    known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    @functools.wraps(ask)
    def answer(model: Any) -> bool:
        if is_bridge(model) and model not in known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known[model] = ask(model)
        return known.get(model, False)

    return answer
