"""What other programs take of this machine's processors while a test runs.

A test that measures (marked ``alone``) and fails beside them has found nothing: it is reported as
not measured, with the share that they took. What no load excuses raises ``Regardless``.
"""

from __future__ import annotations

import os
import time

# Of all processors' time: a machine left alone shows 1 to 3 %, one busy process on two cores 30.
BUSY = 0.1
RUN = "KERNELWRIGHT_TEST_RUN"  # the process that all tests of a run descend from


class Regardless(AssertionError):
    """A failure that counts however busy the machine is."""


def _ticks(root: int) -> int:
    """Returns what a process has used, its descendants, and those of theirs that have ended."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                fields = f.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has just gone
        parents[int(name)] = int(fields[1])
        used[int(name)] = sum(map(int, fields[11:15]))  # utime, stime, and the reaped children's
    found, seen = [root], {root}
    for pid in found:
        more = [p for p, of in parents.items() if of == pid and p not in seen]
        found += more
        seen.update(more)
    return sum(used.get(pid, 0) for pid in found)


def _all_ticks() -> int:
    """Returns what was used of all processors, by the hypervisor's other guests too (proc(5))."""
    with open("/proc/stat", "rb") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


class Watch:
    """Looks at the machine from now on."""

    def __init__(self) -> None:
        self._root = int(os.environ.get(RUN) or os.getpid())
        self._began = time.monotonic(), _all_ticks(), _ticks(self._root)

    def others(self) -> float:
        """Returns the share of all processors' time that others have had since."""
        began, used, ours = self._began
        could = (time.monotonic() - began) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
        others = (_all_ticks() - used) - (_ticks(self._root) - ours)
        return min(max(others / max(could, 1.0), 0.0), 1.0)


def says(share: float, failure: str) -> str:
    """Returns the sentence on a test that others have disturbed."""
    return f"not measured, the machine is busy: others had {share:.0%} of it; {failure}"
