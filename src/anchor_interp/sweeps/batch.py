"""Runs of one shape that train as a batch of models (:mod:`anchor_interp.sweeps.stacked`).

:func:`train_batch` does to every run folder what :func:`anchor_interp.runs.train.train` does, through the
same :class:`anchor_interp.runs.train.Session`: what a batch began can be resumed alone, and the other
way round. A run that ends, diverges or cannot be written leaves the batch, and one that waits for
room joins it; the others go on from where they are.
"""

import contextlib
import logging
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from anchor_interp._util.environment import (
    StopRequest,
    limited_threads,
    resolve_device,
    stop_signals,
)
from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError, OutOfMemoryError
from anchor_interp._util.progress import Progress, reporting
from anchor_interp._util.schema import checked_path
from anchor_interp.runs.config import RunConfig, memory_bytes
from anchor_interp.runs.memory import check_training_fits, explained, memory_limit
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.train import Session, is_done, memory_advice
from anchor_interp.runs.training import StepEvent, check_finite_step, check_precision
from anchor_interp.sweeps.engine import RunResult
from anchor_interp.sweeps.stacked import Member, Stack, check_one_shape
from anchor_interp.tasks.sequences import Sequences, sample

MOST_MODELS = 256
"""Models of a batch at most: so many fill a GPU even if they are tiny."""


_SHARE = 0.8
"""Part of the free memory that a batch may take by the estimate of :func:`_fitting`."""


_COPIES = 4
"""Tensors kept for each activation that :func:`memory_bytes` counts: its gradient, statistics of
softmax and LayerNorm, queries, keys and values joined. An estimate, rather too large."""


_LOGGER = logging.getLogger(__name__)


def batch_size(configs: Sequence[RunConfig], device: str | torch.device) -> int:
    """How many of these runs to train at once: as many as fit, where it pays.

    On a CPU that is one: a model has the core busy by itself, so that a batch of 8 tiny ones takes
    about as long as the 8 in a row (``benchmarks/batched.py``).

    Args:
        configs: runs with the same :func:`anchor_interp.runs.config.shape_key`.
        device: where they train.

    Raises:
        ConfigError: configurations of several shapes, or a device that cannot be used.
    """
    check_one_shape(configs)
    target = resolve_device(device)
    return _fitting(configs, target) if configs and target.type == "cuda" else 1


def train_batch(
    configs: Mapping[str, RunConfig],
    folder: Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = True,
) -> Generator[RunResult, None, None]:
    """Train runs of one shape at once; each in ``folder / name``, resuming what is there.

    Args:
        configs: runs by name, all with the same :func:`anchor_interp.runs.config.shape_key`.
        folder: where the run folders go.
        device: as in :func:`anchor_interp.runs.train.train`.
        threads: CPU threads of this process; PyTorch's setting if None.
        quiet: report no progress.

    Returns:
        An iterator of one result per run as it ends. A run that fails (it diverges, its folder is
        held by another process or cannot be written) does not stop the others. Runs that do not fit
        into memory together follow as others end. Leaving the iterator early checkpoints the runs
        that are under way.

    Raises:
        ConfigError: configurations of several shapes or too large for the memory, a precision or
            device that cannot be used, a thread count out of range.
        InterruptedRunError: SIGINT or SIGTERM came; the runs under way were checkpointed first.
    """
    check_one_shape(list(configs.values()))
    target = resolve_device(device)
    for config in configs.values():
        check_precision(config.train, target)
        check_training_fits(config, target)
    return _train(configs, checked_path(folder, "folder"), target, threads, quiet)


def _train(
    configs: Mapping[str, RunConfig],
    folder: Path,
    device: torch.device,
    threads: int | None,
    quiet: bool,
) -> Generator[RunResult, None, None]:
    lengths = {name: (c.train.steps, c.train.batch_size) for name, c in configs.items()}
    with (
        stop_signals() as stopped,
        limited_threads(threads),
        reporting(lengths, quiet=quiet) as progress,
    ):
        batch = _Batch(configs, folder, device, stopped, progress)
        try:
            yield from batch.train()
        except (InterruptedRunError, GeneratorExit):
            batch.checkpoint()
            raise
        finally:
            batch.release()


@dataclass(frozen=True)
class _Seat:
    """A run that is under way, and what to let go of when it ends."""

    session: Session
    held: contextlib.ExitStack


class _Batch:
    """Runs that wait, and runs that have a seat in the stack."""

    def __init__(
        self,
        configs: Mapping[str, RunConfig],
        folder: Path,
        device: torch.device,
        stopped: StopRequest,
        progress: Mapping[str, Progress],
    ) -> None:
        self._configs, self._folder, self._device = configs, folder, device
        self._stopped, self._progress = stopped, progress
        self._waiting = list(configs)
        self._seats: dict[str, _Seat] = {}
        self._n_seats = _fitting(list(configs.values()), device) if configs else 0
        self._drawn: dict[Hashable, Sequences] = {}

    def train(self) -> Iterator[RunResult]:
        """Train until no run is left."""
        while self._waiting or self._seats:
            yield from self._fill_seats()
            ended: list[RunResult] = []
            self._judge_trained(ended)  # of an earlier session that was stopped before that
            yield from ended
            if self._seats:
                yield from self._train_until_one_ends()

    def checkpoint(self) -> None:
        """Keep the state of every run that is under way, where its folder can be written."""
        for name, seat in self._seats.items():
            try:
                seat.session.keep(leaving=True)
            except AnchorInterpError as error:
                _LOGGER.error("%s was not checkpointed: %s", self._folder / name, error)

    def release(self) -> None:
        """Let go of all folders."""
        for name in list(self._seats):
            self._seats.pop(name).held.close()

    def _fill_seats(self) -> Iterator[RunResult]:
        """Start or resume runs while there is room."""
        while self._waiting and len(self._seats) < self._n_seats:
            if self._stopped():
                raise self._interrupted()
            name = self._waiting.pop(0)
            try:
                is_under_way = self._begin(name)
            except InterruptedRunError:
                raise
            except AnchorInterpError as error:
                yield RunResult(name, self._folder / name, error)
            else:
                if not is_under_way:
                    yield RunResult(name, self._folder / name, None)

    def _begin(self, name: str) -> bool:
        """Give a run a seat, unless it is done."""
        config = self._configs[name]
        with contextlib.ExitStack() as held:
            writer = held.enter_context(RunFolder(self._folder / name).writing(config))
            if is_done(writer, config):
                return False
            message = "stopped before training began; give the same command again"
            with self._stopped.at_once(message):
                training = self._training(config)
            with explained("starting or resuming a run", memory_advice(config)):
                session = Session(writer, config, training, self._device)
            self._seats[name] = _Seat(session, held.pop_all())
        return True

    def _training(self, config: RunConfig) -> Sequences:
        """The training sequences of a run; runs with the same ones share them."""
        task, n, seed = config.task, config.train.n_sequences, config.seed
        if (task, n, seed) not in self._drawn:
            self._drawn[task, n, seed] = sample(task, "train", n, seed=seed)
        return self._drawn[task, n, seed]

    def _train_until_one_ends(self) -> Iterator[RunResult]:
        """Train the runs that have a seat until one leaves it."""
        seats = dict(self._seats)
        advice = memory_advice(next(iter(seats.values())).session.config)
        ended: list[RunResult] = []
        try:
            with explained(f"training {len(seats)} models at once", advice):
                sessions = [seat.session for seat in seats.values()]
                stack = Stack([Member(s.config, s.state, s.training) for s in sessions])
                while not ended:
                    n_steps = min(session.next_due - session.state.step for session in sessions)
                    events = stack.advance(n_steps, self._stopped)
                    self._record(stack, dict(zip(seats, events, strict=True)), ended)
                    if self._stopped():
                        raise self._interrupted()
                    self._judge_trained(ended)
        except OutOfMemoryError as error:
            ended += self._make_room(error)
        yield from ended

    def _record(
        self, stack: Stack, events: Mapping[str, StepEvent], ended: list[RunResult]
    ) -> None:
        """Log and checkpoint what is due; adds the runs that were lost to those that ended."""
        sessions = [self._seats[name].session for name in events]
        answers = stack.answers(
            {
                index: session.probes.tokens
                for index, session in enumerate(sessions)
                if session.wants_accuracies
            }
        )
        for index, (session, (name, event)) in enumerate(
            zip(sessions, events.items(), strict=True)
        ):
            try:
                if session.is_due:
                    check_finite_step(event, session.config.train)
                session.log(event, answers.get(index))
                session.keep()
                self._progress[name].update(event.step, session.latest)
            except AnchorInterpError as error:
                ended.append(self._leave(name, error))

    def _judge_trained(self, ended: list[RunResult]) -> None:
        """Judge the runs that have no step left; adds them to those that ended."""
        for name, seat in list(self._seats.items()):
            if seat.session.is_trained:
                try:
                    seat.session.judge(self._stopped)
                except InterruptedRunError:
                    raise
                except AnchorInterpError as error:
                    ended.append(self._leave(name, error))
                else:
                    ended.append(self._leave(name, None))

    def _make_room(self, error: OutOfMemoryError) -> list[RunResult]:
        """Go on with half as many runs, each from its newest checkpoint."""
        if len(self._seats) == 1:
            return [self._leave(name, error) for name in list(self._seats)]
        self._n_seats = len(self._seats) // 2
        _LOGGER.warning("%s; going on with %d models at once", error, self._n_seats)
        self._waiting = [*self._seats, *self._waiting]
        self.release()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return []

    def _leave(self, name: str, error: AnchorInterpError | None) -> RunResult:
        self._seats.pop(name).held.close()
        return RunResult(name, self._folder / name, error)

    def _interrupted(self) -> InterruptedRunError:
        return InterruptedRunError(
            f"stopped and checkpointed {len(self._seats)} runs; give the same command again to "
            "continue"
        )


def _fitting(configs: Sequence[RunConfig], device: torch.device) -> int:
    """How many runs fit into memory at once, at least one."""
    sizes = map(memory_bytes, configs)
    needed = max(
        size["weights"] + _COPIES * size["activations"] + size["training sequences"]
        for size in sizes
    )
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_limit()
    return max(1, min(len(configs), MOST_MODELS, int(_SHARE * free / needed)))
