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
from anchor_interp._util.errors import ConfigError, StoreError, UnknownSchemaError
from anchor_interp._util.schema import from_dict, parse_json
from anchor_interp.runs.config import SCHEMA, RunConfig, run_id
from anchor_interp.tasks.sequences import GENERATOR

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]
"""One line of metrics, or the contents of one JSON file."""

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
"""Files of a checkpoint."""
_HEADER_BYTES = 1 << 24  # at most, of a safetensors file


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
        try:
            return sorted(int(name) for name in os.listdir(root) if name.isdecimal())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read {root}: {error}") from error

    def metrics(self) -> list[Row]:
        """The lines of ``metrics.jsonl``, without a last line that a kill cut off."""
        path = self.path / "metrics.jsonl"
        rows: list[Row] = []
        for number, line in files.read_lines(path) if files.is_there(path) else ():
            try:
                row = parse_json(line.decode("utf-8"))
                self._check_schema(path, row)
                del row["schema"]
                _check_metrics(row, after=rows[-1]["step"] if rows else -1)
            except ValueError as error:
                damaged = f"{path} is damaged in line {number}: {error}"
                raise StoreError(f"{damaged}; remove that line") from error
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
        sessions: list[Row] = self._read(path, "sessions")["sessions"]
        return sessions

    def data(self) -> str | None:
        """The digest of the data that the run was started with, if its task reads files."""
        return next((entry["data"] for entry in self.provenance() if "data" in entry), None)

    def measurements(self) -> list[Row]:
        """The entries of ``measurements.json`` (:mod:`anchor_interp.runs.measurements`)."""
        path = self.path / "measurements.json"
        if not files.is_there(path):
            return []
        entries: list[Row] = self._read(path, "measurements")["measurements"]
        return entries

    def weights(self, step: int) -> "dict[str, Tensor]":
        """Parameters of a checkpoint by name, float32 on the CPU."""
        return self._tensors(step, WEIGHTS)

    def optimizer(self, step: int) -> "dict[str, Tensor]":
        """Optimizer state of a checkpoint by ``parameter/field``, on the CPU."""
        return self._tensors(step, OPTIMIZER)

    def weights_digest(self, step: int) -> str:
        """The recorded SHA-256 of a checkpoint's weights, which reading them checks."""
        return self._recorded_digest(step, WEIGHTS)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if it exists."""
        return self.path / "checkpoints" / f"{step:08d}"

    def can_continue(self, step: int) -> bool:
        """Whether training can go on from a committed checkpoint."""
        return step == 0 or files.is_there(self.checkpoint(step) / OPTIMIZER)

    def _read(self, path: Path, entries: str | None = None) -> Row:
        """A JSON object of this folder, with a list of ``entries`` if they are named."""
        advice = "restore it or remove it"
        if path.name == "config.json":  # without it this would not be a run folder
            advice = "restore it, or write the configuration that the run was started with"
        content = files.read_json(path, advice=advice)
        try:
            self._check_schema(path, content)
            if entries is not None and not isinstance(content.get(entries), list):
                raise ValueError(f"it has no list of {entries}")
        except ValueError as error:
            raise StoreError(f"{path} is damaged: {error}; {advice}") from error
        return dict(content)

    def _check_schema(self, path: Path, content: Any) -> None:
        """ValueError if it is not an object with a schema number, UnknownSchemaError for another.

        The message names the version that wrote the run, if it is another than this.
        """
        if not isinstance(content, dict):
            raise ValueError("it does not hold an object")
        if "schema" not in content:
            raise ValueError("it has no schema")
        if (schema := content["schema"]) is True or schema != SCHEMA:
            raise UnknownSchemaError(
                f"{path} has schema {schema!r:.40}; anchor-interp {__version__} reads schema "
                f"{SCHEMA}: use the version that wrote it{self._other_version()}"
            )

    def _other_version(self) -> str:
        """``, 0.0.1`` if that version wrote the run, and not this one."""
        try:
            session = files.read_json(self.path / "provenance.json")["sessions"][-1]
            version = str(session["versions"]["anchor-interp"])
        except (StoreError, LookupError, TypeError):
            return ""
        return "" if version == __version__ else f", {version:.40}"

    def _recorded_digest(self, step: int, name: str) -> str:
        """The SHA-256 that ``state.json`` records for a file of its checkpoint."""
        state = self._read(self.checkpoint(step) / STATE)
        try:
            return str(state["files"][name]["sha256"])
        except (LookupError, TypeError) as error:
            raise StoreError(f"{STATE} of step {step} has no record of {name}") from error

    def _tensors(self, step: int, name: str) -> "dict[str, Tensor]":
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder, config = self.checkpoint(step), self.config()
        if not files.is_there(folder / name):
            steps = ", ".join(map(str, self.steps())) or "none"
            there = f"{self.path} has checkpoints at steps {steps}"
            raise StoreError(f"{folder / name} does not exist; {there}")
        self._check_state(step, run_id(config))
        try:
            content = files.read_bytes(folder / name, limit=_largest_file(config))
            if hashlib.sha256(content).hexdigest() != self._recorded_digest(step, name):
                raise StoreError(
                    f"{folder / name} was changed since it was written (its SHA-256 differs)"
                )
            return {name: tensor.float() for name, tensor in load(content).items()}
        except (SafetensorError, StoreError) as error:
            raise StoreError(f"{error}; {self._repair(step)}") from error

    def _check_state(self, step: int, own_run_id: str) -> None:
        """Refuse a checkpoint of another step, run or generator of data."""
        folder = self.checkpoint(step)
        state = self._read(folder / STATE)
        if state.get("step") != step:
            raise StoreError(
                f"{folder} was written as step {state.get('step')!r:.40}; rename it back"
            )
        if (generator := state.get("generator")) != GENERATOR:
            raise StoreError(
                f"{folder} was trained on data of generator {generator!r:.40}; this version of "
                f"anchor-interp has generator {GENERATOR}: use the version that wrote it"
            )
        if state.get("run_id") != own_run_id:
            raise StoreError(f"{folder} is a checkpoint of another run; {self._repair(step)}")

    def _repair(self, step: int) -> str:
        """What to do about a checkpoint that cannot be used."""
        earlier = [s for s in self.steps() if s < step and self.can_continue(s)]
        begin = f"from step {earlier[-1]}" if earlier else "from the start"
        what = "it and result.json" if files.is_there(self.path / "result.json") else "it"
        return f"restore {self.checkpoint(step)}, or remove {what} and train {begin}"


def _check_metrics(row: Row, *, after: int) -> None:
    """ValueError if a line of metrics has no step after that one, or a value is not a number."""
    step = row.get("step")
    if type(step) is not int:
        raise ValueError("it has no step")
    if step <= after:
        raise ValueError(f"step {step} after step {after}")
    for name, value in row.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name[:40]!r} is {value!r:.40}, not a number")


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
    return 8 * config.model.n_parameters + _HEADER_BYTES
