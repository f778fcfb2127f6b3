"""Files read with suspicion and written whole.

What is read may come from anywhere: only regular files are opened (a FIFO or a device would hang,
a symbolic link would lead out of its folder), their size is checked before any of it is in memory,
and JSON is refused where two readers could understand it differently. What is written is written
beside its place and renamed into it, so that a reader sees it whole or not at all.
"""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import parse_json

MAX_JSON_BYTES = 1 << 26


MAX_LINE_BYTES = 1 << 20


RUN_FILES = frozenset(
    (
        "config.json",
        "provenance.json",
        "metrics.jsonl",
        "result.json",
        "measurements.json",
        ".lock",
        "checkpoints",
    )
)
"""Names in a run folder that are the run's own."""


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_there(path: Path) -> bool:
    """Whether anything, also a link that leads nowhere, has this name.

    Raises:
        StoreError: a name that no file can have, or a folder that cannot be searched.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {str(path)!r}: {error}") from error
    return True


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading, and nothing else.

    Raises:
        StoreError: no such file, another kind of file, or one that may not be read.
    """
    try:
        _check_kind(path, os.lstat(path).st_mode)  # before opening: some devices act on it
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(descriptor, "rb")
        _check_kind(path, os.fstat(descriptor).st_mode)
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    return file


def read_bytes(path: Path, *, limit: int) -> bytes:
    """The contents of a regular file.

    Raises:
        StoreError: as :func:`open_regular`, or a file larger than ``limit`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StoreError(
                f"{path} has {size:,} bytes; expected at most {limit:,}: it is no file of this run"
            )
        try:
            return file.read(limit)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error}") from error


def read_json(path: Path, *, advice: str = "restore it or remove it") -> Any:
    """The contents of a JSON file of at most 64 MiB; see :func:`schema.parse_json`.

    Raises:
        StoreError: a file that cannot be read or holds no valid JSON.
    """
    try:
        return parse_json(read_bytes(path, limit=MAX_JSON_BYTES).decode("utf-8"))
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}; {advice}") from error


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The finished lines of a file with their numbers; a last one without its end is left out.

    Raises:
        StoreError: a file that cannot be read, or a line of a mebibyte or more.
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
    """Where a file that a user asks for will lie: links are followed, nothing precious is replaced.

    To be called before the work whose result the file takes.

    Raises:
        StoreError: a folder, a device or the like, a file of a run, or a name that no file can
            have.
    """
    try:
        target = path.resolve()
        kind = target.lstat().st_mode if is_there(target) else stat.S_IFREG
    except (OSError, RuntimeError) as error:
        raise StoreError(f"cannot write {path}: {error}") from error
    if not stat.S_ISREG(kind):
        what = _KINDS.get(stat.S_IFMT(kind), "no regular file")
        raise StoreError(f"{path} is {what}; name a file")
    for run in target.parents:
        mine = target.relative_to(run).parts[0]
        if mine in RUN_FILES and ((run / "config.json").exists() or (run / "checkpoints").exists()):
            raise StoreError(f"{path} is a file of the run {run}; name another")
    return target


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user asks for, whole or not at all, creating its folder.

    Raises:
        StoreError: as :func:`output_file`, or a file that cannot be written.
    """
    target = output_file(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".anchor-interp-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
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
    """Write a new file and wait until it is on the disk; what had its name is unlinked first."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:  # x: through no link, into no FIFO
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise StoreError(f"{path} is {kind}; expected a regular file of the folder's own")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
