"""The counters of processor and kernel over a worker's calls, where this machine lets us read them.

Through perf_event_open(2). Virtual machines often have no processor counters, and containers may
forbid all of them: what cannot be opened is absent from the result, never zero.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

HARDWARE, SOFTWARE = 0, 1  # linux/perf_event.h
EVENTS: dict[str, tuple[int, int]] = {
    "cycles": (HARDWARE, 0),
    "instructions": (HARDWARE, 1),
    "cache_references": (HARDWARE, 2),
    "cache_misses": (HARDWARE, 3),
    "branch_misses": (HARDWARE, 5),
    "page_faults": (SOFTWARE, 2),
    "context_switches": (SOFTWARE, 3),
}
_CALLS = {"x86_64": 298, "aarch64": 241}
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_TIMES = 1 << 0 | 1 << 1  # how long the event was enabled, and how long it was counted
_CLOEXEC = 1 << 3
_ENABLE, _DISABLE = 0x2400, 0x2401
MAX_THREADS = 64  # each takes a descriptor an event, and it is the worker that starts them
_libc = ctypes.CDLL(None, use_errno=True)


class Counters:
    """Counts what the threads of some processes do, and those that they start, while enabled."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds: dict[str, list[int]] = {}
        threads = [t for p in pids for t in _threads(p)]
        if len(threads) > MAX_THREADS:
            return
        for name, (kind, config) in EVENTS.items():
            opened = [_open(kind, config, t) for t in threads]
            if opened and all(fd >= 0 for fd in opened):
                self._fds[name] = opened
            else:
                _close(fd for fd in opened if fd >= 0)

    def __enter__(self) -> Counters:
        self._each(_ENABLE)
        return self

    def __exit__(self, *_: object) -> None:
        self._each(_DISABLE)

    def _each(self, request: int) -> None:
        for fds in self._fds.values():
            for fd in fds:
                _libc.ioctl(fd, ctypes.c_ulong(request), 0)

    def read(self) -> dict[str, float]:
        """Returns events by name. Those that shared a counter with others are scaled up."""
        found: dict[str, float] = {}
        for name, fds in self._fds.items():
            total = 0.0
            for fd in fds:
                data = os.read(fd, 24)
                if len(data) < 24:
                    break  # the kernel gave the counter up
                value, enabled, running = struct.unpack("QQQ", data)
                if enabled and not running:
                    break  # it never got a counter
                total += value * (enabled / running if running else 1.0)
            else:
                found[name] = total
        return found

    def close(self) -> None:
        for fds in self._fds.values():
            _close(fds)
        self._fds.clear()


def metrics(one: dict[str, float], ms: float) -> dict[str, float]:
    """Returns what the Judge reads: counts of one call, and ratios of them.

    ``ms`` is the time of a call: a line of the cache is 64 bytes, and each one missed was moved.
    """
    names = ("instructions", "page_faults", "context_switches")
    found: dict[str, float] = {n: one[n] for n in names if n in one}
    if one.get("cycles") and "instructions" in one:
        found["instructions_per_cycle"] = one["instructions"] / one["cycles"]
    if one.get("cache_references") and "cache_misses" in one:
        found["cache_miss_share"] = min(one["cache_misses"] / one["cache_references"], 1.0)
    if "cache_misses" in one and ms > 0:
        found["missed_gbs"] = 64 * one["cache_misses"] / (1e6 * ms)
    if one.get("instructions") and "branch_misses" in one:
        found["branch_misses_per_1000"] = 1000 * one["branch_misses"] / one["instructions"]
    return found


def _threads(pid: int) -> list[int]:
    try:
        return [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _open(kind: int, config: int, thread: int) -> int:
    """Returns a descriptor, or -1."""
    number = _CALLS.get(platform.machine())
    if number is None:
        return -1
    flags = _DISABLED | _INHERIT | _EXCLUDE_HV
    if (kind, config) != EVENTS["context_switches"]:  # the one that happens in the kernel
        flags |= _EXCLUDE_KERNEL
    # Version 0 of perf_event_attr: 64 bytes.
    attributes = struct.pack("IIQQQQQIIQ", kind, 64, config, 0, 0, _TIMES, flags, 0, 0, 0)
    return int(_libc.syscall(number, attributes, thread, -1, -1, _CLOEXEC))


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
