"""Shared fixtures: small configurations, one short run, a browser."""

import gc
import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is; tests run side by side

import pytest
import torch
from hypothesis import HealthCheck, settings
from short import SHORT

import anchor_interp

if TYPE_CHECKING:  # the process that spreads the tests needs none of it
    from anchor_interp.runs.config import RunConfig
    from anchor_interp.runs.run import Run

torch.set_num_threads(1)
# a busy machine is not a failure
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")


def pytest_collection_finish() -> None:
    """What is imported now stays: no search for garbage has to look at it."""
    gc.freeze()


@pytest.fixture
def short() -> "RunConfig":
    return anchor_interp.preset("tiny", **SHORT)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> "Run":
    config = anchor_interp.preset("tiny", **SHORT)
    out: Path = tmp_path_factory.mktemp("runs") / "short"
    return anchor_interp.train(config, out, device="cpu", threads=1, quiet=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        new_page = opened.new_page

        def patient(**settings: Any) -> Any:
            page = new_page(**settings)
            page.set_default_timeout(120_000)  # milliseconds; a busy machine draws slowly
            return page

        cast(Any, opened).new_page = patient
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def committed() -> dict[str, list[dict[str, Any]]]:
    """The committed tables of the papers' studies: rows by study. Leave them as they are."""
    from studies import Data

    return dict(Data())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of pages are made and not drawn, for tests of what else a page says."""
    from anchor_interp.pages import style

    size = {"width": "1pt", "height": "1pt", "viewBox": "0 0 1 1"}
    monkeypatch.setattr(style, "settle", lambda figure: figure)
    monkeypatch.setattr(style, "_svg", lambda _: ET.Element("svg", size))


@pytest.fixture
def evidence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """See :func:`quick_analysis.evidence_alone`."""
    import quick_analysis

    quick_analysis.evidence_alone(monkeypatch)


@pytest.fixture
def judged_on_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """See :func:`quick_analysis.judged_on_few`."""
    import quick_analysis

    quick_analysis.judged_on_few(monkeypatch)
