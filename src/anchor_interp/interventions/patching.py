"""Activation patching: which activation carries what tells two sequences apart.

A *clean* and a *corrupted* sequence differ in one thing, and the model answers them differently.
Run one with an activation of the other in its place and see how far the answer follows (Vig et al.
2020; Meng et al. 2022; named as in Heimersheim and Nanda 2024):

* ``denoise`` (TransformerLens's direction): the corrupted run with a clean activation. What
  restores the clean answer is *sufficient* for it, given the rest of the corrupted run;
* ``noise``: the clean run with a corrupted activation. What breaks the answer is *necessary*.

What is measured is a metric of the logits where each example is answered
(:mod:`anchor_interp.interventions.metrics`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.metrics import Metric, measure
from anchor_interp.interventions.patched_passes import Replacement, replaced_run
from anchor_interp.interventions.sites import Connection, Site, check_path, check_sites, site_mask
from anchor_interp.models.inputs import finite_rows, model_rows
from anchor_interp.models.transformer import HookedTransformer, Inputs
from anchor_interp.tasks.examples import as_examples, check_aligned

Direction = Literal["denoise", "noise"]
SMALLEST_DIFFERENCE = 0.1
"""Smallest difference of clean and corrupted, in the metric's unit, that a ratio divides by."""
_BATCH = 512
_NAMED = 3
"""Sites that a result names."""


@dataclass(frozen=True, eq=False, repr=False)
class PatchResult(Readable):
    """A metric after each patch, example by example, and how far it went.

    ``recovery`` is a ratio of means over the examples::

        (patched - corrupted) / (clean - corrupted)

    It is 1 where the patched run behaves as the clean one, 0 as the corrupted one, and not clamped:
    a patch without effect has 0 when denoising and 1 when noising. Examples without a metric (NaN)
    are left out; those that are not told apart (metrics less than 0.1 apart) count.
    """

    sites: tuple[Site, ...] | tuple[Connection, ...]
    direction: Direction
    values: Float[np.ndarray, "site example"]
    """The metric of the patched runs."""
    clean: Float[np.ndarray, " example"]
    corrupted: Float[np.ndarray, " example"]
    completeness: float | None = None
    """Of an estimate by gradients: its sum over the embedding / the whole difference of the donor's
    and the patched run, means over the examples; 1 if the attributions add up to it."""

    def _summary(self) -> str:
        apart = self.told_apart()
        examples = f"{len(apart)} examples, {apart.sum()} told apart"
        about = f"{self.direction}, {len(self.sites)} sites, {examples}"
        if self.completeness is not None:
            about += f"; estimated, completeness {self.completeness:.2f}"
        if self._nothing:
            return f"{about}\n{self._nothing}"
        rows = zip(self.sites, self.recovery().tolist(), strict=True)
        # exchanging the embedding exchanges the sequence
        inside = [(site, share) for site, share in rows if not (isinstance(site, Site)
                  and (site.activation, site.layer) == ("resid_pre", 0))]  # fmt: skip
        if not inside:
            return about
        sign = -1 if self.direction == "denoise" else 1
        most = sorted(inside, key=lambda row: sign * row[1])[:_NAMED]
        largest = ", ".join(f"{share:.2f} at {site}" for site, share in most)
        return f"{about}\nlargest effects after the embedding: recovery {largest}"

    def _rows(self) -> list[dict[str, Any]]:
        shares: list[Any] = [[None] * len(self.sites)] * 3
        if not self._nothing:
            shares = [self.recovery().tolist(), *self.interval().tolist()]
        means = self._means(self.values).tolist()
        rows = []
        for site, *numbers in zip(self.sites, means, *shares, strict=True):
            at = site.sender if isinstance(site, Connection) else site
            row = {n: getattr(at, n) for n in ("activation", "layer", "head", "position")}
            row |= zip(("value", "recovery", "low", "high"), numbers, strict=True)
            rows.append({"site": str(site), **row})
        return rows

    def told_apart(self) -> Bool[np.ndarray, " example"]:
        """Examples whose clean and corrupted metric differ by at least ``SMALLEST_DIFFERENCE``."""
        difference = np.abs(self.clean - self.corrupted)
        apart: Bool[np.ndarray, " example"] = difference >= SMALLEST_DIFFERENCE
        return apart

    def recovery(self) -> Float[np.ndarray, " site"]:
        """The ratio of means; see the class.

        Raises:
            ConfigError: nothing to recover: the clean metric is on average not larger than the
                corrupted one by ``SMALLEST_DIFFERENCE``.
        """
        self._check()
        patched, clean, corrupted = map(self._means, (self.values, self.clean, self.corrupted))
        shares: Float[np.ndarray, " site"] = (patched - corrupted) / (clean - corrupted)
        return shares

    def interval(self, *, seed: int = 0) -> Float[np.ndarray, "2 site"]:
        """The 2.5 % and 97.5 % points of :meth:`recovery` over 1,000 bootstrap draws.

        They are NaN of one example.

        Raises:
            ConfigError: as :meth:`recovery`.
        """
        self._check()
        n = int(self._measured.sum())
        weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), 1000) / n
        runs = (self.values, self.clean, self.corrupted)
        patched, clean, corrupted = (x[..., self._measured] @ weights.T for x in runs)
        shares = (patched - corrupted) / (clean - corrupted)
        ends: Float[np.ndarray, "2 site"] = np.quantile(shares, [0.025, 0.975], axis=-1)
        return ends if n > 1 else np.full_like(ends, np.nan)

    def _check(self) -> None:
        if self._nothing:
            raise ConfigError(f"{self._nothing}; patch a contrast that changes the answer")

    @property
    def _measured(self) -> Bool[np.ndarray, " example"]:
        measured: Bool[np.ndarray, " example"] = ~np.isnan(self.clean - self.corrupted)
        return measured

    def _means(self, metric: Float[np.ndarray, "*site example"]) -> Any:
        return metric[..., self._measured].mean(-1)

    @property
    def _nothing(self) -> str:
        """Why there is nothing to recover; empty if there is something."""
        clean, corrupted = self._means(self.clean), self._means(self.corrupted)
        if clean - corrupted >= SMALLEST_DIFFERENCE:
            return ""
        means = f"{clean:.2f} in clean and {corrupted:.2f} in corrupted runs"
        needed = f"in clean ones it must be larger by at least {SMALLEST_DIFFERENCE}"
        return f"nothing to recover: the metric is on average {means}; {needed}"


@torch.no_grad()
def patch(
    model: HookedTransformer,
    clean: Inputs,
    corrupted: Inputs,
    sites: Sequence[Site],
    metric: Metric,
    *,
    direction: Direction = "denoise",
    batch_size: int = _BATCH,
) -> PatchResult:
    """Replace one activation at a time and measure what the model answers.

    Hooks attached to the model act in every run. Corrupted examples are answered at the same
    positions as the clean ones, whose places are those of both. Several sites share a forward pass
    of ``batch_size`` sequences; with ``batch_size=len(clean)`` every pass holds the n examples of
    one site in order, which attached hooks made for these n sequences need.

    Raises:
        ConfigError: sequences that do not match, sites that are not there, a metric of the wrong
            shape or without a value, or weights or logits that are not finite.
        HookError: the settings of the model keep a site's hook from firing.
    """
    twins = Twins(model, clean, corrupted, metric, direction, batch_size)
    sites = check_sites(model, sites)
    n = len(twins.rows)
    values = np.empty((len(sites), n))
    for hook, donated in twins.donated(sites).items():
        chosen = [i for i, site in enumerate(sites) if site.hook == hook]
        at_once = max(1, batch_size // n)
        for part in (chosen[k : k + at_once] for k in range(0, len(chosen), at_once)):
            copies = donated.repeat(len(part), *[1] * (donated.ndim - 1))
            masks = torch.cat([twins.mask(sites[i], donated) for i in part])
            logits, _ = twins.run([Replacement(hook, copies, masks)], copies=len(part))
            for i, logits_of_site in zip(part, logits.chunk(len(part)), strict=True):
                values[i] = measure(metric, logits_of_site)
    return twins.result(sites, values)


@torch.no_grad()
def path_patch(
    model: HookedTransformer,
    clean: Inputs,
    corrupted: Inputs,
    connections: Sequence[Connection],
    metric: Metric,
    *,
    direction: Direction = "denoise",
    batch_size: int = _BATCH,
) -> PatchResult:
    """Let a sender's change reach its receivers directly, and nothing else.

    Each connection takes two runs (Wang et al. 2022, appendix B; Goldowsky-Dill et al. 2023):

    1. The patched run (corrupted when denoising) with the sender's value from the other sequences.
       The output z of every attention head and the output of every MLP, at every position, are
       *frozen* at the patched run's own values. Only the residual stream carries the change on, so
       the change stays at the sender's position. LayerNorms are never frozen.
    2. The patched run, nothing frozen, with the values that the receivers had in run 1. Everything
       after the receivers reacts. For the ``logits`` run 1 is already the answer.

    MLPs are frozen, so a path through an MLP is not a connection; Wang et al. let them react. The
    effects of single senders on the logits add up only without LayerNorm. Arguments and errors are
    those of :func:`patch`, with ``connections`` in place of its sites.
    """
    twins = Twins(model, clean, corrupted, metric, direction, batch_size)
    connections = tuple(checked(connections, tuple[Connection, ...], "connections"))
    senders = tuple(dict.fromkeys(each.sender for each in connections))
    check_sites(model, [*senders, *(site for each in connections for site in each.receiving)])
    kinds = ["attn.hook_z"] + ["hook_mlp_out"] * (not model.cfg.attn_only)
    outputs = [f"blocks.{layer}.{kind}" for layer in range(model.cfg.n_layers) for kind in kinds]
    for each in connections:
        check_path(each, twins.places)
    own = activations(model, twins.rows, outputs, batch=batch_size)
    frozen = [Replacement(name, value) for name, value in own.items()]
    donated = twins.donated(senders)
    values = np.empty((len(connections), len(twins.rows)))
    for sender in senders:
        sent = [i for i, each in enumerate(connections) if each.sender == sender]
        record = {site.hook for i in sent for site in connections[i].receiving}
        direct, arrived = twins.run([*frozen, twins.put(sender, donated)], record=record)
        for i in sent:
            received = [twins.put(site, arrived) for site in connections[i].receiving]
            logits = twins.run(received)[0] if received else direct
            values[i] = measure(metric, logits)
    return twins.result(connections, values)


class Twins:
    """Sequences that are patched, and their donors, at the places of the clean ones."""

    def __init__(
        self,
        model: HookedTransformer,
        clean: Inputs,
        corrupted: Inputs,
        metric: Metric,
        direction: Direction,
        batch_size: int = _BATCH,
    ) -> None:
        checked(direction, Direction, "direction")
        checked(batch_size, int, "batch_size", low=1)
        rows = [finite_rows(model, clean), model_rows(model, corrupted)]
        self.metric: Metric = checked(metric, Callable, "metric")
        inputs = as_examples(clean), as_examples(corrupted)
        check_aligned(clean=inputs[0], corrupted=inputs[1])
        self.model, self.direction, self.batch_size = model, direction, batch_size
        patched = direction == "denoise"  # which of the two is
        self.places, self.rows, self.donors = inputs[0], rows[patched], rows[not patched]

    def donated(self, sites: Iterable[Site]) -> dict[str, Tensor]:
        """The donors' activations at the sites' hooks."""
        hooks = list(dict.fromkeys(site.hook for site in sites))
        return activations(self.model, self.donors, hooks, batch=self.batch_size)

    def mask(self, site: Site, value: Tensor) -> Bool[Tensor, "n ..."]:
        """Where a site lies in an activation."""
        return site_mask(site, self.places, value.shape).to(value.device)

    def put(self, site: Site, given: Mapping[str, Tensor]) -> Replacement:
        """Put the given activations, by hook, at one site."""
        value = given[site.hook]
        return Replacement(site.hook, value, self.mask(site, value))

    def run(
        self, replacements: Sequence[Replacement], *, copies: int = 1, record: Iterable[str] = ()
    ) -> tuple[Float[Tensor, "n *k d_vocab"], dict[str, Tensor]]:
        """Logits of the patched sequences, the same ones several times in a row, and records."""
        rows = self.rows[torch.arange(len(self.rows), device="cpu").repeat(copies)]
        n = self.batch_size
        return replaced_run(self.model, rows, replacements, record=record, batch_size=n)

    def result(
        self, sites: tuple[Site, ...] | tuple[Connection, ...], values: np.ndarray
    ) -> PatchResult:
        """The patched metric beside the metric of the two unpatched runs."""
        unpatched = []
        for rows in (self.donors, self.rows):
            logits, _ = replaced_run(self.model, rows, (), batch_size=self.batch_size)
            unpatched.append(measure(self.metric, logits))
        clean, corrupted = unpatched if self.direction == "denoise" else unpatched[::-1]
        if (lost := np.isnan(values) & ~np.isnan(clean - corrupted)).any():
            first = f"first at {sites[lost.any(1).argmax()]}"
            raise ConfigError(f"the metric is NaN in patched runs alone, {first}; give finite ones")
        return PatchResult(sites, self.direction, values, clean, corrupted)
