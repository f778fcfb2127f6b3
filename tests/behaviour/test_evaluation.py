"""Evaluation of oracles: models whose answers are known, and so every number."""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from small_models import FEW_KEYS, small_exact
from torch import nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import canonical_json, from_dict
from anchor_interp.analysis.analyze import analyze_model
from anchor_interp.analysis.fingerprint import fingerprint_model
from anchor_interp.behaviour import evaluation as module
from anchor_interp.behaviour.evaluation import Training, evaluate, predict
from anchor_interp.behaviour.phase import Evaluation, classify, decide
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.examples import Dataset, Examples, as_examples
from anchor_interp.tasks.functions import Affine, Anchor, Override, Pair, Table
from anchor_interp.tasks.sequences import Sequences, draw, sample

Answer = Callable[[AnchorTask, Pair, int, int], int]
Ints = npt.NDArray[np.int64]


def oracle(task: AnchorTask, answer: Answer) -> Callable[..., torch.Tensor]:
    """A ``last_logits`` whose answer is a given function of pair, key and position."""

    def logits(_model: object, inputs: Any) -> torch.Tensor:
        out = torch.zeros(len(inputs), 201)
        for row, sequence in enumerate(as_examples(inputs).tokens.tolist()):
            place = next(i for i, token in enumerate(sequence) if token in task.tokens) - 1
            pair = (sequence[place + 1], sequence[place + 2])
            out[row, answer(task, pair, sequence[place], place)] = 1
        return out

    return logits


def one(values: Ints | None) -> int:
    assert values is not None
    return int(values[0])


def inferential(task: AnchorTask, pair: Pair, key: int, _place: int) -> int:
    x = np.array([key])
    return one(task.target(pair, x))


def symmetric(task: AnchorTask, pair: Pair, key: int, _place: int) -> int:
    """The training target; for an unseen pair the other order's, or x - 7 for both orders."""
    x = np.array([key])
    if task.role(pair) != "unseen":
        return one(task.target(pair, x))
    mirrored = task.symmetric(pair, x)
    return one(x - 7 if mirrored is None else mirrored)


def composite(task: AnchorTask, pair: Pair, key: int, _place: int) -> int:
    """Right on seen pairs, another wrong offset for each unseen order."""
    x = np.array([key])
    return one(task.target(pair, x)) if task.role(pair) != "unseen" else key + pair[0]


def memorizing(task: AnchorTask, pair: Pair, key: int, place: int) -> int:
    """Right on training keys of seen pairs, constant elsewhere."""
    x = np.array([key])
    known = task.role(pair) != "unseen" and key % task.length != place
    return one(task.target(pair, x)) if known else 7


def constant_on_unseen(task: AnchorTask, pair: Pair, key: int, _place: int) -> int:
    x = np.array([key])
    return one(task.target(pair, x)) if task.role(pair) != "unseen" else 50


def half_inferential(task: AnchorTask, pair: Pair, key: int, _place: int) -> int:
    """On unseen pairs right for 2 of 5 keys; of the rest a third depends on the order."""
    x = np.array([key])
    if task.role(pair) != "unseen" or key % 5 < 2:
        return one(task.composed(pair, x))
    return key + pair[0] if key % 5 == 4 else key - 7


def evaluate_oracle(
    task: AnchorTask, answer: Answer, n: int = 20, training: Training | None = None
) -> Evaluation:
    model = build_model(ModelConfig(d_model=8, d_head=4, d_mlp=8), InitConfig(), seed=0)
    training = sample(task, "train", 200, seed=0) if training is None else training
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "last_logits", oracle(task, answer))
        return evaluate(model, task, n=n, training=training, initial=model, steps=5)


@functools.cache
def measure(name: str, answer: Answer) -> Evaluation:
    """The evaluation of an oracle on a named task, shared by the tests."""
    return evaluate_oracle(TASKS[name], answer)


@pytest.mark.parametrize(("task", "answer", "phase", "commutes_if_wrong"), [
    ("complexity-control", inferential, "inferential", None),  # nothing is wrong
    ("complexity-control", symmetric, "symmetric", 1),
    ("complexity-control", composite, "composite", 0),
    ("complexity-control", memorizing, "memorizing", 1),
    ("complexity-control", constant_on_unseen, "other", 1),
    ("neurips", inferential, "inferential", None),
    ("neurips", symmetric, "symmetric", 1),
    ("neurips", composite, "composite", 0),
    ("neurips", memorizing, "memorizing", 0.5),  # half of (3, 4), the other order, is known
    ("non-commuting", inferential, "inferential", None),
    ("non-commuting", symmetric, "symmetric", 1),
    ("reasoning-complexity-3", inferential, "other", None),
])  # fmt: skip
def test_each_oracle_gets_its_phase(
    task: str, answer: Answer, phase: str, commutes_if_wrong: float | None
) -> None:
    found = measure(task, answer)
    assert classify(found) == phase
    assert found.commutativity_wrong == commutes_if_wrong
    assert from_dict(Evaluation, json.loads(canonical_json(found))) == found


@pytest.mark.parametrize(("task", "answer", "ood", "symmetric_share", "commutes", "offset"), [
    ("complexity-control", inferential, 1, None, 1, "-10"),
    ("neurips", inferential, 1, 0, 0, "-10"),  # (3, 4) is answered with its override x - 6
    ("neurips", symmetric, 0, 1, 1, "-6"),
    ("reasoning-complexity-6", inferential, None, None, None, None),  # nothing is unseen
])  # fmt: skip
def test_numbers_of_unseen_pairs(
    task: str, answer: Answer, ood: Any, symmetric_share: Any, commutes: Any, offset: str | None
) -> None:
    found = measure(task, answer)
    assert (found.ood_accuracy, found.symmetric_accuracy) == (ood, symmetric_share)
    assert (found.commutativity, found.key_dependence) == (commutes, offset and 1)
    assert all(answers.offsets == {offset: 1.0} for answers in found.unseen)
    assert bool(found.unseen) == (offset is not None)


def test_numbers_of_the_inferential_oracle() -> None:
    found = measure("complexity-control", inferential)
    assert (found.train_accuracy, found.id_accuracy) == (1, 1)
    assert len(found.pair_accuracy) == 16
    assert all(entry.train_keys == entry.test_keys == 1 for entry in found.pair_accuracy)
    assert found.stable_rank == found.stable_rank_at_init
    assert found.steps == 5


def test_cells_are_the_means_over_their_pairs() -> None:
    found = measure("neurips", memorizing)
    assert found.train_accuracy == found.cells.seen_train_keys == 1
    assert found.cells.seen_test_keys == found.id_accuracy
    assert (found.id_accuracy or 0) < 0.1
    seen = [entry for entry in found.pair_accuracy if entry.role == "inferential"]
    assert all(entry.train_keys == 1 for entry in seen)
    assert found.cells.unseen_train_keys == found.cells.unseen_test_keys == 0
    found = measure("reasoning-complexity-0", inferential)
    assert found.cells.unseen_train_keys is found.cells.unseen_test_keys is None


def test_right_answers_commute_and_wrong_ones_are_counted_apart() -> None:
    """The paper's rule calls a model symmetric that is right on every second unseen sequence."""
    found = measure("complexity-control", half_inferential)
    assert classify(found) == "symmetric"
    shares: Any = (found.ood_accuracy, found.commutativity, found.commutativity_wrong)
    right, same, wrong = shares
    assert 0.2 < right < 0.5
    assert 0.5 < wrong < 0.7 < same  # the paper's threshold lies between
    assert same == pytest.approx(right + (1 - right) * wrong)


def test_too_few_wrong_answers_say_nothing() -> None:
    task = TASKS["complexity-control"]  # two unseen pairs, two kinds of keys
    assert evaluate_oracle(task, composite, n=4).commutativity_wrong is None
    assert evaluate_oracle(task, composite, n=5).commutativity_wrong == 0


def test_an_evaluation_of_an_earlier_version_is_read() -> None:
    found = measure("neurips", composite)
    data = json.loads(canonical_json(found))
    del data["commutativity_wrong"]
    assert from_dict(Evaluation, data) == dataclasses.replace(found, commutativity_wrong=None)


def test_equal_anchors_have_no_commutativity() -> None:
    task = AnchorTask(unseen=((2, 2),))
    found = evaluate_oracle(task, constant_on_unseen)
    assert found.commutativity is found.commutativity_wrong is None
    assert classify(found) == "other"


def test_right_answers_of_a_shortcut_are_no_inference() -> None:
    """The functions commute, so with (4, 3) in training the shortcut is right on (3, 4)."""
    found = evaluate_oracle(AnchorTask(unseen=((3, 4),)), inferential)
    assert found.ood_accuracy == 1
    assert decide(found).phase == "other"
    assert "nothing tells inference from the shortcut" in decide(found).reason
    both = AnchorTask(unseen=((3, 4), (4, 3)))
    assert classify(evaluate_oracle(both, inferential)) == "inferential"


def test_keys_at_which_both_answers_coincide_do_not_count() -> None:
    """(3, 4) is overridden for high keys only: on low keys both answers to (4, 3) are x - 10."""
    override = Table(20, tuple(x - 10 if x < 70 else x - 6 for x in range(20, 100)))
    task = AnchorTask(overrides=(Override((3, 4), override),), unseen=((4, 3),))
    assert classify(evaluate_oracle(task, symmetric)) == "symmetric"
    assert classify(evaluate_oracle(task, inferential)) == "inferential"


def test_without_training_sequences_the_reason_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "last_logits", oracle(TASKS["neurips"], constant_on_unseen))
    model = build_model(ModelConfig(d_model=8, d_head=4, d_mlp=8), InitConfig(), seed=0)
    found = evaluate(model, TASKS["neurips"], n=5)
    assert found.train_accuracy is None
    assert classify(found) == "composite"  # right on fresh sequences, so it is trained
    monkeypatch.undo()
    decision = decide(evaluate(model, TASKS["neurips"], n=5))
    assert decision.phase == "undertrained"
    assert "its own training sequences are not given" in decision.reason


def test_condensation_of_a_single_neuron_is_none() -> None:
    narrow = build_model(ModelConfig(d_model=8, d_head=1, d_mlp=8), InitConfig(), seed=0)
    found = evaluate(narrow, TASKS["neurips"], n=5)
    assert found.condensation is found.condensation_at_init is None


def test_predictions_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(ModelConfig(d_model=16, d_head=8, d_mlp=16), InitConfig(0.2), seed=0)
    task = TASKS["neurips"]
    tokens = draw(task, task.pairs, "all", 300, seed=0, stream="x").tokens
    whole = predict(model, tokens)
    monkeypatch.setattr(module, "_BATCH", 7)
    np.testing.assert_array_equal(predict(model, tokens), whole)
    with torch.no_grad():
        hooked = model(torch.from_numpy(tokens).long())[:, -1].argmax(-1).numpy()
    np.testing.assert_array_equal(whole, hooked)


def test_a_bias_that_is_no_parameter_is_looked_at_like_a_weight() -> None:
    """Attention scores of NaN count as 0, so the logits do not show it."""
    model = build_model(ModelConfig(d_model=8, d_head=4, d_mlp=8), InitConfig(), seed=0)
    evaluate(model, TASKS["neurips"], n=5)  # a mask's buffer holds -inf
    buffer = dict(model.named_buffers())["blocks.1.attn.b_Q"]
    buffer[0, 1:3] = torch.tensor([torch.nan, torch.inf])
    with pytest.raises(ConfigError, match=r"1\.attn\.b_Q holds 2 of 4 values that are not finite"):
        evaluate(model, TASKS["neurips"], n=5)


def test_a_mask_of_a_called_model_is_no_wrong_weight() -> None:
    """Models of one's own often keep a causal mask of 0 and -inf as a buffer."""
    model = nn.Embedding(201, 201).eval()
    expected = evaluate(model, TASKS["neurips"], n=5)
    model.register_buffer("causal", torch.full((9, 9), -torch.inf).triu(1))
    assert evaluate(model, TASKS["neurips"], n=5) == expected
    dict(model.named_buffers())["causal"][0, 0] = 1.0
    with pytest.raises(ConfigError, match="causal holds 36 of 81 values that are not finite"):
        evaluate(model, TASKS["neurips"], n=5)


CONTROL = TASKS["complexity-control"]


@pytest.mark.parametrize(("measure", "given"), [
    (evaluate, Sequences.dataset), (fingerprint_model, lambda sequences: sequences),
    (analyze_model, Sequences.examples),
])  # fmt: skip
def test_training_that_holds_unseen_pairs_is_refused(
    measure: Callable[..., object], given: Callable[[Sequences], Training]
) -> None:
    model, training = small_exact("inferential", "pre"), sample(FEW_KEYS, "ood", 300, seed=0)
    expected = r"training holds 300 of 300 rows of unseen pairs, such as \((3, 4|4, 3)\)"
    with pytest.raises(ConfigError, match=expected):
        measure(model, FEW_KEYS, training=given(training))


def test_rows_of_an_unseen_pair_are_counted_wherever_it_stands() -> None:
    """With other noise, at other positions, after another key or none, and among many others."""
    rows = sample(CONTROL, "train", 1_000, seed=0).tokens.copy()
    rows[7], rows[400, :2], rows[999, -2:] = [50, 51, 52, 53, 54, 3, 4, 55, 56], (4, 3), (3, 4)
    training = Examples(rows, np.full(len(rows), 60))
    model = build_model(ModelConfig(d_model=8, d_head=4, d_mlp=8), InitConfig(), seed=0)
    with pytest.raises(ConfigError, match="training holds 3 of 1,000 rows of unseen pairs"):
        evaluate(model, CONTROL, training=training)
    rows[7, 5], rows[400, 0], rows[999, -2] = 60, 60, 60
    evaluate(model, CONTROL, n=5, training=Examples(rows, np.full(len(rows), 60)))


def knows_test_keys(task: AnchorTask, pair: Pair, key: int, place: int) -> int:
    """Right where the split has test keys, of seen pairs, and constant elsewhere."""
    known = task.role(pair) != "unseen" and key % task.length == place
    return one(task.target(pair, np.array([key]))) if known else 7


def test_id_accuracy_is_of_what_training_does_not_hold(caplog: pytest.LogCaptureFixture) -> None:
    """A model that knows the keys and positions of its training by heart, which are the split's."""
    training = sample(CONTROL, "id", 20_000, seed=1)
    found = evaluate_oracle(CONTROL, knows_test_keys, training=training)
    assert found.cells.seen_test_keys == 1  # what the split calls new
    assert found.id_accuracy == pytest.approx(0, abs=0.01)
    assert classify(found) == "memorizing"
    assert "20,000 of 20,000 training rows have keys and positions that the split" in caplog.text


def test_training_of_every_key_and_position_leaves_other_noise_as_new() -> None:
    both = [sample(CONTROL, name, 60_000, seed=1).dataset() for name in ("train", "id")]
    training = Dataset(*(np.concatenate([getattr(one, name) for one in both])
                         for name in ("tokens", "mask", "lengths")))  # fmt: skip
    found = evaluate_oracle(CONTROL, inferential, training=training)
    assert found.id_accuracy == 1
    assert classify(found) == "inferential"
    assert evaluate_oracle(CONTROL, memorizing, training=training).id_accuracy == pytest.approx(
        0.5, abs=0.1
    )


def test_without_anything_new_memorizing_cannot_be_told() -> None:
    """Sequences without noise: every one of the seen pairs is in the training data."""
    task = AnchorTask(length=3, unseen=((3, 4), (4, 3)))
    training = draw(task, task.seen, "all", 30_000, seed=0, stream="x")
    right = evaluate_oracle(task, inferential, training=training)
    assert right.id_accuracy is None
    assert classify(right) == "inferential"
    decision = decide(evaluate_oracle(task, composite, training=training))
    assert decision.phase == "other"
    assert "training holds every sequence of the seen pairs" in decision.reason


def test_training_that_keeps_the_split_is_judged_by_it(caplog: pytest.LogCaptureFixture) -> None:
    found = evaluate_oracle(
        CONTROL, knows_test_keys, training=sample(CONTROL, "train", 500, seed=0)
    )
    assert found.id_accuracy == found.cells.seen_test_keys == 1
    assert not caplog.records


def test_a_task_that_is_not_that_of_the_training_is_told(caplog: pytest.LogCaptureFixture) -> None:
    first, *others = CONTROL.anchors
    other = dataclasses.replace(CONTROL, anchors=(Anchor(first.token, Affine(6)), *others))
    training = sample(CONTROL, "train", 100, seed=0)
    n = int((training.tokens == first.token).any(1).sum())
    evaluate_oracle(other, inferential, training=training)
    assert f"{n} of 100 training rows have other answers than the task, as row" in caplog.text


COUNT = tuple(Anchor(token, Affine(token)) for token in (1, 2, 3, 4))
"""x + 1 to x + 4: 2 + 3 = 1 + 4, so a model that reads (2, 3) as (1, 4) gives the rule's answer."""


@pytest.mark.parametrize("unseen", [((2, 3),), ((2, 3), (3, 2))])
def test_a_rule_that_a_seen_pair_has_is_no_inference(unseen: tuple[Pair, ...]) -> None:
    found = evaluate_oracle(AnchorTask(anchors=COUNT, unseen=unseen), inferential)
    assert found.ood_accuracy == 1
    assert (1, 4) in found.unseen[0].as_seen
    decision = decide(found)
    assert decision.phase == "other"
    assert "has the answers of a seen one, (2, 3) of (1, 4)" in decision.reason
    assert from_dict(Evaluation, json.loads(canonical_json(found))) == found


def test_only_unseen_pairs_that_can_tell_count() -> None:
    """(2, 3) has a seen pair's answers and (4, 4) has none: a model right on the first alone."""
    task = AnchorTask(anchors=COUNT, unseen=((2, 3), (4, 4)))

    def borrowing(task: AnchorTask, pair: Pair, key: int, place: int) -> int:
        return key + 2 if pair == (4, 4) else inferential(task, pair, key, place)

    found = evaluate_oracle(task, borrowing)
    assert [answers.inferential for answers in found.unseen] == [1, 0]
    assert found.ood_accuracy == 0
    assert classify(found) != "inferential"
    assert classify(evaluate_oracle(task, inferential)) == "inferential"


def test_keys_at_which_a_seen_pair_has_the_rule_do_not_count() -> None:
    """(2, 2) has the answers of the unseen (1, 1) at all keys but the five largest."""
    nearly = Table(20, tuple(x + 10 if x < 95 else x for x in range(20, 100)))
    task = AnchorTask(unseen=((1, 1),), overrides=(Override((2, 2), nearly),))

    def reading(task: AnchorTask, pair: Pair, key: int, place: int) -> int:
        return inferential(task, (2, 2) if pair == (1, 1) else pair, key, place)

    assert evaluate_oracle(task, reading, n=100).ood_accuracy == 0
    assert classify(evaluate_oracle(task, inferential, n=100)) == "inferential"
