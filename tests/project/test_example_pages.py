"""The examples without anchors: what their pages say and patching, against hooks written here."""

import html
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anchor_interp as ai
import own_task
from anchor_interp.analysis.parts import find_twins
from anchor_interp.tasks.examples import order_of

STEPS = {"induction": 200, "modular_addition": 150}
SCRIPTS = [pytest.param("induction", marks=pytest.mark.slow), "modular_addition"]


@pytest.fixture(scope="module", params=SCRIPTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a script leaves behind after a short training, and its page."""
    path = Path(own_task.__file__).with_name(f"{request.param}.py")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    out = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TransformerLens's own class
        patched.setattr(sys, "argv", [str(path), str(out), str(STEPS[request.param])])
        names = runpy.run_path(str(path), run_name="__main__")
    examples = names["examples"]
    examples = examples[np.random.default_rng(0).permutation(len(examples))]
    return names["model"].eval(), examples, names["analysis"], out


@pytest.fixture(autouse=True)
def _no_gradients(no_gradients: None) -> None:
    """No test here trains."""


def answered(model: Any, examples: Any, hooks: Any = ()) -> Tensor:
    tokens = torch.from_numpy(examples.tokens.astype(np.int64))
    logits = model.run_with_hooks(tokens, fwd_hooks=list(hooks))
    read: Tensor = logits[range(len(tokens)), examples.at].double()
    return read


def page_of(out: Path) -> str:
    return html.unescape((out / "index.html").read_text(encoding="utf-8"))


def difference(logits: Tensor, right: np.ndarray, other: np.ndarray) -> np.ndarray:
    rows = range(len(logits))
    apart: np.ndarray = (logits[rows, right] - logits[rows, other]).numpy()
    return apart


def test_the_page_tells_how_often_the_model_is_right(made: Any) -> None:
    model, examples, analysis, out = made
    right = (answered(model, examples).argmax(-1).numpy() == examples.answers).mean()
    assert analysis.examples.accuracy == pytest.approx(right)
    page = page_of(out)
    assert f"patched: 100 of {len(examples)} examples" in page
    assert "this answer instead of the twin's" in page
    told = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
    assert f"answers {right:.2f} of the {len(examples)} rightly" in page
    assert told["examples"]["accuracy"] == pytest.approx(right)
    assert analysis.left_out == ()
    assert (analysis.examples.flow is None) == (model.cfg.n_layers > 1)  # too many edges


def in_order(examples: ai.Examples) -> ai.Examples:
    """The examples as an analysis takes them, whatever order they are given in."""
    found = examples[order_of(examples)[0]]
    return found[np.random.default_rng(0).permutation(len(found))]


def test_patching(made: Any) -> None:
    """Every site: the twin's run with one activation of the example's."""
    model, examples, analysis, out = made
    found = analysis.examples.patches
    inside = [(site.activation, site.layer) != ("resid_pre", 0) for site in found.sites]
    clean, corrupted, answers = find_twins(in_order(examples), seed=0)
    np.testing.assert_array_equal(clean.at, corrupted.at)
    right, other = answers.T
    assert all(right != other)
    _, cache = model.run_with_cache(torch.from_numpy(clean.tokens.astype(np.int64)))
    for site, values in zip(found.sites, found.values, strict=True):
        named = {**clean.places, "last": clean.at}
        columns = np.arange(clean.tokens.shape[1])
        at = np.any([columns == where[:, None] for where in named.values()], axis=0)
        if site.position != "other":
            at = ~(columns == named[site.position][:, None])

        def put(activation: Tensor, hook: Any, at: Any = ~at, head: Any = site.head) -> Tensor:
            part = slice(None) if head is None else head
            moved = activation.clone()
            if head is None:
                moved[torch.from_numpy(at)] = cache[hook.name][torch.from_numpy(at)]
            else:
                rows, places = np.nonzero(at)
                moved[rows, places, part] = cache[hook.name][rows, places, part]
            return moved

        logits = answered(model, corrupted, [(site.hook, put)])
        expected = difference(logits, right, other)
        np.testing.assert_allclose(values, expected, atol=1e-3, err_msg=str(site))
    full, none = (difference(answered(model, x), right, other) for x in (clean, corrupted))
    shares = (found.values.mean(1) - none.mean()) / (full - none).mean()
    np.testing.assert_allclose(found.recovery(), shares, atol=1e-3)
    best = found.sites[int(np.argmax(np.where(inside, shares, -np.inf)))]
    assert f"{shares[found.sites.index(best)]:.2f} at {best}" in page_of(out)
    assert -1 <= analysis.examples.agreement <= 1
