"""Trains a run: a configuration becomes a trained and judged model in a run folder."""

from collections.abc import Callable
from pathlib import Path

import torch

from anchor_interp._util import environment, signals
from anchor_interp._util.errors import InterruptedRunError
from anchor_interp._util.files import is_there, output_folder
from anchor_interp._util.progress import Progress, reporting_one
from anchor_interp._util.schema import checked, checked_path
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.distributed import Processes, processes
from anchor_interp.runs.loop import Objective, StepEvent, TrainState, fit
from anchor_interp.runs.memory import check_training_fits, explained, memory_advice
from anchor_interp.runs.objectives import draw_training, make_objective
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.session import Probes, Session, is_done
from anchor_interp.runs.store import Row, writing
from anchor_interp.runs.tracking import Track, check_tracker, tracking

_NARROW = 256
_BEFORE = "stopped before training began; give the same command again"


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

    The same call resumes an interrupted run from its last checkpoint. On a CPU it ends in the same
    weights bit for bit, with the same machine, threads and build. A finished run is returned.
    Where ``accelerate launch`` has started several processes, they train together
    (:mod:`anchor_interp.runs.distributed`).

    Args:
        out: the run folder; created, resumed, or refused if it holds anything else.
        device: ``auto`` (a CUDA GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ...
        threads: CPU threads of this process. If None, one for a model narrower than 256, which
            gains nothing from more (``docs/performance.md``), and PyTorch's setting for others.
        track: also show the metrics in ``tensorboard``, which never stops the run
            (:mod:`anchor_interp.runs.tracking`).

    Raises:
        ConfigError: an argument cannot be used, or the run cannot fit into memory.
        StoreError: the folder cannot be used; LockedError if another process is writing it.
        OutOfMemoryError: memory ran out during training.
        DivergedError: the loss, the gradient or the weights are no longer finite.
        InterruptedRunError: SIGINT or SIGTERM arrived; the run was checkpointed first.
    """
    checked(config, RunConfig, "config")
    check_tracker(track)
    path = output_folder(checked_path(out, "out"), "the run", "sweep")
    group, device = processes(config, device)
    target = environment.resolve_device(device)
    check_training_fits(config, target)
    if threads is None and target.type == "cpu" and config.model.width < _NARROW:
        threads = 1
    with (
        signals.stop_signals() as stopped,
        environment.limited_threads(threads),
        torch.inference_mode(False),
        torch.enable_grad(),
        explained("training", memory_advice(config)),
    ):
        if group.rank == 0:
            _lead(config, path, target, group, stopped, quiet, track)
        else:
            _follow(config, target, group, stopped)
    group.wait()
    return load(path, device=device)


def _lead(
    config: RunConfig,
    path: Path,
    target: torch.device,
    group: Processes,
    stopped: signals.StopRequest,
    quiet: bool,
    track: Track | None,
) -> None:
    """In the process that writes: prepare, train, judge."""
    with group.leading() as start:
        # before the folder is made: a task with wrong examples leaves none behind
        is_new = not is_there(path / "config.json")
        probes = _prepare(config, stopped) if is_new else None
        with writing(path, config) as writer:
            if is_done(writer, config):
                return
            probes = probes or _prepare(config, stopped)
            with stopped.at_once(_BEFORE):
                objective = make_objective(config, target, probes.training, group)
            session = Session(writer, probes, target)
            start(session.state)
            steps, size = config.train.steps, config.train.batch_size
            with (
                tracking(track, path, config, writer.metrics()) as show,
                reporting_one(path.name, steps, batch_size=size, quiet=quiet) as progress,
            ):
                _train(session, objective, group, stopped, show, progress)
            session.judge(stopped)


def _prepare(config: RunConfig, stopped: signals.StopRequest) -> Probes:
    """Draw the training set and the probes along training."""
    with stopped.at_once(_BEFORE):
        return Probes(config, draw_training(config))


def _train(
    session: Session,
    objective: Objective,
    group: Processes,
    stopped: signals.StopRequest,
    show: Callable[[Row], None],
    progress: Progress,
) -> None:
    """Do all steps that are left; log, checkpoint and report them."""

    def on_event(state: TrainState, event: StepEvent) -> None:
        if (row := session.log(event)) is not None:
            show(row)
        leaving = group.agree(stopped, state.device) and not session.is_trained
        session.keep(leaving=leaving)
        progress.update(state.step, session.latest)
        if leaving:
            raise InterruptedRunError(
                f"stopped at step {state.step} of {session.config.train.steps} and checkpointed; "
                "give the same command again to continue"
            )

    while not session.is_trained:  # an evaluation on the way may bring the end forward
        fit(session.state, objective, until=session.next_due, on_event=on_event)


def _follow(
    config: RunConfig, target: torch.device, group: Processes, stopped: signals.StopRequest
) -> None:
    """Train in another process, as long as process 0 does."""
    state = TrainState.fresh(config, target)
    if not group.follow(state):
        return
    objective = make_objective(config, target, None, group)

    def on_event(state: TrainState, event: StepEvent) -> None:
        if group.agree(stopped, state.device) and event.step < config.train.steps:
            raise InterruptedRunError(f"stopped at step {event.step} of {config.train.steps}")

    fit(state, objective, until=config.train.steps, on_event=on_event)
