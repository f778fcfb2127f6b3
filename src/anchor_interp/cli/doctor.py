"""The command ``doctor``: can this machine do the work? It changes nothing and needs no network."""

import importlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from anchor_interp import __version__
from anchor_interp.cli.options import PLAIN, Outputs
from anchor_interp.runs.lock import try_lock

_LEAST_FREE_BYTES = 1 << 30  # the quickstart's runs take 30 MB
_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}  # packages whose module has another name
_CACHES = {"huggingface": "HF_HOME", "torch": "TORCH_HOME", "matplotlib": "MPLCONFIGDIR"}
_OPTIONAL = ("tensorboard", "wandb")
_LOGGER = logging.getLogger(__name__)


def doctor(*, out: Path = Path("runs"), output: Outputs = PLAIN) -> int:
    """Check that this machine can do the work; exit code 1 if something is wrong.

    Args:
        out: Folder that runs will go to.
    """
    found = examine(out)
    output.show(found, describe(found))
    for problem in found["problems"]:
        _LOGGER.error(problem)
    return 0 if found["ok"] else 1


def examine(out: Path) -> dict[str, Any]:
    """Look at everything that runs in the folder ``out`` depend on; the folder need not exist."""
    problems: list[str] = []
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    caches = {name: Path(os.environ.get(v) or home / name) for name, v in _CACHES.items()}
    found = {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": list(_packages(problems)),
        **_machine(problems),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "caches": {name: str(path) for name, path in caches.items() if path.exists()},
        **_folder(out, problems),
    }
    return {"ok": not problems, "problems": problems, **found}


def describe(found: Mapping[str, Any]) -> str:
    """The examination as text, without the problems."""
    lines = [
        f"anchor-interp {found['version']}, Python {found['python']}, {found['system']}",
        f"cpu       {found['cpu']}, {found['cores']} cores usable, {found['threads']} PyTorch "
        f"threads, {found['cpu_capability']}",
        f"products  {found['products']}",
        f"waiting   OMP_WAIT_POLICY is {found['omp_wait_policy'] or 'not set'} here. PASSIVE lets "
        "idle threads sleep; without it, a busy machine can make training 8 times slower",
        "          in a notebook: os.environ['OMP_WAIT_POLICY'] = 'PASSIVE' before importing torch",
    ]
    for device in found["devices"]:
        state = "usable" if device["usable"] else "NOT usable"
        lines.append(f"device    {device['name']:<8} {state}: {device['description']}")
    for package in found["packages"]:
        lines.append(
            f"package   {package['name']:<18} {package['installed'] or 'not installed':<14} needs "
            f"{package['required'] or 'any version'}{' (optional)' if package['optional'] else ''}"
        )
    lines += [f"cache     {name:<12} {path}" for name, path in found["caches"].items()]
    lines.append(
        f"folder    {found['out']}: {'writable' if found['out_writable'] else 'NOT writable'}, "
        f"locks {'work' if found['out_locks'] else 'do NOT work'}, "
        f"{found['out_free_bytes'] / 1e9:,.1f} GB free"
    )
    lines.append("no problem found" if found["ok"] else f"problems: {len(found['problems'])}")
    return "\n".join(lines)


def _packages(problems: list[str]) -> Iterator[dict[str, Any]]:
    try:
        from packaging.requirements import Requirement

        needed = [Requirement(text) for text in metadata.requires("anchor-interp") or ()]
        python = metadata.metadata("anchor-interp")["Requires-Python"]
    except ImportError as error:  # PackageNotFoundError is one
        problems.append(f"the installation of anchor-interp is incomplete ({error}); use pip")
        return
    if not Requirement(f"python{python}").specifier.contains(platform.python_version()):
        problems.append(f"Python is {platform.python_version()}; expected {python}")
    named: dict[str, Requirement] = {}  # several extras may ask for one package
    for requirement in needed:
        named.setdefault(requirement.name, requirement)
    for requirement in named.values():
        name, required = requirement.name, str(requirement.specifier)
        optional = requirement.marker is not None
        if optional and name not in _OPTIONAL:
            continue
        installed = next((found.version for found in metadata.distributions(name=name)), None)
        fits = installed and requirement.specifier.contains(installed, True)
        if not fits and (installed or not optional):
            problems.append(
                f"{name} is {installed or 'not installed'}; expected {required or 'any version'}: "
                f"pip install '{name}{required}'"
            )
        elif not optional:
            try:
                importlib.import_module(_MODULES.get(name, name.replace("-", "_")))
            except Exception as error:
                problems.append(f"{name} cannot be imported ({_line(error)}); install it again")
        yield {"name": name, "installed": installed, "required": required, "optional": optional}


def _machine(problems: list[str]) -> dict[str, Any]:
    try:
        import torch

        from anchor_interp._util.environment import cpu_model
        from anchor_interp._util.limits import available_cores
        from anchor_interp.models.linear import onednn_fault
    except Exception:  # the problems of the packages say why
        return {
            "cpu": platform.processor(), "cpu_capability": "unknown", "cores": os.cpu_count() or 1,
            "threads": 0, "onednn": False, "products": "unknown", "devices": [],
        }  # fmt: skip
    names = {"cpu": cpu_model()}
    for index in range(torch.cuda.device_count()):
        names[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    if torch.backends.mps.is_available():
        names["mps"] = "Apple GPU"
    devices = []
    for name, description in names.items():
        try:
            total = torch.ones(8, 8, device=name).mm(torch.ones(8, 8, device=name)).sum().item()
            reason = "" if total == 512 else f"8 x 8 ones squared sum to {total} instead of 512"
        except Exception as error:
            reason = _line(error)
        if reason:
            problems.append(f"the device {name} cannot be used: {reason}")
        devices.append({"name": name, "description": description, "usable": not reason})
    fault = onednn_fault()
    return {
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "onednn": not fault,
        "products": f"PyTorch's: {fault}" if fault else "oneDNN's, checked against PyTorch's",
        "devices": devices,
    }


def _folder(out: Path, problems: list[str]) -> dict[str, Any]:
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        room = "make room: a full disk stops training"
        problems.append(f"{folder} has {free / 1e6:,.0f} MB free; {room}")
    writable, locks = False, False
    try:
        with tempfile.TemporaryDirectory(prefix=".anchor-interp-doctor-", dir=folder) as scratch:
            (Path(scratch) / "file").write_bytes(bytes(4096))
            writable = True
            locks = _locks(Path(scratch) / "lock")
        if not locks:
            problems.append(
                f"locks do not work in {folder}: two processes could write the same run; choose a "
                "folder on a local disk"
            )
    except OSError as error:
        problems.append(f"cannot write to {folder}: {error.strerror}; choose another folder")
    return {
        "out": str(folder), "out_writable": writable, "out_locks": locks, "out_free_bytes": free,
    }  # fmt: skip


def _locks(path: Path) -> bool:
    """Whether a held lock refuses a second holder."""
    try:
        with open(path, "a+") as first, open(path, "a+") as second:
            return try_lock(first.fileno()) and not try_lock(second.fileno())
    except OSError:
        return False


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
