"""A subject is checked once, when it is made."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, random_model, small_exact

import anchor_interp as ai
from anchor_interp.analysis import clusters, fingerprint, routes, sensitivity, similarity
from anchor_interp.interventions import composition, interchange
from anchor_interp.interventions.subject import Subject


def test_a_subject_holds_what_it_was_given() -> None:
    model, sequences = small_exact("symmetric", "post"), ai.sample(FEW_KEYS, "train", 5, seed=0)
    subject = Subject(model, FEW_KEYS, examples=sequences, training=sequences, seed=3)
    assert subject.anchor_task is FEW_KEYS
    assert torch.equal(subject.rows, sequences.tensor)
    assert subject.trained_on is not None
    assert np.array_equal(subject.trained_on.last, sequences.targets)


def test_a_subject_of_a_run_knows_its_training_and_its_first_model() -> None:
    run = ai.load("tiny/memorizing/1")
    subject = Subject.of_run(run, seed=2)
    assert (subject.model, subject.task, subject.seed) == (run.model, run.config.task, 2)
    assert subject.initial is run.initial
    assert subject.trained_on is not None
    exact = Subject.of_run(ai.load("exact/symmetric"))
    assert (exact.initial, exact.trained_on) == (None, None)


def _not_finite() -> Any:
    model = random_model()
    model.unembed.W_U.data[0, 0] = torch.nan
    return model


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": _not_finite()}, "unembed.W_U holds 1 of"),
    ({"model": _not_finite(), "task": None}, "unembed.W_U holds 1 of"),
    ({"task": replace(FEW_KEYS, length=12)}, "the task needs"),
    ({"seed": -1}, "seed is -1; expected at least 0"),
    ({"training": ai.sample(FEW_KEYS, "train", 0, seed=0)}, "training holds sequences of shape"),
    ({"examples": np.full((2, 9), 500)}, "tokens run from 500 to 500"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_does_not_fit_is_refused_when_it_is_made(
    changes: dict[str, Any], message: str
) -> None:
    settings: dict[str, Any] = {"model": random_model(), "task": FEW_KEYS}
    with pytest.raises(ai.ConfigError, match=message):
        Subject(**settings | changes)


def test_what_an_analysis_lacks_is_asked_for() -> None:
    subject = Subject(random_model())
    with pytest.raises(ai.ConfigError, match="needs the model's anchor task"):
        _ = subject.anchor_task
    with pytest.raises(ai.ConfigError, match="needs examples"):
        _ = subject.rows


PAIRS: list[tuple[Callable[..., object], Callable[..., object]]] = [
    (similarity.value_similarity, similarity.value_similarity_of),
    (similarity.answer_similarity, similarity.answer_similarity_of),
    (similarity.block_similarity, similarity.block_similarity_of),
    (clusters.key_mask_clusters, clusters.key_mask_clusters_of),
    (clusters.pair_clusters, clusters.pair_clusters_of),
    (sensitivity.sensitivity, sensitivity.sensitivity_of),
    (sensitivity.order_influence, sensitivity.order_influence_of),
    (routes.route_scores, routes.route_scores_of),
    (fingerprint.fingerprint_model, fingerprint.fingerprint_of),
    (composition.virtual_anchors, composition.virtual_anchors_of),
    (interchange.interchange, interchange.interchange_of),
]


@pytest.mark.parametrize(("public", "of_subject"), PAIRS)
def test_an_analysis_of_a_subject_has_the_defaults_of_the_public_one(
    public: Callable[..., object], of_subject: Callable[..., object]
) -> None:
    known = inspect.signature(public).parameters
    for name, parameter in inspect.signature(of_subject).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert known[name].default == parameter.default, name
