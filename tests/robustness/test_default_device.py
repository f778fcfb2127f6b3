"""Another default device than the CPU: no tensor of the package lands there by accident."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, random_model

import anchor_interp as ai
from anchor_interp._util.schema import canonical_json
from anchor_interp.analysis.mask_leakage import mask_leakage
from anchor_interp.models.decoding import generate
from anchor_interp.models.matrix_complexity import gaussian_numbers

SOURCES = Path(ai.__file__).parent
MAKERS = {
    "arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
    "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
TASK = ai.load("tiny/inferential/1").config.anchor_task
PAIRS = ai.contrast_pairs(TASK, "key", 8, seed=0)


def test_every_tensor_that_is_made_names_its_device() -> None:
    unnamed = []
    for file in sorted(SOURCES.rglob("*.py")):
        if file.name == "hooked_transformer.py":
            continue  # modules, which are made on the default device as in PyTorch
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            made = ast.unparse(call.func).removeprefix("torch.")
            if made in MAKERS and "torch." in ast.unparse(call):
                named = {word.arg for word in call.keywords}
                unnamed += [] if "device" in named else [f"{file.name}: {ast.unparse(call)}"]
    assert unnamed == []


def _patched(run: ai.Run) -> Any:
    sites, metric = ai.site_grid(run.model, ["resid_post", "z"]), ai.logit_difference(*PAIRS)
    return ai.patch(run.model, *PAIRS, sites, metric).recovery()


def _path_patched(run: ai.Run) -> Any:
    moved = ai.Connection(ai.Site("resid_pre", 0, "key"), (ai.Site("v", 1, "key"),))
    return ai.path_patch(run.model, *PAIRS, [moved], ai.logit_difference(*PAIRS)).recovery()


def _masked(run: ai.Run) -> Any:
    sequences = ai.sample(TASK, "id", 5, seed=0)
    with ai.mask_position(run.model, sequences, "key", renormalise=True):
        return ai.last_logits(run.model, sequences).detach().numpy()


def _pruned(run: ai.Run) -> Any:
    aligned = ai.aligned_sequences(TASK, 2, 8, seed=0)
    circuit = ai.prune(ai.EdgeAblation(run.model, aligned))
    return ai.score_circuit(ai.EdgeAblation(run.model, aligned), circuit).faithfulness.accuracy


def _subspace(run: ai.Run) -> Any:
    pairs, site = ai.interchange_pairs(TASK, 10, seed=0), ai.Site("resid_post", 0, "first")
    found = ai.learn_subspace(run.model, pairs, site, 2, seed=0, steps=2)
    return ai.interchange(run.model, pairs, site, subspace=found).counterfactual, found.losses


def _written(_: ai.Run) -> Any:
    prompts = [[20, 1, 2], [30, 2]]
    return [generate(random_model(norm), prompts, end=None, most=2) for norm in ("pre", "post")]


MEASURES: dict[str, Callable[[ai.Run], Any]] = {
    "evaluate": lambda run: canonical_json(run.evaluate(n=5)),
    "answer map": lambda run: ai.answer_map(run, n=2).shares,
    "patch": _patched,
    "path patching": _path_patched,
    "masks": _masked,
    "mask leakage": lambda run: mask_leakage(
        run.model, TASK, ai.sample(TASK, "id", 3, seed=0), "first"
    ),
    "pruning": _pruned,
    "subspace": _subspace,
    "fingerprint": lambda _: canonical_json(
        ai.fingerprint_model(random_model("pre", n_layers=2), FEW_KEYS, quiet=True)
    ),
    "Gaussian matrices": lambda _: canonical_json(gaussian_numbers((6, 5))),
    "decoding": _written,
    "exact model": lambda _: ai.exact_model("lookup", FEW_KEYS).W_E.sum().item(),
}


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_the_same_with_the_default_device_meta(name: str) -> None:
    expected = MEASURES[name](ai.load("tiny/inferential/1"))
    with torch.device("meta"):
        found = MEASURES[name](ai.load("tiny/inferential/1"))
    np.testing.assert_equal(found, expected)


def test_training_is_the_same_with_the_default_device_meta(
    finished_run: ai.Run, tmp_path: Path
) -> None:
    with torch.device("meta"):
        again = ai.train(finished_run.config, tmp_path / "run", device="cpu", threads=1, quiet=True)
        assert again.steps == finished_run.steps
        saved = ai.load_transformer(again.export(tmp_path / "weights"))
    for step in finished_run.steps:
        digests = (run.folder.weights_digest(step) for run in (again, finished_run))
        assert len({*digests}) == 1
    assert torch.equal(saved.embed.W_E, finished_run.model.embed.W_E)
