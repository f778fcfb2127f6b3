"""Reads run folders; :mod:`anchor_interp.runs.writer` writes them.

::

    RUN/  config.json        the configuration
          provenance.json    one entry per session: versions, machine, device, threads
          .lock              held while a process writes, which .lock.json names
          metrics.jsonl      one line per logged step
          checkpoints/00000400/   weights.safetensors, optimizer.safetensors, state.json
          result.json        written last: its presence means that the run is done
          measurements.json  what was measured of its checkpoints

Every file carries a schema number, and a file of another schema is refused. ``state.json`` records
the size and SHA-256 of the checkpoint's tensors, which reading checks. No pickle is read. Only the
newest checkpoint has an optimizer state. Tensors are float32; those of specimens are stored in
float16. The run folder may be reached through a link, but may not contain links or special files.
"""

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from anchor_interp import __version__
from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, UnknownSchemaError
from anchor_interp._util.schema import from_dict, parse_json
from anchor_interp.runs.config import SCHEMA, RunConfig, run_id
from anchor_interp.tasks.sequences import GENERATOR

Row = dict[str, Any]
"""One line of metrics, or the contents of one JSON file."""

MAX_HEADER_BYTES = 1 << 24  # of a safetensors file
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
"""Files of a checkpoint."""


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
        try:
            return from_dict(RunConfig, self._read(path))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending."""
        root = self.path / "checkpoints"
        if not files.is_there(root):
            return []
        try:
            if root.is_symlink():
                raise NotADirectoryError("it is a symbolic link")
            with os.scandir(root) as entries:
                found = [entry for entry in entries if re.fullmatch("[0-9]{8,}", entry.name)]
        except OSError as error:
            raise StoreError(f"cannot read {root}: {error}") from error
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                raise StoreError(f"{entry.path} is not a folder inside this run; remove it")
        return sorted(int(e.name) for e in found if e.name == f"{int(e.name):08d}")

    def metrics(self) -> list[Row]:
        """The lines of ``metrics.jsonl``, without a last line that a kill cut off."""
        path = self.path / "metrics.jsonl"
        rows: list[Row] = []
        for number, line in files.read_lines(path) if files.is_there(path) else ():
            try:
                row = _metrics_row(line)
                if rows and row["step"] <= rows[-1]["step"]:
                    raise ValueError(f"step {row['step']} after step {rows[-1]['step']}")
            except ValueError as error:
                found = f"{path} is damaged in line {number}: {error}"
                raise StoreError(f"{found}; remove that line") from error
            rows.append(row)
        return rows

    def result(self) -> Row | None:
        """The contents of ``result.json``, or None while the run is not done."""
        path = self.path / "result.json"
        return self._read(path) if files.is_there(path) else None

    def provenance(self) -> list[Row]:
        """One entry per session."""
        path = self.path / "provenance.json"
        if not files.is_there(path):
            return []
        sessions = self._read(path).get("sessions")
        if not isinstance(sessions, list) or not all(isinstance(s, dict) for s in sessions):
            raise StoreError(f"{path} is damaged: it has no list of sessions; remove it")
        return sessions

    def data(self) -> str | None:
        """The digest of the data that the run was started with, if its task reads files."""
        return next((found["data"] for found in self.provenance() if "data" in found), None)

    def weights(self, step: int) -> dict[str, Tensor]:
        """Parameters of a checkpoint by name, float32 on the CPU."""
        return self._tensors(step, WEIGHTS)

    def optimizer(self, step: int) -> dict[str, Tensor]:
        """Optimizer state of a checkpoint by ``parameter/field``, on the CPU."""
        return self._tensors(step, OPTIMIZER)

    def checkpoint_files(self, step: int) -> dict[str, bytes]:
        """The contents of a checkpoint's files by name, for a copy of it."""
        folder = self.checkpoint(step)
        if step not in self.steps():
            raise StoreError(f"{folder} does not exist; {self.path} has {self.steps()}")
        names = [name for name in (WEIGHTS, OPTIMIZER, STATE) if files.is_there(folder / name)]
        limit = _largest_file(self.config())
        return {name: files.read_bytes(folder / name, limit=limit) for name in names}

    def checksums(self, step: int) -> Row:
        """The recorded size and SHA-256 of a checkpoint's weights."""
        return _record(self._read(self.checkpoint(step) / STATE), WEIGHTS)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if it exists."""
        return self.path / "checkpoints" / f"{step:08d}"

    def can_continue(self, step: int) -> bool:
        """Whether training can go on from a committed checkpoint."""
        return step == 0 or files.is_there(self.checkpoint(step) / OPTIMIZER)

    def _read(self, path: Path) -> Row:
        """A JSON file of this folder; other schemas are refused."""
        advice = "restore it or remove it"
        if path.name == "config.json":  # without it this would not be a run folder
            advice = "restore it, or write the configuration that the run was started with"
        data = files.read_json(path, advice=advice)
        if not isinstance(data, dict) or "schema" not in data:
            lacks = "has no schema" if isinstance(data, dict) else "does not hold an object"
            raise StoreError(f"{path} is damaged: it {lacks}; {advice}")
        found = data["schema"]
        if type(found) is not int or found != SCHEMA:
            raise UnknownSchemaError(
                f"{path} has schema {found!r:.40}; anchor-interp {__version__} reads schema "
                f"{SCHEMA}: use the version that wrote it{self._other_version()}"
            )
        return data

    def _other_version(self) -> str:
        """``, 0.0.1`` if that version wrote the run, and not this one."""
        try:
            last = files.read_json(self.path / "provenance.json")["sessions"][-1]
            wrote = str(last["versions"]["anchor-interp"])
        except (StoreError, LookupError, TypeError):
            return ""
        return "" if wrote == __version__ else f", {wrote:.40}"

    def _tensors(self, step: int, name: str) -> dict[str, Tensor]:
        folder = self.checkpoint(step)
        path = folder / name
        if step not in self.steps() or not files.is_there(path):
            steps = ", ".join(map(str, self.steps())) or "none"
            raise StoreError(f"{path} does not exist; {self.path} has checkpoints at steps {steps}")
        state, config = self._read(folder / STATE), self.config()
        found, generator = state.get("step"), state.get("generator")
        if found != step:
            raise StoreError(f"{folder} was written as step {found!r:.40}; rename it back")
        if generator != GENERATOR:
            raise StoreError(
                f"{folder} was trained on data of generator {generator!r:.40}; this version of "
                f"anchor-interp has generator {GENERATOR}: use the version that wrote it"
            )
        if state.get("run_id") != run_id(config):
            raise StoreError(f"{folder} is a checkpoint of another run; {self._repair(step)}")
        try:
            data, record = files.read_bytes(path, limit=_largest_file(config)), _record(state, name)
            if (size := record.get("bytes")) != len(data):
                raise ValueError(f"it has {len(data):,} bytes and was written with {size!r:.40}")
            if record.get("sha256") != hashlib.sha256(data).hexdigest():
                raise ValueError("it was changed since it was written (its SHA-256 differs)")
            return _read_tensors(data)
        except (SafetensorError, ValueError, StoreError) as error:
            what = str(error) if isinstance(error, StoreError) else f"{path} is damaged: {error}"
            raise StoreError(f"{what}; {self._repair(step)}") from error

    def _repair(self, step: int) -> str:
        """What to do about a checkpoint that cannot be used."""
        earlier = [s for s in self.steps() if s < step and self.can_continue(s)]
        begin = f"from step {earlier[-1]}" if earlier else "from the start"
        what = "it and result.json" if files.is_there(self.path / "result.json") else "it"
        return f"restore {self.checkpoint(step)}, or remove {what} and train {begin}"


def _lacks(path: Path) -> str:
    """Why it is not a run folder, and what to do."""
    if path.is_file():
        return (
            "it is a file; weights in safetensors are opened with load_weights if a run exported "
            "them, otherwise with anchor_interp.runs.export.load_transformer, or analyze them with "
            "their --task"
        )
    if not files.is_there(path):
        return "there is nothing of this name"
    if inside := sorted(of.parent.name for of in path.glob("*/config.json")):
        more = f", ... ({len(inside)} in all)" if len(inside) > 5 else ""
        return f"it holds the runs {', '.join(inside[:5])}{more}; name one or more of them"
    return "it has no config.json"


def _largest_file(config: RunConfig) -> int:
    """Bytes of weights, or of two moments and a step each, in float32 with their header."""
    return 8 * config.model.n_parameters + MAX_HEADER_BYTES


def _metrics_row(line: bytes) -> Row:
    """A line of metrics without its schema number; ValueError if it is damaged."""
    row = parse_json(line.decode("utf-8"))
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ValueError("it has no step")
    schema = row.pop("schema", None)
    if schema != SCHEMA:
        raise ValueError(f"it has schema {schema!r:.40}, this version reads {SCHEMA}")
    for name, value in row.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name[:40]!r} is {value!r:.40}, not a number")
    return row


def _record(state: Row, name: str) -> Row:
    """The size and SHA-256 that ``state.json`` records for a file of its checkpoint."""
    records = state.get("files")
    recorded = records.get(name) if isinstance(records, dict) else None
    if not isinstance(recorded, dict):
        raise StoreError(f"{STATE} of step {state.get('step')!r:.40} has no record of {name}")
    return recorded


def _read_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file in memory as float32; ValueError if it is not ours."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise ValueError(f"it has {len(data):,} bytes; its header claims {length:,}")
    header = parse_json(data[8 : 8 + length].decode("utf-8"))
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    schema = metadata.get("schema") if isinstance(metadata, dict) else None
    if schema != str(SCHEMA):
        raise ValueError(f"it has schema {schema!r:.40}, this version reads {SCHEMA}")
    tensors: dict[str, Tensor] = load(data)
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"{name[:80]!r} has dtype {tensor.dtype}; expected torch.float32")
    return {name: tensor.float() for name, tensor in tensors.items()}
