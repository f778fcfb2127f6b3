"""Run folders on disk: the only module that writes them.

::

    RUN/  config.json        the configuration
          provenance.json    one entry a session: versions, machine, device, threads
          .lock              who is writing: host, pid, heartbeat
          metrics.jsonl      one line a logged step
          checkpoints/00000400/   weights.safetensors, optimizer.safetensors, state.json
          result.json        written last: its presence means that the run is done

A file is written beside its place and renamed into it; a checkpoint is a folder that is renamed
into place, which is its commit. So a reader sees a file or checkpoint whole or not at all, and a
process killed at any moment loses the steps since the last checkpoint and nothing else. Optimizer
states are kept for the newest checkpoint only. No pickle is written or read.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from anchor_interp.config import SCHEMA, RunConfig, read_config, run_id
from anchor_interp.data import GENERATOR
from anchor_interp.errors import ConfigError, StoreError
from anchor_interp.lock import Lock
from anchor_interp.schema import canonical_json, parse_json, to_dict

P = ParamSpec("P")
T = TypeVar("T")
Row = dict[str, Any]
"""One line of metrics, or one JSON file."""

MAX_JSON_BYTES = 1 << 26
_STEP = re.compile(r"\d{8,}")
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
        if not (self.path / "config.json").is_file():
            raise StoreError(f"{self.path} is no run folder: it has no config.json")
        return read_config(self.path / "config.json")

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending."""
        folder = self.path / "checkpoints"
        names = os.listdir(folder) if folder.is_dir() else []
        return sorted(int(name) for name in names if _STEP.fullmatch(name))

    def metrics(self) -> list[Row]:
        """The lines of ``metrics.jsonl``; a last line cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        rows = []
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    break
                try:
                    row = parse_json(line)
                    if type(row["step"]) is not int:
                        raise ValueError(f"step is {row['step']!r}")
                except (ValueError, KeyError, TypeError) as error:
                    raise StoreError(
                        f"{path} is damaged in line {number}: {error}; remove that line"
                    ) from error
                rows.append(row)
        return rows

    def result(self) -> Row | None:
        """The contents of ``result.json``, or None while the run is not done."""
        path = self.path / "result.json"
        return _read_json(path) if path.is_file() else None

    def provenance(self) -> list[Row]:
        """One entry for each session that worked on the run."""
        path = self.path / "provenance.json"
        if not path.is_file():
            return []
        sessions = _read_json(path).get("sessions")
        if not isinstance(sessions, list) or not all(isinstance(s, dict) for s in sessions):
            raise StoreError(f"{path} is damaged; remove it, the run does not need it")
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

    @contextlib.contextmanager
    def writing(self, config: RunConfig) -> Iterator["RunWriter"]:
        """Hold the folder for writing, creating it for this configuration if need be.

        Raises:
            LockedError: another process is writing; the message names it.
            StoreError: the folder holds something else, or a run of another configuration.
        """
        self._check_is_ours(config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = Lock.acquire(self.path / ".lock")
        except OSError as error:
            raise StoreError(f"cannot write to the run folder {self.path}: {error}") from error
        try:
            self._check_is_ours(config)
            writer = RunWriter(self.path, lock)
            writer.keep_config(config)
            yield writer
        finally:
            lock.release()

    def _tensors(self, step: int, name: str) -> dict[str, Tensor]:
        folder = self.path / "checkpoints" / f"{step:08d}"
        path = folder / name
        if not path.is_file():
            steps = ", ".join(map(str, self.steps())) or "none"
            raise StoreError(f"{path} does not exist; {self.path} has checkpoints at steps {steps}")
        state = _read_json(folder / _STATE)
        if state.get("step") != step:
            raise StoreError(
                f"{folder} was written as step {state.get('step')!r}; give it that name back"
            )
        if state.get("generator") != GENERATOR:
            raise StoreError(
                f"{folder} was trained on data of generator {state.get('generator')!r}; this "
                f"version of anchor-interp draws with generator {GENERATOR}: use the other version"
            )
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (SafetensorError, OSError) as error:
            raise StoreError(
                f"{path} is damaged: {error}; remove {folder} to fall back on an earlier checkpoint"
            ) from error
        return tensors

    def _check_is_ours(self, config: RunConfig) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StoreError(f"{self.path} is a file; give the run a folder of its own")
        if not (self.path / "config.json").exists():
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
    """Turn the system's refusal to write into one clear error."""

    @functools.wraps(write)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return write(*args, **kwargs)
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
    def heartbeat(self) -> None:
        """Say that the run is alive; cheap enough for every step."""
        self.lock.beat()

    @_explained
    def keep_config(self, config: RunConfig) -> None:
        """Write ``config.json`` unless it is there."""
        if not (self.path / "config.json").exists():
            _write_json(self.path / "config.json", to_dict(config))

    @_explained
    def start_session(self, session: Row) -> None:
        """Append a session's entry to ``provenance.json``."""
        sessions = [*self.provenance(), session]
        _write_json(self.path / "provenance.json", {"schema": SCHEMA, "sessions": sessions})

    @_explained
    def end_session(self, **facts: Any) -> None:
        """Add facts to the last session's entry."""
        *earlier, last = self.provenance()
        sessions = [*earlier, {**last, **facts}]
        _write_json(self.path / "provenance.json", {"schema": SCHEMA, "sessions": sessions})

    @_explained
    def append_metrics(self, row: Row) -> None:
        """Append one line to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(canonical_json(row) + "\n")

    @_explained
    def cut_metrics(self, last_step: int) -> None:
        """Drop the lines of later steps: those that a resumed run will write again."""
        kept = [canonical_json(row) + "\n" for row in self.metrics() if row["step"] <= last_step]
        _write_text(self.path / "metrics.jsonl", "".join(kept))

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
        root = self.path / "checkpoints"
        final, temporary = root / f"{step:08d}", root / f".{step:08d}.partial"
        if final.exists():
            return
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _write_bytes(temporary / _WEIGHTS, save(weights))
        _write_bytes(temporary / _OPTIMIZER, save(optimizer))
        state = {"schema": SCHEMA, "step": step, "generator": GENERATOR}
        _write_json(temporary / _STATE, state)
        _sync(temporary)
        if (self.path / "metrics.jsonl").exists():
            _sync(self.path / "metrics.jsonl")
        temporary.rename(final)
        _sync(root)
        self.thin_out(keep_every)

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
        root = self.path / "checkpoints"
        for step in reversed(self.steps()):
            if step == 0 or (root / f"{step:08d}" / _OPTIMIZER).exists():
                return step
            (root / f"{step:08d}").rename(root / f".{step:08d}.partial")
        return None

    @_explained
    def finish(self, result: Row) -> None:
        """Write ``result.json``: the run is done."""
        _write_json(self.path / "result.json", {"schema": SCHEMA, **result})


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


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise StoreError(f"cannot read {path}: it is missing or no regular file")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise StoreError(f"{path} is larger than {MAX_JSON_BYTES} bytes; not a file of a run")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _read_json(path: Path) -> Row:
    try:
        data = parse_json(_read_text(path))
    except ConfigError as error:
        raise StoreError(f"{path} is damaged: {error}; restore it or remove it") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise StoreError(
            f"{path} has schema {found!r}; this version of anchor-interp reads schema {SCHEMA}: "
            "use the version that wrote it"
        )
    return data


def _write_json(path: Path, data: Any) -> None:
    _write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    _write_bytes(temporary, text.encode())
    temporary.replace(path)


def _write_bytes(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
