"""Activation patching: which activation carries what tells two sequences apart.

A *clean* and a *corrupted* sequence differ in one thing, and the model answers them differently.
Run one of them with some activation of the other put in its place, and see how far the answer
follows (Vig et al. 2020; Meng et al. 2022; named as in Heimersheim and Nanda 2024):

* ``denoise`` (TransformerLens's direction): the corrupted run with a clean activation. What
  restores the clean answer is *sufficient* for it, given the rest of the corrupted run;
* ``noise``: the clean run with a corrupted activation. What breaks the answer is *necessary*.

The model reads a contrast off two sequences: exchanging them exchanges the directions, so
``patch(a, b, direction="noise")`` has exactly the values of ``patch(b, a)``, and with the logit
difference, whose sign flips with its roles, the negative ones.

:func:`patch` replaces one activation and lets everything after it react. :func:`path_patch`
follows one connection: a sender's change reaches the receivers along the residual stream alone,
everything between them stays as it was.

Nothing is averaged here: a :class:`PatchResult` holds one value for every site and example.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import Edit, activations, hooked
from anchor_interp.interventions.sites import Connection, Inputs, Site, check_sites, site_mask
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import Sequences

Direction = Literal["denoise", "noise"]


Answer = Literal["inferential", "symmetric"]


Metric = Callable[[Float[Tensor, "n d_vocab"]], Float[Tensor, " n"]]
"""Logits at the last position of all n examples, in order, to one value each."""


SMALLEST_DIFFERENCE = 0.1
"""Smallest difference of clean and corrupted, in the metric's unit, that a ratio is taken over."""


_BATCH = 512


@dataclass(frozen=True, eq=False)
class PatchResult:
    """A metric after each patch, example by example."""

    sites: tuple[Site, ...] | tuple[Connection, ...]
    """What was patched, one at a time."""
    direction: Direction
    """``denoise``: clean into the corrupted run; ``noise``: corrupted into the clean run."""
    values: Float[np.ndarray, "site example"]
    """The metric of the patched runs."""
    clean: Float[np.ndarray, " example"]
    """The metric of the clean run."""
    corrupted: Float[np.ndarray, " example"]
    """The metric of the corrupted run."""

    def told_apart(self, smallest: float = SMALLEST_DIFFERENCE) -> Bool[np.ndarray, " example"]:
        """Examples whose clean and corrupted metric differ by at least ``smallest``."""
        apart: Bool[np.ndarray, " example"] = np.abs(self.clean - self.corrupted) >= smallest
        return apart

    def recovery(self, smallest: float = SMALLEST_DIFFERENCE) -> Float[np.ndarray, "site example"]:
        """(patched - corrupted) / (clean - corrupted): 1 where the run behaves as the clean one.

        Not clamped: below 0 the patch makes it worse, above 1 it overshoots. Both directions have
        the same scale, so an idle patch has recovery 0 when denoising and 1 when noising.

        Args:
            smallest: examples whose clean and corrupted metric differ by less have no recovery:
                NaN (:meth:`told_apart` counts the others).

        Raises:
            ConfigError: that holds for more than half of the examples, as for a negative control
                on a model that is right: the rest would be a selection.
        """
        checked(smallest, float, "smallest", above=0)
        apart = self.told_apart(smallest)
        if 2 * apart.sum() < len(apart) or not len(apart):
            raise ConfigError(
                f"clean and corrupted differ by at least {smallest:g} in only {apart.sum()} of "
                f"{len(apart)} examples, and a recovery divides by this difference; look at the "
                "values, or patch a contrast that changes the model's answer"
            )
        gap = np.where(apart, self.clean - self.corrupted, np.nan)
        recovery: Float[np.ndarray, "site example"] = (self.values - self.corrupted) / gap
        return recovery


def logit_difference(clean: Sequences, corrupted: Sequences) -> Metric:
    """Logit of the clean minus logit of the corrupted target.

    Raises:
        ConfigError: some example has the same target twice, as in a negative control. The metric:
            targets that are no output tokens of the model.
    """
    same = clean.targets == corrupted.targets
    if same.any():
        raise ConfigError(
            f"clean and corrupted have the same target in {same.sum()} of {len(same)} examples, so "
            "no logits to compare; measure the probability of an answer instead"
        )
    right, wrong = (
        torch.from_numpy(part.targets.astype(np.int64))[:, None] for part in (clean, corrupted)
    )

    highest = np.maximum(clean.targets, corrupted.targets)

    def difference(logits: Tensor) -> Tensor:
        check_answers(highest, logits.shape[-1])
        device = logits.device
        return (logits.gather(1, right.to(device)) - logits.gather(1, wrong.to(device)))[:, 0]

    return difference


def probability(answers: Integer[np.ndarray, " n"]) -> Metric:
    """Probability of one given answer for every example, in at least float32.

    Raises:
        ConfigError: the metric: answers that are no output tokens of the model.
    """
    index = torch.from_numpy(answers.astype(np.int64))[:, None]

    def of_answer(logits: Tensor) -> Tensor:
        check_answers(answers, logits.shape[-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits.softmax(-1).gather(1, index.to(logits.device))[:, 0]

    return of_answer


def answer_probability(task: AnchorTask, sequences: Sequences, answer: Answer) -> Metric:
    """Probability of the answer that a mechanism gives to each of these sequences.

    Args:
        task: the task.
        sequences: the sequences, usually the clean ones.
        answer: ``inferential`` (the composition) or ``symmetric`` (the training target of the
            other order, which only unseen pairs have).

    Raises:
        ConfigError: a sequence of a pair without symmetric answer.
    """
    checked(answer, Answer, "answer")
    answers = np.empty(len(sequences), np.int64)
    for index in np.unique(sequences.pair):
        pair, rows = task.pairs[index], sequences.pair == index
        keys = sequences.key[rows].astype(np.int64)
        found = task.composed(pair, keys) if answer == "inferential" else task.symmetric(pair, keys)
        if found is None:
            raise ConfigError(
                f"the pair {pair} ({task.role(pair)}) has no symmetric answer; draw clean "
                "sequences of an unseen pair whose other order has another target"
            )
        answers[rows] = found
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

    Args:
        model: any HookedTransformer; hooks attached to it act in every run.
        clean: n sequences.
        corrupted: their twins, with key and anchors at the same positions.
        sites: what is replaced, one at a time; :func:`site_grid` lists them.
        metric: what is measured, such as :func:`logit_difference`.
        direction: which run is patched.
        batch_size: sequences per forward pass; several sites share one. With
            ``batch_size=len(clean)`` every pass holds the n examples of one site in order, which
            attached hooks made for these n sequences need. All activations of the sites
            of one run are in memory at a time.

    Raises:
        ConfigError: sequences that do not match, sites that the model does not have, a metric of
            the wrong shape, or logits that are not finite.
        HookError: a site whose hook the model does not have.
    """
    twins = _Twins.checked(model, clean, corrupted, direction)
    sites = check_sites(model, sites)
    checked(batch_size, int, "batch_size", low=1)
    hooks = list(dict.fromkeys(site.hook for site in sites))
    donated = activations(model, twins.donor_rows, hooks, batch=batch_size)
    values = np.empty((len(sites), len(twins.base_rows)))
    at_once = max(1, batch_size // len(twins.base_rows))
    for hook in hooks:
        chosen = [i for i, site in enumerate(sites) if site.hook == hook]
        for start in range(0, len(chosen), at_once):
            part = chosen[start : start + at_once]
            value = donated[hook]
            masks = torch.stack([site_mask(sites[i], twins.base, value.shape) for i in part])
            masks = masks.to(value.device)
            logits = _site_by_site(model, twins.base_rows, value, hook, masks, batch_size)
            for i, found in zip(part, logits, strict=True):
                values[i] = _measured(metric, found)
    return twins.result(model, sites, values, metric, batch_size)


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

    Two runs for each connection (Wang et al. 2022, appendix B; Goldowsky-Dill et al. 2023):

    1. The patched run (corrupted when denoising) with the sender's value from the other
       sequences, while the output z of every attention head and the output of every MLP, at every
       position, stay *frozen* at the patched run's own values. Only the residual stream carries
       the change on, so it stays at the sender's position. LayerNorms are never frozen: those
       of a receiver, and in the post-LayerNorm layout those of the stream, react to the change.
    2. The patched run, nothing frozen, with the values that the receivers had in run 1. All that
       comes after the receivers reacts. To the ``logits`` run 1 is the answer already.

    MLPs are frozen too, so a path through an MLP is no connection of the sender; Wang et al. let
    them react. The effects of single senders on the logits add up only where the stream is linear:
    without LayerNorm.

    Args: see :func:`patch`; ``connections`` take the place of its sites.

    Raises:
        ConfigError: as :func:`patch`.
        HookError: a site whose hook the model does not have.
    """
    twins = _Twins.checked(model, clean, corrupted, direction)
    connections = tuple(checked(connections, tuple[Connection, ...], "connections"))
    checked(batch_size, int, "batch_size", low=1)
    senders = check_sites(model, list(dict.fromkeys(each.sender for each in connections)))
    behind = [
        () if each.receivers == "logits" else check_sites(model, each.receivers)
        for each in connections
    ]
    kinds = ["attn.hook_z"] + ["hook_mlp_out"] * (not model.cfg.attn_only)
    outputs = [f"blocks.{layer}.{kind}" for layer in range(model.cfg.n_layers) for kind in kinds]
    own_values = activations(model, twins.base_rows, outputs, batch=batch_size)
    frozen = [Replacement(name, value) for name, value in own_values.items()]
    hooks = list(dict.fromkeys(site.hook for site in senders))
    donated = activations(model, twins.donor_rows, hooks, batch=batch_size)
    values = np.empty((len(connections), len(twins.base_rows)))
    for sender in senders:
        own = [i for i, each in enumerate(connections) if each.sender == sender]
        sent = replacement(sender, twins.base, donated[sender.hook])
        direct, arrived = replaced_run(
            model,
            twins.base_rows,
            [*frozen, sent],
            record={site.hook for i in own for site in behind[i]},
            batch_size=batch_size,
        )
        for i in own:
            logits = direct
            if connections[i].receivers != "logits":
                received = [replacement(site, twins.base, arrived[site.hook]) for site in behind[i]]
                logits, _ = replaced_run(model, twins.base_rows, received, batch_size=batch_size)
            values[i] = _measured(metric, logits)
    return twins.result(model, connections, values, metric, batch_size)


def check_answers(answers: Integer[np.ndarray, " n"], d_vocab: int) -> None:
    """Refuse answers that a model cannot give.

    Args:
        answers: token indices.
        d_vocab: the model's output tokens.

    Raises:
        ConfigError: an answer that is no output token.
    """
    if answers.size and not 0 <= answers.min() <= answers.max() < d_vocab:
        raise ConfigError(
            f"answers run from {answers.min()} to {answers.max()}; the model's output tokens are 0 "
            f"to {d_vocab - 1}: take a model of the task"
        )


@dataclass(frozen=True, eq=False)
class _Twins:
    """The sequences of a patching by their part in it: one run is patched, the other gives."""

    direction: Direction
    base: Inputs
    base_rows: Tensor
    donor_rows: Tensor

    @classmethod
    def checked(
        cls, model: HookedTransformer, clean: Inputs, corrupted: Inputs, direction: Direction
    ) -> "_Twins":
        checked(direction, Direction, "direction")
        inputs = (clean, corrupted)
        by_role = [isinstance(part, Sequences) for part in inputs]
        if any(by_role) != all(by_role):
            raise ConfigError(
                "clean and corrupted are of two kinds; give Sequences or tokens twice"
            )
        rows = [
            token_rows(model, part.tokens if isinstance(part, Sequences) else part)
            for part in inputs
        ]
        if rows[0].shape != rows[1].shape or not len(rows[0]):
            raise ConfigError(
                f"clean has shape {tuple(rows[0].shape)} and corrupted {tuple(rows[1].shape)}; "
                "expected the same one, of at least one sequence"
            )
        if isinstance(clean, Sequences) and isinstance(corrupted, Sequences):
            elsewhere = (clean.position != corrupted.position).sum()
            if elsewhere:
                raise ConfigError(
                    f"the key stands elsewhere in {elsewhere} of {len(clean)} corrupted sequences; "
                    "patch sequences whose places agree"
                )
        base = direction == "denoise"
        return cls(direction, inputs[base], rows[base], rows[not base])

    def result(
        self,
        model: HookedTransformer,
        sites: tuple[Site, ...] | tuple[Connection, ...],
        values: Float[np.ndarray, "site example"],
        metric: Metric,
        batch_size: int,
    ) -> PatchResult:
        base, donor = (
            _measured(metric, replaced_run(model, rows, (), batch_size=batch_size)[0])
            for rows in (self.base_rows, self.donor_rows)
        )
        clean, corrupted = (donor, base) if self.direction == "denoise" else (base, donor)
        return PatchResult(sites, self.direction, values, clean, corrupted)


@dataclass(frozen=True, eq=False)
class Replacement:
    """A value to put in the place of an activation, or of a part of it."""

    hook: str
    """TransformerLens's name of the hook."""
    value: Float[Tensor, "n ..."]
    """What to put there, of the activation's shape."""
    mask: Bool[Tensor, "n ..."] | None = None
    """Where; everywhere if None."""


def replacement(site: Site, inputs: Inputs, value: Float[Tensor, "n ..."]) -> Replacement:
    """A value, of the whole activation's shape, at a site only; errors as :func:`site_mask`."""
    return Replacement(site.hook, value, site_mask(site, inputs, value.shape).to(value.device))


def replaced_run(
    model: HookedTransformer,
    rows: Int[Tensor, "n pos"],
    replacements: Sequence[Replacement],
    *,
    record: Iterable[str] = (),
    batch_size: int = _BATCH,
) -> tuple[Float[Tensor, "n d_vocab"], dict[str, Tensor]]:
    """Last-position logits with some activations replaced, one after the other.

    Args:
        model: any HookedTransformer.
        rows: token indices, as :func:`anchor_interp.models.transformer.token_rows` gives them.
        replacements: what is put where; of two in one place the later one holds.
        record: hooks whose activations are to be returned as well.
        batch_size: sequences per forward pass.

    Raises:
        HookError: a hook that the model does not have, or a value of another shape.
    """
    logits: list[Tensor] = []
    recorded: dict[str, list[Tensor]] = {hook: [] for hook in record}
    for start in range(0, len(rows), batch_size):
        part = slice(start, start + batch_size)
        edits: dict[str, Edit] = {hook: _keep(into) for hook, into in recorded.items()}
        for hook in dict.fromkeys(each.hook for each in replacements):
            edits[hook] = _replace([each for each in replacements if each.hook == hook], part)
        with hooked(model, edits):
            logits.append(last_logits(model, rows[part]))
    return torch.cat(logits), {hook: torch.cat(found) for hook, found in recorded.items()}


def _replace(replacements: Sequence[Replacement], rows: slice) -> Edit:
    def edit(activation: Tensor) -> Tensor:
        for each in replacements:
            value = each.value[rows]
            if each.mask is not None:
                value = torch.where(each.mask[rows], value, activation)
            activation = value
        return activation

    return edit


def _keep(into: list[Tensor]) -> Edit:
    def edit(activation: Tensor) -> Tensor:
        into.append(activation.clone())
        return activation

    return edit


def _site_by_site(
    model: HookedTransformer,
    rows: Int[Tensor, "n pos"],
    value: Float[Tensor, "n ..."],
    hook: str,
    masks: Bool[Tensor, "site n ..."],
    batch_size: int,
) -> Float[Tensor, "site n d_vocab"]:
    """Last-position logits with a value put at one of the sites; all sites in one forward pass."""
    n_sites, logits = len(masks), []
    for start in range(0, len(rows), batch_size):
        part = slice(start, start + batch_size)

        def edit(activation: Tensor, part: slice = part) -> Tensor:
            by_site = activation.view(n_sites, -1, *activation.shape[1:])
            return torch.where(masks[:, part], value[part], by_site).flatten(0, 1)

        with hooked(model, {hook: edit}):
            found = last_logits(model, rows[part].repeat(n_sites, 1))
        logits.append(found.view(n_sites, -1, found.shape[-1]))
    return torch.cat(logits, 1)


def _measured(metric: Metric, logits: Float[Tensor, "n d_vocab"]) -> Float[np.ndarray, " n"]:
    if not torch.isfinite(logits).all():
        raise ConfigError("the model's logits are not finite numbers; its weights are damaged")
    found: object = metric(logits)
    if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
        shape = tuple(found.shape) if isinstance(found, Tensor) else shown(found)
        raise ConfigError(
            f"the metric returned {shape}; expected a tensor with one value for each of the "
            f"{len(logits)} examples"
        )
    values: Float[np.ndarray, " n"] = found.detach().double().cpu().numpy()
    return values
