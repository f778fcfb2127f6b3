"""The machine of a run: description, devices and threads."""

import contextlib
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.machine_limits import available_cores
from anchor_interp._util.schema import checked, shown

BIT_FOR_BIT = ("versions", "machine", "cpu", "device", "threads")
"""If all of these stay the same, a resumed run ends in the same weights bit for bit."""

DEVICES = ("auto", "cpu", "cuda", "mps")
MAX_THREADS = 1024
_PACKAGES = ("anchor-interp", "torch", "transformer-lens", "numpy", "safetensors")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine, device, threads and the time, as JSON values."""
    return {
        "started": now(),
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in _PACKAGES}},
        "cpu": f"{cpu_model()} ({torch.backends.cpu.get_cpu_capability()})",
        "machine": f"{platform.node()} {platform.machine()} {platform.system()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


def cpu_model() -> str:
    """The name of the processor, or ``unknown``."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def now() -> str:
    """The time in UTC to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def resolve_device(name: str | torch.device) -> torch.device:
    """The device; ``auto`` is a GPU if there is one, else the CPU. ConfigError if there is none."""
    checked(name, str | torch.device, "device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reason = "another kind of device"
    if str(name).split(":")[0] in DEVICES:
        try:
            torch.empty(0, device=name)
            return torch.device(name)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).split(". ")[0].splitlines()[0]
    here = f"expected auto or what this machine has: {', '.join(devices())}"
    raise ConfigError(f"device is {shown(name)}, which cannot be used here ({reason}); {here}")


def devices() -> dict[str, str]:
    """The devices of this machine and what each is."""
    n_gpus = torch.cuda.device_count()
    gpus = {f"cuda:{index}": torch.cuda.get_device_name(index) for index in range(n_gpus)}
    apple = {"mps": "Apple GPU"} if torch.backends.mps.is_available() else {}
    return {"cpu": cpu_model(), **gpus, **apple}


@contextlib.contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Use this many CPU threads, 1 to 1024, inside the block.

    None keeps PyTorch's setting, lowered to the cores that this process may use: PyTorch does not
    know a container's quota.
    """
    checked(threads, int | None, "threads", low=1, high=MAX_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or min(before, available_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
