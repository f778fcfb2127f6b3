"""The flags of a command, read from its dataclass, and every mistake told in one line.

A command is a frozen dataclass: a field is a flag of its name, a nested dataclass a group of flags,
a field marked ``tyro.conf.Positional`` an argument without a name. tyro draws the help from the
same dataclasses. Parsing happens here, so that a message names the flag as the user knows it, the
value found, what is expected and the nearest known name.
"""

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import suggestion

C = TypeVar("C")


HELP = ("-h", "--help")


_EXPECTED = {int: "an integer", float: "a number", Path: "a path", str: "a name"}


_LONGEST = 60


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of a command, or one argument without a name."""

    name: str
    """The field's name."""
    kind: Any
    """``bool``, ``int``, ``float``, ``str`` or ``Path``."""
    choices: tuple[str, ...] = ()
    """The values allowed, where they are few."""
    optional: bool = False
    """Whether None, typed as none or null, is a value."""
    positional: bool = False
    """Whether it is given without a name."""
    many: bool = False
    """Whether it takes one or more values; positional only."""
    pair: bool = False
    """Whether a boolean can also be switched off, by ``--no-``."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """How it is typed: ``--n-layers``, or ``--bias`` and ``--no-bias``."""
        dashed = self.name.replace("_", "-")
        return (f"--{dashed}", f"--no-{dashed}") if self.pair else (f"--{dashed}",)


def flags_of(command: type) -> tuple[Flag, ...]:
    """The flags of a command in the order of its fields; those of nested dataclasses in place."""
    found: list[Flag] = []
    for field, hint, marks in _fields(command):
        if dataclasses.is_dataclass(hint):
            found += flags_of(typing.cast(type, hint))
        else:
            found.append(_flag(field.name, hint, marks))
    return tuple(found)


def parse(command: type, arguments: Sequence[str]) -> dict[str, Any]:
    """The values given on a command line, by the names of the fields.

    Raises:
        ConfigError: an unknown or repeated flag, one without its value, or a value of another type.
    """
    flags = flags_of(command)
    typed = {text: flag for flag in flags if not flag.positional for text in flag.spellings}
    places = [flag for flag in flags if flag.positional]
    values: dict[str, Any] = {}
    rest = list(arguments)
    only_places = False
    while rest:
        text = rest.pop(0)
        if text == "--" and not only_places:
            only_places = True
        elif text.startswith("-") and text != "-" and not only_places:
            _take_flag(text, rest, typed, values)
        else:
            _take_place(text, places, values)
    return values


def build(command: type[C], values: Mapping[str, Any], **starts: Any) -> C:
    """A command with these values.

    Args:
        command: its class.
        values: what :func:`parse` found.
        starts: values of fields, whole groups among them, to start from in place of the defaults.

    Raises:
        ConfigError: a value is missing or out of range.
    """
    given = dict(starts)
    for field, hint, marks in _fields(command):
        if dataclasses.is_dataclass(hint):
            names = {f.name for f in dataclasses.fields(hint)} & values.keys()
            start: Any = given.get(field.name, field.default)
            try:
                changed = {name: values[name] for name in names}
                given[field.name] = dataclasses.replace(start, **changed)
            except ConfigError as error:
                raise ConfigError(in_flags(str(error), command)) from error
        elif field.name in values:
            given[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING and field.name not in given:
            flag = _flag(field.name, hint, marks)
            what = field.name.upper() if flag.positional else flag.spellings[0]
            raise ConfigError(f"{what} is missing; expected {_EXPECTED[flag.kind]}")
    return command(**given)


def in_flags(message: str, command: type) -> str:
    """A message about a configuration with its fields called as a command line calls them."""
    known = {flag.name: flag.spellings[0] for flag in flags_of(command) if not flag.positional}

    def spelled(match: re.Match[str]) -> str:
        return known.get(match[1], match[0])

    message = re.sub(r"^(?:[A-Za-z]\w*\.)?(\w+)(?= is )", spelled, message)
    return re.sub(r"(?<![\w./-])([a-z]+(?:_[a-z0-9]+)+)(?![\w./-])", spelled, message)


def _fields(command: Any) -> Iterator[tuple[dataclasses.Field[Any], Any, tuple[Any, ...]]]:
    """Field, type and tyro's marks of all fields that the command line shows."""
    hints = typing.get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint, marks = hints[field.name], ()
        if typing.get_origin(hint) is Annotated:
            marks, hint = hint.__metadata__, typing.get_args(hint)[0]
        if tyro.conf.Suppress not in marks:
            yield field, hint, marks


def _flag(name: str, hint: Any, marks: tuple[Any, ...]) -> Flag:
    options = [option for option in _options(hint) if option is not type(None)]
    kind, many = options[0], False
    if typing.get_origin(kind) is tuple:
        kind, many = typing.get_args(kind)[0], True
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    kind = str if choices else kind
    if len(options) > 1 or kind not in (bool, *_EXPECTED):
        raise TypeError(f"the field {name} has a type that no flag has: {hint}")
    return Flag(
        name,
        kind,
        choices,
        optional=len(options) < len(_options(hint)),
        positional=tyro.conf.Positional in marks,
        many=many,
        pair=kind is bool and tyro.conf.FlagCreatePairsOff not in marks,
    )


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) not in (None, tuple, Literal)
    return typing.get_args(hint) if is_union else (hint,)


def _take_flag(
    text: str, rest: list[str], typed: Mapping[str, Flag], values: dict[str, Any]
) -> None:
    name, has_value, value = text.partition("=")
    dashed = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
    if dashed not in typed:
        raise ConfigError(f"unknown option {_shown(name)}{suggestion(dashed, (*typed, HELP[1]))}")
    flag = typed[dashed]
    if flag.name in values:
        raise ConfigError(f"{name} is given twice; keep one")
    if flag.kind is bool:
        if has_value:
            raise ConfigError(f"{name} takes no value")
        values[flag.name] = dashed == flag.spellings[0]
        return
    if not has_value:
        if not rest or rest[0].startswith("--"):
            raise ConfigError(f"{name} has no value; expected {_expected(flag)}")
        value = rest.pop(0)
    values[flag.name] = _converted(value, flag, name)


def _take_place(text: str, places: list[Flag], values: dict[str, Any]) -> None:
    open_places = [flag for flag in places if flag.many or flag.name not in values]
    if not open_places:
        raise ConfigError(f"unexpected argument {_shown(text)}")
    flag = open_places[0]
    value = _converted(text, flag, flag.name.upper())
    values[flag.name] = (*values.get(flag.name, ()), value) if flag.many else value


def _converted(text: str, flag: Flag, name: str) -> Any:
    if flag.optional and text.lower() in ("none", "null"):
        return None
    if not text or "\0" in text:
        raise ConfigError(f"{name} is {_shown(text)}; expected {_expected(flag)}")
    if flag.choices and text not in flag.choices:
        close = suggestion(text, flag.choices)
        raise ConfigError(f"{name} is {_shown(text)}; expected {_expected(flag)}{close}")
    try:
        return flag.kind(text)
    except ValueError:
        raise ConfigError(f"{name} is {_shown(text)}; expected {_expected(flag)}") from None


def _expected(flag: Flag) -> str:
    if flag.choices:
        return "one of " + ", ".join(map(repr, flag.choices))
    return _EXPECTED[flag.kind] + (" or none" if flag.optional else "")


def _shown(text: str) -> str:
    """What was typed, shortened and without anything that a terminal would act on."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return cut if re.fullmatch(r"-[\w.-]*", cut, re.ASCII) else repr(cut)
