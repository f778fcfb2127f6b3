"""How many cores and how much memory this process may use, and how many processes it is one of."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Cores within the affinity, a container's quota, LOKY_MAX_CPU_COUNT and Slurm's allocation."""
    import joblib

    cores: int = joblib.cpu_count()
    return min([cores, *_number_in("SLURM_CPUS_PER_TASK"), *_number_in("SLURM_CPUS_ON_NODE")])


def memory_limit() -> int:
    """Bytes within the machine, ``ulimit -v``, the control groups and Slurm's allocation."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    limits += [megabytes << 20 for megabytes in _number_in("SLURM_MEM_PER_NODE")]
    return min([*limits, *_cgroup_limits()])


def launched() -> int:
    """How many processes a launcher such as ``accelerate launch`` started with this one."""
    return max([1, *_number_in("WORLD_SIZE")])


def _number_in(variable: str) -> list[int]:
    """The number in a variable that Slurm or a launcher sets, if there is one above 0."""
    value = os.environ.get(variable, "")
    return [int(value)] if value.isdecimal() and int(value) else []  # 0: all of the node's memory


def _cgroup_limits() -> Iterator[int]:
    """Memory limits of this process's control groups and those above, of version 1 and 2."""
    lines = []
    with contextlib.suppress(OSError):  # not Linux
        lines = _OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, kinds, group = line.split(":", 2)
        if kinds == "":
            root, name = _CGROUPS, "memory.max"
        elif "memory" in kinds.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = root / group.lstrip("/")
        for folder in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # no limit here, or the text "max"
                yield int((folder / name).read_text(encoding="ascii"))
