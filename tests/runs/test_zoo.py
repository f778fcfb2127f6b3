"""The specimens: their names, phases, size, checksums, and that loading never writes."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import anchor_interp
from anchor_interp._util.errors import StoreError
from anchor_interp.cli.main import main
from anchor_interp.runs.config import override, run_id
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.train import train
from anchor_interp.runs.zoo import SPECIMENS, find, names

ROOT = Path(__file__).parents[2]
NAMES = names()


def files() -> list[Path]:
    return sorted(path for path in SPECIMENS.rglob("*") if path.is_file())


def test_three_specimens_of_every_recipe_take_16_megabytes() -> None:
    assert sorted(f"tiny/{recipe}/{n}" for recipe in RECIPES for n in (1, 2, 3)) == NAMES
    assert sum(path.stat().st_size for path in files()) <= 16_000_000


def test_every_file_has_its_checksum() -> None:
    lines = (SPECIMENS / "SHA256SUMS").read_text().splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {
        path.relative_to(SPECIMENS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files()
        if path.name != "SHA256SUMS"
    }
    assert recorded == found


@pytest.mark.parametrize("name", NAMES)
def test_a_specimen_is_a_run_of_its_recipe_and_phase(name: str) -> None:
    run = load(name)
    recipe = name.split("/")[1]
    config = override(RECIPES[recipe], seed=run.config.seed)
    assert run_id(run.config) == run_id(config)
    assert run.steps == [run.step] == [config.train.steps]
    assert run.phase == recipe.removeprefix("neurips-")
    assert run.metrics[0]["step"] == 0
    assert run.metrics[-1]["step"] == run.step
    assert run.model.embed.W_E.dtype == torch.float32
    if name not in ("tiny/inferential/1", "tiny/neurips-symmetric/1"):
        return  # its checksum is tested; measuring all takes most of a minute
    quick, recorded = run.evaluate(n=40), run.evaluation
    assert anchor_interp.classify(quick) == run.phase
    assert quick.train_accuracy == recorded.train_accuracy
    assert quick.stable_rank == pytest.approx(recorded.stable_rank)
    assert quick.id_accuracy == pytest.approx(recorded.id_accuracy, abs=0.05)
    assert quick.ood_accuracy == pytest.approx(recorded.ood_accuracy, abs=0.1)


def test_the_provenance_records_the_rounding() -> None:
    run = load("tiny/symmetric/1")
    rounding = run.folder.provenance()[-1]
    assert rounding["run_id"] == run_id(run.config)
    assert "float16" in rounding["rounded"]
    assert all(torch.equal(value, value.half().float()) for value in run.model.parameters())


def test_the_initial_model_is_rebuilt_without_step_0(finished_run: Run) -> None:
    initial, start = finished_run.initial, finished_run.at(0).model
    assert initial is not None
    pairs = zip(initial.parameters(), start.parameters(), strict=True)
    assert all(torch.equal(mine, kept) for mine, kept in pairs)
    double = load("tiny/inferential/1", dtype=torch.float64)
    assert double.initial is not None
    assert double.initial.embed.W_E.dtype == double.model.embed.W_E.dtype == torch.float64
    with pytest.raises(StoreError, match=r"no checkpoint at step 0; it has \[3000\]"):
        double.at(0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny/inferentail/1", r"did you mean 'tiny/inferential/1'\?"),
        ("tiny/inferential", "known: tiny/composite/1, "),
        ("tiny/inferential/4", "did you mean 'tiny/inferential/"),
        ("tiny/inferential/1/checkpoints", "no folder and no specimen is called"),
        ("tiny/inferential/../inferential/1", "no folder and no specimen is called"),
        ("tiny/../../store.py", "no folder and no specimen is called"),
        ("tiny", "known: tiny/composite/1, "),
        ("runs/tiny/inferential/1", "is not a run folder: there is nothing of this name"),
    ],
)
def test_other_names_are_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=message):
        load(name)


@pytest.mark.parametrize("name", ["tiny/inferential/1", "exact/lookup"])
def test_a_folder_is_loaded_before_what_comes_with_the_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(name).config != finished_run.config
    shutil.copytree(finished_run.folder.path, name)
    run = train(finished_run.config, name, device="cpu", threads=1, quiet=True)
    assert run.folder.path == Path(name)
    assert load(name).config == finished_run.config
    assert load("tiny/inferential/2").config == override(RECIPES["inferential"], seed=201)
    assert find(Path("/tiny/inferential/1")) == Path("/tiny/inferential/1")


def test_loading_writes_nothing() -> None:
    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in SPECIMENS.rglob("*")}

    before = state()
    load("tiny/composite/1").evaluate(n=2)
    assert state() == before


def test_commands_take_names_of_specimens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "tiny/neurips-symmetric/1", "--n", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "symmetric"
    assert main(["export", "tiny/symmetric/2", "--out", "weights.safetensors"]) == 0
    exported = anchor_interp.load_transformer("weights.safetensors")
    assert torch.equal(exported.W_Q, load("tiny/symmetric/2").model.W_Q)
    monkeypatch.setattr("anchor_interp.pages.report.of_run", lambda _: ())  # its figures take long
    assert main(["report", "tiny/inferential/1", "--out", "page.html", "--quiet"]) == 0
    assert "What tiny/inferential/1 learned" in Path("page.html").read_text()
    assert main(["evaluate", "tiny/symetric/1"]) == 1
    assert "did you mean 'tiny/symmetric/1'" in capsys.readouterr().err


def test_wheel_and_sdist_contain_the_specimens(tmp_path: Path) -> None:
    for builder in (WheelBuilder, SdistBuilder):
        included = {path.path for path in builder(str(ROOT)).recurse_included_files()}
        assert {str(path) for path in files()} <= included
