"""Scores on examples: exact matches with and without decoding, losses, tokens without an end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from short import SHORT

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.behaviour import scoring
from anchor_interp.behaviour.evaluation import evaluate, predict
from anchor_interp.behaviour.phase import AspectScore, SplitScore
from anchor_interp.behaviour.scoring import (
    decoded_answers,
    right_answers,
    score_split,
    token_scores,
)
from anchor_interp.models import shapes
from anchor_interp.models.forward import place_logits
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.realistic.prontoqa import Prontoqa
from anchor_interp.realistic.scan import Scan
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.loop import TrainState, fit
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.session import Probes
from anchor_interp.tasks import registry
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.contract import draw_aspects, draw_examples, untrained
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.task import Task


@pytest.fixture(autouse=True)
def own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CLASSES", dict(registry.CLASSES))


@pytest.fixture(scope="module")
def half_trained() -> HookedTransformer:
    """A model that gets some commands right."""
    changes: dict[str, Any] = {"d_model": 48, "batch_size": 64, "lr": 5e-3, "steps": 150}
    config = preset("scan", **SHORT | changes, n_heads=2)
    state = TrainState.fresh(config, torch.device("cpu"))
    objective = make_objective(config, torch.device("cpu"))
    return fit(state, objective, until=150, on_event=lambda _s, _e: None).model


def test_exact_matches_need_no_decoding(half_trained: HookedTransformer) -> None:
    task = Scan()
    drawn = draw_examples(task, "train", 300, seed=0)
    found = right_answers(half_trained, task, drawn)
    assert np.array_equal(found, decoded_answers(half_trained, task, drawn, end=task.end))
    assert set(found) == {0, 1}


def test_losses_are_those_of_the_hooked_forward(
    half_trained: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Scan()
    drawn = draw_examples(task, "ood", 40, seed=0)
    expected = []
    with torch.no_grad():
        for row, mask, length in zip(drawn.tokens, drawn.mask, drawn.lengths, strict=True):
            tokens = torch.from_numpy(row[:length].astype(np.int64))
            losses = F.cross_entropy(
                half_trained(tokens[None, :-1])[0], tokens[1:], reduction="none"
            )
            expected.append(float(losses[mask[1:length]].mean()))
    np.testing.assert_allclose(token_scores(half_trained, drawn)[1], expected, atol=1e-5)
    monkeypatch.setattr(shapes, "MOST_POSITIONS", 100)  # several passes
    np.testing.assert_allclose(token_scores(half_trained, drawn)[1], expected, atol=1e-5)
    with half_trained.hooks([("blocks.0.hook_attn_out", lambda value, **_: value * 0)]):
        assert np.abs(token_scores(half_trained, drawn)[1] - expected).max() > 0.1
    weights = drawn.mask.sum(1)
    mean = np.average(expected, weights=weights)
    assert score_split(half_trained, task, Split("ood", "ood"), drawn).loss == pytest.approx(
        mean, abs=1e-5
    )


def test_accuracies_by_aspect_are_those_of_the_examples_counted(
    half_trained: HookedTransformer,
) -> None:
    task, split = Scan(), Split("id", "id")
    drawn = draw_examples(task, "id", 300, seed=0)
    right, found = right_answers(half_trained, task, drawn), draw_aspects(task, drawn)
    scored = score_split(half_trained, task, split, drawn)
    assert {score.aspect for score in scored.aspects} == {"length", "construction"}
    for aspect, values in found.items():
        of_aspect = [score for score in scored.aspects if score.aspect == aspect]
        assert sum(score.n for score in of_aspect) == 300
        for score in of_aspect:
            kept = [r for r, v in zip(right, values, strict=True) if v == score.value]
            assert score.n == len(kept)
            assert score.accuracy == pytest.approx(np.mean(kept))
            assert score.high == (score.value if aspect == "length" else None)
    assert from_dict(SplitScore, to_dict(scored)) == scored


def test_a_split_is_read_once_for_accuracy_and_loss(
    half_trained: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, passes = draw_examples(Scan(), "id", 50, seed=0), []

    def counted(*arguments: Any) -> torch.Tensor:
        passes.append(1)
        return place_logits(*arguments)

    monkeypatch.setattr(scoring, "place_logits", counted)
    score_split(half_trained, Scan(), Split("id", "id"), drawn)
    assert len(passes) == 1


def test_a_proof_may_be_longer_than_the_right_one() -> None:
    """A model that repeats a word, then judges, is right; one that does not end is wrong."""
    task = Prontoqa(hops=1)
    drawn = draw_examples(task, "id", 8, seed=0)
    longest = int((drawn.lengths - drawn.starts).max())
    written = [(2,) * (longest + 28) + answer[-2:] for answer in drawn.answers()]
    assert task.score(drawn, written).all()
    assert not task.score(drawn, [answer[:-1] for answer in written]).any()
    model = build_model(ModelConfig(d_vocab=50, n_ctx=task.length + 40), InitConfig(0.3), seed=0)
    with torch.no_grad():
        model.unembed.b_U[0] = -1e4  # the end token never comes
    lengths: list[int] = []

    def kept(_self: Any, _examples: Dataset, answers: Sequence[Sequence[int]]) -> Any:
        lengths.extend(map(len, answers))
        return np.zeros(len(answers), bool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prontoqa, "score", kept)
        decoded_answers(model, task, drawn, end=task.end)
    assert min(lengths) >= longest + 40  # there is room for longer answers than the right ones


def test_many_numbers_are_counted_in_ranges() -> None:
    values, shares = [*range(-7, 93), 92], np.array([*[0.0] * 50, *[1.0] * 51])
    found = list(scoring._by("size", values, lambda rows: float(shares[rows].mean())))
    assert [(score.value, score.high) for score in found][:2] == [(-7, -4), (-3, 0)]
    assert found[-1] == AspectScore("size", 89, 92, 1.0, 5)
    assert [score.accuracy for score in found] == [0] * 12 + [0.5] + [1] * 12
    assert len(list(scoring._by("size", values[:32], lambda _: 0.0))) == 32


def test_a_task_may_score_answers_itself(
    half_trained: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class FirstAction(Task):
        """SCAN, but only the first action counts."""

        kind: Literal["first"] = "first"
        words, length, end, splits = Scan().words, Scan().length, Scan().end, Scan().splits

        def examples(self, split: str, n: int, *, seed: int) -> Dataset:
            return Scan().examples(split, n, seed=seed)

        def score(self, examples: Dataset, answers: Sequence[Sequence[int]]) -> Any:
            pairs = zip(answers, examples.answers(), strict=True)
            return np.array([given[0] == wanted[0] for given, wanted in pairs])

    drawn = draw_examples(FirstAction(), "train", 100, seed=0)
    first = right_answers(half_trained, FirstAction(), drawn)
    exact = right_answers(half_trained, Scan(), drawn)
    assert (first >= exact).all()
    assert first.mean() > exact.mean()
    monkeypatch.setattr(FirstAction, "score", lambda *_: 0.25)  # a share counted as right
    with pytest.raises(ConfigError, match=r"of the task first has float64 values of shape \(\)"):
        right_answers(half_trained, FirstAction(), drawn)


def test_an_answer_with_a_token_that_no_word_has_is_wrong() -> None:
    @dataclass(frozen=True)
    class Known(Task):
        """Any answer is right; it is looked up among the words."""

        kind: Literal["known"] = "known"
        words, end, length = tuple(".abc"), 0, 4
        splits = (Split("train", "train"),)

        def score(self, examples: Dataset, answers: Sequence[Sequence[int]]) -> Any:
            assert all(self.decode(answer) for answer in answers)
            return np.ones(len(examples), bool)

    drawn = Dataset.of([[1], [2, 3]], [[2, 0], [1, 0]])
    for token, share in ((6, 0.0), (3, 1.0)):
        model = build_model(ModelConfig(d_vocab=7, n_ctx=4), InitConfig(0.3), seed=0)
        with torch.no_grad():
            model.unembed.b_U[token] = 1e4
        assert right_answers(model, Known(), drawn).tolist() == [share] * 2


def test_a_score_does_not_depend_on_the_examples_beside_it() -> None:
    """A short prompt with a long answer beside a long prompt: together they exceed the context."""

    @dataclass(frozen=True)
    class Long(Task):
        """Any answer of at least four tokens is right."""

        kind: Literal["long"] = "long"
        words, end, length = tuple(".abcd"), 0, 8
        splits = (Split("train", "train"),)

        def examples(self, split: str, n: int, *, seed: int) -> Dataset:
            assert (split, seed) == ("train", 0)
            pairs = [([1], [3] * 7 + [0]), ([2] * 7, [4, 0])] * n
            return Dataset.of([prompt for prompt, _ in pairs[:n]], [a for _, a in pairs[:n]])

        def score(self, examples: Dataset, answers: Sequence[Sequence[int]]) -> Any:
            assert len(examples) == len(answers)
            return np.array([len(answer) >= 4 for answer in answers])

    model = build_model(ModelConfig(d_vocab=5, n_ctx=8), InitConfig(0.3), seed=0)
    with torch.no_grad():
        model.unembed.b_U[0] = -1e4  # the end token never comes
    drawn = draw_examples(Long(), "train", 6, seed=0)
    assert right_answers(model, Long(), drawn).tolist() == [1, 0] * 3
    alone = Dataset.of([[1]], [[3, 0]])  # the model's answer may be longer than the given one
    assert right_answers(model, Long(), alone).tolist() == [1]


def test_without_an_end_each_token_counts() -> None:
    @dataclass(frozen=True)
    class Copy(Task):
        """The next token is that before."""

        kind: Literal["copy"] = "copy"
        words = tuple("abcdef")
        length = 7
        splits = (Split("train", "train"), Split("id", "id"))

        def examples(self, split: str, n: int, *, seed: int) -> Dataset:
            tokens = random_integers(8 * n, 6, seed=seed, stream=split).reshape(n, 8)
            lengths = np.where(np.arange(n) % 2, 8, 2)
            inside = np.arange(8) < lengths[:, None]
            return Dataset(tokens * inside, inside & (np.arange(8) > 0), lengths)

        def aspects(self, examples: Dataset) -> dict[str, list[str]]:
            return {"half": [("one", "one", "other")[i % 3] for i in range(len(examples))]}

    task = Copy()
    model = build_model(ModelConfig(d_vocab=6, n_ctx=7), InitConfig(0.3), seed=0)
    drawn = draw_examples(task, "id", 30, seed=0)
    with torch.no_grad():
        guessed = model(torch.from_numpy(drawn.inputs)).argmax(-1).numpy()
    asked, right = drawn.mask[:, 1:], guessed == drawn.tokens[:, 1:]
    shares = [r[a].mean() for r, a in zip(right, asked, strict=True)]
    np.testing.assert_allclose(right_answers(model, task, drawn), shares)
    found = evaluate(model, task, n=30)
    # of all tokens: an answer of seven counts as seven of one token
    assert found.id_accuracy == pytest.approx(right[asked].mean())
    assert abs(np.mean(shares) - right[asked].mean()) > 0.01
    one = np.arange(30) % 3 < 2
    assert found.splits[0].aspects[0].accuracy == pytest.approx(right[one][asked[one]].mean())
    config = RunConfig(task, ModelConfig(d_vocab=6, n_ctx=7))
    training = draw_examples(task, "train", 256, seed=0)
    probed = untrained(task, "id", draw_examples(task, "id", 512, seed=1), training)
    expected = score_split(model, task, Split("id", "id"), probed).accuracy
    assert Probes(config, training).measure(model)["id_accuracy"] == pytest.approx(expected)
    assert found.train_accuracy is found.ood_accuracy is None
    model.cfg.attention_dir = "bidirectional"
    with pytest.raises(ConfigError, match="bidirectional"):  # it would read what it is to predict
        evaluate(model, task, n=30)


def test_the_general_score_of_an_anchor_task_is_its_accuracy() -> None:
    task = TASKS["neurips"]
    model = build_model(ModelConfig(), InitConfig(0.3), seed=0)
    drawn = draw_examples(task, "id", 200, seed=0)
    expected = predict(model, np.ascontiguousarray(drawn.inputs)) == drawn.last
    assert np.array_equal(right_answers(model, task, drawn), expected)
