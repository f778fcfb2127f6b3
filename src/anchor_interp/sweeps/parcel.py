"""A run folder as one value, to send it to a machine that does not see the folder, and back."""

from dataclasses import dataclass
from pathlib import Path

from anchor_interp._util import files
from anchor_interp._util.errors import StoreError
from anchor_interp.runs import measurements
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.writer import writing

MAX_BYTES = 1 << 30
"""Largest file, beside those of checkpoints, whose limit follows from the model."""

_FIRST = ("provenance.json", "metrics.jsonl")
_LAST = (measurements.FILE, "result.json")


@dataclass(frozen=True)
class Parcel:
    """The contents of a run folder."""

    config: RunConfig
    """The run."""
    files: dict[str, bytes]
    """Its files by name, without ``config.json``."""
    checkpoints: dict[int, dict[str, bytes]]
    """The files of each checkpoint by step and name."""


def pack(path: Path) -> Parcel:
    """Read a run folder.

    Raises:
        StoreError: a file is too large or cannot be read.
    """
    folder = RunFolder(path)
    names = [name for name in (*_FIRST, *_LAST) if files.is_there(path / name)]
    return Parcel(
        folder.config(),
        {name: files.read_bytes(path / name, limit=MAX_BYTES) for name in names},
        {step: folder.checkpoint_files(step) for step in folder.steps()},
    )


def unpack(parcel: Parcel, path: Path) -> None:
    """Write a run folder in the order in which training writes it.

    Metrics come before the checkpoints that rely on them and ``result.json`` comes last, so that a
    kill at any moment leaves a run that can be resumed. A checkpoint that is there already stays.

    Raises:
        StoreError: a file has a name that no run has, or the folder cannot be written; LockedError
            if another process is writing it.
    """
    if unknown := sorted(parcel.files.keys() - {*_FIRST, *_LAST}):
        raise StoreError(f"{path} was sent a file {unknown[0]!r:.80}, which no run has")
    with writing(path, parcel.config) as writer:
        for name in _FIRST:
            if name in parcel.files:
                writer.copy_file(name, parcel.files[name])
        for step, contents in sorted(parcel.checkpoints.items()):
            writer.copy_checkpoint(step, contents, parcel.config.train.checkpoint_every)
        for name in _LAST:
            if name in parcel.files:
                writer.copy_file(name, parcel.files[name])
