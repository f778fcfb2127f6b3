"""Interchange interventions: does this activation stand for a value that the model computes?

If it does, taking it from another sequence changes the value and nothing else, and the new answer
is known in advance (Geiger et al. 2021). A *base* gets the activation of a *source*. The share
answered as expected, with the *counterfactual*, is the interchange accuracy. The value is any label
of examples.

In an anchor task it is v = g(x; a1). The base (x; a1, a2) gets the activation of the source
(x'; a1', a2'), whose value is v' = g(x'; a1'). An inferential model then answers g(v'; a2).

The value need not fill the activation. :func:`learn_subspace` looks for the k directions that
carry it (distributed alignment search, Geiger et al. 2023). Such a search finds something in many
places. So judge it on sequences that it was not fitted on, beside three controls: a random subspace
of the same k (:func:`random_subspace`), the same search with arbitrary labels
(:func:`renamed_answers`), and the same search in an untrained
model (:attr:`anchor_interp.runs.run.Run.initial`). ``docs/mechanism.md`` has an example.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError, DivergedError
from anchor_interp._util.progress import deadline, reporting_one
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.patched_passes import (
    Replacement,
    check_differentiable,
    replaced_run,
)
from anchor_interp.interventions.sites import Site, check_sites, site_mask
from anchor_interp.interventions.subject import MOST_SEED, Subject, subject_of
from anchor_interp.models.inputs import model_rows
from anchor_interp.models.number_checks import at_least_float32, check_answers, check_finite
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import InterchangePairs
from anchor_interp.tasks.examples import Examples, Integers, as_integers
from anchor_interp.tasks.hashing import batch_indices


@dataclass(frozen=True, eq=False, repr=False)
class Subspace(Readable):
    """k directions of an activation, as orthonormal columns."""

    basis: Float[np.ndarray, "d k"]
    losses: Float[np.ndarray, " step"]
    """Mean cross-entropy of every step of the search, in nats; empty for a random subspace."""
    finished: bool = True
    """False if ``max_seconds`` ended the search before its last step."""

    def _summary(self) -> str:
        width, k = self.basis.shape
        about = f"{k} of {width} directions"
        if not len(self.losses):
            return f"{about}, not searched"
        end = "" if self.finished else ", ended by max_seconds"
        first, last = self.losses[[0, -1]]
        return (
            f"{about}, {len(self.losses)} steps{end}; loss {first:.3g} at first, {last:.3g} at last"
        )

    def _rows(self) -> list[dict[str, Any]]:
        return [{"step": step, "loss": loss} for step, loss in enumerate(self.losses.tolist())]


@dataclass(frozen=True, eq=False, repr=False)
class InterchangeResult(Readable):
    """A model's answers after an interchange; shares of the n base sequences."""

    site: Site
    dimensions: int | None
    """Along how many directions; None for all of it."""
    n: int
    counterfactual: float
    """Share answered as expected: the interchange accuracy."""
    base: float
    """Share still answered as the base."""
    source: float
    """Share answered as the source."""
    anchor_moved: float | None
    """Share answered as (x; a1', a2); None without anchors."""
    key_moved: float | None
    """Share answered as (x'; a1, a2); None without anchors."""
    untouched: float
    """Share of base sequences answered rightly when nothing is exchanged."""
    cross_entropy: float
    """Mean cross-entropy of the counterfactual, in nats."""
    answers: Int64[np.ndarray, " n"]
    label: str | None = None
    """The label of examples that was exchanged; None of anchors."""
    also: tuple[Site, ...] = ()
    """Sites that were exchanged together with the first."""

    def _summary(self) -> str:
        along = "all of it" if self.dimensions is None else f"{self.dimensions} directions"
        exchanged = "" if self.label is None else f"{self.label} at "
        return (
            f"{exchanged}{self._where}, {along}, {self.n} sequences\n"
            f"counterfactual {self.counterfactual:.2f}, base {self.base:.2f}, source "
            f"{self.source:.2f}; {self.untouched:.2f} are right when nothing is exchanged"
        )

    def _rows(self) -> list[dict[str, Any]]:
        others = ("anchor_moved", "key_moved") if self.anchor_moved is None else ("label",)
        numbers = {n: v for n, v in vars(self).items() if n not in ("answers", "also", *others)}
        return [numbers | {"site": self._where}]

    @property
    def _where(self) -> str:
        return " and ".join(map(str, (self.site, *self.also)))


@torch.no_grad()
def interchange(
    model: HookedTransformer | Subject,
    pairs: InterchangePairs,
    site: Site | Sequence[Site],
    *,
    subspace: Subspace | None = None,
    batch_size: int = 1024,
) -> InterchangeResult:
    """Run the base sequences with an activation of their sources, or its part in a subspace.

    A named position is each row's own, in the source as in the base. Several sites are exchanged
    together, as one activation of their numbers side by side in the order given, which a subspace
    spans. Hooks attached to the model act in every run. ``pairs`` come from
    :func:`anchor_interp.tasks.counterfactuals.interchange_pairs`, or, for any labels of examples,
    :func:`anchor_interp.tasks.counterfactuals.exchange_label`.

    Raises:
        ConfigError: a site that the model does not have or whose size depends on the sequence,
            sites that overlap, a subspace of another width, answers that are not output tokens, or
            weights or logits that are not finite.
    """
    checked(subspace, Subspace | None, "subspace")
    subject = subject_of(model, None, seed=0)
    exchange = _Exchange(subject, pairs, site, batch_size)
    basis = None
    if subspace is not None:
        if (n := len(subspace.basis)) != exchange.width:
            raise ConfigError(f"the subspace has {n} dimensions; expected {exchange.width}")
        products = subspace.basis.T @ subspace.basis
        if not np.allclose(products, np.eye(len(products)), atol=1e-3):
            raise ConfigError("the subspace's columns are not orthonormal; take np.linalg.qr's Q")
        basis = torch.from_numpy(subspace.basis).to(exchange.base)
    logits = exchange.run(np.arange(len(exchange.rows)), basis, batch_size)
    check_finite(logits, "the model's logits")
    untouched, _ = replaced_run(subject.model, exchange.rows, (), batch_size=batch_size)
    answers = logits.argmax(-1).cpu().numpy()

    def share(expected: np.ndarray | None, given: np.ndarray = answers) -> float:
        return np.nan if expected is None else float((given == expected).mean())

    return InterchangeResult(
        site=exchange.sites[0],
        dimensions=None if subspace is None else subspace.basis.shape[1],
        n=len(answers),
        counterfactual=share(pairs.counterfactual),
        base=share(exchange.answers),
        source=share(pairs.source.answers),
        anchor_moved=None if pairs.anchor_moved is None else share(pairs.anchor_moved),
        key_moved=None if pairs.key_moved is None else share(pairs.key_moved),
        untouched=share(exchange.answers, untouched.argmax(-1).cpu().numpy()),
        cross_entropy=float(F.cross_entropy(at_least_float32(logits), exchange.counterfactual)),
        answers=answers,
        label=pairs.label,
        also=exchange.sites[1:],
    )


@torch.inference_mode(False)
@torch.enable_grad()
def learn_subspace(
    model: HookedTransformer,
    pairs: InterchangePairs,
    site: Site | Sequence[Site],
    dimensions: int,
    *,
    seed: int,
    steps: int = 300,
    lr: float = 0.01,
    batch_size: int = 256,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Subspace:
    """Distributed alignment search (DAS): the k directions of sites that carry what is exchanged.

    Adam moves k vectors, from a random subspace on, to minimise the mean cross-entropy of the
    counterfactual answers. The basis is the orthonormal factor of their QR decomposition. ``seed``
    fixes the start and the order of the sequences. After ``max_seconds`` the directions found so
    far come back, with ``finished`` False. Source: Geiger et al. 2023.

    Raises:
        ConfigError: a number out of range, a site or weights as in :func:`interchange`, or a model
            made within ``torch.inference_mode``.
        DivergedError: the loss is not finite.
    """
    checked(steps, int, "steps", low=1)
    checked(lr, float, "lr", above=0)
    ends = deadline(max_seconds)
    exchange = _Exchange(Subject(model), pairs, site, batch_size)
    batch_size = min(batch_size, len(exchange.rows))
    check_differentiable(model)
    start = random_subspace(exchange.width, dimensions, seed=seed)
    weights = torch.from_numpy(start.basis).to(at_least_float32(exchange.base)).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=lr)
    losses = np.empty(steps)
    with reporting_one("subspace", steps, batch_size=batch_size, quiet=quiet) as progress:
        for step in range(steps):
            chosen = batch_indices(step, batch_size, len(exchange.rows), seed=seed)
            basis = torch.linalg.qr(weights)[0]
            logits = exchange.run(chosen, basis.to(exchange.base.dtype), batch_size)
            loss = F.cross_entropy(at_least_float32(logits), exchange.counterfactual[chosen])
            losses[step] = loss.item()
            if not np.isfinite(losses[step]):
                raise DivergedError(f"the loss is {losses[step]} at step {step + 1}; lower lr")
            (weights.grad,) = torch.autograd.grad(loss, [weights])
            with torch.device("cpu"):  # the optimizer counts its steps on the default device
                optimizer.step()
            progress.update(step + 1, {"loss": losses[step]})
            if time.monotonic() >= ends:
                break
    basis = torch.linalg.qr(weights.detach().double())[0].cpu().numpy()
    return Subspace(basis, losses[: step + 1], finished=step + 1 == steps)


def random_subspace(width: int, dimensions: int, *, seed: int) -> Subspace:
    """Directions of an activation of this width, drawn uniformly: the baseline of a search."""
    checked(dimensions, int, "dimensions", low=1, high=width)
    checked(seed, int, "seed", low=0, high=MOST_SEED)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, dimensions, generator=generator, dtype=torch.float64, device="cpu")
    return Subspace(torch.linalg.qr(drawn)[0].numpy(), np.empty(0))


def renamed_answers(
    task: AnchorTask | Integers, pairs: InterchangePairs, *, seed: int
) -> InterchangePairs:
    """The same pairs with arbitrary labels: a control of a search (Hewitt and Liang 2019).

    One permutation of all answers, drawn with the seed, renames the counterfactual ones: all
    composed answers of an anchor task, or those given. At most one answer in ten keeps its name.
    """
    checked(pairs, InterchangePairs, "pairs")
    if isinstance(task, AnchorTask):
        answers = np.unique([task.composed(pair, task.keys) for pair in task.pairs])
    else:
        answers = np.unique(as_integers(task, "task, or all its answers (range(n)),", "n"))
    if not np.isin(pairs.counterfactual, answers).all():
        raise ConfigError("the pairs expect answers that are not among those to rename: give all")
    if len(answers) < 2:
        raise ConfigError("1 answer cannot be renamed; give all")
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    names = generator.permutation(answers)
    while (names == answers).mean() > 0.1:
        names = generator.permutation(answers)
    return replace(pairs, counterfactual=names[np.searchsorted(answers, pairs.counterfactual)])


class _Exchange:
    """The base sequences with the activations at sites in them and in their sources."""

    def __init__(
        self,
        subject: Subject,
        pairs: InterchangePairs,
        site: Site | Sequence[Site],
        batch_size: int,
    ) -> None:
        checked(
            pairs, InterchangePairs, "pairs (of exchange_label, or interchange_pairs of anchors)"
        )
        checked(batch_size, int, "batch_size", low=1)
        model, both = subject.model, (pairs.base, pairs.source)
        self.rows, self.answers = model_rows(model, both[0]), both[0].answers
        self._model, self._pairs = model, pairs.made
        self.sites = check_sites(model, [site] if isinstance(site, Site) else site)
        check_answers(pairs.counterfactual, model.cfg.d_vocab_out)
        hooks = list(dict.fromkeys(each.hook for each in self.sites))
        self._whole, sources = (activations(model, x, hooks, batch=batch_size) for x in both)
        taken = [_taken(each, self._whole, sources, both) for each in self.sites]
        self._masks = [mask for _, _, mask in taken]
        for hook in hooks:
            same = [m for m, at in zip(self._masks, self.sites, strict=True) if at.hook == hook]
            if (torch.stack(same).sum(0) > 1).any():
                raise ConfigError(f"sites of {hook} overlap; give each place once")
        self._widths = [base.shape[1] for base, _, _ in taken]
        self.base, self._source = (torch.cat([each[i] for each in taken], 1) for i in (0, 1))
        self.width = self.base.shape[1]
        self.counterfactual = torch.from_numpy(pairs.counterfactual).to(self.base.device)

    def run(
        self, chosen: Int64[np.ndarray, " n"], basis: Float[Tensor, "d k"] | None, batch_size: int
    ) -> Float[Tensor, "n d_vocab"]:
        base, value = self.base[chosen], self._source[chosen]
        if basis is not None:
            value = base + (value - base) @ basis @ basis.mT
        exchanged = []
        values = torch.split(value, self._widths, 1)
        for site, every, value in zip(self.sites, self._masks, values, strict=True):
            mask = every[chosen]
            value = self._whole[site.hook][chosen].masked_scatter(mask, value)
            exchanged.append(Replacement(site.hook, value, mask, self._pairs))
        return replaced_run(self._model, self.rows[chosen], exchanged, batch_size=batch_size)[0]


def _taken(
    site: Site,
    base: Mapping[str, Tensor],
    source: Mapping[str, Tensor],
    both: tuple[Examples, Examples],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"], Bool[Tensor, "n ..."]]:
    """A site's numbers in the base and in the source sequences, and where it lies in the base."""
    values, masks, sizes = [], [], list[int]()
    for given, examples in zip((base, source), both, strict=True):
        value = given[site.hook]
        masks.append(site_mask(site, examples, value.shape).to(value.device).expand(value.shape))
        sizes += map(int, masks[-1].flatten(1).sum(1).aminmax())
        values.append(value)
    if min(sizes) != max(sizes):
        raise ConfigError(f"{site} has {min(sizes)} to {max(sizes)} numbers; exchange one position")
    own, other = (
        value[mask].view(len(value), -1) for value, mask in zip(values, masks, strict=True)
    )
    return own, other, masks[0]
