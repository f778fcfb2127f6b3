"""Two recordings of the package's results are told apart."""

import copy
from typing import Any

import pytest
import recording

RECORDED: dict[str, Any] = {
    "weights": {"tiny": {"weights": "ab12", "evaluation": {"ood_accuracy": 0.5}}},
    "analyses": {
        "tiny/symmetric/1": {
            "seconds": 10.0,
            "numbers": {"order": 0.25, "losses": {"shape": [2], "sums": [3, 5], "values": [1, 2]}},
        }
    },
    "times": {"step": 0.01},
}


def test_equal_recordings_do_not_differ() -> None:
    assert recording.compare(RECORDED, copy.deepcopy(RECORDED)) == []
    assert recording.ratios(RECORDED, RECORDED)[0].endswith("ratio 1.00")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("weights", "tiny", "weights"), "ab13"),
        (("weights", "tiny", "evaluation", "ood_accuracy"), 0.5 + 1e-9),
        (("analyses", "tiny/symmetric/1", "numbers", "order"), 0.25 + 1e-5),
        (("analyses", "tiny/symmetric/1", "numbers", "losses", "values"), [1, 2.1]),
    ],
)
def test_a_changed_value_is_told(path: tuple[str, ...], value: Any) -> None:
    new = copy.deepcopy(RECORDED)
    part = new
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    (line,) = recording.compare(RECORDED, new)
    assert path[-2] in line or path[-1] in line


def test_rounding_of_an_analysis_and_a_new_name_are_no_change() -> None:
    new = copy.deepcopy(RECORDED)
    numbers = new["analyses"]["tiny/symmetric/1"]["numbers"]
    numbers["order_first"] = numbers.pop("order") + 1e-9
    (line,) = recording.compare(RECORDED, new)
    assert line.endswith("order is now order_first, with an equal value")
