"""Runs of one shape that train as a batch of models (:mod:`anchor_interp.sweeps.model_stack`).

Each run gets the same folder as from :func:`anchor_interp.runs.train.train`, so a run that a batch
began can be resumed alone, and the reverse. A run that ends or fails leaves the batch, and one that
waits for room joins it.
"""

import contextlib
import logging
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from anchor_interp._util import environment, signals
from anchor_interp._util.errors import (
    AnchorInterpError,
    InterruptedRunError,
    OutOfMemoryError,
    error_of,
)
from anchor_interp._util.machine_limits import memory_limit
from anchor_interp.runs.config import RunConfig, memory_bytes
from anchor_interp.runs.loop import StepEvent, check_finite_step
from anchor_interp.runs.memory import check_training_fits, explained, memory_advice
from anchor_interp.runs.objectives import draw_training
from anchor_interp.runs.session import Probes, Session, is_done
from anchor_interp.runs.store import writing
from anchor_interp.sweeps.engine import RunResult
from anchor_interp.sweeps.model_stack import Member, Stack
from anchor_interp.tasks.examples import Dataset

MOST_MODELS = 256
"""The largest batch: this many models fill a GPU even if they are tiny."""
_SHARE = 0.8  # of the free memory
_COPIES = 4
"""Tensors kept for each activation that :func:`memory_bytes` counts: its gradient, statistics of
softmax and LayerNorm, queries, keys and values joined. A high estimate."""
_LOGGER = logging.getLogger(__name__)


def batch_size(configs: Sequence[RunConfig], device: str | torch.device) -> int:
    """How many of these runs of one shape to train together: as many as fit, on a CPU one."""
    target = environment.resolve_device(device)
    return _fitting(configs, target) if target.type == "cuda" else 1


def train_batch(
    configs: Mapping[str, RunConfig],
    folder: Path,
    *,
    device: str = "auto",
    threads: int | None = None,
) -> Generator[RunResult, None, None]:
    """Train runs of one shape, each in ``folder / name``; resume those that exist.

    Yields a result for each run as it ends; closing the iterator early checkpoints the others.
    Takes gradients also within ``torch.no_grad`` and ``torch.inference_mode``.

    Raises:
        ConfigError: the runs are too large for the memory; the precision, device or number of
            threads cannot be used.
        InterruptedRunError: SIGINT or SIGTERM; the unfinished runs are checkpointed first.
    """
    target = environment.resolve_device(device)
    for config in configs.values():
        check_training_fits(config, target)
    return _train(configs, folder, target, threads)


@torch.inference_mode(False)
@torch.enable_grad()
def _train(
    configs: Mapping[str, RunConfig], folder: Path, device: torch.device, threads: int | None
) -> Generator[RunResult, None, None]:
    with signals.stop_signals() as stopped, environment.limited_threads(threads):
        batch = _Batch(configs, folder, device, stopped)
        try:
            yield from batch.train()
        except (InterruptedRunError, GeneratorExit):
            batch.checkpoint()
            raise
        finally:
            batch.release()


class _Batch:
    """Runs that wait, and runs that are in the stack."""

    def __init__(
        self,
        configs: Mapping[str, RunConfig],
        folder: Path,
        device: torch.device,
        stopped: signals.StopRequest,
    ) -> None:
        self._configs, self._folder, self._device = configs, folder, device
        self._stopped, self._waiting = stopped, list(configs)
        self._sessions: dict[str, Session] = {}
        self._held: dict[str, contextlib.ExitStack] = {}
        self._room = _fitting(list(configs.values()), device)
        self._drawn: dict[Hashable, Dataset] = {}

    def train(self) -> Iterator[RunResult]:
        while self._waiting or self._sessions:
            yield from self._fill()
            yield from self._judge_trained()  # of an earlier session that stopped before judging
            if self._sessions:
                yield from self._train_until_one_ends()

    def checkpoint(self) -> None:
        """Checkpoint every unfinished run whose folder can be written."""
        for name, session in self._sessions.items():
            try:
                session.keep(leaving=True)
            except AnchorInterpError as error:
                _LOGGER.error("%s was not checkpointed: %s", self._folder / name, error)

    def release(self) -> None:
        self._sessions.clear()
        while self._held:
            self._held.popitem()[1].close()

    def _fill(self) -> Iterator[RunResult]:
        while self._waiting and len(self._sessions) < self._room:
            self._check_stopped()
            name = self._waiting.pop(0)
            error = error_of(self._begin, name)
            if name not in self._sessions:
                yield RunResult(name, error)

    def _begin(self, name: str) -> None:
        """Start or resume a run, unless it is done."""
        config = self._configs[name]
        with contextlib.ExitStack() as held:
            writer = held.enter_context(writing(self._folder / name, config))
            if is_done(writer, config):
                return
            task, n, seed = config.task, config.train.n_sequences, config.seed
            message = "stopped before training began; give the same command again"
            with self._stopped.at_once(message):
                if (task, n, seed) not in self._drawn:
                    self._drawn[task, n, seed] = draw_training(config)
            with explained("starting or resuming a run", memory_advice(config)):
                probes = Probes(config, self._drawn[task, n, seed])
                session = Session(writer, probes, self._device)
            self._sessions[name], self._held[name] = session, held.pop_all()

    def _train_until_one_ends(self) -> Iterator[RunResult]:
        names, sessions = list(self._sessions), list(self._sessions.values())
        doing, advice = f"training {len(names)} models at once", memory_advice(sessions[0].config)
        ended: list[RunResult] = []
        try:
            with explained(doing, advice):
                stack = Stack([Member(s.config, s.state, s.training) for s in sessions])
                while not ended:
                    n_steps = min(session.next_due - session.state.step for session in sessions)
                    events = stack.advance(n_steps, self._stopped)
                    self._record(stack, dict(zip(names, events, strict=True)), ended)
                    self._check_stopped()
                    ended.extend(self._judge_trained())  # one by one: the next may raise
        except OutOfMemoryError as error:
            ended += self._make_room(error)
        yield from ended

    def _record(
        self, stack: Stack, events: Mapping[str, StepEvent], ended: list[RunResult]
    ) -> None:
        """Log and checkpoint what is due; a run that fails leaves and joins ``ended`` at once."""
        sessions = [self._sessions[name] for name in events]
        wanted = {i: s.probes.tokens for i, s in enumerate(sessions) if s.wants_accuracies}
        answers = stack.answers(wanted)
        for index, (name, event) in enumerate(events.items()):
            session = sessions[index]
            try:
                if session.is_due:
                    check_finite_step(event, session.config.train)
                session.log(event, answers.get(index))
                session.keep()
            except AnchorInterpError as error:
                ended.append(self._leave(name, error))

    def _judge_trained(self) -> Iterator[RunResult]:
        for name, session in list(self._sessions.items()):
            if session.is_trained:
                yield self._leave(name, error_of(session.judge, self._stopped))

    def _make_room(self, error: OutOfMemoryError) -> list[RunResult]:
        """Go on with half as many runs, each from its newest checkpoint."""
        if len(self._sessions) == 1:
            return [self._leave(name, error) for name in list(self._sessions)]
        self._room = len(self._sessions) // 2
        _LOGGER.warning("%s; going on with %d models at once", error, self._room)
        self._waiting = [*self._sessions, *self._waiting]
        self.release()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return []

    def _leave(self, name: str, error: AnchorInterpError | None) -> RunResult:
        del self._sessions[name]
        self._held.pop(name).close()
        return RunResult(name, error)

    def _check_stopped(self) -> None:
        if self._stopped():
            text = f"stopped and checkpointed {len(self._sessions)} runs"
            raise InterruptedRunError(f"{text}; give the same command again to continue")


def _fitting(configs: Sequence[RunConfig], device: torch.device) -> int:
    """How many runs fit into memory together, at least one."""
    needed = max(
        size["weights"] + _COPIES * size["activations"] + size["training sequences"]
        for size in map(memory_bytes, configs)
    )
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_limit()
    return max(1, min(len(configs), MOST_MODELS, int(_SHARE * free / needed)))
