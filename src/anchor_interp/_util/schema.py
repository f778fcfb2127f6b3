"""Frozen dataclasses as validated, canonical JSON.

Every configuration and result is a frozen dataclass of numbers, strings, booleans, ``None``,
tuples, dictionaries with string keys and other such dataclasses. A result may also hold numpy
arrays, which become lists. The types of the fields give four things:

* :func:`check_fields` checks every field against its type and bounds; :func:`checked` and
  :func:`checked_path` check an argument of a function in the same way;
* :func:`to_dict` and :func:`from_dict` convert to JSON values and back, and refuse unknown names; a
  class may choose one of its subclasses for a JSON object, in a class method ``among``;
* :func:`canonical_json` gives one text per value, in whatever order it was built;
* :func:`digest` hashes that text, and stays the same when a later version adds a field.

This module imports neither torch nor numpy.
"""

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import json
import math
import operator
import os
import reprlib
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Union, Unpack

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.rounding import decimal

T = TypeVar("T")

_SCALARS = {int: "an integer", float: "a finite number", str: "a text", bool: "true or false"}
_WHOLE = "the top level"
_LONGEST_NAME = 100  # characters of a name that are compared with known ones


class Bounds(TypedDict, total=False):
    """The smallest and the largest value allowed, and one that is too small; None for no bound."""

    low: float | None
    high: float | None
    above: float | None


def bounded(default: Any, *, since: int = 1, **bounds: Unpack[Bounds]) -> Any:
    """A dataclass field with a default and bounds.

    ``since`` is the schema number that introduced the field. At its default, a field added after
    schema 1 stays out of :func:`digest`, so older identifiers remain valid.
    """
    return dataclasses.field(default=default, metadata={"since": since, **bounds})


def check_fields(config: Any, owner: str = "") -> None:
    """Validate every field of a frozen dataclass; call it from ``__post_init__``.

    Integers in float fields become floats and lists become tuples, so equal configurations have
    equal text. A field named ``schema`` must be at its default. Else ConfigError names the field
    (after its ``owner``, as ``train.lr``), the value found and what is allowed.
    """
    for field, hint in _typed_fields(config.__class__).values():
        where = _member(owner, field.name)
        value = _within(_conform(getattr(config, field.name), hint, where), where, field.metadata)
        if field.name == "schema":
            _check_schema(value, field, where)
        object.__setattr__(config, field.name, value)


def checked(value: Any, hint: Any, where: str, **bounds: Unpack[Bounds]) -> Any:
    """The value, if it has a type and lies within the bounds.

    Args:
        value: numpy's numbers become Python's, float32(0.7) that is 0.7; lists become tuples.
        hint: the type of a configuration's field, or any class.
        where: what messages call the value.
        bounds: see :class:`Bounds`.

    Raises:
        ConfigError: names the value found and what is allowed.
    """
    return _within(_conform(value, hint, where), where, bounds)


def checked_path(path: Any, where: str) -> Path:
    """The path; ConfigError if it is empty, not a text, or has a character that no path has."""
    encoded = b""
    with contextlib.suppress(TypeError, UnicodeEncodeError):
        encoded = os.fsencode(path)
    if not encoded or b"\0" in encoded:
        raise ConfigError(f"{where} is {shown(path)}; expected a path")
    return Path(os.fsdecode(encoded))


def parse_json(text: str) -> Any:
    """Parse JSON; ConfigError also if a name is twice in an object or a number is not finite."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            (name, times), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"the name {shown(name)} occurs {times} times in one object; keep one")
        return values

    def finite(digits: str) -> float:
        if not math.isfinite(number := float(digits)):
            raise ValueError(
                f"{shown(digits)[1:-1]} is not a finite number; give one, or null for none"
            )
        return number

    with raising(ConfigError, "not valid JSON: ", of=(ValueError, RecursionError)):
        return json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=finite)


def to_dict(value: Any) -> Any:
    """Turn a dataclass, or a container of them, into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_dict(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and numbers, in results only
        return to_dict(value.tolist())
    return value


def from_dict(cls: type[T], data: Any, where: str = "") -> T:
    """Build ``cls`` from plain JSON values; missing fields take their defaults.

    Raises:
        ConfigError: an unknown schema, an unknown name (with the nearest known one), a missing
            field, or a value that :func:`check_fields` refuses.
    """
    result: T = _conform(data, cls, where, build=True)
    return result


def canonical_json(value: Any) -> str:
    """The JSON text of a value: sorted names, no spaces, plain ASCII, no NaN."""
    return _canonical(to_dict(value))


def digest(value: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of a value's canonical JSON.

    Neither ``schema`` counts nor a field that came after schema 1 and is at its default.
    """
    return hashlib.sha256(_identity_text(value).encode()).hexdigest()[:16]


def shown(value: Any) -> str:
    """A value as messages show it: its ``repr``, cut short."""
    return _SHORT.repr(value)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)`` for a misspelt name, or the empty string."""
    close = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_name(name: Any, known: Iterable[str], what: str) -> None:
    """ConfigError if ``no preset``, say, has this name: with the nearest one and all of them."""
    names = list(known)
    listed = ", ".join(each or "''" for each in names) or "none"
    if name not in names:
        close = suggestion(str(name), names)
        raise ConfigError(f"{what} is called {shown(name)}{close}; known: {listed}")


class _Short(reprlib.Repr):
    """``repr`` of limited depth and length."""

    def repr_int(self, x: int, level: int) -> str:
        """Digits, unless there are more than Python writes out."""
        bits = x.bit_length()
        return super().repr_int(x, level) if bits < 1000 else f"an integer of {bits} bits"

    def repr_ndarray(self, x: Any, level: int) -> str:
        """What an array is, without its values."""
        about = f"an array of {x.dtype}, shape {tuple(x.shape)}"
        return about if x.ndim else self.repr_instance(x, level)

    repr_Tensor = repr_ndarray  # noqa: N815 - of torch


_SHORT = _Short()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _identity_text(value: Any) -> str:
    """Canonical JSON of what identifies a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        part: Any = value
        try:
            return _cached_fields_text(part)
        except TypeError:  # a field without a hash
            return _fields_text(part)
    if isinstance(value, tuple | list):
        return f"[{','.join(map(_identity_text, value))}]"
    return _canonical(value)


def _fields_text(value: Any) -> str:
    kept = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        added_later = field.metadata.get("since", 1) > 1 and item == field.default
        if field.name != "schema" and not added_later:
            kept[field.name] = _identity_text(item)
    return "{" + ",".join(f"{_canonical(name)}:{kept[name]}" for name in sorted(kept)) + "}"


# The configurations of a sweep share most of their parts.
_cached_fields_text = functools.lru_cache(maxsize=1024)(_fields_text)


@functools.cache
def _typed_fields(cls: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls)}


def _member(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def _check_schema(schema: Any, field: dataclasses.Field[Any], where: str) -> None:
    if type(schema) is not int or schema != field.default:
        raise ConfigError(
            f"{where} is {shown(schema)}; this version of anchor-interp reads schema "
            f"{field.default}: use the version that wrote it"
        )


def _within(value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    for name, outside, words in (
        ("low", operator.lt, "at least"),
        ("above", operator.le, "more than"),
        ("high", operator.gt, "at most"),
    ):
        bound = bounds.get(name)
        if bound is not None and value is not None and outside(value, bound):
            raise ConfigError(f"{where} is {shown(value)}; expected {words} {bound}")
    return value


@functools.lru_cache(maxsize=4096)  # evaluations have the same names
def _shown_name(name: str) -> str:
    return shown(name)[1:-1]


@functools.cache
def _options(
    hint: Any, among: tuple[Any, ...]
) -> tuple[list[tuple[Any, Any, tuple[Any, ...]]], list[Any], bool]:
    """The types that a value may have, each with its origin and arguments; dataclasses; None?

    ``among`` are the hint's own arguments: ``int | float`` equals ``float | int``.
    """
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    options = among if is_union else (hint,)
    return (
        [(option, typing.get_origin(option), typing.get_args(option)) for option in options],
        [option for option in options if dataclasses.is_dataclass(option)],
        type(None) in options,
    )


def _conform(value: Any, hint: Any, where: str, *, build: bool = False) -> Any:
    """The value as its type wants it; ``build`` makes dataclasses of JSON objects."""
    options, classes, is_optional = _options(hint, typing.get_args(hint))
    if build and classes and not (value is None and is_optional):
        return _built(value, classes, where)
    lists = sum(origin is tuple for _, origin, _ in options)
    for option, origin, args in options:
        if option is Any:
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) <= sys.float_info.max:
                return float(value) + 0.0  # -0.0 becomes 0.0: equal values have equal text
        elif option in _SCALARS:
            if type(value) is option:
                return value
        elif isinstance(option, type) and origin is None:
            if isinstance(value, option):
                return value
        elif origin is Literal:
            if any(type(value) is type(arg) and value == arg for arg in args):
                return value
        elif origin is tuple and isinstance(value, tuple | list):
            kinds = (args[0],) * len(value) if args[-1] is Ellipsis else args
            if len(kinds) == len(value):
                pairs = enumerate(zip(value, kinds, strict=True))
                with contextlib.suppress(*[ConfigError] * (lists > 1)):  # another one may fit
                    return tuple(
                        _conform(v, k, f"{where}[{i}]", build=build) for i, (v, k) in pairs
                    )
        elif origin is dict and isinstance(value, Mapping):
            return {
                str(name): _conform(v, args[1], f"{where}[{_shown_name(str(name))}]", build=build)
                for name, v in value.items()
            }
    if type(value).__module__ == "numpy" and hasattr(value, "tolist") and (lists or not value.ndim):
        is_float = value.dtype.kind == "f" and not value.ndim
        return _conform(decimal(value) if is_float else value.tolist(), hint, where, build=build)
    names = [name for _, origin, args in options if origin is Literal for name in args]
    close = suggestion(value, map(str, names)) if isinstance(value, str) else ""
    expected = " or ".join(_describe(option, build) for option, _, _ in options)
    raise ConfigError(f"{where or _WHOLE} is {shown(value)}; expected {expected}{close}")


def _built(value: Any, classes: list[Any], where: str) -> Any:
    """The dataclass of a JSON object: of several, the one whose field names fit it best."""
    data: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    classes = [cls.among(data) if hasattr(cls, "among") else cls for cls in classes]
    cls = min(classes, key=lambda cls: len(data.keys() - _typed_fields(cls).keys()))
    fields = _typed_fields(cls)
    known = ", ".join(fields)
    if not isinstance(value, Mapping):
        expected = f"expected an object with the fields {known}"
        raise ConfigError(f"{where or _WHOLE} is {shown(value)}; {expected}")
    if "schema" in fields and "schema" in data:  # first: other versions have other fields
        _check_schema(data["schema"], fields["schema"][0], _member(where, "schema"))
    for name in [name for name in data if name not in fields]:
        meant = f"{suggestion(str(name), fields)}; known: {known}"
        raise ConfigError(f"{where or _WHOLE} has no field {shown(name)}{meant}")
    values = {}
    for name, (field, hint) in fields.items():
        if name in data:
            at = _member(where, name)
            values[name] = _within(_conform(data[name], hint, at, build=True), at, field.metadata)
        elif field.default is field.default_factory:  # both are dataclasses.MISSING
            raise ConfigError(f"{where or _WHOLE} lacks the field {name!r}")
    return cls(**values)


def _describe(hint: Any, build: bool) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "null" if build else "None"
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin is tuple:
        items = _describe(args[0], build) if args[-1] is Ellipsis else f"{len(args)} items"
        return f"a list of {items}"
    if origin is dict:
        return "an object"
    if hint in _SCALARS:
        return _SCALARS[hint]
    return f"{'an' if hint.__name__[0] in 'AEIO' else 'a'} {hint.__name__}"
