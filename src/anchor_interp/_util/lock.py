"""One writer at a time: the lock of a folder.

The kernel holds the lock, on an empty file, and releases it when the process dies. Beside it a file
such as ``.lock.json`` names the owner: for messages, for those who only look, and for folders that
machines share although the kernel's locks do not reach from one to the other. A thread renews that
file's time, however long a step takes: its age says whether the owner still works.
"""

import contextlib
import errno
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from anchor_interp._util.errors import LockedError, StoreError
from anchor_interp._util.files import read_json, write_json

STALE_SECONDS = 600.0
"""A lock of another machine counts as held while its owner's file is younger than this."""
BEAT_SECONDS = 10.0
MISSED_BEATS = 6
"""A lock of this machine counts as abandoned after this many missed beats."""
_POLL_SECONDS = 0.1
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}


class NoLocksError(StoreError):
    """The file system has no locks."""


@dataclass(frozen=True)
class Owner:
    """The process that a lock's second file names: it holds the lock, or died with it."""

    host: str
    pid: int
    age: float
    """Seconds since it last renewed the file; negative if the file system's clock is ahead."""

    @classmethod
    def of(cls, path: Path) -> "Owner | None":
        """The owner of the lock at a path; None if the lock is free or the file is damaged."""
        file = _owner_file(path)
        with contextlib.suppress(OSError, StoreError, LookupError, TypeError, ValueError):
            data = read_json(file)
            return cls(str(data["host"]), int(data["pid"]), time.time() - file.stat().st_mtime)
        return None

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether it renews its file; one on this machine must also run."""
        if not self.is_here:
            return self.age < STALE_SECONDS
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            pass  # it is another user's
        except (OSError, OverflowError):
            return False
        return self.age < MISSED_BEATS * BEAT_SECONDS


@dataclass(frozen=True)
class Lock:
    """A lock that this process holds; a ``with`` block releases it at its end."""

    path: Path
    kernel: BaseFileLock
    file: os.stat_result
    """The file that was locked, which may have been moved or replaced since."""
    released: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def acquire(cls, path: Path, *, patience: float = 0.0) -> "Lock":
        """Take the lock of a folder, creating its file; wait ``patience`` seconds if it is held.

        Raises:
            LockedError: another live process holds it; the message names it.
            NoLocksError: the file system has no locks.
        """
        kernel = FileLock(path, thread_local=False, fallback_to_soft=False)
        until = time.monotonic() + patience
        while (obstacle := _obstacle(kernel, path)) is not None:
            if time.monotonic() >= until:
                raise LockedError(obstacle)
            time.sleep(_POLL_SECONDS)
        with contextlib.ExitStack() as failed:
            failed.callback(kernel.release)
            lock = cls(path, kernel, path.lstat())
            write_json(_owner_file(path), {"host": socket.gethostname(), "pid": os.getpid()})
            failed.pop_all()
        threading.Thread(target=lock._keep_beating, daemon=True).start()
        return lock

    def check_in_place(self) -> None:
        """Raise StoreError if the folder is no longer the one that was locked."""
        if not self._is_in_place():
            raise StoreError(
                f"{self.path.parent} or its {self.path.name} was moved, removed or replaced while "
                "this process was writing it; nothing more is written: put the folder back and "
                "give the same command again"
            )

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Forget the owner and let others in."""
        self.released.set()
        if self._is_in_place():
            with contextlib.suppress(OSError):
                _owner_file(self.path).unlink()
        self.kernel.release()

    def _is_in_place(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(self.path.lstat(), self.file)
        return False

    def _keep_beating(self) -> None:
        while not self.released.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # the next write reports the cause
                os.utime(_owner_file(self.path))


def is_held(path: Path) -> bool:
    """Whether a lock seems to be held, judged by its owner's file; only taking it proves it."""
    owner = Owner.of(path)
    return owner is not None and owner.is_alive


def forget(path: Path, host: str, pid: int) -> None:
    """Take the lock from a process known to have died; if it lives, it writes nothing more."""
    owner = Owner.of(path)
    if owner is not None and (owner.host, owner.pid) == (host, pid):
        path.unlink(missing_ok=True)
        _owner_file(path).unlink(missing_ok=True)


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _obstacle(kernel: BaseFileLock, path: Path) -> str | None:
    """Take the kernel's lock and return None, or say who holds it."""
    try:
        kernel.acquire(blocking=False)
    except Timeout:
        return f"{_held_by(path, Owner.of(path))}; wait for it or stop it"
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise NoLocksError(
            f"the file system of {path.parent} has no locks ({error.strerror}), which keep two "
            "processes from writing one folder; choose a folder on a local disk, or mount the file "
            "system with locks, as -o flock does for Lustre"
        ) from error
    owner = Owner.of(path)
    if owner is None or owner.is_here or not owner.is_alive:
        return None
    kernel.release()
    return (
        f"{_held_by(path, owner)}, which last showed signs of life {owner.age:.0f} s ago; wait for "
        f"it or stop it; if it is gone, remove {_owner_file(path)}"
    )


def _held_by(path: Path, owner: Owner | None) -> str:
    who = "another process" if owner is None else f"process {owner.pid} on {owner.host}"
    return f"{path.parent} is being written by {who}"
