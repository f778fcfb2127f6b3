"""Reads and writes run folders, so that a kill costs only the steps since the last checkpoint.

::

    RUN/  config.json        the configuration
          provenance.json    one entry per session: versions, machine, device, threads
          .lock              held while a process writes, which .lock.json names
          metrics.jsonl      one line per logged step
          checkpoints/00000400/   weights.safetensors, optimizer.safetensors, state.json
          result.json        written last: its presence means that the run is done
          measurements.json  what was measured of its checkpoints

A file is written beside its place and renamed into it. A checkpoint is a folder that is renamed
into place: the rename is its commit. So a reader sees a whole file or checkpoint, or none.

Every file carries a schema number, and a file of another schema is refused. ``state.json`` records
the SHA-256 of the checkpoint's tensors, which reading checks. No pickle is read or written.
Only the newest checkpoint has an optimizer state. Tensors are float32; those of specimens are
stored in float16. Only reading and writing tensors loads torch.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp import __version__
from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, UnknownSchemaError, raising
from anchor_interp._util.lock import Lock
from anchor_interp._util.schema import canonical_json, from_dict, parse_json, shown, to_dict
from anchor_interp.runs.config import SCHEMA, RunConfig, run_id
from anchor_interp.tasks.sequences import GENERATOR

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]
"""One line of metrics, or the contents of one JSON file."""

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
"""Files of a checkpoint."""
_MOST_METRICS = 1 << 32  # bytes: of many millions of steps


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The files of one run. Reading needs no lock: files and checkpoints appear whole.

    Every method raises StoreError if what it reads is missing, damaged or not what it should be.
    """

    path: Path

    def config(self) -> RunConfig:
        """The run's configuration; ConfigError if a value in it is not allowed."""
        path = self.path / "config.json"
        if not files.is_there(path):
            raise StoreError(f"{self.path} is not a run folder: {_lacks(self.path)}")
        with raising(ConfigError, f"{path}: "):
            config: RunConfig = from_dict(RunConfig, self._read(path))
        return config

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending."""
        root = self.path / "checkpoints"
        with raising(StoreError, f"cannot read {root}: ", of=OSError):
            names = os.listdir(root) if files.is_there(root) else []
        steps = {int(name) for name in names if name.isdecimal()}
        return sorted(step for step in steps if self.checkpoint(step).name in names)

    def metrics(self) -> list[Row]:
        """The lines of ``metrics.jsonl``, without a last line that a kill cut off."""
        path = self.path / "metrics.jsonl"
        rows: list[Row] = []
        text = files.read_bytes(path, limit=_MOST_METRICS) if files.is_there(path) else b""
        for number, line in enumerate(text.split(b"\n")[:-1], 1):
            damaged = f"{path} is damaged in line {number}: "
            with raising(StoreError, damaged, "; remove that line", of=ValueError):
                row = self._checked(path, parse_json(line.decode("utf-8")))
                del row["schema"]
                step, after = row.get("step"), rows[-1]["step"] if rows else -1
                if type(step) is not int or {type(v) for v in row.values()} - {int, float}:
                    raise ValueError("it does not hold a step and numbers")
                if step <= after:
                    raise ValueError(f"step {step} after step {after}")
            rows.append(row)
        return rows

    def result(self) -> Row | None:
        """The contents of ``result.json``, or None while the run is not done."""
        path = self.path / "result.json"
        return self._read(path) if files.is_there(path) else None

    def provenance(self) -> list[Row]:
        """One entry per session."""
        return self._entries("provenance.json", "sessions")

    def data(self) -> str | None:
        """The digest of the data that the run was started with, if its task reads files."""
        return next((entry["data"] for entry in self.provenance() if "data" in entry), None)

    def measurements(self) -> list[Row]:
        """The entries of ``measurements.json`` (:mod:`anchor_interp.runs.measurements`)."""
        return self._entries("measurements.json", "measurements")

    def weights(self, step: int) -> "dict[str, Tensor]":
        """Parameters of a checkpoint by name, float32 on the CPU."""
        return self._tensors(step, WEIGHTS)

    def optimizer(self, step: int) -> "dict[str, Tensor]":
        """Optimizer state of a checkpoint by ``parameter/field``, on the CPU."""
        return self._tensors(step, OPTIMIZER)

    def weights_digest(self, step: int) -> str:
        """The recorded SHA-256 of a checkpoint's weights, which reading them checks."""
        return self._record(self._read(self.checkpoint(step) / STATE), WEIGHTS)[1]

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if it exists."""
        return self.path / "checkpoints" / f"{step:08d}"

    def can_continue(self, step: int) -> bool:
        """Whether training can go on from a committed checkpoint."""
        return step == 0 or files.is_there(self.checkpoint(step) / OPTIMIZER)

    def _read(self, path: Path) -> Row:
        """A JSON object of this folder."""
        advice = "restore it or remove it"
        if path.name == "config.json":  # without it this would not be a run folder
            advice = "restore it, or write the configuration that the run was started with"
        content = files.read_json(path, advice=advice)
        with raising(StoreError, f"{path} is damaged: ", f"; {advice}", of=ValueError):
            row: Row = self._checked(path, content)
        return row

    def _entries(self, file: str, name: str) -> list[Row]:
        """The list of this name in a JSON file; empty if there is no file."""
        path = self.path / file
        entries: Any = self._read(path).get(name) if files.is_there(path) else []
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise StoreError(f"{path} is damaged: no list of {name}; restore it or remove it")
        return entries

    def _checked(self, path: Path, content: Any) -> Row:
        """ValueError without a schema; UnknownSchemaError if another version wrote it."""
        if not isinstance(content, dict) or "schema" not in content:
            raise ValueError("it is not an object with a schema")
        if (schema := content["schema"]) is True or schema != SCHEMA:
            raise UnknownSchemaError(
                f"{path} has schema {schema!r:.40}; anchor-interp {__version__} reads schema "
                f"{SCHEMA}: use the version that wrote it: sessions[-1].versions of provenance.json"
            )
        return content

    def _record(self, state: Row, name: str) -> tuple[int, str]:
        """Bytes and SHA-256 that ``state.json`` records of a file of its checkpoint."""
        lacks = f"{STATE} of step {state.get('step')} has no record of {name}: "
        with raising(StoreError, lacks, of=(LookupError, TypeError, ValueError)):
            record = state["files"][name]
            return int(record["bytes"]), str(record["sha256"])

    def _tensors(self, step: int, name: str) -> "dict[str, Tensor]":
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder, file = self.checkpoint(step), self.checkpoint(step) / name
        if not files.is_there(folder / STATE):
            raise StoreError(f"{folder} has no {STATE}; {self._repair(step)}")
        state = self._read(folder / STATE)
        if (generator := state.get("generator")) != GENERATOR:
            raise StoreError(
                f"{folder} was trained on data of generator {generator!r:.40}; this version of "
                f"anchor-interp has generator {GENERATOR}: use the version that wrote it"
            )
        errors = (SafetensorError, StoreError, OSError)
        with raising(StoreError, "", f"; {self._repair(step)}", of=errors):
            if (state.get("step"), state.get("run_id")) != (step, run_id(self.config())):
                raise StoreError(f"{folder} is a checkpoint of another run or step")
            n_bytes, digest = self._record(state, name)
            content = files.read_bytes(file, limit=min(n_bytes, file.stat().st_size))
            if hashlib.sha256(content).hexdigest() != digest:
                raise StoreError(f"{file} was changed since it was written (its SHA-256 differs)")
            tensors = load(content)
        return {name: tensor.float() for name, tensor in tensors.items()}

    def _repair(self, step: int) -> str:
        """What to do about a checkpoint that cannot be used."""
        earlier = [s for s in self.steps() if s < step and self.can_continue(s)]
        begin = f"from step {earlier[-1]}" if earlier else "from the start"
        what = "it and result.json" if files.is_there(self.path / "result.json") else "it"
        return f"restore {self.checkpoint(step)}, or remove {what} and train {begin}"


def _lacks(path: Path) -> str:
    """Why it is not a run folder, and what to do."""
    if path.is_file():
        return "it is a file; anchor_interp.load_transformer and analyze --task open safetensors"
    if not files.is_there(path):
        return "there is nothing of this name"
    if runs := sorted(file.parent.name for file in path.glob("*/config.json")):
        return f"it holds the runs {shown(runs)[1:-1]}; name one or more of them"
    return "it has no config.json"


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
        self,
        step: int,
        weights: "dict[str, Tensor]",
        optimizer: "dict[str, Tensor]",
        keep_every: int,
    ) -> None:
        """Commit a checkpoint and thin out the older ones; a committed one is never replaced."""
        from safetensors.torch import save

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
