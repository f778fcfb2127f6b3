"""Faults of a sweep: kills, several drivers, a full disk. A script, and a helper of tests.

``python sweep_faults.py [--kills N] [--only NAME]`` prints one JSON object. Every scenario runs the
command line in processes of its own, injects a fault, repeats the command until it succeeds, and
compares the table with that of an undisturbed sweep, row for row. Only the columns of
:data:`anchor_interp.sweeps.columns.CIRCUMSTANCES` may differ. One run of the sweep diverges.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from short import SHORT

import anchor_interp
from anchor_interp.runs.config import override
from anchor_interp.sweeps.columns import CIRCUMSTANCES, TableRow
from anchor_interp.sweeps.folder import ENDED, SweepFolder, counts
from anchor_interp.sweeps.spec import Grid, Sweep

LONG_ENOUGH = SHORT | {"steps": 400, "log_every": 20, "eval_every": 100, "checkpoint_every": 50}
"""Runs of a few seconds, long enough for a fault."""

_PATIENCE_SECONDS = 300.0


def small_sweep(**changes: Any) -> Sweep:
    """Six runs and one that diverges."""
    start = anchor_interp.preset("tiny", **(LONG_ENOUGH | changes))
    # without moments and epsilon an update is a tiny gradient over the root of its square: over 0
    adam = {"lr": 10.0, "beta1": 0.0, "beta2": 0.0, "eps": 1e-30, "weight_decay": 0.0}
    shape = {"n_layers": 6, "normalization": "pre"}
    diverging = override(start, gamma=4.0, clip=None, **adam, **shape)
    return Sweep((Grid(start, {"gamma": (0.3, 0.6, 0.9)}, seeds=(0, 1)), Grid(diverging)))


def what_counts(found: list[TableRow]) -> list[TableRow]:
    """Rows without the columns that may differ between two sweeps."""
    return [{k: v for k, v in row.items() if k not in CIRCUMSTANCES} for row in found]


@dataclass(frozen=True)
class World:
    """Where scenarios run and what they are compared with."""

    root: Path
    """A folder for all scenarios."""
    expected: list[TableRow]
    """The rows of an undisturbed sweep."""
    chance: random.Random
    """Decides when faults happen."""
    plan: Sweep
    """What is swept."""

    def spec(self, out: Path) -> Path:
        """Write the sweep's file into its folder."""
        SweepFolder(out).extend(self.plan)
        return out / "spec.yaml"

    def start(self, out: Path, *engine: str) -> subprocess.Popen[bytes]:
        """Start the command, by default with two workers."""
        spec = out / "spec.yaml" if (out / "spec.yaml").exists() else self.spec(out)
        command = [sys.executable, "-m", "anchor_interp", "sweep", str(spec), "--out", str(out)]
        command += ["--device", "cpu", *(engine or ("--workers", "2"))]
        with open(out / ".errors", "ab") as errors:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)

    def finish(self, out: Path) -> None:
        """Repeat the command until it succeeds."""
        for _ in range(3):
            if self.start(out).wait(_PATIENCE_SECONDS) == 0:
                return

    def verdict(self, out: Path) -> str:
        """What is wrong with the final table; empty if nothing is."""
        found = SweepFolder(out).rows()
        if what_counts(found) == what_counts(self.expected):
            said = (out / ".errors").read_text(errors="replace")
            return "a traceback" if "Traceback" in said else ""
        return f"the table differs: {counts(found)}"


def build_world(root: Path, seed: int = 0, **changes: Any) -> World:
    """Sweep once undisturbed."""
    world = World(root, [], random.Random(seed), small_sweep(**changes))
    out = root / "undisturbed"
    world.finish(out)
    found = SweepFolder(out).rows()
    assert counts(found) == {"done": 6, "diverged": 1}, counts(found)
    world.expected.extend(found)
    return world


def children(process: int) -> list[int]:
    """The child processes of a process, from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(entry.name))
    return found


def workers(driver: int) -> list[int]:
    """The worker processes of a driver: children of the server that forks them."""
    return [worker for server in children(driver) for worker in children(server)]


def kill_the_driver(world: World, out: Path, times: int) -> dict[str, Any]:
    """SIGKILL the driver at random moments; its workers end by themselves.

    Only kills of a driver with unfinished runs count; ``early`` ones came before a run had begun.
    """
    done = early = 0
    for _ in range(times):
        driver = world.start(out)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(world.chance.uniform(0.5, 12))
        states = set(SweepFolder(out).states(world.plan.configs()).values())
        if driver.poll() is None and states - ENDED:
            done += 1
            early += "running" not in states
        driver.kill()
        driver.wait()
    world.finish(out)
    return {"kills": done, "early": early}


def kill_workers(world: World, out: Path, times: int) -> dict[str, Any]:
    """SIGKILL workers, or what forks them, at random moments; the driver starts others."""
    driver, done = world.start(out), 0
    while driver.poll() is None and done < times:
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(world.chance.uniform(4, 10))
        victims = workers(driver.pid) + children(driver.pid)
        if victims and driver.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(world.chance.choice(victims), signal.SIGKILL)
                done += 1
    code = driver.wait(_PATIENCE_SECONDS)
    if code:  # a run that lost three workers counts as failed until the sweep is started again
        world.finish(out)
    return {"kills": done, "exit_code": code}


def two_drivers(world: World, out: Path, times: int) -> dict[str, Any]:
    """Two drivers on one folder; one is killed and a third joins."""
    world.spec(out)
    first, second = world.start(out), world.start(out)
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(world.chance.uniform(8, 14))
    killed = first.poll() is None
    if killed:
        first.kill()
    first.wait()
    third = world.start(out)
    codes = [driver.wait(_PATIENCE_SECONDS) for driver in (second, third)]
    return {"killed_one": killed, "exit_codes": codes}


def full_disk(world: World, out: Path, times: int) -> dict[str, Any]:
    """A small disk fills up during the sweep and is freed again."""
    with _small_disk(out):
        world.spec(out)
        driver = world.start(out)
        while not counts(SweepFolder(out).rows()).get("done") and driver.poll() is None:
            time.sleep(0.2)
        ballast = out / ".ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        code = driver.wait(_PATIENCE_SECONDS)
        states = counts(SweepFolder(out).rows())
        ballast.unlink()
        world.finish(out)
        return {"exit_code_when_full": code, "when_full": states, "verdict": world.verdict(out)}


def kill_a_ray_node(world: World, out: Path, times: int) -> dict[str, Any]:
    """A machine of a Ray cluster dies during its task, and another joins."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError as error:
        raise PermissionError("a cluster needs the package ray") from error
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    room: dict[str, Any] = {"object_store_memory": 80 << 20}
    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **room}
    )
    try:
        nodes = [cluster.add_node(num_cpus=1, **room) for _ in range(2)]
        world.spec(out)
        driver = world.start(out, "--engine", "ray", "--address", cluster.address)
        folder, killed = SweepFolder(out), 0
        while not counts(folder.rows()).get("done") and driver.poll() is None:
            time.sleep(0.5)
        time.sleep(world.chance.uniform(1, 4))
        if driver.poll() is None:
            cluster.remove_node(nodes[0], allow_graceful=False)
            cluster.add_node(num_cpus=1, **room)
            killed = 1
        return {"kills": killed, "exit_code": driver.wait(_PATIENCE_SECONDS)}
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, check=False)
    if done.returncode:
        raise PermissionError("a small disk needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


SCENARIOS: dict[str, Callable[[World, Path, int], dict[str, Any]]] = {
    "kill_the_driver": kill_the_driver,
    "kill_workers": kill_workers,
    "two_drivers": two_drivers,
    "full_disk": full_disk,
    "kill_a_ray_node": kill_a_ray_node,
}
"""Each takes the world, the sweep's folder and the number of faults."""


def happen(world: World, name: str, times: int) -> dict[str, Any]:
    """Run a scenario; ``verdict`` says what is wrong afterwards, empty if nothing is."""
    out, began = world.root / name, time.monotonic()
    try:
        found = SCENARIOS[name](world, out, times)
    except PermissionError as error:
        return {"scenario": name, "not_possible": str(error)}
    verdict = found.pop("verdict", None)
    verdict = world.verdict(out) if verdict is None else verdict
    return {"scenario": name, **found, "verdict": verdict, "seconds": time.monotonic() - began}


def main() -> int:
    """Run every scenario; 1 if a table is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs of the driver")
    parser.add_argument("--only", choices=SCENARIOS, help="one scenario alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        # long enough that a run is left at each kill
        world = build_world(Path(root), steps=max(400, 300 * arguments.kills), checkpoint_every=100)
        found = []
        for name in [arguments.only] if arguments.only else SCENARIOS:
            found.append(happen(world, name, arguments.kills))
            print(f"{name}: {found[-1]}", file=sys.stderr)
    print(json.dumps({"runs": len(world.expected), "scenarios": found}, indent=1))
    return 1 if any(one.get("verdict") for one in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
