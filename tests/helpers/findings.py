"""What a finding tells."""

from anchor_interp.sweeps.effects import Estimate
from effects import Finding


def told(finding: Finding | None) -> Estimate:
    """The effect of a finding that has one."""
    assert finding is not None
    assert finding.found is not None
    return finding.found
