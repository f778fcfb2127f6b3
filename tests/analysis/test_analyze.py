"""All analyses of one model: on known mechanisms, and the page that shows them."""

import html
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick_analysis import quick_parts
from safetensors.torch import save_file
from small_models import FEW_KEYS, lens_model
from watched_page import Watched

from anchor_interp._util import progress
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import canonical_json, to_dict
from anchor_interp.analysis.analyze import analyze, analyze_model
from anchor_interp.analysis.development import Development
from anchor_interp.analysis.results import Analysis
from anchor_interp.cli.main import main
from anchor_interp.models.complexity import complexity
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model, model_of_weights
from anchor_interp.models.transformer_lens import VERSION_3
from anchor_interp.pages.analysis_page import render_analysis, write_analysis
from anchor_interp.runs.export import load_transformer
from anchor_interp.runs.run import Run


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_parts(patch)
        yield


@pytest.fixture(scope="module")
def analysed(quick: None) -> tuple[Analysis, str]:
    """The analysis of a trained model, and its progress."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as shown:
        patch.setattr(progress, "LATE_SECONDS", -1)
        patch.setattr(progress, "PLAIN_SECONDS", 0)
        return analyze("tiny/symmetric/1"), shown.getvalue()


@pytest.fixture(scope="module")
def specimen(analysed: tuple[Analysis, str]) -> Analysis:
    return analysed[0]


def test_each_part_is_reported(analysed: tuple[Analysis, str]) -> None:
    lines = [re.split("  +", line)[:2] for line in analysed[1].splitlines()]
    steps = dict.fromkeys(step for step, _ in lines)
    assert list(steps) == [f"analyze tiny/symmetric/1: step {i}/20" for i in range(21)]
    doing = list(dict.fromkeys(what for _, what in lines))
    assert len(doing) == 21
    assert doing[0] == "fingerprint"
    assert doing[-3:] == ["circuit, scores", "circuit, rivals", "done"]


def test_the_parts_of_a_symmetric_specimen(specimen: Analysis) -> None:
    assert specimen.left_out == ()
    assert specimen.verdict is not None
    assert specimen.verdict.phase == "symmetric"
    m: Any = specimen.mechanism
    assert m.routes.symmetric > 0.5 > m.routes.inferential
    assert [entry.contrast for entry in m.patches] == ["key", "first", "second"]
    assert specimen.complexity.matrices[0].at_init is not None
    assert m.scores.n_edges == 54
    assert m.scores.faithfulness.accuracy > 0.9
    assert m.edges.curve.logit_difference[-1] == pytest.approx(1)
    assert m.edges.circuit.size == m.edges.curve.sizes[m.edges.curve.smallest or 0]
    # no state at the first anchor knows the key's value
    assert max(entry.counterfactual for entry in m.interchanges) < 0.2
    alike = {entry.state: entry.contrast.difference for entry in m.similarities}
    assert abs(alike["V"]) < 0.2
    assert alike["logits"] > 0.5
    hidden = [entry.leak for entry in m.leaks if entry.paths == "all" and entry.renormalise]
    assert max(hidden) < 1e-4
    told = json.loads(json.dumps(to_dict(specimen)))
    assert told["schema"] == 5
    assert told["mechanism"]["routes"]["symmetric"] == m.routes.symmetric


def test_the_page_shows_the_evidence_and_the_rule_that_decides(specimen: Analysis) -> None:
    assert specimen.verdict is not None
    text = render_analysis(specimen, [])
    shown = text[text.index("Why this phase by mechanism") :].partition("</table>")[0]
    names = re.findall(r'<th scope="row" class="wraps">([^<]+)<', shown)
    assert names == [each.number.title for each in specimen.verdict.evidence]
    rules = text[text.index("The rules</summary>") :].partition("</table>")[0]
    rows = re.findall(r'<tr( class="unasked")?><th scope="row"', rules)
    assert [i for i, grey in enumerate(rows) if not grey] == [specimen.verdict.rule]


@pytest.mark.usefixtures("quick")
def test_a_run_with_checkpoints_has_a_development(finished_run: Run) -> None:
    found = analyze(finished_run, step=finished_run.steps[1], max_seconds=1e-9)  # no mechanism
    assert found.step == finished_run.steps[1]
    assert found.development is not None
    assert found.development.steps == tuple(finished_run.steps)
    last = complexity(finished_run.model).matrices
    for measure in ("stable_rank", "effective_rank", "condensation"):
        of_steps = getattr(found.development, measure)
        assert len(of_steps) == len(finished_run.steps)
        assert of_steps[-1] == tuple(getattr(entry, measure) for entry in last)
    assert found.name == finished_run.folder.path.name


@pytest.mark.usefixtures("quick", "undrawn")
def test_the_page_of_a_model_of_one_layer_tells_what_is_left_out() -> None:
    shape = ModelConfig(n_layers=1, n_heads=2, d_model=16, d_head=8, d_mlp=16, normalization="pre")
    model = build_model(shape, InitConfig(), seed=0)
    found = analyze_model(model, FEW_KEYS, name="mine")
    assert found.mechanism is not None
    assert found.mechanism.flow is not None
    assert found.left_out
    ranks = ((8.0,), (2.0,))
    development = Development((0, 10), ("W_Q",), ranks, ranks, ((None,), (None,)))  # one neuron
    page = render_analysis(replace(found, development=development))
    assert '"condensation":[[null],[null]]' in canonical_json(development)
    for name in ("development", "development-effective", "development-condensation"):
        assert f'figure class="{name}"' in page
    for reason in found.left_out:
        assert html.escape(reason, quote=False)[:40] in html.unescape(page) + page


@pytest.fixture
def language_model() -> HookedTransformer:
    if not VERSION_3:
        pytest.skip("only TransformerLens 3 has such a model")
    return lens_model(n_heads=3, d_model=24, d_head=8, d_mlp=96, d_vocab=300, n_ctx=32)


def test_only_the_complexity_of_weights_without_a_task_is_measured(
    language_model: HookedTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "language.safetensors"
    save_file({k: v.contiguous() for k, v in language_model.state_dict().items()}, file)
    assert main(["analyze", str(file), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "give a task, or examples to ai.analyze_model" in said.err
    told = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert told["mechanism"] is None
    direct = analyze_model(language_model).complexity
    assert [m["stable_rank"] for m in told["complexity"]["matrices"]] == pytest.approx(
        [m.stable_rank for m in direct.matrices]
    )
    assert len(told["complexity"]["heads"]) == 2 * 2 * 3
    for path, task, code, message in (
        (file, "neurips", 1, "weights without their configuration: write it with ai.save_transf"),
        (file, "nuerips", 2, "no task is called 'nuerips' (did you mean 'neurips'?)"),
        (file, "scan-jump", 2, "analyze needs a task with anchors; the task scan has none"),
        (file, str(tmp_path), 2, "no JSON file and no task is called"),
        ("exact/lookup", "neurips", 2, "task is for a file of weights"),
    ):
        asked = ["analyze", str(path), "--task", task, "--out", str(tmp_path / "no")]
        assert main(asked) == code
        assert message in capsys.readouterr().err
    assert len(list((tmp_path / "out" / "figures").iterdir())) == 2 * 3


def test_files_that_do_not_hold_a_transformer_are_refused(
    language_model: HookedTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {k: v.contiguous() for k, v in language_model.state_dict().items()}
    file = tmp_path / "odd.safetensors"
    lost, table = "blocks.1.mlp.W_in", weights["embed.W_E"]
    for change, message in (
        ({lost: None}, f"the weights have no '{lost}'"),
        ({lost: table}, f"the weights do not fit: size mismatch for {lost}"),
        ({"blocks.0.attn.W_Q": table}, "expected a HookedTransformer's state dict"),
    ):
        changed = {k: v for k, v in (weights | change).items() if v is not None}
        save_file({k: v.clone() for k, v in changed.items()}, file)
        with pytest.raises(StoreError, match=re.escape(message)):
            load_transformer(file)
    file.write_bytes(b"nonsense")
    assert main(["analyze", str(file), "--out", str(tmp_path / "out")]) == 1
    assert "cannot be read as weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="no 'blocks"):
        model_of_weights({})


def test_an_output_that_cannot_be_used_is_refused(
    specimen: Analysis, finished_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "file"
    taken.write_text("mine")
    with pytest.raises(StoreError, match="is a file; name a folder"):
        write_analysis(specimen, taken)
    assert main(["analyze", "nowhere", "--out", str(taken)]) == 1  # before anything is read
    assert "is a file; name a folder" in capsys.readouterr().err
    assert taken.read_text() == "mine"
    with pytest.raises(StoreError):
        write_analysis(specimen, finished_run.folder.path)
    assert main(["analyze", "tiny/symetric/1", "--out", str(tmp_path / "x")]) == 1
    assert main(["analyze", "exact/symmetric", "--step", "4", "--out", str(tmp_path / "x")]) == 1
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def written(specimen: Analysis, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The page and the files beside it."""
    return write_analysis(specimen, tmp_path_factory.mktemp("analysis") / "made")


def test_in_a_browser(browser: Any, written: list[Path]) -> None:
    page = written[0]
    assert all(path.stat().st_size for path in written)
    context = browser.new_context(viewport={"width": 390, "height": 900})
    context.set_default_timeout(120_000)  # milliseconds
    shown = context.new_page()
    watched = Watched(shown)
    shown.goto(page.as_uri())
    shown.locator(".view canvas").nth(3).wait_for()
    shown.wait_for_timeout(300)
    assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    boxes = shown.evaluate(
        """() => [...document.querySelectorAll('.picture svg, .view canvas')]
            .map(entry => entry.getBoundingClientRect()).map(box => [box.width, box.height])"""
    )
    figures = len([path for path in written if path.suffix == ".svg"])
    assert len(boxes) == figures + 4
    assert np.min(boxes) > 20
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(entry => entry.id)")
    assert len(ids) == len(set(ids))
    assert watched.complaints == []
    assert watched.requests == [page.as_uri()]
    context.close()
