"""One training by several processes, which Hugging Face accelerate starts.

::

    accelerate launch --num_processes 2 -m anchor_interp train --preset language-tiny runs/language

Every process holds the whole model and works through its share of a step's rows. Their gradients
are added up before they are clipped, so each makes the same update: a run does not depend on the
number of processes but for rounding, and may be resumed with another one. Process 0 alone writes
the run folder; the others start from what it has, sent to them. A signal that reaches one process
stops all after the same step.
"""

import atexit
import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from anchor_interp._util.environment import StopRequest
from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.limits import launched
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.loop import TrainState

_DONE, _FAILED = -1, -2  # what process 0 tells instead of a step


@dataclass(frozen=True)
class Processes:
    """The processes of a training; by itself, one that is alone."""

    rank: int = 0
    """The number of this process; 0 writes."""
    size: int = 1
    """How many there are."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def own(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """This process's share of a step's rows."""
        return rows[self.rank :: self.size]

    def add_up(self, model: nn.Module, loss: Tensor) -> Tensor:
        """Replace every gradient by its sum over all processes; returns the sum of the losses."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([loss.detach().reshape(1), *(grad.flatten() for grad in grads)])
        torch.distributed.all_reduce(flat)
        start = 1
        for parameter in parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return flat[0]

    def agree(self, stopped: StopRequest, device: torch.device) -> bool:
        """Whether any process was asked to stop."""
        if self.size == 1:
            return stopped()
        asked = torch.tensor(int(stopped()), device=device)
        torch.distributed.all_reduce(asked)
        return bool(asked.item())

    def share(self, state: TrainState) -> TrainState:
        """Give every process the state of process 0."""
        if self.size == 1:
            return state
        state.add_up = self.add_up
        has_moments = self._told(int(bool(state.optimizer.state)), state.device)
        for parameter in state.model.parameters():
            moments = state.optimizer.state[parameter] if has_moments else {}
            if has_moments and not self.is_main:
                at = "cpu" if not state.optimizer.defaults["fused"] else parameter.device
                moments["step"] = torch.zeros((), device=at)
                moments |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            for tensor in (parameter.data, *moments.values()):
                torch.distributed.broadcast(tensor, 0)
        state.step = self._told(state.step, state.device)
        return state

    def follow(self, state: TrainState) -> bool:
        """Take process 0's state, in another process; False if it has nothing left to train."""
        told = self._told(0, state.device)
        if told == _FAILED:
            raise AnchorInterpError("process 0 of this training failed; see what it says")
        if told == _DONE:
            return False
        self.share(state)
        return True

    @contextlib.contextmanager
    def leading(self, device: torch.device) -> Iterator["Leader"]:
        """In process 0: let the others go on, whatever becomes of the block."""
        leader = Leader(self, device)
        try:
            yield leader
        except BaseException:
            leader.tell(_FAILED)
            raise
        leader.tell(_DONE)

    def wait(self) -> None:
        """Go on when every process has come here."""
        if self.size > 1:
            torch.distributed.barrier()

    def _told(self, value: int, device: torch.device) -> int:
        """Process 0's value of a number."""
        if self.size == 1:
            return value
        found = torch.tensor(value, device=device)
        torch.distributed.broadcast(found, 0)
        return int(found.item())


ALONE = Processes()


@dataclass
class Leader:
    """Process 0, which tells the others once whether they train with it."""

    processes: Processes
    device: torch.device
    has_told: bool = False

    def start(self, state: TrainState) -> None:
        """Start the training in every process, from this state."""
        self.tell(state.step)
        self.processes.share(state)

    def tell(self, value: int) -> None:
        """Tell the others where they stand, unless they know."""
        if not self.has_told:
            self.has_told = True
            self.processes._told(value, self.device)


def is_follower() -> bool:
    """Whether accelerate started this process, and another one speaks for it."""
    return os.environ.get("RANK", "0") != "0"


@contextlib.contextmanager
def processes(config: RunConfig, device: str) -> Iterator[tuple[Processes, str]]:
    """The processes of this training and the device of this one, inside the block.

    Without accelerate it is alone, on the device that was asked for.

    Raises:
        ConfigError: a device that not every process has, fewer rows in a batch than processes, or
            several processes for a task with a network of its own or a run with ``until_accuracy``.
    """
    size, batch_size = launched(), config.train.batch_size
    if size <= 1:
        yield ALONE, device
        return
    if config.task.network is not None:
        raise ConfigError(
            f"{size} processes were started (WORLD_SIZE is {size}), and the task "
            f"{config.task.kind} has a network of its own; expected one: start it without "
            "accelerate launch, or unset WORLD_SIZE"
        )
    if config.train.until_accuracy is not None:
        raise ConfigError(
            f"{size} processes were started (WORLD_SIZE is {size}), and train.until_accuracy is "
            f"{config.train.until_accuracy:g}, which one process decides alone; expected one "
            "process, or no until_accuracy"
        )
    if batch_size < size:
        what = f"train.batch_size is {batch_size}; expected at least {size}, a row a process"
        raise ConfigError(what)
    if device not in ("auto", "cpu", "cuda"):
        expected = "expected auto, cpu or cuda: every process has a device of its own"
        raise ConfigError(f"device is {device!r}; {expected}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', which this machine does not have; take auto or cpu")
    # One process reads a corpus, which may take days. The others wait here for its lock: in the
    # group they would wait for minutes only.
    _ = config.task.data
    state = _group(device == "cpu" or not torch.cuda.is_available())
    if device not in ("auto", state.device.type):
        expected = f"expected auto or {state.device.type}, where these processes work together"
        raise ConfigError(f"device is {device!r}; {expected}")
    yield Processes(state.process_index, state.num_processes), str(state.device)


@functools.cache
def _group(cpu: bool) -> Any:
    """The group of processes: one for as long as they live, which serves run after run.

    accelerate cannot make a second group in a process.
    """
    from accelerate import PartialState  # it takes a second to load

    state: Any = PartialState(cpu=cpu)
    atexit.register(state.destroy_process_group)
    return state
