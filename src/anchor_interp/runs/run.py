"""The main job: a configuration becomes a trained, judged run in a folder.

:func:`train` is the whole pipeline and reads like it: take the folder, start or resume, fit,
judge (:mod:`anchor_interp.runs.train` has the steps). :func:`load` opens what it left behind.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.files import is_there, output_file
from anchor_interp._util.schema import checked, checked_path, from_dict
from anchor_interp.models.exact import NAMES, exact_model, exact_shape
from anchor_interp.models.transformer import HookedTransformer, build_model, empty_model, place
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.evaluation import evaluate
from anchor_interp.runs.export import save_weights
from anchor_interp.runs.memory import check_model_fits, explained
from anchor_interp.runs.phase import Evaluation, Phase, decide
from anchor_interp.runs.store import Row, RunFolder
from anchor_interp.runs.zoo import find
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.sequences import Sequences, sample


def model_from_weights(
    config: RunConfig,
    weights: dict[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> HookedTransformer:
    """A HookedTransformer of a run's shape with given parameters.

    Raises:
        StoreError: a parameter that is missing, unknown, of another shape or type, or not finite.
        ConfigError: a model larger than this machine's memory.
    """
    check_model_fits(config.model)
    with torch.device("meta"):  # shapes without memory: the configuration may ask for any size
        parameters = dict(empty_model(config.model, dtype=dtype).named_parameters())
    if set(parameters) != set(weights):
        odd = sorted(set(parameters) ^ set(weights))
        raise StoreError(f"the weights do not fit the configured model: {odd[0]!r} is in only one")
    for name, parameter in parameters.items():
        found = weights[name]
        if found.shape != parameter.shape:
            raise StoreError(
                f"the weight {name!r} has shape {tuple(found.shape)}; the configured model "
                f"has {tuple(parameter.shape)}"
            )
        if found.dtype != torch.float32:
            raise StoreError(f"the weight {name!r} has {found.dtype}; expected torch.float32")
        if not torch.isfinite(found).all():
            raise StoreError(f"the weight {name!r} holds values that are not finite")
    model = empty_model(config.model, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return place(model, device)


def model_at(
    folder: RunFolder,
    config: RunConfig,
    step: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> HookedTransformer:
    """The model of a checkpoint, in ``eval`` mode.

    Raises:
        StoreError: no such checkpoint, a damaged one, or one that does not fit the configuration.
        ConfigError: a model larger than this machine's memory.
    """
    check_model_fits(config.model)  # before the file is read
    weights = folder.weights(step)
    try:
        return model_from_weights(config, weights, device=device, dtype=dtype)
    except StoreError as error:
        raise StoreError(f"{folder.path} at step {step}: {error}") from error


def evaluate_run(
    config: RunConfig,
    model: HookedTransformer,
    step: int,
    *,
    n: int = 500,
    seed: int = 0,
    training: Sequences | None = None,
) -> Evaluation:
    """Measure a run's model on the run's own task and training sequences.

    Args:
        config: the run.
        model: its model.
        step: the checkpoint's step, to be recorded.
        n: sequences per ordered pair and side of the split.
        seed: seed of the evaluation sequences.
        training: the run's training sequences, or its first ones; drawn anew if None.
    """
    if training is None:
        rows = min(config.train.n_sequences, 10_000)
        training = sample(config.task, "train", rows, seed=config.seed)
    return evaluate(
        model,
        config.task,
        n=n,
        seed=seed,
        training=training,
        initial=build_model(config.model, config.init, seed=config.seed),
        steps=step,
    )


T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A run on disk with its model at one checkpoint."""

    folder: RunFolder
    """Where it is."""
    config: RunConfig
    """What it is."""
    step: int
    """The checkpoint that :attr:`model` is loaded from, as updates done."""
    device: torch.device
    """Where the model is placed."""
    dtype: torch.dtype
    """The model's dtype."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def steps(self) -> list[int]:
        """Steps of all checkpoints; 0 is the initialisation."""
        return self.folder.steps()

    @property
    def metrics(self) -> list[Row]:
        """The logged steps: loss, lr, grad_norm and, on some, probe accuracies."""
        return self.folder.metrics()

    @functools.cached_property
    def model(self) -> HookedTransformer:
        """The HookedTransformer of this checkpoint, in ``eval`` mode."""
        with explained("loading a model", f"it has {self.config.model}"):
            return model_at(self.folder, self.config, self.step, self.device, self.dtype)

    @functools.cached_property
    def initial(self) -> HookedTransformer | None:
        """The model before its first update, built anew from the configuration and its seed.

        A run that no longer has its step 0 has it all the same, to compare with; None of a model
        that was never trained.
        """
        config = self.config
        with explained("building a model", f"it has {config.model}"):
            return build_model(
                config.model, config.init, seed=config.seed, device=self.device, dtype=self.dtype
            )

    @property
    def evaluation(self) -> Evaluation:
        """The stored evaluation of the final checkpoint.

        Raises:
            StoreError: the run is not done.
        """
        path = self.path / "result.json"
        try:
            return from_dict(Evaluation, self._result()["evaluation"])
        except ConfigError as error:
            raise StoreError(f"{path} is damaged: {error}; restore it or remove it") from error

    @property
    def phase(self) -> Phase:
        """The phase of the final checkpoint.

        Raises:
            StoreError: the run is not done.
        """
        return decide(self.evaluation).phase

    @property
    def reason(self) -> str:
        """The rule that decided the phase, with its numbers."""
        return decide(self.evaluation).reason

    def at(self, step: int) -> "Run":
        """The same run at another checkpoint.

        Raises:
            StoreError: no such checkpoint; the message lists them.
        """
        return load(self.path, step=step, device=str(self.device), dtype=self.dtype)

    def at_every_step(self, measure: Callable[[HookedTransformer], T]) -> dict[int, T]:
        """A measurement of the model at every checkpoint, by step.

        For example ``run.at_every_step(complexity)``, or with the initial model to compare with
        ``run.at_every_step(lambda model: complexity(model, run.initial))``. One model is in memory
        at a time.

        Raises:
            StoreError: a damaged checkpoint.
        """
        return {step: measure(self.at(step).model) for step in self.steps}

    def evaluate(self, *, n: int = 500, seed: int = 0) -> Evaluation:
        """Measure the model of this checkpoint on the run's own task and training sequences."""
        with explained("evaluating", f"lower n ({n:,}), or use a device with more memory"):
            return evaluate_run(self.config, self.model, self.step, n=n, seed=seed)

    def export(self, path: str | Path) -> Path:
        """Write this checkpoint's weights as one file that plain TransformerLens can read.

        The tensors are ``model.state_dict()`` in safetensors, with the configuration and the run's
        id as metadata; :mod:`anchor_interp.runs.export` says how to open it with and without this
        package. A file that is there is replaced.

        Raises:
            StoreError: the path is a folder or a file of a run, or cannot be written.
            ConfigError: no path.
        """
        out = checked_path(path, "path")
        output_file(out)
        save_weights(self.model, out, self.config, step=self.step)
        return out

    def _result(self) -> Row:
        result = self.folder.result()
        if result is None:
            raise StoreError(f"{self.path} is not done; train it to the end first")
        if result.get("run_id") != run_id(self.config) or "evaluation" not in result:
            raise StoreError(f"{self.path}/result.json does not belong to this run; remove it")
        return result


@dataclass(frozen=True)
class ExactRun(Run):
    """A model with hand-set weights in the shape of a run; see :mod:`anchor_interp.models.exact`.

    It was never trained: initialisation, training and seed of its configuration say nothing.
    """

    name: str
    """Its name, such as ``exact/inferential``."""

    @property
    def path(self) -> Path:
        """There is none.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"{self.name} is built when it is asked for; it has no folder")

    @property
    def steps(self) -> list[int]:
        """One step, 0."""
        return [0]

    @property
    def metrics(self) -> list[Row]:
        """None were logged."""
        return []

    @functools.cached_property
    def model(self) -> HookedTransformer:
        """The HookedTransformer, in ``eval`` mode."""
        mechanism, normalization = NAMES[self.name]
        model = exact_model(
            mechanism, self.config.task, normalization=normalization, dtype=self.dtype
        )
        return place(model, self.device)

    @functools.cached_property
    def initial(self) -> None:
        """There is none."""
        return None

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The model's evaluation, made when it is asked for."""
        return self.evaluate()

    def at(self, step: int) -> "Run":
        """The same model.

        Raises:
            StoreError: a step other than 0.
        """
        return load(self.name, step=step, device=str(self.device), dtype=self.dtype)


def load(
    path: str | Path,
    *,
    step: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Run:
    """Open a run folder, a specimen of the zoo or a model with hand-set weights.

    Args:
        path: the folder, or a name: ``tiny/inferential/1`` and its kind
            (:func:`anchor_interp.runs.zoo.names`), ``exact/inferential`` and its kind
            (:data:`anchor_interp.models.exact.NAMES`). What lies at that path goes before a name.
        step: the checkpoint whose model is wanted; the newest if None.
        device: where to place the model.
        dtype: dtype of the model, such as ``torch.float64`` for exact analyses.

    Raises:
        StoreError: no run folder, no specimen of that name, no such checkpoint, or a damaged file.
        ConfigError: a damaged configuration, or a device that cannot be used.
    """
    checked(step, int | None, "step")
    path = checked_path(path, "the path of the run")
    if path.as_posix() in NAMES and not is_there(path):
        return _exact(path.as_posix(), step, resolve_device(device), dtype)
    folder = RunFolder(find(path))
    config = folder.config()
    steps = folder.steps()
    if not steps:
        raise StoreError(f"{folder.path} has no checkpoint yet; train it first")
    if step is not None and step not in steps:
        raise StoreError(f"{folder.path} has no checkpoint at step {step}; it has {steps}")
    chosen = steps[-1] if step is None else step
    return Run(folder, config, chosen, resolve_device(device), dtype)


def _exact(name: str, step: int | None, device: torch.device, dtype: torch.dtype) -> ExactRun:
    if step not in (None, 0):
        raise StoreError(f"{name} has no checkpoint at step {step}; it has [0]")
    mechanism, normalization = NAMES[name]
    task = TASKS["complexity-control"]
    config = RunConfig(task, exact_shape(mechanism, task, normalization=normalization))
    return ExactRun(RunFolder(Path(name)), config, 0, device, dtype, name)
