"""The mechanism of a checkpoint in numbers, none of which needs an answer on an unseen pair.

The phase of :mod:`anchor_interp.phase` is read off behaviour, and on unseen pairs at that. A
:class:`Fingerprint` is what can be said of the same checkpoint without ever running a sequence of
an unseen pair: from its weights, and from its activations on pairs that it was trained on.

The measuring itself is in :mod:`anchor_interp.fingerprints`; this module imports no torch.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path

from anchor_interp import files
from anchor_interp.errors import ConfigError, StoreError
from anchor_interp.schema import check_fields, from_dict

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
    schema: int = 1
    """Schema number."""

    def __post_init__(self) -> None:
        check_fields(self, "fingerprint")


NUMBERS: tuple[str, ...] = tuple(
    entry.name
    for entry in fields(Fingerprint)
    if entry.name not in ("run_id", "step", "seed", "schema")
)
"""The names of the numbers."""


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
