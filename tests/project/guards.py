"""How much of the package guards: ``python tests/project/guards.py`` prints a line for each room.

A code line is not blank, not only a comment, not part of a docstring. A guard line is a code line
of one of these:

- a branch of an ``if`` that ends in ``raise``, with the branch's test and message,
- a call of a function whose name starts with ``check``,
- an ``except`` handler with its body,
- an ``assert``.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

PACKAGE = Path(__file__).parents[2] / "src" / "anchor_interp"

_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True)
class Module:
    """What one file holds: its lines, those of code, and those that guard."""

    lines: int
    code: int
    guards: int


class Total:
    """What several modules hold together, and the lines of the median and of the longest one."""

    def __init__(self, modules: Sequence[Module]) -> None:
        lines = [module.lines for module in modules]
        self.n_modules, self.lines, self.median = len(modules), sum(lines), median(lines)
        self.longest = max(lines)
        self.code = sum(module.code for module in modules)
        self.guards = sum(module.guards for module in modules)
        self.share = self.guards / self.code
        self.modules = modules


def count(package: Path = PACKAGE) -> Mapping[str, Total]:
    """The package's rooms by name; ``.`` is what lies in none of them."""
    rooms: dict[str, list[Module]] = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        rooms.setdefault(inside[0] if len(inside) > 1 else ".", []).append(count_module(path))
    return {room: Total(modules) for room, modules in rooms.items()}


def whole(rooms: Mapping[str, Total]) -> Total:
    """All rooms together."""
    return Total([module for room in rooms.values() for module in room.modules])


def count_module(path: Path) -> Module:
    """Count one file's lines."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    code = _token_lines(source) - _docstring_lines(tree)
    guards = {line for node in _guards(tree) for line in _lines(node)}
    return Module(len(source.splitlines()), len(code), len(code & guards))


def _token_lines(source: str) -> set[int]:
    """Lines that hold more than white space and comments."""
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of strings that stand alone: docstrings of modules, classes, functions and fields."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in _lines([node])
    }


def _lines(nodes: Sequence[ast.AST]) -> range:
    """The lines from the first node to the end of the last."""
    first, last = nodes[0], nodes[-1]
    assert isinstance(first, ast.expr | ast.stmt | ast.excepthandler)
    assert isinstance(last, ast.expr | ast.stmt | ast.excepthandler)
    return range(first.lineno, (last.end_lineno or last.lineno) + 1)


def _guards(tree: ast.Module) -> Iterator[Sequence[ast.AST]]:
    """What guards, each from its first node to its last."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            if isinstance(node.body[-1], ast.Raise):
                yield [node, node.body[-1]]
            if node.orelse and isinstance(node.orelse[-1], ast.Raise):
                yield node.orelse
        elif isinstance(node, ast.ExceptHandler | ast.Assert) or (
            isinstance(node, ast.Call) and _is_check(node.func)
        ):
            yield [node]


def _is_check(function: ast.expr) -> bool:
    """Whether a function's own name starts with ``check``; a checkpoint is not a check."""
    name = ""
    if isinstance(function, ast.Name):
        name = function.id
    elif isinstance(function, ast.Attribute):
        name = function.attr
    name = name.lstrip("_")
    return name.startswith("check") and not name.startswith("checkpoint")


def table(rooms: Mapping[str, Total]) -> str:
    """A line for each room and one for all of them."""
    heading = ("room", "lines", "code", "guards", "share", "modules", "median", "longest")
    rows = [heading, *(_row(name, room) for name, room in rooms.items())]
    rows.append(_row("all", whole(rooms)))
    return "\n".join(f"{row[0]:14}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)


def _row(name: str, total: Total) -> tuple[str, ...]:
    numbers = (total.lines, total.code, total.guards)
    share, modules = f"{total.share:.1%}", str(total.n_modules)
    return (
        name, *map(str, numbers), share, modules, f"{total.median:g}", str(total.longest)
    )  # fmt: skip


if __name__ == "__main__":
    print(table(count(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)))
