"""The training loop: its schedule, equality with a plain loop, divergence, branches."""

import itertools
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anchor_interp._util.environment import limited_threads
from anchor_interp._util.errors import ConfigError
from anchor_interp.models.transformer import build_model
from anchor_interp.runs.config import RunConfig, TrainConfig, override, run_id
from anchor_interp.runs.loop import TrainState, fit, train_step
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.run import Run
from anchor_interp.runs.schedule import learning_rate, total_decay
from anchor_interp.runs.train import train
from anchor_interp.tasks.hashing import batch_indices
from anchor_interp.tasks.sequences import sample

CPU = torch.device("cpu")


def test_schedule_warms_up_and_follows_a_cosine() -> None:
    config = TrainConfig(steps=100, lr=1e-3, lr_start=1e-4, lr_end=1e-5, warmup=0.1)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4 + 9e-4 / 10)
    assert rates[9] == rates[10] == pytest.approx(1e-3)
    assert rates[55] == pytest.approx((1e-3 + 1e-5) / 2)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[-1] > 1e-5
    assert learning_rate(config, 100) == pytest.approx(1e-5)
    assert learning_rate(replace(config, warmup=0.0), 0) == config.lr


def test_total_decay_of_the_papers_schedules() -> None:
    """The sum of lr x wd is about 0.1 at wd 0.01, and 7 to 12 at wd 1.0."""
    for name in ("paper-1head", "paper-gpt2"):
        train = RUNS[name].train
        assert 0.07 < total_decay(train) < 0.13
        assert 7 < total_decay(override(RUNS[name], weight_decay=1.0).train) < 13


def test_total_decay_is_how_much_adamw_shrinks_an_idle_weight(short: RunConfig) -> None:
    """A weight without gradient shrinks by the product of 1 - lr wd, close to exp(-total)."""
    config = override(short, weight_decay=0.5, lr=1e-3, steps=60)
    state = TrainState.fresh(config, CPU)
    objective = make_objective(config, CPU)
    before = state.weights()["pos_embed.W_pos"][15].clone()  # position 15 never occurs
    fit(state, objective, until=60, on_event=lambda _s, _e: None)
    shrunk = float((state.weights()["pos_embed.W_pos"][15] / before).mean())
    assert shrunk == pytest.approx(math.exp(-total_decay(config.train)), rel=1e-3)


@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_training_equals_a_plain_loop_in_float64(short: RunConfig, normalization: str) -> None:
    config = override(short, normalization=normalization, weight_decay=0.1, steps=30, lr=3e-3)
    model = build_model(config.model, config.init, seed=config.seed, dtype=torch.float64)
    state, objective = TrainState(model, config.train), make_objective(config, CPU)
    fit(state, objective, until=30, on_event=lambda _s, _e: None)

    plain = build_model(config.model, config.init, seed=config.seed, dtype=torch.float64)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.1)
    data = sample(config.anchor_task, "train", config.train.n_sequences, seed=config.seed)
    tokens, targets = (torch.from_numpy(a).long() for a in (data.tokens, data.targets))
    for step in range(30):
        rows = batch_indices(step, config.train.batch_size, len(data), seed=config.seed)
        optimizer.param_groups[0]["lr"] = learning_rate(config.train, step)
        loss = F.cross_entropy(plain(tokens[rows])[:, -1], targets[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    for (name, a), b in zip(state.model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg=name)


def test_clipping_bounds_the_gradient_unless_it_is_off(short: RunConfig) -> None:
    for clip in (1e-6, None):
        config = override(short, clip=clip)
        state = TrainState.fresh(config, CPU)
        event = train_step(state, make_objective(config, CPU))
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        left = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))
        expected = event.grad_norm if clip is None else torch.tensor(clip)
        torch.testing.assert_close(left, expected, rtol=1e-4, atol=0)


def test_subnormal_numbers_are_zero_in_updates_on_one_thread_and_as_before_afterwards(
    short: RunConfig,
) -> None:
    state, objective, seen = TrainState.fresh(short, CPU), make_objective(short, CPU), []

    @dataclass
    class Watched:
        def parts(self, step: int) -> Any:
            return objective.parts(step)

        def loss(self, model: Any, part: Any) -> torch.Tensor:
            seen.append((torch.full((2,), 1e-39) * 0.5).sum().item())
            return objective.loss(model, part)

    for threads in (1, 2):
        with limited_threads(threads):
            train_step(state, Watched())
        seen.append((torch.full((2,), 1e-39) * 0.5).sum().item())
    assert seen[0] == 0
    assert seen[1:] == [pytest.approx(1e-39, rel=1e-5)] * 3


def test_bf16_trains(short: RunConfig) -> None:
    config = override(short, precision="bf16", steps=60, lr=3e-3)
    losses: list[float] = []
    state = TrainState.fresh(config, CPU)
    fit(
        state,
        make_objective(config, CPU),
        until=60,
        on_event=lambda _s, e: losses.append(e.loss.item()),
    )
    assert losses[-1] < losses[0] - 0.5
    assert all(p.dtype == torch.float32 for p in state.model.parameters())


def test_the_default_dtype_changes_nothing(
    short: RunConfig, finished_run: Run, tmp_path: Path
) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        run = train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = dict(finished_run.model.named_parameters())
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter, expected[name])
    assert run.evaluation == finished_run.evaluation


def test_a_branch_is_a_schedule_of_one_piece_and_changes_the_run_only_after_its_step(
    short: RunConfig,
) -> None:
    plain = override(short, weight_decay=0.01, steps=30)
    branch = override(plain, branch_step=20, branch_weight_decay=5.0, branch_lr=5e-4)
    schedule = override(plain, schedule=((20, 5e-4, 5.0),))

    def weights(config: RunConfig, until: int) -> dict[str, torch.Tensor]:
        state = TrainState.fresh(config, CPU)
        objective = make_objective(config, CPU)
        return fit(state, objective, until=until, on_event=lambda _s, _e: None).weights()

    for until, same in ((20, True), (21, False), (30, False)):
        one, two, three = (weights(config, until) for config in (plain, branch, schedule))
        assert all(torch.equal(one[name], two[name]) for name in one) == same
        assert all(torch.equal(two[name], three[name]) for name in two)
    for later in (branch.train, schedule.train):
        assert learning_rate(later, 20) == pytest.approx(learning_rate(plain.train, 20) / 2)
        assert later.rates(19) == (plain.train.lr, 0.01)
        assert later.rates(20) == (5e-4, 5.0)
    assert total_decay(branch.train) == total_decay(schedule.train)
    assert len({run_id(plain), run_id(branch), run_id(schedule)}) == 3


@pytest.mark.parametrize("changes", [
    {},
    {"lr_start": 1e-4, "lr_end": 1e-5},
    {"branch_step": 3, "branch_weight_decay": 0.7, "warmup": 0.1},
    {"branch_step": 61, "branch_lr": 2e-3, "lr_end": 1e-4, "warmup": 0.3},
    {"branch_step": 50, "branch_lr": 1e-5, "lr_start": 1e-4},
    {"branch_step": 99, "branch_lr": 2e-3, "branch_weight_decay": 0.0, "warmup": 1.0},
    {"schedule": ((1, 2e-3, 0.7), (40, 1e-5, 0.0), (61, 1e-3, 9.0)), "lr_end": 1e-6, "warmup": 0.5},
])  # fmt: skip
def test_total_decay_is_the_sum_over_the_schedule(changes: dict[str, Any]) -> None:
    config = replace(TrainConfig(steps=100, weight_decay=0.3), **changes)
    steps = [learning_rate(config, step) * config.rates(step)[1] for step in range(100)]
    for until in (0, 1, 40, 41, 75, 100):
        assert total_decay(config, until) == pytest.approx(sum(steps[:until]), rel=1e-9)
    assert total_decay(config) == total_decay(config, 100)


@pytest.mark.parametrize(("changes", "message"), [
    ({"branch_step": 10}, "branch_step is 10 and branch_lr, branch_weight_decay are"),
    ({"branch_lr": 1e-4}, "branch_step is None"),
    ({"branch_step": 100, "branch_lr": 1e-4}, "branch_step is 100; expected at most steps - 1"),
    ({"branch_step": 10, "branch_weight_decay": 999.0, "lr": 0.01},
     r"branch_weight_decay is 999; expected at most 1 / branch_lr"),
    ({"branch_step": 3, "branch_lr": 1e-6, "lr_start": 1e-5}, r"lr_start is 1e-05; .*branch_lr"),
    ({"branch_step": 10, "branch_lr": 1e-6, "lr_end": 1e-5}, r"lr_end is 1e-05; .*branch_lr"),
    ({"schedule": [[10, 1e-3, 1.0]], "branch_step": 10, "branch_lr": 1e-4},
     "branch_step is 10 beside train.schedule; make it a piece"),
    ({"schedule": [10, 1e-3, 1.0]}, r"schedule\[0\] is 10; expected a list of 3 items"),
    ({"schedule": [[10.5, 1e-3, 1.0]]}, r"schedule\[0\]\[0\] is 10.5; expected an integer"),
    ({"schedule": [[0, 1e-3, 1.0]]}, r"schedule\[0\].step is 0; expected more than 0"),
    ({"schedule": [[9, 1e-3, 1.0], [9, 1e-3, 0.1]]}, r"schedule\[1\].step is 9; .* more than 9"),
    ({"schedule": [[9, 1e-3, 1.0], [100, 1e-3, 0.1]]},
     r"schedule\[1\].step is 100; expected at most steps - 1 \(99\)"),
    ({"schedule": [[10, 0, 1.0]]}, r"schedule\[0\].lr is 0.0; expected more than 0"),
    ({"schedule": [[10, 11, 0.01]]}, r"schedule\[0\].lr is 11.0; expected at most 10"),
    ({"schedule": [[10, 1e-3, -1]]}, r"schedule\[0\].weight_decay is -1.0; expected at least 0"),
    ({"schedule": [[10, 1e-4, 1001]]}, r"schedule\[0\].weight_decay is 1001.0; .* at most 1000"),
    ({"schedule": [[10, 0.01, 999]]},
     r"schedule\[0\].weight_decay is 999; expected at most 1 / schedule\[0\].lr \(100\)"),
    ({"schedule": [[3, 1e-6, 1]], "lr_start": 1e-5}, r"lr_start is 1e-05; .*schedule\[0\].lr"),
    ({"schedule": [[10, 1e-6, 1]], "lr_end": 1e-5}, r"lr_end is 1e-05; .*schedule\[0\].lr"),
])  # fmt: skip
def test_impossible_branches_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        replace(TrainConfig(steps=100), **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [
    {"branch_step": 20, "branch_weight_decay": 5.0},
    {"schedule": ((14, 2e-3, 0.0), (20, 5e-4, 5.0), (24, 1e-3, 0.1))},
])  # fmt: skip
def test_a_branch_resumes_before_and_after_its_step(
    short: RunConfig, changes: dict[str, Any]
) -> None:
    config = override(short, steps=30, **changes)

    def fitted(state: TrainState, until: int) -> TrainState:
        return fit(state, make_objective(config, CPU), until=until, on_event=lambda _s, _e: None)

    whole = fitted(TrainState.fresh(config, CPU), 30).weights()
    for step in (15, 20, 25):
        before = fitted(TrainState.fresh(config, CPU), step)
        after = TrainState(before.model, config.train, step)
        after.load_optimizer(before.optimizer_tensors())
        resumed = fitted(after, 30).weights()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole), step


def test_training_needs_no_gradients_outside(short: RunConfig, tmp_path: Path) -> None:
    """Within inference_mode, which is stricter than no_grad."""
    config, weights = override(short, steps=3), []
    for context in (nullcontext, torch.inference_mode):
        with context():
            run = train(config, tmp_path / context.__name__, device="cpu", quiet=True)
        weights.append(run.folder.weights(3))
    expected, found = weights
    assert all(torch.equal(weight, expected[name]) for name, weight in found.items())
