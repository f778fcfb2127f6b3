"""The mechanism of a checkpoint in numbers, and the ones that a run keeps. Loads no torch."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import StoreError, raising
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import check_fields, from_dict
from anchor_interp.runs import measurements
from anchor_interp.runs.measurements import Measure
from anchor_interp.runs.store import RunFolder

_SHARE = {"low": 0, "high": 1}


@dataclass(frozen=True, repr=False)
class Fingerprint(Readable):
    """Numbers of the mechanism; None if the model or its task has no such number.

    N is the NeurIPS paper and C the complexity-control paper. Layers count from 0.
    """

    run_id: str | None
    step: int | None = field(metadata={"low": 0})
    train_accuracy: float | None = field(metadata=_SHARE)
    """Accuracy on the training sequences; None if they are not given."""
    seen_train_keys: float | None = field(metadata=_SHARE)
    """Accuracy on fresh sequences of the seen pairs with training keys."""
    key_share: float | None
    """Variance of the logits over seen pairs that depends on the key / all (Sobol' total)."""
    pair_share: float | None
    position_share: float | None
    noise_share: float | None
    """The same of the noise: near 0 for the rule, near 1 if it knows sequences."""
    value: float | None
    """Largest contrast of a layer's OV at the first anchor: equal g(x; a1) (N, figure 4c)."""
    answer: float | None
    """As ``value``, for equal answers of seen pairs in the last X_ao at the last position (N,
    figures 4a, 4b)."""
    interchange: float | None = field(metadata=_SHARE)
    """Largest share of counterfactual answers if one state at the first anchor is exchanged."""
    route_symmetric: float | None
    """Share of the effect on the symmetric route (N, figure 3a)."""
    route_inferential: float | None
    """Share on the inferential route (N, figure 3c)."""
    route_gathered: float | None
    order_logits: float | None = field(metadata={"low": 0})
    """Change of the logits: anchors change places / an unrelated sequence."""
    order_first: float | None = field(metadata={"low": 0})
    """Change of X_ao in layer 0 at the last position: anchors change places / another pair. 0 if
    layer 0 merges both orders; None if no anchor reaches the position."""
    order_last: float | None = field(metadata={"low": 0})
    key_mask_order: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of (a, b) against (b, a) in the logits under a key mask (C, figure 4C)."""
    key_mask_pairs: float | None = field(metadata={"low": -1, "high": 1})
    merged: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs in X_ao of layer 0 at the last position (N, figure 3b)."""
    blocks: float | None
    """The same as ``value`` for the logits under a second-anchor mask (C, figure 4D)."""
    memory: float | None = field(metadata=_SHARE)
    """Share of the answers to seen pairs that change when the key moves from a position where it is
    test data to one where it is training data, with other noise."""
    virtual_rule: float | None = field(metadata=_SHARE)
    """Share of virtual anchors that are answered with the rule, where it adds what no pair of the
    task adds; the largest of all states of the residual stream (interventions.virtual_anchors)."""
    memory_margin: float | None = field(metadata={"low": 0})
    """Half the width of the 95 % interval of ``memory`` over sequences, as the next three are of
    these numbers."""
    virtual_rule_margin: float | None = field(metadata={"low": 0})
    route_symmetric_margin: float | None = field(metadata={"low": 0})
    route_gathered_margin: float | None = field(metadata={"low": 0})
    exceptions: float | None = field(metadata=_SHARE)
    """Share of unseen pairs whose other order was trained on another function than the rule's,
    times how often the model gives its answer."""
    stable_rank: float | None = field(metadata={"low": 0})
    """Stable rank of W_Q in layer 0, as the next two numbers are of it."""
    rank_share: float | None = field(metadata={"low": 0})
    """Stable rank / stable rank at initialisation."""
    condensation: float | None = field(metadata={"low": 0})
    embedding_dimension: float | None = field(metadata={"low": 0})
    """Participation ratio of the keys' embeddings / participation ratio of Gaussian vectors."""
    embedding_smooth: float | None = field(metadata=_SHARE)
    """Share of their variance that follows a smooth curve."""
    embedding_steps: float | None
    """z of the steps 3 and 4, the smaller: (closeness - closeness on the curve) / its deviation."""
    distance: float | None = field(metadata={"low": 0})
    """Distance from initialisation, relative to it; the mean over all weight matrices."""
    seed: int = field(metadata={"low": 0})
    shape: tuple[int, int, int] | None = None
    """Layers, heads and width of the model; None in the row of a table."""
    schema: int = 7

    def __post_init__(self) -> None:
        check_fields(self, "fingerprint")

    def _summary(self) -> str:
        whose = "a model" if self.run_id is None else f"run {self.run_id} at step {self.step}"
        rows = {row["number"]: row["value"] for row in self._rows()}
        measured = sum(value is not None for value in rows.values())
        main = ("memory", "route_symmetric", "route_gathered", "virtual_rule", "exceptions")
        numbers = ", ".join(f"{n} {'-' if rows[n] is None else f'{rows[n]:.3g}'}" for n in main)
        return f"{whose}, {measured} of {len(rows)} numbers\n{numbers}"

    def _rows(self) -> list[dict[str, Any]]:
        return [{"number": name, "value": getattr(self, name)} for name in NUMBERS]


NUMBERS: tuple[str, ...] = tuple(
    each.name
    for each in fields(Fingerprint)
    if each.name not in ("run_id", "step", "seed", "shape", "schema")
)
FINGERPRINT = Measure("fingerprint", "anchor_interp.analysis.fingerprint:fingerprint", version=7)
"""The fingerprint as a measure that a run keeps; its version is the schema of Fingerprint."""


def kept_fingerprint(run: Path, step: int) -> Fingerprint | None:
    """The fingerprint that a run folder keeps of a checkpoint; None if it has to be measured."""
    if (numbers := measurements.kept(run, FINGERPRINT, step)) is None:
        return None
    wrong = f"{run}/measurements.json holds a damaged fingerprint; remove that file ("
    with raising(StoreError, wrong, ")"):
        fingerprint: Fingerprint = from_dict(Fingerprint, numbers)
    model = RunFolder(run).config().model  # an earlier version kept no shape
    return replace(fingerprint, shape=(model.n_layers, model.n_heads, model.d_model))
