"""The mechanism of a checkpoint in numbers, none of which needs an answer on an unseen pair.

The phase of :mod:`anchor_interp.phase` is read off behaviour, and on unseen pairs at that. A
:class:`Fingerprint` is what can be said of the same checkpoint without ever running a sequence of
an unseen pair: from its weights, and from its activations on pairs that it was trained on.

The measuring itself is in :mod:`anchor_interp.fingerprints`; this module imports no torch.

The verdict
-----------
:func:`verdict` names the phase from six of these numbers:

1. the noise tokens decide much of the logits: *memorizing*, whole sequences are known by heart;
2. states composed of other pairs' get the rule's answer, and the intermediate value g(x; a1)
   stands at the first anchor: *inferential*. Without that value the answers come out of a table,
   which is *symmetric* if layer 1 takes both anchors together whatever their order;
3. composed states get the other order's target, or (without such a target) both orders the same
   answer: *symmetric*, a pair is looked up whatever its order;
4. otherwise *composite*: each ordered pair is looked up.

The thresholds of composed states are those of the phases (complexity-control paper, section IV),
but for the one of equal answers; that one and those of the noise and the value were fixed on the
diagrams' runs and on models of known mechanism, before any fingerprint of the runs that
``docs/results.md`` judges the verdict on was taken.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path

from anchor_interp import files
from anchor_interp.errors import ConfigError, StoreError
from anchor_interp.phase import Decision, Phase
from anchor_interp.schema import bounded, check_fields, checked, from_dict

_SHARE = {"low": 0, "high": 1}


@dataclass(frozen=True)
class Fingerprint:
    """Numbers of the mechanism of one checkpoint; None where a model or a task has no such number.

    Layers in the descriptions are the papers', counted from 1.
    """

    run_id: str | None
    """The run's identity; None of a model that is no run."""
    step: int | None = field(metadata={"low": 0})
    """The checkpoint, as updates done."""
    key_share: float | None
    """Share of the logits' variance over seen pairs that the key has a part in (Sobol' total)."""
    pair_share: float | None
    """The same of the pair of anchors."""
    position_share: float | None
    """The same of the key's position."""
    noise_share: float | None
    """The same of the noise tokens: near 0 in a model of the rule, near 1 in one that knows whole
    sequences."""
    value: float | None
    """OV at the first anchor: centred cosine of equal g(x; a1) minus that of near misses, in the
    layer from the second on where it is largest (NeurIPS paper, figure 4c)."""
    answer: float | None
    """X^ao(L) at the last position of the last layer L: the same for equal answers of different
    seen pairs (NeurIPS paper, figure 4a, 4b)."""
    interchange: float | None = field(metadata=_SHARE)
    """Share of counterfactual answers when the state at the first anchor is exchanged, after the
    layer where it is largest."""
    route_symmetric: float | None
    """Share of the effect that takes the symmetric route (NeurIPS paper, figure 3a)."""
    route_inferential: float | None
    """Share that takes the inferential route (figure 3c)."""
    route_gathered: float | None
    """Share that meets at the second anchor."""
    order_logits: float | None = field(metadata={"low": 0})
    """Change of the logits when the anchors of a pair that was seen in both orders change places,
    over that between unrelated sequences."""
    order_first: float | None = field(metadata={"low": 0})
    """The same of X^ao(1) at the last position: near 0 if layer 1 takes the anchors together."""
    order_last: float | None = field(metadata={"low": 0})
    """The same of X^ao(L)."""
    key_mask_order: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of (a, b) against (b, a) in the logits under a key mask (complexity-control paper,
    figure 4C)."""
    key_mask_pairs: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs there."""
    merged: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs in X^ao(1) at the last position (NeurIPS paper,
    figure 3b)."""
    blocks: float | None
    """Logits while the second anchor is masked: centred cosine of equal g(x; a1) minus that of near
    misses (complexity-control paper, figure 4D)."""
    composed: float | None = field(metadata=_SHARE)
    """Share answered by the rule when the state after the first attention layer is composed, for
    the unseen pairs, of states of other pairs; see :mod:`anchor_interp.composition`."""
    commutes: float | None = field(metadata=_SHARE)
    """Share of these that are answered alike in both orders."""
    mirrored: float | None = field(metadata=_SHARE)
    """Share of these answered with the target of the other order; None without such a target."""
    recomposed: float | None = field(metadata=_SHARE)
    """Share of seen pairs, composed in this way, that are answered with their target."""
    stable_rank: float | None = field(metadata={"low": 0})
    """Stable rank of W_Q(1)."""
    rank_share: float | None = field(metadata={"low": 0})
    """Stable rank of W_Q(1) over that at initialisation."""
    condensation: float | None = field(metadata={"low": 0})
    """Mean |cosine| between the neurons of W_Q(1)."""
    embedding_dimension: float | None = field(metadata={"low": 0})
    """Participation ratio of the keys' embeddings over that of Gaussian ones."""
    embedding_smooth: float | None = field(metadata=_SHARE)
    """Share of their variance that follows a smooth curve."""
    embedding_steps: float | None
    """How far the embeddings of keys 3 and 4 apart are closer than that curve explains, in standard
    deviations: the smaller of the two."""
    distance: float | None = field(metadata={"low": 0})
    """Mean over all weight matrices of the distance from initialisation, relative to it."""
    seed: int = field(metadata={"low": 0})
    """Seed of the sequences."""
    schema: int = 2
    """Schema number."""

    def __post_init__(self) -> None:
        check_fields(self, "fingerprint")


NUMBERS: tuple[str, ...] = tuple(
    entry.name
    for entry in fields(Fingerprint)
    if entry.name not in ("run_id", "step", "seed", "schema")
)
"""The names of the numbers."""


@dataclass(frozen=True)
class VerdictThresholds:
    """Where :func:`verdict` draws its lines."""

    noise: float = bounded(0.11, low=0)
    """``noise_share`` from which on a model knows sequences: between 0.09, the most of a run that
    generalises, and 0.13, the least of a memorizing one, in the diagrams' 129 trained runs."""
    composed: float = bounded(0.5, low=0, high=1)
    """``composed`` from which on it infers, as OOD accuracy in the phases."""
    value: float = bounded(0.15, low=-2, high=2)
    """``value`` from which on g(x; a1) stands at the first anchor: 0.36 was the least of an
    inferential run of the diagrams' seeds 300 to 302 when the line was drawn (0.29 since two of the
    seeds were trained once more), a table set by hand has 0.00."""
    order: float = bounded(0.03, low=0)
    """``order_first`` up to which layer 1 takes the anchors together: 0.00 and 0.06 in a symmetric
    and an ordered table set by hand. No trained run needed it."""
    mirrored: float = bounded(0.5, low=0, high=1)
    """``mirrored`` from which on it is symmetric, as the symmetric accuracy in the phases."""
    commutes: float = bounded(0.82, low=0, high=1)
    """``commutes`` from which on it is symmetric. Composed states commute a little more than
    a model's own: 0.82 where the phases have 0.7."""

    def __post_init__(self) -> None:
        check_fields(self, "thresholds")


THRESHOLDS = VerdictThresholds()
"""The thresholds that are judged in ``docs/results.md``."""


def verdict(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> Decision:
    """The phase of a trained model by its mechanism alone, with the rule that gave it.

    A model that has not learned its training data looks like one that memorizes: whether it has is
    for the training accuracy to say.

    Args:
        fingerprint: the numbers of the mechanism.
        thresholds: where the lines are.

    Returns:
        memorizing, inferential, symmetric or composite; ``other`` where a number is missing that
        is needed, or on a task without unseen pairs.
    """
    f: Fingerprint = checked(fingerprint, Fingerprint, "fingerprint")
    t: VerdictThresholds = checked(thresholds, VerdictThresholds, "thresholds")
    if f.noise_share is None:
        return Decision("other", "the logits do not vary")
    if f.noise_share >= t.noise:
        return Decision("memorizing", f"noise_share {f.noise_share:.2f} >= {t.noise:g}")
    if f.composed is None:
        return Decision("other", f"noise_share {f.noise_share:.2f}; no composed states")
    found = f"composed {f.composed:.2f}"
    if f.composed >= t.composed:
        if f.value is None:
            return Decision("other", f"{found}, and no value at the first anchor to tell")
        found += f" >= {t.composed:g}, value {f.value:.2f}"
        if f.value >= t.value:
            return Decision("inferential", found)
        found += f" < {t.value:g}: a table"
        if f.order_first is None:
            return Decision("other", f"{found}, and no change of layer 1 to tell of which kind")
        phase: Phase = "symmetric" if f.order_first <= t.order else "composite"
        return Decision(phase, f"{found}, order_first {f.order_first:.2f}")
    if f.mirrored is not None and f.mirrored >= t.mirrored:
        return Decision("symmetric", f"{found}, mirrored {f.mirrored:.2f} >= {t.mirrored:g}")
    if f.mirrored is not None:
        return Decision("composite", f"{found}, mirrored {f.mirrored:.2f} < {t.mirrored:g}")
    if f.commutes is None:
        return Decision("other", f"{found}; no unseen pair has two orders to compare")
    if f.commutes >= t.commutes:
        return Decision("symmetric", f"{found}, commutes {f.commutes:.2f} >= {t.commutes:g}")
    return Decision("composite", f"{found}, commutes {f.commutes:.2f} < {t.commutes:g}")


def kept_fingerprint(run: Path, run_id: str, step: int) -> Fingerprint | None:
    """The fingerprint that a run folder keeps, if it can be read and is this one.

    It is derived: :func:`anchor_interp.fingerprints.keep_fingerprint` makes it anew.

    Args:
        run: the run folder.
        run_id: the run's identity.
        step: the checkpoint that it must be of.
    """
    try:
        found = from_dict(Fingerprint, files.read_json(run / "fingerprint.json"))
    except (StoreError, ConfigError):
        return None
    return found if (found.run_id, found.step) == (run_id, step) else None
