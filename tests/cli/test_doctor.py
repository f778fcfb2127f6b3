"""The doctor: what it finds on a sound machine, and one line for each problem."""

import errno
import fcntl
import json
import os
import pwd
import re
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from anchor_interp._util.errors import StoreError
from anchor_interp._util.files import cache_folder
from anchor_interp.cli.main import main

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def problems(out: Path, capsys: Capture) -> list[str]:
    """What ``doctor --json`` finds wrong."""
    main(["doctor", "--out", str(out), "--json"])
    found: list[str] = json.loads(capsys.readouterr().out)["problems"]
    return found


def test_a_sound_machine(tmp_path: Path, capsys: Capture) -> None:
    assert main(["doctor", "--out", str(tmp_path / "runs/deep"), "--json"]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert captured.err == ""
    assert (facts["ok"], facts["problems"]) == (True, [])
    assert list(tmp_path.iterdir()) == []  # nothing is left behind

    assert main(["doctor", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.split("folder  ")[0] == "\n".join(facts["lines"]).split("folder  ")[0]
    assert re.search(r"^cpu  .*, [1-9]\d* cores usable, [1-9]\d* PyTorch threads, ", text, re.M)
    assert "device    cpu      usable: " in text
    assert "no problem found" in text
    assert re.search(r"^products  (oneDNN's|PyTorch's: )", text, re.M)
    assert f"OMP_WAIT_POLICY is {os.environ.get('OMP_WAIT_POLICY', 'not set')} here" in text
    assert "os.environ['OMP_WAIT_POLICY'] = 'PASSIVE' before importing torch" in text
    assert f"folder    {tmp_path}: writable, locks work" in text


@pytest.mark.parametrize(("package", "module"), [("torch", "torch"), ("pyyaml", "yaml")])
def test_reports_a_package_that_cannot_be_imported(
    package: str, module: str, monkeypatch: Patch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (problem,) = problems(tmp_path, capsys)
    assert re.fullmatch(rf"{package} cannot be imported \(.*{module}.*\); install it.*", problem)


def test_reports_a_device_that_fails(monkeypatch: Patch, tmp_path: Path, capsys: Capture) -> None:
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
    assert main(["doctor", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err == ("anchor-interp: the device cuda:0 cannot be used: driver too old\n")
    assert "device    cpu      usable: " in captured.out
    assert "device    cuda:0   NOT usable: A GPU" in captured.out


def test_reports_a_folder_that_is_full_or_lacks_locks(
    monkeypatch: Patch, tmp_path: Path, capsys: Capture
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(9, 9, 5_000_000))

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    for flock in (lambda *_: None, missing):  # both are found on network file systems
        monkeypatch.setattr(fcntl, "flock", flock)
        full, unlocked = problems(tmp_path, capsys)
        assert full.startswith(f"{tmp_path} has 5 MB free; make room")
        assert unlocked.startswith(f"locks do not work in {tmp_path}")


def test_a_user_without_a_home_directory(
    monkeypatch: Patch, tmp_path: Path, capsys: Capture
) -> None:
    def nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert main(["doctor", "--out", str(tmp_path)]) == 0
    assert "no problem found" in capsys.readouterr().out
    with pytest.raises(StoreError, match="set HOME, or set XDG_CACHE_HOME to a folder"):
        cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "anchor-interp"


def test_a_folder_that_cannot_be_written_is_exit_code_1(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--out", str(tmp_path / "file/runs")]) == 1
    captured = capsys.readouterr()
    assert captured.err == (
        f"anchor-interp: cannot write to {tmp_path / 'file'}: Not a directory; choose another "
        "folder\n"
    )
    assert "problems: 1" in captured.out
