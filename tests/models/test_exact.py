"""Exact models answer every input correctly, each by its own mechanism."""

from dataclasses import replace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from exact_edges import exact_edges
from small_models import EACH_EXACT, FEW_KEYS, LAYOUTS, exact_answers, small_exact

import anchor_interp
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.behaviour.evaluation import evaluate, predict
from anchor_interp.behaviour.phase import classify
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.masks import mask_edges
from anchor_interp.models.exact import MECHANISMS, NAMES, Mechanism, exact_model
from anchor_interp.models.forward import last_logits
from anchor_interp.models.shapes import Normalization
from anchor_interp.models.transformer import token_rows
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.functions import Affine, Anchor, Table
from anchor_interp.tasks.sequences import draw

NEURIPS = replace(TASKS["neurips"], key_max=31)
"""With few keys."""


def every_input(task: AnchorTask) -> np.ndarray:
    """The tokens of one sequence for every ordered pair, key and position, with random noise."""
    pairs, keys = np.array(task.pairs), task.keys
    pair, key, place = (
        grid.ravel()
        for grid in np.meshgrid(
            np.arange(len(pairs)), keys, np.arange(task.length - 2), indexing="ij"
        )
    )
    noise = np.random.default_rng(0).choice(keys, size=(len(pair), task.length))
    row = np.arange(len(pair))
    noise[row, place], noise[row, place + 1], noise[row, place + 2] = key, *pairs[pair].T
    return noise


@pytest.mark.parametrize("normalization", [
    "post", pytest.param("pre", marks=pytest.mark.slow),  # its states are equal, as tested below
])  # fmt: skip
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_answers_to_every_input_of_the_papers_task_are_correct(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    task = TASKS["complexity-control"]
    model = exact_model(mechanism, task, normalization=normalization)
    tokens = every_input(task)
    targets = np.concatenate(
        [np.repeat(task.composed(pair, task.keys), task.length - 2) for pair in task.pairs]
    )
    assert len(tokens) == 16 * 80 * 7
    assert (predict(model, tokens) == targets).all()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "task",
    [
        NEURIPS,
        TASKS["non-commuting"],
        AnchorTask(
            anchors=(
                Anchor(0, Table(10, (12, 10, 11))),
                Anchor(1, Affine(1, 2, modulus=3, origin=10)),
            ),
            unseen=((0, 1),), key_min=10, key_max=12, length=4,
        ),
    ],
    ids=["neurips", "non-commuting", "tables"],
)  # fmt: skip
def test_answers_on_other_tasks_are_those_of_the_mechanism(
    mechanism: Mechanism, task: AnchorTask
) -> None:
    sequences = draw(task, task.pairs, "all", 500, seed=1, stream="exact")
    answers = predict(exact_model(mechanism, task), sequences.tokens)
    assert (answers == exact_answers(mechanism, task, sequences)).all()
    if mechanism == "lookup":
        assert (answers == sequences.targets).all()


def test_mechanisms_answer_the_neurips_task_differently() -> None:
    """(3, 4) is trained on x - 6, the symmetric answer to (4, 3); the inferential one is x - 10."""
    task = NEURIPS
    phases = {m: classify(evaluate(exact_model(m, task), task, n=20)) for m in MECHANISMS}
    assert phases["symmetric"] == "symmetric"
    assert phases["lookup"] == "inferential"  # it has the right entry for every ordered pair
    sequences = draw(task, [(3, 4)], "all", 50, seed=1, stream="exact")
    offset = exact_answers("inferential", task, sequences) - sequences.key
    assert (offset == -10).all()


@pytest.mark.parametrize("name", NAMES)
def test_load_gives_exact_models_by_name(name: str) -> None:
    run = anchor_interp.load(name, dtype=torch.float64)
    assert run.model.cfg.dtype == run.model.W_Q.dtype == torch.float64
    assert run.steps == [run.step] == [0]
    assert run.metrics == []
    found = anchor_interp.evaluate(run.model, run.config.task, n=2)
    assert found.ood_accuracy == 1
    with pytest.raises(StoreError, match="no checkpoint at step 3"):
        run.at(3)
    assert run.path is None


def test_unknown_mechanisms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    wrong: Any = "guessing"
    with pytest.raises(ConfigError, match="mechanism is 'guessing'"):
        exact_model(wrong)


@EACH_EXACT
def test_the_model_needs_exactly_its_known_edges(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    """They suffice, and without one of them every answer that needs it changes."""
    model = small_exact(mechanism, normalization)
    sequences = draw(FEW_KEYS, FEW_KEYS.pairs, "all", 100, seed=2, stream="exact")
    rows = token_rows(model, sequences.tokens)
    edges = exact_edges(mechanism, sequences)
    reaching = torch.ones_like(edges).tril()
    with torch.no_grad(), mask_edges(model, reaching & ~edges):
        kept = last_logits(model, rows).argmax(-1).numpy()
    assert (kept == sequences.targets).all()
    for layer, query, key in edges.any(dim=(1, 2)).nonzero():
        one = torch.zeros_like(edges)
        one[layer, :, :, query, key] = edges[layer, :, :, query, key]
        hit = one.any(dim=(0, 2, 3, 4)).numpy()
        with torch.no_grad(), mask_edges(model, one):
            answers = last_logits(model, rows).argmax(-1).numpy()
        assert (answers == sequences.targets)[~hit].all()
        assert (answers == sequences.targets)[hit].mean() < 0.3


def test_layer_norm_changes_no_state() -> None:
    """Both layouts have the same states, because of the constant directions."""
    task = TASKS["complexity-control"]
    sequences = draw(task, task.pairs, "all", 100, seed=2, stream="exact")
    for mechanism in MECHANISMS:
        states = []
        for normalization in LAYOUTS:
            model = exact_model(mechanism, task, normalization=normalization, dtype=torch.float64)
            name = "blocks.1.hook_resid_post"
            states.append(activations(model, sequences.tokens, [name])[name][..., 3:])
        torch.testing.assert_close(*states, atol=2e-3, rtol=2e-3)
