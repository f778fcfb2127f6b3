"""Virtual anchors: the answers of models of a known mechanism."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, LAYOUTS, random_model, small_exact

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.fingerprint import seen_pairs_only
from anchor_interp.interventions import virtual_anchors as module
from anchor_interp.interventions.virtual_anchors import virtual_anchors
from anchor_interp.models.exact import Mechanism, Normalization
from anchor_interp.models.transformer import has_hooks
from questions.archived import arbitrary_task


@pytest.mark.parametrize(("mechanism", "layout"), [
    ("symmetric", "post"), ("inferential", "post"), ("inferential", "pre"), ("lookup", "pre"),
])  # fmt: skip
def test_virtual_anchors_of_a_table_get_trained_answers(
    mechanism: Mechanism, layout: Normalization
) -> None:
    """Nothing lies between the entries of a table: a sum of states is read as one of them."""
    with seen_pairs_only(model := small_exact(mechanism, layout), FEW_KEYS) as seen:
        assert virtual_anchors(model, seen, n=20).rule == 0
    assert not has_hooks(model)


def test_virtual_anchors_tell_trained_mechanisms_apart() -> None:
    rules = {}
    for name in ("inferential", "symmetric", "composite"):
        run = ai.load(f"tiny/{name}/1")
        rules[name] = virtual_anchors(run.model, run.config.anchor_task, n=40).rule
    assert rules["inferential"] > 0.4 > 0.25 > max(rules["symmetric"], rules["composite"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_composed_state_goes_on_as_in_a_whole_pass(layout: Normalization) -> None:
    """With a hook attached every layer is run, and the state replaced on the way."""
    task, model = ai.TASKS["complexity-control"], random_model(layout)
    known, parts = [(1, 1), (1, 2), (2, 1), (2, 2)], {(1, 2): 1, (2, 1): 1, (2, 2): -1}
    fast = module._States(model, task, known, 7, 0)
    model.hook_embed.register_forward_hook(lambda *_: None)
    slow = module._States(model, task, known, 7, 0)
    assert (fast._fast, slow._fast) == (True, False)
    other = random_model(layout)
    other.register_forward_hook(lambda *_: None)
    assert not module._States(other, task, known, 7, 0)._fast
    for hook in fast.hooks:
        torch.testing.assert_close(fast.composed(hook, parts), slow.composed(hook, parts))


def test_an_additive_model_answers_virtual_anchors_with_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A state that is key + a + b on one axis, and an MLP that answers with the number there."""
    task, model = ai.TASKS["complexity-control"], random_model()
    adds = {1: 5, 2: 1, 3: -2, 4: -8}

    def states(_: Any, rows: torch.Tensor, names: list[str]) -> dict[str, torch.Tensor]:
        anchors = torch.isin(rows, torch.tensor([*adds]))
        first = anchors.int().argmax(1)
        row = torch.arange(len(rows))
        total = rows[row, first - 1].double()
        for at in (first, first + 1):
            total += torch.tensor([adds[int(token)] for token in rows[row, at]])
        return {name: total[:, None, None].expand(-1, rows.shape[1], 1) for name in names}

    def run(_: Any, __: Any, replaced: list[Any], **___: Any) -> tuple[torch.Tensor, None]:
        numbers = replaced[0].value[:, -1, 0].long().clamp(0, 119)
        return torch.nn.functional.one_hot(numbers, 120).double(), None

    monkeypatch.setattr(module, "activations", states)
    monkeypatch.setattr(module, "takes_fast_path", lambda *_: False)
    monkeypatch.setattr(module, "replaced_run", run)
    assert virtual_anchors(model, task, n=10).rule == 1


@pytest.mark.parametrize("name", ["complexity-control", "neurips"])
def test_no_virtual_pair_adds_what_a_pair_of_the_task_adds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a pair would have its target. The exception of the NeurIPS task adds -6."""
    task, totals = ai.TASKS[name], set()

    def noted(states: Any, _: str, signs: dict[Any, int]) -> torch.Tensor:
        keys = np.zeros(1, np.int64)
        totals.add(sum(sign * int(task.composed(pair, keys)[0]) for pair, sign in signs.items()))
        return torch.zeros(len(states.keys), 120)

    monkeypatch.setattr(module._States, "composed", noted)
    virtual_anchors(random_model(), task, n=2)
    assert len(totals) > 5
    assert not totals & {int(task.target(pair, np.zeros(1, np.int64))[0]) for pair in task.pairs}


APART = replace(ai.TASKS["complexity-control"], unseen=((1, 2), (2, 1), (3, 4), (4, 3)))


@pytest.mark.parametrize(("task", "message"), [
    (arbitrary_task(0), "the task has no virtual anchors"),
    (APART, "the task has no virtual anchors"),
    (ai.TASKS["non-commuting"], "they need three anchors that add numbers"),
])  # fmt: skip
def test_tasks_without_virtual_anchors_are_refused(task: ai.AnchorTask, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        virtual_anchors(random_model(), task)
