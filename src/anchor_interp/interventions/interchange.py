"""Interchange interventions: is this activation the model's g(x; a1)?

If an activation stands for the intermediate value v = g(x; a1), then taking it from another
sequence changes v and nothing else, and the answer that follows is known beforehand (Geiger et
al. 2021). A *base* sequence (x; a1, a2) gets the activation of a *source* (x'; a1', a2'), whose
value is v' = g(x'; a1'); an inferential model then answers

    g(v'; a2),

the *counterfactual*: a composition of the source's key and anchor with the base's second anchor,
which stands in neither sequence. The share of counterfactual answers is the interchange accuracy.
Sources are chosen so that the counterfactual can be mistaken for nothing else: it differs from the
base's answer, from the source's, from the answer to (x; a1', a2), which a model gives in whose
activation the first *anchor* alone stands, and from the answer to (x'; a1, a2), where it is the
*key* alone. And v' is a value that the second anchor was trained on.

The new combination (a1', a2) may be an unseen pair: that a model composes it too is what makes it
inferential. It is never an overridden pair, nor an unseen one that has a symmetric answer (both of
the NeurIPS task): there a model is right, or was trained by its other order, to answer something
else than the composition.

The value need not fill the activation. :func:`learn_subspace` looks for the k directions that
carry it (distributed alignment search, Geiger et al. 2023): the first k columns of a rotation,
fitted so that exchanging the activation along them alone gives the counterfactual. Such a search
finds something in many places, so it is judged on sequences that it was not fitted on, against a
random subspace of the same k.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError, DivergedError
from anchor_interp._util.progress import reporting
from anchor_interp._util.schema import checked
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.patching import check_answers
from anchor_interp.interventions.sites import Site, check_sites, site_mask
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.tasks.counterfactuals import InterchangePairs
from anchor_interp.tasks.hashing import batch_indices

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class Subspace:
    """k directions of an activation."""

    basis: Float[np.ndarray, "d k"]
    """Orthonormal columns."""
    losses: Float[np.ndarray, " step"]
    """Mean cross-entropy of the counterfactual at every step of the search, in nats; empty if it
    was not searched for."""


@dataclass(frozen=True, eq=False)
class InterchangeResult:
    """What a model answers after an interchange; shares of the n base sequences."""

    site: Site
    """What was exchanged."""
    dimensions: int | None
    """Along how many directions; None for all of it."""
    n: int
    """Number of sequences."""
    counterfactual: float
    """Share answered with g(g(x'; a1'); a2): the interchange accuracy."""
    base: float
    """Share still answered with the base's target."""
    source: float
    """Share answered with the source's target."""
    anchor_moved: float
    """Share answered as (x; a1', a2)."""
    key_moved: float
    """Share answered as (x'; a1, a2)."""
    untouched: float
    """Share of base sequences answered with their target when nothing is exchanged."""
    cross_entropy: float
    """Mean cross-entropy of the counterfactual, in nats."""
    answers: Int64[np.ndarray, " n"]
    """Every answer."""


@torch.no_grad()
def interchange(
    model: HookedTransformer,
    pairs: InterchangePairs,
    site: Site,
    *,
    subspace: Subspace | None = None,
    batch_size: int = _BATCH,
) -> InterchangeResult:
    """Run the base sequences with an activation of their sources.

    Args:
        model: any HookedTransformer; hooks attached to it act in every run.
        pairs: from :func:`interchange_pairs`.
        site: what is exchanged, such as ``Site("resid_post", 0, "first")``.
        subspace: exchange the part along these directions only; everything if None.
        batch_size: sequences per forward pass.

    Raises:
        ConfigError: a site that the model does not have, one of another size in some sequences,
            a subspace of another width, answers that are no output tokens of the model, or logits
            that are not finite.
    """
    exchange = _Exchange(model, pairs, site, batch_size)
    basis = None
    if subspace is not None:
        if len(subspace.basis) != exchange.width:
            raise ConfigError(
                f"the subspace is of {len(subspace.basis)} dimensions, {site} has {exchange.width}"
            )
        basis = torch.from_numpy(subspace.basis).to(exchange.base)
    logits, untouched = [], []
    for start in range(0, len(exchange.rows), batch_size):
        part = np.arange(start, min(start + batch_size, len(exchange.rows)))
        logits.append(exchange.run(part, basis))
        untouched.append(last_logits(model, exchange.rows[part]).argmax(-1).cpu().numpy())
    found = torch.cat(logits)
    if not torch.isfinite(found).all():
        raise ConfigError("the model's logits are not finite numbers; its weights are damaged")
    answers = found.argmax(-1).cpu().numpy()

    def share(expected: np.ndarray, given: np.ndarray = answers) -> float:
        return float((given == expected).mean())

    return InterchangeResult(
        site=site,
        dimensions=None if subspace is None else subspace.basis.shape[1],
        n=len(answers),
        counterfactual=share(pairs.counterfactual),
        base=share(pairs.base.targets),
        source=share(pairs.source.targets),
        anchor_moved=share(pairs.anchor_moved),
        key_moved=share(pairs.key_moved),
        untouched=share(pairs.base.targets, np.concatenate(untouched)),
        cross_entropy=float(_cross_entropy(found, exchange.counterfactual)),
        answers=answers,
    )


def learn_subspace(
    model: HookedTransformer,
    pairs: InterchangePairs,
    site: Site,
    dimensions: int,
    *,
    seed: int,
    steps: int = 300,
    lr: float = 0.01,
    batch_size: int = 256,
    quiet: bool = False,
) -> Subspace:
    """Search for the k directions of a site that carry g(x; a1) (Geiger et al. 2023).

    Adam on the mean cross-entropy of the counterfactual answers, from a random subspace on. What
    it moves are k vectors; the basis is the orthonormal factor of their QR decomposition. The
    model's weights do not change.

    Args:
        model: any HookedTransformer.
        pairs: what is fitted; judge the result on others.
        site: where.
        dimensions: k.
        seed: seed of the start and of the order of the sequences.
        steps: optimizer updates.
        lr: learning rate.
        batch_size: sequences per update.
        quiet: no progress on standard error.

    Raises:
        ConfigError: a number out of range, or a site as in :func:`interchange`.
        DivergedError: a loss that is not a finite number.
    """
    checked(steps, int, "steps", low=1)
    checked(batch_size, int, "batch_size", low=1)
    checked(lr, float, "lr", above=0)
    exchange = _Exchange(model, pairs, site, batch_size)
    start = random_subspace(exchange.width, dimensions, seed=seed)
    precision = torch.promote_types(exchange.base.dtype, torch.float32)
    weights = torch.from_numpy(start.basis).to(exchange.base.device, precision).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=lr)
    losses = np.empty(steps)
    with reporting({"subspace": (steps, batch_size)}, quiet=quiet) as progress:
        for step in range(steps):
            rows = batch_indices(step, batch_size, len(exchange.rows), seed=seed)
            with torch.enable_grad():
                basis = torch.linalg.qr(weights)[0]
                logits = exchange.run(rows, basis.to(exchange.base.dtype))
                loss = _cross_entropy(logits, exchange.counterfactual[rows])
            losses[step] = loss.item()
            if not np.isfinite(losses[step]):
                raise DivergedError(
                    f"the loss is {losses[step]} at step {step + 1} of the search; lower lr"
                )
            (weights.grad,) = torch.autograd.grad(loss, [weights])
            optimizer.step()
            progress["subspace"].update(step + 1, {"loss": losses[step]})
    return Subspace(torch.linalg.qr(weights.detach().double())[0].cpu().numpy(), losses)


def random_subspace(width: int, dimensions: int, *, seed: int) -> Subspace:
    """Directions drawn uniformly: what an interchange along any k of them does.

    Args:
        width: size of the activation.
        dimensions: k.
        seed: seed of the draw.

    Raises:
        ConfigError: k not between 1 and the width.
    """
    checked(width, int, "width", low=1)
    checked(dimensions, int, "dimensions", low=1, high=width)
    checked(seed, int, "seed", low=0, high=(1 << 63) - 1)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, dimensions, generator=generator, dtype=torch.float64)
    return Subspace(torch.linalg.qr(drawn)[0].numpy(), np.empty(0))


class _Exchange:
    """The base sequences with the activations of a site in them and in their sources."""

    def __init__(
        self, model: HookedTransformer, pairs: InterchangePairs, site: Site, batch_size: int
    ) -> None:
        checked(pairs, InterchangePairs, "pairs")
        check_sites(model, [site])
        checked(batch_size, int, "batch_size", low=1)
        check_answers(pairs.counterfactual, model.cfg.d_vocab_out)
        self._model, self._site = model, site
        self.rows = token_rows(model, pairs.base.tokens)
        whole = [
            activations(model, sequences.tokens, [site.hook], batch=batch_size)[site.hook]
            for sequences in (pairs.base, pairs.source)
        ]
        self._mask = site_mask(site, pairs.base, whole[0].shape).to(self.rows.device)
        self._mask = self._mask.expand(whole[0].shape)
        sizes = self._mask.flatten(1).sum(1)
        if len(sizes) and sizes.min() != sizes.max():
            raise ConfigError(
                f"{site} has {int(sizes.min())} to {int(sizes.max())} numbers, depending on the "
                "sequence; exchange one position"
            )
        self.base, self._source = (each[self._mask].view(len(each), -1) for each in whole)
        self.counterfactual = torch.from_numpy(pairs.counterfactual).to(self.rows.device)

    @property
    def width(self) -> int:
        """Numbers exchanged in every sequence."""
        return self.base.shape[1]

    def run(
        self, rows: Int64[np.ndarray, " batch"], basis: Float[Tensor, "d k"] | None
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits of some base sequences with the sources' part along a basis."""
        base, difference = self.base[rows], self._source[rows] - self.base[rows]
        along = difference if basis is None else difference @ basis @ basis.mT
        values, mask = (base + along).flatten(), self._mask[rows]
        edit = {self._site.hook: lambda activation: activation.masked_scatter(mask, values)}
        with hooked(self._model, edit):
            return last_logits(self._model, self.rows[rows])


def _cross_entropy(logits: Tensor, answers: Tensor) -> Tensor:
    at_least_float32 = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(at_least_float32), answers)
