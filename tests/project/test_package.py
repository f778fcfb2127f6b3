"""What users see of the package: light imports, public names, code in the README, metadata."""

import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from in_process_engine import Here
from jaxtyping import TypeCheckError
from short import SHORT

import anchor_interp
from anchor_interp.runs.run import Run
from anchor_interp.tasks import hashing
from anchor_interp.tasks.examples import Dataset

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "transformer_lens",
    "transformers",
    "matplotlib",
    "sklearn",
    "circuitsvis",
    "pandas",
}


LIGHT = (
    "import anchor_interp",
    "from anchor_interp.cli.main import main, command_line; command_line()",
    "import anchor_interp.runs.presets, anchor_interp.behaviour.phase",
    "import anchor_interp.tasks.sequences, anchor_interp.tasks.counterfactuals",
    "import anchor_interp.pages.mechanism_figures",
    "import anchor_interp.pages.report, anchor_interp.pages.attention_views",
    "import anchor_interp.sweeps.diagrams, anchor_interp.pages.diagram_page",
    "import anchor_interp.sweeps.folder, anchor_interp.sweeps.sweep",
    # a sweep's driver, up to its first worker
    "import types, anchor_interp.sweeps.sweep as module; "
    "module.sweep = lambda *a, **k: types.SimpleNamespace(path='nowhere'); "
    "main(['sweep', 'tiny', '--out', 'nowhere'])",
)


def test_light_imports() -> None:
    """One after the other in one process, which tells the first that loads something heavy."""
    lines = [line for code in LIGHT for line in (code, f"check({code!r})")]
    probe = "\n".join((
        "import sys",
        "def check(code):",
        f"    heavy = {HEAVY} & {{name.split('.')[0] for name in sys.modules}}",
        "    heavy |= {name for name in sys.modules if '.realistic.' in name}",
        "    assert not heavy, (code, heavy)",
        *lines,
    ))  # fmt: skip
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments", [["-c", "import anchor_interp"], ["-m", "anchor_interp", "--help"]]
)
def test_start_takes_less_than_a_second(arguments: list[str]) -> None:
    def seconds() -> float:  # processor time, so a busy machine does not count
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 1 for _ in range(3))


def test_no_module_hides_a_public_name() -> None:
    """An imported submodule becomes an attribute of the package."""
    modules = {path.stem for path in (ROOT / "src/anchor_interp").glob("*.py")}
    assert not modules & set(anchor_interp.__all__)


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == anchor_interp.__version__
    assert f"## {anchor_interp.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {anchor_interp.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_the_long_description_links_to_no_file() -> None:
    text = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    targets = re.findall(r"\]\(([^)#]+)", text) + re.findall(r'(?:src|srcset|href)="([^"#]+)', text)
    assert targets
    for target in targets:
        assert re.match("https?://", target), target
    assert "CITATION.cff adds this software" in text


def test_no_address_is_named_that_cannot_be_opened() -> None:
    """The package has no published repository, site or index page: a checkout installs it."""
    pages = [ROOT / name for name in ("README.md", "CITATION.cff", "mkdocs.yml", "pyproject.toml")]
    for path in (*pages, *ROOT.glob("docs/**/*.[mp][dy]"), *ROOT.glob("experiments/**/*.ipynb")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"anchor-interp/anchor-interp|anchor-interp\.github|git\+https", text
        ), path
        assert not re.search(r"pip install '?anchor-interp|\bcolab\b", text, re.IGNORECASE), path


def test_the_constraints_are_the_locked_versions() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    versions = {f"{package['name']}=={package['version']}" for package in locked}
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    pinned = {f"{re.sub('[_.]', '-', name).lower()}=={version}" for name, version in pins}
    assert pinned <= versions, pinned - versions


def test_shapes_are_checked_in_functions_and_dataclasses_that_have_some() -> None:
    with pytest.raises(TypeCheckError, match="mask"):
        Dataset(np.ones((2, 3), int), np.ones((2, 4), bool), np.ones(2, int))
    with pytest.raises(TypeCheckError, match="rank"):
        hashing.nth_allowed(np.ones((2, 3), bool), np.zeros(3, np.int64))
    assert not hasattr(hashing.stream_key, "__wrapped__")  # it has no shape


@pytest.mark.filterwarnings("ignore:HookedTransformer is deprecated")
@pytest.mark.usefixtures("judged_on_few", "undrawn")
@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/guide.md",
     *(pytest.param(f"docs/own-{x}.md", marks=pytest.mark.slow) for x in ("model", "training"))],
)  # fmt: skip
def test_code_of_pages_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Run
) -> None:
    """Every Python block runs unchanged, on short runs that this process trains."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    (tmp_path / "runs/quickstart/inferential").symlink_to(finished_run.folder.path)
    monkeypatch.chdir(tmp_path)
    named, brief = anchor_interp.preset, SHORT | {"steps": 5, "eval_every": 5}
    monkeypatch.setattr(
        anchor_interp, "preset", lambda name, **changes: named(name, **(changes | brief))
    )
    monkeypatch.setattr("anchor_interp.sweeps.sweep.LocalEngine", Here)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


def test_the_readme_is_short() -> None:
    """At most 600 words of prose, and 900 with tables and code, beside comments and targets."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->|\]\(.*?\)", " ", text, flags=re.DOTALL)
    prose = re.sub(r"```.*?```|^\|.*?$", " ", text, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"\S*\w\S*", prose)) <= 600
    assert len(re.findall(r"\S*\w\S*", text)) <= 900


def test_the_readme_shows_the_task_before_anything_else() -> None:
    """What does not reproduce comes after the task; a word is explained where it first stands."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    landmarks = (
        "figures/task.svg", "*inferential*:", "make quickstart", "make test",
        "figures/quickstart.png", "## What the papers say and what we find", "do not support",
    )  # fmt: skip
    places = [text.index(landmark) for landmark in landmarks]
    assert places == sorted(places)
    shown = re.sub(r"```.*?```|\]\(.*?\)", " ", text, flags=re.DOTALL)
    for word in ("key", "anchors", "phase", "layout", "route", "OOD"):
        first = re.search(rf"\b{word}\b", shown)
        assert first, word
        assert shown[first.start() - 1] == "*", f"{word} is used before it is explained"
