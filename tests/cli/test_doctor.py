"""The doctor: what it finds on a sound machine, and one line for each problem."""

import fcntl
import json
import os
import re
import shutil
import tomllib
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest

from anchor_interp.cli.doctor import describe, examine
from anchor_interp.cli.main import main

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _declared(monkeypatch: Patch) -> None:
    """Requirements that the tests choose, instead of those of the installed package."""
    wandb = ["wandb>=0.19; extra == 'wandb'", "wandb>=0.19; extra == 'all'"]
    needed = ["numpy>=2.0", "torch<3,>=2.13", *wandb, "no; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda _name: needed)


def test_a_sound_machine(tmp_path: Path, capsys: Capture) -> None:
    assert main(["doctor", "--out", str(tmp_path / "runs/deep"), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert (found["ok"], found["problems"]) == (True, [])
    assert [p["name"] for p in found["packages"]] == ["numpy", "torch", "wandb"]
    assert found["packages"][1]["installed"] == metadata.version("torch")
    assert found["devices"][0]["name"] == "cpu"
    assert found["devices"][0]["usable"]
    assert found["cores"] >= 1
    assert found["threads"] >= 1
    assert (found["out"], found["out_writable"], found["out_locks"]) == (str(tmp_path), True, True)
    assert list(tmp_path.iterdir()) == []  # nothing is left behind

    assert main(["doctor", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "no problem found" in text
    assert re.search(r"^products  (oneDNN's|PyTorch's: )", text, re.M)
    assert f"OMP_WAIT_POLICY is {os.environ.get('OMP_WAIT_POLICY', 'not set')} here" in text
    assert "os.environ['OMP_WAIT_POLICY'] = 'PASSIVE' before importing torch" in text
    assert f"folder    {tmp_path}: writable, locks work" in text


def test_finds_every_declared_package(monkeypatch: Patch, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "pyproject.toml"
    declared = tomllib.loads(file.read_text())["project"]["dependencies"]
    monkeypatch.setattr(metadata, "requires", lambda _name: declared)
    assert examine(tmp_path)["problems"] == []


def test_reports_wrong_missing_and_broken_packages(monkeypatch: Patch, tmp_path: Path) -> None:
    needed = ["numpy>=99", "absent>=1", "safetensors", "absent-too; extra == 'wandb'"]
    monkeypatch.setattr(metadata, "requires", lambda _name: needed)

    def broken(name: str) -> None:
        raise OSError(f"{name}: undefined symbol\nand more")

    monkeypatch.setattr("anchor_interp.cli.doctor.importlib.import_module", broken)
    found = examine(tmp_path)
    assert found["problems"] == [
        f"numpy is {metadata.version('numpy')}; expected >=99: pip install 'numpy>=99'",
        "absent is not installed; expected >=1: pip install 'absent>=1'",
        "safetensors cannot be imported (safetensors: undefined symbol); install it again",
    ]
    assert "absent             not installed  needs >=1" in describe(found)


def test_reports_a_package_without_metadata(monkeypatch: Patch, tmp_path: Path) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    (problem,) = examine(tmp_path)["problems"]
    assert problem.startswith("the installation of anchor-interp is incomplete")


def test_reports_an_old_python(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr("anchor_interp.cli.doctor.platform.python_version", lambda: "3.9.1")
    (problem,) = examine(tmp_path)["problems"]
    assert problem == "Python is 3.9.1; expected >=3.11"


def test_reports_a_device_that_fails(monkeypatch: Patch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "A GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ones = torch.ones

    def failing(*shape: int, device: str) -> torch.Tensor:
        if device == "cuda:0":
            raise RuntimeError("driver too old\nlong text")
        return ones(*shape, device=device)

    monkeypatch.setattr(torch, "ones", failing)
    found = examine(tmp_path)
    assert found["problems"] == ["the device cuda:0 cannot be used: driver too old"]
    assert [device["usable"] for device in found["devices"]] == [True, False]
    assert "device    cuda:0   NOT usable: A GPU" in describe(found)


def test_reports_a_folder_that_is_full_or_lacks_locks(monkeypatch: Patch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(9, 9, 5_000_000))
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as some network file systems do
    full, unlocked = examine(tmp_path)["problems"]
    assert full.startswith(f"{tmp_path} has 5 MB free; make room")
    assert unlocked.startswith(f"locks do not work in {tmp_path}")


def test_a_folder_that_cannot_be_written_is_exit_code_1(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--out", str(tmp_path / "file/runs")]) == 1
    captured = capsys.readouterr()
    assert captured.err == (
        f"anchor-interp: cannot write to {tmp_path / 'file'}: Not a directory; choose another "
        "folder\n"
    )
    assert "problems: 1" in captured.out
