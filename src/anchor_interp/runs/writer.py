"""Writes run folders, so that a kill at any moment costs only the steps since the last checkpoint.

A file is written beside its place and renamed into it. A checkpoint is a folder that is renamed
into place: the rename is its commit. So a reader sees a whole file or checkpoint, or none. The
layout is in :mod:`anchor_interp.runs.store`. No pickle is written.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from anchor_interp._util import files
from anchor_interp._util.errors import StoreError, raising
from anchor_interp._util.lock import Lock
from anchor_interp._util.schema import canonical_json, to_dict
from anchor_interp.runs.config import SCHEMA, RunConfig, run_id
from anchor_interp.runs.store import OPTIMIZER, STATE, WEIGHTS, Row, RunFolder
from anchor_interp.tasks.sequences import GENERATOR


@contextlib.contextmanager
def writing(path: Path, config: RunConfig) -> Iterator["RunWriter"]:
    """Hold a run folder for writing; it is created for this configuration if need be.

    Raises:
        LockedError: another process is writing; the message names it.
        StoreError: the folder holds something else or another run, or cannot be written.
    """
    with raising(StoreError, f"cannot write to the run folder {path}: ", of=OSError):
        path.mkdir(parents=True, exist_ok=True)
        inside = [] if files.is_there(path / "config.json") else sorted(path.iterdir())
        for foreign in (entry.name for entry in inside if not entry.name.startswith(".")):
            holds = f"{path} is not a run folder but holds {foreign!r}"
            raise StoreError(f"{holds}; give the run its own folder")
        lock = Lock.acquire(path / ".lock")
    with lock:
        writer = RunWriter(path, lock)
        if not files.is_there(path / "config.json"):
            writer.write_json("config.json", to_dict(config))
        elif run_id(stored := writer.config()) != run_id(config):
            advice = "choose another folder, or give the same configuration to resume it"
            raise StoreError(f"{path} holds another run: {_differences(stored, config)}; {advice}")
        yield writer


def _differences(stored: RunConfig, asked: RunConfig) -> str:
    """The fields in which two configurations differ, as ``train.lr 0.001 (asked: 0.002)``."""
    pairs: list[tuple[str, Any, Any]] = [("task", stored.task.kind, asked.task.kind)]
    for part in ("task", "model", "init", "train"):
        before, now = to_dict(getattr(stored, part)), to_dict(getattr(asked, part))
        common = [name for name in before if name in now]  # tasks of two kinds have other fields
        pairs += [(f"{part}.{name}", before[name], now[name]) for name in common]
    pairs.append(("seed", stored.seed, asked.seed))
    return ", ".join(
        f"{name} {before} (asked: {now})" for name, before, now in pairs if before != now
    )


@dataclasses.dataclass(frozen=True)
class RunWriter(RunFolder):
    """A run folder held for writing; see :func:`writing`."""

    lock: Lock

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """Write only into the folder that was locked; StoreError says why the system refuses."""
        try:
            self.lock.check_in_place()
            yield
        except OSError as error:
            self.lock.check_in_place()  # if the folder moved, that is the better reason
            raise StoreError(
                f"cannot write to the run folder: {error}; everything committed before is safe: "
                "remove the cause and give the same command again"
            ) from error

    def write_json(self, name: str, content: Row) -> None:
        """Write a JSON file of the run, whole or not at all."""
        with self._in_place():
            files.write_json(self.path / name, {"schema": SCHEMA, **content})

    def end_session(self, **facts: Any) -> None:
        """Add facts to the last session's entry."""
        *earlier, last = self.provenance() or [{}]
        self.write_json("provenance.json", {"sessions": [*earlier, last | facts]})

    def append_metrics(self, row: Row) -> None:
        """Append one line to ``metrics.jsonl``."""
        with self._in_place(), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(_metrics_line(row))

    def cut_metrics(self, last_step: int) -> list[Row]:
        """Drop the lines of later steps, which a resumed run writes again; returns the others."""
        kept = [row for row in self.metrics() if row["step"] <= last_step]
        with self._in_place():
            files.write_text(self.path / "metrics.jsonl", "".join(map(_metrics_line, kept)))
        return kept

    def save_checkpoint(
        self, step: int, weights: dict[str, Tensor], optimizer: dict[str, Tensor], keep_every: int
    ) -> None:
        """Commit a checkpoint and thin out the older ones; a committed one is never replaced."""
        if step in self.steps():
            return
        contents, records = {}, {}
        for name, tensors in ((WEIGHTS, weights), (OPTIMIZER, optimizer)):
            content = contents[name] = save(tensors, {"schema": str(SCHEMA)})
            records[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        state: Row = {"schema": SCHEMA, "step": step, "generator": GENERATOR}
        state |= {"run_id": run_id(self.config()), "files": records}
        contents[STATE] = (json.dumps(state, indent=1) + "\n").encode()
        self._commit(step, contents)
        self.thin_out(keep_every)

    def _commit(self, step: int, contents: Mapping[str, bytes]) -> None:
        """Write the files of a checkpoint, and rename their folder into place."""
        final = self.checkpoint(step)
        partial = final.with_name(f".{final.name}.partial")
        with self._in_place():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                for name, content in contents.items():
                    files.write_bytes(partial / name, content)
                files.sync(partial)
                if files.is_there(self.path / "metrics.jsonl"):
                    files.sync(self.path / "metrics.jsonl")
                partial.rename(final)
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)  # leave nothing behind on a full disk
                raise
            files.sync(final.parent)

    def thin_out(self, keep_every: int) -> None:
        """Remove older checkpoints, or, at a multiple of ``keep_every``, their optimizer states."""
        with self._in_place():
            for step in self.steps()[:-1]:
                if step % keep_every:
                    self._retire(step)
                else:
                    (self.checkpoint(step) / OPTIMIZER).unlink(missing_ok=True)
            for leftover in (self.path / "checkpoints").glob(".*.partial"):
                shutil.rmtree(leftover)

    def fall_back(self) -> int | None:
        """Drop the newest checkpoints until training can continue from one, and return its step."""
        steps = self.steps()
        usable = max(filter(self.can_continue, steps), default=None)
        if steps and usable is None:
            raise StoreError(
                f"training cannot continue from any checkpoint in {self.path / 'checkpoints'}: "
                "step 0 and all optimizer states are gone; restore one, or train elsewhere"
            )
        with self._in_place():
            for step in steps:
                if usable is not None and step > usable:
                    self._retire(step)
        return usable

    def _retire(self, step: int) -> None:
        """Rename a checkpoint, so that no reader sees half of one; it is removed later."""
        folder = self.checkpoint(step)
        folder.rename(folder.with_name(f".{folder.name}.partial"))


def _metrics_line(row: Row) -> str:
    return canonical_json({"schema": SCHEMA, **row}) + "\n"
