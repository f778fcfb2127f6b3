"""The notebooks as pages with their outputs: a hook of MkDocs, which runs them in every build.

A page notebooks/NAME.md is experiments/notebooks/NAME.ipynb, executed. The executed notebook lies
beside it. An error, a word on standard error or a file left behind is a warning, which fails
``make docs``.
"""

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from traitlets.config import Config

import anchor_interp

with warnings.catch_warnings():  # of Jupyter's own packages
    warnings.simplefilter("ignore")
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {
    path.relative_to(ROOT).as_posix(): f"notebooks/{path.stem}.md"
    for path in sorted(ROOT.glob("experiments/notebooks/*.ipynb"))
}
"""The notebooks and the pages that show them."""
_EXPORT = {
    "ExtractOutputPreprocessor": {"enabled": False},
    "CoalesceStreamsPreprocessor": {"enabled": True},
}
_LOGGER = logging.getLogger("mkdocs.hooks.notebooks")
_views: dict[str, str] = {}  # HTML that Markdown shall not touch, by page and number


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every notebook, executed, as a page and as a file."""
    for source, notebook in executed(list(NOTEBOOKS)).items():
        page = NOTEBOOKS[source]
        own = page.removesuffix(".md") + ".ipynb"
        files.append(File.generated(config, own, content=nbformat.writes(notebook)))
        files.append(File.generated(config, page, content=_markdown(notebook, page)))
    return files


def on_page_content(text: str, /, **_: Any) -> str:
    """Put the views into the page."""
    return re.sub(r"<!-- view (\S+) -->", lambda match: _views[match[1]], text)


def executed(sources: Sequence[str]) -> dict[str, Any]:
    """These notebooks with their outputs, run in an empty folder by a kernel of this environment.

    They share the kernel, which would spend most of the time on imports, but no names.
    """
    notebooks = {source: nbformat.read(ROOT / source, as_version=4) for source in sources}
    if os.environ.get("NOTEBOOKS") == "as they are":  # half a minute less
        return notebooks
    together = nbformat.v4.new_notebook()
    for source, notebook in notebooks.items():
        for cell in notebook.cells:
            cell.id = f"{Path(source).stem}-{cell.id}"
        together.cells += [*notebook.cells, nbformat.v4.new_code_cell("%reset -f")]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = Path(folder) / "work"
        work.mkdir()
        environment = os.environ | {
            "PYTHONPATH": str(Path(anchor_interp.__file__).parent.parent),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "IPYTHONDIR": f"{folder}/ipython",
            "JUPYTER_CONFIG_DIR": f"{folder}/jupyter",
        }
        NotebookClient(
            together,
            timeout=120,  # a cell
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(work)}},
        ).execute(env=environment)
        for path in work.iterdir():
            _LOGGER.warning("the notebooks leave %s behind", path.name)
    for cell in together.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error" or output.get("name") == "stderr":
                said = output.get("text") or f"{output.ename}: {output.evalue}"
                _LOGGER.warning("cell %s says %s", cell.id, said)
    return notebooks


def _markdown(notebook: Any, page: str) -> str:
    """The page of a notebook, with its pictures and a link to its file."""
    stem = Path(page).stem
    notebook = nbformat.from_dict(notebook)
    notebook.cells[0].source += f'\n\n<a href="{stem}.ipynb">Download with outputs</a>'
    for cell in notebook.cells:
        for number, output in enumerate(cell.get("outputs", ())):
            if "text/html" in output.get("data", {}):
                name = f"{cell.id}-{number}"
                _views[name] = output.data["text/html"]
                output.data["text/html"] = f"<!-- view {name} -->"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exporter = MarkdownExporter(config=Config(_EXPORT))
        text: str = exporter.from_notebook_node(notebook)[0]
    return text.replace("![png](", "![figure](")
