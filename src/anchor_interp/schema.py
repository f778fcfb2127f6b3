"""Frozen dataclasses as validated, canonical JSON.

Every configuration and every result of this package is a frozen dataclass that holds only
numbers, strings, booleans, ``None``, tuples, dictionaries with string keys and other such
dataclasses. This module gives them four things, derived from the fields' types alone:

* :func:`check_fields`: each field has its declared type and lies within its declared bounds;
* :func:`to_dict` and :func:`from_dict`: the way to JSON and back, unknown names refused;
* :func:`canonical_json`: one text per value, whatever order it was built in;
* :func:`digest`: a hash of that text which survives new fields, as long as they are at their
  default.

It imports neither torch nor numpy.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from anchor_interp.errors import ConfigError

T = TypeVar("T")


def bounded(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    since: int = 1,
) -> Any:
    """A dataclass field with a default and bounds.

    Args:
        default: the field's default.
        low: smallest value allowed.
        high: largest value allowed.
        above: the value must be strictly greater than this.
        since: the schema number that introduced the field. A field added after schema 1 stays
            out of :func:`digest` while it is at its default, so that old identifiers hold.
    """
    bounds = {"low": low, "high": high, "above": above, "since": since}
    return dataclasses.field(default=default, metadata=bounds)


def check_fields(config: Any) -> None:
    """Validate every field of a frozen dataclass against its type and bounds.

    Integers given for a float field become floats and lists become tuples, so that equal
    configurations have equal text. To be called from ``__post_init__``.

    Raises:
        ConfigError: names the field, the value found and what is allowed.
    """
    for field, hint in _typed_fields(config.__class__):
        where = f"{type(config).__name__}.{field.name}"
        value = _conform(getattr(config, field.name), hint, where)
        _check_bounds(value, field.metadata, where)
        object.__setattr__(config, field.name, value)


def to_dict(value: Any) -> Any:
    """Turn a dataclass (or a container of them) into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_dict(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    return value


def from_dict(cls: type[T], data: Any) -> T:
    """Build ``cls`` from plain JSON values; missing fields take their defaults.

    Raises:
        ConfigError: an unknown name (with the nearest known one), a missing field, or a value
            that :func:`check_fields` refuses.
    """
    result: T = _build(cls, data, cls.__name__)
    return result


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted names, no spaces, plain ASCII, no NaN."""
    return json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of a value's canonical JSON.

    Left out are fields named ``schema`` and fields introduced after schema 1 that are at their
    default: adding a field to a later version leaves existing identifiers as they were.
    """
    return hashlib.sha256(canonical_json(_identity(value)).encode()).hexdigest()[:16]


def suggestion(found: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)`` for a misspelt name, or the empty string."""
    close = difflib.get_close_matches(found, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@functools.cache
def _typed_fields(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(cls))


def _identity(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            added_later = field.metadata.get("since", 1) > 1 and item == field.default
            if field.name != "schema" and not added_later:
                kept[field.name] = _identity(item)
        return kept
    if isinstance(value, tuple | list):
        return [_identity(item) for item in value]
    return value


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union type, or the type alone."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _conform(value: Any, hint: Any, where: str) -> Any:
    options = _options(hint)
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(value, typing.cast(type, option)):
            return value
    errors = []
    for option in options:
        try:
            return _conform_one(value, option, where)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    expected = " or ".join(_describe(option) for option in options)
    raise ConfigError(f"{where} is {value!r}; expected {expected}")


def _conform_one(value: Any, hint: Any, where: str) -> Any:
    if type(value).__module__ == "numpy":
        value = value.tolist()  # numpy's numbers and arrays are as good as Python's
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    refused = ConfigError(f"{where} is {value!r}; expected {_describe(hint)}")
    if hint is None or hint is type(None):
        if value is None:
            return None
        raise refused
    if origin is Literal:
        if any(value == arg and type(value) is type(arg) for arg in args):
            return value
        raise ConfigError(f"{refused}{suggestion(str(value), map(str, args))}")
    if origin is tuple:
        if not isinstance(value, tuple | list):
            raise refused
        if args[-1] is not Ellipsis:
            if len(value) != len(args):
                raise refused
            kinds = args
        else:
            kinds = (args[0],) * len(value)
        pairs = zip(value, kinds, strict=True)
        return tuple(_conform(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(pairs))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise refused
        return {str(name): _conform(v, args[1], f"{where}[{name}]") for name, v in value.items()}
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        raise refused
    if hint is Any:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise refused
        return number
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise refused


def _check_bounds(value: Any, bounds: Mapping[str, Any], where: str) -> None:
    if value is None:
        return
    low, high, above = bounds.get("low"), bounds.get("high"), bounds.get("above")
    if low is not None and value < low:
        raise ConfigError(f"{where} is {value!r}; expected at least {low}")
    if above is not None and value <= above:
        raise ConfigError(f"{where} is {value!r}; expected more than {above}")
    if high is not None and value > high:
        raise ConfigError(f"{where} is {value!r}; expected at most {high}")


def _build(hint: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    classes = [option for option in _options(hint) if dataclasses.is_dataclass(option)]
    if classes and isinstance(data, Mapping):
        return _build_dataclass(_choose(classes, data), data, where)
    if origin is tuple and isinstance(data, list | tuple):
        kinds = (args[0],) * len(data) if args[-1] is Ellipsis else args
        if len(kinds) == len(data):
            items = zip(data, kinds, strict=True)
            return tuple(
                _build(kind, item, f"{where}[{i}]") for i, (item, kind) in enumerate(items)
            )
    if origin is dict and isinstance(data, Mapping):
        return {name: _build(args[1], item, f"{where}[{name}]") for name, item in data.items()}
    if classes and (data is not None or type(None) not in _options(hint)):
        raise ConfigError(f"{where} is {data!r}; expected {_describe(classes[0])}")
    return data


def _choose(classes: list[Any], data: Mapping[str, Any]) -> Any:
    """The class of a union whose field names cover the given names best."""

    def unknown(cls: Any) -> int:
        return len(set(data) - {field.name for field in dataclasses.fields(cls)})

    return min(classes, key=unknown)


def _build_dataclass(cls: Any, data: Mapping[str, Any], where: str) -> Any:
    hints = {field.name: (field, hint) for field, hint in _typed_fields(cls)}
    for name in data:
        if name not in hints:
            raise ConfigError(
                f"{where} has no field {name!r}{suggestion(str(name), hints)}; "
                f"known: {', '.join(hints)}"
            )
    for name, (field, _) in hints.items():
        missing = dataclasses.MISSING
        if name not in data and field.default is missing and field.default_factory is missing:
            raise ConfigError(f"{where} lacks the field {name!r}")
    values = {name: _build(hints[name][1], item, f"{where}.{name}") for name, item in data.items()}
    return cls(**values)


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "null"
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"a list of {_describe(args[0])}"
        return f"a list of {len(args)} items"
    if origin is dict:
        return "an object"
    if dataclasses.is_dataclass(hint):
        return f"an object with the fields of {typing.cast(type, hint).__name__}"
    names = {int: "an integer", float: "a finite number", str: "a text", bool: "true or false"}
    return names.get(hint, str(hint))
