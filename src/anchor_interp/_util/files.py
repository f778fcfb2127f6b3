"""Read files that may come from anywhere, and write files whole or not at all.

What is read has a largest size, and ambiguous JSON is refused. A file is written beside its place
and renamed into it, so a reader sees all of it or nothing.
"""

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any, Literal

from anchor_interp._util.errors import StoreError, raising
from anchor_interp._util.schema import parse_json

MAX_JSON_BYTES = 1 << 26
RUN_FILES = {"config.json", "provenance.json", "metrics.jsonl", "result.json"} | {
    "measurements.json", ".lock", ".lock.json", "checkpoints",
}  # fmt: skip
"""Names that belong to the run in a run folder."""
_MARKS = {"run": "config.json", "sweep": "spec.yaml"}
"""The file that makes a folder one of this kind."""


def cache_folder() -> Path:
    """Where this package keeps what it fetches; StoreError without HOME and XDG_CACHE_HOME."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError as error:
        raise StoreError(
            "this user has no home directory for ~/.cache; set HOME, or set XDG_CACHE_HOME to a "
            "folder that can be written"
        ) from error
    return caches / "anchor-interp"


def is_there(path: Path) -> bool:
    """Whether anything, even a broken link, has this name; StoreError if that cannot be seen."""
    with (
        raising(StoreError, f"cannot read {str(path)!r}: ", of=(OSError, ValueError)),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
    ):
        path.lstat()
        return True
    return False


def read_bytes(path: Path, *, limit: int) -> bytes:
    """The contents of a file; StoreError if it cannot be read or has more than ``limit`` bytes."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error  # the error itself names the path again
        raise StoreError(f"cannot read {path}: {reason}") from error
    if len(data) > limit:
        raise StoreError(f"{path} is too large; expected at most {limit:,} bytes")
    return data


def read_json(
    path: Path, *, advice: str = "restore it or remove it", limit: int = MAX_JSON_BYTES
) -> Any:
    """The contents of a JSON file; StoreError if it cannot be read or is not strict JSON."""
    data = read_bytes(path, limit=limit)
    with raising(StoreError, f"{path} is damaged: ", f"; {advice}", of=ValueError):
        content: Any = parse_json(data.decode("utf-8-sig"))
    return content


def output_folder(path: Path, what: str, *kinds: Literal["run", "sweep"]) -> Path:
    """A folder that a user names, to be asked before the work whose results it holds.

    StoreError if a file has its name or that of a folder above it, or if it is already the folder
    of one of these kinds; ``what`` is what is to go there.
    """
    if (file := _file_above(path)) is not None:
        where = "is a file" if file == path else f"lies in {file}, which is a file"
        raise StoreError(f"{path} {where}; name a folder for {what}")
    for kind in kinds:
        if is_there(path / _MARKS[kind]):
            raise StoreError(f"{path} is a {kind}'s folder; name another one for {what}")
    return path


def _file_above(folder: Path) -> Path | None:
    """What is not a folder among this one and those above it."""
    nearest = next(place for place in (folder, *folder.parents) if is_there(place))
    return None if nearest.is_dir() else nearest


def output_file(path: Path) -> Path:
    """The place of a file that a user names, to be asked before the work whose result it holds.

    Raises:
        StoreError: the path is a folder, a device or a file of a run, or the name is impossible.
    """
    with raising(StoreError, f"cannot write {path}: ", of=(OSError, RuntimeError)):
        target = path.resolve()
        is_replaceable = not target.exists() or target.is_file()
    if not is_replaceable:
        kind = "a folder" if target.is_dir() else "not a regular file"
        raise StoreError(f"{path} is {kind}; name a file")
    if (file := _file_above(path.parent)) is not None:
        raise StoreError(f"{path} lies in {file}, which is a file; name another")
    for run in target.parents:
        name = target.relative_to(run).parts[0]
        if name in RUN_FILES and ((run / "config.json").exists() or (run / "checkpoints").exists()):
            raise StoreError(f"{path} is a file of the run {run}; name another")
    return target


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user names, whole or not at all, and its folder; StoreError if not."""
    target = output_file(path)
    temporary = target.with_name(f".anchor-interp-{uuid.uuid4().hex}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_bytes(temporary, data)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    write_bytes(temporary, text.encode())
    temporary.replace(path)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
