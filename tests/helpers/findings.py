"""What a finding tells."""

from anchor_interp._util.statistics import Estimate
from claim_effects import Finding


def told(finding: Finding | None) -> Estimate:
    """The effect of a finding that has one."""
    assert finding is not None
    assert finding.found is not None
    return finding.found
