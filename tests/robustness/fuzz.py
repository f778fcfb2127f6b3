"""Damaged input for everything that reads input, until the time is over.

Hypothesis builds and shrinks the cases: configurations with wrong values, misspelt, missing and
doubled names; command-line flags with any text; and run folders in which one file was damaged bit
by bit, field by field, or exchanged for something else. The only outcomes allowed are success and
one of this package's own errors in one line; anything else is kept with the smallest input that
brings it about and with its traceback, and the exit code is 1.

    python tests/robustness/fuzz.py --minutes 30 --seed 0 --json docs/evidence/fuzz.json
"""

import argparse
import base64
import contextlib
import copy
import io
import json
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from power_cut import power_cut
from safetensors.torch import load, save

import anchor_interp
from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.cli.main import main as command_line
from anchor_interp.runs.config import RunConfig, override, read_config
from anchor_interp.runs.presets import RUNS

STUCK_AFTER_SECONDS = 60
MEMORY_BYTES = 8 << 30
"""What a case may allocate beyond what is in use at the start."""

SMALL = {
    "d_model": 4, "d_head": 4, "d_mlp": 4, "d_vocab": 110, "n_ctx": 9, "n_sequences": 20,
    "batch_size": 5, "steps": 6, "log_every": 1, "eval_every": 2, "checkpoint_every": 2,
}  # fmt: skip
STOPPED_AT = 5
FIELDS = sorted(
    field.name
    for part in ("task", "model", "init", "train")
    for field in fields(getattr(RUNS["tiny"], part))
)

# --- what is wrong with the input -----------------------------------------------------------------

_TEXTS = [
    "",
    "\ud800",
    "\0",
    "\x1b[2J",
    "\n",
    "x" * 5_000,
    "NaN",
    "1e999",
    "../../x",
    "<b>",
    "None",
]
_NUMBERS = [2**31, 2**63, -(2**63), 10**400, 1e308, 5e-324, float("nan"), float("inf"), -0.0, 1e15]
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from(_NUMBERS)
    | st.floats()
    | st.sampled_from(_TEXTS)
    | st.text(max_size=8)
)
values = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
"""Any JSON value, the awkward ones often."""

_DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
_DTYPES += [torch.int64, torch.uint16, torch.bool]
_PLACE = st.integers(0, 1 << 20)
_CHANGES = st.tuples(st.sampled_from(("set", "remove", "rename", "add")), _PLACE, values)
_TEXT_CHANGES = st.tuples(
    st.sampled_from(("keep", "keep", "keep", "double", "deep", "digits", "bom", "utf-16", "huge")),
    st.integers(1, 200_000),
)
_BYTE_CHANGES = st.tuples(
    st.sampled_from(("flip", "cut", "insert", "delete", "repeat", "overwrite")),
    _PLACE,
    st.binary(min_size=1, max_size=12),
)


def change_tree(tree: Any, change: tuple[str, int, Any]) -> Any:
    """A JSON value with one change at one of its places, counted through."""
    kind, place, value = change
    tree = copy.deepcopy(tree)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        names = list(node) if isinstance(node, dict) else range(len(node))
        for name in names:
            places.append((node, name))
            if isinstance(node[name], dict | list):
                walk(node[name])

    if isinstance(tree, dict | list):
        walk(tree)
    if not places:
        return value
    node, name = places[place % len(places)]
    if kind == "set":
        node[name] = value
    elif kind == "remove":
        del node[name]
    elif isinstance(node, list):
        node.append(value)
    elif kind == "rename":
        node[f"{name[:-1]}e"] = node.pop(name)
    else:
        node[f"{name}{str(value)[:20]}"] = value
    return tree


def change_text(text: str, change: tuple[str, int]) -> bytes:
    """JSON text with one change that no tree can express."""
    kind, n = change
    if kind == "double":
        start = text.find('"', n % max(1, len(text)))
        name = text[start : text.find(":", start) + 1]
        text = text.replace(name, f"{name} 1, {name}", 1) if name else text
    elif kind == "deep":
        text = text.replace(": ", ": " + "[" * n + "]" * n + ", ", 1)
    elif kind == "digits":
        text = text.replace("1", "1" * (n % 6_000), 1)
    elif kind == "huge":
        text += " " * (8 * n)
    elif kind == "bom":
        return text.encode("utf-8-sig")
    elif kind == "utf-16":
        return text.encode("utf-16")
    return text.encode()


def change_bytes(data: bytes, change: tuple[str, int, bytes]) -> bytes:
    """Bytes with one change."""
    kind, place, extra = change
    i, n = place % (len(data) + 1), len(extra)
    if kind == "cut":
        return data[:i]
    if kind == "insert":
        return data[:i] + extra + data[i:]
    if kind == "delete":
        return data[:i] + data[i + n :]
    if kind == "repeat":
        return data[:i] + data[i : i + 16 * n] * n + data[i:]
    if kind == "overwrite":
        return data[:i] + extra + data[i + n :]
    flipped = bytearray(data)
    for j, byte in enumerate(extra):
        if i + j < len(flipped):
            flipped[i + j] ^= byte
    return bytes(flipped)


@st.composite
def json_texts(draw: Any, data: bytes) -> bytes:
    """JSON text with wrong values, names or characters."""
    tree = json.loads(data)
    for change in draw(st.lists(_CHANGES, max_size=3)):
        tree = change_tree(tree, change)
    return change_text(json.dumps(tree), draw(_TEXT_CHANGES))


@st.composite
def json_lines(draw: Any, data: bytes) -> bytes:
    """Lines of JSON of which one is wrong."""
    lines = data.splitlines()
    i = draw(st.integers(0, len(lines) - 1))
    lines[i] = draw(json_texts(lines[i]))
    return b"\n".join(lines) + b"\n"


@st.composite
def tensor_files(draw: Any, data: bytes) -> bytes:
    """A safetensors file with a wrong header, or with tensors of another kind."""
    if draw(st.booleans()):
        size = int.from_bytes(data[:8], "little")
        header: bytes = draw(json_texts(data[8 : 8 + size]))
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    tensors = load(data)
    name = draw(st.sampled_from(sorted(tensors))) if tensors else "x"
    tensor = tensors.get(name, torch.zeros(3))
    wrong = (
        st.sampled_from(_DTYPES).map(tensor.to)
        | st.sampled_from((float("nan"), float("inf"), 1e38)).map(lambda x: tensor + x)
        | st.lists(st.integers(0, 5), max_size=4).map(torch.zeros)
    )
    changed: bytes = save(tensors | {name: draw(wrong)})
    return changed


def damaged(name: str, data: bytes, others: list[bytes]) -> st.SearchStrategy[bytes]:
    """What may stand in a file instead of its contents."""
    structured = {".jsonl": json_lines, ".json": json_texts, ".safetensors": tensor_files}
    inside = structured[Path(name).suffix](data) if Path(name).suffix in structured else st.binary()
    bytewise = st.lists(_BYTE_CHANGES, min_size=1, max_size=4)

    def apply(changes: list[tuple[str, int, bytes]]) -> bytes:
        changed = data
        for change in changes:
            changed = change_bytes(changed, change)
        return changed

    return inside | bytewise.map(apply) | st.sampled_from(others) | st.binary(max_size=64)


# --- who reads it ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One input: a text or file contents, and where it goes."""

    where: str
    """A file of the run folder, a flag, or a field."""
    what: Any = field(repr=False)
    """Bytes of the file, or the value."""
    how: str = "file"
    """``file``, or what stands in its place: nothing, a folder, a link to nowhere."""

    def put(self, path: Path) -> None:
        """Put it where it belongs."""
        path.unlink(missing_ok=True)
        if self.how == "file":
            path.write_bytes(self.what)
        elif self.how == "folder":
            path.mkdir()
        elif self.how == "link":
            path.symlink_to("nowhere")

    def as_json(self) -> dict[str, Any]:
        """For the report: bytes as base64."""
        what = self.what
        shown = base64.b64encode(what).decode() if isinstance(what, bytes) else repr(what)
        return {"where": self.where, "how": self.how, "what": shown[:100_000]}


class Bench:
    """Two small runs, one finished and one stopped half-way, and a place for damaged copies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = override(RUNS["tiny"], **SMALL)
        self.finished, self.stopped = root / "finished", root / "stopped"
        self.blocked = root / "blocked"  # a file where a run folder is asked for: nothing trains
        self.blocked.touch()
        self._train(self.finished)
        with power_cut(STOPPED_AT):
            self._train(self.stopped)

    def _train(self, out: Path) -> None:
        anchor_interp.train(self.config, out, device="cpu", threads=1, quiet=True)

    def files(self, run: Path) -> st.SearchStrategy[Case]:
        """Damage of one file of a run folder; of its checkpoints, the newest."""
        newest = max((run / "checkpoints").iterdir())
        paths = [path for path in run.iterdir() if path.is_file()] + list(newest.iterdir())
        contents = {str(path.relative_to(run)): path.read_bytes() for path in sorted(paths)}
        others = list(contents.values())

        def of(name: str) -> st.SearchStrategy[Case]:
            inside = damaged(name, contents[name], others).map(lambda data: Case(name, data))
            instead = st.sampled_from(("nothing", "folder", "link"))
            return inside | inside | inside | instead.map(lambda how: Case(name, b"", how))

        return st.sampled_from(sorted(contents)).flatmap(of)

    @contextlib.contextmanager
    def damaged_copy(self, run: Path, case: Case) -> Iterator[Path]:
        """A copy of a run folder with the case's damage."""
        path = self.root / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(run, path)
        case.put(path / case.where)
        yield path

    def command(self, *arguments: str) -> str:
        """Run the command line in process and check what it says."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command_line(arguments)
        lines = err.getvalue().splitlines()
        if code and not (lines and lines[-1].startswith("anchor-interp: ") and not out.getvalue()):
            raise AssertionError(f"exit {code} with output {out.getvalue()!r} and {lines!r}")
        if any(line.endswith("--verbose shows where") for line in lines):
            raise AssertionError(f"an exception of another kind: {lines!r}")
        if code not in (0, 1, 2) or len([line for line in lines if "measuring" not in line]) > 1:
            raise AssertionError(f"exit {code} with {lines!r}")
        return "accepted" if code == 0 else f"refused with exit code {code}"


def read_file(bench: Bench, case: Case) -> str:
    """A configuration file."""
    path = bench.root / "config.json"
    with contextlib.suppress(IsADirectoryError):
        case.put(path)
    read_config(path)
    return "accepted"


def read_tree(bench: Bench, case: Case) -> str:
    """A configuration from plain values, and from a preset with one field changed."""
    del bench
    if case.where == "tree":
        from_dict(RunConfig, case.what)
    else:
        anchor_interp.preset("tiny", **{case.where: case.what})
    return "accepted"


def configured_command(bench: Bench, case: Case) -> str:
    """``train --config FILE``."""
    path = bench.root / "config.json"
    case.put(path)
    return bench.command("train", "--config", str(path), "--out", str(bench.blocked))


def flag(bench: Bench, case: Case) -> str:
    """``train --FIELD TEXT``."""
    try:
        return bench.command("train", "--out", str(bench.blocked), case.where, case.what)
    except SystemExit as stop:  # the text was --help or its kind
        if stop.code:
            raise
        return "accepted"


def reading(bench: Bench, case: Case) -> str:
    """Everything that ``load`` gives."""
    refusals = 0
    with bench.damaged_copy(bench.finished, case) as path:
        run = anchor_interp.load(path)
        for read in (
            lambda: run.metrics,
            lambda: run.model,
            lambda: run.evaluation,
            lambda: (run.phase, run.reason),
            lambda: run.folder.provenance(),
            lambda: run.evaluate(n=2),
        ):
            try:
                read()
            except AnchorInterpError as error:
                check_message(error)
                refusals += 1
    return "partly refused" if refusals else "accepted"


def evaluate_command(bench: Bench, case: Case) -> str:
    """``evaluate RUN``."""
    with bench.damaged_copy(bench.finished, case) as path:
        return bench.command("evaluate", str(path), "--n", "2")


def report_command(bench: Bench, case: Case) -> str:
    """``report RUN``."""
    with bench.damaged_copy(bench.finished, case) as path:
        return bench.command(
            "report", str(path), "--out", str(path.parent / "report.html"), "--quiet"
        )


def resuming(bench: Bench, case: Case) -> str:
    """``train`` on a run that was stopped half-way."""
    with bench.damaged_copy(bench.stopped, case) as path, contextlib.redirect_stderr(io.StringIO()):
        anchor_interp.train(bench.config, path, device="cpu", threads=1, quiet=True)
    return "accepted"


@dataclass(frozen=True)
class Target:
    """A reader and the cases it is given."""

    run: Callable[[Bench, Case], str]
    cases: Callable[[Bench], st.SearchStrategy[Case]]
    at_a_time: int
    """Cases before the next target has its turn."""


def config_files(bench: Bench) -> st.SearchStrategy[Case]:
    """Damaged configuration files."""
    data = json.dumps(to_dict(bench.config)).encode()
    other = json.dumps(to_dict(RUNS["paper-gpt2"])).encode()
    return (damaged("config.json", data, [other]) | json_texts(other)).map(
        lambda text: Case("config.json", text)
    )


def config_trees(bench: Bench) -> st.SearchStrategy[Case]:
    """Wrong values by the field's name, and whole configurations of wrong shape."""
    tree = to_dict(bench.config)
    by_name = st.builds(Case, st.sampled_from(FIELDS), values | st.binary(max_size=4))
    changed = _CHANGES.map(lambda change: Case("tree", change_tree(tree, change)))
    return by_name | changed


def flag_values(bench: Bench) -> st.SearchStrategy[Case]:
    """Any text behind any flag of a field."""
    del bench
    names = st.sampled_from([f"--{name.replace('_', '-')}" for name in FIELDS])
    texts = st.text(max_size=12) | st.sampled_from(_TEXTS) | _LEAVES.map(str)
    return st.builds(Case, names, texts)


TARGETS = {
    "configuration file": Target(read_file, config_files, 150),
    "configuration values": Target(read_tree, config_trees, 150),
    "train --config": Target(configured_command, config_files, 15),
    "train --flag": Target(flag, flag_values, 15),
    "load a run": Target(reading, lambda bench: bench.files(bench.finished), 25),
    "evaluate a run": Target(evaluate_command, lambda bench: bench.files(bench.finished), 12),
    "report a run": Target(report_command, lambda bench: bench.files(bench.finished), 4),
    "resume a run": Target(resuming, lambda bench: bench.files(bench.stopped), 15),
}

# --- the loop -------------------------------------------------------------------------------------


class Stuck(BaseException):
    """A case that did not end; no ``except`` clause of the package takes it for its own."""


@dataclass
class Report:
    """Counts and failures so far."""

    seed: int
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def write(self, path: Path, complete: bool) -> None:
        """Write it beside its place and rename it into it."""
        found = {
            "cases": sum(sum(counts.values()) for counts in self.outcomes.values()),
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "seed": self.seed,
            "complete": complete,
            "failures": list(self.failures.values()),
            "targets": {
                name: {"cases": sum(counts.values()), **dict(sorted(counts.items()))}
                for name, counts in self.outcomes.items()
            },
            "versions": {
                "anchor-interp": anchor_interp.__version__,
                "hypothesis": hypothesis.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(path)


def check_message(error: AnchorInterpError) -> None:
    """A message is one printable line that says something."""
    text = str(error)
    if not text.isprintable() or not 10 < len(text) < 20_000:
        raise AssertionError(f"a message of {len(text)} characters: {text[:200]!r}") from error


def outcome(target: Target, bench: Bench, case: Case) -> str:
    """Run one case; anything but success and the package's own errors goes through."""

    def stuck(_number: int, _frame: FrameType | None) -> None:
        raise Stuck(f"no end after {STUCK_AFTER_SECONDS} seconds")

    signal.signal(signal.SIGALRM, stuck)
    signal.alarm(STUCK_AFTER_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return target.run(bench, case)
    except AnchorInterpError as error:
        check_message(error)
        return f"refused as {type(error).__name__}"
    finally:
        signal.alarm(0)
        for leftover in (bench.root / "copy", bench.root / "config.json"):
            shutil.rmtree(leftover, ignore_errors=True)
            leftover.unlink(missing_ok=True)


def explore(name: str, bench: Bench, report: Report, seed: int, until: float) -> None:
    """Give a target its next cases; a new failure is shrunk and kept."""
    target, counts = TARGETS[name], report.outcomes.setdefault(name, Counter())
    new: list[tuple[str, ...]] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=target.at_a_time,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.cases(bench))
    def attempt(case: Case) -> None:
        if time.monotonic() > until and counts and not new:
            return  # late, but every target has its first case
        try:
            found = outcome(target, bench, case)
        except (Exception, Stuck, SystemExit) as error:
            where = traceback.extract_tb(error.__traceback__)
            inside = [frame for frame in where if "anchor_interp" in frame.filename] or where
            kind = (name, type(error).__name__, f"{inside[-1].name}:{inside[-1].lineno}")
            if kind in report.failures and kind not in new:
                counts["failed again"] += 1
                return
            if new and kind not in new:
                return  # shrinking follows one failure at a time
            new.append(kind)
            report.failures[kind] = {
                "target": name,
                "error": f"{type(error).__name__}: {error}"[:2_000],
                "input": case.as_json(),
                "traceback": traceback.format_exception(error)[-12:],
            }
            raise AssertionError("failed") from error
        if not new:
            counts[found] += 1

    with contextlib.redirect_stdout(io.StringIO()):
        try:
            attempt()
        except AssertionError:
            counts["failed"] += 1


def fuzz(minutes: float, seed: int, path: Path) -> Report:
    """Give every target its turn until the time is over."""
    report, round_number, shown = Report(seed), 0, 0.0
    until = report.began + 60 * minutes
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(Path(root))
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, resource.RLIM_INFINITY))
        while time.monotonic() < until or not round_number:
            for name in TARGETS:
                explore(name, bench, report, seed * 1_000_003 + round_number, until)
                report.write(path, complete=False)
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    counts = {target: sum(c.values()) for target, c in report.outcomes.items()}
                    left = max(0.0, (until - shown) / 60)
                    print(
                        f"{left:.1f} minutes left, {len(report.failures)} failures, {counts}",
                        file=sys.stderr,
                    )
            round_number += 1
    report.write(path, complete=True)
    return report


def main() -> int:
    """Read the arguments, fuzz, and say how it went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("fuzz.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = fuzz(arguments.minutes, arguments.seed, arguments.json)
    for failure in report.failures.values():
        print(f"{failure['target']}: {failure['error']}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
