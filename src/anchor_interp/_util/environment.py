"""The machine and the process of a run: description, devices, threads and signals."""

import contextlib
import platform
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from anchor_interp._util.errors import ConfigError, InterruptedRunError
from anchor_interp._util.limits import available_cores
from anchor_interp._util.schema import checked, shown

BIT_FOR_BIT = ("versions", "machine", "cpu", "device", "threads")
"""If all of these stay the same, a resumed run ends in the same weights bit for bit."""

DEVICES = ("auto", "cpu", "cuda", "mps")
MAX_THREADS = 1024
PATIENCE_SECONDS = 2.0
"""A second signal after this many seconds stops the process at once."""
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


class StopRequest:
    """Tells a loop, which asks between two steps, whether SIGINT or SIGTERM has arrived."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._at_once: str | None = None

    def __call__(self) -> bool:
        """Whether a signal has arrived."""
        return self._first is not None

    @contextlib.contextmanager
    def at_once(self, message: str) -> Iterator[None]:
        """Raise InterruptedRunError at once on a signal inside this block, which must not write."""
        self._at_once = message
        try:
            if self():
                raise InterruptedRunError(message)
            yield
        finally:
            self._at_once = None

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._first is None:
            self._first = time.monotonic()
            if self._at_once is not None:
                raise InterruptedRunError(self._at_once)
        # One Ctrl-C can arrive twice, from the terminal and from the parent. A later second one
        # means that the user does not want to wait for the loop.
        elif time.monotonic() - self._first > PATIENCE_SECONDS:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Collect SIGINT and SIGTERM in a :class:`StopRequest` inside the block.

    A second signal more than two seconds later raises KeyboardInterrupt. Outside the main thread,
    where Python cannot handle signals, the request never reports one. A signal whose handler was
    set from C keeps it, as Python could not set it back.
    """
    request = StopRequest()
    with _handling(request.note):
        yield request


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt inside the block (main thread only)."""
    return _handling(signal.default_int_handler)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    ours = {number: earlier for number, earlier in before.items() if earlier is not None}
    try:
        with contextlib.suppress(ValueError):  # raised outside the main thread
            for number in ours:
                signal.signal(number, handler)
        yield
    finally:
        with contextlib.suppress(ValueError):
            for number, earlier in ours.items():
                signal.signal(number, earlier)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
