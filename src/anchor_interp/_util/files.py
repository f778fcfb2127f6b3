"""Read files that may come from anywhere, and write files whole or not at all.

Only regular files are opened: a FIFO or a device would hang, and a symbolic link would lead out of
its folder. The size is checked before anything is read, and ambiguous JSON is refused. A file is
written beside its place and renamed into it, so a reader sees all of it or nothing.
"""

import json
import os
import stat
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import parse_json

MAX_JSON_BYTES = 1 << 26
MAX_LINE_BYTES = 1 << 20
RUN_FILES = {"config.json", "provenance.json", "metrics.jsonl", "result.json"} | {
    "measurements.json", ".lock", ".lock.json", "checkpoints",
}  # fmt: skip
"""Names that belong to the run in a run folder."""
ONLY_SAFETENSORS = (
    "it looks like a file of torch.save, and only safetensors is read; "
    "model.load_state_dict(torch.load(path)) fills its HookedTransformer, and "
    "anchor_interp.runs.export.save_transformer writes that (of a state_dict alone, written with "
    "safetensors.torch.save_file, only the complexity can be measured)"
)
"""What to do with a file that :func:`is_pickled`."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def cache_folder() -> Path:
    """Where this package keeps what it fetches or prepares: ``~/.cache/anchor-interp``.

    Raises:
        StoreError: the user has no home directory, and XDG_CACHE_HOME is not set.
    """
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError as error:
        raise StoreError(
            "this user has no home directory for ~/.cache; set HOME, or set XDG_CACHE_HOME to a "
            "folder that can be written"
        ) from error
    return caches / "anchor-interp"


def is_there(path: Path) -> bool:
    """Whether anything has this name, even a broken link.

    Raises:
        StoreError: the name is impossible, or the folder cannot be searched.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {str(path)!r}: {error}") from error
    return True


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises:
        StoreError: the file does not exist, is not a regular file or may not be read.
    """
    try:
        _check_kind(path, os.lstat(path).st_mode)  # before opening: some devices act on it
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(descriptor, "rb")
        _check_kind(path, os.fstat(descriptor).st_mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error  # the error itself names the path again
        raise StoreError(f"cannot read {path}: {reason}") from error
    return file


def is_pickled(path: Path) -> bool:
    """Whether a regular file looks like one of ``torch.save``: a pickle, or a zip with one."""
    try:
        path = path.resolve()
        if not path.is_file():
            return False
    except (OSError, ValueError, RuntimeError):  # a name that is impossible, a loop of links
        return False
    with open_regular(path) as file:
        start = file.read(4)
        if start.startswith(b"PK\x03\x04"):
            try:
                return any(name.endswith("/data.pkl") for name in zipfile.ZipFile(file).namelist())
            except zipfile.BadZipFile:
                return False
    return start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))


def read_bytes(path: Path, *, limit: int) -> bytes:
    """The contents of a regular file.

    Raises:
        StoreError: as :func:`open_regular`, or the file has more than ``limit`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StoreError(
                f"{path} has {size:,} bytes; expected at most {limit:,}, too many for a run"
            )
        try:
            return file.read(limit)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error}") from error


def read_json(path: Path, *, advice: str = "restore it or remove it") -> Any:
    """The contents of a JSON file of at most 64 MiB; see :func:`schema.parse_json`.

    Raises:
        StoreError: the file cannot be read or does not hold valid JSON.
    """
    try:
        return parse_json(read_bytes(path, limit=MAX_JSON_BYTES).decode("utf-8"))
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}; {advice}") from error


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The complete lines of a file with their numbers; an unfinished last line is left out.

    Raises:
        StoreError: the file cannot be read, or a line has 1 MiB or more.
    """
    with open_regular(path) as file:
        number = 0
        while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            number += 1
            yield number, line
        if len(line) == MAX_LINE_BYTES:
            raise StoreError(
                f"{path} is damaged in line {number + 1}: it is longer than {MAX_LINE_BYTES:,} "
                "bytes; remove that line"
            )


def output_file(path: Path) -> Path:
    """The place of a file that a user names: links are followed, files of runs are refused.

    Call this before the work whose result goes into the file.

    Raises:
        StoreError: the path is a folder, a device or a file of a run, or the name is impossible.
    """
    try:
        target = path.resolve()
        mode = target.lstat().st_mode if is_there(target) else stat.S_IFREG
    except (OSError, RuntimeError) as error:
        raise StoreError(f"cannot write {path}: {error}") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is {_kind(mode)}; name a file")
    for run in target.parents:
        mine = target.relative_to(run).parts[0]
        if mine in RUN_FILES and ((run / "config.json").exists() or (run / "checkpoints").exists()):
            raise StoreError(f"{path} is a file of the run {run}; name another")
    return target


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user names, whole or not at all; its folder is created.

    Raises:
        StoreError: as :func:`output_file`, or the file cannot be written.
    """
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
    """Write a new file and wait until it is on disk; an old file of this name is unlinked first."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:  # x: through no link, into no FIFO
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


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is {_kind(mode)}; expected a regular file in its own folder")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "not a regular file")
