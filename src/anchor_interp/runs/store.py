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
the SHA-256 of the checkpoint's tensors, which reading checks. No pickle is read. Only the newest
checkpoint has an optimizer state. Tensors are float32; those of specimens are stored in float16.
Reading anything but tensors does not load torch.
"""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp import __version__
from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError, UnknownSchemaError, raising
from anchor_interp._util.schema import from_dict, parse_json, shown
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
