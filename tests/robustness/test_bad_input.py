"""Every kind of bad input is one ConfigError that names what was found and what is allowed.

The command line's tests cover whole commands; ``fuzz.py`` searches for kinds that are missing here.
"""

import contextlib
import inspect
import json
import math
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

import anchor_interp as ai
from anchor_interp._util.environment import limited_threads, resolve_device
from anchor_interp._util.schema import to_dict
from anchor_interp.analysis.fingerprint_numbers import NUMBERS, Fingerprint
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.behaviour.phase import Thresholds
from anchor_interp.models.shapes import MODELS
from anchor_interp.models.transformer import empty_model
from anchor_interp.runs.config import memory_bytes, override, read_config
from anchor_interp.runs.presets import RUNS
from anchor_interp.tasks.anchor import reasoning_complexity
from anchor_interp.tasks.catalog import named_task
from anchor_interp.tasks.sequences import draw

TASK = ai.TASKS["neurips"]
KEYS = TASK.keys
ROWS = np.arange(18).reshape(2, 9)
LABELLED = ai.Examples(ROWS, labels={"a": [1, 2]})
TWO, Z = (ROWS, ROWS + 1), ai.Site("z", 0)
Build = Callable[[], object]


def given(function: Any, *args: Any, **kwargs: Any) -> object:
    """Call with arguments that may have wrong types, and enter what is a context manager."""
    result: object = function(*args, **kwargs)
    if isinstance(result, contextlib.AbstractContextManager):
        with result:  # masks check their arguments when they are entered
            pass
    return result


@pytest.fixture(autouse=True)
def _no_shape_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users run without shape checks, which would refuse wrong types first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def tiny_model() -> Any:
    return ai.build_model(ai.ModelConfig(d_model=8, d_head=4, d_mlp=8), ai.InitConfig(), seed=0)


@torch.inference_mode()
def inference_model() -> Any:
    return tiny_model()


NOTHING: dict[str, Any] = dict.fromkeys((*NUMBERS, "run_id", "step"))
MEASURED = Fingerprint(**NOTHING, seed=0)


def patched(sites: Sequence[ai.Site], n: int = 3) -> object:
    """Patch three examples, with a metric of the first n of five."""
    pairs = ai.contrast_pairs(TASK, "key", 5, seed=0)
    clean, corrupted = (each[:3] for each in pairs)
    metric = ai.logit_difference(*(each[:n] for each in pairs))
    return ai.patch(tiny_model(), clean, corrupted, sites, metric)


def with_value(**changes: Any) -> Build:
    return lambda: ai.preset("tiny", **changes)


FIELDS: list[tuple[Build, str]] = [
    (with_value(n_sequences=0), "train.n_sequences is 0; expected at least 1"),
    (with_value(n_sequences=True), "train.n_sequences is True; expected an integer"),
    (with_value(n_sequences="many"), "train.n_sequences is 'many'; expected an integer"),
    (with_value(n_sequences=1e5), "train.n_sequences is 100000.0; expected an integer"),
    (with_value(n_sequences=1 << 40), "train.n_sequences is 1099511627776; expected at most"),
    (with_value(steps=10**5_000), "train.steps is an integer of 16610 bits; expected at most"),
    (with_value(steps=None), "train.steps is None; expected an integer"),
    (with_value(steps=np.float32(3)), "train.steps is 3.0; expected an integer"),
    (with_value(steps=np.mean), "train.steps is <function mean"),
    (with_value(batch_size=100_001), "batch_size is 100001; expected at most n_sequences (100000)"),
    (with_value(lr=math.nan), "train.lr is nan; expected a finite number"),
    (with_value(lr=math.inf), "train.lr is inf; expected a finite number"),
    (with_value(lr=10**400), "train.lr is an integer of 1329 bits; expected a finite number"),
    (with_value(lr=-1), "train.lr is -1.0; expected more than 0"),
    (with_value(lr=torch.tensor(1)), "train.lr is tensor(1); expected a finite number"),
    (with_value(lr_end=0.1), "train.lr_end is 0.1; expected at most lr (0.001)"),
    (with_value(lr_start=0.1), "train.lr_start is 0.1; expected at most lr (0.001)"),
    (with_value(warmup=1.5), "train.warmup is 1.5; expected at most 1"),
    (with_value(weight_decay=-1), "train.weight_decay is -1.0; expected at least 0"),
    (with_value(lr=0.1, weight_decay=20), "train.weight_decay is 20; expected at most 1 / lr (10)"),
    (with_value(beta1=1), "train.beta1 is 1.0; expected at most 0.999999"),
    (with_value(eps=0), "train.eps is 0.0; expected at least 1e-30"),
    (with_value(clip=-1), "train.clip is -1.0; expected more than 0"),
    (with_value(clip="no"), "train.clip is 'no'; expected a finite number or None"),
    (with_value(precision="fp16"), "train.precision is 'fp16'; expected one of 'float32'"),
    (with_value(log_every=0), "train.log_every is 0; expected at least 1"),
    (with_value(checkpoint_every=10**30), "train.checkpoint_every is 1000000000000"),
    (with_value(n_heads=0), "model.n_heads is 0; expected at least 1"),
    (with_value(bias=1), "model.bias is 1; expected true or false"),
    (with_value(act_fn="rleu"), "'gelu' (did you mean 'relu'?)"),
    (with_value(act_fn="x" * 10_000_000), "model.act_fn is 'xxx"),
    (with_value(act_fn="re\nlu\x1b[2J\ud800"), r"model.act_fn is 're\nlu\x1b[2J\ud800'"),
    (with_value(n_ctx=1 << 20), "model.n_ctx is 1048576; expected at most 8192"),
    (with_value(n_ctx=5), "model.n_ctx is 5; the task's sequences have 9 tokens"),
    (with_value(d_vocab=100), "model.d_vocab is 100; the task's tokens and targets need at least"),
    (with_value(gamma=5), "init.gamma is 5.0; expected at most 4"),
    (with_value(gamma=-3), "init.gamma is -3.0; expected at least -1"),
    (with_value(gamma=np.float32(-1.1)), "init.gamma is -1.1; expected at least -1"),
    (with_value(gamma_qk="auto"), "init.gamma_qk is 'auto'; expected a finite number or None"),
    (with_value(seed=-1), "seed is -1; expected at least 0"),
    (with_value(seed=1 << 63), "seed is 9223372036854775808; expected at most"),
    (with_value(key_max=300), "task.key_max is 300; expected at most 255"),
    (with_value(key_min=99), "task.key_max is 99; expected more than 99"),
    (with_value(length=2), "task.length is 2; expected at least 3"),
    (with_value(split="keys"), "task.split is 'keys'; expected one of 'key', 'every-position'"),
    (with_value(unseen=[(1, 2, 3)]), "task.unseen[0] is (1, 2, 3); expected a list of 2 items"),
    (with_value(unseen=[("3", 4)]), "task.unseen[0][0] is '3'; expected an integer"),
    (with_value(unseen=3), "task.unseen is 3; expected a list of a list of 2 items"),
    (with_value(anchors=()), "the number of task.anchors is 0; expected at least 1"),
    (with_value(anchors=(1, 2)), "task.anchors[0] is 1; expected an Anchor"),
    (lambda: ai.Anchor(-1), "anchor.token is -1; expected at least 0"),
    (
        lambda: given(ai.Anchor, 1, "x + 5"),
        "anchor.function is 'x + 5'; expected an Affine or a Tab",
    ),
    (lambda: ai.Affine(mul=10**9), "affine.mul is 1000000000; expected at most 1000000"),
    (lambda: ai.Table(0, ()), "the number of table.values is 0; expected at least 1"),
    (lambda: ai.Table(0, (1, 256)), "the largest of table.values is 256; expected at most 255"),
    (lambda: given(ai.Override, 3, ai.Affine()), "override.pair is 3; expected a list of 2 items"),
    (lambda: ai.RunConfig(TASK, schema=2), "schema is 2; this version of anchor-interp reads"),
    (lambda: Thresholds(ood=2), "thresholds.ood is 2.0; expected at most 1"),
]

ARGUMENTS: list[tuple[Build, str]] = [
    (with_value(gama=1), "no field is called 'gama' (did you mean 'gamma'?); known: task, seed"),
    (with_value(task="neurip"), "no task is called 'neurip' (did you mean 'neurips'?)"),
    (with_value(task=3), "task is 3; expected a Task"),
    (lambda: given(ai.preset, 3), "no preset is called 3; known: tiny"),
    (lambda: ai.preset("x" * 10_000_000), "no preset is called 'xxx"),
    (lambda: given(named_task, ["neurips"]), "no task is called ['neurips'] (did you mean"),
    (lambda: given(override, "tiny", steps=3), "config is 'tiny'; expected a RunConfig"),
    (lambda: given(ai.run_id, TASK), "config is AnchorTask("),
    (lambda: given(ai.RunConfig, "neurips"), "task is 'neurips'; expected a Task"),
    (lambda: given(reasoning_complexity, "3"), "reasoning complexity is '3'; expected an integer"),
    (lambda: TASK.role((1, 9)), "the pair (1, 9) is not made of the anchors (1, 2, 3, 4)"),
    (lambda: given(TASK.composed, "34", KEYS), "pair is '34'; expected a list of 2 items"),
    (lambda: given(TASK.composed, (3, 4), "23"), "x is '23'; expected an array of integers"),
    (lambda: given(TASK.target, (3, 4), KEYS / 2), "expected an array of integers"),
    (lambda: given(TASK.symmetric, 4, KEYS), "pair is 4; expected a list of 2 items"),
    (lambda: given(TASK.cells, "tset"), "keys is 'tset'; expected one of 'train', 'test', 'all'"),
    (lambda: given(TASK.function, "1"), "'1' is not an anchor; this task has (1, 2, 3, 4)"),
    (lambda: given(ai.sample, "neurips", "id", 1, seed=0), "task is 'neurips'; expected a Task"),
    (lambda: given(ai.sample, TASK, "odd", 1, seed=0), "split is 'odd'; expected one of 'train'"),
    (lambda: given(ai.sample, TASK, "id", 1.5, seed=0), "n is 1.5; expected an integer"),
    (lambda: given(ai.sample, TASK, "id", 10**12, seed=0), "n is 1000000000000; expected at most"),
    (lambda: given(ai.sample, TASK, "id", 1, seed="a"), "seed is 'a'; expected an integer"),
    (lambda: given(draw, TASK, (3, 4), "all", 1, seed=0, stream="x"), "pairs[0] is 3"),
    (lambda: given(draw, TASK, [(3, 4)], "some", 1, seed=0, stream="x"), "keys is 'some'"),
    (
        lambda: given(ai.build_model, "tiny", ai.InitConfig(), seed=0),
        "model is 'tiny'; expected a Model",
    ),
    (
        lambda: given(ai.build_model, ai.ModelConfig(), 0.5, seed=0),
        "init is 0.5; expected an InitConfig",
    ),
    (
        lambda: given(ai.build_model, ai.ModelConfig(), ai.InitConfig(), seed=0, device="gpu"),
        "device is 'gpu', which cannot be used here",
    ),
    (
        lambda: given(ai.build_model, ai.ModelConfig(), ai.InitConfig(), seed=0, dtype=torch.int64),
        "dtype is torch.int64; expected one of torch.float32",
    ),
    (
        lambda: given(ai.last_logits, "model", None),
        "model is 'model'; expected a HookedTransformer",
    ),
    (lambda: given(ai.last_logits, tiny_model(), [[1, 2]]), "tokens is [[1, 2]]"),
    (lambda: given(ai.last_logits, tiny_model(), torch.zeros(2, 3)), "torch.float32"),
    (
        lambda: given(ai.last_logits, tiny_model(), torch.zeros(1, 99, dtype=torch.int64)),
        "tokens has 99 positions; expected 1 to 20",
    ),
    (
        lambda: given(ai.contrast_pairs, ai.Examples(ROWS), "key", 5, seed=0),
        "expected an AnchorTask: examples go to ai.patch in pairs",
    ),
    (lambda: given(ai.patch, "model", None, None, [], None), "model is 'model'"),
    (lambda: given(ai.attribute_logits, 3, None), "model is 3; expected a HookedTransformer"),
    (
        lambda: given(ai.edge, tiny_model(), 9, layer=5, query=0, key=0),
        "layer is 5; expected at mo",
    ),
    (lambda: given(ai.kl_divergence, 3, None), "model is 3; expected a HookedTransformer"),
    (
        lambda: given(ai.edge_attribution, 3, None, None, None),
        "model is 3; expected a HookedTransformer",
    ),
    (lambda: given(ai.along, "sweep", 3), "measure is 3; expected a function of a model"),
    (lambda: given(ai.score_circuit, 3, None), "bench is 3; expected an EdgeAblation"),
    (lambda: given(ai.prune, 3), "bench is 3; expected an EdgeAblation"),
    (lambda: given(ai.ablate_each, 3), "bench is 3; expected an EdgeAblation"),
    (
        lambda: given(ai.bridge, 3),
        "model is int (wrapped, in a bridge already, or of another library)",
    ),
    (lambda: given(ai.interchange, tiny_model(), 3, None), "of anchors) is 3; expected"),
    (
        lambda: given(ai.learn_subspace, tiny_model(), None, None, 4, seed=0, lr=-1),
        "lr is -1.0; expected more than 0",
    ),
    (lambda: given(ai.mask_edges, "model", None), "model is 'model'; expected a HookedTransformer"),
    (lambda: given(ai.mask_position, tiny_model(), None, "key"), "tokens has shape () and dtype"),
    (lambda: given(ai.mask_position, tiny_model(), [[1]], "first"), "is called 'first'; known: l"),
    (lambda: given(ai.mask_position, tiny_model(), [1], "second"), "tokens has shape (1,) and"),
    (lambda: given(ai.exact_model, "symetric", TASK), "mechanism is 'symetric'"),
    (lambda: given(ai.analyze_model, 3, TASK), "model is 3; expected a HookedTransformer"),
    (lambda: given(ai.analyze_model, tiny_model(), "neurips"), "task is 'neurips'; expected"),
    (lambda: given(ai.analyze, tiny_model()), "path is a model; analyze_model analyses one"),
    (lambda: given(ai.effect, 3, of="a", on="b"), "table is 3; expected a sweep folder"),
    (lambda: given(ai.answer_map, 3, TASK), "model is 3; expected a HookedTransformer"),
    (lambda: given(ai.evaluate, 3, TASK), "expected a HookedTransformer or a TransformerBridge"),
    (lambda: ai.contrast_pairs(TASK, "key", 0, seed=0), "n is 0; expected at least 1"),
    (lambda: given(ai.fingerprint_model, tiny_model(), TASK, training=3), "training is 3"),
    (lambda: given(ai.Dataset.of, [[1, 2]], [3]), "3 is not a list of tokens; put an"),
    (lambda: given(ai.aligned_sequences, TASK, 9, 3, seed=0), "no all key stands at position 9"),
    (lambda: given(ai.initialize, "tiny"), "module is 'tiny'; expected a Module"),
    (
        lambda: given(ai.initialize, tiny_model(), "0.8"),
        "gamma is '0.8'; expected an InitConfig or a",
    ),
    (
        lambda: given(ai.initialize, tiny_model(), math.nan),
        "gamma is nan; expected an InitConfig or",
    ),
    (lambda: given(ai.initialize, tiny_model(), seed=0.5), "seed is 0.5; expected an integer"),
    (
        lambda: given(ai.initialize, tiny_model(), biases="one"),
        "biases is 'one'; expected one of 'ze",
    ),
    (lambda: given(ai.decay_groups, "tiny", 0.1), "module is 'tiny'; expected a Module"),
    (lambda: given(ai.decay_groups, tiny_model(), -1), "weight_decay is -1.0; expected at least 0"),
    (lambda: given(ai.weight_measures, "tiny"), "module is 'tiny'; expected a Module"),
    (lambda: given(ai.weight_measures, tiny_model(), 3), "matrices is 3; expected a text"),
    (lambda: given(ai.watch, "tiny"), "trainer is 'tiny'; expected a Trainer"),
    (lambda: given(ai.complexity, "tiny"), "model is 'tiny'; expected a HookedTransformer"),
    (lambda: given(ai.interchange_pairs, TASK, 0, seed=0), "n is 0; expected at least 1"),
    (lambda: given(ai.learning_coefficient, 3), "run is 3; expected a Run"),
    (lambda: given(ai.load_transformer, ""), "the path of the weights is ''; expected a path"),
    (lambda: given(ai.interchange_pairs, 3, 5, seed=0), "task is 3; expected an AnchorTask"),
    (lambda: given(ai.save_transformer, 3, "x.safetensors"), "model is 3; expected a HookedTransf"),
    (lambda: given(ai.route_scores, tiny_model(), ai.Examples(ROWS)), "expected an AnchorTask"),
    (lambda: given(ai.answer_map, tiny_model(), ai.Examples(ROWS)), "expected an AnchorTask"),
    (lambda: given(ai.interchange_pairs, ai.Examples(ROWS), 5, seed=0), "expected an AnchorTask"),
    (lambda: given(ai.site_grid, tiny_model(), ["zz"]), "names[0] is 'zz'; expected one of"),
    (
        lambda: given(ai.logit_difference, *[ai.sample(TASK, "id", 3, seed=0)] * 2),
        "right and wrong are the same in all 3 examples",
    ),
    (lambda: given(ai.log_prob, ai.Examples(ROWS)), "the examples have no answers"),
    (lambda: given(ai.Examples, ROWS, padding=0.5), "padding is 0.5; expected an integer or None"),
    (lambda: given(ai.Examples, ROWS, attention_mask="x"), "attention_mask is 'x'; expected"),
    (lambda: given(ai.Examples, ROWS, attention_mask=torch.full((2, 9), 0.5)), "torch.float32"),
    (lambda: given(ai.Examples, ROWS, attention_mask=np.eye(2, 9)[:, 1:]), "shape (2, 8)"),
    (lambda: patched([ai.Site("z", 0, 9)]), "position is 9 in row 0, which has 9 tokens from"),
    (
        lambda: given(tiny_model().blocks[0], torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)),
        "a post-LayerNorm block takes no shortformer_pos_embed",
    ),
    (lambda: given(ai.rank, "x"), "answers has shape () and dtype <U1; expected integers [n]"),
    (lambda: given(ai.path_patch, tiny_model(), *TWO, [Z], ai.log_prob([1, 2])), "connections[0]"),
    (
        lambda: given(ai.attribution_patch, tiny_model(), *TWO, [Z], ai.log_prob([1, 2]), steps=0),
        "steps is 0; expected at least 1",
    ),
    (
        lambda: given(ai.attribution_patch, tiny_model(), *TWO, [], ai.log_prob([1, 2])),
        "the number of sites is 0; expected at least 1",
    ),
    (
        lambda: given(ai.attribution_patch, inference_model(), *TWO, [Z], ai.log_prob([1, 2])),
        "the model was made within torch.inference_mode; load it outside",
    ),
    (
        lambda: given(
            ai.exchange_label, ai.Examples(ROWS), ai.Examples(ROWS), "colour", lambda a, _b: a
        ),
        "no label of the examples is called 'colour'",
    ),
    (
        lambda: given(ai.exchange_label, LABELLED, LABELLED, "a", lambda labels: labels["a"]),
        "the examples have no answers; give answers=answer(labels)",
    ),
    (lambda: given(ai.mask_position, tiny_model(), ai.Examples(ROWS), 9), "position is 9 in row 0"),
    (
        lambda: ai.EdgeAblation(tiny_model(), ai.aligned_sequences(TASK, 2, 3, seed=0)[:0]),
        "tokens has shape (0, 9) and dtype uint8; expected integers [n, pos], at least one",
    ),
    (lambda: given(ai.Site, "hook_z", 0), "site.activation is 'hook_z'"),
    (lambda: given(patched, ai.Site("resid_pre", 0)), "sites is Site(activation='resid_pre'"),
    (lambda: patched([ai.Site("resid_pre", 0)], n=5), "the metric is of 5 examples, 3 are patched"),
    (lambda: given(ai.analyze, 3, step=None), "the path of the run is 3; expected a path"),
    (lambda: given(ai.analyze, "tiny/inferential/1", step="x"), "step is 'x'; expected an integer"),
    (lambda: given(ai.fingerprint, 3), "the path of the run is 3; expected a path"),
    (lambda: given(ai.verdict, "tiny"), "fingerprint is 'tiny'; expected a Fingerprint"),
    (lambda: given(ai.verdict, None), "fingerprint is None; expected a Fingerprint"),
    (lambda: given(ai.verdict, MEASURED, {"memory": 1}), "lines[memory] is 1; expected a Line"),
    (lambda: given(ai.evaluate, None, TASK), "model is None; expected a HookedTransformer"),
    (lambda: given(ai.evaluate, tiny_model(), "neurips"), "task is 'neurips'; expected a Task"),
    (lambda: given(ai.evaluate, tiny_model(), TASK, n="9"), "n is '9'; expected an integer"),
    (lambda: given(ai.evaluate, tiny_model(), TASK, n=0), "n is 0; expected at least 1"),
    (
        lambda: given(ai.evaluate, tiny_model(), TASK, n=1, seed=-1),
        "seed is -1; expected at least 0",
    ),
    (lambda: given(ai.evaluate, tiny_model(), TASK, training=3), "training is 3"),
    (lambda: given(predict, tiny_model(), [[1]]), "tokens is [[1]]; expected an array of integers"),
    (lambda: given(ai.classify, {"id": 1}), "evaluation is {'id': 1}; expected an Evaluation"),
    (lambda: given(ai.train, TASK, "x"), "config is AnchorTask("),
    (lambda: given(ai.train, RUNS["tiny"], 3), "out is 3; expected a path"),
    (lambda: ai.train(RUNS["tiny"], ""), "out is ''; expected a path"),
    (lambda: ai.train(RUNS["tiny"], "a\0b"), r"out is 'a\x00b'; expected a path"),
    (
        lambda: given(ai.train, RUNS["tiny"], "x", threads="all"),
        "threads is 'all'; expected an integ",
    ),
    (lambda: given(ai.load, None), "the path of the run is None; expected a path"),
    (lambda: given(read_config, 0), "the path of the configuration is 0; expected a path"),
    (lambda: resolve_device("cuda:99"), "device is 'cuda:99', which cannot be used here"),
    (lambda: given(resolve_device, 3), "device is 3; expected a text or a device"),
    (lambda: given(limited_threads, 1.5), "threads is 1.5; expected an integer"),
]


@pytest.mark.parametrize(("build", "message"), FIELDS + ARGUMENTS)
def test_a_wrong_value_is_refused_on_one_line_with_what_was_expected(
    build: Build, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ai.ConfigError) as caught:
        build()
    text = str(caught.value)
    assert message in text
    assert text.isprintable()
    assert len(text) < 1_000
    assert caught.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def changed(**changes: Any) -> str:
    return json.dumps(to_dict(RUNS["tiny"]) | changes)


TEXTS: list[tuple[str | bytes, str]] = [
    ("", "not valid JSON: Expecting value"),
    ("{", "not valid JSON: Expecting property name"),
    ("[" * 100_000, "not valid JSON: "),
    (changed().encode("utf-16"), "invalid start byte"),
    (b"\xff", "invalid start byte"),
    (" " * (2 << 20), "is too large; expected at most 1,048,576 bytes"),
    ("9" * 5_000, "not valid JSON: Exceeds the limit"),
    (changed(seed=math.nan), "NaN is not a finite number"),
    (changed().replace('"seed": 0', '"seed": -Infinity'), "-Infinity is not a finite number"),
    (changed().replace('"seed": 0', '"seed": 1e999'), "1e999 is not a finite number"),
    (changed().replace('"seed": 0', '"seed": 0, "seed": 1'), "the name 'seed' occurs 2 times"),
    ("[]", "the top level is []; expected an object with the fields task, model, init, train"),
    ("3", "the top level is 3; expected an object"),
    ("{}", "the top level lacks the field 'task'"),
    (changed(tasks={}), "has no field 'tasks' (did you mean 'task'?); known: task, model"),
    (changed(schema=2, engine="ray"), "schema is 2; this version of anchor-interp reads schema 1"),
    (changed(schema="1"), "schema is '1'; this version"),
    (changed(seed="0"), "seed is '0'; expected an integer"),
    (changed(train=None), "train is None; expected an object with the fields n_sequences"),
    (changed(train={"learning_rate": 1}), "train has no field 'learning_rate'"),
    (changed(train={"step": 1}), "train has no field 'step' (did you mean 'steps'?)"),
    (changed(train={"steps": 0}), "train.steps is 0; expected at least 1"),
    (changed(task={"anchors": [{"tokn": 1}]}), "task.anchors[0] has no field 'tokn'"),
    (changed(task={"anchors": {}}), "task.anchors is {}; expected a list of an Anchor"),
    (changed(task={"anchors": [{"token": 1, "function": {"add": 1.5}}]}), ".function.add is 1.5"),
    (changed(task={"anchors": [{"token": 1, "function": {"values": [1]}}]}), ".function lacks"),
    (changed(task={"unseen": [[1, 9]]}), "the pair (1, 9) is not made of the anchors"),
    (changed(**{"x" * 100_000: 1}), "the top level has no field 'xxx"),
    (changed(**{"\ud800\n": 1}), r"the top level has no field '\ud800\n'"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS)
def test_a_wrong_configuration_file_is_refused_on_one_line_with_its_name(
    text: str | bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ai.ConfigError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1_000


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (_socket, "No such device"),
        (lambda path: path.symlink_to("/dev/zero"), "too large"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (_huge, "too large"),
    ],
)
def test_files_that_are_no_configuration_are_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make(Path("config.json"))
    with pytest.raises(ai.ConfigError, match=message):
        read_config("config.json")


@pytest.mark.parametrize("path", ["a\0b", "", "\ud800"])
def test_impossible_paths_are_refused(path: str) -> None:
    with pytest.raises(ai.ConfigError, match="expected a path"):
        read_config(path)
    with pytest.raises(ai.ConfigError, match="expected a path"):
        ai.load(path)


def test_messages_with_odd_paths_stay_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(ai.AnchorInterpError, match=r"two\\nlines\\x1b\[2J is not a run folder"):
        ai.load(tmp_path / "two\nlines\x1b[2J")
    with pytest.raises(ai.ConfigError, match="File name too long"):
        read_config(tmp_path / ("x" * 300))


def test_a_byte_order_mark_and_numpy_numbers_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(RUNS["tiny"])), encoding="utf-8-sig")
    assert read_config(path) == RUNS["tiny"]
    numbers: Any = {"steps": np.int64(5), "lr": np.float64(0.1), "weight_decay": np.int8(1)}
    given = ai.TrainConfig(**numbers)
    assert given == ai.TrainConfig(steps=5, lr=0.1, weight_decay=1.0)
    assert given.steps.__class__ is int
    keys: Any = np.array([253], np.uint8)
    assert TASK.composed((1, 2), keys).tolist() == [259]  # bytes would wrap around


def test_changes_that_need_each_other_may_come_together() -> None:
    wide = ai.AnchorTask(key_max=220)
    config = override(RUNS["tiny"], task=wide, d_vocab=256)
    assert (config.task, config.model.d_vocab) == (wide, 256)


def test_the_memory_estimate_counts_every_parameter() -> None:
    for model in (*MODELS.values(), ai.ModelConfig(n_layers=3, n_heads=2, bias=True, d_vocab=110)):
        with torch.device("meta"):
            names = dict(empty_model(model).named_parameters())
        assert model.n_parameters == sum(parameter.numel() for parameter in names.values())
    for config in RUNS.values():
        assert sum(memory_bytes(config).values()) < 16 << 30


def test_every_public_function_has_a_row_above() -> None:
    text = Path(__file__).read_text()
    functions = {
        name for name in ai.__all__ if inspect.isfunction(inspect.unwrap(getattr(ai, name)))
    }
    assert {"build_model", "classify", "evaluate", "load", "preset", "sample", "train"} <= functions
    for name in functions:
        assert f"given(ai.{name}, " in text, name
