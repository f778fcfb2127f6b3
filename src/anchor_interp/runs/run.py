"""Opens runs: a run folder, a specimen of the zoo or a model with hand-set weights."""

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.files import is_there
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked, checked_path, from_dict
from anchor_interp.behaviour.evaluation import evaluate
from anchor_interp.behaviour.phase import Decision, Evaluation, Phase, decide
from anchor_interp.models.decoding import generate
from anchor_interp.models.exact import NAMES, exact_model, exact_shape
from anchor_interp.models.networks import Network, as_transformer, build_network
from anchor_interp.models.replaced_code import are_built_alike
from anchor_interp.models.transformer import HookedTransformer, are_hooked, place
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.export import load_weights, save_weights
from anchor_interp.runs.memory import check_model_fits, explained
from anchor_interp.runs.store import Row, RunFolder
from anchor_interp.runs.zoo import find
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.contract import draw_examples
from anchor_interp.tasks.examples import Dataset

T = TypeVar("T")
_LOGGER = logging.getLogger(__name__)


def model_at(
    folder: RunFolder,
    config: RunConfig,
    step: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Network:
    """The model of a checkpoint, in ``eval`` mode; StoreError if it does not fit ``config``."""
    check_model_fits(config.model)  # before the file is read
    weights, where = folder.weights(step), f"{folder.path} at step {step}"
    return place(load_weights(config.model, weights, where, dtype=dtype), device)


def evaluate_run(
    config: RunConfig,
    model: Network,
    step: int,
    *,
    n: int = 500,
    seed: int = 0,
    training: Dataset | None = None,
) -> Evaluation:
    """Measure a run's model on its own task and ``training`` sequences, drawn again if None."""
    initial = build_network(config.model, config.init, seed=config.seed)
    training = _training(config) if training is None else training
    return evaluate(
        model, config.task, n=n, seed=seed, training=training, initial=initial, steps=step
    )


def _training(config: RunConfig) -> Dataset:
    rows = min(config.train.n_sequences, 10_000)
    return draw_examples(config.task, "train", rows, seed=config.seed)


@dataclass(frozen=True, repr=False)
class Run(Readable):
    """A run with its model at one checkpoint."""

    folder: RunFolder
    """Its files; an exact model has none."""
    config: RunConfig
    step: int
    """The checkpoint of :attr:`model`, in optimizer updates."""
    device: torch.device
    dtype: torch.dtype

    def _summary(self) -> str:
        model, train = self.config.model, self.config.train
        most = "" if train.until_accuracy is None else "at most "
        return (
            f"{self.name} at step {self.step} of {most}{train.steps}, seed {self.config.seed}\n"
            f"{self.config.task.kind}; {model}, {model.n_parameters:,} parameters"
        )

    def _rows(self) -> list[Row]:
        return self.metrics

    @property
    def name(self) -> str:
        """The run folder's path, or the name of an exact model."""
        return str(self.folder.path)

    @property
    def path(self) -> Path | None:
        """The run folder; None for an exact model."""
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
    def model(self) -> HookedTransformer | Any:
        """The HookedTransformer of this checkpoint, or its U-Net, in ``eval`` mode."""
        with explained("loading a model", f"it has {self.config.model}"):
            return model_at(self.folder, self.config, self.step, self.device, self.dtype)

    @functools.cached_property
    def initial(self) -> HookedTransformer | Any:
        """The model before its first update, built from the seed; None for an exact model."""
        config = self.config
        with explained("building a model", f"it has {config.model}"):
            return build_network(
                config.model, config.init, seed=config.seed, device=self.device, dtype=self.dtype
            )

    @property
    def transformer(self) -> HookedTransformer:
        """:attr:`model` of a run on sequences; ConfigError if it is a U-Net."""
        return as_transformer(self.model)

    @property
    def evaluation(self) -> Evaluation:
        """The stored evaluation of the final checkpoint; StoreError if the run is not done."""
        return self._stored()[0]

    @property
    def decision(self) -> Decision:
        """The stored phase of the final checkpoint, with its reason; see :attr:`evaluation`."""
        return self._stored()[1]

    def _stored(self) -> tuple[Evaluation, Decision]:
        """What ``result.json`` says."""
        result, path = self.folder.result(), self.folder.path / "result.json"
        if result is None:
            raise StoreError(f"{self.name} is not done; train it to the end first")
        if result.get("run_id") != run_id(self.config) or "evaluation" not in result:
            raise StoreError(f"{path} does not belong to this run; remove it")
        with raising(StoreError, f"{path} is damaged: ", "; restore it or remove it"):
            decision = {name: result[name] for name in ("phase", "reason") if name in result}
            evaluation: Evaluation = from_dict(Evaluation, result["evaluation"])
            return evaluation, from_dict(Decision, decision)

    def judged(self, *, n: int = 500) -> tuple[Evaluation, Decision]:
        """The evaluation and the phase of this checkpoint: stored if it is the final one of a run.

        They are measured, with ``n`` as in :meth:`evaluate`, of any other checkpoint, and of a
        model that was edited or has hooks since it was loaded.
        """
        if self.folder.result() is not None:
            stored = self._stored()
            if stored[0].steps == self.step and not self.is_edited:
                return stored
        evaluation = self.evaluate(n=n)
        return evaluation, decide(evaluation)

    @property
    def is_edited(self) -> bool:
        """Whether :attr:`model` has hooks, or other weights or code than its checkpoint's."""
        if "model" not in vars(self) or self.path is None:
            return False
        file: Any = nn.Module()
        with contextlib.suppress(StoreError):  # without a checkpoint nothing says that it is equal
            file = model_at(self.folder, self.config, self.step, self.device, self.dtype)
        if are_hooked(self.model.modules()) or not are_built_alike(self.model, file):
            return True
        own, stored = self.model.state_dict(), file.state_dict()
        return own.keys() != stored.keys() or any(
            a.is_meta or not torch.equal(a, stored[name].to(a)) for name, a in own.items()
        )

    @property
    def phase(self) -> Phase:
        """The stored phase of the final checkpoint."""
        return self.decision.phase

    @property
    def reason(self) -> str:
        """The rule that decided the phase, with its numbers."""
        return self.decision.reason

    @property
    def training(self) -> Dataset | None:
        """The first 10,000 training sequences, drawn again; None for an exact model."""
        return None if self.path is None else _training(self.config)

    def at(self, step: int) -> "Run":
        """The same run at another checkpoint; StoreError lists all if it does not exist."""
        if (step := checked(step, int, "step")) not in self.steps:
            raise StoreError(f"{self.name} has no checkpoint at step {step}; it has {self.steps}")
        return replace(self, step=step)

    def at_every_step(self, measure: Callable[[Any], T]) -> dict[int, T]:
        """A measurement such as ``complexity`` of the model at every checkpoint, by step."""
        return {step: measure(self.at(step).model) for step in self.steps}

    def evaluate(self, *, n: int = 500, seed: int = 0) -> Evaluation:
        """Measure the model of this checkpoint afresh, on the run's task and training sequences.

        Warns if the files that the task reads are not those of the training.
        """
        data = self.config.task.data
        before = self.folder.data() if data else None
        if before not in (None, data):
            _LOGGER.warning(
                "%s was trained on other data (digest %s, now %s), and is measured on what there "
                "is now", self.name, before, data,
            )  # fmt: skip
        with explained("evaluating", f"lower n ({n:,}), or use a device with more memory"):
            return evaluate_run(self.config, self.model, self.step, n=n, seed=seed)

    def answer(self, prompts: Sequence[str], *, most: int | None = None) -> list[str]:
        """What the model writes after each prompt, such as ``jump twice ->``.

        Args:
            prompts: texts in the words of the task.
            most: most tokens of an answer; if None, 1 where answers have one token, and else each
                goes on to its end token or the end of the model's context.

        Returns:
            Answers in the words of the task. A token that no word has is such as ``<57>``.

        Raises:
            ConfigError: a word that the task does not have, a prompt without a word or too long, or
                no ``most`` for longer answers without an end token.
        """
        task = self.config.task
        if task.answers_last and most is None:
            most = 1
        if task.end is None and most is None:
            reason = f"the answers of the task {task.kind} have no end token to stop at"
            raise ConfigError(f"{reason}; say with most how many tokens they have")
        tokens = [task.encode(prompt) for prompt in checked(prompts, tuple[str, ...], "prompts")]
        written = generate(self.transformer, tokens, end=task.end, most=most)
        return [task.written(answer) for answer in written]

    def export(self, path: str | Path) -> Path:
        """Write this checkpoint's weights as one file (:mod:`anchor_interp.runs.export`)."""
        out = checked_path(path, "path")
        save_weights(self.transformer, out, self.config, step=self.step)
        return out


class ExactRun(Run):
    """An exact model, which has no files; its initialisation, training and seed mean nothing."""

    @property
    def path(self) -> None:
        """None: the model has no folder."""

    @property
    def steps(self) -> list[int]:
        """Only 0."""
        return [0]

    @functools.cached_property
    def model(self) -> HookedTransformer:
        """The HookedTransformer, in ``eval`` mode."""
        mechanism, norm = NAMES[self.name]
        exact = exact_model(
            mechanism, self.config.anchor_task, normalization=norm, dtype=self.dtype
        )
        return as_transformer(place(exact, self.device))

    @property
    def initial(self) -> None:
        """None: the model has no initialisation."""

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The model's evaluation."""
        return self.evaluate()

    @property
    def decision(self) -> Decision:
        """The phase that follows from it."""
        return decide(self.evaluation)


def load(
    path: str | Path,
    *,
    step: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Run:
    """Open a run folder, a specimen of the zoo or a model with hand-set weights.

    Args:
        path: the folder, or a name such as ``tiny/inferential/1``
            (:func:`anchor_interp.runs.zoo.names`) or ``exact/inferential``
            (:data:`anchor_interp.models.exact.NAMES`). An existing folder of that name is taken
            first.
        step: the checkpoint whose model is wanted; the newest if None.
        dtype: dtype of the model, such as ``torch.float64`` for exact analyses.

    Raises:
        StoreError: there is no such run, specimen or checkpoint, or a file is damaged.
    """
    path, target = checked_path(path, "the path of the run"), resolve_device(device)
    if path.as_posix() in NAMES and not is_there(path):
        mechanism, layout = NAMES[path.as_posix()]
        task = TASKS["complexity-control"]
        config = RunConfig(task, exact_shape(mechanism, task, normalization=layout))
        run: Run = ExactRun(RunFolder(path), config, 0, target, dtype)
    else:
        folder = RunFolder(find(path))
        run = Run(folder, folder.config(), max(folder.steps(), default=-1), target, dtype)
    if run.step < 0:
        raise StoreError(f"{run.name} has no checkpoint yet; train it first")
    return run if step is None else run.at(step)
