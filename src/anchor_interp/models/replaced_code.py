"""What a user put in the place of code of the library: the fast path would not run it.

A model is *known* if the fast path implements its parts and settings, and if everything that
``model(tokens)`` calls is what the library made: the methods of its classes, the functions of their
modules and of ``torch.nn.functional`` (as they were at import), the attributes and children of
every part, the activation that the settings name, and parameters that are plain tensors. A look
cannot see what was replaced before the import: :func:`anchor_interp.models.forward.takes_fast_path`
compares logits as well.
"""

import copy
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
import torch.overrides
from torch import Tensor, nn
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from anchor_interp.models.transformer import HookedTransformer, PostLNTransformer, reference_model

_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {"relu": F.relu, "gelu": F.gelu}
_FREE = {
    # read from the model itself
    "n_layers", "n_heads", "d_model", "d_head", "d_mlp", "act_fn", "d_vocab", "d_vocab_out",
    "n_ctx", "eps", "attn_scale", "dtype", "device",
    # without influence on the function
    "model_name", "n_params", "seed", "init_mode", "init_weights", "initializer_range",
    "tokenizer_name", "default_prepend_bos", "tokenizer_prepends_bos", "n_devices",
}  # fmt: skip
"""Settings in which a HookedTransformerConfig may differ from those of this package's models."""
_function_modes: Any = torch.overrides._get_current_function_mode_stack  # it has no types
_SNAPSHOT = "_anchor_interp_snapshot"
_HELD = ("_parameters", "_buffers", "_modules")


def _namespaces() -> Iterator[Mapping[str, Any]]:
    """Where the code of a model without overrides is looked up: classes and modules."""
    models = reference_model(False), reference_model(True)
    kinds = {type(part) for model in models for part in model.modules()} | {type(models[0].cfg)}
    classes = {base for kind in kinds for base in kind.__mro__ if base.__module__ in sys.modules}
    owners = {base for base in classes if base.__module__ not in ("abc", "builtins", "typing")}
    names = {base.__module__ for base in owners if not base.__module__.startswith("torch.")}
    yield from map(vars, [*owners, *map(sys.modules.__getitem__, names), F])


_LIBRARY = [(now, dict(now)) for now in _namespaces()]
_NAMES = {name for _, then in _LIBRARY for name in then}


def is_library_whole() -> bool:
    """Whether all classes and functions of the library and of torch act as they did at import."""
    modes = [mode for mode in _function_modes() if type(mode) is not DeviceContext]
    if modes or _get_current_dispatch_mode_stack():
        return False
    for now, then in _LIBRARY:
        if now != then:
            if any(_is_replaced(name, now, then) for name in now.keys() | then.keys()):
                return False
            then.clear()  # what nobody calls: a documentation, or a function under a new name
            then.update(now)
    return True


def _is_replaced(name: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    old, new = then.get(name), now.get(name)
    can_be_called = any(callable(each) or hasattr(each, "__get__") for each in (old, new))
    return old is not new and can_be_called and (name in _NAMES or name.startswith("__"))


# Settings that say where a network is, what it is called or which hooks it has.
_NO_CODE = ("device", "n_devices", "training", "model_name", "seed", "_compiled_call_impl",
            "use_attn_result", "use_attn_in", "use_split_qkv_input", "use_hook_")  # fmt: skip


def are_built_alike(*networks: nn.Module) -> bool:
    """Whether two networks have the same parts, code and settings; weights may differ."""

    def kept(part: nn.Module) -> dict[str, Any]:
        settings = getattr(vars(part).get("cfg"), "__dict__", {})
        own = {"class": type(part)} | {
            name: value for name, value in vars(part).items() if value is not None
            if hasattr(type(part), name) or not name.startswith("_")
        }  # fmt: skip
        return {name: value for name, value in {**settings, **own}.items()
                if not name.startswith(_NO_CODE)
                if callable(value) or isinstance(value, bool | float | str | None)
                or (name in settings and isinstance(value, int))}  # fmt: skip

    def alike(one: nn.Module, two: nn.Module) -> bool:
        a, b = kept(one), kept(two)
        own = {name for name in a.keys() ^ b.keys() if hasattr(type(one), name)}
        return not own and all(a[name] == b[name] for name in a.keys() & b.keys())

    first, second = (list(network.modules()) for network in networks)
    return is_library_whole() and len(first) == len(second) and all(map(alike, first, second))


class Snapshot:
    """A known model's parts and all that hangs on them, but no values of weights.

    It hangs on the model, so both are freed together; a copy of a model comes without one.
    """

    def __init__(self, model: HookedTransformer, *, agrees: bool) -> None:
        vars(model)[_SNAPSHOT] = self
        self.agrees = agrees
        """Whether the fast path gave the model's logits."""
        self.parts: list[nn.Module] = list(model.modules())
        self._kinds, self._held = list(map(type, self.parts)), list(map(_held, self.parts))
        self._settings, self._times = dict(vars(model.cfg)), self._written()

    @classmethod
    def of(cls, model: HookedTransformer) -> "Snapshot | None":
        """That of a model which still consists of the same."""
        snapshot: Snapshot | None = vars(model).get(_SNAPSHOT)
        return snapshot if snapshot is not None and snapshot._holds(model) else None

    def _holds(self, model: HookedTransformer) -> bool:
        try:
            return (
                self.parts[0] is model
                and self._kinds == list(map(type, self.parts))
                and all(map(operator.eq, map(vars, self.parts), self._held))
                and self._settings == vars(model.cfg)
                and self._times == self._written()
            )
        except (RuntimeError, ValueError):  # a tensor or an array in the place of another
            return False

    def __deepcopy__(self, _memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _written(self) -> list[int]:
        """How often the one buffer was written to that the fast path does not read."""
        numbers = [part._buffers.get("IGNORE") for part in self.parts]
        return [-1 if n is None or n.is_inference() else n._version for n in numbers]


def _held(part: nn.Module) -> dict[str, Any]:
    """The attributes of a part, and copies of what they hold: tensors, children and lists."""
    return {
        name: copy.copy(value) if name in _HELD or isinstance(value, list) else value
        for name, value in vars(part).items()
    }


def is_known(model: HookedTransformer) -> bool:
    """Whether a model has only parts, settings and code that the fast path implements."""
    known = reference_model(type(model) is PostLNTransformer)
    kinds = {type(part): part for part in known.modules()}
    if getattr(getattr(model, "tokenizer", None), "padding_side", None) == "left":
        return False  # TransformerLens then masks padding and counts positions after it
    if not all(_is_like(part, kinds.get(type(part)), model) for part in model.modules()):
        return False
    settings, reference = vars(model.cfg), vars(known.cfg)
    return all(
        settings.get(name) == reference.get(name)
        for name in (settings.keys() | reference.keys()) - _FREE
    )


def _is_like(part: nn.Module, known: nn.Module | None, model: HookedTransformer) -> bool:
    """Whether a part of a model has the tensors, children and functions of a known one."""
    if known is None or any(hasattr(type(part), name) for name in vars(part)):
        return False  # an attribute hides what its class defines
    own, expected = ({**each._parameters, **each._buffers} for each in (part, known))
    activation = _ACTIVATIONS.get(model.cfg.act_fn, "unknown")
    hiding: Any = own.get("IGNORE")  # what attention writes over later tokens
    return (
        own.keys() == expected.keys()
        and all(type(tensor) in (Tensor, nn.Parameter) for tensor in own.values())
        and _children(part) == _children(known)
        and vars(getattr(part, "cfg", model.cfg)) == vars(model.cfg)
        and ("act_fn" not in vars(known) or vars(part).get("act_fn") is activation)
        and (hiding is None or hiding.tolist() == -math.inf)
    )


def _children(part: nn.Module) -> Any:
    """The classes of a part's children by name; of a list of blocks without numbers."""
    kinds = {name: type(child) for name, child in part._modules.items()}
    return set(kinds.values()) if isinstance(part, nn.ModuleList) else kinds
