"""The training loop: one object for all mutable state, one loop for all objectives.

:func:`fit` knows nothing about files, progress or tasks. The batch is a function of (seed, step)
alone, and :class:`TrainState` holds all other state. So a run that stops after any step and
continues from its tensors ends in the same weights bit for bit (same machine, threads and build).
"""

import contextlib
import dataclasses
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from anchor_interp._util.errors import DivergedError, StoreError
from anchor_interp.models.batches import Batch
from anchor_interp.models.forward import takes_fast_path
from anchor_interp.models.networks import build_network
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, TrainConfig
from anchor_interp.runs.cuda_graph import CudaGraph
from anchor_interp.runs.schedule import learning_rate


@runtime_checkable
class Objective(Protocol):
    """What :func:`fit` needs from a task (:mod:`anchor_interp.runs.objectives`)."""

    def parts(self, step: int) -> Sequence[Any]:
        """A step's batch in parts that one pass can take; a function of step and seed alone."""
        ...

    def loss(self, module: Any, batch: Any) -> Float[Tensor, ""]:
        """The scalar to minimise: the step's loss is the sum over its parts."""
        ...


@dataclass(frozen=True)
class StepEvent:
    """What happened at an optimizer step."""

    step: int
    """Updates done, including this one."""
    loss: Float[Tensor, ""]
    """Loss of the step's batch before the update."""
    grad_norm: Float[Tensor, ""]
    """Norm before clipping."""
    lr: float


AddUp = Callable[[nn.Module, Tensor], Tensor]
"""Adds the gradients of a model and a loss up over processes, and returns the loss."""


class TrainState:
    """All that training changes: the weights, the optimizer's moments and the step."""

    def __init__(self, model: HookedTransformer | Any, config: TrainConfig, step: int = 0) -> None:
        self.model, self.config, self.step = model, config, step
        self.add_up: AddUp | None = None
        """Set where several processes train together (:mod:`anchor_interp.runs.distributed`)."""
        self.graphs: defaultdict[tuple[Objective, float, float], CudaGraph]
        self.graphs = defaultdict(CudaGraph)
        """The recorded update of an objective with a weight decay and a share of a step."""
        self._plain: bool | None = None  # asked at the first update
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=torch.tensor(config.lr, device=self.device) if on_gpu else config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
            capturable=on_gpu,
        )
        # the first updates are not recorded, on purpose
        vars(self.optimizer)["_warned_capturable_if_run_uncaptured"] = True

    @classmethod
    def fresh(cls, config: RunConfig, device: torch.device) -> "TrainState":
        """The state before the first step."""
        model = build_network(config.model, config.init, seed=config.seed, device=device)
        return cls(model, config.train)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, on the CPU."""
        named = self.model.named_parameters()
        return {name: parameter.detach().cpu().contiguous() for name, parameter in named}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by ``parameter/field``, on the CPU."""
        return {
            f"{name}/{field}": value.detach().cpu().contiguous()
            for name, parameter in self.model.named_parameters()
            for field, value in self.optimizer.state[parameter].items()
        }

    def load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Restore the optimizer's state from :meth:`optimizer_tensors`; StoreError if damaged."""
        for name, parameter in self.model.named_parameters():
            for field in ("step", "exp_avg", "exp_avg_sq"):
                shape = torch.Size() if field == "step" else parameter.shape
                moment = tensors.get(f"{name}/{field}", torch.empty(0, device="cpu"))
                if moment.shape != shape or not torch.isfinite(moment).all():
                    raise StoreError(f"the optimizer state {name}/{field} is damaged or missing")
                self.optimizer.state[parameter][field] = moment.to(parameter.device).clone()
        self.graphs.clear()

    def is_recorded(self) -> bool:
        """Whether a GPU records updates: of a model alone whose forward pass is the library's."""
        if self._plain is None:
            on_gpu = self.device.type == "cuda" and isinstance(self.model, HookedTransformer)
            self._plain = on_gpu and takes_fast_path(self.model)
        return self._plain and self.add_up is None

    def set_rates(self, lr: float, weight_decay: float) -> None:
        """Set what the next update takes; a GPU reads the learning rate from its memory."""
        for group in self.optimizer.param_groups:
            group["weight_decay"] = weight_decay
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr


def train_step(state: TrainState, objective: Objective) -> StepEvent:
    """Do one optimizer update; the tensors of the event stay on the device."""
    lr, (_, weight_decay) = learning_rate(state.config, state.step), state.config.rates(state.step)
    state.set_rates(lr, weight_decay)
    parts = objective.parts(state.step)
    batch = parts[0]
    with arithmetic(state.config):
        is_last = type(batch) is Batch and batch.places is None  # of equal shapes at every step
        if len(parts) == 1 and is_last and state.is_recorded():

            def work(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
                part = dataclasses.replace(batch, tokens=tokens, targets=targets)
                return _update(state, objective, [part])

            graph = state.graphs[objective, weight_decay, batch.share]
            loss, norm = graph(work, batch.tokens, batch.targets)
        else:
            loss, norm = _update(state, objective, parts)
    state.step += 1
    return StepEvent(state.step, loss, norm, lr)


def _update(
    state: TrainState, objective: Objective, parts: Sequence[Any]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Change the weights; the loss before, and the norm of its gradient before clipping."""
    config = state.config
    state.optimizer.zero_grad(set_to_none=True)
    losses = []
    for part in parts:
        with autocast(config, state.device):
            loss = objective.loss(state.model, part)
        torch.autograd.backward(loss)  # adds to the gradients of the parts before
        losses.append(loss.detach())
    loss = sum(losses[1:], losses[0])
    if state.add_up is not None:
        loss = state.add_up(state.model, loss)
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), config.clip or math.inf)
    state.optimizer.step()
    return loss, norm.detach()


OnEvent = Callable[[TrainState, StepEvent], None]
"""Called after each step; an exception from it leaves the state consistent."""


def fit(state: TrainState, objective: Objective, *, until: int, on_event: OnEvent) -> TrainState:
    """Train ``state`` up to ``until`` updates; DivergedError if a logged one is not finite."""
    config = state.config
    while state.step < until:
        event = train_step(state, objective)
        step = event.step
        if config.is_logged(step) or step % config.checkpoint_every == 0 or step == until:
            check_finite_step(event, config)  # not at every step: reading a number stalls a GPU
        on_event(state, event)
    return state


def check_finite_step(event: StepEvent, config: TrainConfig) -> None:
    """Raise DivergedError if the loss or the gradient's norm is not finite."""
    loss, norm = event.loss.item(), event.grad_norm.item()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise _diverged(event.step, f"loss {loss}, gradient norm {norm}", config)


def check_finite_weights(state: TrainState) -> None:
    """Raise DivergedError if a weight is not finite, which can follow a finite loss."""
    if not all(torch.isfinite(parameter).all() for parameter in state.model.parameters()):
        raise _diverged(state.step, "the weights are no longer finite numbers", state.config)


def _diverged(step: int, what: str, config: TrainConfig) -> DivergedError:
    advice = f"lower the learning rate (lr {config.lr}) or the initial scale (raise gamma)"
    return DivergedError(f"step {step}: {what}; {advice}")


def autocast(
    config: TrainConfig, device: torch.device, *, cached: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Around the forward pass: bfloat16 products if asked for; under vmap not ``cached``."""
    if config.precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cached)
    return contextlib.nullcontext()


@contextlib.contextmanager
def arithmetic(config: TrainConfig) -> Iterator[None]:
    """Around an update: products in TF32 if asked for; with one thread, numbers below 1e-38 are 0.

    A softmax makes such numbers, and products of them take some CPUs a hundred times as long.
    Each thread has a setting of its own, so it is left where several work on an update.
    """
    in_tf32, flushed = config.precision == "tf32", sys.float_info.min / 2 == 0
    products = torch.get_float32_matmul_precision() if in_tf32 else ""
    if in_tf32:
        torch.set_float32_matmul_precision("high")
    torch.set_flush_denormal(flushed or torch.get_num_threads() == 1)
    try:
        yield
    finally:
        if in_tf32:
            torch.set_float32_matmul_precision(products)
        torch.set_flush_denormal(flushed)
