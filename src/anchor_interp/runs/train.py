"""The main job: a configuration becomes a trained, judged run in a folder."""

import contextlib
import functools
import logging
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Integer

from anchor_interp._util.environment import (
    BIT_FOR_BIT,
    StopRequest,
    describe_environment,
    limited_threads,
    now,
    resolve_device,
    stop_signals,
)
from anchor_interp._util.errors import InterruptedRunError, StoreError
from anchor_interp._util.progress import reporting
from anchor_interp._util.schema import checked, checked_path, to_dict
from anchor_interp.runs.config import RunConfig, run_id, total_decay
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.memory import check_training_fits, explained
from anchor_interp.runs.phase import decide
from anchor_interp.runs.run import Run, evaluate_run, load, model_at
from anchor_interp.runs.store import Row, RunFolder, RunWriter
from anchor_interp.runs.tracking import Track, check_tracker, tracking
from anchor_interp.runs.training import (
    AnchorObjective,
    StepEvent,
    TrainState,
    check_finite_weights,
    check_precision,
    fit,
)
from anchor_interp.tasks.sequences import Sequences, sample

_PROBES = 512


_LOGGER = logging.getLogger(__name__)


class Session:
    """A session of training a run whose folder is held for writing.

    Made, it has started the run or resumed it from its newest checkpoint.
    """

    def __init__(
        self, writer: RunWriter, config: RunConfig, training: Sequences, device: torch.device
    ) -> None:
        self.writer = writer
        """The run folder."""
        self.config = config
        """What is trained."""
        self.training = training
        """The run's training sequences."""
        self.probes = Probes(config, training)
        """What the accuracies along training are measured on."""
        self.latest: Row = {}
        """The latest line of metrics, with the latest accuracies."""
        self.state = self._start_or_resume(device)
        """Weights, moments and step."""

    @property
    def is_trained(self) -> bool:
        """Whether no step is left."""
        return self.state.step >= self.config.train.steps

    @property
    def is_due(self) -> bool:
        """Whether there is something to be logged or kept of the step that the state is at."""
        train, step = self.config.train, self.state.step
        return self.is_trained or not step % train.log_every or not step % train.checkpoint_every

    @property
    def next_due(self) -> int:
        """The next step at which that is so."""
        train, step = self.config.train, self.state.step
        following = (
            every * (step // every + 1) for every in (train.log_every, train.checkpoint_every)
        )
        return min(*following, train.steps)

    @property
    def wants_accuracies(self) -> bool:
        """Whether accuracies are due at the step that the state is at."""
        return self.is_trained or self.state.step % self.config.train.eval_every == 0

    def log(self, event: StepEvent, answers: Integer[np.ndarray, " n"] | None = None) -> Row | None:
        """Write the line of metrics of a step, if one is due.

        Args:
            event: the step that the state was brought to.
            answers: what the model predicts for the probes' tokens, where the caller has asked it.

        Returns:
            The line, or None.

        Raises:
            StoreError: the folder cannot be written, or is no longer there.
            DivergedError: weights that are not finite, when accuracies are due.
        """
        self.writer.check()
        if event.step % self.config.train.log_every and not self.is_trained:
            return None
        row = {
            "step": event.step,
            "loss": event.loss.item(),
            "lr": event.lr,
            "grad_norm": event.grad_norm.item(),
        }
        if self.wants_accuracies:
            check_finite_weights(self.state)
            if answers is None:
                answers = predict(self.state.model, self.probes.tokens)
            row |= self.probes.accuracies(answers)
        self.writer.append_metrics(row)
        self.latest.update(row)
        return row

    def keep(self, *, leaving: bool = False) -> None:
        """Commit a checkpoint of the state, if one is due or the session ends here.

        Raises:
            StoreError: the folder cannot be written.
            DivergedError: weights that are not finite.
        """
        every = self.config.train.checkpoint_every
        if self.state.step % every == 0 or self.is_trained or leaving:
            check_finite_weights(self.state)
            weights, optimizer = self.state.weights(), self.state.optimizer_tensors()
            self.writer.save_checkpoint(self.state.step, weights, optimizer, every)
            self.writer.end_session(ended=now())  # so far: a kill may follow
            _LOGGER.debug("%s: checkpoint at step %d", self.writer.path, self.state.step)

    def judge(self, stopped: StopRequest) -> None:
        """Evaluate the final checkpoint and write the result: the run is done.

        Raises:
            StoreError: the folder cannot be written.
            InterruptedRunError: a signal to stop came; the checkpoint stays.
        """
        config, state, writer = self.config, self.state, self.writer
        message = "stopped while judging the final checkpoint, which is kept; give the same command"
        with stopped.at_once(f"{message} again to continue"):
            evaluation = evaluate_run(config, state.model, state.step, training=self.training)
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

    def _start_or_resume(self, device: torch.device) -> TrainState:
        writer, config = self.writer, self.config
        before = writer.steps()
        step = writer.fall_back()
        _note_session(writer, step or 0, device)
        if step is not None:
            if step != before[-1]:
                _LOGGER.warning(
                    "the checkpoint at step %d lacks its optimizer state; training again from "
                    "step %d",
                    before[-1],
                    step,
                )
            state = TrainState(model_at(writer, config, step, device), config.train, step)
            if step:
                state.load_optimizer(writer.optimizer(step))
            writer.cut_metrics(step)
            _note_missing_metrics(writer, config, step)
            writer.thin_out(config.train.checkpoint_every)
            _LOGGER.info("%s: continuing at step %d of %d", writer.path, step, config.train.steps)
            return state
        state = TrainState.fresh(config, device)
        answers = predict(state.model, self.probes.tokens)
        writer.cut_metrics(-1)
        writer.append_metrics({"step": 0, **self.probes.accuracies(answers)})
        writer.save_checkpoint(0, state.weights(), {}, config.train.checkpoint_every)
        return state


class Probes:
    """Small fixed sets for the accuracies along training."""

    def __init__(self, config: RunConfig, training: Sequences) -> None:
        # Another seed than the final evaluation's, so that curve and verdict are independent.
        draw = functools.partial(sample, config.task, n=_PROBES, seed=1)
        sets = {"train_accuracy": training, "id_accuracy": draw("id")}
        if config.task.unseen:
            sets["ood_accuracy"] = draw("ood")
        self._targets = {name: part.targets[:_PROBES] for name, part in sets.items()}
        self.tokens = np.concatenate([part.tokens[:_PROBES] for part in sets.values()])
        """The sequences of all sets."""

    def accuracies(self, answers: Integer[np.ndarray, " n"]) -> Row:
        """``train_accuracy``, ``id_accuracy`` and, where there are unseen pairs, ``ood_``.

        Args:
            answers: what a model predicts for :attr:`tokens`.
        """
        ends = np.cumsum([len(targets) for targets in self._targets.values()])
        parts = np.split(answers, ends[:-1])
        return {
            name: float((part == targets).mean())
            for part, (name, targets) in zip(parts, self._targets.items(), strict=True)
        }


def is_done(writer: RunWriter, config: RunConfig) -> bool:
    """Whether a run has its result already.

    Raises:
        StoreError: a result or a final checkpoint that does not belong to the run, or is damaged.
    """
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


def memory_advice(config: RunConfig) -> str:
    """What to change in a run for which the memory does not suffice."""
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
            the run and never stops it (see :mod:`anchor_interp.runs.tracking`).

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
    check_precision(config.train, target)
    check_training_fits(config, target)
    folder = RunFolder(checked_path(out, "out"))
    with (
        stop_signals() as stopped,
        limited_threads(threads),
        folder.writing(config) as writer,
        explained("training", memory_advice(config)),
    ):
        if not is_done(writer, config):
            with stopped.at_once("stopped before training began; give the same command again"):
                objective = AnchorObjective(config, target)
            session = Session(writer, config, objective.sequences, target)
            _fit(session, objective, stopped, quiet, track)
            session.judge(stopped)
    return load(folder.path, device=device)


def _fit(
    session: Session,
    objective: AnchorObjective,
    stopped: StopRequest,
    quiet: bool,
    track: Track | None,
) -> None:
    config, writer = session.config, session.writer
    settings, name = config.train, writer.path.name

    def on_event(state: TrainState, event: StepEvent) -> None:
        row = session.log(event)
        if row is not None:
            show(row)
        leaving = stopped() and not session.is_trained
        session.keep(leaving=leaving)
        progress.update(state.step, session.latest)
        if leaving:
            raise InterruptedRunError(
                f"stopped at step {state.step} of {settings.steps} and checkpointed; give the same "
                "command again to continue"
            )

    with contextlib.ExitStack() as stack:
        show = stack.enter_context(tracking(track, writer.path, config, writer.metrics()))
        shown = reporting({name: (settings.steps, settings.batch_size)}, quiet=quiet)
        progress = stack.enter_context(shown)[name]
        fit(session.state, objective, until=settings.steps, on_event=on_event)
