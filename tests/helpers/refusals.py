"""Calls that are refused in one line."""

from collections.abc import Callable

import jaxtyping
import pytest

import anchor_interp as ai


def assert_refused(
    make: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users run without the shape checks of the tests, which would refuse wrong types first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ai.ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
