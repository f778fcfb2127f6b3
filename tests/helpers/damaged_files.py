"""Files of a run that are not what they were."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def flip_one_bit(path: Path) -> None:
    """The last byte is another."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def hole(path: Path) -> None:
    """Make the file a tebibyte long without using disk space."""
    with open(path, "ab") as file:
        file.truncate(1 << 40)


def rewrite(path: Path, **tensors: torch.Tensor | None) -> None:
    """Change or remove tensors of a checkpoint and its recorded checksum, as an attacker would."""
    kept = load_file(path) | tensors
    save_file({n: t for n, t in kept.items() if t is not None}, path, {"schema": "1"})
    data = path.read_bytes()
    state = json.loads((path.parent / "state.json").read_text())
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    state["files"][path.name] = record
    (path.parent / "state.json").write_text(json.dumps(state))


def change_embedding(path: Path, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Change the embedding of a checkpoint and its recorded checksum."""
    rewrite(path, **{"embed.W_E": change(load_file(path)["embed.W_E"])})
