"""The public API as text: what tests/project/public_api.txt holds.

``make public-api`` writes it anew after a change that is meant. Annotations are spelled from the
objects themselves, so that the text is the same on every supported Python.
"""

import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

import anchor_interp
from anchor_interp._util import schema
from anchor_interp.behaviour import phase
from anchor_interp.cli.main import command_line
from anchor_interp.models import shapes
from anchor_interp.runs import config, presets
from anchor_interp.tasks import catalog, registry
from anchor_interp.tasks import sequences as data
from anchor_interp.tasks.network import OwnNetwork

SNAPSHOT = Path(__file__).with_name("public_api.txt")


def describe() -> str:
    """All of it: Python names, the command line, and the values that results depend on."""
    parts = ["# Python", *_python(), "", "# Command line", *_command_line(), "", "# Values"]
    return "\n".join([*parts, *_values(), ""])


def _python() -> Iterator[str]:
    for name in anchor_interp.__all__:
        value = getattr(anchor_interp, name)
        if inspect.isclass(value):
            yield from _class(name, value)
        elif inspect.isroutine(value):
            yield f"{name}{_signature(value)}"
        else:
            yield f"{name}: {type(value).__name__}"


def _class(name: str, cls: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            missing = field.default is dataclasses.MISSING
            default = "" if missing else f" = {_value(field.default)}"
            yield f"    {field.name}: {_type(hints[field.name])}{default}"
    for member, value in vars(cls).items():
        if member.startswith("_") and member != "__call__":
            continue
        if isinstance(value, property | functools.cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            yield f"    {member} -> {_type(_hints(getter).get('return', Any))}"
        elif isinstance(value, classmethod | staticmethod):
            yield f"    {type(value).__name__} {member}{_signature(getattr(cls, member))}"
        elif inspect.isfunction(value):
            yield f"    {member}{_signature(value)}"
        elif member not in getattr(cls, "__dataclass_fields__", ()):
            yield f"    {member} = {value!r}"


def _hints(function: Any) -> dict[str, Any]:
    """The annotations; some names are known to a module only while types are checked."""
    known: dict[str, Any] = {"AnchorTask": anchor_interp.AnchorTask, "OwnNetwork": OwnNetwork}
    known |= {"torch": torch, "pandas": pandas}
    return typing.get_type_hints(function, localns=known)


def _signature(function: Any) -> str:
    hints = _hints(function)
    shown: list[str] = []
    starred = False
    for parameter in inspect.signature(function).parameters.values():
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, starred = f"*{text}", True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = f"**{text}"
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown, starred = [*shown, "*"], True
        if parameter.name in hints:
            text += f": {_type(hints[parameter.name])}"
        if parameter.default is not parameter.empty:
            text += f" = {_value(parameter.default)}"
        shown.append(text)
    return f"({', '.join(shown)}) -> {_type(hints.get('return', Any))}"


def _value(value: Any) -> str:
    """A default; a configuration whose fields are all at theirs by its name alone."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        with contextlib.suppress(TypeError):  # a field without a default
            if value == type(value)():
                return f"{type(value).__name__}()"
    return repr(value)


def _type(hint: Any) -> str:
    """An annotation as one would write it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is types.NoneType:
        return "None"
    if hint is Ellipsis:
        return "..."
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type, arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if hasattr(hint, "dim_str"):  # jaxtyping
        return f"{hint.dtype.__name__}[{_type(hint.array_type)}, {hint.dim_str!r}]"
    if origin is np.ndarray:
        return f"NDArray[{_type(typing.get_args(arguments[1])[0])}]"
    if origin is not None:
        return f"{_type(origin)}[{', '.join(map(_type, arguments))}]"
    return getattr(hint, "__name__", str(hint).removeprefix("typing."))


def _command_line() -> Iterator[str]:
    app = command_line()
    for command in (name for name in app if not name.startswith("-")):
        yield f"anchor-interp {command}"
        for argument in app[command].assemble_argument_collection():
            if argument.show:
                value = argument.field_info.default
                default = "" if value is argument.field_info.empty else f" = {value}"
                default = " (required)" if argument.required else default
                yield f"    {', '.join(argument.names)}: {_type(argument.hint)}{default}"


def _values() -> Iterator[str]:
    yield f"run folder schema {config.SCHEMA}"
    yield f"data generator {data.GENERATOR}"
    yield f"thresholds {schema.canonical_json(phase.PAPER)}"
    ours = registry.is_ours
    yield from _digests("preset", {n: c for n, c in presets.RUNS.items() if ours(type(c.task))})
    yield from _digests("model", shapes.MODELS)
    yield from _digests("task", {n: t for n, t in catalog.NAMED_TASKS.items() if ours(type(t))})


def _digests(kind: str, named: Mapping[str, Any]) -> Iterator[str]:
    for name, value in named.items():
        yield f"{kind} {name} {schema.digest(value)}"


if __name__ == "__main__":
    SNAPSHOT.write_text(describe(), encoding="utf-8")
    print(f"wrote {SNAPSHOT}", file=sys.stderr)
