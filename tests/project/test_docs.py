"""The documentation site: it builds without a warning, is complete and needs no network.

The build runs the notebooks, whose outputs are looked at here.
"""

import functools
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nbformat
import pytest
from markdown.extensions.toc import slugify
from mkdocs.utils.yaml import yaml_load
from watched_page import Watched

import anchor_interp
from anchor_interp.cli.main import command_line
from claims import family
from site_notebooks import NOTEBOOKS as PAGES_OF_NOTEBOOKS
from site_pages import nav_pages, on_page_content

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(900)  # the build, on a busy machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("site"), NOTEBOOKS="as they are")


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the notebooks' outputs."""
    return built(tmp_path_factory.mktemp("whole"))


def built(out: Path, **environment: str) -> Path:
    # without --quiet, which would hide the warnings from --strict too
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        env=os.environ
        | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
        | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search("^WARNING", done.stderr, re.MULTILINE)  # the kernel has its own
    return out


def text(page: Path, *, code: bool = True) -> str:
    """What a reader sees of a page, with or without blocks of code."""
    body = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
    if not code:
        body = re.sub(r"<pre\b.*?</pre>", "", body, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", body))


def test_every_room_has_a_page() -> None:
    rooms = {path.parent.name for path in (ROOT / "src/anchor_interp").glob("*/__init__.py")}
    nav = yaml_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {Path(page).stem for page in nav_pages(nav) if page.startswith("reference/")}
    assert pages - {"index", "command-line"} == rooms - {"cli"}


@pytest.mark.slow
def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        assert not [tag for tag in loaded if re.search(r"(?:src|href)=\"?(?:https?:)?//", tag)]
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", sheet.read_text())


@pytest.mark.slow
def test_the_site_is_short(site: Path) -> None:
    """Words of all pages, with home and the notebooks, but not the reference, claims and code.

    The page that answers is the program's, as a report is.
    """
    words = {
        page: len(re.findall(r"\S*\w\S*", text(page, code=False)))
        for page in site.rglob("*.html")
        if page.parent.name in (site.name, "notebooks")
        and page.stem not in ("claims", "404", "ask")
    }
    assert len(words) > 20
    assert sum(words.values()) <= 13_000, words


def test_numbers_and_flags_stay_whole_and_code_stays_code() -> None:
    code = "<pre><code>x = 16 % 3 [1, 2] 1e-5</code></pre>"
    page = (
        f'{code}<pre><span style="--a: 1">run --out x</span></pre>'
        '<td><a href="runs/4e-5.html">[0.1, 0.2], 80 %, p 0.05, 3e-05</a> x - 7</td>'
    )
    of = SimpleNamespace(file=SimpleNamespace(src_uri="guide.md"))
    shown = on_page_content(page, page=cast(Any, of))
    assert code in shown
    assert '<span style="--a: 1">run <span class="flag">--out</span> x</span>' in shown
    space = "\N{NO-BREAK SPACE}"
    assert f">[0.1,{space}0.2], 80{space}%, p{space}0.05, " in shown
    assert f"x{space}-{space}7<" in shown
    assert '<a href="runs/4e-5.html">' in shown
    assert '<span class="flag">3e-05</span>' in shown


@pytest.mark.parametrize(
    ("name", "kept"), [("quickstart", True), ("answer-maps", True), ("routes", False)]
)
def test_maps_keep_their_colours_in_the_dark(name: str, kept: bool) -> None:
    of = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    shown = on_page_content(f'<img src="figures/{name}.png" />', page=cast(Any, of))
    assert bool(re.search(r'class="picture[^"]* map"', shown)) == kept


@pytest.mark.slow
def test_docstrings_are_readable(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        shown = text(page)
        assert not re.search(r":(?:func|class|meth|attr|mod|data):|^=+ +=+$|::$", shown, re.M), page
    models, runs, tasks = (
        text(site / f"reference/{name}.html") for name in ("models", "runs", "tasks")
    )
    assert 'tokens: Int[Tensor, "batch pos"]' in models
    assert 'Float[Tensor, "batch *k d_vocab"]' in models
    assert "Allowed: 0 to 1." in runs
    assert "length: int = 9" in tasks
    source = (site / "reference/behaviour.html").read_text()
    assert re.search(r"<td><code>symmetric</code></td>\s*<td>", source)
    assert 'href="#anchor_interp.behaviour.evaluation' in source


@pytest.mark.slow
def test_the_reference_lists_every_public_name_and_every_flag(site: Path) -> None:
    names = text(site / "reference/index.html").split()
    assert {name for name in anchor_interp.__all__ if not name.startswith("__")} <= set(names)
    page = text(site / "reference/command-line.html")
    app = command_line()
    for command in (name for name in app if not name.startswith("-")):
        assert f"anchor-interp {command}" in page
        for argument in app[command].assemble_argument_collection():
            assert not argument.show or argument.name in page


@pytest.mark.slow
def test_home_is_the_readme(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert 'src="figures/quickstart.png"' in page
    assert (site / "figures/quickstart.png").is_file()
    assert 'href="concepts.html"' in page


@pytest.mark.slow
def test_models_like_those_of_home_answer(site: Path, browser: Any) -> None:
    """Below the picture a link leads to them; their answers are the ones that the home describes.

    Of (4, 3), at most keys: neither the rule's answer nor B's, x - 7, the rule's.
    """
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    link = page.get_by_role("link", name="Ask models like A, B and C")
    assert link.bounding_box()["y"] > page.locator("img[src*=quickstart]").bounding_box()["y"]
    link.click()
    page.get_by_label("key x").fill("70")
    answers = page.locator('[data-part="answer"]').all_inner_texts()
    assert page.locator("h3").all_inner_texts()[:3] == ["A", "B", "C"]
    assert int(answers[0].split(",")[0]) not in (60, 63)
    assert [answer.split(",")[0] for answer in answers[1:]] == ["63", "60"]
    page.close()


@pytest.mark.slow
def test_the_results_and_the_claims_fit_a_screen(site: Path, browser: Any) -> None:
    """What we find is in sight at any width, and every claim has a row."""
    for width in (390, 1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        watched = Watched(page)
        page.goto((site / "results.html").as_uri())
        assert page.evaluate("document.documentElement.scrollHeight") <= 6000 or width < 1280
        found = page.locator("th", has_text="we find").bounding_box()
        assert 0 <= found["x"] <= width
        page.goto((site / "claims.html").as_uri())
        head = page.locator(".ledger th").first.bounding_box()
        assert 0 <= head["x"] <= head["x"] + head["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert watched.complaints == []
        here = [claim for claim in family() if not claim.later]
        assert page.locator(".ledger tbody tr").count() == len(here)
        for claim in here[::20]:
            row = page.locator(".ledger tr", has=page.locator(f"#{claim.name}"))
            assert claim.short in row.inner_text()
        page.close()


def test_links_lead_somewhere() -> None:
    """To a file, and to a heading or an anchor in it; the build of the site asks the same."""

    @functools.cache
    def anchors(page: Path) -> set[str]:
        source = page.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+?)\s*$", source, re.M)
        return {slugify(re.sub(r"[`*]", "", one), "-") for one in headings} | {
            *re.findall(r'\bid="([^"]+)"', source)
        }

    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        source = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\((?![a-z]+:)([^()\s]+)\)", source):
            name, _, anchor = target.partition("#")
            to = (page.parent / name).resolve() if name else page
            assert to.exists() or to.suffix == ".html" or "reference" in to.parts, (page, target)
            assert not anchor or to.suffix != ".md" or anchor in anchors(to), (page, target)


def test_no_line_of_a_list_begins_with_a_comment_and_no_placeholder_is_left() -> None:
    """Markdown would end the list there."""
    placeholder = re.compile(r"\b(?!PIP_FLAGS|RELEASED_CODE)[A-Z]{3,}_[A-Z]{3,}\b")
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        source = path.read_text(encoding="utf-8")
        assert not re.findall(r"^ *<!-- .*-->\S.*", source, re.M), path
        assert path.parent != ROOT / "docs" or not placeholder.search(source), path


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_and_tables_fit_a_desktop(site: Path, browser: Any, scheme: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    pages = ("tasks", "questions", "results", "claims", "verdict", "mechanism")
    for name in pages:
        page.goto((site / f"{name}.html").as_uri())
        cut = page.evaluate(
            """() => [...document.querySelectorAll('.picture, .md-typeset__scrollwrap')]
                .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML)"""
        )
        assert not cut, (name, [one[:200] for one in cut])
        assert page.locator("#dark").count() == 1  # the filter that pictures take in the dark
    page.close()


def test_every_measurement_is_listed_and_has_a_make_rule() -> None:
    listed = (ROOT / "docs/evidence/README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs/evidence").glob("*.json"):
        assert f"]({path.name})" in listed
        rule = subprocess.run(
            ["make", "--dry-run", "--always-make", "VENV=none", f"docs/evidence/{path.name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert re.search(rf"python .+ > docs/evidence/{path.name}", rule.stdout), rule.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium to open the site")
def test_search_works_from_the_file_system(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            "--disable-background-networking", "--virtual-time-budget=8000",
            f"--user-data-dir={tmp_path}", f"{(site / 'index.html').as_uri()}?q=condensation",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert re.search(r"[1-9]\d* matching documents", done.stdout)
    assert re.search(r'<a href="[^"]*reference/models.html[^"]*" class="md-search', done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF_NOTEBOOKS.values())
def test_a_notebook_shows_its_outputs(whole_site: Path, page: str) -> None:
    """That it runs without a complaint is part of the build."""
    notebook = nbformat.read((whole_site / page).with_suffix(".ipynb"), as_version=4)
    shown = 0
    for cell in notebook.cells:  # a cell that ends with a figure or views has them
        if re.search(
            r"^(\w+_figures\.\w+|attention_views|answer_maps)\(.*\Z", cell.source, re.DOTALL | re.M
        ):
            kinds = {kind for output in cell.outputs for kind in output.get("data", ())}
            assert kinds & {"image/png", "text/html"}, cell.id
            shown += 1
    assert shown >= 3
    outputs = (whole_site / page).with_suffix(".html").read_text(encoding="utf-8")
    assert outputs.count('src="data:image/png') + outputs.count('class="anchor-views"') >= shown
    assert "<!-- view" not in outputs


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_reader_sees_every_view(whole_site: Path, browser: Any, width: int) -> None:
    page = whole_site / "notebooks/1_meet_the_phases.html"
    shown = browser.new_page(viewport={"width": width, "height": 900})
    watched = Watched(shown)
    shown.goto(page.as_uri())
    shown.locator(".view canvas").nth(7).wait_for()  # two outputs of two sequences in two layers
    shown.wait_for_timeout(300)  # charts are laid out after they are there
    drawn = shown.evaluate(
        """() => [...document.querySelectorAll('.view canvas, article img')].map(entry => {
            const box = entry.getBoundingClientRect();
            const ink = entry.tagName === 'IMG' ? entry.complete && entry.naturalWidth > 0
                : entry.getContext('2d').getImageData(0, 0, entry.width, entry.height)
                    .data.some(value => value);
            return [box.width, box.height, ink];
        })"""
    )
    assert len(drawn) == 8 + 1
    assert all(wide > 200 and high > 200 and ink for wide, high, ink in drawn)
    assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    assert watched.complaints == []
    assert not [url for url in watched.requests if not url.startswith(("data:", "file:", "blob:"))]
    shown.close()


@pytest.mark.parametrize("source", PAGES_OF_NOTEBOOKS)
def test_a_notebook_is_committed_clean(source: str) -> None:
    """No outputs, no counts, one id for a cell that says what it is about, links that lead on."""
    path = ROOT / source
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert cell["metadata"] == {}
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cell["id"])
        for target in re.findall(r"\]\(([^)]+)\)", "".join(cell["source"])):
            if not target.startswith("https://"):
                assert (path.parent / target).is_file(), target
