"""Many models of one shape as one: stacked parameters, batched products, one AdamW update.

The gain is on a GPU. A tiny model leaves it idle: a kernel takes less time than its launch. Models
of one shape have the same kernels, so one launch serves all. A CPU is busy with one model.

The models' parameters are the rows of one matrix ``[model, parameter]``, and so are gradients and
AdamW's moments. A step of all K models is

* one gather of their batches, each in its own order, from the sequences on the device;
* one forward and backward pass: ``torch.func.vmap`` of one model's loss turns its matrix products
  into batched ones. On a CPU, products of this size already fill the core, so the models are worked
  through one after another, each a view of its row;
* one clipping, by each model's own norm, and one AdamW update (Loshchilov and Hutter 2019,
  algorithm 2), with each model's own learning rate, weight decay, betas, epsilon and step count.

No operation mixes two rows: a model's result equals training alone up to the rounding of sums.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from anchor_interp.models.batches import Batch
from anchor_interp.models.forward import place_logits, takes_fast_path
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs import loop, objectives
from anchor_interp.runs.config import RunConfig, TrainConfig
from anchor_interp.runs.cuda_graph import CudaGraph
from anchor_interp.runs.schedule import learning_rate
from anchor_interp.tasks.examples import Dataset

MOST_STEPS = 64
"""How many steps are planned ahead at most."""
_ALIGNMENT = 64
"""Each parameter starts at a multiple of this many numbers; that makes products fast."""


@dataclass(frozen=True)
class Member:
    """A model of a stack: its run, its weights, moments and step, and its training sequences."""

    config: RunConfig
    state: loop.TrainState
    training: Dataset

    @property
    def data_key(self) -> Hashable:
        """Equal for members with equal training sequences."""
        return self.config.task, len(self.training), self.config.seed


class Stack:
    """Models of one shape as the rows of common matrices, and their training steps.

    The members' parameters and moments become views of these matrices, so each member's
    :class:`anchor_interp.runs.loop.TrainState` is up to date whenever :meth:`advance` returns. With
    ``together`` one pass serves all models, else they are worked through one after another.
    """

    def __init__(self, members: Sequence[Member], *, together: bool | None = None) -> None:
        config, state = members[0].config, members[0].state
        self._members, self._config, self._device = members, config, state.device
        self._fast = fast = all(takes_fast_path(member.state.model) for member in members)
        together = self._device.type == "cuda" if together is None else together
        self._together = together and fast  # what a user changed may not run under vmap
        self._dtype = state.model.embed.W_E.dtype
        self._places = _places(state.model)
        self._weights, self._moment1, self._moment2, self._steps = self._adopt()
        self._gradients = torch.zeros_like(self._weights)
        # one leaf for each parameter: the gradient of the whole matrix would be a sum of zeros
        self._leaves = {
            name: place.of(self._weights).requires_grad_() for name, place in self._places.items()
        }
        n_tokens = config.task.n_input_tokens
        self._models = [_Answering(member.state.model, n_tokens, fast) for member in members]
        self._batches, self._graph = _Batches(members, self._device), CudaGraph()

    def advance(
        self, n_steps: int, stopped: Callable[[], bool] = lambda: False
    ) -> list[loop.StepEvent]:
        """Train every model for :data:`MOST_STEPS` updates at most, and stop early if asked to.

        Returns the last step of each model, with tensors on the CPU.
        """
        n_steps = min(n_steps, MOST_STEPS)
        plan = _factors(self._members, n_steps).to(self._device, self._dtype)
        losses = norms = torch.empty(0, device="cpu")
        for factors, rows in zip(plan, self._batches.rows(n_steps), strict=True):
            if self._fast:
                losses, norms = self._graph(self._step, factors, rows)
            else:  # what a user changed may do something else at every call
                losses, norms = self._step(factors, rows)
            for member in self._members:
                member.state.step += 1
            if stopped():
                break
        steps = [member.state.step for member in self._members]
        self._steps.copy_(torch.tensor(steps, device="cpu")[:, None])
        rates = [learning_rate(one.config.train, one.state.step - 1) for one in self._members]
        return list(map(loop.StepEvent, steps, losses.cpu(), norms.cpu(), rates))

    @torch.no_grad()
    def answers(
        self, tokens: Mapping[int, Integer[np.ndarray, "_ pos"]]
    ) -> dict[int, Int64[np.ndarray, " _"]]:
        """What models predict for the last position, given and returned by the model's index.

        Models whose logits are not finite are left out. Empty if the models are worked through one
        after another: a stack gains nothing there.
        """
        if not tokens or not self._together:
            return {}
        n_rows, length = max(map(len, tokens.values())), self._config.task.length
        padded = np.zeros((len(tokens), n_rows, length), np.int64)
        for place, rows in enumerate(tokens.values()):
            padded[place, : len(rows)] = rows
        size = self._config.train.batch_size  # this many fit into memory
        chosen = torch.tensor(list(tokens), device=self._device)
        leaves = {name: leaf[chosen] for name, leaf in self._leaves.items()}
        parts = (torch.from_numpy(padded[:, i : i + size]) for i in range(0, n_rows, size))
        answered = [self._side_by_side(leaves, part.to(self._device)) for part in parts]
        logits = torch.cat(answered, dim=1)  # [model, n, d_vocab]
        finite, best = logits.isfinite().all(-1).cpu(), logits.argmax(-1).cpu().numpy()
        return {
            index: best[place, : len(rows)]
            for place, (index, rows) in enumerate(tokens.items())
            if finite[place, : len(rows)].all()
        }

    def _step(
        self, factors: "Float[Tensor, 'factor model 1']", rows: Int64[Tensor, "model batch"]
    ) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
        """One step of all models: their losses, and the gradients' norms before clipping."""
        tokens, targets = self._batches.tokens[rows], self._batches.targets[rows]
        with loop.arithmetic(self._config.train):
            losses = self._differentiate(tokens.long(), targets.long())
            return losses, self._update(factors)

    def _differentiate(
        self, tokens: Int64[Tensor, "model batch pos"], targets: Int64[Tensor, "model batch"]
    ) -> Float[Tensor, " model"]:
        """Losses; the gradients go into their matrix."""
        if self._together:
            with loop.autocast(self._config.train, self._device, cached=False):
                losses = self._side_by_side(self._leaves, tokens, targets)
            # a loss depends on one model only, so the sum has each model's own gradient
            self._keep_gradients(losses.sum(), self._leaves.values(), self._gradients)
            return losses.detach()
        in_turn = []
        for index, model in enumerate(self._models):
            with loop.autocast(self._config.train, self._device):
                loss = model(tokens[index], targets[index])
            self._keep_gradients(loss, model.parameters(), self._gradients[index])
            in_turn.append(loss.detach())
        return torch.stack(in_turn)

    def _keep_gradients(self, loss: Tensor, leaves: Iterable[Tensor], rows: Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(leaves))
        for place, gradient in zip(self._places.values(), gradients, strict=True):
            place.of(rows).copy_(gradient)

    def _side_by_side(self, leaves: dict[str, Tensor], *arguments: Tensor) -> Tensor:
        """Loss or logits of models whose parameters and arguments are stacked."""

        def one(leaves: dict[str, Tensor], *arguments: Tensor) -> Tensor:
            named = {f"model.{name}": leaf for name, leaf in leaves.items()}
            out: Tensor = functional_call(self._models[0], named, arguments)
            return out

        # under vmap, fused attention has no rule on CPUs and takes no derivative on GPUs; sequences
        # of nine positions do not need it
        with sdpa_kernel(SDPBackend.MATH):
            stacked: Tensor = vmap(one)(leaves, *arguments)
        return stacked

    @torch.no_grad()
    def _update(self, factors: "Float[Tensor, 'factor model 1']") -> Float[Tensor, " model"]:
        """Clip the gradients and update all models; the gradients' norms before clipping.

        This is ``torch.nn.utils.clip_grad_norm_`` and ``torch.optim.AdamW``, with the clipped
        gradient g, moments m and v, and t steps including this one::

            m <- m + (1 - beta1) (g - m)
            v <- v + (1 - beta2) (g^2 - v)
            w <- (1 - lr wd) w - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)

        The root is taken of v alone; its divisor goes into rate and epsilon.
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

    @torch.no_grad()
    def _adopt(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Matrices of weights, moments and step counts; the members' become views."""
        width = sum(place.width for place in self._places.values())
        zeros = torch.zeros(len(self._members), width, dtype=self._dtype, device=self._device)
        weights, moment1, moment2 = zeros, zeros.clone(), zeros.clone()
        steps = torch.zeros(len(self._members), len(self._places), device=self._device)
        for row, member in enumerate(self._members):
            member.state.graphs.clear()  # they read the tensors of before
            state = member.state.optimizer.state
            for column, (name, parameter) in enumerate(member.state.model.named_parameters()):
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


@dataclass(frozen=True)
class _Place:
    """Where a parameter is in a row, and how many numbers it takes with the zeros after it."""

    start: int
    width: int
    shape: torch.Size

    def of(self, rows: Float[Tensor, "*model width"]) -> Float[Tensor, "..."]:
        """The parameter, as a view of one row or of all rows."""
        part = rows[..., self.start : self.start + self.shape.numel()]
        return part.view(*rows.shape[:-1], *self.shape)


def _places(model: HookedTransformer) -> dict[str, _Place]:
    places, start = {}, 0
    for name, parameter in model.named_parameters():
        width = math.ceil(parameter.numel() / _ALIGNMENT) * _ALIGNMENT
        places[name] = _Place(start, width, parameter.shape)
        start += width
    return places


class _Answering(nn.Module):
    """A model's logits at the last position or, given targets, its loss."""

    def __init__(self, model: HookedTransformer, n_input_tokens: int, fast: bool) -> None:
        super().__init__()
        self.model, self._n, self._fast = model, n_input_tokens, fast

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            return place_logits(self.model, tokens, n_input_tokens=self._n, fast=self._fast)
        batch = Batch(tokens, targets, 1.0)
        return objectives.batch_loss(self.model, batch, n_input_tokens=self._n, fast=self._fast)


class _Batches:
    """The models' training sequences on the device; equal ones are stored once."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self._members, self._size = members, members[0].config.train.batch_size
        sets = {member.data_key: member.training for member in members}
        starts = itertools.accumulate(map(len, sets.values()), initial=0)
        self._starts = dict(zip(sets, starts, strict=False))
        tokens = np.concatenate([part.inputs for part in sets.values()])
        targets = np.concatenate([part.last for part in sets.values()])
        self.tokens = torch.from_numpy(tokens).to(device)
        self.targets = torch.from_numpy(targets).to(device)
        keys = [(len(one.training), one.config.seed, one.state.step) for one in members]
        orders = {key: objectives.EpochOrders(*key[:2], device) for key in keys}
        self._orders = [orders[key] for key in keys]  # equal ones take the same sequences

    def rows(self, n_steps: int) -> Int64[Tensor, "step model batch"]:
        """The rows of the sequences that the next steps take."""
        rows = []
        for member, orders in zip(self._members, self._orders, strict=True):
            first = member.state.step * self._size
            own = orders.rows(first, first + n_steps * self._size)
            rows.append(own + self._starts[member.data_key])
        return torch.stack(rows).view(-1, n_steps, self._size).transpose(0, 1)


def _factors(members: Sequence[Member], n_steps: int) -> "Float[Tensor, 'step factor model 1']":
    """What the next updates take from the models' schedules, in the order that _update reads."""
    trains = [member.config.train for member in members]
    steps = np.array([member.state.step for member in members]) + np.arange(n_steps)[:, None]

    def scheduled(rate: Callable[[TrainConfig, int], float]) -> Float[np.ndarray, "step model"]:
        return np.array([[*map(rate, trains, map(int, row))] for row in steps])

    lr = scheduled(learning_rate)
    wd = scheduled(lambda train, step: train.rates(step)[1])
    fields = ("beta1", "beta2", "eps")
    beta1, beta2, eps = np.array([[getattr(train, f) for train in trains] for f in fields])
    clip = np.array([train.clip or math.inf for train in trains])
    unbias1, unbias2 = 1 - beta1 ** (steps + 1), np.sqrt(1 - beta2 ** (steps + 1))
    factors = (clip, 1 - lr * wd, 1 - beta1, 1 - beta2, lr / unbias1 * unbias2, eps * unbias2)
    return torch.from_numpy(np.stack(np.broadcast_arrays(*factors, steps)[:-1], axis=1)[..., None])
