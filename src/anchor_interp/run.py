"""The main job: a configuration becomes a trained, judged run in a folder.

:func:`train` is the whole pipeline and reads like it: take the folder, start or resume, fit,
judge. :func:`load` opens what it left behind.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anchor_interp.config import RunConfig, run_id
from anchor_interp.data import Sequences, sample
from anchor_interp.environment import (
    BIT_FOR_BIT,
    describe_environment,
    limited_threads,
    now,
    resolve_device,
    stop_signals,
)
from anchor_interp.errors import InterruptedRunError, StoreError
from anchor_interp.evaluation import accuracy, evaluate
from anchor_interp.model import HookedTransformer, build_model, empty_model, place
from anchor_interp.phase import Evaluation, Phase, decide
from anchor_interp.progress import Progress, Silent, reporting
from anchor_interp.schema import checked, checked_path, from_dict, to_dict
from anchor_interp.store import Row, RunFolder, RunWriter
from anchor_interp.training import (
    AnchorObjective,
    StepEvent,
    TrainState,
    fit,
    total_decay,
)

_PROBES = 512


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
        weights = self.folder.weights(self.step)
        return model_from_weights(self.config, weights, device=self.device, dtype=self.dtype)

    @property
    def evaluation(self) -> Evaluation:
        """The stored evaluation of the final checkpoint.

        Raises:
            StoreError: the run is not done.
        """
        evaluation: Evaluation = from_dict(Evaluation, self._result()["evaluation"])
        return evaluation

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

    def evaluate(self, *, n: int = 500, seed: int = 0) -> Evaluation:
        """Measure the model of this checkpoint on the run's own task and training sequences."""
        return _evaluate(self.config, self.model, self.step, n=n, seed=seed)

    def _result(self) -> Row:
        result = self.folder.result()
        if result is None:
            raise StoreError(f"{self.path} is not done; train it to the end first")
        if result.get("run_id") != run_id(self.config) or "evaluation" not in result:
            raise StoreError(f"{self.path}/result.json does not belong to this run; remove it")
        return result


def train(
    config: RunConfig,
    out: str | Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
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

    Returns:
        The finished run.

    Raises:
        ConfigError: a device or thread count that cannot be used.
        StoreError: the folder cannot be used; LockedError if another process is writing it.
        DivergedError: loss or gradient are no longer finite.
        InterruptedRunError: SIGINT or SIGTERM; the run was checkpointed first.
    """
    checked(config, RunConfig, "config")
    target = resolve_device(device)
    folder = RunFolder(checked_path(out, "out"))
    with limited_threads(threads), folder.writing(config) as writer, stop_signals() as stopped:
        if not _is_done(writer, config):
            _note_session(writer, target)
            objective = AnchorObjective(config, target)
            state = _start_or_resume(writer, config, objective, target)
            _fit(writer, config, state, objective, stopped, quiet)
            _judge(writer, config, state, objective)
    return load(folder.path, device=device)


def load(
    path: str | Path,
    *,
    step: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Run:
    """Open a run folder.

    Args:
        path: the folder.
        step: the checkpoint whose model is wanted; the newest if None.
        device: where to place the model.
        dtype: dtype of the model, such as ``torch.float64`` for exact analyses.

    Raises:
        StoreError: no run folder, no such checkpoint, or a damaged file.
        ConfigError: a damaged configuration, or a device that cannot be used.
    """
    folder = RunFolder(checked_path(path, "the path of the run"))
    config = folder.config()
    steps = folder.steps()
    if not steps:
        raise StoreError(f"{folder.path} has no checkpoint yet; train it first")
    if step is not None and step not in steps:
        raise StoreError(f"{folder.path} has no checkpoint at step {step}; it has {steps}")
    chosen = steps[-1] if step is None else step
    return Run(folder, config, chosen, resolve_device(device), dtype)


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
    """
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
    return True


def _start_or_resume(
    writer: RunWriter, config: RunConfig, objective: AnchorObjective, device: torch.device
) -> TrainState:
    step = writer.fall_back()
    if step is not None:
        model = model_from_weights(config, writer.weights(step), device=device)
        state = TrainState(model, config.train, step)
        if step:
            state.load_optimizer(writer.optimizer(step))
        writer.cut_metrics(step)
        writer.thin_out(config.train.checkpoint_every)
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
    stopped: Callable[[], bool],
    quiet: bool,
) -> None:
    settings, probes = config.train, _Probes(config, objective)
    latest: Row = {}

    def save() -> None:
        every = settings.checkpoint_every
        writer.save_checkpoint(state.step, state.weights(), state.optimizer_tensors(), every)

    def on_event(state: TrainState, event: StepEvent) -> None:
        step, last = event.step, event.step == settings.steps
        writer.heartbeat()
        if step % settings.log_every == 0 or last:
            row = {
                "step": step,
                "loss": event.loss.item(),
                "lr": event.lr,
                "grad_norm": event.grad_norm.item(),
            }
            if step % settings.eval_every == 0 or last:
                row |= probes.accuracies(state.model)
            writer.append_metrics(row)
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
        progress: Progress = Silent()
        if not quiet:
            shown = reporting({name: (settings.steps, settings.batch_size)})
            progress = stack.enter_context(shown)[name]
        fit(state, objective, until=settings.steps, on_event=on_event)


def _judge(
    writer: RunWriter, config: RunConfig, state: TrainState, objective: AnchorObjective
) -> None:
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


def _note_session(writer: RunWriter, device: torch.device) -> None:
    steps, earlier = writer.steps(), writer.provenance()
    session = {"from_step": steps[-1] if steps else 0, **describe_environment(device)}
    writer.start_session(session)
    for name in BIT_FOR_BIT:
        if earlier and earlier[-1].get(name) != session[name]:
            print(
                f"note: resuming with other {name} ({session[name]}; before: "
                f"{earlier[-1].get(name)}): the weights may differ in their last bits",
                file=sys.stderr,
            )
