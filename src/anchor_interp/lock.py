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

from anchor_interp.errors import LockedError, StoreError
from anchor_interp.schema import parse_json

STALE_AFTER_SECONDS = 600.0
"""A lock of another machine counts as held while its heartbeat is younger than this."""
BEAT_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Lock:
    """An advisory lock that the kernel releases when the process dies.

    The file also says who holds it: for the message, and for file systems between machines on
    which advisory locks do not work. A thread renews its heartbeat, however long a step or an
    evaluation takes.
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
            StoreError: the lock's name is taken by something else than a regular file.
            OSError: the file cannot be written.
        """
        # neither waits for the other end of a FIFO nor follows a link out of the folder
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = cls(path, os.open(path, flags, 0o666))
        try:
            if not stat.S_ISREG(os.fstat(lock.descriptor).st_mode):
                raise StoreError(f"{path} is no regular file; remove it")
            try:
                fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockedError(f"{lock.held_by()}; wait for it or stop it") from error
            holder = lock.holder()
            age = time.time() - holder.get("heartbeat", 0.0)
            elsewhere = holder.get("host", socket.gethostname()) != socket.gethostname()
            if elsewhere and age < STALE_AFTER_SECONDS:
                sign = f"{age:.0f} s ago" if age >= 0 else f"dated {-age:.0f} s ahead of this clock"
                raise LockedError(
                    f"{lock.held_by()} (last sign of life {sign}); wait for it or stop it; if it "
                    f"is gone, remove {path}"
                )
            lock.beat()
            lock.check_in_place()
        except BaseException:
            os.close(lock.descriptor)
            raise
        threading.Thread(target=lock._keep_beating, daemon=True).start()
        return lock

    def beat(self) -> None:
        """Say who holds the lock and that it is alive."""
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}
        text = (json.dumps(facts).ljust(160) + "\n").encode()  # of one length: never half old
        os.pwrite(self.descriptor, text, 0)  # first, so that a full disk has room for it
        os.ftruncate(self.descriptor, len(text))

    def check_in_place(self) -> None:
        """Refuse to go on if the folder is no longer the one that was locked.

        Raises:
            StoreError: the folder or its lock was moved, removed or replaced.
            OSError: the folder cannot be searched.
        """
        mine = os.fstat(self.descriptor)
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino):
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

    def holder(self) -> dict[str, Any]:
        """Who says to hold the lock; nothing if that cannot be read."""
        try:
            holder = parse_json((os.pread(self.descriptor, 4096, 0) or b"{}").decode("utf-8"))
        except ValueError:
            return {}
        beats = isinstance(holder, dict) and type(holder.get("heartbeat")) in (int, float)
        return holder if beats else {}

    def held_by(self) -> str:
        """A sentence that names the holder."""
        holder = self.holder()
        who = f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown machine')}"
        return f"{self.path.parent} is being written by {who}"

    def _keep_beating(self) -> None:
        while not self.released.wait(BEAT_SECONDS):
            with self.closing, contextlib.suppress(OSError):  # a failed write says it elsewhere
                if not self.released.is_set():
                    self.beat()
