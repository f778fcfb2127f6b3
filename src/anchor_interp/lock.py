"""One writer at a time: the lock of a run folder."""

import dataclasses
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO, Any

from anchor_interp.errors import LockedError

STALE_AFTER_SECONDS = 600.0
"""A lock of another machine counts as held while its heartbeat is younger than this."""
BEAT_SECONDS = 10.0


@dataclasses.dataclass
class Lock:
    """An advisory lock that the kernel releases when the process dies.

    The file also says who holds it: for the message, and for file systems between machines on
    which advisory locks do not work.
    """

    file: IO[str]
    last_beat: float = 0.0

    @classmethod
    def acquire(cls, path: Path) -> "Lock":
        """Take the lock of a folder, creating its file.

        Raises:
            LockedError: another live process holds it; the message names it.
            OSError: the file cannot be written.
        """
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open as long as the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with file:
                raise LockedError(_held_by(path, _holder(file))) from error
        holder = _holder(file)
        elsewhere = holder.get("host", socket.gethostname()) != socket.gethostname()
        if elsewhere and time.time() - holder.get("heartbeat", 0.0) < STALE_AFTER_SECONDS:
            with file:
                raise LockedError(_held_by(path, holder))
        lock = cls(file)
        lock.beat()
        return lock

    def beat(self) -> None:
        """Say that the holder is alive, at most every ten seconds."""
        now = time.time()
        if abs(now - self.last_beat) >= BEAT_SECONDS:
            self.last_beat = now
            self.file.seek(0)
            self.file.truncate()
            holder = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": now}
            self.file.write(json.dumps(holder) + "\n")
            self.file.flush()

    def release(self) -> None:
        """Forget the holder and let others in."""
        with self.file:
            self.file.truncate(0)


def _holder(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        holder = json.loads(file.read(4096) or "{}")
    except (ValueError, RecursionError):
        return {}
    beats = isinstance(holder, dict) and isinstance(holder.get("heartbeat"), int | float)
    return holder if beats else {}


def _held_by(path: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown machine')}"
    return f"{path.parent} is being written by {who}; wait for it or stop it"
