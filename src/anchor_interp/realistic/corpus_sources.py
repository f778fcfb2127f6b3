"""Where the documents of a corpus come from: the standard library, a folder, the Hugging Face hub.

A source gives its documents in a fixed order, each with the position behind it, from which another
pass can go on. A document is *held out* if a hash of its name (on the hub, of its text) says so:
one in ten, whatever the other documents are.

====================  ============================================  ================================
source                code                                          prose
====================  ============================================  ================================
``stdlib``            Python's library without tests and docstrings  these docstrings and
                                                                    ``pydoc_data/topics.py``
``folder:PATH``       files such as ``.py`` and ``.c``              files such as ``.txt``, ``.md``
``hub:OWNER/NAME``    SlimPajama's ``RedPajamaGithub``              its ``RedPajamaWikipedia``
====================  ============================================  ================================

Another dataset of the hub has one kind of text: its column ``text``, as prose.
"""

import ast
import functools
import hashlib
import io
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.files import read_bytes
from anchor_interp._util.schema import checked_path, shown

Kind = Literal["code", "prose"]
SLIMPAJAMA_SETS: Mapping[str, Kind] = {"RedPajamaGithub": "code", "RedPajamaWikipedia": "prose"}
CODE = frozenset({
    ".c", ".cc", ".cpp", ".cs", ".css", ".cu", ".go", ".h", ".hpp", ".html", ".java", ".jl", ".js",
    ".kt", ".lua", ".php", ".pl", ".py", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift",
    ".ts",
})  # fmt: skip
PROSE = frozenset([".md", ".rst", ".tex", ".txt"])
_HELD_OUT = 10  # one document in so many
_MOST_BYTES = 1 << 30
# what a distribution may leave out, what it generates, tests, and tables of numbers
_SKIPPED = frozenset({
    "test", "tests", "idle_test", "idlelib", "tkinter", "turtledemo", "lib2to3", "distutils",
    "ensurepip", "venv", "encodings", "pydoc_data", "site-packages", "dist-packages", "__pycache__",
})  # fmt: skip
_TOPICS = "pydoc_data/topics.py"


@dataclass(frozen=True)
class Document:
    """A text."""

    kind: Kind
    text: str
    held_out: bool
    """Whether models are not trained on it."""


Stream = Iterator[tuple[list[Document], Callable[[], Any]]]
"""Documents that belong together, with a function that gives the JSON position behind them."""


@dataclass(frozen=True)
class Source:
    """A source, opened."""

    state: str
    """Text that changes when its documents do, as far as can be told without reading them."""
    documents: Callable[[Any], Stream]
    """The documents from a position on; None is the start."""


def open_source(name: str) -> Source:
    """The source of a name, which is checked; ConfigError if there is no such source."""
    kind, _, place = name.partition(":")
    if name == "stdlib":
        return _standard_library()
    if kind == "folder" and place:
        return _folder(checked_path(place, "the folder of the corpus"))
    if kind == "hub" and place.count("/") == 1:
        return Source(name, lambda position: _hub(place, position))
    expected = "expected 'stdlib', 'folder:PATH' or 'hub:OWNER/NAME'"
    raise ConfigError(f"task.source is {shown(name)}; {expected}")


def _rank(name: str) -> int:
    """A number that orders names at random."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "big")


def _is_held_out(name: str) -> bool:
    return _rank(name) % _HELD_OUT == 0


def _standard_library() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    names = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if not _SKIPPED & set(path.relative_to(root).parts)
        and not path.name.startswith(("_sysconfigdata", "sitecustomize"))
        and not path.relative_to(root).parts[0].startswith("config-")
    ]
    if (root / _TOPICS).is_file():
        names.append(_TOPICS)

    def documents(name: str) -> dict[Kind, str]:
        source = read_bytes((root / name).resolve(), limit=_MOST_BYTES)
        return {"prose": _topics(source)} if name == _TOPICS else _parted(source)

    return _of_files(f"python {platform.python_version()}", root, names, documents)


def _parted(source: bytes) -> dict[Kind, str]:
    """A module's code without its docstrings, and these."""
    text = source.decode("utf-8", "replace")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a file of another version
        return {"code": text}
    lines, prose = list(io.StringIO(text, newline="")), []  # splitlines knows more line ends
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and (docstring := ast.get_docstring(node)):
            prose.append(docstring)
            first = node.body[0]
            if first.lineno > getattr(node, "lineno", 0):  # not behind "def f():"
                last = first.end_lineno or first.lineno
                lines[first.lineno - 1 : last] = [""] * (last - first.lineno + 1)
    return {"code": "".join(lines), "prose": "\n\n".join(prose)}


def _topics(source: bytes) -> str:
    """The texts of the help on Python's topics."""
    tables = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict))
    texts = (value for table in tables for value in table.values)
    return "\n\n".join(
        text.value for text in texts if isinstance(text, ast.Constant) and type(text.value) is str
    )


def _folder(root: Path) -> Source:
    if not root.is_dir():
        raise ConfigError(f"the folder of the corpus, {root}, is not a folder; name one")
    paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    names = [
        path.as_posix()
        for path in paths
        if path.suffix.lower() in CODE | PROSE and not any(p.startswith(".") for p in path.parts)
    ]

    def documents(name: str) -> dict[Kind, str]:
        path = root / name
        data = read_bytes(path.resolve(), limit=_MOST_BYTES)
        advice = "; remove it or convert it"
        with raising(ConfigError, f"{path} is not UTF-8 text: ", advice, of=UnicodeDecodeError):
            text = data.decode("utf-8-sig")
        if "\0" in text:
            raise ConfigError(f"{path} holds a NUL character, so it is not text{advice}")
        return {"code" if path.suffix.lower() in CODE else "prose": text}

    return _of_files("folder", root, names, documents)


def _of_files(
    what: str, root: Path, names: Iterable[str], texts: Callable[[str], Mapping[Kind, str]]
) -> Source:
    """Files in random order, the same for every run; a position is the number of files read.

    If no file's name says that it is held out, the first one is.
    """
    ordered = sorted(names, key=lambda name: (_rank(name), name))
    if len(ordered) < 2:
        text = f"{root} has {len(ordered)} files of text, such as .py and .md"
        raise ConfigError(f"{text}; expected two at least: one is held out")
    held_out = {name for name in ordered if _is_held_out(name)} or {ordered[0]}
    state = hashlib.sha256(what.encode())
    for name in ordered:
        about = (root / name).stat()
        state.update(f"{name}\0{about.st_size}\0{about.st_mtime_ns}\n".encode("utf-8", "replace"))

    def stream(position: int | None) -> Stream:
        for number, name in enumerate(ordered[position or 0 :], (position or 0) + 1):
            kinds, out = texts(name), name in held_out
            documents = [Document(kind, text, out) for kind, text in kinds.items() if text]
            yield documents, functools.partial(int, number)

    return Source(state.hexdigest(), stream)


def _hub(name: str, position: Mapping[str, Any] | None) -> Stream:
    """The rows of the dataset's split ``train``, in order; a position is that of ``datasets``."""
    try:
        rows = hub_rows(name)
        if position is not None:
            rows.load_state_dict(dict(position))
        for row in rows:
            part = (row.get("meta") or {}).get("redpajama_set_name")
            kind: Kind | None = "prose" if part is None else SLIMPAJAMA_SETS.get(part)
            text = row.get("text")
            if not isinstance(text, str):
                what = f"the dataset {name} has no column 'text' of texts"
                raise ConfigError(f"{what}; take another one")
            documents = [Document(kind, text, _is_held_out(text))] if kind and text else []
            yield documents, rows.state_dict
    except ConfigError:
        raise
    except Exception as error:  # of the network and of datasets, which have no class in common
        reason = (str(error).splitlines() or [""])[0][:200]
        text = f"cannot read {name} from the Hugging Face hub ({type(error).__name__}: {reason})"
        raise ConfigError(f"{text}; the same command goes on where it stopped") from error


def hub_rows(name: str) -> Any:
    """The streamed rows of a dataset of the Hugging Face hub."""
    text = f"reading {name} needs the package datasets: "
    with raising(ConfigError, text, "; pip install datasets", of=ImportError):
        import datasets
    return datasets.load_dataset(name, split="train", streaming=True)
