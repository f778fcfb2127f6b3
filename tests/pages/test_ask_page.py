"""The page of models that answer: its forward pass against PyTorch, its controls in a browser."""

import copy
import dataclasses
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from watched_page import Watched

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.ask_data import Asked, shape_of, to_ask, weights_to_send
from anchor_interp.behaviour.answer_map import known_functions
from anchor_interp.behaviour.answer_map_numbers import AnswerMap
from anchor_interp.interventions.masks import mask_position
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.pages.answer_figures import WORDS
from anchor_interp.pages.ask_page import model_data, write_ask
from anchor_interp.pages.page import template_text
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import load
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.sequences import Sequences, sample

NAMES = ("tiny/memorizing/1", "tiny/symmetric/1", "tiny/inferential/1")
TASK = TASKS["complexity-control"]
COMPUTE = """([data, rows, hidden]) => {
  const model = unpack(data);
  return rows.map((tokens, row) => {
    const { logits, patterns } = forward(model, tokens, hidden[row]);
    return { logits: [...logits], patterns: patterns.map((edges) => [...edges]) };
  });
}"""


def known(name: str, model: HookedTransformer) -> Asked:
    """A model to ask whose map of answers is drawn at random."""
    names, _ = known_functions(TASK, TASK.pairs)
    shape = len(TASK.pairs), len(TASK.keys), TASK.length - 2
    holding = np.random.default_rng(0).integers(0, len(names), shape)
    answers = AnswerMap(TASK.pairs, names, TASK.keys, 1, np.eye(len(names))[holding])
    config = ModelConfig(normalization="pre" if model.cfg.normalization_type == "LN" else "post")
    return Asked(name, TASK, shape_of(model, config), weights_to_send(model, TASK), answers)


@pytest.fixture(scope="module")
def calculator(browser: Any) -> Any:
    """A browser's page with the forward pass alone."""
    shown = browser.new_page()
    shown.add_script_tag(content=template_text("forward.js"))
    return shown


@pytest.mark.usefixtures("no_gradients")
def compare(calculator: Any, model: HookedTransformer, sequences: Sequences, hide: str) -> str:
    """Check the browser's answers, logits and attention; returns the precision of the weights."""
    data = model_data(known("model", model))
    away = {"key": 0, "second": 2}
    sequences = sequences[sequences.position < 6]  # at 6 the second anchor is read
    hidden = [[int(place) + away[hide]] if hide else [] for place in sequences.position]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(sequences), 200):  # a message to the browser has its limits
        part = slice(start, start + 200)
        rows += calculator.evaluate(COMPUTE, [data, sequences.tokens[part].tolist(), hidden[part]])
    logits = torch.tensor([row["logits"] for row in rows], dtype=torch.float64)
    expected = copy.deepcopy(model).double()
    if hide:
        with mask_position(expected, sequences, hide):
            right = expected(sequences.tensor)[:, -1]
    else:
        every, cache = expected.run_with_cache(sequences.tensor)
        right = cast(torch.Tensor, every)[:, -1]
        patterns = torch.stack([cache["pattern", i].mean(1) for i in range(model.cfg.n_layers)], 1)
        shown = torch.tensor([row["patterns"] for row in rows]).reshape(patterns.shape)
        torch.testing.assert_close(shown.double(), patterns, atol=2e-3, rtol=0)
    assert (logits.argmax(-1) == right.argmax(-1)).all()
    tolerance = 1e-2 if data["halves"] else 1e-4
    torch.testing.assert_close(logits, right, atol=tolerance, rtol=0)
    return "half" if data["halves"] else "single"


def unrounded(model: HookedTransformer) -> HookedTransformer:
    """A specimen, which is stored in half precision, with the digits that training would leave."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (changed := copy.deepcopy(model)).parameters():
            noise = torch.rand(weight.shape, generator=generator) - 0.5
            weight.mul_(1 + 2**-11 * noise)
    return changed


@pytest.mark.parametrize(
    ("name", "hide"), [*((name, "") for name in NAMES), (NAMES[1], "key"), (NAMES[2], "second")]
)
def test_the_browser_computes_what_pytorch_does(calculator: Any, name: str, hide: str) -> None:
    assert compare(calculator, load(name).model, sample(TASK, "ood", 16, seed=1), hide) == "half"


def test_weights_that_half_precision_would_change_are_single(calculator: Any) -> None:
    """Rounding the memorizing model moves logits by 0.15, the inferential one's by 0.006."""
    sequences = sample(TASK, "ood", 20, seed=1)
    precisions = [compare(calculator, unrounded(load(n).model), sequences, "") for n in NAMES[::2]]
    assert precisions == ["single", "half"]


def test_several_heads_biases_and_gelu_are_computed(calculator: Any) -> None:
    shape = ModelConfig(n_layers=3, n_heads=4, d_model=24, d_head=5, d_mlp=20, act_fn="gelu",
                        normalization="pre", bias=True)  # fmt: skip
    model = build_model(shape, InitConfig(gamma=0.3, scheme="released"), seed=0)
    compare(calculator, model, sample(TASK, "id", 20, seed=0), "")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # on a busy machine
@pytest.mark.parametrize("digits", ["stored", "trained"])
@pytest.mark.parametrize("name", NAMES)
def test_the_browser_answers_2000_sequences(calculator: Any, name: str, digits: str) -> None:
    model = load(name).model
    sequences = sample(TASK, "ood", 2_400, seed=2)
    sequences = sequences[sequences.position < 6][:2_000]
    assert len(sequences) == 2_000
    compare(calculator, model if digits == "stored" else unrounded(model), sequences, "")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = [known(f"<b>{name}</b>", load(name).model) for name in NAMES[1:]]
    path = write_ask(models, tmp_path_factory.mktemp("ask") / "ask.html")
    assert path.stat().st_size < 2 << 20  # a model takes less than 1 MiB
    return path


def test_a_browser_answers(browser: Any, page: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900}, color_scheme="dark")
    context.set_default_timeout(120_000)  # milliseconds
    shown = context.new_page()
    watched = Watched(shown)
    shown.goto(page.as_uri())
    symmetric, inferential = shown.locator(".model").all()
    answer = '[data-part="answer"]'
    assert symmetric.locator(answer).inner_text().replace("\xa0", " ") == "92, as for (2, 4): x - 7"
    assert inferential.locator(answer).inner_text() == "89, the rule"
    assert symmetric.locator('[data-part="swapped"]').inner_text() == "92"
    assert symmetric.locator('[data-part="rule"]').inner_text() == "89"
    assert symmetric.locator('[data-part="other-row"]').is_hidden()  # unseen too
    route = symmetric.locator("svg").get_attribute("aria-label")
    assert "layer 1, position 8 (92) reads position 2 (99)" in route

    key = shown.get_by_label("key x")
    key.focus()
    shown.keyboard.press("ArrowLeft")
    shown.get_by_role("combobox", name="second anchor").select_option("1")  # (4, 1): x - 3, seen
    said = shown.get_by_role("status").inner_text()
    assert said.startswith("(4, 1) at 98: ")
    assert said.count("answers 95") == 2
    model = known("", load(NAMES[1]).model)
    cell = model.answers.holding[TASK.pairs.index((4, 1)), -2, 2]
    name = model.answers.functions[cell]
    label = inferential.locator("canvas").get_attribute("aria-label").replace("\xa0", " ")
    assert label.endswith(f"in this sequence's cell: {WORDS.get(name, name)}.")

    shown.get_by_label("the key", exact=True).check()
    assert shown.locator("#tokens .cut").inner_text().split() == ["98", "key,", "hidden"]
    assert "position 2 (98)" not in symmetric.locator("svg").get_attribute("aria-label")
    shown.get_by_label("place of the key").fill("6")
    assert shown.get_by_role("checkbox", name="the second anchor").is_disabled()
    box = inferential.locator("canvas").bounding_box()
    inferential.locator("canvas").click(position={"x": 2, "y": box["height"] / 2})
    assert [key.input_value(), shown.get_by_label("place of the key").input_value()] == ["20", "3"]
    shown.get_by_role("button", name="Other noise").click()
    for width in (390, 1280):
        shown.set_viewport_size({"width": width, "height": 900})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.complaints == []
    assert watched.requests == [page.as_uri()]
    context.close()


def test_models_that_the_page_cannot_compute_are_refused() -> None:
    exact, run = load("exact/symmetric"), load(NAMES[1])
    large = dataclasses.replace(run, config=override(run.config, d_model=2_000, d_mlp=2_000))
    other = load("tiny/neurips-symmetric/1")
    scan = dataclasses.replace(run, config=preset("scan"))
    for runs, words in (
        ({"e": exact}, "e is not a trained transformer"),
        ({"l": large}, "l has .* parameters; the page computes at most 4,000,000"),
        ({"a": run, "b": other}, "b has another task than a"),
        ({"s": scan}, "ask needs a task with anchors; the task scan has none"),
    ):
        with pytest.raises(ConfigError, match=words):
            to_ask(runs)
