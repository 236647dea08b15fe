"""Whether a speedup is certain to be above or below a milestone, looked at again and again.

A reward asks which baselines a candidate beats by a share, and not by how much. So timing may stop
once that is certain. The looks come whenever the windows are twice as many, and each has to clear
the milestone by ``WIDER`` times the half of a 95 % interval: a rule of the kind of Haybittle and
Peto (Br J Cancer 34, 1976), which leaves the last look, at the end of the usual time, as it is.
"""

from __future__ import annotations

from kwharness.base.verdicts import Speedup

WIDER = 1.7  # 3.3 standard errors for 2: one side is crossed by chance in 1 of 2,000 looks


def beaten(speedup: Speedup, milestone: float) -> bool | None:
    """Returns whether a Speedup is above 1 + milestone, None where that is not certain."""
    least, value = 1.0 + milestone, speedup.value
    if value - WIDER * (value - speedup.low) > least:
        return True
    if value + WIDER * (speedup.high - value) < least:
        return False
    return None
