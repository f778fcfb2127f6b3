"""Random anchor tasks for property tests."""

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Affine, Anchor, Override, Pair


@st.composite
def tasks(draw: Any) -> AnchorTask:
    """Any valid task: offsets or affine maps of a ring, any roles, any split rule."""
    n_anchors = draw(st.integers(1, 5))
    length = draw(st.integers(3, 12))
    key_min = draw(st.integers(60, 80))
    key_max = key_min + draw(st.integers(1, 90))
    ring = draw(st.booleans())
    anchors = []
    for token in range(1, n_anchors + 1):
        function = Affine(draw(st.integers(-15, 15)))
        if ring:
            function = Affine(
                draw(st.integers(-200, 200)),
                draw(st.integers(-9, 9)),
                modulus=key_max - key_min + 1,
                origin=key_min,
            )
        anchors.append(Anchor(token, function))
    pairs = [(a, b) for a in range(1, n_anchors + 1) for b in range(1, n_anchors + 1)]
    roles: dict[Pair, str] = {
        pair: draw(st.sampled_from(("inferential", "inferential", "overridden", "unseen")))
        for pair in pairs
    }
    overrides = [
        Override(pair, Affine(draw(st.integers(-20, 20))))
        for pair, role in roles.items()
        if role == "overridden"
    ]
    unseen = tuple(pair for pair, role in roles.items() if role == "unseen")
    try:
        return AnchorTask(
            anchors=tuple(anchors),
            overrides=tuple(overrides),
            unseen=unseen,
            key_min=key_min,
            key_max=key_max,
            length=length,
            split=draw(st.sampled_from(("key", "every-position"))),
        )
    except ConfigError:  # no test key, or no pair left to train on
        reject()
