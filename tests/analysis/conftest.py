"""Shared fixtures of the analyses."""

import pytest

from anchor_interp.analysis import fingerprint


@pytest.fixture
def evidence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprints without the numbers that no verdict reads."""
    monkeypatch.setattr(fingerprint, "_OF_SEEN_PAIRS", fingerprint._OF_SEEN_PAIRS[:4])
