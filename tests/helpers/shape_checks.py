"""The type checker that pytest puts around every function of the package.

It checks shapes only. mypy checks the other annotations, and the package's own errors, which tests
look at, refuse values of another type.
"""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from beartype import beartype
from jaxtyping import AbstractArray

F = TypeVar("F", bound=Callable[..., Any])


def shapes(function: F) -> F:
    """Check the arguments and results that are arrays or tensors with a shape."""
    annotations = function.__annotations__
    function.__annotations__ = {n: hint for n, hint in annotations.items() if _has_shape(hint)}
    return beartype(function)


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))
