"""What training minimises: a plain loop agrees, batches are buckets, parts add up."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from short import SHORT

from anchor_interp._util.environment import limited_threads
from anchor_interp.behaviour.scoring import token_scores
from anchor_interp.models import shapes
from anchor_interp.models.transformer import build_model
from anchor_interp.runs.config import RunConfig, memory_bytes, override
from anchor_interp.runs.loop import TrainState, fit, train_step
from anchor_interp.runs.objectives import WINDOW, MaskedObjective, draw_training, make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.schedule import learning_rate

CPU = torch.device("cpu")


@pytest.fixture
def config() -> RunConfig:
    return preset("scan", **SHORT)


def masked(config: RunConfig) -> MaskedObjective:
    found = make_objective(config, CPU)
    assert isinstance(found, MaskedObjective)
    return found


@pytest.mark.parametrize("changes", [
    {},
    {"normalization": "post", "act_fn": "relu", "n_heads": 1, "bias": True},
    {"n_layers": 1, "batch_size": 7},
])  # fmt: skip
def test_training_equals_a_plain_loop_in_float64(
    config: RunConfig, changes: dict[str, int]
) -> None:
    config = override(config, weight_decay=0.1, steps=20, lr=3e-3, **changes)
    model = build_model(config.model, config.init, seed=config.seed, dtype=torch.float64)
    state, objective = TrainState(model, config.train), masked(config)
    losses: list[float] = []
    fit(state, objective, until=20, on_event=lambda _s, e: losses.append(e.loss.item()))

    plain = build_model(config.model, config.init, seed=config.seed, dtype=torch.float64)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.1)
    tokens_of_a_batch = config.train.batch_size * objective.training.mask.sum(1).mean()
    for step in range(20):
        rows = objective.rows(step)
        tokens = torch.from_numpy(objective.training.tokens[rows].astype(np.int64))
        mask = torch.from_numpy(objective.training.mask[rows])
        optimizer.param_groups[0]["lr"] = learning_rate(config.train, step)
        logits, targets = plain(tokens[:, :-1])[mask[:, 1:]], tokens[:, 1:][mask[:, 1:]]
        loss = F.cross_entropy(logits, targets, reduction="sum") / tokens_of_a_batch
        assert losses[step] == pytest.approx(loss.item(), abs=1e-11)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    for (name, a), b in zip(state.model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("changes", [
    {"normalization": "pre", "n_heads": 4, "d_head": 16, "d_model": 64, "act_fn": "gelu"},
    {"normalization": "pre", "n_heads": 3, "d_head": 5, "bias": True},
    {"normalization": "post", "n_heads": 2, "act_fn": "relu", "bias": True},
    {"normalization": "pre", "n_heads": 4, "n_layers": 1},
])  # fmt: skip
def test_loss_and_gradients_are_the_hooked_models_in_float32(
    config: RunConfig, changes: dict[str, Any], threads: int
) -> None:
    config = override(config, **changes)
    with limited_threads(threads):
        for seed in range(3):
            ours = build_model(config.model, config.init, seed=seed)
            hooked = build_model(config.model, config.init, seed=seed)
            objective = masked(config)
            (part,) = objective.parts(seed)
            loss = objective.loss(ours, part)
            torch.autograd.backward(loss)
            rows = objective.rows(seed)
            tokens = torch.from_numpy(objective.training.tokens[rows].astype(np.int64))
            mask = torch.from_numpy(objective.training.mask[rows])[:, 1:]
            logits = hooked(tokens[:, :-1])[mask]
            expected = part.share * F.cross_entropy(logits, tokens[:, 1:][mask])
            torch.autograd.backward(expected)
            torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
            for (name, a), b in zip(ours.named_parameters(), hooked.parameters(), strict=True):
                found, wanted = (grad for grad in (a.grad, b.grad) if grad is not None)
                # the gradient of b_K is 0 but for rounding
                assert (found - wanted).norm() <= 2e-5 * wanted.norm() + 1e-7, name


def test_every_epoch_takes_every_example_once(config: RunConfig) -> None:
    """300 sequences in batches of 30: a window of 16 batches and the next one end in epochs."""
    config = override(config, batch_size=30)
    objective = masked(config)
    taken: Counter[int] = Counter()
    for step in range(10 * WINDOW):
        taken.update(objective.rows(step).tolist())
    assert set(taken) == set(range(300))
    assert set(taken.values()) == {WINDOW}


def test_losses_of_an_epoch_are_the_mean_over_tokens_whatever_the_batches(
    config: RunConfig,
) -> None:
    """Each token counts alike, in a batch of short answers as in one of long ones."""
    config = override(config, batch_size=30)
    objective = masked(config)
    model = build_model(config.model, config.init, seed=0, dtype=torch.float64)
    with torch.no_grad():
        losses = [float(objective.loss(model, *objective.parts(s))) for s in range(10 * WINDOW)]
    training = objective.training
    means, counts = token_scores(model, training)[1], training.mask.sum(1)
    assert np.ptp(counts) > 5
    assert np.mean(losses) == pytest.approx(np.average(means, weights=counts), rel=1e-9)


def test_a_batch_depends_on_seed_and_step_alone(config: RunConfig) -> None:
    forwards, backwards = masked(config), masked(config)
    found = [forwards.rows(step) for step in range(40)]
    for step in reversed(range(40)):
        assert np.array_equal(backwards.rows(step), found[step])
    other = masked(override(config, seed=1))
    assert not np.array_equal(other.rows(3), found[3])


def test_more_examples_than_a_task_has_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = preset("addition", largest=9, held_out=1, batch_size=1)
    size = config.task.splits[0].size
    assert size is not None
    assert len(draw_training(override(config, n_sequences=size))) == size
    assert not caplog.text
    assert len(draw_training(override(config, n_sequences=size + 1))) == size + 1
    (record,) = caplog.records
    assert f"the task addition has {size} training examples, which repeat" in record.getMessage()


def test_batches_hold_sequences_of_similar_length() -> None:
    objective = masked(preset("scan"))
    lengths = objective.training.lengths
    computed = sum(lengths[objective.rows(step)].max() * 64 for step in range(64))
    needed = sum(lengths[objective.rows(step)].sum() for step in range(64))
    assert needed / computed > 0.85
    order = [float(lengths[objective.rows(step)].mean()) for step in range(64)]
    assert np.corrcoef(order, range(64))[0, 1] < 0.5  # and they come in no order


def test_parts_of_a_batch_add_up_to_its_gradient(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(config, batch_size=64, clip=None)
    found = []
    for most in (1 << 15, 200, 20):
        monkeypatch.setattr(shapes, "MOST_POSITIONS", most)
        model = build_model(config.model, config.init, seed=0, dtype=torch.float64)
        state, objective = TrainState(model, config.train), masked(config)
        parts = objective.parts(0)
        assert all(part.tokens.numel() <= most or len(part.tokens) == 1 for part in parts)
        n_tokens = objective.training.mask.sum(1)
        share = n_tokens[objective.rows(0)].mean() / n_tokens.mean()
        assert sum(part.share for part in parts) == pytest.approx(share)
        found.append((len(parts), train_step(state, objective), state))
    (one, whole, expected), *others = found
    assert one == 1
    for n_parts, event, state in others:
        assert n_parts > 4
        torch.testing.assert_close(event.loss, whole.loss, rtol=0, atol=1e-12)
        torch.testing.assert_close(event.grad_norm, whole.grad_norm, rtol=1e-12, atol=0)
        for a, b in zip(state.model.parameters(), expected.model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)


def test_a_batch_that_comes_in_parts_needs_the_memory_of_one_part(config: RunConfig) -> None:
    small = memory_bytes(override(config, n_sequences=1 << 20, batch_size=1 << 10))
    large = memory_bytes(override(config, n_sequences=1 << 20, batch_size=1 << 20))
    logits = 4 * config.model.d_vocab * ((1 << 20) - (1 << 10))
    assert large["activations"] - small["activations"] == logits
