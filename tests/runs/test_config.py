"""Configurations: validation, JSON, identifiers, overrides and presets."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tasks import tasks

from anchor_interp._util import schema
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import (
    bounded,
    canonical_json,
    check_fields,
    digest,
    from_dict,
    to_dict,
)
from anchor_interp.models.shapes import MODELS, InitConfig, ModelConfig
from anchor_interp.runs.config import RunConfig, TrainConfig, override, read_config, run_id
from anchor_interp.runs.presets import QUICKSTART, RUNS, preset
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


def test_integers_and_floats_of_equal_value_are_the_same_run() -> None:
    assert run_id(preset("tiny", weight_decay=1)) == run_id(preset("tiny", weight_decay=1.0))


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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TrainConfig(lr=0), r"lr is 0.0; expected more than 0"),
        (lambda: TrainConfig(lr=math.nan), "lr is nan; expected a finite number"),
        (lambda: made(TrainConfig, lr="fast"), "lr is 'fast'; expected a finite number"),
        (lambda: TrainConfig(steps=0), "steps is 0; expected at least 1"),
        (lambda: made(TrainConfig, steps=1.5), "steps is 1.5; expected an integer"),
        (lambda: TrainConfig(steps=True), "steps is True; expected an integer"),
        (lambda: TrainConfig(warmup=1.1), "warmup is 1.1; expected at most 1"),
        (lambda: made(TrainConfig, precision="fp8"), "expected one of 'float32', 'bf16', 'tf32'"),
        (lambda: TrainConfig(clip=0), "clip is 0.0; expected more than 0"),
        (lambda: InitConfig(gamma=9), "gamma is 9.0; expected at most 4"),
        (lambda: ModelConfig(n_heads=0), "n_heads is 0; expected at least 1"),
        (lambda: made(ModelConfig, act_fn="gelo"), "did you mean 'gelu'"),
        (lambda: RunConfig(AnchorTask(), ModelConfig(d_vocab=100)), "need at least 110"),
        (lambda: RunConfig(AnchorTask(), ModelConfig(n_ctx=5)), "sequences have 9 tokens"),
        (lambda: RunConfig(AnchorTask(), schema=2), "schema is 2; this version"),
        (lambda: RunConfig(AnchorTask(), seed=-1), "seed is -1; expected at least 0"),
        (lambda: made(RunConfig, task=TINY), "task is RunConfig"),
        (lambda: preset("tinny"), "did you mean 'tiny'"),
        (lambda: preset("tiny", gama=1), "no field is called 'gama' .did you mean 'gamma'"),
        (lambda: preset("tiny", task="neurip"), "did you mean 'neurips'"),
        (lambda: from_dict(RunConfig, {}), "lacks the field 'task'"),
        (lambda: from_dict(RunConfig, []), "the top level is \\[\\]; expected an object"),
        (lambda: from_dict(RunConfig, {"task": {}, "x": 1}), "no field 'x'"),
        (
            lambda: from_dict(RunConfig, {"task": 3}),
            "^task is 3; expected an object with the fields anchors",
        ),
        (
            lambda: from_dict(RunConfig, {"task": {"anchors": [{"tokn": 1}]}}),
            r"task.anchors\[0\] has no field 'tokn' .did you mean 'token'",
        ),
        (
            lambda: from_dict(RunConfig, {"task": {"unseen": [[1, 2, 3]]}}),
            r"unseen\[0\] is \[1, 2, 3\]; expected a list of 2 items",
        ),
    ],
)
def test_wrong_values_are_refused_with_the_reason(
    build: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


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


def test_presets_have_the_papers_shapes() -> None:
    one, gpt = MODELS["paper-1head"], MODELS["paper-gpt2"]
    assert (one.n_layers, one.n_heads, one.d_model, one.d_head, one.d_mlp) == (2, 1, 400, 200, 1200)
    assert (one.act_fn, one.normalization, one.bias) == ("relu", "post", False)
    assert (gpt.n_layers, gpt.n_heads, gpt.d_model, gpt.d_head, gpt.d_mlp) == (
        10,
        10,
        640,
        64,
        1280,
    )
    assert (gpt.act_fn, gpt.normalization) == ("gelu", "pre")
    train = RUNS["paper-1head"].train
    assert train.lr == pytest.approx(2.5e-4)
    assert RUNS["paper-gpt2"].train.lr == pytest.approx(1.5e-4)
    epochs = train.steps * train.batch_size / train.n_sequences
    assert epochs == pytest.approx(210, abs=0.01)
    assert train.warmup_steps == pytest.approx(10 / 210 * train.steps, abs=1)
    assert set(QUICKSTART) <= set(RUNS)


def test_read_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(path)
    for text, message in (
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"task": {"length": 1}}', "length is 1"),
        (" " * (2 << 20), "too large"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_config(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="invalid start byte"):
        read_config(path)
    path.write_text(json.dumps(to_dict(TINY)))
    assert read_config(path) == TINY


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
