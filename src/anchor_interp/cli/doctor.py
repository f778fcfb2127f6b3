"""Whether this machine can do the work: ``anchor-interp doctor``.

:func:`examine` looks at the interpreter, the packages, the devices, the caches and the folder that
runs go to, and collects everything that would make a command fail. It changes nothing and asks no
network.
"""

import fcntl
import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from anchor_interp import __version__

PACKAGE = "anchor-interp"


LEAST_FREE_BYTES = 1 << 30
"""Free space below which a folder is called nearly full; the quickstart's runs take 30 MB."""


_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}
"""Modules that are not called as their package."""


_OPTIONAL = ("tensorboard", "wandb")


@dataclass(frozen=True)
class Package:
    """A package that this one needs, or can use."""

    name: str
    """Its name."""
    installed: str | None
    """The version that is installed."""
    required: str
    """The versions that will do; empty for any."""
    optional: bool
    """Whether everything but its own feature works without it."""


@dataclass(frozen=True)
class Device:
    """Something that models can run on."""

    name: str
    """What to give to ``--device``."""
    description: str
    """The hardware."""
    usable: bool
    """Whether a small product came out right on it."""


@dataclass(frozen=True)
class Examination:
    """What was found; the fields are the keys of ``doctor --json``."""

    ok: bool
    """Whether there is no problem."""
    problems: tuple[str, ...]
    """What would make a command fail, one line each, with what to do."""
    version: str
    """Version of anchor-interp."""
    python: str
    """Version of Python."""
    system: str
    """Operating system and processor type."""
    packages: tuple[Package, ...]
    """Declared dependencies."""
    cpu: str
    """The processor."""
    cpu_capability: str
    """The vector instructions that PyTorch uses."""
    cores: int
    """Cores that this process may use."""
    threads: int
    """Threads that PyTorch uses unless told otherwise."""
    onednn: bool
    """Whether training takes the faster oneDNN path (:mod:`anchor_interp.models.linear`)."""
    devices: tuple[Device, ...]
    """What models can run on."""
    caches: dict[str, str]
    """Cache folders that exist, by library."""
    out: str
    """The folder examined, or the nearest one above it that exists."""
    out_writable: bool
    """Whether files can be written there."""
    out_locks: bool
    """Whether locks on its files keep a second process away."""
    out_free_bytes: int
    """Free space there, in bytes."""


def examine(out: Path) -> Examination:
    """Look at everything that runs in a folder depend on.

    Args:
        out: the folder that runs will go to; need not exist.
    """
    problems: list[str] = []
    packages = tuple(_packages(problems))
    machine = _machine(problems)
    folder = _folder(out, problems)
    return Examination(
        not problems,
        tuple(problems),
        __version__,
        platform.python_version(),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        packages,
        **machine,
        caches=_caches(),
        **folder,
    )


def describe(found: Examination) -> str:
    """The examination as text, without the problems."""
    lines = [
        f"anchor-interp {found.version}, Python {found.python}, {found.system}",
        f"cpu       {found.cpu}, {found.cores} cores usable, {found.threads} PyTorch threads, "
        f"{found.cpu_capability}, oneDNN path {'taken' if found.onednn else 'not available'}",
    ]
    for device in found.devices:
        state = "usable" if device.usable else "NOT usable"
        lines.append(f"device    {device.name:<8} {state}: {device.description}")
    lines += [
        f"package   {p.name:<18} {p.installed or 'not installed':<14} needs "
        f"{p.required or 'any version'}{' (optional)' if p.optional else ''}"
        for p in found.packages
    ]
    lines += [f"cache     {name:<12} {path}" for name, path in found.caches.items()]
    lines.append(
        f"folder    {found.out}: {'writable' if found.out_writable else 'NOT writable'}, locks "
        f"{'work' if found.out_locks else 'do NOT work'}, {found.out_free_bytes / 1e9:,.1f} GB free"
    )
    lines.append("no problem found" if found.ok else f"problems: {len(found.problems)}")
    return "\n".join(lines)


def _packages(problems: list[str]) -> Iterator[Package]:
    try:
        from packaging.requirements import Requirement

        needed = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
        python = metadata.metadata(PACKAGE)["Requires-Python"]
    except ImportError as error:  # PackageNotFoundError is one
        problems.append(f"{PACKAGE} is not installed whole ({error}); install it with pip")
        return
    if not Requirement(f"python{python}").specifier.contains(platform.python_version()):
        problems.append(f"Python is {platform.python_version()}; expected {python}")
    for requirement in needed:
        optional = requirement.marker is not None
        if optional and requirement.name not in _OPTIONAL:
            continue
        package = _package(requirement.name, str(requirement.specifier), optional)
        fits = package.installed and requirement.specifier.contains(package.installed, True)
        if not fits and (package.installed or not optional):
            problems.append(
                f"{package.name} is {package.installed or 'not installed'}; expected "
                f"{package.required or 'any version'}: pip install "
                f"'{package.name}{package.required}'"
            )
        elif not optional:
            _try_import(package.name, problems)
        yield package


def _package(name: str, required: str, optional: bool) -> Package:
    try:
        return Package(name, metadata.version(name), required, optional)
    except metadata.PackageNotFoundError:
        return Package(name, None, required, optional)


def _try_import(name: str, problems: list[str]) -> None:
    try:
        importlib.import_module(_MODULES.get(name, name.replace("-", "_")))
    except Exception as error:
        problems.append(f"{name} cannot be imported ({_line(error)}); install it again")


def _machine(problems: list[str]) -> dict[str, Any]:
    try:
        import torch

        from anchor_interp._util.environment import cpu_model
        from anchor_interp.models.linear import has_onednn_avx512
        from anchor_interp.sweeps.local import available_cores
    except Exception:
        return {
            "cpu": platform.processor(), "cpu_capability": "unknown", "cores": os.cpu_count() or 1,
            "threads": 0, "onednn": False, "devices": (),
        }  # fmt: skip
    devices = [("cpu", cpu_model())]
    for index in range(torch.cuda.device_count()):
        devices.append((f"cuda:{index}", torch.cuda.get_device_name(index)))
    if torch.backends.mps.is_available():
        devices.append(("mps", "Apple GPU"))
    return {
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "onednn": has_onednn_avx512(),
        "devices": tuple(Device(*found, _works(found[0], problems)) for found in devices),
    }


def _works(device: str, problems: list[str]) -> bool:
    import torch

    try:
        total = torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device)).sum().item()
        reason = f"8 x 8 ones multiply to a sum of {total}"
    except Exception as error:
        total, reason = 0.0, _line(error)
    if total != 512:
        problems.append(f"the device {device} cannot be used: {reason}")
    return total == 512


def _folder(out: Path, problems: list[str]) -> dict[str, Any]:
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        problems.append(
            f"{folder} has {free / 1e6:,.0f} MB free; make room, a full disk stops a training"
        )
    writable, locks = False, False
    try:
        with tempfile.TemporaryDirectory(prefix=".anchor-interp-doctor-", dir=folder) as scratch:
            (Path(scratch) / "file").write_bytes(bytes(4096))
            writable = True
            locks = _locks(Path(scratch) / "lock")
        if not locks:
            problems.append(
                f"locks do not work in {folder}: nothing keeps two processes from writing one run; "
                "choose a folder on a local disk"
            )
    except OSError as error:
        problems.append(f"cannot write to {folder}: {error.strerror}; choose another folder")
    return {
        "out": str(folder), "out_writable": writable, "out_locks": locks, "out_free_bytes": free,
    }  # fmt: skip


def _locks(path: Path) -> bool:
    """Whether a lock that is held refuses a second holder."""
    try:
        with open(path, "a+") as first, open(path, "a+") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False


def _caches() -> dict[str, str]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    known = {
        "huggingface": Path(os.environ.get("HF_HOME") or home / "huggingface"),
        "torch": Path(os.environ.get("TORCH_HOME") or home / "torch"),
        "matplotlib": Path(os.environ.get("MPLCONFIGDIR") or home / "matplotlib"),
    }
    return {name: str(path) for name, path in known.items() if path.exists()}


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
