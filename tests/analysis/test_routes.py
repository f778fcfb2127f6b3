"""Route scores of models whose route is known, in two and more layers."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from small_models import EACH_EXACT, FEW_KEYS, random_model, small_exact, with_idle_layer

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.routes import (
    ROUTES,
    RouteName,
    RouteScores,
    route_edges,
    route_layers,
    route_scores,
)
from anchor_interp.interventions.ablate_edges import ablate_edges, edge_outputs
from anchor_interp.interventions.ablation_bench import reachable_edges
from anchor_interp.interventions.masks import no_edges
from anchor_interp.models.exact import (
    Mechanism,
    Normalization,
)
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import replace_keys
from anchor_interp.tasks.functions import Affine, Anchor
from anchor_interp.tasks.sequences import drawn_sequences

OF: dict[Mechanism, RouteName] = {
    "symmetric": "symmetric",
    "inferential": "inferential",
    "lookup": "gathered",
}


def as_dict(scores: RouteScores) -> dict[RouteName, float]:
    return {
        "symmetric": scores.symmetric,
        "inferential": scores.inferential,
        "gathered": scores.gathered,
    }


@EACH_EXACT
def test_an_exact_model_takes_only_its_own_route(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    found = route_scores(small_exact(mechanism, normalization), FEW_KEYS, n=40)
    for route, score in as_dict(found).items():
        assert score == pytest.approx(float(route == OF[mechanism]), abs=1e-3)
    assert dict(found.n) == {"key": 40, "first": 40, "second": 40}
    assert {leg.answers for leg in found.details if leg.route == OF[mechanism]} == {1.0}
    assert len(found.details) == 9


@pytest.mark.parametrize(
    ("mechanism", "at", "splits"),
    [("symmetric", 0, {2}), ("inferential", 1, {1, 2}), ("lookup", 2, {1})],
)
def test_every_split_of_the_layers_is_tried(
    mechanism: Mechanism, at: int, splits: set[int]
) -> None:
    """The idle layer is below, between or above the two layers that act."""
    found = route_scores(with_idle_layer(mechanism, at), FEW_KEYS, n=20)
    for route, score in as_dict(found).items():
        assert score == pytest.approx(float(route == OF[mechanism]), abs=1e-3)
    for split in (1, 2):
        own = [x for x in found.details if (x.route, x.split) == (OF[mechanism], split)]
        assert len(own) == 3
        assert min(leg.effect for leg in own) == pytest.approx(float(split in splits), abs=1e-3)


def test_routes_in_more_layers_and_heads() -> None:
    deep = random_model(n_layers=4, n_heads=2)
    expected = np.zeros((4, 2, 9, 9), bool)
    expected[:3, :, 8, [2, 3]] = True
    expected[1:, :, 8, 1] = True
    assert (route_edges(deep, ROUTES["symmetric"], 9, 1) == expected).all()
    with pytest.raises(ConfigError, match="split is 4; expected at most 3"):
        route_layers(deep, ROUTES["symmetric"], 4)


def test_a_leg_computed_sequence_by_sequence_agrees() -> None:
    """The key's leg of the inferential route, one sequence after the other."""
    model = random_model(n_layers=2)
    found = route_scores(model, FEW_KEYS, n=40, seed=3)
    (leg,) = (x for x in found.details if (x.route, x.source) == ("inferential", "key"))
    clean = drawn_sequences(FEW_KEYS, lambda s: s.position < 6, 40, 3, FEW_KEYS.seen, "all")
    before = torch.from_numpy(clean.tokens.astype(np.int64))
    after = torch.from_numpy(replace_keys(FEW_KEYS, clean, seed=3).astype(np.int64))
    between = torch.from_numpy(reachable_edges(model, 9) & ~np.eye(9, dtype=bool))
    sums = np.zeros(3)
    count = changed = 0
    key, first, second = (clean.positions(name) for name in ("key", "first", "second"))
    with torch.no_grad():
        for i in range(40):
            original, exchanged = model(before[i, None])[0, -1], model(after[i, None])[0, -1]
            answer, other = original.argmax(), exchanged.argmax()
            if answer == other:
                continue
            frozen = no_edges(model, 9) | between[:, None]
            frozen[0, 0, :, [first[i], second[i]], key[i]] = False
            frozen[1, 0, :, 8, [first[i], second[i]]] = False
            with ablate_edges(model, frozen, edge_outputs(model, before[i, None])):
                routed = model(after[i, None])[0, -1]
            sums += [float(x[answer] - x[other]) for x in (original, routed, exchanged)]
            changed += int(routed.argmax() == other)
            count += 1
    assert 0 < dict(found.n)["key"] == count <= 40
    assert leg.effect == pytest.approx((sums[0] - sums[1]) / (sums[0] - sums[2]), abs=1e-10)
    assert leg.answers == pytest.approx(changed / count)
    again = route_scores(model, FEW_KEYS, n=40, seed=3)
    assert as_dict(again) == as_dict(found) != as_dict(route_scores(model, FEW_KEYS, n=40, seed=4))


SHORT = AnchorTask(key_max=31, length=3, unseen=())
ALONE = AnchorTask(anchors=(Anchor(1, Affine(1)),), key_max=31, unseen=())


@pytest.mark.parametrize(("change", "arguments", "message"), [
    ({"n_layers": 1}, {}, "1 layer; expected at least two"),
    ({}, {"task": SHORT}, "4 anchors and length 3; expected at least 2 anchors"),
    ({}, {"task": ALONE}, "1 anchors and length 9"),
    ({}, {"n": 0}, "n is 0"),
])  # fmt: skip
def test_bad_input_is_refused(
    change: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        route_scores(random_model(**change), **({"task": FEW_KEYS} | arguments))
    assert "\n" not in str(caught.value)


def test_a_model_that_answers_nothing_has_no_score_and_a_reason() -> None:
    constant = random_model()
    constant.unembed.W_U.data.zero_()
    found = route_scores(constant, FEW_KEYS, n=20)
    assert np.isnan(list(as_dict(found).values())).all()
    assert found.details == ()
    assert dict(found.n) == {"key": 0, "first": 0, "second": 0}
    assert found.reason == (
        "too few answers change, 0 of 20 with the key and 0 of 20 with the first and 0 of 20 with "
        "the second: the effect of a token has no shares"
    )
    assert found.reason in repr(found)
    assert found.margin("gathered") is None


def test_a_token_without_an_effect_leaves_the_legs_of_the_others() -> None:
    """A model that does not read the key: no route carries it, so no route has a score."""
    deaf = deepcopy(small_exact("lookup", "pre"))
    deaf.embed.W_E.data[FEW_KEYS.key_min :] = deaf.embed.W_E.data[FEW_KEYS.key_min]
    found = route_scores(deaf, FEW_KEYS, n=40)
    assert np.isnan(list(as_dict(found).values())).all()
    assert found.reason is not None
    assert "too few answers change, 0 of 40 with the key: " in found.reason
    assert {leg.source for leg in found.details} == {"first", "second"}
