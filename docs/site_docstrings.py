"""Docstrings as the site shows them: a griffe extension.

The docstrings are written for ``help()``: cross-references as ``:func:`name```, literal blocks
after ``::`` and tables ruled with ``=``. Here they become Markdown, and a field declared with
:func:`anchor_interp._util.schema.bounded` shows its default and says which values it allows.
"""

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any

import griffe

PACKAGE = "anchor_interp"


class Readable(griffe.Extension):
    """Rewrite docstrings and bounded fields after the package has been read."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replace ``bounded(default, low=..., high=...)`` by the default, and tell the bounds."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "bounded":
            default, *bounds = call.arguments
            attr.value = default
            named = [bound for bound in bounds if isinstance(bound, griffe.ExprKeyword)]
            told = _bounds({bound.name: str(bound.value) for bound in named})
            if attr.docstring is not None and told:
                attr.docstring.value += f"\n\n*Allowed: {told}.*"

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Turn every docstring of the package into Markdown."""
        _rewrite(pkg)


def _rewrite(owner: griffe.Object) -> None:
    if owner.docstring is not None:
        owner.docstring.value = markdown(owner.docstring.value, owner)
    for member in owner.members.values():
        if isinstance(member, griffe.Object):
            _rewrite(member)


def markdown(text: str, owner: griffe.Object) -> str:
    """A docstring in Markdown; names are looked up where they are written."""

    def link(match: re.Match[str]) -> str:
        name = match["name"]
        return f"[`{name}`][{_path(name, owner)}]"

    text = re.sub(r":(?:func|class|meth|attr|mod|data|exc):`(?P<name>[^`]+)`", link, text)
    text = _tables(text)
    return re.sub(r"^::$\n?|(?<=\S):(?=:$)", "", text, flags=re.MULTILINE)


def _path(name: str, owner: griffe.Object) -> str:
    """The canonical path of a name: seen from its owner, else the one place that ends with it."""
    head, dot, rest = name.partition(".")
    try:
        found = owner.resolve(head) + dot + rest
    except griffe.NameResolutionError:
        ends = [path for path in _paths(owner) if path.endswith(f".{name}")]
        found = ends[0] if len(ends) == 1 else name
    try:
        return str(owner.modules_collection[found].canonical_path)
    except (KeyError, griffe.AliasResolutionError):
        return name  # the build says that there is no such name


@functools.cache
def _paths(owner: griffe.Object) -> tuple[str, ...]:
    """The path of everything that the package defines."""

    def below(member: griffe.Object) -> Iterator[str]:
        yield member.path
        for inner in member.members.values():
            if isinstance(inner, griffe.Object):
                yield from below(inner)

    return tuple(below(owner.modules_collection[PACKAGE]))


def _tables(text: str) -> str:
    """Tables ruled with ``=`` as Markdown tables; an indented line continues the row above."""
    rule = r"^=+(?: +=+)+$\n"
    pattern = re.compile(
        f"{rule}(?P<head>.*)\n{rule}(?P<body>(?:.*\n)+?)={{3}}[= ]+$", re.MULTILINE
    )

    def table(match: re.Match[str]) -> str:
        rows = [re.split(r"\s{2,}", match["head"])]
        for line in match["body"].splitlines():
            if line.startswith(" "):
                rows[-1][-1] += f" {line.strip()}"
            else:
                rows.append(re.split(r"\s{2,}", line, maxsplit=len(rows[0]) - 1))
        rows.insert(1, ["---"] * len(rows[0]))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    return pattern.sub(table, text)


def _bounds(bounds: dict[str, str]) -> str:
    def number(text: str) -> str:
        try:
            value = ast.literal_eval(text)
        except ValueError:
            return f"`{text}`"
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"

    low, high, above = (bounds.get(name) for name in ("low", "high", "above"))
    if low is not None and high is not None:
        return f"{number(low)} to {number(high)}"
    told = [f"at least {number(low)}"] if low is not None else []
    told += [f"more than {number(above)}"] if above is not None else []
    told += [f"at most {number(high)}"] if high is not None else []
    return ", ".join(told)
