"""A subject is checked once, when it is made."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, random_model, small_exact

import anchor_interp as ai
from anchor_interp._util.schema import canonical_json
from anchor_interp.analysis import clusters, routes, sensitivity, similarity
from anchor_interp.interventions import virtual_anchors
from anchor_interp.interventions.subject import Subject


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


def _few_outputs() -> Any:
    model = random_model()
    model.cfg.d_vocab_out = 5
    return model


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": _not_finite()}, "unembed.W_U holds 1 of"),
    ({"model": _not_finite(), "task": None}, "unembed.W_U holds 1 of"),
    ({"task": replace(FEW_KEYS, length=12)}, "the task needs"),
    ({"model": _few_outputs()}, "120 tokens, 5 outputs and 10 positions; the task needs"),
    ({"seed": -1}, "seed is -1; expected at least 0"),
    ({"training": ai.sample(FEW_KEYS, "train", 0, seed=0)}, "training holds sequences of shape"),
    ({"examples": ai.Examples(np.full((2, 9), 500))}, "tokens run from 500 to 500"),
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


ANALYSES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (similarity.value_similarity, {"n_contexts": 2}),
    (similarity.answer_similarity, {"n_contexts": 2}),
    (clusters.key_mask_clusters, {"n": 3}),
    (sensitivity.sensitivity, {"n": 20}),
    (sensitivity.order_influence, {"n": 20}),
    (routes.route_scores, {"n": 20}),
    (virtual_anchors.virtual_anchors, {"n": 2}),
]


@pytest.mark.parametrize(("analysis", "options"), ANALYSES)
def test_a_subject_stands_for_its_model_task_and_seed(
    analysis: Callable[..., Any], options: dict[str, Any]
) -> None:
    model = small_exact("inferential", "post")
    subject = Subject(model, FEW_KEYS, seed=3)
    own, given = analysis(subject, **options), analysis(model, FEW_KEYS, seed=3, **options)
    assert canonical_json(own) == canonical_json(given)
    with pytest.raises(ai.ConfigError, match="needs the model's anchor task"):
        analysis(model, **options)
