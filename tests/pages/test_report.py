"""The report: what it says, that it is safe, and that a browser shows it without errors."""

import dataclasses
import html
import itertools
import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from watched_page import Watched

from anchor_interp._util.errors import StoreError
from anchor_interp.analysis.report_data import Findings, gather
from anchor_interp.behaviour.phase import Decision, Phase
from anchor_interp.cli.main import main
from anchor_interp.interventions.subject import Subject
from anchor_interp.pages import report, style
from anchor_interp.pages.pictures import of_run
from anchor_interp.pages.report import render, write_report
from anchor_interp.pages.report_words import differences, measures, sentence
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.train import train
from anchor_interp.sweeps.along import along
from concepts import PRESETS

HOSTILE = (
    "<script>alert(1)</script>\"'</title></script>\N{SNOWMAN}&amp;{{ 7*7 }}"
    "<img src=x onerror=alert(2)>"
)
TOKENS = torch.arange(20, 29)[None]


@pytest.fixture(scope="module")
def found(finished_run: Run) -> Findings:
    return gather([finished_run.folder.path])[0]


@pytest.fixture(scope="module")
def page(found: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs; the second has a hostile name, two heads and is not done."""
    heads = [
        dataclasses.replace(entry, patterns=entry.patterns.repeat(2, axis=1))
        for entry in found.attention
    ]
    hostile = dataclasses.replace(
        found,
        name=HOSTILE,
        path=Path(HOSTILE),
        done=False,
        step=20,
        attention=tuple(heads),
        sessions=[{"machine": HOSTILE, "versions": {HOSTILE: HOSTILE}}],
    )
    out = tmp_path_factory.mktemp("report") / "made" / "report.html"
    assert write_report([found, hostile], out) == [out]
    return out


@pytest.fixture
def words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the runs' pictures, which take most of their time."""
    monkeypatch.setattr(report, "of_run", lambda _: ())
    monkeypatch.setattr(report, "of_answers", lambda _: ())


def last_reads_first(model: Any) -> dict[str, float]:
    """Attention of the first head from the last position to the first, by layer."""
    _, cache = model.run_with_cache(TOKENS)
    return {
        f"layer {n}": cache["pattern", n][0, 0, -1, 0].item() for n in range(model.cfg.n_layers)
    }


def inverse_distance(subject: Subject) -> float:
    """Fails before the first step."""
    assert subject.initial is not None
    distance: float = (subject.model.W_E - subject.initial.W_E).norm().item()
    return 1 / distance


def words(page: Path) -> str:
    """The page's text, without scripts and styles."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_the_page_shows_every_measurement(page: Path, found: Findings) -> None:
    text = words(page)
    assert found.decision.reason in text
    assert "x → x + 5" in text
    assert "not done: step 20 of 40" in text
    for measure in measures(found.evaluation):
        shown, told = "\N{EN DASH}", "not defined"
        if measure.value is not None:
            shown = f"{measure.value:.2f}"
            told = "reached" if measure.value >= measure.threshold else "below"
        assert f"{measure.name} {shown} {measure.threshold:.2f} {told} " in text
    rows = re.findall(r'<tr( class="unasked")?>\s*<th scope="row">([^<]+)', page.read_text("utf-8"))
    grey = {name for greyed, name in rows if greyed}
    assert grey == {measure.name for measure in measures(found.evaluation) if not measure.asked}
    assert 0 < len(grey) < len(measures(found.evaluation))
    for now, initial in zip(
        found.complexity.matrices, found.complexity_at_init.matrices, strict=True
    ):
        layer = "" if now.layer is None else f" L{now.layer}"
        assert now.stable_rank is not None
        assert initial.stable_rank is not None
        assert f"{now.name}{layer} {initial.stable_rank:.1f} {now.stable_rank:.1f}" in text
    for example in found.attention:
        assert re.search(rf"answer {example.answer}\b", text)


def test_a_page_says_why_no_symmetric_answer_is_defined(found: Findings) -> None:
    told = found.evaluation
    missing = dataclasses.replace(told, symmetric_accuracy=None)
    for evaluation, replaced in (
        (dataclasses.replace(missing, commutativity=0.9), True),
        (dataclasses.replace(missing, commutativity=None), False),
        (dataclasses.replace(told, symmetric_accuracy=0.5), False),
    ):
        meaning = next(m.meaning for m in measures(evaluation) if m.name == "symmetric answers")
        assert ("see commutativity" in meaning) is replaced


@pytest.mark.usefixtures("words_alone")
def test_curves_have_the_colours_of_their_phases_where_these_differ(found: Findings) -> None:
    one, other = (
        dataclasses.replace(found, decision=Decision(phase, ""))
        for phase in ("symmetric", "inferential")
    )
    swatches = re.compile('class="swatch" style="background: ([^"]+)"')
    for runs, colours in (
        ([one, other], [style.PHASE_COLOURS["symmetric"], style.PHASE_COLOURS["inferential"]]),
        ([one, one], [style.colour(0), style.colour(1)]),
    ):
        said = render(runs)
        assert swatches.findall(said) == colours
        for number, colour in enumerate(colours):
            strokes = re.findall(rf'id="[^"]*curve-{number}">\s*<path[^>]*stroke: (#\w+)', said)
            assert strokes, number
            assert {stroke.upper() for stroke in strokes} == {colour.upper()}


@pytest.mark.usefixtures("words_alone")
def test_the_page_names_every_setting_in_which_its_runs_differ(
    found: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "of_comparison", lambda *_: ())
    note = "do not differ in gamma and weight decay alone"
    decay = override(found.config, gamma=0.9, weight_decay=0.3, log_every=1)
    assert note not in render([found, dataclasses.replace(found, config=decay)])
    changes: dict[str, Any] = {"d_mlp": 4096, "lr": 0.0625, "clip": None, "unseen": ((1, 2),)}
    other = override(found.config, **changes)
    runs = [
        dataclasses.replace(found, name=name, config=config)
        for name, config in (("one", found.config), ("two", other), ("three", decay))
    ]
    said = render(runs)
    assert "one and three share all of these." in said
    assert note in said
    train, model = found.config.train, found.config.model
    differ = (
        f"unseen, d_mlp ({model.d_mlp}, 4,096), lr ({train.lr}, 0.0625) and "
        f"clip ({train.clip}, None)"
    )
    assert differ in " ".join(html.unescape(said).split())


def test_runs_of_two_tasks_differ_in_what_both_have() -> None:
    configs = [preset("inferential"), preset("scan"), PRESETS["concepts"]]
    said = differences(configs)
    assert said[0] == "task (complexity-control, scan-turn-left, concepts)"
    assert said[1] == "network (transformer, UNet)"
    assert not any(each.startswith(("kind", "normalization", "anchors")) for each in said)
    near = [override(configs[0], lr=lr) for lr in (0.002, 0.0020000001)]
    assert differences(near) == ["lr (0.002, 0.0020000001)"]
    seldom = [override(configs[0], eval_every=every) for every in (100, 200)]
    assert differences(seldom) == []
    ending = [override(each, until_accuracy=0.9) for each in seldom]  # when this is seen
    assert differences(ending) == ["eval_every (100, 200)"]


@pytest.mark.usefixtures("words_alone")
def test_the_page_says_how_long_a_run_trained(found: Findings) -> None:
    """A fitted run ends before the most steps that its configuration allows."""
    config = override(found.config, until_accuracy=0.9, steps=4_000)
    fitted = dataclasses.replace(found, config=config, step=1_234)
    assert re.search(r"short\">\s*1,234 steps", render([fitted]))
    undone = render([dataclasses.replace(fitted, done=False)])
    assert "not done: step 1,234 of at most 4,000" in undone


@pytest.mark.parametrize(
    ("phase", "changes", "words"),
    [
        ("undertrained", {"train_accuracy": 0.2}, "It answers only 20 % of its own training"),
        ("memorizing", {"id_accuracy": 0.021}, "but answers 2 % of new sequences"),
        ("inferential", {"ood_accuracy": 0.98}, "composition of their functions, on 98 % of"),
        ("symmetric", {"symmetric_accuracy": 0.9}, "as if its anchors changed places, on 90 %"),
        ("symmetric", {"symmetric_accuracy": None}, "both orders of an unseen pair the same wrong"),
        ("composite", {"commutativity": 0.2}, "both orders of an unseen pair wrong answers that"),
        ("other", {}, "No rule for another phase applies."),
    ],
)
def test_a_sentence_says_what_a_run_does(
    found: Findings, phase: Phase, changes: dict[str, Any], words: str
) -> None:
    text = sentence(phase, dataclasses.replace(found.evaluation, **changes))
    assert words in text
    assert len(text.split()) <= 20


@pytest.mark.usefixtures("undrawn")
def test_the_page_draws_what_a_run_keeps_along_training(finished_run: Run, tmp_path: Path) -> None:
    """A failure is said with its reason."""
    shutil.copytree(finished_run.folder.path, tmp_path / "run")
    run = load(tmp_path / "run")
    kept = along(run, last_reads_first).to_frame()
    along(run, inverse_distance, subject=True)
    (found,) = gather([run.folder.path])
    write_report([found], tmp_path / "report.html")
    shown = words(tmp_path / "report.html")
    pictures = [p for p in of_run(found) if p.name.startswith("along-")]
    for name, line in zip(("layer 0", "layer 1"), pictures[0].figure.axes[0].lines, strict=False):
        assert np.asarray(line.get_ydata()) == pytest.approx(kept[name].to_numpy())
    for step, *read in kept[["step", "layer 0", "layer 1"]].itertuples(index=False):
        assert f" {step} {' '.join(f'{value:.4g}' for value in read)} " in shown
    assert f"{__name__}:inverse_distance of a subject by step. Step 0: ZeroDivisionError" in shown


@pytest.mark.usefixtures("words_alone")
def test_a_page_of_models_that_answer_is_linked(found: Findings) -> None:
    assert '<a href="ask.html">Ask the models</a>' in render([found], "ask.html")
    assert "Ask the models" not in render([found])


def test_markup_in_names_stays_text(page: Path) -> None:
    source = page.read_text("utf-8")
    assert "<script>alert" not in source
    assert "<img" not in source
    assert source.count("</script>") == source.count("<script>") == 4
    assert HOSTILE in html.unescape(source)


def test_every_picture_is_a_png_and_an_svg(found: Findings, tmp_path: Path) -> None:
    odd = dataclasses.replace(found, name="../a/b <c>")
    page, *pictures = write_report([odd], tmp_path / "page.html", pictures=tmp_path / "pictures")
    assert page.is_file()
    assert {path.parent for path in pictures} == {tmp_path / "pictures"}
    names = {path.stem.rpartition("c-")[2] for path in pictures}
    of_answers = {"answer-map", "answers-along", "answers"}
    assert names == {"loss", "accuracy", "pairs-train-keys", "pairs-test-keys"} | of_answers
    for path in pictures:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ET.fromstring(path.read_bytes()).tag.endswith("svg")


@pytest.mark.usefixtures("words_alone")
def test_pictures_of_several_runs_hold_their_comparison(found: Findings, tmp_path: Path) -> None:
    page, *pictures = write_report([found] * 2, tmp_path / "one.html", pictures=tmp_path / "all")
    compared = {path.name for path in pictures if path.name.startswith("compared-")}
    assert {"compared-ood-accuracy.svg", "compared-loss.png"} <= compared
    text = page.read_text("utf-8")
    assert text.count('class="compared compared-') == len(compared) / 2


def test_runs_of_one_name_are_named_by_their_paths(finished_run: Run, tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for path in paths:
        shutil.copytree(finished_run.folder.path, path)
    assert [entry.name for entry in gather(paths)] == list(map(str, paths))


def test_a_run_that_lost_its_final_checkpoint_is_refused_unless_it_is_unfinished(
    tmp_path: Path, finished_run: Run
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run.folder.path, path)
    shutil.rmtree(path / "checkpoints" / "00000040")
    for read in (lambda: gather([path]), lambda: train(finished_run.config, path, quiet=True)):
        with pytest.raises(StoreError, match=r"remove result\.json"):
            read()
    (path / "result.json").unlink()
    (entry,) = gather([path])
    assert (entry.done, entry.step, entry.evaluation.steps) == (False, 30, 30)


def test_a_failure_keeps_the_earlier_report(
    found: Findings, tmp_path: Path, capsys: pytest.CaptureFixture[str], finished_run: Run
) -> None:
    out = tmp_path / "report.html"
    out.write_text("earlier")
    for arguments, said in (
        ([str(tmp_path / "missing")], "is not a run folder"),
        ([str(finished_run.folder.path), str(tmp_path)], "is not a run folder"),
    ):
        assert main(["report", *arguments, "--out", str(out)])
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert out.read_text() == "earlier"
    with pytest.raises(StoreError, match="is a folder; name a file"):
        write_report([found], tmp_path)


@pytest.mark.usefixtures("words_alone")
def test_the_report_command(
    finished_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "report.html"
    assert main(["report", str(finished_run.folder.path), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(out)
    assert told["runs"][finished_run.folder.path.name]["phase"] == finished_run.phase
    assert finished_run.phase in words(out)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_browser_shows_the_page(
    browser: Any, page: Path, found: Findings, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(120_000)  # milliseconds
    shown = context.new_page()
    watched = Watched(shown)
    shown.goto(page.as_uri())
    pictures, heads = 1 + 4 + 2 * 7, 2 * 2 * (1 + 3)  # each of several small, and one large
    shown.locator(".view canvas").nth(heads - 1).wait_for()
    shown.wait_for_timeout(300)  # charts get their layout after they appear
    overflow, background, ink = shown.evaluate(
        """() => [document.documentElement.scrollWidth - innerWidth,
                 getComputedStyle(document.body).backgroundColor,
                 getComputedStyle(document.body).color]"""
    )
    assert overflow == 0
    assert _contrast(background, ink) >= 7
    drawn = shown.evaluate(
        """() => [...document.querySelectorAll('.picture svg, .view canvas')].map(entry => {
            const box = entry.getBoundingClientRect();
            const blank = entry.tagName === 'CANVAS' && !entry.getContext('2d')
                .getImageData(0, 0, entry.width, entry.height).data.some(value => value);
            return [box.width, box.height, blank];
        })"""
    )
    assert len(drawn) == pictures + heads
    assert all(wide > 20 and high > 20 and not blank for wide, high, blank in drawn)
    assert shown.locator("h2", has_text="<script>alert(1)</script>").count() == 1
    headings = shown.evaluate(
        """() => [...document.querySelectorAll('h1, h2, h3, h4')]
            .filter(entry => !entry.closest('[role=img]')).map(entry => +entry.tagName[1])"""
    )
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    assert shown.evaluate("document.querySelectorAll('table:not(:has(caption))').length") == 0
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(entry => entry.id)")
    assert len(ids) == len(set(ids))
    theme = shown.evaluate("getComputedStyle(document.querySelector('.view')).filter")
    assert theme.startswith("invert") is (scheme == "dark")
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.textContent") == "Skip to the summary"
    assert shown.locator(".skip").bounding_box()["x"] >= 0
    _compare(shown, found)
    assert watched.complaints == []
    assert watched.requests == [page.as_uri()]
    context.close()


def _compare(shown: Any, found: Findings) -> None:
    """Pointing at the end of a curve shows its value; a legend entry hides the run's curves."""
    figure = shown.locator(".compared-id-accuracy")
    figure.scroll_into_view_if_needed()
    box = figure.locator("svg").bounding_box()
    end = json.loads(figure.get_attribute("data-curves"))["right"]
    x, y = box["x"] + box["width"] * end - 2, box["y"] + box["height"] / 2
    shown.mouse.move(x, y)
    value = next(row["id_accuracy"] for row in reversed(found.metrics) if "id_accuracy" in row)
    entries = figure.locator(".readout span[title]")
    assert [float(text) for text in entries.all_inner_texts()] == pytest.approx(
        [value] * 2, rel=0.01
    )
    assert figure.locator(".readout").inner_text().startswith("step 40")
    second = shown.locator(".runs-legend button").nth(1)
    second.click()
    assert second.get_attribute("aria-pressed") == "false"
    hidden = shown.locator('.compared [id$="-curve-1"]').evaluate_all(
        "all => all.map(curve => curve.style.display)"
    )
    assert hidden == ["none"] * 4
    shown.mouse.move(x, y)
    shown.mouse.move(x - 1, figure.locator("svg").bounding_box()["y"] + 30)
    assert shown.locator(".readout span[title]").count() == 1


def _contrast(*colours: str) -> float:
    """WCAG's contrast ratio of two CSS colours rgb(r, g, b)."""

    def luminance(colour: str) -> float:
        shares = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)
