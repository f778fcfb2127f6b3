"""The type checker that pytest puts around every function of the package with arrays of a shape.

It checks shapes only. mypy checks the other annotations, and the package's own errors, which tests
look at, refuse values of another type.

Importing this module keeps jaxtyping from wrapping functions without a shape. The wrapper binds the
arguments of every call, a fifth of the time of an analysis.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import jaxtyping
from beartype import beartype

F = TypeVar("F", bound=Callable[..., Any])


def shapes(function: F) -> F:
    """Check the arguments and results that are arrays or tensors with a shape."""
    annotations = function.__annotations__
    function.__annotations__ = {n: hint for n, hint in annotations.items() if _has_shape(hint)}
    return beartype(function)


def where_shaped(*, typechecker: Any) -> Callable[[F], F]:
    """jaxtyping's decorator for functions and dataclasses with a shape; others stay as they are."""

    def decorate(item: F) -> F:
        if not _mentions_shape(item):
            return item
        wrapped: Any = _jaxtyped(item, typechecker=typechecker)
        found: F = wrapped
        return found

    return decorate


def _mentions_shape(item: Any) -> bool:
    if inspect.isclass(item):
        return dataclasses.is_dataclass(item) and _mentions_shape(item.__init__)
    hints = getattr(item, "__annotations__", {}).values()
    return any("[" in hint if isinstance(hint, str) else _has_shape(hint) for hint in hints)


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))


_jaxtyped = jaxtyping.jaxtyped
vars(jaxtyping)["jaxtyped"] = where_shaped  # what the import hook writes above every definition
