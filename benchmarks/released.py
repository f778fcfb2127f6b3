"""The training step of the papers' released code, out of a checkout that the user has.

Nothing of that code is in this repository. Its own modules make the model and the optimizer, and
its own loop takes the steps: forward, loss on the last position, ``loss.item()``, backward,
clipping, optimizer, scheduler. It gets its batches ready made, so its data loader, which collates
sequence by sequence, counts for nothing here and is timed apart.

Its model normalises the inputs of a block (``pre``), but for keys and values, has biases and the
exact GELU. Ours is given the same layout and so has the same number of parameters.
"""

import contextlib
import importlib
import importlib.util
import subprocess
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp.models.batches import Batch
from anchor_interp.models.shapes import MODELS
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import RUNS
from anchor_interp.tasks.examples import Dataset

REPOSITORY = "https://github.com/sjtuzzw/complexity_control"
_FOLDER = "code_for_anchor_func"
_MODEL = "GPT2_init_for_diff_part_prenorm"
_STAND_INS = {"seaborn": {}, "warmup_scheduler": {"GradualWarmupScheduler": None}}
"""Packages that its modules import and that a step at a constant rate does not use."""


def equivalent(batch_size: int, precision: str) -> RunConfig:
    """Our ``paper-1head`` shape in the released model's layout."""
    layout = {"normalization": "pre", "act_fn": "gelu", "bias": True}
    train = {"batch_size": batch_size, "precision": precision}
    return override(RUNS["tiny"], **vars(MODELS["paper-1head"]) | layout | train)


@dataclass(frozen=True)
class ReleasedCode:
    """The modules of a checkout."""

    training: Any
    """Its module ``train``: the loop, the data loader, and what makes model and optimizer."""
    commit: str | None
    """The checkout's commit, if git knows."""
    stand_ins: tuple[str, ...]
    """Packages that are not installed and that an empty module stood in for."""

    @classmethod
    def load(cls, checkout: Path) -> "ReleasedCode":
        """Import the modules of a checkout, writing nothing into it.

        Raises:
            ConfigError: the folder is not such a checkout, or its modules cannot be imported.
        """
        folder = (checkout / _FOLDER).resolve()
        if not (folder / "train.py").is_file() or not (folder / "model" / f"{_MODEL}.py").is_file():
            raise ConfigError(
                f"{checkout} is not a checkout of {REPOSITORY}: it has no {_FOLDER}/train.py and "
                f"{_FOLDER}/model/{_MODEL}.py; give the folder that git clone made"
            )
        missing = tuple(name for name in _STAND_INS if importlib.util.find_spec(name) is None)
        try:
            with _importing_from(folder, missing):
                training = importlib.import_module("train")
        except Exception as error:  # foreign code: whatever it raises, the user is told
            raise ConfigError(
                f"cannot import the released code in {folder}: {type(error).__name__}: {error}"
            ) from error
        if Path(str(training.__file__)).resolve().parent != folder:
            raise ConfigError(f"another module is called train ({training.__file__}); move it away")
        return cls(training, _commit(checkout), missing)


class ReleasedStep:
    """The released model in the shape of one of our configurations, and its loop's step.

    Raises:
        ConfigError: it has another number of parameters, or outputs of another shape, than ours.
    """

    def __init__(self, code: ReleasedCode, config: RunConfig) -> None:
        model, train = config.model, config.train
        self._training = code.training
        self._settings = Namespace(
            model=_MODEL, vocab_size=model.d_vocab, max_pos=model.n_ctx, seq_len=config.task.length,
            d_model=model.d_model, d_feedforward=model.d_mlp, d_k=model.d_head, d_v=model.d_head,
            n_layers=model.n_layers, n_heads=model.n_heads,
            embedding_std=0.5, qk_std=0.5, vo_std=0.5, mlp_std=0.5,
            optim="AdamW", lr=train.lr, eps=train.eps, weight_decay=train.weight_decay,
            beta1=train.beta1, beta2=train.beta2, clip=train.clip, batch_size=train.batch_size,
            scheduler="StepLR", lr_decay_step=1000, lr_decay_rate=1, num_batches=1,
            data_name=["train"], data_train=[1],
        )  # fmt: skip
        self._device = torch.device("cpu")
        self._model = code.training.get_model(self._settings, self._device)
        self._optimizer, self._scheduler = code.training.get_optimizer(self._model, self._settings)
        self._criterion = torch.nn.CrossEntropyLoss(ignore_index=0)
        self.parameters = sum(parameter.numel() for parameter in self._model.parameters())
        tokens = torch.full((train.batch_size, config.task.length), config.anchor_task.key_min)
        self.outputs = list(self._model(tokens)[0].shape)
        ours = (model.n_parameters, [tokens.numel(), model.d_vocab])
        if (self.parameters, self.outputs) != ours:
            raise ConfigError(
                f"the released model has {self.parameters:,} parameters and outputs of shape "
                f"{self.outputs}, ours {ours[0]:,} and {ours[1]}; the two cannot be compared"
            )

    def train(self, batches: list[Batch]) -> float:
        """One step for each batch; returns the mean loss."""
        pairs = [(batch.tokens, _shifted(batch)) for batch in batches]
        loss: float = self._training.train_step(
            self._settings, self._model, pairs, self._optimizer, self._criterion, self._device,
            self._settings.clip, scheduler=self._scheduler,
        )  # fmt: skip
        return loss

    def draw_batches(self, training: Dataset, n: int) -> None:
        """Only draw n batches with its data loader."""
        whole = training.tokens[: n * self._settings.batch_size].tolist()
        for _ in self._training.get_train_data(self._settings, {"train": whole}):
            pass


def _shifted(batch: Batch) -> Tensor:
    """Each position's next token; the last one's is the target."""
    return torch.cat([batch.tokens[:, 1:], batch.targets[:, None]], dim=1)


@contextlib.contextmanager
def _importing_from(folder: Path, missing: tuple[str, ...]) -> Iterator[None]:
    """Its modules go by short names (``model``, ``utils``), so only inside are they found."""
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    for name in missing:
        stand_in = types.ModuleType(name)
        vars(stand_in).update(_STAND_INS[name])
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes
        for name in missing:
            del sys.modules[name]


def _commit(checkout: Path) -> str | None:
    """The commit that is checked out, None where the folder is not the root of a git checkout."""
    if not (checkout / ".git").exists():
        return None
    found = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    return found.stdout.strip() or None
