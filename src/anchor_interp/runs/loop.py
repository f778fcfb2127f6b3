"""The training loop: one object for all mutable state, one loop for all objectives.

:func:`fit` knows nothing about files, progress or tasks. The batch is a function of (seed, step)
alone, and :class:`TrainState` holds all other state. So a run that stops after any step and
continues from its tensors ends in the same weights bit for bit (same machine, threads and build).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError, DivergedError, StoreError
from anchor_interp.models.forward import fast_last_logits
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.runs.config import RunConfig, TrainConfig
from anchor_interp.tasks.hashing import batch_indices
from anchor_interp.tasks.sequences import sample


@dataclass(frozen=True)
class Batch:
    """Tokens and targets of one optimizer step, on the training device."""

    tokens: Int[Tensor, "batch pos"]
    targets: Int[Tensor, " batch"]


@runtime_checkable
class Objective(Protocol):
    """What :func:`fit` needs from a task."""

    def batch(self, step: int) -> Batch:
        """The batch of a step, a function of the step (and a fixed seed) alone."""
        ...

    def loss(self, module: HookedTransformer, batch: Batch) -> Float[Tensor, ""]:
        """The scalar to minimise."""
        ...


class AnchorObjective:
    """:func:`answer_loss` on an anchor task's training sequences, in another order every epoch."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        task, train = config.task, config.train
        self.sequences = sample(task, "train", train.n_sequences, seed=config.seed)
        self._tokens = torch.from_numpy(self.sequences.tokens).to(device)
        self._targets = torch.from_numpy(self.sequences.targets).to(device)
        self._batch_size, self._seed = train.batch_size, config.seed
        self._n_input_tokens = task.n_input_tokens

    def batch(self, step: int) -> Batch:
        """The training sequences of a step."""
        order = batch_indices(step, self._batch_size, len(self.sequences), seed=self._seed)
        rows = torch.from_numpy(order).to(self._tokens.device)
        return Batch(self._tokens[rows].long(), self._targets[rows].long())

    def loss(self, module: HookedTransformer, batch: Batch) -> Float[Tensor, ""]:
        """See :func:`answer_loss`."""
        return answer_loss(module, batch.tokens, batch.targets, n_input_tokens=self._n_input_tokens)


def answer_loss(
    module: HookedTransformer,
    tokens: Int[Tensor, "batch pos"],
    targets: Int[Tensor, " batch"],
    *,
    n_input_tokens: int,
) -> Float[Tensor, ""]:
    """Mean cross-entropy at the last position, in nats (both papers); tokens < n_input_tokens."""
    logits = fast_last_logits(module, tokens, n_input_tokens=n_input_tokens)
    at_least_float32 = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(at_least_float32), targets)


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


class TrainState:
    """All that training changes: the weights, the optimizer's moments and the step."""

    def __init__(self, model: HookedTransformer, config: TrainConfig, step: int = 0) -> None:
        self.model, self.config, self.step = model, config, step
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=next(model.parameters()).device.type in ("cpu", "cuda"),
        )

    @classmethod
    def fresh(cls, config: RunConfig, device: torch.device) -> "TrainState":
        """The state before the first step."""
        model = build_model(config.model, config.init, seed=config.seed, device=device)
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
                found = tensors.get(f"{name}/{field}")
                shape = torch.Size() if field == "step" else parameter.shape
                fits = found is not None and (found.shape, found.dtype) == (shape, torch.float32)
                if found is None or not fits or not torch.isfinite(found).all():
                    raise StoreError(f"the optimizer state {name}/{field} is damaged or missing")
                self.optimizer.state[parameter][field] = found.to(parameter.device).clone()


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of the update after ``step`` updates.

    It rises linearly from ``lr_start`` to ``lr`` over the warm-up, then follows a cosine to
    ``lr_end`` (both papers, appendix A). From ``branch_step`` on the branch's peak replaces ``lr``.
    """
    (peak, _), warmup = config.rates(step), config.warmup_steps
    if step < warmup:
        return config.lr_start + (peak - config.lr_start) * (step + 1) / warmup
    progress = (step - warmup) / max(1, config.steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr_end + (peak - config.lr_end) * cosine


def train_step(state: TrainState, objective: Objective) -> StepEvent:
    """Do one optimizer update; the tensors of the event stay on the device."""
    config = state.config
    lr = learning_rate(config, state.step)
    for group in state.optimizer.param_groups:
        group["lr"], group["weight_decay"] = lr, config.rates(state.step)[1]
    batch = objective.batch(state.step)
    with float32_products(config):
        with autocast(config, state.device):
            loss = objective.loss(state.model, batch)
        state.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), config.clip or math.inf)
    state.optimizer.step()
    state.step += 1
    return StepEvent(state.step, loss.detach(), norm.detach(), lr)


OnEvent = Callable[[TrainState, StepEvent], None]
"""Called after each step; an exception from it leaves the state consistent."""


def fit(state: TrainState, objective: Objective, *, until: int, on_event: OnEvent) -> TrainState:
    """Train ``state`` in place until it has had ``until`` updates.

    Raises:
        DivergedError: a step that is logged or checkpointed is not finite.
    """
    config = state.config
    while state.step < until:
        event = train_step(state, objective)
        step = event.step
        if step % config.log_every == 0 or step % config.checkpoint_every == 0 or step == until:
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


def check_precision(config: TrainConfig, device: torch.device) -> None:
    """Raise ConfigError for TF32 on a device that is not a CUDA GPU."""
    if config.precision == "tf32" and device.type != "cuda":
        found = f"the device is {device.type}: take 'float32', or a GPU"
        raise ConfigError(f"train.precision is 'tf32', which only CUDA GPUs have; {found}")


def autocast(
    config: TrainConfig, device: torch.device, *, cached: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Around the forward pass: bfloat16 products if the configuration asks for them.

    The cache of cast weights does not work under vmap.
    """
    if config.precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cached)
    return contextlib.nullcontext()


@contextlib.contextmanager
def float32_products(config: TrainConfig) -> Iterator[None]:
    """Around forward and backward pass: float32 products in TF32 if the configuration asks."""
    if config.precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
