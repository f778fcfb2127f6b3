"""Fingerprints, analyses and evaluations of what a test asks alone."""

from functools import partial
from typing import Any

import pytest

from anchor_interp.analysis import clusters, fingerprint, parts
from anchor_interp.analysis.sensitivity import sensitivity
from anchor_interp.models import embeddings
from anchor_interp.runs import session
from anchor_interp.runs.run import evaluate_run


def evidence_alone(patch: pytest.MonkeyPatch) -> None:
    """Fingerprints without the numbers that no verdict reads, and shares from few sequences."""

    def of_few(*given: Any, n: int, **options: Any) -> Any:
        return sensitivity(*given, n=min(n, 20), **options)

    patch.setattr(fingerprint, "sensitivity", of_few)
    patch.setattr(fingerprint, "_OF_SEEN_PAIRS", fingerprint._OF_SEEN_PAIRS[:4])
    patch.setattr(fingerprint, "_of_embedding", lambda *_: {})


def quick_parts(patch: pytest.MonkeyPatch) -> None:
    """Two coordinates in place of t-SNE, few permutations and examples, and the evidence alone."""
    patch.setattr(clusters, "_tsne", lambda points, *_: points[:, :2].copy())
    patch.setattr(embeddings, "PERMUTATIONS", 50)
    patch.setattr(parts, "MOST", 40)
    evidence_alone(patch)


def judged_on_few(patch: pytest.MonkeyPatch) -> None:
    """Runs end judged on 50 sequences a pair; 500 take longer than a short run's training."""
    patch.setattr(session, "evaluate_run", partial(evaluate_run, n=50))
