"""The notebooks: executed as a reader would, and one opened in a browser."""

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from watched_page import Watched

import anchor_interp

with warnings.catch_warnings():  # of Jupyter's own packages
    warnings.simplefilter("ignore")
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

NOTEBOOKS = sorted((Path(__file__).parents[2] / "experiments/notebooks").glob("*.ipynb"))
VIEWED = "1_meet_the_phases"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All notebooks by name, run in an empty folder by a kernel of this environment.

    They share the kernel, which would spend most of the time on imports, but no names.
    """
    notebooks = {path.stem: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
    together = nbformat.v4.new_notebook()
    for name, notebook in notebooks.items():
        for cell in notebook.cells:
            cell.id = f"{name}-{cell.id}"
        together.cells += [*notebook.cells, nbformat.v4.new_code_cell("%reset -f")]
    folder = tmp_path_factory.mktemp("notebooks")
    work = folder / "work"
    work.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(Path(anchor_interp.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
    }
    client = NotebookClient(
        together,
        timeout=120,  # a cell
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(work)}},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.execute(env=environment)
    assert not list(work.iterdir())  # nothing is left behind
    return notebooks


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_it_runs_without_a_complaint(executed: dict[str, Any], name: str) -> None:
    cells = [cell for cell in executed[name].cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    shown = 0
    for cell in cells:  # a cell that ends with a figure or views has them
        if re.search(
            r"^((run|mechanism)_figures\.\w+|attention_views)\(.*\Z", cell.source, re.DOTALL | re.M
        ):
            kinds = {kind for output in cell.outputs for kind in output.get("data", ())}
            assert kinds & {"image/png", "text/html"}, cell.id
            shown += 1
    assert shown >= 3


def test_a_reader_sees_every_view(executed: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("mathjax_url", "mermaid_js_url", "require_js_url", "jquery_url"), "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, _ = HTMLExporter(**nowhere).from_notebook_node(executed[VIEWED])
    page = tmp_path / f"{VIEWED}.html"
    page.write_text(text, encoding="utf-8")
    shown = browser.new_page(viewport={"width": 1280, "height": 900})
    watched = Watched(shown)
    shown.goto(page.as_uri())
    shown.locator(".view canvas").nth(7).wait_for()  # two outputs of two sequences in two layers
    shown.wait_for_timeout(300)  # charts are laid out after they are there
    drawn = shown.evaluate(
        """() => [...document.querySelectorAll('.view canvas, .jp-OutputArea img')].map(entry => {
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
    assert [url for url in watched.requests if not url.startswith("data:")] == [page.as_uri()]
    shown.screenshot(path=tmp_path / "page.png", full_page=True)
    shown.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_clean(path: Path) -> None:
    """No outputs, no counts, one id for a cell that says what it is about, links that lead on."""
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
            assert (path.parent / target).is_file(), target
