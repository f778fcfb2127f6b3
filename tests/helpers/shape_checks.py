"""The type checker that pytest puts around every function of the package with arrays of a shape.

It checks shapes only. mypy checks the other annotations, and the package's own errors, which tests
look at, refuse values of another type.

Importing this module replaces the decorator that jaxtyping's import hook writes above every
definition. Functions without a shape stay as they are; arguments are checked once, before the call,
and the result after it. jaxtyping's own wrapper binds the arguments of every call and checks them
again with the result.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

F = TypeVar("F", bound=Callable[..., Any])
CONF = BeartypeConf(violation_type=jaxtyping.TypeCheckError)


def shapes(function: F) -> F:
    """Check the arguments and results that are arrays or tensors with a shape."""
    annotations = function.__annotations__
    function.__annotations__ = {n: hint for n, hint in annotations.items() if _has_shape(hint)}
    return beartype(conf=CONF)(function)


def where_shaped(*, typechecker: Any) -> Callable[[F], F]:
    """jaxtyping's decorator for functions and dataclasses with a shape; others stay as they are."""

    def decorate(item: F) -> F:
        if not _mentions_shape(item):
            return item
        is_special = inspect.isclass(item) or inspect.isgeneratorfunction(item)
        if is_special or any(isinstance(hint, str) for hint in item.__annotations__.values()):
            wrapped: Any = _jaxtyped(item, typechecker=typechecker)
        else:
            wrapped = _once(item)
        found: F = wrapped
        return found

    return decorate


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the sizes of one call compared: its arguments', then its result's."""
    annotations = function.__annotations__
    watched = shapes(function)
    function.__annotations__ = annotations

    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _jaxtyped("context"):
            return watched(*args, **kwargs)

    return within


def _mentions_shape(item: Any) -> bool:
    if inspect.isclass(item):
        return dataclasses.is_dataclass(item) and _mentions_shape(item.__init__)
    hints = getattr(item, "__annotations__", {}).values()
    return any("[" in hint if isinstance(hint, str) else _has_shape(hint) for hint in hints)


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))


_jaxtyped: Any = jaxtyping.jaxtyped
vars(jaxtyping)["jaxtyped"] = where_shaped
