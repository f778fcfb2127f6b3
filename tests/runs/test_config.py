"""Configurations: validation, JSON, identifiers, overrides and presets."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tasks import tasks

from anchor_interp._util import schema
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, canonical_json, check_fields, digest, from_dict
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.runs.config import RunConfig, TrainConfig, override, run_id
from anchor_interp.runs.presets import RUNS, preset
from anchor_interp.tasks.anchor import TASKS, AnchorTask

TINY = RUNS["tiny"]


def made(cls: Any, **fields: Any) -> object:
    """Build a class from fields that may have wrong types."""
    return cls(**fields)


@settings(max_examples=30)
@given(
    task=tasks(),
    gamma=st.floats(-1, 2),
    lr=st.floats(1e-6, 1),
    clip=st.none() | st.floats(0.1, 10),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_configuration_survives_json(
    task: AnchorTask, gamma: float, lr: float, clip: float | None, seed: int
) -> None:
    config = RunConfig(
        task, ModelConfig(d_vocab=256), InitConfig(gamma), TrainConfig(lr=lr, clip=clip), seed
    )
    again = from_dict(RunConfig, json.loads(canonical_json(config)))
    assert again == config
    assert run_id(again) == run_id(config)


def test_run_id_is_pinned_and_changes_with_every_field() -> None:
    """Another identifier would orphan every stored run."""
    assert run_id(TINY) == "54e1cb2b7629a65d"
    seen = {run_id(TINY)}
    for part in ("model", "init", "train"):
        value = getattr(TINY, part)
        for field in dataclasses.fields(value):
            changed = dataclasses.replace(TINY, **{part: _nudged(value, field.name)})
            seen.add(run_id(changed))
    seen |= {run_id(preset("tiny", task=name)) for name in TASKS}
    seen.add(run_id(preset("tiny", seed=1)))
    n_fields = sum(len(dataclasses.fields(getattr(TINY, p))) for p in ("model", "init", "train"))
    assert len(seen) == 1 + n_fields + len(TASKS) - 1 + 1  # one of the tasks is tiny's own


def _nudged(value: Any, name: str) -> Any:
    other = {
        "act_fn": "gelu",
        "normalization": "pre",
        "bias": True,
        "scheme": "released",
        "embed_d_in": "d_vocab",
        "weights": "uniform",
        "lr_start": 1e-4,
        "lr_end": 1e-4,
        "precision": "bf16",
        "log_every": 10,
        "eval_every": 220,
        "warmup": 0.06,
        "beta1": 0.8,
        "beta2": 0.99,
        "eps": 1e-7,
        "schedule": ((7, 1e-4, 0.3),),
    }
    if name.startswith("branch_"):
        own: Any = {"branch_lr": 1e-4} if name != "branch_weight_decay" else {name: 0.3}
        return dataclasses.replace(value, branch_step=7 + (name == "branch_step"), **own)
    found = getattr(value, name)
    changed = other[name] if name in other else 0.7 if found is None else found + 1
    return dataclasses.replace(value, **{name: changed})


def test_a_float_of_numpy_is_the_number_that_it_prints() -> None:
    """float32(0.7) is 0.699999988079071 in Python's floats."""
    for kind in (np.float16, np.float32, np.float64):
        made = preset("tiny", gamma=kind(0.7), lr=kind(0.001), steps=np.int32(300))
        assert run_id(made) == run_id(preset("tiny", gamma=0.7, lr=0.001, steps=300))
    assert preset("tiny", gamma=0.1 * 6).init.gamma == 0.6000000000000001  # as it was given


def test_a_field_added_later_leaves_identifiers_unchanged_at_its_default() -> None:
    @dataclasses.dataclass(frozen=True)
    class Old:
        a: int = bounded(1)

    @dataclasses.dataclass(frozen=True)
    class New:
        a: int = bounded(1)
        b: float = bounded(0.5, since=2)
        schema: int = 2

    assert digest(New()) == digest(Old())
    assert digest(New(b=0.6)) != digest(Old())


def test_field_names_are_unique_among_the_parts() -> None:
    names = [
        field.name
        for part in (TINY.task, TINY.model, TINY.init, TINY.train)
        for field in dataclasses.fields(part)
    ]
    assert len(names) == len(set(names))
    assert not {"task", "seed", "schema", "out", "device", "threads"} & set(names)


def test_override_changes_every_part() -> None:
    config = override(TINY, gamma=0.9, steps=7, n_layers=3, seed=5, split="every-position")
    assert config.task == AnchorTask(unseen=TINY.anchor_task.unseen, split="every-position")
    config = override(config, task=TASKS["neurips"])
    assert (config.init.gamma, config.train.steps, config.model.n_layers) == (0.9, 7, 3)
    assert (config.seed, config.task) == (5, TASKS["neurips"])


def test_the_papers_preset_trains_210_epochs_and_warms_up_for_10() -> None:
    train = RUNS["paper-1head"].train
    epochs = train.steps * train.batch_size / train.n_sequences
    assert epochs == pytest.approx(210, abs=0.01)
    assert train.warmup_steps == pytest.approx(10 / 210 * train.steps, abs=1)


def test_check_fields_covers_nested_containers() -> None:
    @dataclasses.dataclass(frozen=True)
    class Holder:
        shares: dict[str, float] = dataclasses.field(default_factory=dict)
        maybe: int | None = None
        either: int | str = 0

        def __post_init__(self) -> None:
            check_fields(self)

    assert Holder({"a": 1}).shares == {"a": 1.0}
    wrong: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: made(Holder, shares={"a": "x"}), r"shares\[a\] is 'x'"),
        (lambda: made(Holder, maybe=1.5), "maybe is 1.5; expected an integer or None"),
        (lambda: made(Holder, either=[]), "expected (an integer or a text|a text or an integer)"),
        (lambda: made(Holder, shares=3), "expected an object"),
    )
    for build, message in wrong:
        with pytest.raises(ConfigError, match=message):
            build()


def test_the_order_of_types_is_that_of_the_hint() -> None:
    """``int | float`` equals ``float | int``, and is hashed alike."""
    found = [schema._conform(3, hint, "n") for hint in (int | float, float | int)]
    assert [type(each) for each in found] == [int, float]
