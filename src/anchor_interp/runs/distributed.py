"""One training by several processes, which Hugging Face accelerate starts.

::

    accelerate launch --num_processes 2 -m anchor_interp train --preset language-tiny runs/language

Every process holds the whole model and works through its share of a step's rows. Their gradients
are added up before they are clipped, so each makes the same update: a run does not depend on the
number of processes, except for rounding, and may be resumed with another one. Process 0 alone
writes the run folder; the others start from what it has, sent to them. A signal that reaches one
process stops all after the same step.
"""

import atexit
import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.machine_limits import launched
from anchor_interp._util.signals import StopRequest
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.loop import TrainState

_Rows = TypeVar("_Rows", npt.NDArray[np.int64], Tensor)
_DONE, _FAILED = "done", "failed"  # what process 0 tells instead of a state


@dataclass(frozen=True)
class Processes:
    """The processes of a training; by itself, one that is alone."""

    rank: int = 0
    """The number of this process; 0 writes."""
    size: int = 1
    """How many there are."""

    def own(self, rows: _Rows) -> _Rows:
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

    @contextlib.contextmanager
    def leading(self) -> Iterator[Callable[[TrainState], None]]:
        """In process 0: gives what starts the others from a state.

        If nothing has started them at the end of the block, they go on without training.
        """
        are_waiting = self.size > 1

        def start(state: TrainState) -> None:
            nonlocal are_waiting
            if are_waiting:
                are_waiting = False
                self._broadcast((state.step, state.weights(), state.optimizer_tensors()))
                state.add_up = self.add_up

        outcome = _FAILED
        try:
            yield start
            outcome = _DONE
        finally:
            if are_waiting:
                self._broadcast(outcome)

    def follow(self, state: TrainState) -> bool:
        """Take process 0's state, in another process; False if it has nothing left to train."""
        message = self._broadcast(None)
        if message == _FAILED:
            raise AnchorInterpError("process 0 of this training failed; see what it says")
        if message == _DONE:
            return False
        state.step, weights, optimizer = message
        with torch.no_grad():
            for name, parameter in state.model.named_parameters():
                parameter.copy_(weights[name])
        if optimizer:
            state.load_optimizer(optimizer)
        state.add_up = self.add_up
        return True

    def wait(self) -> None:
        """Go on when every process has come here."""
        if self.size > 1:
            torch.distributed.barrier()

    def _broadcast(self, message: Any) -> Any:
        """Process 0's message, in every process."""
        messages = [message]
        torch.distributed.broadcast_object_list(messages)
        return messages[0]


ALONE = Processes()


def is_follower() -> bool:
    """Whether accelerate started this process, and another one speaks for it."""
    return os.environ.get("RANK", "0") != "0"


def processes(config: RunConfig, device: str) -> tuple[Processes, str]:
    """The processes of this training and the device of this one.

    Without accelerate it is alone, on the device that was asked for.

    Raises:
        ConfigError: a device that not every process has, fewer rows in a batch than processes, or
            several processes for a task that one has to train or a run with ``until_accuracy``.
    """
    size, train = launched(), config.train
    if size <= 1:
        return ALONE, device
    task, goal, few = config.task, train.until_accuracy, train.batch_size < size
    for is_so, reason in (
        (task.why_alone, f"the task {task.kind} {task.why_alone}"),
        (goal is not None, f"train.until_accuracy is {goal}, which one process decides alone"),
        (few, f"train.batch_size is {train.batch_size}; expected at least {size}, a row a process"),
    ):
        if is_so:
            advice = "start one, without accelerate launch and with WORLD_SIZE unset"
            message = f"{size} processes were started (WORLD_SIZE is {size}) and {reason}; {advice}"
            raise ConfigError(message)
    kinds = ("auto", "cpu", "cuda") if torch.cuda.is_available() else ("auto", "cpu")
    if device not in kinds:
        expected = f"expected {' or '.join(kinds)}: every process has a device of its own"
        raise ConfigError(f"device is {device!r}; {expected}")
    # One process reads a corpus, which may take days. The others wait here for its lock: in the
    # group they would wait for minutes only.
    _ = task.data
    state = _group(device == "cpu" or not torch.cuda.is_available())
    if device not in ("auto", state.device.type):
        expected = f"expected auto or {state.device.type}, where these processes work together"
        raise ConfigError(f"device is {device!r}; {expected}")
    return Processes(state.process_index, state.num_processes), str(state.device)


@functools.cache
def _group(cpu: bool) -> Any:
    """The group of processes, for as long as they live: accelerate cannot make a second one."""
    from accelerate import PartialState  # it takes a second to load

    state: Any = PartialState(cpu=cpu)
    atexit.register(state.destroy_process_group)
    return state
