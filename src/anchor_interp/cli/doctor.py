"""The command ``doctor``: can this machine do the work? It changes nothing and needs no network."""

import contextlib
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from anchor_interp import __version__
from anchor_interp._util.errors import LockedError
from anchor_interp.cli.options import PLAIN, Outputs

_LEAST_FREE_BYTES = 1 << 30  # the quickstart's runs take 30 MB
_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}  # others are called as their package
_LOGGER = logging.getLogger(__name__)


def doctor(*, out: Path = Path("runs"), output: Outputs = PLAIN) -> int:
    """Check that this machine can do the work; exit code 1 if something is wrong.

    Args:
        out: Folder that runs will go to; it need not exist.
    """
    problems = list(_packages())
    lines = [
        f"anchor-interp {__version__}, Python {platform.python_version()}, {platform.platform()}",
        *([] if problems else _machine(problems)),
        _folder(out, problems),
    ]
    lines.append(f"problems: {len(problems)}" if problems else "no problem found")
    facts = {"ok": not problems, "problems": problems, "version": __version__, "lines": lines}
    output.show(facts, *lines)
    for problem in problems:
        _LOGGER.error(problem)
    return 1 if problems else 0


def _packages() -> Iterator[str]:
    """What is wrong with the packages that this one requires."""
    from importlib import metadata

    for requirement in metadata.requires("anchor-interp") or ():
        name = re.split(r"[^\w-]", requirement)[0]
        try:
            if "extra ==" not in requirement:
                import_module(_MODULES.get(name, name.replace("-", "_")))
        except Exception as error:
            yield f"{name} cannot be imported ({_line(error)}); install it again"


def _machine(problems: list[str]) -> Iterator[str]:
    """Lines about the processor, its threads and the devices."""
    import torch

    from anchor_interp._util.environment import cpu_model, devices
    from anchor_interp._util.machine_limits import available_cores
    from anchor_interp.models.fast_linear import onednn_fault

    yield (
        f"cpu       {cpu_model()}, {available_cores()} cores usable, {torch.get_num_threads()} "
        f"PyTorch threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    fault = onednn_fault()
    products = f"PyTorch's: {fault}" if fault else "oneDNN's, checked against PyTorch's"
    yield f"products  {products}"
    policy = os.environ.get("OMP_WAIT_POLICY") or "not set"
    yield (
        f"waiting   OMP_WAIT_POLICY is {policy} here. PASSIVE lets idle threads sleep; without it, "
        "a busy machine can make training 8 times slower\n"
        "          in a notebook: os.environ['OMP_WAIT_POLICY'] = 'PASSIVE' before importing torch"
    )
    for name, description in devices().items():
        state = "usable"
        try:
            ones = torch.ones(8, 8, device=name)
            if (total := ones.mm(ones).sum().item()) != 512:
                raise ValueError(f"8 x 8 ones squared sum to {total} instead of 512")
        except Exception as error:
            state = "NOT usable"
            problems.append(f"the device {name} cannot be used: {_line(error)}")
        yield f"device    {name:<8} {state}: {description}"


def _folder(out: Path, problems: list[str]) -> str:
    """A line about the folder for runs, or the nearest one above it that exists."""
    import tempfile

    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        room = "make room: a full disk stops training"
        problems.append(f"{folder} has {free / 1e6:,.0f} MB free; {room}")
    state = "NOT writable"
    try:
        with tempfile.TemporaryDirectory(prefix=".anchor-interp-doctor-", dir=folder) as scratch:
            (Path(scratch) / "file").write_bytes(bytes(4096))
            state = "writable, locks work"
            if not _locks_work(Path(scratch) / "lock"):
                state = "writable, locks do NOT work"
                problems.append(
                    f"locks do not work in {folder}: two processes could write the same run; "
                    "choose a folder on a local disk"
                )
    except OSError as error:
        problems.append(f"cannot write to {folder}: {error.strerror}; choose another folder")
    return f"folder    {folder}: {state}, {free / 1e9:,.1f} GB free"


def _locks_work(path: Path) -> bool:
    """Whether a held lock refuses a second holder."""
    from anchor_interp._util.lock import Lock, NoLocksError

    with contextlib.suppress(NoLocksError), Lock.acquire(path):
        try:
            Lock.acquire(path).release()
        except LockedError:
            return True
    return False


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
