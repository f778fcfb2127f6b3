"""Long work speaks, short work and parts of other work are silent."""

import time

import pytest

from anchor_interp._util import progress
from anchor_interp._util.progress import reporting, reporting_all, reporting_one, silence


def spoken(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_work_speaks_once_it_has_become_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with reporting_one("short", 3) as short:
        for step in range(1, 4):
            now += 0.6
            short.update(step, {})
    assert spoken(capsys) == []
    with reporting_one("long", 30) as long:
        for step in range(1, 31):
            now += 0.6
            long.update(step, {"doing": f"part {step}"})
    first, second, last = spoken(capsys)
    assert first == "long: step 4/30  part 4  0m16s left"  # after 2.4 seconds
    assert second.startswith("long: step 21/30  part 21")  # ten seconds later
    assert last == "long: step 30/30  part 30"


def test_quiet_work_and_parts_of_other_work_are_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)

    def work(*, quiet: bool = False) -> None:
        with reporting_one("part", 1, quiet=quiet) as part:
            part.update(1, {})

    work(quiet=True)
    with silence():
        work()
    with reporting({"run": (5, 1)}), reporting_one("inner", 1) as inner:
        inner.update(1, {})
    with reporting_all(1, quiet=True):
        work()
    with reporting_one("outer", 2, quiet=True):
        work()
    assert spoken(capsys) == []
    work()
    assert spoken(capsys) == ["part: step 1/1"]


def test_a_part_of_long_work_is_what_that_work_is_doing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0)
    with reporting_one("outer", 2) as outer:
        outer.update(1, {"doing": "prune"})
        with reporting_one("inner", 5) as inner:
            inner.update(4, {"doing": "7 edges left"})
            with reporting_one("innermost", 1) as innermost:
                innermost.update(1, {})
        outer.update(2, {"doing": "done"})
    lines = [line.split("  ")[:3] for line in spoken(capsys)]
    assert lines == [
        ["outer: step 1/2", "prune"],
        ["outer: step 1/2", "prune", "7 edges left"],
        ["outer: step 2/2", "done"],
    ]


def test_many_runs_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with reporting_all(5) as overall:
        overall.begin(2)  # earlier, which tells nothing about the time left
        for clock[0], step in ((1.0, 0), (3.0, 50), (4.0, 100)):
            overall.run("a", 100).update(step, {"loss": 1.0})
        overall.end("a")
        clock[0] = 30.0
        overall.end("b", failed=True)
        overall.end("c")
    assert spoken(capsys) == [
        "2/5 runs  1 under way",
        "4/5 runs  1 failed  0m15s left",  # two in 30 seconds
        "5/5 runs  1 failed",
    ]
