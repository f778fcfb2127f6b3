"""Cores and memory: the lowest of the limits that a process runs under."""

from pathlib import Path

import joblib
import pytest
import torch

from anchor_interp._util import machine_limits
from anchor_interp._util.environment import limited_threads

GIB = 1 << 30


@pytest.fixture
def cgroups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without machine_limits, whose control groups lie in the folder."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine_limits, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(machine_limits, "_CGROUPS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("own", "file"),
    [
        ("0::/slurm/job_1/step_0", "slurm/job_1/step_0/memory.max"),
        ("0::/slurm/job_1/step_0", "slurm/memory.max"),  # of a group above
        ("0::/../outside/abc", "memory.max"),  # a container's own group is its root
        ("9:cpu,memory:/job", "memory/job/memory.limit_in_bytes"),
        ("9:cpu,memory:/docker/abc", "memory/memory.limit_in_bytes"),
    ],
)
def test_memory_of_the_own_control_group(cgroups: Path, own: str, file: str) -> None:
    free = machine_limits.memory_limit()
    (cgroups / "own").write_text(f"3:cpuset:/other\n{own}\n")
    assert machine_limits.memory_limit() == free
    (cgroups / file).parent.mkdir(parents=True, exist_ok=True)
    (cgroups / file).write_text("max\n")
    assert machine_limits.memory_limit() == free
    (cgroups / file).write_text(f"{free // 2}\n")
    assert machine_limits.memory_limit() == free // 2


def test_slurm_without_control_groups(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = machine_limits.memory_limit()
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")  # all of it
    assert machine_limits.memory_limit() == free
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert machine_limits.memory_limit() == GIB // 2
    monkeypatch.setattr(joblib, "cpu_count", lambda: 64)
    assert machine_limits.available_cores() == 64
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert machine_limits.available_cores() == 2


def test_no_more_threads_than_cores(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)  # a container's quota
    with limited_threads(None):
        pass
    assert asked == [2, 64]
