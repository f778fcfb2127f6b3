"""A sample of the faults of :mod:`fault_list`; ``make evidence`` injects all of them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from short import with_helpers

from anchor_interp._util.errors import OutOfMemoryError
from anchor_interp.runs.memory import explained

TESTS = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_faults_end_in_one_line_and_lose_nothing() -> None:
    command = [sys.executable, str(TESTS / "faults.py"), "--kills", "0", "--every", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=with_helpers())
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["held"] == summary["faults"] >= 8
    assert summary["kinds"] >= 7


def test_lack_of_memory_is_one_line_whoever_reports_it() -> None:
    reports = [
        MemoryError("Unable to allocate 2.00 EiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ..."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("std::bad_alloc"),
    ]
    for report in reports:
        with pytest.raises(OutOfMemoryError) as refused, explained("training", "lower d_model"):
            raise report
        assert str(refused.value).startswith("out of memory while training (")
        assert str(refused.value).endswith("); lower d_model")
        assert "\n" not in str(refused.value)
    with pytest.raises(OutOfMemoryError), explained("training", "lower d_model"):
        torch.empty(1 << 55)
    with pytest.raises(RuntimeError, match="shape"), explained("training", "lower d_model"):
        raise RuntimeError("shape '[2]' is invalid")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_program_is_loading_is_one_line(number: signal.Signals) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("/proc does not show which signals a process handles")
    command = [sys.executable, "-m", "anchor_interp", "evaluate", "/missing"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    handled = 0
    while not handled >> (signal.SIGTERM - 1) & 1:
        text = Path(f"/proc/{child.pid}/status").read_text()
        handled = int(text.split("SigCgt:")[1].split()[0], 16)
        assert child.poll() is None
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert errors == "anchor-interp: interrupted; what was saved is kept\n"
