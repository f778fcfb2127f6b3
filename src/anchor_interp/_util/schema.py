"""Frozen dataclasses as validated, canonical JSON.

Every configuration and every result of this package is a frozen dataclass that holds only
numbers, strings, booleans, ``None``, tuples, dictionaries with string keys and other such
dataclasses; a result may also hold numpy arrays, which become lists. This module gives them four
things, derived from the fields' types alone:

* :func:`check_fields`: each field has its declared type and lies within its declared bounds
  (:func:`checked` and :func:`checked_path` say the same of a function's argument);
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
import os
import reprlib
import types
import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union

from anchor_interp._util.errors import ConfigError

T = TypeVar("T")


_SCALARS = {int: "an integer", float: "a finite number", str: "a text", bool: "true or false"}


_EXACT = (int, str, bool)
"""Types whose own values need no look."""


_WHOLE = "the top level"


_LONGEST_NAME = 100
"""Longer names are not compared with the known ones."""


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


def check_fields(config: Any, owner: str = "") -> None:
    """Validate every field of a frozen dataclass against its type and bounds.

    Integers given for a float field become floats and lists become tuples, so that equal
    configurations have equal text. A field named ``schema`` must be at its default. To be called
    from ``__post_init__``.

    Args:
        config: the dataclass.
        owner: what messages call it, such as ``train`` for ``train.lr is 0``; its fields stand by
            themselves if empty.

    Raises:
        ConfigError: names the field, the value found and what is allowed.
    """
    for field, hint in _typed_fields(config.__class__):
        where = _member(owner, field.name)
        value = checked(getattr(config, field.name), hint, where, **field.metadata)
        if field.name == "schema":
            _check_schema(value, field, where)
        object.__setattr__(config, field.name, value)


def checked(
    value: Any,
    hint: Any,
    where: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    **_: Any,
) -> Any:
    """A value that has a type and lies within bounds; see :func:`bounded`.

    Args:
        value: what was given; numpy's numbers become Python's, lists become tuples.
        hint: the type: of a configuration's field, or any class.
        where: what messages call the value.
        low: smallest value allowed.
        high: largest value allowed.
        above: the value must be strictly greater than this.

    Raises:
        ConfigError: names the value found and what is allowed.
    """
    value = _conform(value, hint, where)
    if value is None:
        return None
    if low is not None and value < low:
        raise ConfigError(f"{where} is {shown(value)}; expected at least {low}")
    if above is not None and value <= above:
        raise ConfigError(f"{where} is {shown(value)}; expected more than {above}")
    if high is not None and value > high:
        raise ConfigError(f"{where} is {shown(value)}; expected at most {high}")
    return value


def checked_path(path: Any, where: str) -> Path:
    """A path that the system can be asked for.

    Raises:
        ConfigError: it is empty, no text, or holds a character that no path can hold.
    """
    try:
        encoded = os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        encoded = b""
    if not encoded or b"\0" in encoded:
        reason = " without a NUL character" if b"\0" in encoded else ""
        raise ConfigError(f"{where} is {shown(path)}; expected a path{reason}")
    return Path(os.fsdecode(encoded))


_MOST_DIGITS = 40


def parse_json(text: str) -> Any:
    """Parse JSON strictly: no name twice in an object, no number that is not finite or immense.

    Raises:
        ConfigError: what is wrong with the text.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            (name, times), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise ConfigError(
                f"the name {shown(name)} stands {times} times in one object; keep one"
            )
        return found

    def refuse(number: str) -> NoReturn:
        raise ConfigError(f"{shown(number)[1:-1]} is no finite number; give one, or null for none")

    def finite(digits: str) -> float:
        number = float(digits)
        return number if math.isfinite(number) else refuse(digits)

    def whole(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ConfigError(f"{shown(digits)[1:-1]} has more digits than any number here")
        return int(digits)

    hooks: dict[str, Any] = {"parse_float": finite, "parse_int": whole, "parse_constant": refuse}
    if not text.strip():
        raise ConfigError("no valid JSON: the text is empty")
    try:
        return json.loads(text, object_pairs_hook=unique, **hooks)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("no valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"no valid JSON: {error}") from error


def to_dict(value: Any) -> Any:
    """Turn a dataclass (or a container of them) into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_dict(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if hasattr(value, "tolist"):  # an array or a number of numpy's, of results only
        return to_dict(value.tolist())
    return value


def from_dict(cls: type[T], data: Any) -> T:
    """Build ``cls`` from plain JSON values; missing fields take their defaults.

    Raises:
        ConfigError: an unknown schema, an unknown name (with the nearest known one), a missing
            field, or a value that :func:`check_fields` refuses.
    """
    result: T = _build(cls, data, "")
    return result


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted names, no spaces, plain ASCII, no NaN."""
    return _canonical(to_dict(value))


def digest(value: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of a value's canonical JSON.

    Left out are fields named ``schema`` and fields introduced after schema 1 that are at their
    default: adding a field to a later version leaves existing identifiers as they were.
    """
    is_config = dataclasses.is_dataclass(value) and not isinstance(value, type)
    text = _fields_text(value) if is_config else _identity_text(value)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def shown(value: Any) -> str:
    """A value as messages show it: its ``repr``, cut short."""
    return _SHORT.repr(value)


class _Short(reprlib.Repr):
    """``repr`` of limited depth and length."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = 80

    def repr_int(self, x: int, level: int) -> str:
        """Digits, unless there are more than Python writes out."""
        bits = x.bit_length()
        return super().repr_int(x, level) if bits < 1000 else f"an integer of {bits} bits"


_SHORT = _Short()


def suggestion(found: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)`` for a misspelt name, or the empty string."""
    if len(found) > _LONGEST_NAME:
        return ""
    close = difflib.get_close_matches(found, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@functools.cache
def _typed_fields(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(cls))


def _member(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def _check_schema(found: Any, field: dataclasses.Field[Any], where: str) -> None:
    if type(found) is not int or found != field.default:
        raise ConfigError(
            f"{where} is {shown(found)}; this version of anchor-interp reads schema "
            f"{field.default}: use the version that wrote it"
        )


def _identity_text(value: Any) -> str:
    """Canonical JSON of what identifies a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        part: Any = value
        try:
            return _kept_text(part)
        except TypeError:  # a field without a hash
            return _fields_text(part)
    if isinstance(value, tuple | list):
        return f"[{','.join(map(_identity_text, value))}]"
    return _canonical(value)


@functools.lru_cache(maxsize=1024)
def _kept_text(part: Any) -> str:
    """Kept, because the configurations of a sweep have most of their parts in common."""
    return _fields_text(part)


def _fields_text(value: Any) -> str:
    kept = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        added_later = field.metadata.get("since", 1) > 1 and item == field.default
        if field.name != "schema" and not added_later:
            kept[field.name] = _identity_text(item)
    return "{" + ",".join(f"{_canonical(name)}:{kept[name]}" for name in sorted(kept)) + "}"


def _hints(cls: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    return {field.name: (field, hint) for field, hint in _typed_fields(cls)}


def _is_plain_class(hint: Any) -> bool:
    """Whether a type is a class of its own, such as a dataclass, and nothing more."""
    return isinstance(hint, type) and hint not in _SCALARS and hint is not Any


@functools.lru_cache(maxsize=1024)
def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union type, or the type alone."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _conform(value: Any, hint: Any, where: str) -> Any:
    if type(value) is hint and hint in _EXACT:
        return value
    options = _options(hint)
    if any(_is_plain_class(option) and isinstance(value, option) for option in options):
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
    raise ConfigError(f"{where} is {shown(value)}; expected {expected}")


def _conform_one(value: Any, hint: Any, where: str) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()  # numpy's numbers and arrays are as good as Python's
    origin, args = typing.get_origin(hint), typing.get_args(hint)

    def refused() -> ConfigError:
        is_name = origin is Literal and isinstance(value, str)
        close = suggestion(value, map(str, args)) if is_name else ""
        return ConfigError(f"{where} is {shown(value)}; expected {_describe(hint)}{close}")

    if hint is None or hint is type(None):
        if value is None:
            return None
        raise refused()
    if origin is Literal:
        if any(type(value) is type(arg) and value == arg for arg in args):
            return value
        raise refused()
    if origin is tuple:
        if not isinstance(value, tuple | list):
            raise refused()
        if args[-1] is not Ellipsis:
            if len(value) != len(args):
                raise refused()
            kinds = args
        else:
            kinds = (args[0],) * len(value)
        pairs = zip(value, kinds, strict=True)
        return tuple(_conform(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(pairs))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise refused()
        return {
            str(name): _conform(item, args[1], f"{where}[{shown(str(name))[1:-1]}]")
            for name, item in value.items()
        }
    if hint is Any:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value) + 0.0  # -0.0 is 0.0, so that equal values have equal text
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise refused()
        return number
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise refused()


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
        known = " or ".join(", ".join(name for name in _hints(cls)) for cls in classes)
        raise ConfigError(
            f"{where or _WHOLE} is {shown(data)}; expected an object with the fields {known}"
        )
    return data


def _choose(classes: list[Any], data: Mapping[str, Any]) -> Any:
    """The class of a union whose field names cover the given names best."""

    def unknown(cls: Any) -> int:
        return len(set(data) - {field.name for field in dataclasses.fields(cls)})

    return min(classes, key=unknown)


def _build_dataclass(cls: Any, data: Mapping[str, Any], where: str) -> Any:
    hints = _hints(cls)
    if "schema" in hints and "schema" in data:  # first: other versions have other fields
        _check_schema(data["schema"], hints["schema"][0], _member(where, "schema"))
    for name in data:
        if name not in hints:
            raise ConfigError(
                f"{where or _WHOLE} has no field {shown(name)}{suggestion(str(name), hints)}; "
                f"known: {', '.join(hints)}"
            )
    values = {}
    for name, (field, hint) in hints.items():
        missing = dataclasses.MISSING
        if name in data:
            at = _member(where, name)
            values[name] = checked(_build(hint, data[name], at), hint, at, **field.metadata)
        elif field.default is missing and field.default_factory is missing:
            raise ConfigError(f"{where or _WHOLE} lacks the field {name!r}")
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
    if hint in _SCALARS:
        return _SCALARS[hint]
    return f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"
