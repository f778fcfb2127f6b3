"""Writes run folders, so that a kill at any moment costs only the steps since the last checkpoint.

A file is written beside its place and renamed into it. A checkpoint is a folder that is renamed
into place: the rename is its commit. So a reader sees a whole file or checkpoint, or none. The
layout is in :mod:`anchor_interp.runs.store`. No pickle is written.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from safetensors.torch import save
from torch import Tensor

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, UnknownSchemaError
from anchor_interp._util.lock import Lock
from anchor_interp._util.schema import canonical_json, to_dict
from anchor_interp.runs.config import SCHEMA, RunConfig, run_id
from anchor_interp.runs.store import OPTIMIZER, STATE, WEIGHTS, Row, RunFolder
from anchor_interp.tasks.sequences import GENERATOR

P = ParamSpec("P")
T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)


@contextlib.contextmanager
def writing(path: Path, config: RunConfig) -> Iterator["RunWriter"]:
    """Hold a run folder for writing; it is created for this configuration if need be.

    Raises:
        LockedError: another process is writing; the message names it.
        StoreError: the folder holds something else or another run, or cannot be written.
    """
    folder = RunFolder(path)
    try:
        _check_is_free(folder, config)
        path.mkdir(parents=True, exist_ok=True)
        lock = Lock.acquire(path / ".lock")
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write to the run folder {path}: {error}") from error
    try:
        _check_is_free(folder, config)  # again: another process may have begun a run meanwhile
        writer = RunWriter(path, lock)
        writer.keep_config(config)
        yield writer
    finally:
        lock.release()


def _check_is_free(folder: RunFolder, config: RunConfig) -> None:
    """Refuse a folder that does not belong to a run of this configuration."""
    path = folder.path
    if not files.is_there(path):
        return
    if not path.exists():
        raise StoreError(f"{path} is a broken symbolic link; remove it")
    if not path.is_dir():
        raise StoreError(f"{path} is a file; give the run its own folder")
    if not files.is_there(path / "config.json"):
        if foreign := [name for name in os.listdir(path) if not name.startswith(".")]:
            found = f"{path} is not a run folder but holds {foreign[0]!r}"
            raise StoreError(f"{found}; give the run its own folder")
        return
    if run_id(there := folder.config()) != run_id(config):
        advice = "choose another folder, or give the same configuration to resume it"
        raise StoreError(f"{path} holds another run: {differences(there, config)}; {advice}")


def differences(found: RunConfig, asked: RunConfig) -> str:
    """The fields in which two configurations differ, as ``train.lr 0.001 (asked: 0.002)``."""
    pairs: list[tuple[str, Any, Any]] = [("task", found.task.kind, asked.task.kind)]
    for part in ("task", "model", "init", "train"):
        mine, other = to_dict(getattr(found, part)), to_dict(getattr(asked, part))
        both = [name for name in mine if name in other]  # tasks of two kinds have other fields
        pairs += [(f"{part}.{name}", mine[name], other[name]) for name in both]
    pairs.append(("seed", found.seed, asked.seed))
    return ", ".join(
        f"{name} {mine} (asked: {other})" for name, mine, other in pairs if mine != other
    )


def _guarded(write: Callable[P, T]) -> Callable[P, T]:
    """Write only into the folder that was locked; StoreError says why the system refuses."""

    @functools.wraps(write)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        writer = args[0]
        assert isinstance(writer, RunWriter)
        try:
            writer.lock.check_in_place()
            try:
                return write(*args, **kwargs)
            except OSError:
                writer.lock.check_in_place()  # if the folder moved, that is the better reason
                raise
        except OSError as error:
            raise StoreError(
                f"cannot write to the run folder: {error}; everything committed before is safe: "
                "remove the cause and give the same command again"
            ) from error

    return guarded


@dataclasses.dataclass(frozen=True)
class RunWriter(RunFolder):
    """A run folder held for writing; see :func:`writing`."""

    lock: Lock

    @_guarded
    def check(self) -> None:
        """Refuse to go on if the folder was moved, removed or replaced; cheap enough per step."""

    @_guarded
    def keep_config(self, config: RunConfig) -> None:
        """Write ``config.json`` unless it exists."""
        if not files.is_there(self.path / "config.json"):
            files.write_json(self.path / "config.json", to_dict(config))

    @_guarded
    def start_session(self, session: Row) -> list[Row]:
        """Append to ``provenance.json``; returns the earlier entries. Sets a damaged file aside."""
        path = self.path / "provenance.json"
        try:
            earlier = self.provenance()
        except UnknownSchemaError:
            raise
        except StoreError as error:
            names = (f"provenance.damaged-{number}.json" for number in itertools.count(1))
            aside = next(p for p in map(path.with_name, names) if not files.is_there(p))
            path.rename(aside)
            _LOGGER.warning("%s; it is kept as %s and a new one starts", error, aside.name)
            earlier = []
        self._write_sessions([*earlier, session])
        return earlier

    @_guarded
    def end_session(self, **facts: Any) -> None:
        """Add facts to the last session's entry."""
        sessions = self.provenance() or [{}]
        self._write_sessions([*sessions[:-1], {**sessions[-1], **facts}])

    @_guarded
    def append_metrics(self, row: Row) -> None:
        """Append one line to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(_metrics_line(row))

    @_guarded
    def cut_metrics(self, last_step: int) -> None:
        """Drop the lines of later steps, which a resumed run writes again."""
        kept = [_metrics_line(row) for row in self.metrics() if row["step"] <= last_step]
        files.write_text(self.path / "metrics.jsonl", "".join(kept))

    @_guarded
    def save_checkpoint(
        self, step: int, weights: dict[str, Tensor], optimizer: dict[str, Tensor], keep_every: int
    ) -> None:
        """Commit a checkpoint and thin out the older ones; a committed one is never replaced."""
        contents, records = {}, {}
        for name, tensors in ((WEIGHTS, weights), (OPTIMIZER, optimizer)):
            data = contents[name] = save(tensors, {"schema": str(SCHEMA)})
            records[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        state: Row = {"schema": SCHEMA, "step": step, "generator": GENERATOR}
        state |= {"run_id": run_id(self.config()), "files": records}
        contents[STATE] = (json.dumps(state, indent=1) + "\n").encode()
        self.copy_checkpoint(step, contents, keep_every)

    @_guarded
    def copy_checkpoint(self, step: int, contents: Mapping[str, bytes], keep_every: int) -> None:
        """Commit a checkpoint from its files, as :meth:`RunFolder.checkpoint_files` gives them."""
        final = self.checkpoint(step)
        partial = final.with_name(f".{final.name}.partial")
        if step in self.steps():
            return
        shutil.rmtree(partial, ignore_errors=True)
        final.parent.mkdir(exist_ok=True)
        partial.mkdir()
        try:
            for name in (WEIGHTS, OPTIMIZER, STATE):
                if name in contents:
                    files.write_bytes(partial / name, contents[name])
            files.sync(partial)
            if files.is_there(self.path / "metrics.jsonl"):
                files.sync(self.path / "metrics.jsonl")
            partial.rename(final)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)  # leave nothing behind on a full disk
            raise
        files.sync(final.parent)
        if self.can_continue(step):
            self.thin_out(keep_every)

    @_guarded
    def copy_file(self, name: str, data: bytes) -> None:
        """Write a file of the run that another machine made, whole or not at all."""
        partial = self.path / f".{name}.partial"
        files.write_bytes(partial, data)
        partial.replace(self.path / name)

    @_guarded
    def thin_out(self, keep_every: int) -> None:
        """Remove every older checkpoint, or, at a multiple of ``keep_every``, its optimizer state.

        A removed one is renamed first, so no reader sees half of it. Safe to call again.
        """
        for step in self.steps()[:-1]:
            if step % keep_every:
                self._retire(step)
            else:
                (self.checkpoint(step) / OPTIMIZER).unlink(missing_ok=True)
        for leftover in (self.path / "checkpoints").glob(".*.partial"):
            shutil.rmtree(leftover)

    @_guarded
    def fall_back(self) -> int | None:
        """Drop the newest checkpoints until training can continue from one, and return its step."""
        steps = self.steps()
        if steps and not any(map(self.can_continue, steps)):
            raise StoreError(
                f"training cannot continue from any checkpoint in {self.path / 'checkpoints'}: "
                "step 0 and all optimizer states are gone; restore one, or train elsewhere"
            )
        for step in reversed(steps):
            if self.can_continue(step):
                return step
            self._retire(step)
        return None

    @_guarded
    def finish(self, result: Row) -> None:
        """Write ``result.json``: the run is done."""
        files.write_json(self.path / "result.json", {"schema": SCHEMA, **result})

    def _retire(self, step: int) -> None:
        folder = self.checkpoint(step)
        folder.rename(folder.with_name(f".{folder.name}.partial"))

    def _write_sessions(self, sessions: list[Row]) -> None:
        files.write_json(self.path / "provenance.json", {"schema": SCHEMA, "sessions": sessions})


def _metrics_line(row: Row) -> str:
    return canonical_json({"schema": SCHEMA, **row}) + "\n"
