"""Many models of one shape as one: stacked parameters, batched products, one AdamW update.

A tiny model leaves a GPU idle: each of its kernels takes less time than its launch. K models of one
shape, whatever their seeds, data, gammas, learning rates or steps, have the same kernels, so one
launch can serve them all. Their parameters lie in one matrix ``[model, parameter]``, and so do
gradients and AdamW's moments. A step of all K models is

* one gather of their batches from the training sequences on the device, each model's rows in its
  own order (:func:`anchor_interp.tasks.hashing.batch_indices`);
* one forward and backward pass: ``torch.func.vmap`` of the loss of one model turns its matrix
  products into batched ones. On a CPU, where products of this size already fill the core, the
  models are worked through one after another instead, each a view of its row;
* one clipping, by each model's own norm, and one AdamW update (Loshchilov and Hutter 2019,
  algorithm 2) with each model's own learning rate, weight decay, betas, epsilon and step count.

No operation mixes two rows, so a model's result does not depend on who shares its batch: it equals
training alone up to the rounding of its sums. What a step needs besides the weights is known ahead,
so the host does nothing for single models between two steps at which one has something to log.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from anchor_interp._util.errors import ConfigError
from anchor_interp.models.forward import fast_last_logits
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, shape_key
from anchor_interp.runs.loop import (
    StepEvent,
    TrainState,
    answer_loss,
    autocast,
    float32_products,
    learning_rate,
)
from anchor_interp.tasks.hashing import epoch_keys, epoch_parts
from anchor_interp.tasks.sequences import Sequences

MOST_STEPS = 64
"""Steps that are planned ahead at most."""


_ALIGNMENT = 64
"""Each parameter starts at a multiple of this many numbers, as fast products want it."""


_Pair = tuple[Tensor, Tensor]


_Step = Callable[[Tensor, Tensor], _Pair]


@dataclass(frozen=True)
class Member:
    """A model of a stack."""

    config: RunConfig
    """Its run."""
    state: TrainState
    """Its weights, moments and step."""
    training: Sequences
    """Its training sequences."""


def check_one_shape(configs: Sequence[RunConfig]) -> None:
    """Refuse configurations that cannot share a stack.

    Raises:
        ConfigError: their :func:`anchor_interp.runs.config.shape_key` differ.
    """
    shapes = len({shape_key(config) for config in configs})
    if shapes > 1:
        raise ConfigError(
            f"the configurations have {shapes} shapes; expected one: give those apart that differ "
            "in the model, in length or tokens of the task, in batch_size or in precision"
        )


class Stack:
    """Models of one shape as the rows of common matrices, and their training steps.

    The members' parameters and moments become views of these matrices, so that each member's
    :class:`TrainState` is up to date whenever :meth:`advance` returns.

    Args:
        members: models on one device with the same :func:`anchor_interp.runs.config.shape_key`, each at
            a step of its own.
        together: one pass for all models; one after another if False. By default what is faster on
            the device.
        graph: record the step as a CUDA graph and replay it. Written where there was no GPU:
            ``tests/test_cuda.py`` and ``benchmarks/batched.py`` have still to be run with it, so
            nothing takes it by itself.

    Raises:
        ConfigError: configurations that cannot share a stack, or a graph elsewhere than on a CUDA
            GPU.
    """

    def __init__(
        self, members: Sequence[Member], *, together: bool | None = None, graph: bool = False
    ) -> None:
        check_one_shape([member.config for member in members])
        config, state = members[0].config, members[0].state
        self._members, self._config, self._device = members, config, state.device
        self._together = self._device.type == "cuda" if together is None else together
        self._dtype = state.model.embed.W_E.dtype
        self._places = _places(state.model)
        self._weights, self._moment1, self._moment2, self._steps = self._adopt()
        self._gradients = torch.zeros_like(self._weights)
        # leaves of their own: a gradient of the whole matrix would be put together from zeros
        self._leaves = {
            name: place.of(self._weights).requires_grad_() for name, place in self._places.items()
        }
        n_tokens = config.task.n_input_tokens
        self._models = [_Answering(member.state.model, n_tokens) for member in members]
        self._batches = _Batches(members, self._device)
        if graph and self._device.type != "cuda":
            raise ConfigError(f"graph is True on the device {self._device}; expected a CUDA GPU")
        self._step: _Step = _Replayed(self._plain_step) if graph else self._plain_step

    def advance(self, n_steps: int, stopped: Callable[[], bool] = lambda: False) -> list[StepEvent]:
        """Train every model by some steps.

        Args:
            n_steps: updates; those beyond :data:`MOST_STEPS` are left for the next call.
            stopped: asked after every step whether to leave the rest undone.

        Returns:
            The last step done of every model; the tensors are on the CPU.
        """
        n_steps = min(n_steps, MOST_STEPS)
        plan = _factors(self._members, n_steps).to(self._device, self._dtype)
        losses = norms = torch.empty(0)
        for factors, rows in zip(plan, self._batches.rows(n_steps), strict=True):
            losses, norms = self._step(rows, factors)
            for member in self._members:
                member.state.step += 1
            if stopped():
                break
        self._steps.copy_(torch.tensor([[member.state.step] for member in self._members]))
        return self._events(losses.cpu(), norms.cpu())

    @torch.no_grad()
    def answers(
        self, tokens: Mapping[int, UInt8[np.ndarray, "_ pos"]]
    ) -> dict[int, Int64[np.ndarray, " _"]]:
        """What models predict for the last position of their own sequences.

        Args:
            tokens: sequences by the index of the model, not necessarily as many for each.

        Returns:
            Answers by the index of the model. Left out are models whose logits are not finite, and
            all where the models are worked through one after another, which gains nothing here.
        """
        if not tokens or not self._together:
            return {}
        n_rows, length = max(map(len, tokens.values())), self._config.task.length
        padded = np.zeros((len(tokens), n_rows, length), np.int64)
        for place, rows in enumerate(tokens.values()):
            padded[place, : len(rows)] = rows
        size = self._config.train.batch_size  # as many at a time as are known to fit
        sizes = [min(size, n_rows - start) for start in range(0, n_rows, size)]
        chosen = torch.tensor(list(tokens), device=self._device)
        leaves = {name: leaf[chosen] for name, leaf in self._leaves.items()}
        logits = torch.cat(
            [
                self._side_by_side(leaves, part.to(self._device))
                for part in torch.from_numpy(padded).split_with_sizes(sizes, dim=1)
            ],
            dim=1,
        )  # [model, n, d_vocab]
        finite, found = logits.isfinite().all(-1).cpu(), logits.argmax(-1).cpu().numpy()
        return {
            index: found[place, : len(rows)]
            for place, (index, rows) in enumerate(tokens.items())
            if finite[place, : len(rows)].all()
        }

    def _plain_step(self, rows: Tensor, factors: Tensor) -> _Pair:
        """Losses and gradients' norms of a step of all models."""
        tokens, targets = self._batches.at(rows)
        with float32_products(self._config.train):
            losses = self._differentiate(tokens, targets)
        return losses, self._update(factors)

    def _differentiate(
        self, tokens: Int64[Tensor, "model batch pos"], targets: Int64[Tensor, "model batch"]
    ) -> Float[Tensor, " model"]:
        """Losses; the gradients go into their matrix."""
        if not self._together:
            return self._differentiate_in_turn(tokens, targets)
        with autocast(self._config.train, self._device), _uncached():
            losses = self._side_by_side(self._leaves, tokens, targets)
        # each loss depends on its own model only, so the sum has each one's own gradient
        gradients = torch.autograd.grad(losses.sum(), list(self._leaves.values()))
        for place, gradient in zip(self._places.values(), gradients, strict=True):
            place.of(self._gradients).copy_(gradient)
        return losses.detach()

    def _differentiate_in_turn(
        self, tokens: Int64[Tensor, "model batch pos"], targets: Int64[Tensor, "model batch"]
    ) -> Float[Tensor, " model"]:
        losses = []
        for index, model in enumerate(self._models):
            with autocast(self._config.train, self._device):
                loss = model(tokens[index], targets[index])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for place, gradient in zip(self._places.values(), gradients, strict=True):
                place.of(self._gradients[index]).copy_(gradient)
            losses.append(loss.detach())
        return torch.stack(losses)

    def _side_by_side(self, leaves: dict[str, Tensor], *arguments: Tensor) -> Tensor:
        """Loss or logits of models whose parameters and arguments are stacked."""

        def one(leaves: dict[str, Tensor], *arguments: Tensor) -> Tensor:
            named = {f"model.{name}": leaf for name, leaf in leaves.items()}
            out: Tensor = functional_call(self._models[0], named, arguments)
            return out

        # fused attention has no rule for models side by side (on CPUs), or cannot see inside vmap
        # that a derivative will be asked for (on GPUs); nine positions do not need it
        with sdpa_kernel(SDPBackend.MATH):
            stacked: Tensor = vmap(one)(leaves, *arguments)
        return stacked

    @torch.no_grad()
    def _update(self, factors: "Float[Tensor, 'factor model 1']") -> Float[Tensor, " model"]:
        """Clip and update all models; gives the norms of their gradients before clipping.

        The arithmetic of ``torch.nn.utils.clip_grad_norm_`` and ``torch.optim.AdamW``: with the
        clipped gradient g, moments m and v, and t steps done, this one included::

            m <- m + (1 - beta1) (g - m)
            v <- v + (1 - beta2) (g^2 - v)
            w <- (1 - lr wd) w - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)

        where the root is taken of v alone and its divisor goes into rate and epsilon.
        """
        clip, shrink, take1, take2, rate, eps = factors.unbind()  # each [model, 1]
        w, g, m, v = self._weights, self._gradients, self._moment1, self._moment2
        norms: Tensor = torch.linalg.vector_norm(g, dim=1, keepdim=True)  # [model, 1]
        g.mul_((clip / (norms + 1e-6)).clamp(max=1.0))
        w.mul_(shrink)
        m.lerp_(g, take1)
        v.lerp_(g.square_(), take2)
        torch.sqrt(v, out=g)
        torch.div(m, g.add_(eps), out=g)
        w.addcmul_(g, rate, value=-1)
        return norms[:, 0]

    def _events(
        self, losses: Float[Tensor, " model"], norms: Float[Tensor, " model"]
    ) -> list[StepEvent]:
        events = []
        for member, loss, norm in zip(self._members, losses, norms, strict=True):
            step = member.state.step
            lr = learning_rate(member.config.train, step - 1)
            events.append(StepEvent(step, loss, norm, lr))
        return events

    @torch.no_grad()
    def _adopt(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Matrices of weights, moments and step counts; the members' own become their views."""
        models = [member.state.model for member in self._members]
        states = [member.state.optimizer.state for member in self._members]
        width = sum(place.width for place in self._places.values())
        zeros = torch.zeros(len(models), width, dtype=self._dtype, device=self._device)
        weights, moment1, moment2 = zeros, zeros.clone(), zeros.clone()
        steps = torch.zeros(len(models), len(self._places), device=self._device)
        for row, model, state in zip(range(len(models)), models, states, strict=True):
            for column, (name, parameter) in enumerate(model.named_parameters()):
                place = self._places[name]
                views = {
                    "exp_avg": place.of(moment1[row]),
                    "exp_avg_sq": place.of(moment2[row]),
                    "step": steps[row, column],
                }
                for field, earlier in state[parameter].items():
                    views[field].copy_(earlier)
                state[parameter] = views
                parameter.data = place.of(weights[row]).copy_(parameter)
        return weights, moment1, moment2, steps


class _Replayed:
    """A step on a CUDA GPU, recorded once and then launched as a whole.

    The first calls run as they are, on a stream of their own, as recording asks for; they are steps
    like any other.
    """

    def __init__(self, step: _Step) -> None:
        self._step = step
        self._warming_up = 3
        self._recorded: tuple[torch.cuda.CUDAGraph, _Pair, _Pair] | None = None

    def __call__(self, rows: Tensor, factors: Tensor) -> _Pair:
        """Losses and norms, in tensors that the next call overwrites."""
        if self._warming_up:
            self._warming_up -= 1
            return self._beside(rows, factors)
        if self._recorded is None:
            graph, given = torch.cuda.CUDAGraph(), (rows.clone(), factors.clone())
            with torch.cuda.graph(graph):
                found = self._step(*given)
            self._recorded = graph, given, found
        graph, given, found = self._recorded
        for place, value in zip(given, (rows, factors), strict=True):
            place.copy_(value)
        graph.replay()
        return found

    def _beside(self, rows: Tensor, factors: Tensor) -> _Pair:
        own, current = torch.Stream(rows.device), torch.cuda.current_stream()
        own.wait_stream(current)
        with own:
            found = self._step(rows, factors)
        current.wait_stream(own)
        return found


@dataclass(frozen=True)
class _Place:
    """Where a parameter stands in a row."""

    start: int
    shape: torch.Size

    @property
    def width(self) -> int:
        """Numbers that it takes, with the zeros behind it."""
        return math.ceil(self.shape.numel() / _ALIGNMENT) * _ALIGNMENT

    def of(self, rows: Float[Tensor, "*model width"]) -> Float[Tensor, "..."]:
        """The parameter as a view of one row or of all."""
        part = rows[..., self.start : self.start + self.shape.numel()]
        return part.view(*rows.shape[:-1], *self.shape)


def _places(model: HookedTransformer) -> dict[str, _Place]:
    places, start = {}, 0
    for name, parameter in model.named_parameters():
        places[name] = _Place(start, parameter.shape)
        start += places[name].width
    return places


class _Answering(nn.Module):
    """The last position's logits of a model, or with targets its loss."""

    def __init__(self, model: HookedTransformer, n_input_tokens: int) -> None:
        super().__init__()
        self.model = model
        self._n_input_tokens = n_input_tokens

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        n = self._n_input_tokens
        if targets is None:
            return fast_last_logits(self.model, tokens, n_input_tokens=n)
        return answer_loss(self.model, tokens, targets, n_input_tokens=n)


class _Batches:
    """The models' training sequences on the device, those that are the same only once."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self._members, self._device = members, device
        self._size = members[0].config.train.batch_size
        sets = {_data_key(member): member.training for member in members}
        starts = itertools.accumulate(map(len, sets.values()), initial=0)
        self._starts = dict(zip(sets, starts, strict=False))
        tokens = np.concatenate([part.tokens for part in sets.values()])
        targets = np.concatenate([part.targets for part in sets.values()])
        self._tokens = torch.from_numpy(tokens).to(device)
        self._targets = torch.from_numpy(targets).to(device)
        self._orders: dict[Hashable, Tensor] = {}

    def rows(self, n_steps: int) -> Int64[Tensor, "step model batch"]:
        """Which sequences the next steps take, by their rows on the device."""
        used: dict[Hashable, Tensor] = {}
        found = []
        for member in self._members:
            n, seed, step = len(member.training), member.config.seed, member.state.step
            parts = []
            for epoch, part in epoch_parts(step * self._size, (step + n_steps) * self._size, n):
                key = n, seed, epoch
                if key not in self._orders:
                    self._orders[key] = epoch_order_on(self._device, n, epoch, seed=seed)
                used[key] = self._orders[key]
                parts.append(used[key][part])
            mine = torch.cat(parts).view(n_steps, self._size)
            found.append(mine + self._starts[_data_key(member)])
        self._orders = used  # past epochs are forgotten
        return torch.stack(found, dim=1)

    def at(
        self, rows: Int64[Tensor, "model batch"]
    ) -> tuple[Int64[Tensor, "model batch pos"], Int64[Tensor, "model batch"]]:
        """Tokens and targets of a step."""
        return self._tokens[rows].long(), self._targets[rows].long()


def _data_key(member: Member) -> Hashable:
    return member.config.task, len(member.training), member.config.seed


def epoch_order_on(device: torch.device, n: int, epoch: int, *, seed: int) -> Int64[Tensor, " n"]:
    """:func:`anchor_interp.tasks.hashing.epoch_order`, sorted on a device."""
    keys = epoch_keys(n, epoch, seed=seed)
    # signed numbers in the order of the unsigned ones: their largest bit is turned round
    signed = (keys ^ np.uint64(1 << 63)).view(np.int64)
    return torch.from_numpy(signed).to(device).argsort()


def _factors(members: Sequence[Member], n_steps: int) -> "Float[Tensor, 'step factor model 1']":
    """What the next updates take from the models' schedules, in the order of ``Stack._update``."""
    trains = [member.config.train for member in members]
    steps = np.array([member.state.step for member in members]) + np.arange(n_steps)[:, None]
    lr = np.array([[*map(learning_rate, trains, map(int, row))] for row in steps])  # [step, model]
    wd = np.array(
        [[train.rates(int(s))[1] for train, s in zip(trains, row, strict=True)] for row in steps]
    )
    fields = ("beta1", "beta2", "eps")
    beta1, beta2, eps = np.array([[getattr(train, f) for train in trains] for f in fields])
    clip = np.array([train.clip or math.inf for train in trains])
    unbias1, unbias2 = 1 - beta1 ** (steps + 1), np.sqrt(1 - beta2 ** (steps + 1))
    factors = (clip, 1 - lr * wd, 1 - beta1, 1 - beta2, lr / unbias1 * unbias2, eps * unbias2)
    return torch.from_numpy(np.stack(np.broadcast_arrays(*factors, steps)[:-1], axis=1)[..., None])


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Autocast without its cache of cast weights, which knows nothing of models side by side."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
