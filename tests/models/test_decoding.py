"""Greedy decoding: with and without a cache, against a hand-written loop, and bad input."""

import functools
from typing import Any

import pytest
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp.models import forward
from anchor_interp.models.decoding import generate
from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import HookedTransformer, build_model

END = 3
PROMPTS = [(1, 2), (5,), (7, 6, 5, 4, 2, 1), (9, 9, 9), (5, 8), (1,)]


def model_of(normalization: Normalization, n_layers: int = 3) -> HookedTransformer:
    shape = ModelConfig(
        n_layers=n_layers, n_heads=2, d_model=12, d_head=5, d_mlp=16, act_fn="gelu", bias=True,
        normalization=normalization, d_vocab=10, n_ctx=16,
    )  # fmt: skip
    # with these weights answers differ from prompt to prompt
    init = InitConfig(gamma=0.2, gamma_embed=-0.2, scheme="released")
    return build_model(shape, init, seed=3, dtype=torch.float64)


def by_hand(
    model: HookedTransformer, prompt: tuple[int, ...], most: int, end: int = END
) -> tuple[int, ...]:
    """One token after the other, one sequence at a time."""
    written: list[int] = []
    while len(written) < most and end not in written:
        logits = model(torch.tensor([[*prompt, *written]]))
        written.append(int(logits[0, -1].argmax()))
    return tuple(written)


@functools.cache
def continued(normalization: Normalization, n_layers: int) -> list[tuple[int, ...]]:
    """Eleven tokens by hand after every prompt: all answers begin like these."""
    model = model_of(normalization, n_layers)
    return [by_hand(model, prompt, 11, end=-1) for prompt in PROMPTS]


def cut(tokens: tuple[int, ...], most: int, end: int) -> tuple[int, ...]:
    found = tokens[:most]
    return found[: found.index(end) + 1] if end in found else found


@pytest.mark.parametrize(("normalization", "n_layers"), [("pre", 3), ("post", 3), ("post", 1)])
@pytest.mark.parametrize("cached", [True, False])
def test_answers_are_those_of_one_sequence_at_a_time(
    normalization: Normalization, n_layers: int, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "takes_fast_path", lambda _model: cached)
    model = model_of(normalization, n_layers)
    lengths = set()
    for most, end in ((1, END), (4, END), (11, 0), (11, 6)):
        expected = [cut(whole, most, end) for whole in continued(normalization, n_layers)]
        assert generate(model, PROMPTS, end=end, most=most) == expected
        lengths.add(tuple(map(len, expected)))
    assert len(set(expected)) > 3
    assert any(len(set(found)) > 1 for found in lengths)  # some ended, and the others went on


@pytest.mark.parametrize("cached", [True, False])
def test_an_answer_may_fill_the_context_whatever_prompts_are_beside_it(
    cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "takes_fast_path", lambda _model: cached)
    model = model_of("pre")
    prompts = [PROMPTS[2], PROMPTS[3], (2,) * 16]  # the last one has room for a single token
    expected = [by_hand(model, prompt, 17 - len(prompt)) for prompt in prompts]
    assert generate(model, prompts, end=END) == expected
    pairs = [*zip(prompts, expected, strict=True)]
    assert sum(len(prompt) + len(found) == 17 for prompt, found in pairs) > 1
    for prompt, found in pairs:
        assert generate(model, [prompt], end=END) == [found]
    assert generate(model, [], end=END) == []


def test_hooks_act_on_decoding() -> None:
    model = model_of("pre")
    expected = generate(model, PROMPTS, end=END, most=6)

    with model.hooks([("blocks.0.hook_attn_out", lambda value, **_: torch.zeros_like(value))]):
        assert generate(model, PROMPTS, end=END, most=6) != expected
        assert by_hand(model, PROMPTS[2], 6) == generate(model, PROMPTS, end=END, most=6)[2]
    assert generate(model, PROMPTS, end=END, most=6) == expected


@pytest.mark.parametrize(
    ("prompts", "most", "message"),
    [
        ([(1,), ()], 2, "prompt 1 is empty"),
        ([(1,), (10,)], 2, "tokens run from 1 to 10; expected 0 to 9"),
        ([(1,) * 10], 8, r"10 tokens and 8 more take 17 positions; the model has 16"),
        ([(1,) * 17], None, r"17 tokens and 1 more take 17 positions; the model has 16"),
        ([(1,)], 0, "most is 0; expected at least 1"),
        ([(1,), ("a",)], 2, "prompts are not lists of tokens: 'str' object"),
        ([(1.5,)], 2, "prompts are not lists of tokens: 'float' object"),
        ([3], 2, "prompts are not lists of tokens: 'int' object is not iterable"),
    ],
)
def test_bad_prompts_are_refused(prompts: Any, most: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(model_of("post"), prompts, end=END, most=most)


def test_logits_that_are_not_finite_are_refused() -> None:
    model = model_of("pre")
    with torch.no_grad():
        model.unembed.b_U[2] = torch.nan
    with pytest.raises(ConfigError, match="the model's logits are not finite"):
        generate(model, PROMPTS, end=END, most=2)
