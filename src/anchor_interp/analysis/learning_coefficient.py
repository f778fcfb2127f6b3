"""The local learning coefficient: on how many directions of weight space the loss depends.

The weights whose loss is at most L(w*) + e, with trained weights w*, fill a volume that shrinks as
e^lambda. Where the loss is quadratic in all of d parameters lambda is d / 2, and it is smaller
where many directions change nothing. It is estimated (Lau et al. 2023) as::

    lambda = n_beta (mean of L(w) - L(w*))

over weights w of the density exp(-n_beta L(w) - localization |w - w*|^2 / 2), L the mean training
loss L. So a direction with a curvature well below localization / n_beta does not count. The library
devinterp draws w by stochastic gradient Langevin dynamics: ``pip install
'anchor-interp[devinterp]'``. Where w* is not a minimum, the estimate can be negative.
"""

import copy
import functools
import importlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import nn

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.schema import checked
from anchor_interp.models.number_checks import check_finite, check_weights
from anchor_interp.runs.loop import Objective
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.run import Run


def learning_coefficient(
    run: Run, *, chains: int = 2, steps: int = 100, seed: int = 0,
    n_beta: float = 1e3, localization: float = 1e5, lr: float = 1e-6,
) -> Float64[np.ndarray, " chain"]:  # fmt: skip
    """The local learning coefficient of a run's model on its training examples, chain by chain.

    A chain needs a few times 2 / (lr localization) steps, and is stable where lr is well below
    4 / (n_beta times the largest curvature). Its estimate is of the second half of its steps.

    Raises:
        ConfigError: devinterp is not installed, a weight is not finite, or a chain diverges.
    """
    for name, number, low in (("chains", chains, 1), ("steps", steps, 1), ("seed", seed, 0)):
        checked(number, int, name, low=low)
    settings: dict[str, Any] = {"n_beta": n_beta, "localization": localization, "lr": lr}
    for name, value in settings.items():
        checked(value, float, name, above=0)
    check_weights(checked(run, Run, "run").model)
    objective, seeds = make_objective(run.config, run.device), range(seed, seed + chains)
    chain = functools.partial(sampled_coefficient, run.model, objective, steps=steps, **settings)
    return np.array([chain(seed=each) for each in seeds])


def sampled_coefficient(
    model: nn.Module, objective: Objective, *, steps: int, seed: int,
    n_beta: float, localization: float, lr: float,
) -> float:  # fmt: skip
    """The estimate of one chain.

    ``objective`` gives the batch and the loss of each step; a difference is of one batch.
    """
    advice = "; pip install 'anchor-interp[devinterp]'"
    with raising(ConfigError, "the library devinterp is not installed: ", advice, of=ImportError):
        sampler: Any = importlib.import_module("devinterp.optim").SGMCMC
    moving = copy.deepcopy(model).requires_grad_()
    optimizer = sampler.sgld(moving.parameters(), lr=lr, nbeta=n_beta, localization=localization)
    noise = torch.Generator(next(moving.parameters()).device).manual_seed(seed)
    above = []
    for step in range(seed * steps, (seed + 1) * steps):
        optimizer.zero_grad()
        above.append(0.0)
        for batch in objective.parts(step):
            with torch.no_grad():
                start = objective.loss(model, batch)
            loss = objective.loss(moving, batch)
            torch.autograd.backward(loss)
            above[-1] += float(loss.detach() - start)
        optimizer.step(noise_generator=noise)
    late = np.array(above[steps // 2 :])
    return n_beta * float(check_finite(late, "the losses of the chain").mean())
