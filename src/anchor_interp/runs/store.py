"""Run folders on disk: the only module that writes them.

::

    RUN/  config.json        the configuration
          provenance.json    one entry a session: versions, machine, device, threads
          .lock              who is writing: host, pid, heartbeat
          metrics.jsonl      one line a logged step
          checkpoints/00000400/   weights.safetensors, optimizer.safetensors, state.json
          result.json        written last: its presence means that the run is done
          measurements.json  what was measured of its checkpoints

A file is written beside its place and renamed into it; a checkpoint is a folder that is renamed
into place, which is its commit. So a reader sees a file or checkpoint whole or not at all, and a
process killed at any moment loses the steps since the last checkpoint and nothing else. Optimizer
states are kept for the newest checkpoint only. No pickle is written or read.

Every file says its schema number: the JSON files and every line of metrics as ``schema``,
safetensors in their metadata. ``state.json`` also holds the run's identifier and the size and
SHA-256 of the checkpoint's tensors, which are checked when they are read. Where the first folders
of schema 1 have no such entry (state, metadata, metrics), they are read without that check.

Training writes float32 tensors. In a folder that is to be small (:mod:`anchor_interp.runs.zoo`) they may
be float16; what is read is given as float32.

Nothing in a run folder may be a symbolic link or a special file; the run folder itself may be
reached through a link. Lines that are missing in ``metrics.jsonl`` cost a run nothing but these
points of its curves, so training goes on and says so; a damaged ``provenance.json`` is set aside.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from anchor_interp import __version__
from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, UnknownSchemaError
from anchor_interp._util.schema import canonical_json, from_dict, parse_json, to_dict
from anchor_interp.models.shapes import n_parameters
from anchor_interp.runs.config import SCHEMA, RunConfig, run_id
from anchor_interp.runs.lock import Lock
from anchor_interp.tasks.sequences import GENERATOR

P = ParamSpec("P")


T = TypeVar("T")


Row = dict[str, Any]
"""One line of metrics, or one JSON file."""


MAX_HEADER_BYTES = 1 << 24
"""Largest header of a safetensors file."""


_STEP = re.compile(r"[0-9]{8,}")


_WEIGHTS, _OPTIMIZER, _STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The files of one run; reading needs no lock, writing happens through :meth:`writing`."""

    path: Path
    """The folder."""

    def config(self) -> RunConfig:
        """The run's configuration.

        Raises:
            StoreError: this is no run folder.
            ConfigError: ``config.json`` is damaged or of an unknown schema.
        """
        path = self.path / "config.json"
        if not files.is_there(path):
            raise StoreError(f"{self.path} is no run folder: it has no config.json")
        try:
            return from_dict(RunConfig, self._read(path))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending.

        Raises:
            StoreError: one that is no folder, such as a link out of the run folder.
        """
        root = self.path / "checkpoints"
        if not files.is_there(root):
            return []
        try:
            if root.is_symlink():
                raise NotADirectoryError("it is a symbolic link")
            with os.scandir(root) as entries:
                found = [entry for entry in entries if _STEP.fullmatch(entry.name)]
        except OSError as error:
            raise StoreError(f"cannot read {root}: {error}") from error
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                raise StoreError(f"{entry.path} is no folder of this run's own; remove it")
        return sorted(int(e.name) for e in found if e.name == f"{int(e.name):08d}")

    def metrics(self) -> list[Row]:
        """The lines of ``metrics.jsonl``; a last line cut off by a kill is left out.

        Raises:
            StoreError: a damaged line, or steps that do not ascend.
        """
        path = self.path / "metrics.jsonl"
        if not files.is_there(path):
            return []
        rows: list[Row] = []
        for number, line in files.read_lines(path):
            try:
                row = _metrics_row(line)
                if rows and row["step"] <= rows[-1]["step"]:
                    raise ValueError(f"step {row['step']} after step {rows[-1]['step']}")
            except ValueError as error:
                raise StoreError(
                    f"{path} is damaged in line {number}: {error}; remove that line"
                ) from error
            rows.append(row)
        return rows

    def result(self) -> Row | None:
        """The contents of ``result.json``, or None while the run is not done."""
        path = self.path / "result.json"
        return self._read(path) if files.is_there(path) else None

    def provenance(self) -> list[Row]:
        """One entry for each session that worked on the run."""
        path = self.path / "provenance.json"
        if not files.is_there(path):
            return []
        sessions = self._read(path).get("sessions")
        if not isinstance(sessions, list) or not all(isinstance(s, dict) for s in sessions):
            raise StoreError(f"{path} is damaged: it holds no sessions; remove it")
        return sessions

    def weights(self, step: int) -> dict[str, Tensor]:
        """Parameters of a checkpoint by name, on the CPU.

        Raises:
            StoreError: no such checkpoint, or a damaged one.
        """
        return self._tensors(step, _WEIGHTS)

    def optimizer(self, step: int) -> dict[str, Tensor]:
        """Optimizer state of the newest checkpoint by ``parameter/field``, on the CPU.

        Raises:
            StoreError: no such checkpoint, a damaged one, or one whose state was not kept.
        """
        return self._tensors(step, _OPTIMIZER)

    def checkpoint_files(self, step: int) -> dict[str, bytes]:
        """The files of a checkpoint by name, as they are, for a copy of it.

        Raises:
            StoreError: no such checkpoint, or a file that cannot be read.
        """
        folder = self._folder(step)
        if step not in self.steps():
            raise StoreError(f"{folder} does not exist; {self.path} has {self.steps()}")
        names = [name for name in (_WEIGHTS, _OPTIMIZER, _STATE) if files.is_there(folder / name)]
        limit = 8 * n_parameters(self.config().model) + MAX_HEADER_BYTES
        return {name: files.read_bytes(folder / name, limit=limit) for name in names}

    def checksums(self, step: int) -> Any:
        """What a checkpoint recorded of its weights: their size and SHA-256.

        Raises:
            StoreError: no such checkpoint, or one without a record.
        """
        state = self._read(self._folder(step) / _STATE)
        try:
            return state["files"][_WEIGHTS]
        except (LookupError, TypeError) as error:
            raise StoreError(f"{self._folder(step)} has no record of its weights") from error

    @contextlib.contextmanager
    def writing(self, config: RunConfig) -> Iterator["RunWriter"]:
        """Hold the folder for writing, creating it for this configuration if need be.

        Raises:
            LockedError: another process is writing; the message names it.
            StoreError: the folder holds something else, or a run of another configuration.
        """
        try:
            self._check_is_ours(config)
            self.path.mkdir(parents=True, exist_ok=True)
            lock = Lock.acquire(self.path / ".lock")
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise StoreError(f"cannot write to the run folder {self.path}: {error}") from error
        try:
            self._check_is_ours(config)
            writer = RunWriter(self.path, lock)
            writer.keep_config(config)
            yield writer
        finally:
            lock.release()

    def _read(self, path: Path) -> Row:
        """A JSON file of this folder, refused if it is of another schema."""
        advice = "restore it or remove it"
        if path.name == "config.json":  # without it the folder would be no run's
            advice = "restore it, or write the configuration into it that the run was started with"
        data = files.read_json(path, advice=advice)
        if not isinstance(data, dict):
            raise StoreError(f"{path} is damaged: it holds no object; {advice}")
        if "schema" not in data:
            raise StoreError(f"{path} is damaged: it has no schema; {advice}")
        if type(data["schema"]) is not int or data["schema"] != SCHEMA:
            found = data["schema"]
            raise UnknownSchemaError(f"{path} has schema {found!r:.40}; {self._reader()}")
        return data

    def _reader(self) -> str:
        """Which version reads the folder, where this one does not."""
        text = f"anchor-interp {__version__} reads schema {SCHEMA}: use the version that wrote it"
        try:
            last = files.read_json(self.path / "provenance.json")["sessions"][-1]
            wrote = str(last["versions"]["anchor-interp"])
        except (StoreError, LookupError, TypeError):
            return text
        return text if wrote == __version__ else f"{text}, {wrote:.40}"

    def _tensors(self, step: int, name: str) -> dict[str, Tensor]:
        folder = self.path / "checkpoints" / f"{step:08d}"
        path = folder / name
        if step not in self.steps() or not files.is_there(path):
            steps = ", ".join(map(str, self.steps())) or "none"
            raise StoreError(f"{path} does not exist; {self.path} has checkpoints at steps {steps}")
        state = self._read(folder / _STATE)
        if state.get("step") != step:
            raise StoreError(
                f"{folder} was written as step {state.get('step')!r:.40}; give it that name back"
            )
        if state.get("generator") != GENERATOR:
            raise StoreError(
                f"{folder} was trained on data of generator {state.get('generator')!r:.40}; this "
                f"version of anchor-interp draws with generator {GENERATOR}: use the other version"
            )
        config = self.config()
        if state.get("run_id", run_id(config)) != run_id(config):
            raise StoreError(f"{folder} is a checkpoint of another run; {self._without(step)}")
        # weights, or two moments and a step for each; an entry of the header takes some 100 bytes
        limit = 8 * n_parameters(config.model) + MAX_HEADER_BYTES
        try:
            data = files.read_bytes(path, limit=limit)
            _check_sum(state, name, data)
            return _read_tensors(data)
        except (SafetensorError, ValueError, StoreError) as error:
            what = str(error) if isinstance(error, StoreError) else f"{path} is damaged: {error}"
            raise StoreError(f"{what}; {self._without(step)}") from error

    def _without(self, step: int) -> str:
        """What to do about a checkpoint that cannot be used."""
        left = [s for s in self.steps() if s < step and self._can_continue(s)]
        begin = f"from step {left[-1]}" if left else "anew"
        what = "it and result.json" if files.is_there(self.path / "result.json") else "it"
        return f"restore {self._folder(step)}, or remove {what} and train {begin}"

    def _folder(self, step: int) -> Path:
        return self.path / "checkpoints" / f"{step:08d}"

    def _can_continue(self, step: int) -> bool:
        return step == 0 or files.is_there(self._folder(step) / _OPTIMIZER)

    def _check_is_ours(self, config: RunConfig) -> None:
        if not files.is_there(self.path):
            return
        if not self.path.exists():
            raise StoreError(f"{self.path} is a symbolic link that leads nowhere; remove it")
        if not self.path.is_dir():
            raise StoreError(f"{self.path} is a file; give the run a folder of its own")
        if not files.is_there(self.path / "config.json"):
            foreign = [name for name in os.listdir(self.path) if not name.startswith(".")]
            if foreign:
                raise StoreError(
                    f"{self.path} is no run folder but holds {foreign[0]!r}; give the run a "
                    "folder of its own"
                )
            return
        found = self.config()
        if run_id(found) != run_id(config):
            raise StoreError(
                f"{self.path} holds another run: {differences(found, config)}; choose another "
                "folder, or give the same configuration to resume it"
            )


def _explained(write: Callable[P, T]) -> Callable[P, T]:
    """Write only into the folder that was locked; turn the system's refusal into one error."""

    @functools.wraps(write)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T:
        writer = args[0]
        assert isinstance(writer, RunWriter)
        try:
            writer.lock.check_in_place()
            try:
                return write(*args, **kwargs)
            except OSError:
                writer.lock.check_in_place()  # the better reason, if it is one
                raise
        except OSError as error:
            raise StoreError(
                f"cannot write to the run folder: {error}; what was committed before is safe: "
                "mend the cause and give the same command again"
            ) from error

    return explained


@dataclasses.dataclass(frozen=True)
class RunWriter(RunFolder):
    """A run folder held for writing; see :meth:`RunFolder.writing`."""

    lock: Lock

    @_explained
    def check(self) -> None:
        """Refuse to go on if the folder was moved, removed or replaced; cheap enough for a step."""

    @_explained
    def keep_config(self, config: RunConfig) -> None:
        """Write ``config.json`` unless it is there."""
        if not files.is_there(self.path / "config.json"):
            files.write_json(self.path / "config.json", to_dict(config))

    @_explained
    def set_aside_damaged_provenance(self) -> str | None:
        """Rename a ``provenance.json`` that cannot be read, and say so; the run does not need it.

        Returns:
            What was done, or None if nothing was.
        """
        path = self.path / "provenance.json"
        try:
            self.provenance()
        except UnknownSchemaError:
            raise
        except StoreError as error:
            number = 1
            while files.is_there(aside := path.with_name(f"provenance.damaged-{number}.json")):
                number += 1
            path.rename(aside)
            return f"{error}; it is kept as {aside.name} and a new one is begun"
        return None

    @_explained
    def start_session(self, session: Row) -> None:
        """Append a session's entry to ``provenance.json``."""
        self._write_sessions([*self.provenance(), session])

    @_explained
    def end_session(self, **facts: Any) -> None:
        """Add facts to the last session's entry."""
        sessions = self.provenance() or [{}]
        self._write_sessions([*sessions[:-1], {**sessions[-1], **facts}])

    @_explained
    def append_metrics(self, row: Row) -> None:
        """Append one line to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(_metrics_line(row))

    @_explained
    def cut_metrics(self, last_step: int) -> None:
        """Drop the lines of later steps: those that a resumed run will write again."""
        kept = [_metrics_line(row) for row in self.metrics() if row["step"] <= last_step]
        files.write_text(self.path / "metrics.jsonl", "".join(kept))

    @_explained
    def save_checkpoint(
        self, step: int, weights: dict[str, Tensor], optimizer: dict[str, Tensor], keep_every: int
    ) -> None:
        """Commit a checkpoint, then thin out the older ones; a committed one is never replaced.

        Args:
            step: updates done.
            weights: parameters by name.
            optimizer: optimizer state by ``parameter/field``.
            keep_every: older checkpoints stay if their step is a multiple of this.
        """
        contents = {_WEIGHTS: weights, _OPTIMIZER: optimizer}
        if self._commit(step, lambda folder: self._write_checkpoint(folder, step, contents)):
            self.thin_out(keep_every)

    @_explained
    def copy_checkpoint(self, step: int, contents: Mapping[str, bytes], keep_every: int) -> None:
        """Commit a checkpoint that was made elsewhere; see :meth:`save_checkpoint`.

        Args:
            step: updates done.
            contents: :meth:`RunFolder.checkpoint_files`.
            keep_every: as there; nothing is thinned out for a checkpoint that training cannot
                continue from.
        """

        def write(folder: Path) -> None:
            for name in (_WEIGHTS, _OPTIMIZER, _STATE):
                if name in contents:
                    files.write_bytes(folder / name, contents[name])
            files.sync(folder)

        if self._commit(step, write) and self._can_continue(step):
            self.thin_out(keep_every)

    @_explained
    def copy_file(self, name: str, data: bytes) -> None:
        """Write a file of the run that was made elsewhere, whole or not at all."""
        partial = self.path / f".{name}.partial"
        files.write_bytes(partial, data)
        partial.replace(self.path / name)

    @_explained
    def copy_metrics(self, at: int, part: bytes) -> None:
        """Write a part of a ``metrics.jsonl`` that was made elsewhere; what followed is dropped.

        Args:
            at: where in the file it begins, in bytes; 0 replaces the file.
            part: whole lines.
        """
        if at == 0:
            self.copy_file("metrics.jsonl", part)
            return
        with open(self.path / "metrics.jsonl", "r+b") as file:
            file.truncate(at)
            file.seek(at)
            file.write(part)

    @_explained
    def thin_out(self, keep_every: int) -> None:
        """Remove what a finished run does not need; to be repeated until it has come to its end.

        Of the checkpoints before the newest, those at a multiple of ``keep_every`` lose their
        optimizer state and all others go, each renamed first, so that none is seen half removed.
        """
        root, steps = self.path / "checkpoints", self.steps()
        for step in steps[:-1]:
            folder = root / f"{step:08d}"
            if step % keep_every:
                folder.rename(root / f".{step:08d}.partial")
            else:
                (folder / _OPTIMIZER).unlink(missing_ok=True)
        for leftover in root.glob(".*.partial"):
            shutil.rmtree(leftover)

    @_explained
    def fall_back(self) -> int | None:
        """Drop the checkpoints that training cannot continue from, and say where it can.

        Returns:
            The newest step with an optimizer state, 0 where only the initial weights are left, or
            None without any checkpoint.
        """
        root, steps = self.path / "checkpoints", self.steps()
        if steps and not any(map(self._can_continue, steps)):
            raise StoreError(
                f"training cannot go on from any checkpoint in {root}: step 0 and all optimizer "
                "states are gone; restore one, or train into another folder"
            )
        for step in reversed(steps):
            if self._can_continue(step):
                return step
            (root / f"{step:08d}").rename(root / f".{step:08d}.partial")
        return None

    @_explained
    def finish(self, result: Row) -> None:
        """Write ``result.json``: the run is done."""
        files.write_json(self.path / "result.json", {"schema": SCHEMA, **result})

    @_explained
    def keep_fingerprint(self, found: Row) -> None:
        """Write ``fingerprint.json``, see :mod:`anchor_interp.analysis.fingerprint`."""
        files.write_json(self.path / "fingerprint.json", found)

    def _commit(self, step: int, write: Callable[[Path], None]) -> bool:
        """Let a checkpoint's files be written, then rename their folder; False if it was there."""
        root = self.path / "checkpoints"
        final, temporary = root / f"{step:08d}", root / f".{step:08d}.partial"
        if step in self.steps():
            return False
        shutil.rmtree(temporary, ignore_errors=True)
        root.mkdir(exist_ok=True)
        temporary.mkdir()
        try:
            write(temporary)
            if files.is_there(self.path / "metrics.jsonl"):
                files.sync(self.path / "metrics.jsonl")
            temporary.rename(final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)  # leave no litter on a full disk
            raise
        files.sync(root)
        return True

    def _write_sessions(self, sessions: list[Row]) -> None:
        files.write_json(self.path / "provenance.json", {"schema": SCHEMA, "sessions": sessions})

    def _write_checkpoint(
        self, folder: Path, step: int, contents: dict[str, dict[str, Tensor]]
    ) -> None:
        records = {}
        for name, tensors in contents.items():
            data = save(tensors, {"schema": str(SCHEMA)})
            files.write_bytes(folder / name, data)
            records[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        state = {"schema": SCHEMA, "step": step, "generator": GENERATOR}
        files.write_json(
            folder / _STATE, state | {"run_id": run_id(self.config()), "files": records}
        )
        files.sync(folder)


def differences(found: RunConfig, asked: RunConfig) -> str:
    """The fields in which two configurations differ, as ``train.lr 0.001 (asked: 0.002)``."""
    texts = []
    for part in ("task", "model", "init", "train"):
        mine, other = to_dict(getattr(found, part)), to_dict(getattr(asked, part))
        for name in mine:
            if mine[name] != other[name]:
                texts.append(f"{part}.{name} {mine[name]} (asked: {other[name]})")
    if found.seed != asked.seed:
        texts.append(f"seed {found.seed} (asked: {asked.seed})")
    return ", ".join(texts)


def _metrics_line(row: Row) -> str:
    return canonical_json({"schema": SCHEMA, **row}) + "\n"


def _metrics_row(line: bytes) -> Row:
    """A line of metrics without its schema number.

    Raises:
        ValueError: not a step and numbers, or of another schema.
    """
    row = parse_json(line.decode("utf-8"))
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ValueError("it has no step")
    schema = row.pop("schema", SCHEMA)
    if schema != SCHEMA:
        raise ValueError(f"schema {schema!r:.40}, this version reads {SCHEMA}")
    for name, value in row.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name[:40]!r} is {value!r:.40}, no number")
    return row


def _check_sum(state: Row, name: str, data: bytes) -> None:
    """Compare a file with what its checkpoint recorded, if it did.

    Raises:
        ValueError: it differs.
    """
    if "files" not in state:
        return
    records = state["files"]
    recorded = records.get(name) if isinstance(records, dict) else None
    if not isinstance(recorded, dict):
        raise ValueError(f"{_STATE} has no record of it")
    if recorded.get("bytes") != len(data):
        raise ValueError(
            f"it has {len(data):,} bytes and was written with {recorded.get('bytes')!r:.40}"
        )
    if recorded.get("sha256") != hashlib.sha256(data).hexdigest():
        raise ValueError("it was changed since it was written (its SHA-256 differs)")


def _read_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file in memory; the header cannot ask for more than is there.

    Returns:
        float32 tensors, whether the file has them as float32 or as float16.

    Raises:
        ValueError: another kind of file, another schema, or tensors of another type.
        SafetensorError: shapes, offsets and size that do not agree.
    """
    if data[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise ValueError("it is a pickle or a zip archive, which are never opened")
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise ValueError(f"it has {len(data):,} bytes; its header claims {length:,}")
    header = parse_json(data[8 : 8 + length].decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    metadata = header.pop("__metadata__", {})
    schema = metadata.get("schema", str(SCHEMA)) if isinstance(metadata, dict) else None
    if schema != str(SCHEMA):
        raise ValueError(f"it has schema {schema!r:.40}, this version reads {SCHEMA}")
    tensors: dict[str, Tensor] = load(data)
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"{name[:80]!r} is of {tensor.dtype}; expected torch.float32")
    return {name: tensor.float() for name, tensor in tensors.items()}
