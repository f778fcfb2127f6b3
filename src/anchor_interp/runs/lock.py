"""One writer at a time: the lock of a run folder."""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import LockedError, StoreError
from anchor_interp._util.files import open_regular
from anchor_interp._util.schema import parse_json

STALE_AFTER_SECONDS = 600.0
"""A lock of another machine counts as held while its heartbeat is younger than this."""
BEAT_SECONDS = 10.0
MISSED_BEATS = 6
"""A lock of this machine counts as abandoned after this many missed heartbeats."""
_MOST_BYTES = 4096
# neither wait for the other end of a FIFO nor follow a link out of the folder
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True)
class Lock:
    """An advisory lock, which the kernel releases when the process dies.

    The file also names the holder: for messages, and for file systems shared between machines
    where advisory locks do not work. A thread renews its heartbeat, however long a step takes.
    """

    path: Path
    descriptor: int
    released: threading.Event = dataclasses.field(default_factory=threading.Event)
    closing: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @classmethod
    def acquire(cls, path: Path) -> "Lock":
        """Take the lock of a folder, creating its file.

        Raises:
            LockedError: another live process holds it; the message names it.
        """
        lock = cls(path, os.open(path, _OPEN | os.O_CREAT, 0o666))
        try:
            if not stat.S_ISREG(os.fstat(lock.descriptor).st_mode):
                raise StoreError(f"{path} is not a regular file; remove it")
            is_free = try_lock(lock.descriptor)
            holder = _holder(lock.descriptor)
            held = (
                f"{path.parent} is being written by process {holder.get('pid', '?')} on "
                f"{holder.get('host', 'an unknown machine')}"
            )
            if not is_free:
                raise LockedError(f"{held}; wait for it or stop it")
            age = time.time() - holder.get("heartbeat", 0.0)
            elsewhere = holder.get("host", socket.gethostname()) != socket.gethostname()
            if elsewhere and age < STALE_AFTER_SECONDS:
                beat = f"{age:.0f} s ago" if age >= 0 else f"dated {-age:.0f} s ahead of this clock"
                raise LockedError(
                    f"{held} (last heartbeat {beat}); wait for it or stop it; if it is gone, "
                    f"remove {path}"
                )
            lock.beat()
            lock.check_in_place()
        except BaseException:
            os.close(lock.descriptor)
            raise
        threading.Thread(target=lock._keep_beating, daemon=True).start()
        return lock

    def beat(self) -> None:
        """Write who holds the lock and the time."""
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}
        text = (json.dumps(facts).ljust(160) + "\n").encode()  # fixed length: never half old
        os.pwrite(self.descriptor, text, 0)  # before truncating: a full disk still has room
        os.ftruncate(self.descriptor, len(text))

    def check_in_place(self) -> None:
        """Raise StoreError if the folder is no longer the one that was locked."""
        in_place = False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            in_place = os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor))
        if not in_place:
            raise StoreError(
                f"{self.path.parent} or its {self.path.name} was moved, removed or replaced while "
                "this process was writing it; nothing more is written: put the folder back and "
                "give the same command again"
            )

    def release(self) -> None:
        """Forget the holder and let others in."""
        self.released.set()
        with self.closing, contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)

    def _keep_beating(self) -> None:
        while not self.released.wait(BEAT_SECONDS):
            with self.closing, contextlib.suppress(OSError):  # the next write reports the cause
                if not self.released.is_set():
                    self.beat()


def is_held(path: Path) -> bool:
    """Whether a lock seems to be held, judged by its file alone; only taking it proves it.

    This takes no lock, so it disturbs nobody. A holder on this machine must be alive and beating;
    one elsewhere counts as long as :meth:`Lock.acquire` would refuse.
    """
    try:
        with open_regular(path) as file:
            holder = _holder(file.fileno())
    except StoreError:
        return False
    age: float = time.time() - holder.get("heartbeat", 0.0)
    if holder.get("host") != socket.gethostname():
        return age < STALE_AFTER_SECONDS
    pid: Any = holder.get("pid")
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # it is alive
    except (OSError, OverflowError, TypeError):
        return False
    return age < MISSED_BEATS * BEAT_SECONDS


def forget(path: Path, host: str, pid: int) -> None:
    """Take the lock from a process known to have died, if it still seems to hold it.

    If the process lives after all, it finds its lock gone and writes nothing more.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:  # the lock was never taken
        return
    try:
        holder = _holder(descriptor)
        if (holder.get("host"), holder.get("pid")) == (host, pid):
            if try_lock(descriptor):
                os.ftruncate(descriptor, 0)
            else:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the kernel's lock of a file, if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> dict[str, Any]:
    """The holder that a lock's file names; empty if it cannot be read."""
    try:
        holder = parse_json((os.pread(descriptor, _MOST_BYTES, 0) or b"{}").decode("utf-8"))
    except ValueError:
        return {}
    beats = isinstance(holder, dict) and type(holder.get("heartbeat")) in (int, float)
    return holder if beats else {}
