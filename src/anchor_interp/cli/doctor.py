"""The command ``doctor``: can this machine do the work? It changes nothing and needs no network."""

import importlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from anchor_interp import __version__
from anchor_interp._util.errors import LockedError, StoreError
from anchor_interp._util.files import cache_folder
from anchor_interp.cli.options import PLAIN, Outputs

_LEAST_FREE_BYTES = 1 << 30  # the quickstart's runs take 30 MB
_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}  # packages whose module has another name
_OPTIONAL = ("tensorboard", "wandb")
_LOGGER = logging.getLogger(__name__)


def doctor(*, out: Path = Path("runs"), output: Outputs = PLAIN) -> int:
    """Check that this machine can do the work; exit code 1 if something is wrong.

    Args:
        out: Folder that runs will go to; it need not exist.
    """
    problems: list[str] = []
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    lines = [
        f"anchor-interp {__version__}, Python {platform.python_version()}, {system}",
        *_packages(problems),  # first: the machine is examined with some of them
        *_machine(problems),
        *_cache(),
        *_folder(out, problems),
    ]
    lines.append(f"problems: {len(problems)}" if problems else "no problem found")
    facts = {"ok": not problems, "problems": problems, "version": __version__, "lines": lines}
    output.show(facts, *lines)
    for problem in problems:
        _LOGGER.error(problem)
    return 1 if problems else 0


def _packages(problems: list[str]) -> Iterator[str]:
    """A line for each declared dependency."""
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
    for name, requirement in named.items():
        optional = requirement.marker is not None
        if optional and name not in _OPTIONAL:
            continue
        required = str(requirement.specifier)
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
        need = f"needs {required or 'any version'}{' (optional)' if optional else ''}"
        yield f"package   {name:<18} {installed or 'not installed':<14} {need}"


def _machine(problems: list[str]) -> Iterator[str]:
    """Lines about the processor, its threads and the devices."""
    try:
        import torch

        from anchor_interp._util.environment import cpu_model
        from anchor_interp._util.limits import available_cores
        from anchor_interp.models.linear import onednn_fault
    except Exception:  # the problems of the packages say why
        return
    yield (
        f"cpu       {cpu_model()}, {available_cores()} cores usable, {torch.get_num_threads()} "
        f"PyTorch threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    fault = onednn_fault()
    products = f"PyTorch's: {fault}" if fault else "oneDNN's, checked against PyTorch's"
    yield f"products  {products}"
    yield (
        f"waiting   OMP_WAIT_POLICY is {os.environ.get('OMP_WAIT_POLICY') or 'not set'} here. "
        "PASSIVE lets idle threads sleep; without it, a busy machine can make training 8 times "
        "slower"
    )
    yield (
        "          in a notebook: os.environ['OMP_WAIT_POLICY'] = 'PASSIVE' before importing torch"
    )
    devices = {"cpu": cpu_model()}
    for index in range(torch.cuda.device_count()):
        devices[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    for name, description in devices.items():
        reason = _device_fault(name)
        if reason:
            problems.append(f"the device {name} cannot be used: {reason}")
        yield f"device    {name:<8} {'NOT usable' if reason else 'usable'}: {description}"


def _device_fault(name: str) -> str:
    """Why a device cannot multiply matrices; empty if it can."""
    import torch

    try:
        total = torch.ones(8, 8, device=name).mm(torch.ones(8, 8, device=name)).sum().item()
    except Exception as error:
        return _line(error)
    return "" if total == 512 else f"8 x 8 ones squared sum to {total} instead of 512"


def _cache() -> Iterator[str]:
    """Where corpora are kept; no problem if there is no place, as most tasks need none."""
    try:
        yield f"cache     {cache_folder()}"
    except StoreError as error:
        yield f"cache     none: {error}"


def _folder(out: Path, problems: list[str]) -> Iterator[str]:
    """A line about the nearest folder that exists."""
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        problems.append(
            f"{folder} has {free / 1e6:,.0f} MB free; make room: a full disk stops training"
        )
    writable = locks = False
    try:
        with tempfile.TemporaryDirectory(prefix=".anchor-interp-doctor-", dir=folder) as scratch:
            (Path(scratch) / "file").write_bytes(bytes(4096))
            writable = True
            locks = _locks_work(Path(scratch) / "lock")
        if not locks:
            problems.append(
                f"locks do not work in {folder}: two processes could write the same run; choose a "
                "folder on a local disk"
            )
    except OSError as error:
        problems.append(f"cannot write to {folder}: {error.strerror}; choose another folder")
    yield (
        f"folder    {folder}: {'writable' if writable else 'NOT writable'}, "
        f"locks {'work' if locks else 'do NOT work'}, {free / 1e9:,.1f} GB free"
    )


def _locks_work(path: Path) -> bool:
    """Whether a held lock refuses a second holder."""
    from anchor_interp._util.lock import Lock, NoLocksError

    try:
        held = Lock.acquire(path)
    except NoLocksError:
        return False
    try:
        Lock.acquire(path).release()
    except LockedError:
        return True
    finally:
        held.release()
    return False


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
