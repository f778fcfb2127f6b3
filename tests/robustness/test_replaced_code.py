"""Whatever a user puts into a model runs: no result mixes it with the library's own code."""

import contextlib
import copy
import functools
import gc
import pickle
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import FEW_KEYS, LAYOUTS, random_model, small_exact, with_offsets
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from versions import only_3

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.interventions import virtual_anchors
from anchor_interp.models import forward, replaced_code
from anchor_interp.models.decoding import generate
from anchor_interp.models.forward import last_logits, takes_fast_path
from anchor_interp.models.shapes import Normalization
from anchor_interp.models.transformer import build_model
from anchor_interp.runs import zoo
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import make_objective
from anchor_interp.sweeps.model_stack import Member, Stack
from anchor_interp.tasks.counterfactuals import contrast_pairs, interchange_pairs
from anchor_interp.tasks.sequences import aligned_sequences

Model = Any
Override = Callable[[Model, contextlib.ExitStack], object]
ROWS = torch.arange(45).view(5, 9) * 7 % 32


def halved(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **settings: function(*args, **settings) / 2


def put(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.enter_context(pytest.MonkeyPatch.context()).setattr(owner, name, value)


def activation(model: Model, _: Any) -> None:
    for block in model.blocks:
        block.mlp.act_fn = torch.tanh


def forward_of_the_model(model: Model, _: Any) -> None:
    original = model.forward

    def swapped(*args: Any, **settings: Any) -> Any:
        out = original(*args, **settings)
        return out.flip(-1) if settings.get("stop_at_layer") is None else out

    model.forward = swapped


def class_of_a_part(model: Model, _: Any) -> None:
    kind = type(model.blocks[0])
    body = {"forward": lambda self, *a, **k: kind.forward(self, *a, **k).flip(-1)}
    model.blocks[0].__class__ = type("Flipped", (kind,), body)


def method_of_a_class(model: Model, stack: contextlib.ExitStack) -> None:
    put(stack, kind := type(model.blocks[0].mlp), "forward", halved(kind.forward))


def method_of_a_base_class(model: Model, stack: contextlib.ExitStack) -> None:
    def call(part: nn.Module, *args: Any, **settings: Any) -> Any:
        out = original(part, *args, **settings)
        return out / 2 if part is model.blocks[0].mlp else out

    original = nn.Module.__call__
    put(stack, nn.Module, "__call__", call)


def method_replaced_before_the_import(model: Model, stack: contextlib.ExitStack) -> None:
    method_of_a_class(model, stack)
    put(stack, replaced_code, "_LIBRARY", [(now, dict(now)) for now, _ in replaced_code._LIBRARY])
    setattr(model, replaced_code._SNAPSHOT, None)


def function_of_a_module(model: Model, stack: contextlib.ExitStack) -> None:
    module = sys.modules[type(model.blocks[0].mlp).__module__]
    put(stack, module, "batch_addmm", halved(vars(module)["batch_addmm"]))


class Halving(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        return out / 2 if func is F.linear else out


def global_hook(model: Model, stack: contextlib.ExitStack) -> None:
    def hook(part: nn.Module, _: Any, out: Tensor) -> Any:
        return out / 2 if part is model.blocks[0].mlp else None

    stack.callback(nn.modules.module.register_module_forward_hook(hook).remove)


def global_hook_before(model: Model, stack: contextlib.ExitStack) -> None:
    def hook(part: nn.Module, given: Any) -> Any:
        return (given[0] / 2 - 1,) if part is model.blocks[0].mlp else None

    stack.callback(nn.modules.module.register_module_forward_pre_hook(hook).remove)


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


class Rough(Tensor):
    """A tensor that torch multiplies in another way."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return out / 2 if func is F.linear else out


def kind_of_a_parameter(model: Model, _: Any) -> None:
    attn = model.blocks[0].attn
    attn.W_O = nn.Parameter(attn.W_O.detach().as_subclass(Rough))


def settings_of_a_part(model: Model, _: Any) -> None:
    attn = model.blocks[0].attn
    attn.cfg = copy.copy(attn.cfg)
    attn.cfg.attention_dir = "bidirectional"


ONLY_3: dict[str, Override] = {
    "function_of_a_module": function_of_a_module,
    "number_that_masks": lambda m, _: m.blocks[0].attn.IGNORE.zero_(),
    "direction": lambda m, _: setattr(m.blocks[0].attn, "_attention_dir_override", "bidirectional"),
    "settings_of_a_part": settings_of_a_part,
}
"""What TransformerLens 3 alone calls or reads."""

OVERRIDES: dict[str, Override] = ONLY_3 | {
    each.__name__: each for each in (
        activation, forward_of_the_model, class_of_a_part, method_of_a_class,
        method_of_a_base_class, method_replaced_before_the_import, global_hook, global_hook_before,
        kind_of_a_parameter,
    )
} | {
    "forward_of_a_hook_point":
        lambda m, _: setattr(m.blocks[0].hook_resid_mid, "forward", lambda x: x / 2 - 1),
    "hook_point": lambda m, _: setattr(m.blocks[1], "hook_mlp_out", nn.Tanh()),
    "layer_norm_in_a_hook_points_place":
        lambda m, _: setattr(m.blocks[0], "hook_attn_out", copy.deepcopy(m.blocks[0].ln1)),
    "function_of_torch": lambda _, stack: put(stack, F, "linear", halved(F.linear)),
    "mode_of_torch": lambda _, stack: stack.enter_context(Halving()),
    "hook_of_torch": lambda m, _: m.blocks[0].mlp.register_forward_hook(lambda _, __, out: out / 2),
    "permanent_hook":
        lambda m, _: m.add_hook("blocks.0.hook_mlp_out", lambda x, **_: x / 2, is_permanent=True),
    "parametrization":
        lambda m, _: parametrize.register_parametrization(m.blocks[0].mlp, "W_out", Halved()),
}  # fmt: skip

FEW = (activation, method_of_a_class, global_hook, kind_of_a_parameter)
"""One of each way to change a model: an attribute, a class, all of torch, a weight."""


def marks(name: str, *, fast: bool = False) -> list[pytest.MarkDecorator]:
    slow = not fast and OVERRIDES[name] not in FEW
    return [only_3] * (name in ONLY_3) + [pytest.mark.slow] * slow


EACH = [pytest.param(kind, id=name, marks=marks(name)) for name, kind in OVERRIDES.items()]
KINDS = [
    pytest.param(layout, kind, id=f"{layout}-{name}", marks=marks(name, fast=layout == "post"))
    for layout in LAYOUTS for name, kind in OVERRIDES.items()
]  # fmt: skip


@contextlib.contextmanager
def overridden(model: Model, kind: Override) -> Iterator[Model]:
    """A changed copy, after the fast path was taken for it as it was."""
    changed = copy.deepcopy(model)
    assert takes_fast_path(changed)
    with contextlib.ExitStack() as stack:
        kind(changed, stack)
        yield changed


def idle(model: Model) -> Any:
    """A hook that does nothing, but always makes the model's own forward pass run."""
    return model.hooks([("blocks.1.hook_resid_post", lambda x, **_: x)])


@pytest.mark.parametrize(("layout", "kind"), KINDS)
@pytest.mark.usefixtures("no_gradients")
def test_logits_are_those_of_the_changed_model(layout: Normalization, kind: Override) -> None:
    model = with_offsets(random_model(layout, n_layers=2))
    before = model(ROWS)[:, -1]
    torch.testing.assert_close(last_logits(model, ROWS), before, rtol=0, atol=1e-11)
    with overridden(model, kind) as changed:
        whole = changed(ROWS)
        assert not torch.allclose(whole[:, -1], before)  # the change does something
        torch.testing.assert_close(last_logits(changed, ROWS), whole[:, -1], rtol=0, atol=1e-11)
        examples = ai.Examples(ROWS.numpy(), at=np.array([3, 4, 5, 6, 7]))
        answered = whole[range(5), [3, 4, 5, 6, 7]]
        torch.testing.assert_close(last_logits(changed, examples), answered, rtol=0, atol=1e-11)
        best = [(int(answer),) for answer in whole[:, -1].argmax(-1)]
        assert generate(changed, ROWS.tolist(), end=None, most=1) == best


CONTRAST = contrast_pairs(FEW_KEYS, "key", 8, seed=0)
EXCHANGE = interchange_pairs(FEW_KEYS, 16, seed=0)
ALIGNED = aligned_sequences(FEW_KEYS, 2, 12, seed=0)


def patched(model: Model) -> Any:
    metric = ai.logit_difference(*CONTRAST)
    found = ai.patch(model, *CONTRAST, ai.site_grid(model, ["resid_mid"]), metric)
    logits = model(torch.from_numpy(CONTRAST.clean.tokens).long())[:, -1]
    np.testing.assert_allclose(found.clean, metric(logits), rtol=1e-9, atol=1e-9)
    return found.clean, found.corrupted, found.values


def exchanged(model: Model) -> Any:
    found = ai.interchange(model, EXCHANGE, ai.Site("resid_pre", 1, "key"))
    return found.untouched, found.base, found.counterfactual, found.cross_entropy, found.answers


def pruned(model: Model) -> Any:
    bench = ai.EdgeAblation(model, ALIGNED, parts="heads and MLPs")
    log_probs = model(torch.from_numpy(ALIGNED.tokens).long())[:, -1].log_softmax(-1)
    np.testing.assert_allclose(bench.full[2], log_probs.amax(-1).mean(), rtol=1e-9)
    return bench.full, bench.nothing, ai.prune(bench, tolerance=0.5, quiet=True).edges


def attributed(model: Model) -> Any:
    found = ai.attribute_logits(model, ROWS).logits
    np.testing.assert_allclose(found.sum(0), model(ROWS)[:, -1], atol=1e-6)
    return found


INSTRUMENTS = (patched, exchanged, pruned, attributed)


def outcome(instrument: Callable[[Model], Any], model: Model) -> Any:
    """What an instrument says of a model; a refusal counts as its words."""
    try:
        return instrument(model)
    except ConfigError as refusal:
        return str(refusal)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected), (found, expected)
    if isinstance(found, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(found, np.ndarray | float):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    else:
        assert found == expected


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.usefixtures("no_gradients")
def test_every_instrument_is_of_the_changed_model(kind: Override) -> None:
    with overridden(with_offsets(random_model("pre", n_layers=2)), kind) as changed:
        found = [outcome(instrument, changed) for instrument in INSTRUMENTS]
        with idle(changed):
            expected = [outcome(instrument, changed) for instrument in INSTRUMENTS]
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.usefixtures("no_gradients")
def test_an_evaluation_is_of_the_changed_model(kind: Override) -> None:
    with overridden(small_exact("inferential", "pre", torch.float64), kind) as changed:
        found = ai.evaluate(changed, FEW_KEYS, n=1)
        with idle(changed):
            expected = ai.evaluate(changed, FEW_KEYS, n=1)
    assert to_dict(found) == to_dict(expected)


OF_THE_PROGRAM = (
    method_of_a_class, method_replaced_before_the_import, OVERRIDES["function_of_torch"],
    OVERRIDES["mode_of_torch"], global_hook,
)  # fmt: skip
"""What also changes the models that a training makes."""


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        (method_of_a_class, "scan"),
        (global_hook, "batch"),
        *((k, "anchors") for k in OF_THE_PROGRAM),
    ],
)
def test_training_is_of_the_changed_model(kind: Override, task: str, short: RunConfig) -> None:
    """Loss and gradient are those of the model's own forward pass."""
    cpu = torch.device("cpu")
    few = {"batch_size": 8, "n_sequences": 50, "d_model": 16, "d_head": 8, "d_mlp": 24}
    config = ai.preset("scan", **few) if task == "scan" else short
    state, objective = TrainState.fresh(config, cpu), make_objective(config, cpu)
    model: Any = state.model
    batch: Any = objective.parts(0)[0]
    with contextlib.ExitStack() as stack:
        before = objective.loss(copy.deepcopy(model), batch)
        kind(model, stack)
        logits = model(batch.tokens)
        logits = logits.flatten(0, 1)[batch.places] if task == "scan" else logits[:, -1]
        loss = batch.share * F.cross_entropy(logits, batch.targets)
        assert not torch.allclose(loss, before)
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        if task == "batch":
            (event,) = Stack([Member(config, state, objective.training)], together=True).advance(1)
        else:
            event = train_step(state, objective)
    torch.testing.assert_close(event.loss, loss.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(event.grad_norm, norm, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.usefixtures("no_gradients")
def test_states_of_virtual_anchors_go_on_in_the_changed_model(kind: Override) -> None:
    task = ai.TASKS["complexity-control"]
    parts = {(1, 2): 1, (2, 1): 1, (2, 2): -1}
    with overridden(with_offsets(random_model("pre", n_layers=2)), kind) as changed:
        found = virtual_anchors._States(changed, task, [*parts], 5, 0)
        with idle(changed):
            expected = virtual_anchors._States(changed, task, [*parts], 5, 0)
            logits = [expected.composed(hook, parts) for hook in expected.hooks]
        for hook, one in zip(found.hooks, logits, strict=True):
            torch.testing.assert_close(found.composed(hook, parts), one, rtol=0, atol=1e-9)


def test_a_setting_that_names_another_activation_is_found() -> None:
    model = random_model("pre")
    model.cfg.act_fn = "gelu" if model.cfg.act_fn == "relu" else "relu"
    torch.testing.assert_close(last_logits(model, ROWS), model(ROWS)[:, -1], rtol=0, atol=1e-11)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each way to logits was taken, and both were compared."""
    counts: Counter[str] = Counter()

    def counting(name: str) -> None:
        original = vars(forward)[name]

        def counted(*args: Any, **settings: Any) -> Any:
            counts[name] += 1
            return original(*args, **settings)

        monkeypatch.setattr(forward, name, counted)

    for name in ("fast_last_logits", "fast_logits", "_agrees"):
        counting(name)
    return counts


def test_all_specimens_take_the_fast_path(passes: Counter[str]) -> None:
    names = zoo.names()
    for name in names:
        model = ai.load(name).model
        last_logits(model, ROWS)
        last_logits(model, ROWS)
    n = len(names)
    assert passes == {"_agrees": n, "fast_logits": n, "fast_last_logits": 3 * n}
    assert n > 10


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gamma", [0.0, 1.5])
def test_rounding_is_no_override(layout: Normalization, dtype: torch.dtype, gamma: float) -> None:
    """Small and large weights, which amplify it, before any training."""
    shape = ai.ModelConfig(
        n_layers=6, n_heads=4, d_model=64, d_head=16, d_mlp=256, normalization=layout
    )
    assert takes_fast_path(build_model(shape, ai.InitConfig(gamma), seed=0, dtype=dtype))


def test_both_ways_are_compared_once_for_each_model(passes: Counter[str]) -> None:
    model = random_model("pre")
    for _ in range(3):
        last_logits(model, ROWS)
    with torch.no_grad():  # as training does
        model.unembed.W_U.mul_(2)
        model.blocks[0].attn.W_Q.data = torch.zeros_like(model.blocks[0].attn.W_Q)
    cast(Any, model).run_with_cache(ROWS)  # hooks come and go
    with idle(model):
        last_logits(model, ROWS)
    model.unembed.register_forward_hook(lambda *_: None).remove()
    last_logits(model, ROWS)
    assert passes["_agrees"] == 1
    last_logits(copy.deepcopy(model), ROWS)
    assert passes["_agrees"] == 2
    act_fn = model.blocks[0].mlp.act_fn
    model.blocks[0].mlp.act_fn = torch.tanh
    last_logits(model, ROWS)
    model.blocks[0].mlp.act_fn = act_fn
    last_logits(model, ROWS)
    assert passes["_agrees"] == 2
    model.blocks[0].attn.W_Q = nn.Parameter(model.blocks[0].attn.W_Q * 2)
    last_logits(model, ROWS)
    assert passes["_agrees"] == 3


def test_an_error_of_the_model_itself_is_raised() -> None:
    """The comparison of both ways is not a reason to take the other way."""
    model: Any = random_model("pre")

    def fails(*_args: Any) -> Tensor:
        raise RuntimeError("mine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "is_known", lambda _model: True)  # an override that no look sees
        model.blocks[0].mlp.forward = fails
        for _ in range(2):
            with pytest.raises(RuntimeError, match="mine"):
                last_logits(model, ROWS)


def test_what_changes_no_function_leaves_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Model = random_model("pre")
    model.remark = {"by": torch.ones(3)}
    model.blocks[0].scores = torch.ones(3)
    monkeypatch.setattr(type(model), "my_analysis", lambda _: 1, raising=False)
    monkeypatch.setattr(type(model.blocks[0]), "__doc__", "A block.")
    assert takes_fast_path(model)
    model.blocks[0].scores = torch.ones(4)
    with torch.device("cpu"):
        assert takes_fast_path(model)


def test_nothing_is_concluded_from_logits_that_are_not_finite(passes: Counter[str]) -> None:
    model = random_model("pre")
    with torch.no_grad():
        kept = model.unembed.W_U.clone()
        model.unembed.W_U[0, 0] = torch.nan
        assert takes_fast_path(model)
        model.unembed.W_U.copy_(kept)
    assert takes_fast_path(model)
    assert takes_fast_path(model)
    assert passes["_agrees"] == 2


def test_a_hook_of_its_own_does_not_count_where_a_part_is_watched() -> None:
    model = random_model("pre")
    handle = model.embed.register_forward_pre_hook(lambda *_: None)
    assert not takes_fast_path(model, model.embed)  # nobody may run a watched model to compare
    handle.remove()
    assert takes_fast_path(model)
    model.embed.register_forward_pre_hook(lambda *_: None)
    assert takes_fast_path(model, model.embed)
    assert not takes_fast_path(model)


def test_a_model_that_was_looked_at_is_freed() -> None:
    models: list[Model] = [random_model("pre"), random_model("post"), random_model("pre")]
    alive = [weakref.ref(model) for model in models]
    for model in models:
        last_logits(model, ROWS)
    models[0].add_hook("hook_embed", functools.partial(models[0].to_tokens), is_permanent=True)
    models[1].analysis = [models[1]]
    del model, models
    gc.collect()
    assert [each() for each in alive] == [None, None, None]


def test_a_model_that_was_looked_at_is_saved_as_before() -> None:
    model = random_model("pre")
    names = model.state_dict().keys()
    last_logits(model, ROWS)
    assert model.state_dict().keys() == names
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(last_logits(again, ROWS), last_logits(model, ROWS))
