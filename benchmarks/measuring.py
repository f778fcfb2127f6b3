"""What the benchmarks share: turns, ratios, fresh processes, what is kept, and tables."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anchor_interp._util.environment import cpu_model
from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.files import read_json, write_json

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
CACHE = ROOT / ".cache"

Row = dict[str, Any]
"""What was measured of one case, as JSON values."""


def machine() -> Row:
    """What the numbers were measured on."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "bf16": torch.cpu._is_avx512_bf16_supported(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def seconds(step: Callable[[int], object], n: int) -> float:
    """Mean time of n calls."""
    began = time.perf_counter()
    for i in range(n):
        step(i)
    return (time.perf_counter() - began) / n


def in_turns(
    ways: Mapping[str, Callable[[], Any]], turns: int, values: Row | None = None
) -> dict[str, list[float]]:
    """Seconds of every way, one after the other in each turn; what they return goes to values."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.perf_counter()
            found = way()
            times[name].append(time.perf_counter() - began)
            if values is not None:
                values[name] = found
    return times


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median and range of the ratio, turn by turn."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


@dataclass(frozen=True)
class Ended:
    """What a process took."""

    seconds: float
    """From its start to its end."""
    cpu_seconds: float
    """Processor time of all its processes, which other work on the machine changes less."""
    peak_bytes: int
    """Largest resident memory of any one process in it."""
    output: str
    """What it printed."""


_LAUNCHER = """
import json, os, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
took = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
print(json.dumps([done.returncode, took, cpu, peak, done.stdout]))
"""


def process(*command: str) -> Ended:
    """Run ``python COMMAND`` by itself on one thread.

    Linux counts the memory of the process that starts another as the other's at first, so a small
    one lies between.

    Raises:
        RuntimeError: the process failed; its own message is on standard error.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, sys.executable, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    code, took, cpu, peak, output = json.loads(done.stdout)
    if code:
        raise RuntimeError(f"python {' '.join(command)} ended with exit code {code}")
    return Ended(took, cpu, peak, output)


class Kept:
    """Finished cases of a benchmark under ``.cache``, until all of them are there."""

    def __init__(self, name: str, settings: Any, *, cache: Path = CACHE) -> None:
        self._folder = cache / name
        self._settings = {"settings": settings, "machine": machine()}

    def row(self, case: str, measure: Callable[[], Row]) -> Row:
        """What was measured of a case with these settings on this machine, now or before."""
        path = self._folder / f"{case}.json"
        kept = read_json(path) if path.exists() else {}
        if {name: kept.get(name) for name in self._settings} != self._settings:
            print(f"{self._folder.name}: {case}", file=sys.stderr, flush=True)
            kept = self._settings | {"row": measure()}
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(path, kept)
        found: Row = kept["row"]
        return found

    def clear(self) -> None:
        """Forget everything, so that the next time measures anew."""
        for path in self._folder.glob("*.json"):
            path.unlink()


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def number(value: float, digits: int = 2) -> str:
    """A number with so many significant digits and no exponent."""
    places = max(0, digits - len(f"{abs(value):.0f}".lstrip("0")))
    rounded = float(f"{value:.{digits}g}")
    if rounded and abs(rounded) < 1:
        return f"{rounded:.10f}".rstrip("0")
    return f"{rounded:,.{places}f}"


def of_range(found: Mapping[str, float], digits: int = 2) -> str:
    """Median and range as text, ``1.9 (1.8 to 2.0)``."""
    low, middle, high = (number(found[name], digits) for name in ("low", "median", "high"))
    return f"**{middle}** ({low} to {high})"


def described(on: Row) -> str:
    """One sentence about the machine."""
    bf16 = "with" if on["bf16"] else "without"
    threads = "1 thread" if on["threads"] == 1 else f"{on['threads']} threads"
    return (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['capability']}, {bf16} bfloat16 "
        f"instructions, PyTorch {on['torch']}, {threads}.\n"
    )


Tables = Callable[[Row], dict[str, str]]
"""Tables in Markdown by name, from a benchmark's JSON."""


def answer(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    measured: Callable[[argparse.Namespace], Row],
    tables: Tables,
) -> None:
    """Print what was measured, or the file that ``--table`` names, as JSON or as tables."""
    try:
        found = read_json(options.table) if options.table else measured(options)
    except AnchorInterpError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(described(found["machine"]))
    print("\n".join(tables(found).values()), end="")
