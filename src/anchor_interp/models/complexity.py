"""How complex a model's weights are: ranks, spectra, condensation, distance from the start.

A head acts on the residual stream through two products, QK = W_Q W_K^T and OV = W_V W_O.
:func:`complexity` measures them first, then every matrix. Beside each number stand its value at
initialisation (if given) and that of a Gaussian matrix of the same shape. Both papers read a
model's complexity off W_Q of layer 0, their W_Q(1), with all heads merged into one d_model x
(n_heads d_head) matrix. The numbers of W_Q, W_K, W_V and W_O depend on two things that no output
depends on, :attr:`Complexity.effective` on neither:

* the basis inside a head: W_Q -> W_Q R and W_K -> W_K R^-T (W_V -> W_V R and W_O -> R^-1 W_O), with
  any invertible R for each head, change neither QK and OV nor the outputs;
* dead heads, which write nothing (OV = 0): their queries, keys and values count all the same.

With rotary positions only rotations that commute with them are free, and QK is the map between
equal positions. No LayerNorm gain is folded in; TransformerLens's folding, centring and refactoring
change these numbers and no output, and a warning tells of folded gains alone. Matrices of any other
module have a row for each number that an output is a sum over, a column for each output, and no
heads. Where queries, keys and values are in one matrix, a table of architectures
(:mod:`anchor_interp.models.parameters`) splits it; without one it is measured whole (``fused``).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable, number
from anchor_interp._util.schema import check_name, checked, shown
from anchor_interp.models.forward import merge_heads
from anchor_interp.models.matrix_complexity import (
    Numbers,
    condensation,
    exact,
    gaussian_numbers,
    measured,
    numbers,
    stable_rank,
)
from anchor_interp.models.number_checks import check_finite, check_weights
from anchor_interp.models.parameters import Parameter, is_fused, parameters, unwrapped
from anchor_interp.models.transformer import HookedTransformer, check_model, is_transformer
from anchor_interp.models.transformer_lens import is_bridge
from anchor_interp.tasks.examples import warn_once

_INSIDE_A_HEAD = ("W_Q", "W_K", "W_V", "W_O")
_QUERIES = r"(?i)(^|\.)(to_|w_?)?(q|query)(_proj|_lin|_attn)?$"


@dataclass(frozen=True, eq=False)
class MatrixComplexity(Numbers):
    """The complexity of one weight matrix, its heads merged, or of one head's QK or OV product.

    Layer and head are 0-based; the embeddings have no layer, a matrix no head.
    """

    name: str
    layer: int | None
    head: int | None
    shape: tuple[int, int]
    basis_dependent: bool
    """Whether the numbers depend on the basis inside heads and on dead heads; no output does."""
    spectrum: Float[np.ndarray, " rank"]
    """Singular values, descending."""
    at_init: Numbers | None
    distance: float | None
    """||W - W_0||_F / ||W_0||_F from the initial W_0; None without one or if it is zero."""
    gaussian: Numbers
    """Mean over Gaussian matrices of this shape (for a product, of Gaussian factors)."""

    @property
    def norm(self) -> float:
        """||W||_F."""
        return float(np.linalg.norm(self.spectrum))

    @property
    def share(self) -> float | None:
        """Stable rank / stable rank at initialisation; None without one."""
        before = None if self.at_init is None else self.at_init.stable_rank
        return None if not before or self.stable_rank is None else self.stable_rank / before


@dataclass(frozen=True, eq=False, repr=False)
class Complexity(Readable):
    """The complexity of every weight matrix of a model, and of every head's QK and OV."""

    matrices: tuple[MatrixComplexity, ...]
    heads: tuple[MatrixComplexity, ...]
    left_out: tuple[str, ...] = ()
    """Tensors of two or more dimensions that are not measured: of unknown kind, or empty."""

    @property
    def head_norms(self) -> dict[tuple[int | None, int | None], float]:
        """||OV||_F of every head, by layer and head, relative to the largest; 0 if it is dead."""
        norms = {
            (one.layer, one.head): float(np.linalg.norm(one.spectrum))
            for one in self.heads
            if one.name == "OV"
        }
        largest = max(norms.values(), default=0) or 1
        return {head: norm / largest for head, norm in norms.items()}

    @property
    def effective(self) -> dict[str, float | None]:
        """The stable rank of QK and of OV, a mean over the heads weighted by ||OV||_F^2."""
        norms, means = self.head_norms, {}
        for name in dict.fromkeys(one.name for one in self.heads):
            mine = [one for one in self.heads if one.name == name and one.stable_rank is not None]
            weights = [norms[one.layer, one.head] ** 2 for one in mine]
            ranks = [one.stable_rank or 0 for one in mine]
            means[name] = float(np.average(ranks, weights=weights)) if any(weights) else None
        return means

    def _summary(self) -> str:
        query = next((m for m in self.matrices if m.name == "W_Q"), self.matrices[0])
        counts = f"{len(self.matrices)} matrices, {len(self.heads)} products of heads"
        counts += f"; {len(out)} left out: {shown(out)}" if (out := [*self.left_out]) else ""
        products = [f"{name} {number(rank)}" for name, rank in self.effective.items()]
        effective = f"\neffective stable rank {', '.join(products)}" if products else ""
        ranks = (
            getattr(each, "stable_rank", None) for each in (query, query.at_init, query.gaussian)
        )
        about = "; depends on the basis and on dead heads" if query.basis_dependent else ""
        which = query.name if query.layer is None else f"{query.name} of layer {query.layer}"
        return "{}{}\n{}: stable rank {} (at init {}, Gaussian {}){}".format(
            counts, effective, which, *map(number, ranks), about
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        measures, norms = tuple(field.name for field in fields(Numbers)), self.head_norms
        for entry in (*self.heads, *self.matrices):
            row = {name: getattr(entry, name) for name in ("name", "layer", "head", *measures)}
            row |= {f"{name}_at_init": getattr(entry.at_init, name, None) for name in measures}
            row |= {f"{name}_gaussian": getattr(entry.gaussian, name) for name in measures}
            depends = ["basis, dead heads"] * entry.basis_dependent
            depends += ["fused: q, k and v in one matrix"] * is_fused(entry.name)
            row |= {"norm": entry.norm, "share": entry.share, "distance": entry.distance}
            norm = norms.get((entry.layer, entry.head))
            yield row | {"head_norm": norm, "depends_on": "; ".join(depends)}


class _Weight(NamedTuple):
    """A matrix, or the product left @ right of a head, which is never multiplied out."""

    name: str
    layer: int | None
    head: int | None
    left: Tensor
    right: Tensor | None = None
    inside_head: bool = False

    @property
    def place(self) -> str:
        return self.name if self.layer is None else f"{self.layer}.{self.name}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], (self.left if self.right is None else self.right).shape[1]

    @property
    def finite(self) -> Tensor:
        """The matrix, or the left one of a product; ConfigError if a value is not finite."""
        return check_finite(self.left, f"the values of {self.place}")

    def spectrum(self) -> Float[Tensor, " rank"]:
        """Singular values; for A B, of R_A R_B^T, where A = Q_A R_A and B^T = Q_B R_B."""
        matrix = exact(self.finite)
        product = matrix if self.right is None else _core(matrix, exact(self.right))
        singular: Tensor = torch.linalg.svdvals(product)
        return singular

    def numbers(self, spectrum: Float[Tensor, " rank"]) -> Numbers:
        return numbers(spectrum, self.left if self.right is None else None)

    def distance(self, start: "_Weight | None") -> float | None:
        """||self - start||_F / ||start||_F; None without a start or if it is zero."""
        if start is None:
            return None
        left, before = exact(self.left), exact(start.left)
        if self.right is None or start.right is None:
            difference, scale = left - before, before
        else:
            right, other = exact(self.right), exact(start.right)
            scale = _core(before, other)
            difference = _core(torch.cat([left, -before], 1), torch.cat([right, other], 0))
        return float(difference.norm() / scale.norm()) if scale.any() else None


def complexity(
    model: HookedTransformer | nn.Module, initial: HookedTransformer | nn.Module | None = None
) -> Complexity:
    """Measure every matrix of any module, a shared one once; GPT-2 takes a minute on one core.

    ``initial`` is the model before training, such as :attr:`anchor_interp.runs.run.Run.initial`.

    Raises:
        ConfigError: not a module, one without a known matrix, a quantised weight, a matrix (of a
            HookedTransformer any tensor) that is not finite, or other matrices in ``initial``.
    """
    for each in (model,) if initial is None else (model, initial):
        if is_transformer(each) or not isinstance(each, nn.Module):
            check_model(each)
            check_weights(each)
    entries: list[MatrixComplexity] = []
    for weight, start in _with_starts(model, initial):
        spectrum = weight.spectrum()
        inner = None if weight.right is None else weight.right.shape[0]
        entries.append(
            MatrixComplexity(
                **vars(weight.numbers(spectrum)),
                name=weight.name,
                layer=weight.layer,
                head=weight.head,
                shape=weight.shape,
                basis_dependent=weight.inside_head or weight.name in _INSIDE_A_HEAD,
                spectrum=spectrum.numpy(),
                at_init=None if start is None else start.numbers(start.spectrum()),
                distance=weight.distance(start),
                gaussian=gaussian_numbers(weight.shape, inner),
            )
        )
    heads = tuple(entry for entry in entries if entry.head is not None)
    out = left_out(model)
    if not entries:
        raise ConfigError(f"the {type(model).__name__} has no known matrix; left out: {out}")
    return Complexity(tuple(e for e in entries if e.head is None), heads, out)


def distances(model: HookedTransformer, initial: HookedTransformer) -> list[float]:
    """:attr:`MatrixComplexity.distance` of every matrix that has one."""
    pairs = _with_starts(model, initial)
    every = (weight.distance(start) for weight, start in pairs if weight.head is None)
    return [distance for distance in every if distance is not None]


def weight_measures(
    module: nn.Module, matrices: str = "*", first: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Measures of a module's matrices to log, where they are defined.

    They are ``stable_rank/NAME``, ``condensation/NAME``, ``norm/NAME`` (||W||_F) and, given the
    ``first`` such numbers, ``share/NAME``: stable rank / first stable rank. The matrices have names
    that fit one pattern such as ``*.q_proj``; a HookedTransformer's are such as ``0.W_Q``.

    Raises:
        ConfigError: as :func:`complexity`, of these matrices alone; or none has such a name.
    """
    weights = _weights(checked(module, nn.Module, "module"))
    every = {weight.place: weight for weight in weights if weight.head is None}
    pattern = checked(matrices, str, "matrices")
    chosen = {name: each.finite for name, each in every.items() if fnmatchcase(name, pattern)}
    if not chosen:
        check_name(matrices, every, "no matrix")
    found: dict[str, float | None] = {}
    for name, matrix in chosen.items():
        rank, before = measured(stable_rank, matrix), (first or {}).get(f"stable_rank/{name}")
        found |= {f"stable_rank/{name}": rank, f"norm/{name}": float(exact(matrix).norm())}
        found[f"condensation/{name}"] = measured(condensation, matrix)
        found[f"share/{name}"] = rank / before if rank and before else None
    return {name: value for name, value in found.items() if value is not None}


def left_out(model: Any) -> tuple[str, ...]:
    """:attr:`Complexity.left_out` of a module; nothing of a TransformerBridge."""
    others = [] if is_bridge(model) else _tensors(model, are_measured=False)
    return tuple(each.name for each in others if each.tensor.ndim > 1 and each.kind != "bias")


def main_numbers(model: Any, initial: Any = None) -> tuple[Numbers, Numbers]:
    """Stable rank and condensation of W_Q in layer 0; without queries, means over all matrices.

    Where heads read other widths, means over the heads. Of a model, and of the one before training;
    ConfigError if its matrices have other shapes.
    """
    last, first = _main_matrices(model), _main_matrices(initial)
    own, given = ([tuple(matrix.shape) for matrix in matrices] for matrices in (last, first))
    if own and given and own != given:
        what = f"initial has a matrix of shape {given[0]}; the model has {own[0]}"
        raise ConfigError(f"{what}; expected the same model before training")

    def mean(measure: Callable[[Tensor], float], matrices: Sequence[Tensor]) -> float | None:
        values = [value for each in matrices if (value := measured(measure, each)) is not None]
        return fmean(values) if values else None

    numbers = (Numbers(mean(stable_rank, some), None, mean(condensation, some))
               for some in (last, first))  # fmt: skip
    return next(numbers), next(numbers)


def _main_matrices(model: Any) -> list[Tensor]:
    """The matrices whose mean :func:`main_numbers` takes; none of None."""
    if not isinstance(model, nn.Module):
        return []
    if is_transformer(model):
        return [first_query_matrix(model)]
    try:
        every = list(_weights(model))
    except ConfigError as error:  # quantised, say; it answers all the same
        warn_once(f"stable rank and condensation are not measured: {error}")
        return []
    queries = [weight for weight in every if re.search(_QUERIES, unwrapped(weight.name))]
    merged = [re.sub(r"heads\.\d+\.", "", weight.name) for weight in queries]
    first = [x.finite for x, name in zip(queries, merged, strict=True) if name == merged[0]]
    read_alike = len({len(matrix) for matrix in first}) == 1
    return [torch.cat(first, 1)] if read_alike else first or [weight.finite for weight in every]


def first_query_matrix(model: Any) -> Float[Tensor, "d_model neuron"]:
    """W_Q in layer 0 of a HookedTransformer with its heads merged."""
    return next(weight.finite for weight in _weights(model) if weight.name == "W_Q")


def _with_starts(model: Any, initial: Any) -> list[tuple[_Weight, _Weight | None]]:
    """Every matrix with the one before training; ConfigError if that has not the same."""
    starts = {} if initial is None else {weight[:3]: weight for weight in _weights(initial)}
    weights = {weight[:3]: weight for weight in _weights(model)}  # by name, layer, head
    for key, each in ({} if initial is None else weights | starts).items():
        one, two = (str(of[key].shape) if key in of else "missing" for of in (weights, starts))
        if one != two:
            what = f"{each.place} is {one} and {two} in the model before training"
            raise ConfigError(f"{what}; expected the same matrices (shared ones count once)")
    return [(weight, starts.get(key)) for key, weight in weights.items()]


def _weights(model: Any) -> Iterator[_Weight]:
    """Every matrix of a model in its order; the heads' products follow their layer's matrices."""
    if not is_transformer(model):
        for each in _tensors(model, are_measured=True):
            place, matrix = each.place, each.matrix
            if "base_layer" in place:
                warn_once(f"{place} is measured without its adapter; merge them (merge_and_unload)")
            if not each.parts:
                in_head = each.group in ("qk", "vo") or is_fused(place)
                yield _Weight(place, None, None, matrix, None, in_head)
            for name, _, units in each.parts:
                yield _Weight(f"{place}.{name}", None, None, matrix[:, units], None, True)
        return
    kind = model.cfg.normalization_type
    if kind in ("LNPre", "RMSPre") or getattr(model, "_weights_processed", False):
        what = f"normalization_type is {kind}: if TransformerLens folded gains into the weights"
        warn_once(f"{what}, measures are not of the trained ones; load them unprocessed")
    yield _Weight("W_E", None, None, model.embed.W_E.detach())
    if hasattr(model, "pos_embed"):
        yield _Weight("W_pos", None, None, model.pos_embed.W_pos.detach())
    for layer, block in enumerate(model.blocks):
        if block in [*model.blocks][:layer]:
            continue
        attn = block.attn
        for name in ("W_Q", "W_K", "W_V"):
            # grouped queries store keys and values once a group, under _W_K and _W_V
            stored = getattr(attn, f"_{name}", getattr(attn, name))
            yield _Weight(name, layer, None, merge_heads(stored.detach()))
        # each head reads its own rows of W_O
        yield _Weight("W_O", layer, None, attn.W_O.detach().flatten(0, 1))
        for name in ("W_in", "W_gate", "W_out"):
            weight = getattr(getattr(block, "mlp", None), name, None)
            if isinstance(weight, Tensor):
                yield _Weight(name, layer, None, weight.detach())
        parts = [getattr(attn, name).detach() for name in _INSIDE_A_HEAD]
        most = max(map(len, parts))  # a bridge has grouped keys and values once a group
        heads = zip(*(x.repeat_interleave(most // len(x), 0) for x in parts), strict=True)
        for head, (W_Q, W_K, W_V, W_O) in enumerate(heads):
            yield _Weight("QK", layer, head, W_Q, W_K.mT)
            yield _Weight("OV", layer, head, W_V, W_O)
    yield _Weight("W_U", None, None, model.unembed.W_U.detach())


def _tensors(module: nn.Module, *, are_measured: bool) -> list[Parameter]:
    """Each tensor once: as a table if it is one under any name, else as a matrix if it is one."""
    every = [max(s, key=lambda x: (x.kind == "table", x.is_matrix)) for s in parameters(module)]
    return [x for x in every if are_measured == (x.is_matrix and x.tensor.numel() > 0)]


def _core(left: Tensor, right: Tensor) -> Tensor:
    """A small matrix with the singular values of left @ right."""
    core: Tensor = torch.linalg.qr(left, "r").R @ torch.linalg.qr(right.mT, "r").R.mT
    return core
