"""A few seconds of the fuzzer; the evidence is half an hour of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import TARGETS
from short import with_helpers


@pytest.mark.slow
def test_a_short_stretch_of_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "fuzz.json"
    script = Path(__file__).parent / "fuzz.py"
    options = ["--minutes", "0.1", "--seed", "7", "--json", str(report)]
    command = [sys.executable, str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=with_helpers())
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert (found["complete"], found["failures"], found["seed"]) == (True, [], 7)
    assert set(found["targets"]) == set(TARGETS)
    tried = [counts["cases"] for counts in found["targets"].values()]
    assert found["cases"] == sum(tried)
    assert min(tried) > 0  # how many it gets to depends on the machine
