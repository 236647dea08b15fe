"""What the processes of a worker use, and how they are watched from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

COMPUTES = 0.2  # of a window's time: a thread that uses less of it waits for its turn to do nothing
WAKE_NS = 600_000  # a woken thread may wait for so long beside the one that woke it


# The referee's side.


@dataclass
class Usage:
    """What a process and its descendants have used, read from outside."""

    cpu_ns: int = 0
    waiting_ns: int = 0  # runnable, but not given a core


def tree(pid: int) -> list[int]:
    """Returns the pid and those of its descendants that exist now."""
    parent: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                fields = f.read().rpartition(b")")[2].split()
            parent[int(name)] = int(fields[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just gone
    found = [pid]
    for p in found:
        found.extend(child for child, of in parent.items() if of == p)
    return found


def usage(pids: Iterable[int]) -> dict[int, Usage]:
    """Returns what each thread that exists now has used. Empty for a process that is gone."""
    found: dict[int, Usage] = {}
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as f:
                    run, wait, _ = f.read().split()
            except (OSError, ValueError):
                continue
            found[int(thread)] = Usage(int(run), int(wait))
    return found


def waited(before: dict[int, Usage], after: dict[int, Usage], wall_ns: int, calls: int = 0) -> int:
    """Returns how long threads that computed were kept waiting, nanoseconds: idle ones wait for
    nothing. The thread that is called, ``calls``, has something to do even where it got no core.
    """
    total = 0
    for thread, now in after.items():
        then = before.get(thread, Usage())
        if thread == calls or now.cpu_ns - then.cpu_ns >= COMPUTES * wall_ns:
            total += max(now.waiting_ns - then.waiting_ns, 0)
    return total


def processor_time(pid: int) -> int:
    """Returns what a process has used, nanoseconds, those of its threads included that have ended.

    By its processor clock (time(7), CPUCLOCK_SCHED of linux/posix-timers.h). 0 for one that is
    gone.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def steal_ticks() -> int:
    """Returns what the hypervisor took from this machine, in ticks of 10 ms of all cores."""
    try:
        with open("/proc/stat", "rb") as f:
            return int(f.readline().split()[8])
    except (OSError, IndexError, ValueError):
        return 0
