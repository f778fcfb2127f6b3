"""The main job: a configuration becomes a trained, judged run in a folder.

:func:`train` is the whole pipeline and reads like it: take the folder, start or resume, fit,
judge. :func:`load` opens what it left behind.
"""

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from anchor_interp.config import RunConfig, run_id
from anchor_interp.data import Sequences, sample
from anchor_interp.environment import (
    BIT_FOR_BIT,
    StopRequest,
    describe_environment,
    limited_threads,
    now,
    resolve_device,
    stop_signals,
)
from anchor_interp.errors import ConfigError, DivergedError, InterruptedRunError, StoreError
from anchor_interp.evaluation import accuracy, evaluate
from anchor_interp.exact import NAMES, exact_model, exact_shape
from anchor_interp.files import is_there, output_file
from anchor_interp.memory import check_model_fits, check_training_fits, explained
from anchor_interp.model import HookedTransformer, build_model, empty_model, place
from anchor_interp.phase import Evaluation, Phase, decide
from anchor_interp.progress import reporting
from anchor_interp.schema import checked, checked_path, from_dict, to_dict
from anchor_interp.store import Row, RunFolder, RunWriter
from anchor_interp.task import TASKS
from anchor_interp.tracking import Track, check_tracker, tracking
from anchor_interp.training import (
    AnchorObjective,
    StepEvent,
    TrainState,
    fit,
    total_decay,
)
from anchor_interp.weights import save_weights
from anchor_interp.zoo import find

T = TypeVar("T")

_PROBES = 512
_LOGGER = logging.getLogger(__name__)


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
            return _model_at(self.folder, self.config, self.step, self.device, self.dtype)

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
            return _evaluate(self.config, self.model, self.step, n=n, seed=seed)

    def export(self, path: str | Path) -> Path:
        """Write this checkpoint's weights as one file that plain TransformerLens can read.

        The tensors are ``model.state_dict()`` in safetensors, with the configuration and the run's
        id as metadata; :mod:`anchor_interp.weights` says how to open it with and without this
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
    """A model with hand-set weights in the shape of a run; see :mod:`anchor_interp.exact`.

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


def train(
    config: RunConfig,
    out: str | Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    track: Track | None = None,
) -> Run:
    """Train a model, judge its final checkpoint and keep everything in a run folder.

    Called again with the same arguments it resumes from the last checkpoint and ends in the same
    weights bit for bit (on a CPU, with the same machine, threads and build); a finished run is
    returned as it is.

    Args:
        config: what to train.
        out: the run folder; created, resumed, or refused if it holds anything else.
        device: ``auto`` (a CUDA GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ...
        threads: CPU threads of this process during the run; PyTorch's setting if None.
        quiet: report no progress.
        track: show the lines of metrics in ``tensorboard`` or ``wandb`` as well; it is no part of
            the run and never stops it (see :mod:`anchor_interp.tracking`).

    Returns:
        The finished run.

    Raises:
        ConfigError: a device, thread count or tracker that cannot be used.
        StoreError: the folder cannot be used; LockedError if another process is writing it.
        OutOfMemoryError: while training; a run that cannot fit at all is a ConfigError.
        DivergedError: loss, gradient or weights are no longer finite.
        InterruptedRunError: SIGINT or SIGTERM; the run was checkpointed first.
    """
    checked(config, RunConfig, "config")
    check_tracker(track)
    target = resolve_device(device)
    check_training_fits(config, target)
    folder = RunFolder(checked_path(out, "out"))
    with (
        stop_signals() as stopped,
        limited_threads(threads),
        folder.writing(config) as writer,
        explained("training", _memory_advice(config)),
    ):
        if not _is_done(writer, config):
            with stopped.at_once("stopped before training began; give the same command again"):
                objective = AnchorObjective(config, target)
            state = _start_or_resume(writer, config, objective, target)
            _fit(writer, config, state, objective, stopped, quiet, track)
            _judge(writer, config, state, objective, stopped)
    return load(folder.path, device=device)


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
            (:func:`anchor_interp.zoo.names`), ``exact/inferential`` and its kind
            (:data:`anchor_interp.exact.NAMES`). What lies at that path goes before a name.
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


def _is_done(writer: RunWriter, config: RunConfig) -> bool:
    result = writer.result()
    if result is None:
        return False
    if result.get("run_id") != run_id(config) or config.train.steps not in writer.steps():
        raise StoreError(
            f"{writer.path} has a result that does not belong to its configuration and "
            "checkpoints; remove result.json to train the run to its end again"
        )
    writer.weights(config.train.steps)  # refuses damaged ones
    _LOGGER.info("%s is done already", writer.path)
    return True


def _start_or_resume(
    writer: RunWriter, config: RunConfig, objective: AnchorObjective, device: torch.device
) -> TrainState:
    before = writer.steps()
    step = writer.fall_back()
    _note_session(writer, step or 0, device)
    if step is not None:
        if step != before[-1]:
            _LOGGER.warning(
                "the checkpoint at step %d lacks its optimizer state; training again from step %d",
                before[-1],
                step,
            )
        state = TrainState(_model_at(writer, config, step, device), config.train, step)
        if step:
            state.load_optimizer(writer.optimizer(step))
        writer.cut_metrics(step)
        _note_missing_metrics(writer, config, step)
        writer.thin_out(config.train.checkpoint_every)
        _LOGGER.info("%s: continuing at step %d of %d", writer.path, step, config.train.steps)
        return state
    state = TrainState.fresh(config, device)
    writer.cut_metrics(-1)
    writer.append_metrics({"step": 0, **_Probes(config, objective).accuracies(state.model)})
    writer.save_checkpoint(0, state.weights(), {}, config.train.checkpoint_every)
    return state


def _fit(
    writer: RunWriter,
    config: RunConfig,
    state: TrainState,
    objective: AnchorObjective,
    stopped: StopRequest,
    quiet: bool,
    track: Track | None,
) -> None:
    settings, probes = config.train, _Probes(config, objective)
    latest: Row = {}

    def save() -> None:
        every = settings.checkpoint_every
        _check_finite(state)
        writer.save_checkpoint(state.step, state.weights(), state.optimizer_tensors(), every)
        _LOGGER.debug("%s: checkpoint at step %d", writer.path, state.step)

    def on_event(state: TrainState, event: StepEvent) -> None:
        step, last = event.step, event.step == settings.steps
        writer.check()
        if step % settings.log_every == 0 or last:
            row = {
                "step": step,
                "loss": event.loss.item(),
                "lr": event.lr,
                "grad_norm": event.grad_norm.item(),
            }
            if step % settings.eval_every == 0 or last:
                _check_finite(state)
                row |= probes.accuracies(state.model)
            writer.append_metrics(row)
            show(row)
            latest.update(row)
        leaving = stopped() and not last
        if step % settings.checkpoint_every == 0 or last or leaving:
            save()
        progress.update(step, latest)
        if leaving:
            raise InterruptedRunError(
                f"stopped at step {step} of {settings.steps} and checkpointed; give the same "
                "command again to continue"
            )

    name = writer.path.name
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(tracking(track, writer.path, config, writer.metrics()))
        shown = reporting({name: (settings.steps, settings.batch_size)}, quiet=quiet)
        progress = stack.enter_context(shown)[name]
        fit(state, objective, until=settings.steps, on_event=on_event)


def _check_finite(state: TrainState) -> None:
    """A finite loss can be followed by an update that is not."""
    if not all(torch.isfinite(parameter).all() for parameter in state.model.parameters()):
        raise DivergedError(
            f"step {state.step}: the weights are no longer finite numbers; lower the learning "
            f"rate (lr {state.config.lr}) or the initial scale (raise gamma)"
        )


def _judge(
    writer: RunWriter,
    config: RunConfig,
    state: TrainState,
    objective: AnchorObjective,
    stopped: StopRequest,
) -> None:
    message = "stopped while judging the final checkpoint, which is kept; give the same command"
    with stopped.at_once(f"{message} again to continue"):
        evaluation = _evaluate(config, state.model, state.step, training=objective.sequences)
    decision = decide(evaluation)
    writer.thin_out(config.train.checkpoint_every)
    writer.end_session(ended=now())
    writer.finish(
        {
            "run_id": run_id(config),
            "phase": decision.phase,
            "reason": decision.reason,
            "total_decay": total_decay(config.train),
            "evaluation": to_dict(evaluation),
        }
    )


def _evaluate(
    config: RunConfig,
    model: HookedTransformer,
    step: int,
    *,
    n: int = 500,
    seed: int = 0,
    training: Sequences | None = None,
) -> Evaluation:
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


class _Probes:
    """Small fixed sets for the accuracies along training."""

    def __init__(self, config: RunConfig, objective: AnchorObjective) -> None:
        # Another seed than the final evaluation's, so that curve and verdict are independent.
        draw = functools.partial(sample, config.task, n=_PROBES, seed=1)
        self._sets: dict[str, Sequences] = {"id_accuracy": draw("id")}
        if config.task.unseen:
            self._sets["ood_accuracy"] = draw("ood")
        self._training = objective.sequences

    def accuracies(self, model: HookedTransformer) -> Row:
        """``train_accuracy``, ``id_accuracy`` and, where there are unseen pairs, ``ood_``."""
        tokens, targets = self._training.tokens[:_PROBES], self._training.targets[:_PROBES]
        probes = {name: accuracy(model, s.tokens, s.targets) for name, s in self._sets.items()}
        return {"train_accuracy": accuracy(model, tokens, targets), **probes}


def _model_at(
    folder: RunFolder,
    config: RunConfig,
    step: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> HookedTransformer:
    check_model_fits(config.model)  # before the file is read
    weights = folder.weights(step)
    try:
        return model_from_weights(config, weights, device=device, dtype=dtype)
    except StoreError as error:
        raise StoreError(f"{folder.path} at step {step}: {error}") from error


def _memory_advice(config: RunConfig) -> str:
    train, model = config.train, config.model
    return (
        f"lower batch_size ({train.batch_size:,}), n_sequences ({train.n_sequences:,}) or the "
        f"model (d_model {model.d_model}, d_mlp {model.d_mlp}, n_layers {model.n_layers}); what "
        "was checkpointed is kept"
    )


def _note_session(writer: RunWriter, step: int, device: torch.device) -> None:
    set_aside = writer.set_aside_damaged_provenance()
    if set_aside is not None:
        _LOGGER.warning(set_aside)
    earlier = writer.provenance()
    session = {"from_step": step, **describe_environment(device)}
    writer.start_session(session)
    for name in BIT_FOR_BIT:
        if earlier and earlier[-1].get(name) != session[name]:
            _LOGGER.warning(
                "resuming with other %s (%s; before: %s): the weights may differ in their "
                "last bits",
                name,
                session[name],
                earlier[-1].get(name),
            )


def _note_missing_metrics(writer: RunWriter, config: RunConfig, step: int) -> None:
    """Say how many lines are gone of those that the checkpoint's step implies."""
    settings = config.train
    expected = step // settings.log_every + 1
    if step == settings.steps and step % settings.log_every:
        expected += 1
    missing = expected - len(writer.metrics())
    if missing > 0:
        _LOGGER.warning(
            "%s/metrics.jsonl lacks %d of %d lines up to step %d; the training goes on without "
            "these points of its curves",
            writer.path,
            missing,
            expected,
            step,
        )
