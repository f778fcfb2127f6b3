"""Activation patching: which activation carries what tells two sequences apart.

A *clean* and a *corrupted* sequence differ in one thing, and the model answers them differently.
Run one with an activation of the other in its place and see how far the answer follows (Vig et al.
2020; Meng et al. 2022; named as in Heimersheim and Nanda 2024):

* ``denoise`` (TransformerLens's direction): the corrupted run with a clean activation. What
  restores the clean answer is *sufficient* for it, given the rest of the corrupted run;
* ``noise``: the clean run with a corrupted activation. What breaks the answer is *necessary*.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.passes import Replacement, check_answers, replaced_run
from anchor_interp.interventions.sites import Connection, Site, check_sites, site_mask
from anchor_interp.models.finite import at_least_float32, check_finite
from anchor_interp.models.transformer import HookedTransformer, Inputs, finite_rows
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import Sequences

Direction = Literal["denoise", "noise"]
Answer = Literal["inferential", "symmetric"]
Metric = Callable[[Float[Tensor, "n d_vocab"]], Float[Tensor, " n"]]
"""Maps the last-position logits of all n examples, in order, to one value each."""
SMALLEST_DIFFERENCE = 0.1
"""Smallest difference of clean and corrupted, in the metric's unit, that a ratio divides by."""
_BATCH = 512
_MOST_TOLD = 3
"""Sites that a result names."""


@dataclass(frozen=True, eq=False, repr=False)
class PatchResult(Readable):
    """A metric after each patch, example by example."""

    sites: tuple[Site, ...] | tuple[Connection, ...]
    direction: Direction
    values: Float[np.ndarray, "site example"]
    """The metric of the patched runs."""
    clean: Float[np.ndarray, " example"]
    corrupted: Float[np.ndarray, " example"]

    def _summary(self) -> str:
        apart = self.told_apart()
        examples = f"{len(apart)} examples, {apart.sum()} told apart"
        about = f"{self.direction}, {len(self.sites)} sites, {examples}"
        rows = [row for row in self._rows() if row["recovery"] is not None]
        # exchanging the embedding exchanges the sequence
        embedding = {str(site) for site in self.sites if isinstance(site, Site)
                     and (site.activation, site.layer) == ("resid_pre", 0)}  # fmt: skip
        inside = [row for row in rows if row["site"] not in embedding]
        if not inside:
            return about
        sign = -1 if self.direction == "denoise" else 1
        most = sorted(inside, key=lambda row: sign * row["recovery"])[:_MOST_TOLD]
        largest = ", ".join(f"{row['recovery']:.2f} at {row['site']}" for row in most)
        return f"{about}\nlargest effects after the embedding: recovery {largest}"

    def _rows(self) -> list[dict[str, Any]]:
        apart, values = self.told_apart(), np.nanmean(self.values, 1)
        shares: Sequence[float | None] = [None] * len(self.sites)
        if apart.any() and 2 * apart.sum() >= len(apart):
            shares = self.recovery()[:, apart].mean(1).tolist()
        rows = []
        for site, value, share in zip(self.sites, values, shares, strict=True):
            at = site.sender if isinstance(site, Connection) else site
            where = {
                name: getattr(at, name) for name in ("activation", "layer", "head", "position")
            }
            rows.append({"site": str(site), **where, "value": value, "recovery": share})
        return rows

    def told_apart(self) -> Bool[np.ndarray, " example"]:
        """Examples whose clean and corrupted metric differ by at least ``SMALLEST_DIFFERENCE``."""
        difference = np.abs(self.clean - self.corrupted)
        apart: Bool[np.ndarray, " example"] = difference >= SMALLEST_DIFFERENCE
        return apart

    def recovery(self) -> Float[np.ndarray, "site example"]:
        """(patched - corrupted) / (clean - corrupted): 1 where the run behaves as the clean one.

        Not clamped. A patch without effect has recovery 0 when denoising and 1 when noising.
        Examples whose clean and corrupted metric differ by less than ``SMALLEST_DIFFERENCE`` are
        NaN.

        Raises:
            ConfigError: more than half of the examples are NaN; the others would be a selection.
        """
        apart = self.told_apart()
        if 2 * apart.sum() < len(apart) or not len(apart):
            raise ConfigError(
                f"clean and corrupted differ by at least {SMALLEST_DIFFERENCE:g} in only "
                f"{apart.sum()} of {len(apart)} examples, and a recovery divides by this "
                "difference; look at the values, or patch a contrast that changes the model's "
                "answer (contrast_pairs)"
            )
        gap = np.where(apart, self.clean - self.corrupted, np.nan)
        recovery: Float[np.ndarray, "site example"] = (self.values - self.corrupted) / gap
        return recovery


def logit_difference(clean: Sequences, corrupted: Sequences) -> Metric:
    """Logit of the clean target minus logit of the corrupted target.

    An example that has the same target twice has none (NaN): :meth:`PatchResult.told_apart` leaves
    it out. Raises ConfigError if all have, as in a negative control.
    """
    same = clean.targets == corrupted.targets
    if same.all():
        raise ConfigError(
            f"clean and corrupted have the same target in all {len(same)} examples, so there is no "
            "difference; measure the probability of an answer instead: answer_probability"
        )
    none = torch.from_numpy(np.where(same, np.nan, 0.0))
    return lambda logits: (
        _picked(logits, clean.targets) - _picked(logits, corrupted.targets) + none.to(logits)
    )


def probability(answers: Integer[np.ndarray, " n"]) -> Metric:
    """Probability of a given answer of every example, in at least float32."""
    return lambda logits: _picked(at_least_float32(logits).softmax(-1), answers)


def answer_probability(task: AnchorTask, sequences: Sequences, answer: Answer) -> Metric:
    """Probability of the answer that a mechanism gives to each sequence.

    ``inferential`` is the composition. ``symmetric`` is the training target of the other order,
    which only unseen pairs have.
    """
    checked(answer, Answer, "answer")
    answers = np.empty(len(sequences), np.int64)
    for index in np.unique(sequences.pair):
        pair, rows = task.pairs[index], sequences.pair == index
        keys = sequences.key[rows].astype(np.int64)
        expected = (
            task.composed(pair, keys) if answer == "inferential" else task.symmetric(pair, keys)
        )
        if expected is None:
            raise ConfigError(
                f"the pair {pair} ({task.role(pair)}) has no symmetric answer; choose sequences of "
                "an unseen pair whose other order has another target: sequences.where(pair=...)"
            )
        answers[rows] = expected
    return probability(answers)


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

    Hooks attached to the model act in every run. Corrupted sequences have the key and the anchors
    at the same positions as the clean ones. Several sites share a forward pass of ``batch_size``
    sequences; with ``batch_size=len(clean)`` every pass holds the n examples of one site in order,
    which attached hooks made for these n sequences need. The activations at all sites of the
    donors are in memory at once.

    Raises:
        ConfigError: sequences that do not match or are all equal, sites that the model does not
            have, a metric of the wrong shape, or weights or logits that are not finite.
        HookError: the settings of the model keep a site's hook from firing.
    """
    twins = _twins(model, clean, corrupted, metric, direction, batch_size)
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
                values[i] = _measured(metric, logits_of_site)
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
    twins = _twins(model, clean, corrupted, metric, direction, batch_size)
    connections = tuple(checked(connections, tuple[Connection, ...], "connections"))
    if not connections:
        raise ConfigError("connections is empty; name at least one Connection")
    senders = tuple(dict.fromkeys(each.sender for each in connections))
    check_sites(model, [*senders, *(site for each in connections for site in each.receiving)])
    kinds = ["attn.hook_z"] + ["hook_mlp_out"] * (not model.cfg.attn_only)
    outputs = [f"blocks.{layer}.{kind}" for layer in range(model.cfg.n_layers) for kind in kinds]
    own = activations(model, twins.rows, outputs, batch=batch_size)
    frozen = [Replacement(name, value) for name, value in own.items()]
    donated = twins.donated(senders)
    values = np.empty((len(connections), len(twins.rows)))
    for sender in senders:
        sent = [i for i, each in enumerate(connections) if each.sender == sender]
        record = {site.hook for i in sent for site in connections[i].receiving}
        direct, arrived = twins.run([*frozen, twins.at(sender, donated)], record=record)
        for i in sent:
            received = [twins.at(site, arrived) for site in connections[i].receiving]
            logits = twins.run(received)[0] if received else direct
            values[i] = _measured(metric, logits)
    return twins.result(connections, values)


@dataclass(frozen=True, eq=False)
class _Twins:
    """Sequences that are patched, and those that activations come from, their donors."""

    model: HookedTransformer
    base: Inputs
    rows: Int64[Tensor, "n pos"]
    donors: Int64[Tensor, "n pos"]
    metric: Metric
    direction: Direction
    batch_size: int

    def donated(self, sites: Iterable[Site]) -> dict[str, Tensor]:
        """The donors' activations at the sites' hooks."""
        hooks = list(dict.fromkeys(site.hook for site in sites))
        return activations(self.model, self.donors, hooks, batch=self.batch_size)

    def mask(self, site: Site, value: Tensor) -> Bool[Tensor, "n ..."]:
        """Where a site lies in an activation."""
        return site_mask(site, self.base, value.shape).to(value.device)

    def at(self, site: Site, given: Mapping[str, Tensor]) -> Replacement:
        """Put the given activations, by hook, at one site."""
        value = given[site.hook]
        return Replacement(site.hook, value, self.mask(site, value))

    def run(
        self, replacements: Sequence[Replacement], *, copies: int = 1, record: Iterable[str] = ()
    ) -> tuple[Float[Tensor, "n d_vocab"], dict[str, Tensor]]:
        """Logits of the patched sequences, the same ones several times in a row, and records."""
        rows, size = self.rows.repeat(copies, 1), self.batch_size
        return replaced_run(self.model, rows, replacements, record=record, batch_size=size)

    def result(
        self, sites: tuple[Site, ...] | tuple[Connection, ...], values: np.ndarray
    ) -> PatchResult:
        """The patched metric beside the metric of the two runs."""
        unpatched = [
            _measured(
                self.metric, replaced_run(self.model, rows, (), batch_size=self.batch_size)[0]
            )
            for rows in (self.donors, self.rows)
        ]
        clean, corrupted = unpatched if self.direction == "denoise" else unpatched[::-1]
        return PatchResult(sites, self.direction, values, clean, corrupted)


def _twins(
    model: HookedTransformer,
    clean: Inputs,
    corrupted: Inputs,
    metric: Any,
    direction: Direction,
    batch_size: int,
) -> _Twins:
    """What both kinds of patching are given, checked."""
    checked(direction, Direction, "direction")
    checked(batch_size, int, "batch_size", low=1)
    inputs = (clean, corrupted)
    rows = [finite_rows(model, x) for x in inputs]
    if not callable(metric):
        made = "logit_difference(clean, corrupted) or a function of the last position's logits"
        raise ConfigError(f"metric is {shown(metric)}; expected {made}")
    if rows[0].shape != rows[1].shape or not len(rows[0]):
        shapes = f"clean has shape {tuple(rows[0].shape)} and corrupted {tuple(rows[1].shape)}"
        raise ConfigError(f"{shapes}; expected the same shape, of at least one sequence")
    if torch.equal(*rows):
        raise ConfigError(
            f"clean and corrupted have the same tokens in all {len(rows[0])} sequences, so a patch "
            "exchanges nothing; give twins that differ in one thing, as contrast_pairs draws them"
        )
    if isinstance(clean, Sequences) and isinstance(corrupted, Sequences):
        elsewhere = (clean.position != corrupted.position).sum()
        if elsewhere:
            raise ConfigError(
                f"the key is elsewhere in {elsewhere} of {len(clean)} corrupted sequences; "
                "patch sequences whose positions agree, as contrast_pairs draws them"
            )
    base = direction == "denoise"  # which of the two is patched
    return _Twins(model, inputs[base], rows[base], rows[not base], metric, direction, batch_size)


def _picked(values: Tensor, answers: np.ndarray) -> Tensor:
    """The value of one answer of every example."""
    if len(answers) != len(values):
        raise ConfigError(
            f"the metric is of {len(answers)} examples and {len(values)} are patched; make it from "
            "the sequences that are patched"
        )
    check_answers(answers, values.shape[-1])
    index = torch.from_numpy(answers.astype(np.int64)).to(values.device)
    return values.gather(1, index[:, None])[:, 0]


def _measured(metric: Metric, logits: Float[Tensor, "n d_vocab"]) -> Float[np.ndarray, " n"]:
    measured: object = metric(check_finite(logits, "the model's logits"))
    if not isinstance(measured, Tensor) or measured.shape != logits.shape[:1]:
        shape = tuple(measured.shape) if isinstance(measured, Tensor) else shown(measured)
        raise ConfigError(
            f"the metric returned {shape}; expected a tensor with one value for each of the "
            f"{len(logits)} examples"
        )
    return measured.detach().double().cpu().numpy()
